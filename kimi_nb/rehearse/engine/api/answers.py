"""The answers of a stand-in vLLM engine: OpenAI's API without a model, an accelerator or a clock.

    ask = chat(served, raw, headers, "chatcmpl-1", 1795299206)   # or an ApiError
    body = whole(ask)                       # or frames(ask), one SSE frame for each token

What is said follows from the prompt alone, so that every engine says the same; shapes and errors
are those of vLLM 0.20.2 (tests/contract/api.json).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, cycle, islice
from typing import Any

from kimi_nb.rehearse.engine.api import chat_requests as requests
from kimi_nb.rehearse.engine.api import stand_in_text as text
from kimi_nb.rehearse.engine.api.chat_requests import Request, Served
from kimi_nb.rehearse.engine.api.request_fields import ApiError, compact

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
    """One token: its ``channel`` is "reasoning", "content" or "tool". ``call`` is which tool call
    it belongs to; the first token of a call has no text and carries its name and id. The token
    that ends an answer has no text either."""

    channel: str
    text: str
    call: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call's id, "functions.NAME:IDX", and the function's name."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and the answer to it. ``kind`` is "chat" or "completion"; ``created`` in seconds;
    ``rank`` the one that the client chose; ``digest`` the SHA-256 (hex) of the prompt, which
    prefill and decode compare; ``tokens`` the answer, the same for each of the ``n`` choices;
    ``finish_reason`` "stop", "length" or "tool_calls"; ``stop_reason`` the stop string found;
    ``kv`` the request's kv_transfer_params; ``blank`` the content of a message without any;
    ``parsed`` whether a tool parser makes the content's frames."""

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
        """Tokens of the prompt and of all choices."""
        made = len(self.tokens) * self.n
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + made,
            "completion_tokens": made,
        }


def chat(served: Served, raw: bytes, headers: Mapping[str, str], id: str, created: int) -> Ask:
    """The answer to POST /v1/chat/completions. ``ApiError``: what the client did wrong."""
    return _ask(served, "chat", requests.chat(served, raw, headers), id, created)


def completion(
    served: Served,
    raw: bytes,
    headers: Mapping[str, str],
    id: str,
    created: int,
) -> Ask:
    """The answer to POST /v1/completions. ``ApiError``: what the client did wrong."""
    return _ask(served, "completion", requests.completion(served, raw, headers), id, created)


def internal(message: str) -> ApiError:
    """The answer of an engine that failed."""
    return ApiError(500, message, "InternalServerError")


def models(served: Served, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
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
    """The answer to POST /tokenize. ``ApiError``: what the client did wrong."""
    tokens, strings = requests.tokenize(served, raw)
    return {
        "count": len(tokens),
        "max_model_len": served.max_model_len,
        "tokens": [text.number(token) for token in tokens],
        "token_strs": tokens if strings else None,
    }


def regenerate(ask: Ask, digest: str) -> Ask:
    """The answer of an engine that got the cache of the prompt with this digest: nonsense, unless
    it is the prompt's own."""
    if digest == ask.digest:
        return ask
    seed = sha256(digest.encode("utf-8", "replace")).digest()
    return replace(
        ask,
        tokens=tuple(
            replace(token, text=text.nonsense(token.text, place, seed))
            for place, token in enumerate(ask.tokens)
        ),
    )


# What is said ---------------------------------------------------------------------------------


def _ask(served: Served, kind: str, request: Request, id: str, created: int) -> Ask:
    calls, arguments = _calls(request)
    body = _thoughts(served, request) if request.thinking else []
    parsed = served.flaw != "tool-call-leaks"
    if calls and parsed:
        for at, words in enumerate(arguments):
            body += [Token("tool", piece, at) for piece in ("", *text.split(words))]
    elif calls:
        body += _content(text.markup([call.id for call in calls], arguments))
    elif request.literal is not None:
        body += _content(text.split(request.literal))
    else:
        body += _content(text.reply(request.prompt.said, request.prompt.digest))
    spoken = calls if parsed else ()
    end = Token("tool", "", len(spoken) - 1) if spoken else Token("content", "")
    tokens, reason = _measured(body, end, request)
    if served.flaw == "garbled-output":
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
        stream=request.stream,
        include_usage=request.include_usage,
        n=request.n,
        rank=request.rank,
        prompt_tokens=len(request.prompt.tokens),
        digest=request.prompt.digest,
        tokens=tuple(tokens),
        finish_reason=reason,
        max_tokens=request.max_tokens,
        kv=request.kv,
        stop_reason=found,
        calls=spoken,
        blank="" if request.choice == "required" else None,
        parsed=kind == "chat" and served.calls_tools,
    )


