"""Send requests to a service as its clients do, and judge the answers.

Example::

    for one in probe.endpoints(plan):
        probe.flaw(probe.chat(one, plan.served_name, 30), one)  # None where nothing is wrong

Only a completion proves that an engine is ready: /health of a broken engine returns 200 as well.
"""

from __future__ import annotations

import json
import re
import socket
import textwrap
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
import socks

from kimi_nb.plan.spec import EngineSpec, Plan

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
_TAGS = re.compile(r"</?think>")
_TOOL_TAGS = re.compile(r"<\|tool_calls?_")
NO_TLS = "no TLS is spoken there"  # Reply.error for https:// to a port that speaks http://
_PLAIN = re.compile(r"WRONG_VERSION_NUMBER|record layer failure")  # how OpenSSL says so
_local = threading.local()
# The local port of the SOCKS5 proxy to the nodes; None where they are reached directly. A process
# watches one deployment at a time.
_way: int | None = None


def go_through(port: int | None) -> None:
    """Reach the nodes through a SOCKS5 proxy at 127.0.0.1 (`ssh -D`), or directly with None."""
    global _way
    _way = port


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


@dataclass(frozen=True)
class Reply:
    """An HTTP answer.

    ``status`` is 0 where none came, and ``error`` says why. ``mark`` is REHEARSAL in the answer of
    a stand-in. ``kind`` is the Content-Type, ``sized`` whether there is a Content-Length.
    ``arrivals`` has, for each chunk of a chunked stream, the seconds from the request to its
    arrival.
    """

    status: int
    text: str
    seconds: float
    error: str = ""
    mark: str = ""
    kind: str = ""
    sized: bool = False
    arrivals: tuple[float, ...] = ()

    @property
    def body(self) -> Mapping[str, Any]:
        """The JSON object; empty where the answer is none."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def message(self) -> Mapping[str, Any]:
        """The message of the first choice; empty where there is none."""
        choices = self.body.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else {}
        found = first.get("message") if isinstance(first, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def content(self) -> str:
        """The content of the message, without reasoning."""
        return str(self.message.get("content") or "")

    @property
    def thoughts(self) -> str:
        """The reasoning, under either of the names that vLLM versions give it."""
        return str(self.message.get("reasoning") or self.message.get("reasoning_content") or "")

    @property
    def answered(self) -> bool:
        """Whether this is a completion: status 200 with content, reasoning or tool calls."""
        return self.status == 200 and bool(
            self.content or self.thoughts or self.message.get("tool_calls")
        )


def endpoints(plan: Plan) -> tuple[Endpoint, ...]:
    """Return every rank of a plan with the API that serves it, in the plan's order."""
    heads: dict[tuple[str, int], EngineSpec] = {}
    out = []
    for engine in plan.engines:
        key = (engine.role, engine.group)
        if engine.url is not None:
            heads[key] = engine
        head = heads[key]
        if engine.headless and engine.tp_size > len(engine.devices):
            continue  # belongs to the rank of the head
        flags = plan.flags[engine.role]
        shared = head is not engine or engine.ranks > 1
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


def healthy(url: str, seconds: float) -> bool:
    """Return whether GET /health gives 200."""
    return send("GET", f"{url}/health", seconds).status == 200


def mark(url: str, seconds: float) -> str:
    """Return the mark that a service puts on its answers: REHEARSAL from stand-ins, else ""."""
    return send("GET", f"{url}/v1/models", seconds).mark


def metrics(url: str, seconds: float) -> tuple[int, str]:
    """Return (status, text) of GET /metrics; status 0 means that no answer came."""
    reply = send("GET", f"{url}/metrics", seconds)
    return reply.status, reply.text


def version(url: str, seconds: float) -> str:
    """Return the version from GET /version; "" where there is none, as with a proxy."""
    return str(send("GET", f"{url}/version", seconds).body.get("version", ""))


