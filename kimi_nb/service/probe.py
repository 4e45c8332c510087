"""Ask a service as its clients do, and judge the answers.

Example::

    for one in probe.endpoints(plan):
        probe.flaw(probe.chat(one, plan.served_name, 30), one)  # None where nothing is wrong

Only a completion proves that an engine is ready: /health of a broken engine returns 200 as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kimi_nb.plan.spec import EngineSpec, Plan
from kimi_nb.service import chat_markers, http_client
from kimi_nb.service.http_client import Limits, Reply

QUESTION = "Say in one sentence what you are."
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
)
TOOL_QUESTION = "What is the weather in Beijing? Use get_weather."
_SMALL, _METRICS = 1 << 20, 16 << 20  # bytes that are read of such an answer
_AT_ONCE = 64  # engines that are asked at the same time


@dataclass(frozen=True)
class Endpoint:
    """One data parallel rank and how to reach it.

    ``index`` is the value of X-data-parallel-rank where one API serves several ranks. ``reasoning``
    and ``tools`` say whether the engine was started with the parsers that keep reasoning and tool
    calls out of the content.
    """

    engine: str
    role: str
    node: str
    rank: int
    url: str
    index: int | None
    reasoning: bool
    tools: bool

    @property
    def name(self) -> str:
        """The name of the rank, such as prefill0-rank3."""
        return re.sub(r"-(rank|node)\d+$", "", self.engine) + f"-rank{self.rank}"


def endpoints(plan: Plan) -> tuple[Endpoint, ...]:
    """Return every rank of a plan with the API that serves it, in the plan's order."""
    heads: dict[tuple[str, int], EngineSpec] = {}
    served: list[tuple[EngineSpec, EngineSpec]] = []  # an engine, and the one with its API
    behind: dict[str, int] = {}
    for engine in plan.engines:
        key = (engine.role, engine.group)
        if engine.url is not None:
            heads[key] = engine
        if not engine.part:  # the first node of a rank stands for it
            head = heads[key]
            served.append((engine, head))
            behind[head.name] = behind.get(head.name, 0) + engine.ranks
    out = []
    for engine, head in served:
        flags = plan.flags[engine.role]
        shared = behind[head.name] > 1
        for rank in range(engine.rank, engine.rank + engine.ranks):
            out.append(
                Endpoint(
                    engine.name,
                    engine.role,
                    engine.node,
                    rank,
                    head.url or "",
                    rank - head.rank if shared else None,
                    "reasoning-parser" in flags,
                    "tool-call-parser" in flags,
                )
            )
    return tuple(out)


def health(url: str, seconds: float) -> Reply:
    """Return the answer to GET /health."""
    return http_client.send("GET", f"{url}/health", Limits(seconds, size=_SMALL))


def healthy(url: str, seconds: float) -> bool:
    """Return whether GET /health gives 200."""
    return health(url, seconds).good


def mark(urls: Iterable[str], seconds: float) -> str:
    """Return REHEARSAL if a stand-in answers at any of the URLs of a service, else "".

    A service of real engines whose door is a stand-in is none of real engines, nor is the other
    way round, nor one with a stand-in among its engines.
    """

    def asked(url: str) -> str:
        return http_client.send("GET", f"{url}/v1/models", Limits(seconds, size=_SMALL)).mark

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return next(filter(None, pool.map(asked, dict.fromkeys(urls))), "")


def metrics(url: str, seconds: float) -> Reply:
    """Return the answer to GET /metrics."""
    return http_client.send("GET", f"{url}/metrics", Limits(seconds, size=_METRICS))


def version(url: str, seconds: float) -> str:
    """Return the version from GET /version; "" where there is none, as with a proxy."""
    reply = http_client.send("GET", f"{url}/version", Limits(seconds, size=_SMALL))
    return str(reply.body.get("version", ""))


def chat(
    where: Endpoint | str,
    model: str,
    seconds: float,
    question: str = QUESTION,
    key: str = "",
    **more: Any,
) -> Reply:
    """Request one chat completion from a rank or a URL; the API key ``key`` is not kept."""
    url = where if isinstance(where, str) else where.url
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if not isinstance(where, str) and where.index is not None:
        headers["X-data-parallel-rank"] = str(where.index)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 64,
        "temperature": 0,
        **more,
    }
    return http_client.send(
        "POST", f"{url}/v1/chat/completions", Limits(seconds), json=body, headers=headers
    )


def moved(urls: Iterable[str], seconds: float) -> tuple[int, int | None]:
    """Return (prompt tokens, bytes) of KV cache that came from other engines.

    Both are sums over the engines' /metrics. The bytes are those that NIXL counts; None where the
    connector counts none.
    """
    tokens, counts = 0.0, []
    for url in dict.fromkeys(urls):
        text = metrics(url, seconds).text
        tokens += sum(
            map(
                _number,
                re.findall(
                    r'^vllm:prompt_tokens_by_source_total\{[^}]*source="external_kv_transfer"[^}]*\} '
                    r"(\S+)$",
                    text,
                    re.MULTILINE,
                ),
            )
        )
        counts += re.findall(
            r"^vllm:nixl_bytes_transferred_sum(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE
        )
    return int(tokens), int(sum(map(_number, counts))) if counts else None


def _number(text: str) -> float:
    """Return the value of a sample; 0 for what is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def flaw(reply: Reply, where: Endpoint) -> tuple[str, str] | None:
    """Return (kind, cause) of what is wrong with a completion; None where nothing is."""
    text = reply.content + reply.thoughts
    if garbled(text):
        return "garbled-output", f"garbled output: {text[:40]!r}"
    if where.reasoning and chat_markers.THINKING.search(reply.content):
        return (
            "reasoning-leaks",
            f"reasoning leaks into content: {_around(chat_markers.THINKING, reply.content)!r}",
        )
    if where.tools and chat_markers.TOOL_CALL.search(text):
        return (
            "tool-call-leaks",
            f"a tool call leaks as text: {_around(chat_markers.TOOL_CALL, text)!r}",
        )
    return None


def garbled(text: str) -> bool:
    """Return whether a text is like the output of broken kernels.

    That is a text of replacement characters, or of one or two characters repeated.

    >>> garbled("!!!!!!!!!!!!")
    True
    >>> garbled("I am Kimi.")
    False
    """
    plain = "".join(text.split())
    if not plain:
        return False
    if plain.count("\N{REPLACEMENT CHARACTER}") * 10 > len(plain):
        return True
    # A long text of real words has more than a handful of different letters.
    return len(plain) >= 8 and len(set(plain)) <= max(2, min(6, len(plain) // 40))


def _around(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    at = match.start() if match else 0
    return text[max(0, at - 20) : at + 40]
