"""Answer requests as vLLM's OpenAI server does, without a model, an accelerator or a clock.

    ask = chat(served, raw, headers, "chatcmpl-1", 1795299206)   # or an ApiError
    body = whole(ask)                       # or frames(ask), one SSE frame for each token

The content of an answer follows from the prompt alone, so that every engine gives the same one.
Shapes and errors are those of vLLM 0.20.2 (tests/rehearse/contract/api.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, cycle, islice
from typing import Any

from kimi_nb.rehearse.engine.api import chat_requests, stand_in_text
from kimi_nb.rehearse.engine.api.chat_requests import Request, Served
from kimi_nb.rehearse.engine.api.request_fields import ApiError, compact
from kimi_nb.rehearse.fault_names import FaultName

__all__ = [
    "ApiError",
    "Ask",
    "Call",
    "Served",
    "Token",
    "chat",
    "completion",
    "frames",
    "internal",
    "models",
    "regenerate",
    "tokenize",
    "whole",
]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer.

    Attributes:
        channel: "reasoning", "content" or "tool".
        text: Its text; empty for the token that ends an answer, and for the first token of a tool
            call, which carries the call's name and id.
        call: The index of its tool call; -1 for none.
    """

    channel: str
    text: str
    call: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """The id of a tool call, "functions.NAME:IDX", and the name of the function."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and the answer to it.

    Attributes:
        kind: "chat" or "completion".
        created: When the request came, in seconds since the epoch.
        rank: The rank that the client chose, or None.
        digest: The SHA-256 of the prompt, in hex; prefill and decode compare it.
        tokens: The answer, the same for each of the ``n`` choices.
        finish_reason: "stop", "length" or "tool_calls".
        kv: The kv_transfer_params of the request.
        stop_reason: The stop string that was found.
        calls: The tool calls of the answer.
        blank: The content of a message that has none: "" or None.
        parsed: Whether the frames of the content come from a tool parser.
    """

    kind: str
    id: str
    created: int
    model: str
    stream: bool
    include_usage: bool
    n: int
    rank: int | None
    prompt_tokens: int
    digest: str
    tokens: tuple[Token, ...]
    finish_reason: str
    max_tokens: int
    kv: dict[str, Any] | None = None
    stop_reason: str | None = None
    calls: tuple[Call, ...] = ()
    blank: str | None = None
    parsed: bool = False

    @property
    def usage(self) -> dict[str, int]:
        """The number of tokens of the prompt and of all choices."""
        made = len(self.tokens) * self.n
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + made,
            "completion_tokens": made,
        }


def chat(served: Served, raw: bytes, headers: Mapping[str, str], id: str, created: int) -> Ask:
    """Return the answer to POST /v1/chat/completions.

    Raises:
        ApiError: The client made a mistake.
    """
    return _ask(served, "chat", chat_requests.chat(served, raw, headers), id, created)


def completion(
    served: Served,
    raw: bytes,
    headers: Mapping[str, str],
    id: str,
    created: int,
) -> Ask:
    """Return the answer to POST /v1/completions.

    Raises:
        ApiError: The client made a mistake.
    """
    return _ask(served, "completion", chat_requests.completion(served, raw, headers), id, created)


def internal(message: str) -> ApiError:
    """Return the answer of an engine that failed."""
    return ApiError(500, message, "InternalServerError")


def models(served: Served, created: int) -> dict[str, Any]:
    """Return the body of GET /v1/models."""
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": served.root,
                "parent": None,
                "max_model_len": served.max_model_len,
                "permission": [
                    {
                        "id": f"modelperm-{sha256(name.encode()).hexdigest()[:16]}",
                        "object": "model_permission",
                        "created": created,
                        "allow_create_engine": False,
                        "allow_sampling": True,
                        "allow_logprobs": True,
                        "allow_search_indices": False,
                        "allow_view": True,
                        "allow_fine_tuning": False,
                        "organization": "*",
                        "group": None,
                        "is_blocking": False,
                    }
                ],
            }
            for name in served.names
        ],
    }


def tokenize(served: Served, raw: bytes) -> dict[str, Any]:
    """Return the answer to POST /tokenize.

    Raises:
        ApiError: The client made a mistake.
    """
    tokens, strings = chat_requests.tokenize(served, raw)
    return {
        "count": len(tokens),
        "max_model_len": served.max_model_len,
        "tokens": [stand_in_text.number(token) for token in tokens],
        "token_strs": tokens if strings else None,
    }


def regenerate(ask: Ask, digest: str) -> Ask:
    """Return the answer of an engine that received the cache of the prompt with this digest.

    It is nonsense unless the digest is that of the request's own prompt.
    """
    if digest == ask.digest:
        return ask
    seed = sha256(digest.encode("utf-8", "replace")).digest()
    return replace(
        ask,
        tokens=tuple(
            replace(token, text=stand_in_text.nonsense(token.text, place, seed))
            for place, token in enumerate(ask.tokens)
        ),
    )


