"""What goes in besides text and in which form answers come: a picture, JSON of a schema."""

from __future__ import annotations

import base64
import json
import struct
import zlib

from kimi_nb.prove.verify import raw_answers, schemas
from kimi_nb.prove.verify.asking import Ask, said
from kimi_nb.prove.verify.contract import Failed, Skip
from kimi_nb.prove.verify.reasoning import after_thoughts
from kimi_nb.prove.verify.received import short
from kimi_nb.prove.verify.registry import check
from kimi_nb.prove.verify.target import Place

_BLIND = ("is not a multimodal model", "At most 0 ")  # then image(s), or Kimi's vision_chunk(s)
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["city", "warm"],
    "properties": {
        "city": {"type": "string", "enum": ["Beijing", "Tokyo"]},
        "warm": {"type": "boolean"},
    },
}


def picture(side: int = 56, rgb: bytes = b"\xd0\x20\x20") -> str:
    """Return a PNG as a data URL: a square of one colour, ``side`` pixels wide."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + rgb * side) * side
    png = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@check("content/image")
def image(ask: Ask) -> str:
    """Check that a picture is accepted as a data URL.

    Words must come back, and the prompt must have grown by the picture's tokens.
    """
    if ask.target.vision is False:
        raise Skip("text only: the model has no eyes, or was started with --language-model-only")
    question = "Which colour is this? Answer in one word."
    parts = [
        {"type": "text", "text": question},
        {"type": "image_url", "image_url": {"url": picture()}},
    ]

    def look(place: Place) -> str:
        plain = ask.chat(place, said(question, **ask.quiet))
        body = said(question, max_tokens=ask.budget(512), **ask.quiet)
        try:
            seen = ask.chat(place, {**body, "messages": [{"role": "user", "content": parts}]})
        except Failed as error:
            if ask.target.vision is None and any(text in error.got for text in _BLIND):
                raise Skip(f"text only: {error.got}") from None
            raise
        if not seen.answered:
            raise Failed(f"200 without words: {seen}", "empty-200")
        grown = seen.prompt_tokens - plain.prompt_tokens
        if grown < 1:
            raise Failed(f"the picture added no tokens to the prompt: {seen}")
        return f"{grown} tokens of picture; {seen}"

    return ask.everywhere(look)


@check("content/json-schema")
def json_schema(ask: Ask) -> str:
    """Check that response_format json_schema gives JSON that fits the schema."""
    body = said(
        "Is Beijing warm in July? Answer as JSON.",
        max_tokens=ask.budget(1024),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": _SCHEMA},
        },
        **ask.quiet,
    )

    def look(place: Place) -> str:
        answer = ask.chat(place, body)
        # Special tokens and U+FFFD beside the JSON are for content/characters to report.
        text = raw_answers.SPECIAL.sub("", after_thoughts(answer.content)).strip(" \n\ufffd")
        if not ask.target.sense and answer.finish_reason == "length":
            raise Skip(f"random weights did not end the JSON: {answer}")
        try:
            value = json.loads(text)
        except ValueError:
            raise Failed(
                f"no JSON: {short(text)!r}, finish_reason {answer.finish_reason}"
            ) from None
        wrong = schemas.fault(value, _SCHEMA)
        if wrong:
            raise Failed(f"JSON of another form ({wrong}): {short(text)}")
        return short(text)

    return ask.everywhere(look)


@check("content/characters")
def characters(ask: Ask) -> str:
    """Check that no answer holds a special token, U+FFFD or a control character.

    Every text of every answer so far is searched: content, thoughts, and tool calls, streamed or
    whole.
    """
    if not ask.target.sense:
        raise Skip("random weights say any token, special ones too")

    def look(place: Place) -> str:
        found = ask.everything(place)
        for one in found:
            if wrong := raw_answers.character_fault(one.answer, tools=one.tools):
                raise Failed(wrong)
        return f"{len(found)} answers"

    return ask.everywhere(look)