def listens(url: str, seconds: float) -> bool:
    """Return whether something accepts TCP connections there; much cheaper than GET /health."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        if _way is None:
            socket.create_connection((host, port), seconds).close()
        else:
            socks.create_connection(
                (host, port),
                seconds,  # type: ignore[arg-type] # the stubs allow int only
                proxy_type=socks.SOCKS5,
                proxy_addr="127.0.0.1",
                proxy_port=_way,
            ).close()
    except OSError:
        return False
    return True


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
    return send("POST", f"{url}/v1/chat/completions", seconds, json=body, headers=headers)


def moved(urls: Iterable[str], seconds: float) -> tuple[int, int | None]:
    """Return (prompt tokens, bytes) of KV cache that came from other engines.

    Both are sums over the engines' /metrics. The bytes are those that NIXL counts; None where the
    connector counts none.
    """
    tokens, counts = 0.0, []
    for url in dict.fromkeys(urls):
        text = send("GET", f"{url}/metrics", seconds).text
        tokens += sum(
            map(
                float,
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
    return int(tokens), int(sum(map(float, counts))) if counts else None


def flaw(reply: Reply, where: Endpoint) -> tuple[str, str] | None:
    """Return (kind, cause) of what is wrong with a completion; None where nothing is."""
    text = reply.content + reply.thoughts
    if garbled(text):
        return "garbled-output", f"garbled output: {text[:40]!r}"
    if where.reasoning and _TAGS.search(reply.content):
        return "reasoning-leaks", f"reasoning leaks into content: {_around(_TAGS, reply.content)!r}"
    if where.tools and _TOOL_TAGS.search(text):
        return "tool-call-leaks", f"a tool call leaks as text: {_around(_TOOL_TAGS, text)!r}"
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


def send(method: str, url: str, seconds: float, **more: Any) -> Reply:
    """Send a request and return the whole answer; network errors are returned, not raised.

    ``more`` are arguments of `requests.Session.request`.
    """
    begun = time.monotonic()
    try:
        answer = _session().request(method, url, timeout=(seconds, seconds), **more)
        return Reply(
            answer.status_code,
            # JSON is UTF-8: no guess of another encoding may hide bytes that are none.
            answer.content.decode("utf-8", "replace"),
            time.monotonic() - begun,
            mark=answer.headers.get("x-rehearsal", ""),
            kind=answer.headers.get("content-type", ""),
            sized="content-length" in answer.headers,
        )
    except requests.Timeout:
        return Reply(0, "", time.monotonic() - begun, f"no answer in {seconds:g} s")
    except requests.RequestException as error:
        return Reply(0, "", time.monotonic() - begun, _reason(error))


def stream(url: str, seconds: float, **more: Any) -> Reply:
    """Send a POST request and return what was streamed.

    ``text`` is everything that came. ``error`` says why it is incomplete, also where the answer
    does not end within ``seconds``.
    """
    begun, status, pieces, mark_ = time.monotonic(), 0, [], ""
    error, kind, sized, chunked = "", "", False, False
    arrivals: list[float] = []
    try:
        with _session().post(url, timeout=(seconds, seconds), stream=True, **more) as answer:
            status, mark_ = answer.status_code, answer.headers.get("x-rehearsal", "")
            kind = answer.headers.get("content-type", "")
            sized = "content-length" in answer.headers
            chunked = "chunked" in answer.headers.get("transfer-encoding", "")
            for piece in answer.iter_content(None):
                pieces.append(piece)
                arrivals.append(time.monotonic() - begun)
                if time.monotonic() - begun > seconds:
                    error = f"no end in {seconds:g} s"
                    break
    except requests.Timeout:
        error = f"no answer in {seconds:g} s"
    except requests.RequestException as wrong:
        # requests reports a read that times out inside the body as a broken connection.
        late = "timed out" in str(wrong)
        error = f"no answer in {seconds:g} s" if late else _reason(wrong)
    return Reply(
        status,
        b"".join(pieces).decode("utf-8", "replace"),
        time.monotonic() - begun,
        error,
        mark_,
        kind,
        sized,
        tuple(arrivals) if chunked else (),
    )


def _session() -> requests.Session:
    session = getattr(_local, "session", None)
    if session is None:
        session = _local.session = requests.Session()
        session.trust_env = False  # the environment's proxy does not lead to the nodes
    session.proxies = {} if _way is None else {"http": f"socks5h://127.0.0.1:{_way}"}
    return session


def _reason(error: requests.RequestException) -> str:
    text = str(error)
    if name := re.search(r"Failed to resolve '([^']+)'", text):
        return f"the name {name[1]!r} is not known to this machine"
    if _PLAIN.search(text):
        return NO_TLS
    found = re.search(r"\[Errno \d+\] [\w ]+|Connection aborted|RemoteDisconnected", text)
    return found[0] if found else textwrap.shorten(text, 200, placeholder=" ...")