# Content of answers ---------------------------------------------------------------------------


def _ask(served: Served, kind: str, request: Request, id: str, created: int) -> Ask:
    calls, arguments = _calls(request)
    body = _thoughts(served, request) if request.thinking else []
    parsed = served.flaw != FaultName.TOOL_CALL_LEAKS
    if calls and parsed:
        for at, words in enumerate(arguments):
            body += [Token("tool", piece, at) for piece in ("", *stand_in_text.split(words))]
    elif calls:
        body += _content(stand_in_text.markup([call.id for call in calls], arguments))
    elif request.literal is not None:
        body += _content(stand_in_text.split(request.literal))
    else:
        body += _content(stand_in_text.reply(request.prompt.said, request.prompt.digest))
    spoken = calls if parsed else ()
    end = Token("tool", "", len(spoken) - 1) if spoken else Token("content", "")
    tokens, reason = _measured(body, end, request)
    if served.flaw == FaultName.GARBLED_OUTPUT:
        tokens = [replace(token, text="!") if token.text else token for token in tokens]
    tokens, found = _stopped(tokens, request)
    if found is not None:
        reason = "stop"
    if spoken and len(tokens) >= len(body):
        reason = "tool_calls"
    return Ask(
        kind=kind,
        id=id,
        created=created,
        model=served.names[0],
        stream=request.fields.stream,
        include_usage=bool(request.fields.stream_options.get("include_usage")),
        n=request.fields.n,
        rank=request.rank,
        prompt_tokens=len(request.prompt.tokens),
        digest=request.prompt.digest,
        tokens=tuple(tokens),
        finish_reason=reason,
        max_tokens=request.max_tokens,
        kv=request.fields.kv_transfer_params,
        stop_reason=found,
        calls=spoken,
        blank="" if request.choice == "required" else None,
        parsed=kind == "chat" and served.calls_tools,
    )


def _calls(request: Request) -> tuple[tuple[Call, ...], list[str]]:
    """Return the tool calls that the model makes, and the arguments of each as JSON."""
    prompt, tools = request.prompt, request.tools
    chosen = stand_in_text.called([tool.name for tool in tools], prompt.said)
    if request.choice == "required":
        chosen = chosen or [0]
    elif request.choice != "auto" or not prompt.asks:
        chosen = []
    chosen = chosen if request.parallel else chosen[:1]
    calls = tuple(
        Call(f"functions.{tools[at].name}:{prompt.earlier + place}", tools[at].name)
        for place, at in enumerate(chosen)
    )
    return calls, [compact(_arguments(tools[at].parameters)) for at in chosen]


def _arguments(schema: Any) -> dict[str, Any]:
    made = stand_in_text.example(schema)
    return made if isinstance(made, dict) else {}


def _thoughts(served: Served, request: Request) -> list[Token]:
    words = stand_in_text.thought(request.prompt.said)
    if not served.reasoning_parser or served.flaw == FaultName.REASONING_LEAKS:
        return _content([*words, "</think>"])
    return [Token("reasoning", word) for word in words] if request.shown else []


def _content(words: list[str]) -> list[Token]:
    return [Token("content", word) for word in words]


def _measured(body: list[Token], end: Token, request: Request) -> tuple[list[Token], str]:
    """Return the tokens of an answer of the requested length, and why it ends."""
    most, length = request.max_tokens, max(len(body), request.fields.min_tokens)
    if request.fields.ignore_eos:
        length = most
    elif length < most:
        return [*islice(chain(body, _filler(end, request)), length), end], "stop"
    return list(islice(chain(body, _filler(end, request)), most)), "length"


def _filler(end: Token, request: Request) -> cycle[Token]:
    """Return tokens that extend an answer without spoiling it: JSON stays JSON."""
    if end.channel == "tool":
        return cycle([end])
    return cycle(_content([" ", "\n"] if request.literal is not None else list(stand_in_text.FILL)))


def _stopped(tokens: list[Token], request: Request) -> tuple[list[Token], str | None]:
    """Return the tokens up to the first stop string, and that string.

    Tokens that a tool parser reads are not searched: only the length can cut arguments.
    """
    if not request.stop:
        return tokens, None
    texts = ["" if token.channel == "tool" else token.text for token in tokens]
    said = "".join(texts)
    start = sum(map(len, texts[: request.fields.min_tokens]))
    places = [(at, word) for word in request.stop if (at := said.find(word, start)) >= 0]
    if not places:
        return tokens, None
    cut, found = min(places)
    length = 0
    for place, part in enumerate(texts):
        if length + len(part) > cut:
            return [*tokens[:place], replace(tokens[place], text=part[: cut - length])], found
        length += len(part)
    return tokens, None


