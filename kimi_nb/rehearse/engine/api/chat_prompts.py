"""Render prompts for the stand-in: the messages of a chat, a text, or token ids."""

from __future__ import annotations

import json
from binascii import a2b_base64
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from kimi_nb.rehearse.engine.api import stand_in_text
from kimi_nb.rehearse.engine.api.api_errors import ApiError, parameter
from kimi_nb.rehearse.engine.api.json_text import compact, parse
from kimi_nb.rehearse.engine.api.request_fields import (
    ChatCompletionRequest,
)
from kimi_nb.rehearse.engine.api.request_parts import (
    ChatCompletionToolsParam,
    Message,
    ToolCall,
)
from kimi_nb.rehearse.engine.api.served import Served

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
    """A rendered prompt.

    Attributes:
        said: The text of the last user message.
        asks: Whether that message comes last.
        earlier: How many tool calls were made so far.
        numbers: Whether it came as token ids.
    """

    tokens: list[str]
    digest: str
    said: str
    asks: bool = False
    earlier: int = 0
    numbers: bool = False


def of_completion(prompt: Any) -> tuple[Prompt, ...]:
    """Return the prompts of a completion: a text or token ids, or a list of either.

    Raises:
        ApiError: There is no prompt, an empty one, or an unknown token id.
    """
    if prompt == []:
        raise ApiError(400, "You must pass at least one prompt")
    several = isinstance(prompt, list) and isinstance(prompt[0], (str, list))
    return tuple(_of_completion(one) for one in (prompt if several else [prompt]))


def _of_completion(prompt: str | list[int]) -> Prompt:
    if not prompt:
        raise ApiError(400, "The decoder prompt cannot be empty")
    if isinstance(prompt, str):
        return Prompt(stand_in_text.split(prompt), _digest(prompt), prompt, asks=True)
    if max(prompt) >= stand_in_text.VOCABULARY:
        raise ApiError(400, f"Token id {max(prompt)} is out of vocabulary")
    tokens = [stand_in_text.word(one) for one in prompt]
    said = " ".join(map(str, prompt[:12]))
    return Prompt(tokens, _digest(prompt), said, asks=True, numbers=True)


def of_chat(
    messages: list[Message],
    tools: list[ChatCompletionToolsParam] | None,
    thinking: bool,
    served: Served,
    fields: ChatCompletionRequest | None = None,
) -> Prompt:
    """Render messages as Kimi's chat template does, with markers before, between and after them.

    ``fields`` may say that the last message goes on, or that no answer is announced.

    Raises:
        ApiError: There is no message, or one has a part that the model does not accept.
    """
    if not messages:
        none = "Cannot apply chat template to an empty conversation. Provide at least one message."
        listed = "served_names_are_listed" in served.changes
        raise ApiError(400, none if listed else "list index out of range")
    turns = [
        (message.role, [*_content(message, served), *_calls(message.tool_calls or [], served)])
        for message in messages
    ]
    offered = [tool.model_dump(exclude_unset=True) for tool in tools] if tools else None
    tokens: list[str] = []
    if offered:
        tokens += [
            "<|im_system|>",
            "tool",
            "<|im_middle|>",
            *stand_in_text.split(compact(offered)),
            "<|im_end|>",
        ]
    for role, parts in turns:
        mark = role if role in ("user", "assistant") else "system"
        tokens += [f"<|im_{mark}|>", *stand_in_text.split(role), "<|im_middle|>"]
        for kind, part in parts:
            tokens += (
                ["<|media_pad|>"] * IMAGE_TOKENS if kind == "image" else stand_in_text.split(part)
            )
        tokens.append("<|im_end|>")
    goes_on = fields is not None and fields.continue_final_message
    if goes_on:
        tokens.pop()
    elif fields is None or fields.add_generation_prompt:
        begun = "<think>" if thinking else "</think>"
        tokens += ["<|im_assistant|>", "assi", "<|im_middle|>", begun]
    said: list[tuple[str, str]] = next(
        (parts for role, parts in reversed(turns) if role == "user"), []
    )
    return Prompt(
        tokens,
        _digest([turns, offered, thinking, *(["goes on"] if goes_on else [])]),
        " ".join(part for kind, part in said if kind == "text"),
        asks=turns[-1][0] == "user",
        earlier=sum(kind == "call" for _, parts in turns for kind, _ in parts),
    )


def _content(message: Message, served: Served) -> Iterator[tuple[str, str]]:
    """Yield the kind of each part, "text", "image" or "reasoning", with its text or address."""
    for thought in (message.reasoning, message.reasoning_content):
        if isinstance(thought, str) and thought:
            yield "reasoning", f"<think>{thought}</think>"
            break
    content = message.content
    for part in [content] if isinstance(content, str) else content or ():
        if isinstance(part, str):
            yield "text", part
            continue
        kind = part.type
        if kind is None:
            given = part.model_fields_set
            kind = next((word for word in ("text", *_PICTURES, *_SOUNDS) if word in given), None)
        if not isinstance(kind, str) or kind not in (*_TEXTS, *_PICTURES, *_SOUNDS):
            raise ApiError(400, f"Unknown part type: {kind}")
        if kind in _TEXTS and _TEXTS[kind] not in part.model_fields_set:
            raise ApiError(400, f"1 validation error for ValidatorIterator\n{kind}: Field required")
        if kind in _TEXTS:
            yield "text", getattr(part, _TEXTS[kind])
        elif served.blind:
            raise ApiError(400, f"{served.blind} is not a multimodal model")
        elif kind in _SOUNDS or served.text_only:
            what = "audio" if kind in _SOUNDS else "vision_chunk"
            raise parameter(f"At most 0 {what}(s) may be provided in one prompt.", what)
        else:
            value = getattr(part, _PICTURES[kind], None)
            yield "image", _picture(value.get("url") if isinstance(value, dict) else value)


def _picture(url: Any) -> str:
    """Return the address of an image if it is valid; nothing is fetched."""
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


def _calls(calls: list[ToolCall], served: Served) -> Iterator[tuple[str, str]]:
    """Yield "call" and the text of each tool call in an assistant's message."""
    for call in calls:
        given = call.function.arguments or {}
        try:
            given = parse(given) if isinstance(given, str) else given
        except ValueError as error:
            if "tool_arguments_are_any_text" not in served.changes:
                raise ApiError(400, str(error)) from None
        words = given if isinstance(given, str) else compact(given)
        try:
            text = "".join(stand_in_text.markup([f"{call.id}"], [f"{call.function.name}{words}"]))
            text.encode()
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        yield "call", text


def _digest(prompt: Any) -> str:
    return sha256(json.dumps(prompt, separators=(",", ":")).encode()).hexdigest()
