"""Prompts as the stand-in sees them: the messages of a chat, a text, or token ids."""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kimi_nb.rehearse.engine.api import stand_in_text as text
from kimi_nb.rehearse.engine.api.request_fields import (
    CHAT,
    ApiError,
    Route,
    compact,
    fault,
    invalid,
    missing,
    parse,
)

IMAGE_TOKENS = 64
_TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_PICTURES = {"image_url": "image_url", "input_image": "image_url", "video_url": "video_url"}
_SOUNDS = ("audio_url", "input_audio", "audio_embeds")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt. ``said``: the last user message's text; ``asks``: it comes last;
    ``earlier``: tool calls made so far."""

    tokens: list[str]
    digest: str
    said: str
    asks: bool = False
    earlier: int = 0


def of_completion(prompt: Any, route: Route) -> Prompt:
    """The prompt of a completion: a text or token ids, alone or as a list of one."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return Prompt(text.split(prompt), _digest(prompt), prompt, asks=True)
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], (str, list)):
        raise ApiError(400, f"{text.MARK}: one prompt per request")
    if not prompt and isinstance(prompt, (str, list)):
        raise ApiError(400, "The decoder prompt cannot be empty")
    if not isinstance(prompt, list) or not all(type(one) is int and one >= 0 for one in prompt):
        raise invalid(route, fault("string_type", ("body", "prompt", "str"), prompt))
    if max(prompt) >= text.VOCABULARY:
        raise ApiError(400, f"Token id {max(prompt)} is out of vocabulary")
    tokens = [str(one) for one in prompt]
    return Prompt(tokens, _digest(prompt), " ".join(tokens[:12]), asks=True)


def of_chat(messages: list[Any], tools: Any, thinking: bool, blind: str) -> Prompt:
    """The messages as Kimi's chat template puts them, with markers before, between and after.
    ``blind`` is the model's name if it sees no pictures."""
    for at, message in enumerate(messages):
        place = ("body", "messages", at)
        if not isinstance(message, dict):
            raise invalid(CHAT, fault("dict_type", place, message))
        if not isinstance(role := message.get("role"), str):
            raise invalid(
                CHAT,
                fault(
                    "missing" if role is None else "string_type",
                    (*place, "role"),
                    message if role is None else role,
                ),
            )
    if not messages:
        raise ApiError(400, "list index out of range")
    turns = [
        (message["role"], [*_content(message, at, blind), *_calls(message, at)])
        for at, message in enumerate(messages)
    ]
    tokens: list[str] = []
    if tools:
        tokens += [
            "<|im_system|>",
            "tool",
            "<|im_middle|>",
            *text.split(compact(tools)),
            "<|im_end|>",
        ]
    for role, parts in turns:
        mark = role if role in ("user", "assistant") else "system"
        tokens += [f"<|im_{mark}|>", *text.split(role), "<|im_middle|>"]
        for kind, part in parts:
            tokens += ["<|media_pad|>"] * IMAGE_TOKENS if kind == "image" else text.split(part)
        tokens.append("<|im_end|>")
    tokens += ["<|im_assistant|>", "assi", "<|im_middle|>", "<think>" if thinking else "</think>"]
    said: list[tuple[str, str]] = next(
        (parts for role, parts in reversed(turns) if role == "user"), []
    )
    return Prompt(
        tokens,
        _digest([turns, tools, thinking]),
        " ".join(part for kind, part in said if kind == "text"),
        asks=turns[-1][0] == "user",
        earlier=sum(kind == "call" for _, parts in turns for kind, _ in parts),
    )


def _content(message: dict[str, Any], at: int, blind: str) -> Iterator[tuple[str, str]]:
    """(kind, text) of each part: "text", or "image" with its address."""
    for name in ("reasoning", "reasoning_content"):
        if isinstance(message.get(name), str) and message[name]:
            yield "reasoning", f"<think>{message[name]}</think>"
            break
    content, place = message.get("content"), ("body", "messages", at, "content")
    if isinstance(content, str):
        content = [content]
    if not isinstance(content, list | None):
        raise invalid(CHAT, fault("string_type", place, content))
    for part in content or ():
        if isinstance(part, str):
            yield "text", part
            continue
        if not isinstance(part, dict):
            raise invalid(CHAT, fault("dict_type", place, part))
        kind = part.get("type")
        if kind is None:
            kind = next((word for word in ("text", *_PICTURES, *_SOUNDS) if word in part), None)
        if not isinstance(kind, str) or kind not in (*_TEXTS, *_PICTURES, *_SOUNDS):
            raise ApiError(400, f"Unknown part type: {kind}")
        if kind in _TEXTS:
            if not isinstance(value := part.get(_TEXTS[kind]), str):
                raise invalid(CHAT, fault("string_type", (*place, _TEXTS[kind]), value))
            yield "text", value
        elif blind:
            raise ApiError(400, f"{blind} is not a multimodal model")
        elif kind in _SOUNDS:
            raise ApiError(400, "At most 0 audio(s) may be provided in one prompt.")
        else:
            value = part.get(_PICTURES[kind])
            yield "image", _picture(value.get("url") if isinstance(value, dict) else value)


def _picture(url: Any) -> str:
    """The address of an image, if it is one; nothing is fetched."""
    start = url[:8].lower() if isinstance(url, str) else ""
    if start.startswith("http"):
        return url
    if not start.startswith("data:"):
        raise ApiError(400, "The URL must be either a HTTP, data or file URL.")
    kind, _, data = url.partition(",")
    if not kind.endswith(";base64"):
        raise ApiError(400, "Only base64 data URLs are supported for now.")
    try:
        if not a2b_base64(data, strict_mode=True):
            raise ApiError(400, "cannot identify image file")
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return url


def _calls(message: dict[str, Any], at: int) -> Iterator[tuple[str, str]]:
    """("call", its text) of each tool call in an assistant's message."""
    calls = message.get("tool_calls")
    place = ("body", "messages", at, "tool_calls")
    if not isinstance(calls, list | None):
        raise invalid(CHAT, fault("list_type", place, calls))
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise missing(CHAT, call, *place[1:], "function")
        given = function.get("arguments") or {}
        try:
            given = parse(given) if isinstance(given, str) else given
            yield (
                "call",
                "".join(
                    text.markup([f"{call.get('id')}"], [f"{function['name']}{compact(given)}"])
                ),
            )
        except ValueError as error:
            raise ApiError(400, str(error)) from None


def _digest(prompt: Any) -> str:
    return sha256(json.dumps(prompt, separators=(",", ":")).encode()).hexdigest()
