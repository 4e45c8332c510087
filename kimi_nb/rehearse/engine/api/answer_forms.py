"""Write answers as vLLM's OpenAI server does: whole, or as server-sent events."""

from __future__ import annotations

import json
from itertools import chain, zip_longest
from typing import Any

from kimi_nb.rehearse.engine.api import probabilities, stand_in_text
from kimi_nb.rehearse.engine.api.answer_parts import Ask, Choice, Token
from kimi_nb.rehearse.engine.api.json_text import compact

# Whole answers --------------------------------------------------------------------------------


def whole(ask: Ask, kv: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the body of an answer that is not streamed, with ``kv`` as its kv_transfer_params."""
    form = _text if ask.kind == "completion" else _message
    usage = {**ask.usage(), "prompt_tokens_details": None}
    if "reasoning_tokens" in ask.changes:
        usage["completion_tokens_details"] = usage.pop("completion_tokens_details", None)
    body: dict[str, Any] = {
        "id": ask.id,
        "object": "text_completion" if ask.kind == "completion" else "chat.completion",
        "created": ask.created,
        "model": ask.model,
        "choices": [
            {"index": index, **form(ask, choice)} for index, choice in enumerate(ask.choices)
        ],
        "service_tier": None,
        "system_fingerprint": stand_in_text.MARK,
        "usage": usage,
    }
    if ask.kind == "chat":
        body |= {
            "prompt_logprobs": _prompt_logprobs(ask, ask.choices[0]),
            "prompt_token_ids": _prompt_ids(ask, ask.choices[0]),
        }
        if "prompt_text" in ask.changes:
            body["prompt_text"] = _prompt_text(ask)
    body["kv_transfer_params"] = kv
    for change, key in (("ec_transfer_params",) * 2, ("request_metrics", "metrics")):
        if change in ask.changes:
            body[key] = None
    return body


def _text(ask: Ask, choice: Choice) -> dict[str, Any]:
    text = "" if ask.only_echo else "".join(token.text for token in choice.tokens)
    return {
        "text": ("".join(choice.prompt) if ask.echo else "") + text,
        "logprobs": _text_logprobs(ask, choice, choice.tokens, ask.echo, 0),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": _ids(choice.tokens) if ask.token_ids else None,
        "prompt_logprobs": _prompt_logprobs(ask, choice),
        "prompt_token_ids": _prompt_ids(ask, choice),
        **_routed(ask),
    }


def _message(ask: Ask, choice: Choice) -> dict[str, Any]:
    parts: dict[str, list[str]] = {}
    pieces: dict[int, list[str]] = {}
    for token in choice.tokens:
        place = (
            parts.setdefault(token.channel, [])
            if token.call < 0
            else pieces.setdefault(token.call, [])
        )
        place.append(token.text)
    calls = [
        {
            "id": choice.calls[at].id,
            "type": "function",
            "function": {"name": choice.calls[at].name, "arguments": "".join(made)},
        }
        for at, made in pieces.items()
    ]
    content = "".join(parts["content"]) if "content" in parts else ask.blank
    if ask.reasons and "no_empty_content" in ask.changes:
        content = content or ask.blank
    message: dict[str, Any] = {
        "role": "assistant",
        "content": ask.before + (content or "") if ask.before else content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if calls or "no_empty_tool_calls" not in ask.changes:
        message["tool_calls"] = calls
    message["reasoning"] = "".join(parts["reasoning"]) if "reasoning" in parts else None
    return {
        "message": message,
        "logprobs": _chat_logprobs(ask, choice.tokens),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": _ids(choice.tokens) if ask.token_ids else None,
        **_routed(ask),
    }


def _routed(ask: Ask) -> dict[str, None]:
    return {"routed_experts": None} if "routed_experts" in ask.changes else {}


# What is told about tokens --------------------------------------------------------------------


def _ids(tokens: tuple[Token, ...]) -> list[int]:
    return [stand_in_text.number(token.text or probabilities.END) for token in tokens]


def _prompt_ids(ask: Ask, choice: Choice) -> list[int] | None:
    if not ask.token_ids:
        return None
    return [stand_in_text.number(token) for token in choice.prompt]


def _prompt_text(ask: Ask) -> str | None:
    return "".join(ask.choices[0].prompt) if ask.prompt_text else None


def _prompt_logprobs(ask: Ask, choice: Choice) -> list[dict[str, Any] | None] | None:
    if ask.prompt_top is None:
        return None
    return probabilities.prompt(choice.prompt, ask.prompt_top)


def _chat_logprobs(ask: Ask, tokens: tuple[Token, ...]) -> dict[str, Any] | None:
    if ask.top is None:
        return None
    texts = [token.text or probabilities.END for token in tokens]
    return probabilities.chat(texts, ask.top, ask.ids_as_tokens)


def _text_logprobs(
    ask: Ask, choice: Choice, tokens: tuple[Token, ...], echo: bool, start: int
) -> dict[str, Any] | None:
    if ask.top is None:
        return None
    made = () if ask.only_echo else tuple(token.text or probabilities.END for token in tokens)
    texts = (*choice.prompt, *made) if echo else made
    return probabilities.completion(texts, ask.top, start, echo, ask.ids_as_tokens)


# Streams --------------------------------------------------------------------------------------


def frames(ask: Ask) -> list[bytes]:
    """Return the server-sent events of a streamed answer, in their order."""
    return list(chain.from_iterable(steps(ask)))


def steps(ask: Ask) -> list[list[bytes]]:
    """Return the server-sent events of each step: one for the next token of each choice.

    The role comes with the first token; the usage, if asked for, and [DONE] with the last one.
    """
    chatting = ask.kind == "chat"
    shape = "chat.completion.chunk" if chatting else "text_completion"
    ids = {"id": ask.id, "object": shape, "created": ask.created, "model": ask.model}
    head = f'data: {compact(ids)[:-1]},"choices":['
    named = "system_fingerprint" in ask.changes
    mark = f',"system_fingerprint":{compact(stand_in_text.MARK)}' if named else ""
    final = "" if ask.include_usage else mark
    each = [
        _frames(ask, choice, f'{head}{{"index":{index},', final)
        for index, choice in enumerate(ask.choices)
    ]
    out = [[frame for frame in step if frame is not None] for step in zip_longest(*each)]
    if chatting:
        out[0] = _roles(ask, head) + out[0]
    if ask.include_usage:
        out[-1].append(f'{head}],"usage":{compact(ask.usage())}{mark}}}\n\n'.encode())
    out[-1].append(b"data: [DONE]\n\n")
    return out


def _roles(ask: Ask, head: str) -> list[bytes]:
    """Return the first frames of a chat: the role of each choice, and what is echoed."""
    usage = f',"usage":{compact(ask.usage(0, 0))}' if ask.continuous_usage else ""
    prompt = compact(_prompt_ids(ask, ask.choices[0]))
    text = f',"prompt_text":{compact(_prompt_text(ask))}' if "prompt_text" in ask.changes else ""
    rest = f'"logprobs":null,"finish_reason":null}}]{usage}'
    out = [
        f'{head}{{"index":{index},"delta":{{"role":"assistant","content":""}},{rest},'
        f'"prompt_token_ids":{prompt}{text}}}\n\n'.encode()
        for index in range(len(ask.choices))
    ]
    if ask.before:
        out += [
            f'{head}{{"index":{index},"delta":{{"content":{compact(ask.before)}}},{rest}}}'
            "\n\n".encode()
            for index in range(len(ask.choices))
        ]
    return out


def _frames(ask: Ask, choice: Choice, start: str, final: str) -> list[bytes]:
    """Return a frame for each token of a choice."""
    why, found = compact(choice.finish_reason), compact(choice.stop_reason)
    plain = ask.top is None and not (ask.token_ids or ask.continuous_usage or ask.echo)
    if ask.kind == "chat":
        key, parts = "delta", _deltas(ask, choice)
        if plain:
            middle = ',"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
            end = (
                f',"logprobs":null,"finish_reason":{why},"stop_reason":{found},"token_ids":null}}'
                f"]{final}}}\n\n"
            )
    else:
        key, parts = "text", [json.dumps(one.text, ensure_ascii=False) for one in choice.tokens]
        usage = "" if "system_fingerprint" in ask.changes else ',"usage":null'
        after = f'"prompt_token_ids":null,"token_ids":null}}]{usage}'
        middle = f',"logprobs":null,"finish_reason":null,"stop_reason":null,{after}}}\n\n'
        end = f',"logprobs":null,"finish_reason":{why},"stop_reason":{found},{after}{final}}}\n\n'
    start += f'"{key}":'
    if plain:
        out = [(start + part + middle).encode() for part in parts[:-1]]
        return [*out, (start + parts[-1] + end).encode()]
    return _told(ask, choice, start, parts, final)


def _told(ask: Ask, choice: Choice, start: str, parts: list[str], final: str) -> list[bytes]:
    """Return the frames of a choice with what is told about each token."""
    chatting, last = ask.kind == "chat", len(parts) - 1
    out, offset, thoughts = [], 0, 0
    for place, token in enumerate(choice.tokens):
        echo = ask.echo and not chatting and not place
        part = parts[place]
        logprobs: Any
        if chatting:
            logprobs = _chat_logprobs(ask, (token,))
        else:
            logprobs = _text_logprobs(ask, choice, (token,), echo, offset)
            if echo:
                said = "".join(choice.prompt)
                part, offset = compact(said + ("" if ask.only_echo else token.text)), len(said)
            offset += len(token.text)
        end = {"finish_reason": choice.finish_reason if place == last else None}
        if not chatting or place == last:
            end["stop_reason"] = choice.stop_reason if place == last else None  # type: ignore[assignment]
        more: dict[str, Any] = {"logprobs": logprobs, **end}
        if not chatting:
            first = not place and (ask.token_ids or ask.echo)
            more["prompt_token_ids"] = (
                [stand_in_text.number(one) for one in choice.prompt] if first else None
            )
        more["token_ids"] = _ids((token,)) if ask.token_ids else None
        thoughts += token.channel == "reasoning"
        usage = ""
        if ask.continuous_usage:
            usage = f',"usage":{compact(ask.usage(place + 1, thoughts))}'
        tail = final if place == last else ""
        out.append(f"{start}{part},{compact(more)[1:]}]{usage}{tail}}}\n\n".encode())
    return out


def _deltas(ask: Ask, choice: Choice) -> list[str]:
    """Return the delta of each token, as JSON."""
    empty = ask.parsed and "no_empty_tool_calls" not in ask.changes
    after = ',"tool_calls":[]}' if empty else "}"
    out, call = [], -1
    for token in choice.tokens:
        if token.channel == "content":
            out.append(f'{{"content":{json.dumps(token.text, ensure_ascii=False)}{after}')
        elif token.channel == "reasoning":
            out.append(f'{{"reasoning":{json.dumps(token.text, ensure_ascii=False)}}}')
        elif token.call != call:
            call = token.call
            function = {"name": choice.calls[call].name, "arguments": ""}
            made = {
                "id": choice.calls[call].id,
                "type": "function",
                "index": call,
                "function": function,
            }
            out.append(compact({"tool_calls": [made]}))
        else:
            out.append(
                compact({"tool_calls": [{"index": call, "function": {"arguments": token.text}}]})
            )
    return out