# Form of answers ------------------------------------------------------------------------------


def whole(ask: Ask, kv: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of an answer that is not streamed, with ``kv`` as its kv_transfer_params."""
    made = _text(ask) if ask.kind == "completion" else _message(ask)
    choices = [{"index": index, **made} for index in range(ask.n)]
    head = {
        "id": ask.id,
        "object": "text_completion" if ask.kind == "completion" else "chat.completion",
        "created": ask.created,
        "model": ask.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": stand_in_text.MARK,
        "usage": {**ask.usage, "prompt_tokens_details": None},
    }
    if ask.kind == "chat":
        head |= {"prompt_logprobs": None, "prompt_token_ids": None}
    return {**head, "kv_transfer_params": kv}


def _text(ask: Ask) -> dict[str, Any]:
    return {
        "text": "".join(token.text for token in ask.tokens),
        "logprobs": None,
        "finish_reason": ask.finish_reason,
        "stop_reason": ask.stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }


def _message(ask: Ask) -> dict[str, Any]:
    parts: dict[str, list[str]] = {}
    pieces: dict[int, list[str]] = {}
    for token in ask.tokens:
        place = (
            parts.setdefault(token.channel, [])
            if token.call < 0
            else pieces.setdefault(token.call, [])
        )
        place.append(token.text)
    calls = [
        {
            "id": ask.calls[at].id,
            "type": "function",
            "function": {"name": ask.calls[at].name, "arguments": "".join(made)},
        }
        for at, made in pieces.items()
    ]
    message = {
        "role": "assistant",
        "content": "".join(parts["content"]) if "content" in parts else ask.blank,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": calls,
        "reasoning": "".join(parts["reasoning"]) if "reasoning" in parts else None,
    }
    return {
        "message": message,
        "logprobs": None,
        "finish_reason": ask.finish_reason,
        "stop_reason": ask.stop_reason,
        "token_ids": None,
    }


def frames(ask: Ask) -> list[bytes]:
    """Return the server-sent events of a streamed answer.

    There is one for each token of each choice, the choices in turn. The role comes before them; the
    usage, if asked for, and [DONE] come after them.
    """
    chatting = ask.kind == "chat"
    shape = "chat.completion.chunk" if chatting else "text_completion"
    head = (
        "data: "
        + compact({"id": ask.id, "object": shape, "created": ask.created, "model": ask.model})[:-1]
        + ',"choices":['
    )
    why, found = compact(ask.finish_reason), compact(ask.stop_reason)
    if chatting:
        key, middle = "delta", ',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        last = (
            f',"logprobs":null,"finish_reason":{why},"stop_reason":{found},"token_ids":null}}'
            "]}\n\n"
        )
        parts = _deltas(ask)
    else:
        key, after = "text", '"prompt_token_ids":null,"token_ids":null}],"usage":null}\n\n'
        middle = f',"logprobs":null,"finish_reason":null,"stop_reason":null,{after}'
        last = f',"logprobs":null,"finish_reason":{why},"stop_reason":{found},{after}'
        parts = [json.dumps(token.text, ensure_ascii=False) for token in ask.tokens]
    starts = [f'{head}{{"index":{index},"{key}":' for index in range(ask.n)]
    out = (
        [
            f'{start}{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],'
            '"prompt_token_ids":null}\n\n'.encode()
            for start in starts
        ]
        if chatting
        else []
    )
    out += [(start + part + middle).encode() for part in parts[:-1] for start in starts]
    out += [(start + parts[-1] + last).encode() for start in starts]
    if ask.include_usage:
        out.append(f'{head}],"usage":{compact(ask.usage)}}}\n\n'.encode())
    return [*out, b"data: [DONE]\n\n"]


def _deltas(ask: Ask) -> list[str]:
    """Return the delta of each token, as JSON."""
    after = ',"tool_calls":[]}' if ask.parsed else "}"
    out, call = [], -1
    for token in ask.tokens:
        if token.channel == "content":
            out.append(f'{{"content":{json.dumps(token.text, ensure_ascii=False)}{after}')
        elif token.channel == "reasoning":
            out.append(f'{{"reasoning":{json.dumps(token.text, ensure_ascii=False)}}}')
        elif token.call != call:
            call = token.call
            out.append(
                compact(
                    {
                        "tool_calls": [
                            {
                                "id": ask.calls[call].id,
                                "type": "function",
                                "index": call,
                                "function": {"name": ask.calls[call].name, "arguments": ""},
                            }
                        ]
                    }
                )
            )
        else:
            out.append(
                compact({"tool_calls": [{"index": call, "function": {"arguments": token.text}}]})
            )
    return out