def _calls(request: Request) -> tuple[tuple[Call, ...], list[str]]:
    """(the calls that the model makes, the arguments of each as JSON)."""
    prompt, tools = request.prompt, request.tools
    chosen = text.called([tool.name for tool in tools], prompt.said)
    if request.choice == "required":
        chosen = chosen or [0]
    elif request.choice != "auto" or not prompt.asks:
        chosen = []
    chosen = chosen if request.parallel else chosen[:1]
    calls = tuple(
        Call(f"functions.{tools[at].name}:{prompt.earlier + place}", tools[at].name)
        for place, at in enumerate(chosen)
    )
    return calls, [compact(_arguments(tools[at].schema)) for at in chosen]


def _arguments(schema: Any) -> dict[str, Any]:
    made = text.example(schema)
    return made if isinstance(made, dict) else {}


def _thoughts(served: Served, request: Request) -> list[Token]:
    words = text.thought(request.prompt.said)
    if not served.reasoning_parser or served.flaw == "reasoning-leaks":
        return _content([*words, "</think>"])
    return [Token("reasoning", word) for word in words] if request.shown else []


def _content(words: list[str]) -> list[Token]:
    return [Token("content", word) for word in words]


def _measured(body: list[Token], end: Token, request: Request) -> tuple[list[Token], str]:
    """(as much of an answer as is asked for, why it ends)."""
    most, length = request.max_tokens, max(len(body), request.min_tokens)
    if request.ignore_eos:
        length = most
    elif length < most:
        return [*islice(chain(body, _filler(end, request)), length), end], "stop"
    return list(islice(chain(body, _filler(end, request)), most)), "length"


def _filler(end: Token, request: Request) -> cycle[Token]:
    """What goes on after the answer without spoiling it: JSON stays JSON."""
    if end.channel == "tool":
        return cycle([end])
    return cycle(_content([" ", "\n"] if request.literal is not None else list(text.FILL)))


def _stopped(tokens: list[Token], request: Request) -> tuple[list[Token], str | None]:
    """(the tokens up to a stop string, which one it was). What a tool parser reads is not
    searched: arguments are cut by nothing but the length."""
    if not request.stop:
        return tokens, None
    texts = ["" if token.channel == "tool" else token.text for token in tokens]
    said = "".join(texts)
    start = sum(map(len, texts[: request.min_tokens]))
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


# How it is sent -------------------------------------------------------------------------------


def whole(ask: Ask, kv: dict[str, Any] | None = None) -> dict[str, Any]:
    """The body of an answer that is not streamed. ``kv``: kv_transfer_params to return."""
    made = _text(ask) if ask.kind == "completion" else _message(ask)
    choices = [{"index": index, **made} for index in range(ask.n)]
    head = {
        "id": ask.id,
        "object": "text_completion" if ask.kind == "completion" else "chat.completion",
        "created": ask.created,
        "model": ask.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": text.MARK,
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
    """The server-sent events of a streamed answer: one for each token of each choice, the
    choices in turn; before them the role, after them the usage, if asked for, and [DONE]."""
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
    """The delta of each token, as JSON."""
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
