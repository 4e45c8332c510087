"""Generate the texts of a stand-in, with a tokenizer of its own, from the prompt alone.

    split("hello world")                     # ['hell', 'o', ' wor', 'ld']
    reply("how are you", digest)             # tokens of 'REHEARSAL: how are you (the echo ...'
    example({"type": "object", "properties": {"city": {"type": "string"}}})

Every text says REHEARSAL, so that nobody mistakes it for a model's.
"""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from math import ceil, floor
from random import Random
from typing import Any

from kimi_nb.rehearse.engine.api import grammar_samples

MARK = "REHEARSAL"
VOCABULARY = 163840  # as Kimi's
# Each word with its space is one token, so that filler can have any length in tokens.
FILL = tuple(
    re.findall(
        r" \w+",
        " and so it is all but an act for the day no gpu was put to use "
        "yet any of us may see how the run can go on its way",
    )
)
_PIECE = re.compile(r"<\|[a-z_]{1,40}\|>|</?think>| \S{1,3}|\S{1,4}|\s{1,4}")
_SPELLED = 50_000  # tokens whose texts are kept for their ids
_spelled: dict[int, str] = {}
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "rehearsal@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
_DEEP, _BOTTOM, _NODES = 4, 16, 500  # limits: levels with optional properties, levels, values
_EXACT = 2**53


def split(text: str) -> list[str]:
    """Split a text into tokens, which joined are the text again.

    A token has at most four characters, unless it is a marker of the chat template.
    """
    return _PIECE.findall(text)


def number(token: str) -> int:
    """Return the id of a token, below ``VOCABULARY``."""
    found = crc32(token.encode("utf-8", "surrogatepass")) % VOCABULARY
    if len(_spelled) < _SPELLED:
        _spelled.setdefault(found, token)
    return found


def word(number: int) -> str:
    """Return the token of an id: one whose id was asked for, else a text of its own."""
    return _spelled.get(number, f" {number}")


def varied(salt: str, length: int) -> list[str]:
    """Return so many tokens that depend on the salt; they say REHEARSAL too."""
    dice = Random(salt)
    head = [dice.choice(FILL), *split(f" {MARK}")]
    return [*head, *dice.choices(FILL, k=max(0, length - len(head)))]


def echo(said: str, words: int) -> str:
    """Return the first words of what was said, at most 72 characters."""
    return " ".join(said[:400].split()[:words])[:72]


def thought(said: str) -> list[str]:
    """Return 10 to 20 tokens of reasoning about it."""
    tail = split(" and how to put it.")
    return [*split(f"{MARK} thinking about:"), *split(f" {echo(said, 3) or '...'}")[:7], *tail]


def reply(said: str, digest: str) -> list[str]:
    """Return 20 to 60 tokens of an answer to it; the hex ``digest`` decides how many."""
    head = split(f"{MARK}: {echo(said, 12) or 'no words'} (the echo of a stand-in: no model ran)")
    length = max(20 + int(digest[:8], 16) % 40, len(head))
    return [*head, *islice(cycle(FILL), length - len(head))]


def nonsense(token: str, place: int, seed: bytes) -> str:
    """Return the text of a token that was computed from the cache of another prompt."""
    sounds = ("qz", " xv", "#k", " wq", "jj", " zb", "vx", " ~q")
    return sounds[(seed[place % len(seed)] + place) % len(sounds)] if token else ""


def called(names: Sequence[str], said: str) -> list[int]:
    """Return the indexes of the functions that a text asks for.

    These are the ones with a word of four letters or more in their name that is in the text.
    """
    said = said.lower()
    return [
        at
        for at, name in enumerate(names)
        if any(len(word) >= 4 and word in said for word in re.split(r"[._-]", name.lower()))
    ]


def markup(ids: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the tokens of tool calls as the model writes them, before a parser."""
    out = ["<|tool_calls_section_begin|>"]
    for name, text in zip(ids, arguments, strict=True):
        out += [
            "<|tool_call_begin|>",
            *split(name),
            "<|tool_call_argument_begin|>",
            *split(text),
            "<|tool_call_end|>",
        ]
    return [*out, "<|tool_calls_section_end|>"]


# JSON schemas ---------------------------------------------------------------------------------


def example(schema: Any) -> Any:
    """Return an instance of a JSON schema, always the same; ``{}`` for anything else."""
    return _example(schema, schema, 0, [_NODES])


def _example(schema: Any, root: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    schema = _plain(schema, root, last=depth >= _DEEP)
    if not schema or depth > _BOTTOM or left[0] < 0:
        return {}
    if "const" in schema:
        return schema["const"]
    if isinstance(values := schema.get("enum"), list) and values:
        return values[0]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or (kind is None and ("properties" in schema or "required" in schema)):
        return _object(schema, root, depth, left)
    if kind == "array" or (kind is None and ("items" in schema or "prefixItems" in schema)):
        return _array(schema, root, depth, left)
    if kind == "string":
        return _string(schema)
    if kind in ("integer", "number"):
        return _number(schema, kind == "integer")
    return {"boolean": True, "null": None}.get(kind, {}) if isinstance(kind, str) else {}


def _string(schema: Mapping[str, Any]) -> str:
    if isinstance(pattern := schema.get("pattern"), str):
        try:
            return grammar_samples.of_regex(pattern)
        except ValueError:
            return MARK
    if isinstance(form := schema.get("format"), str) and form in _FORMATS:
        return _FORMATS[form]
    size = max(_count(schema, "minLength", 0), min(len(MARK), _count(schema, "maxLength", 99)))
    return (MARK * (size // len(MARK) + 1))[:size]


def _plain(schema: Any, root: Any, last: bool) -> dict[str, Any]:
    """Return the schema without references and alternatives.

    Of alternatives the first is taken, or the last, which is often the null that ends a recursion.
    """
    for _ in range(_BOTTOM):
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema:
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            schema = _merged([_referred(schema["$ref"], root), rest])
            continue
        word = next(
            (
                w
                for w in ("allOf", "anyOf", "oneOf")
                if isinstance(schema.get(w), list) and schema[w]
            ),
            None,
        )
        if word is None:
            return schema
        rest = {key: value for key, value in schema.items() if key != word}
        chosen = schema[word] if word == "allOf" else [schema[word][-1 if last else 0]]
        # Resolve references before the merge, or one would overwrite another.
        schema = _merged(
            [
                rest,
                *(
                    _merged(
                        [
                            _referred(part["$ref"], root),
                            {key: value for key, value in part.items() if key != "$ref"},
                        ]
                    )
                    if isinstance(part, dict) and "$ref" in part
                    else part
                    for part in chosen[:_BOTTOM]
                ),
            ]
        )
    return {}


def _merged(parts: Sequence[Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in (item for part in parts if isinstance(part, dict) for item in part.items()):
        known = out.get(key)
        if key == "properties" and isinstance(known, dict) and isinstance(value, dict):
            value = {**known, **value}
        if key == "required" and isinstance(known, list) and isinstance(value, list):
            value = [*known, *value]
        out[key] = value
    return out


def _referred(ref: Any, root: Any) -> Any:
    """Return what a reference within the schema points to."""
    if not isinstance(ref, str) or not ref.startswith("#"):
        return {}
    for key in ref.split("/")[1:]:
        root = root.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else {}
    return root


def _object(schema: Mapping[str, Any], root: Any, depth: int, left: list[int]) -> dict[str, Any]:
    known, needed = schema.get("properties"), schema.get("required")
    known = known if isinstance(known, dict) else {}
    needed = [name for name in needed if isinstance(name, str)] if isinstance(needed, list) else []
    names = [*known, *needed] if depth < _DEEP else needed
    return {
        name: _example(known[name], root, depth + 1, left) if name in known else MARK
        for name in dict.fromkeys(names)
        if name in needed or left[0] > 0
    }


def _array(schema: Mapping[str, Any], root: Any, depth: int, left: list[int]) -> list[Any]:
    first = schema.get("prefixItems")
    first = first[:64] if isinstance(first, list) else []
    size = max(_count(schema, "minItems", 0), len(first) or int(depth < _DEEP))
    size = min(size, _count(schema, "maxItems", 64), 64)
    parts = [*first, *[schema.get("items")] * max(0, size - len(first))][:size]
    return [_example(part, root, depth + 1, left) for part in parts]


def _count(schema: Mapping[str, Any], key: str, default: int) -> int:
    value = schema.get(key)
    return min(value, 4096) if type(value) is int and value >= 0 else default


def _number(schema: Mapping[str, Any], whole: bool) -> int | float:
    """Return a number within the bounds: 1 if that is allowed, or if none is found."""
    bounds = [
        _bound(schema.get(key))
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    ]
    low, above, high, below, step = bounds
    step = step if step and step > 1e-6 else None
    ends = [end for end in bounds[:4] if end is not None]
    near = [
        1,
        0,
        *ends,
        *(end + 1 for end in ends),
        *(end - 1 for end in ends),
        *((one + other) / 2 for one in ends for other in ends),
    ]
    if step:
        near += [step, *(round_(end / step) * step for end in near for round_ in (floor, ceil))]
    if whole:
        near = [round_(value) for value in near for round_ in (floor, ceil)]
    return next(
        (
            value
            for value in near
            if (low is None or value >= low)
            and (above is None or value > above)
            and (high is None or value <= high)
            and (below is None or value < below)
            and (step is None or value % step == 0)
        ),
        1,
    )


def _bound(value: Any) -> int | float | None:
    # Beyond this, sums of integers and floats overflow or change nothing.
    return value if type(value) in (int, float) and abs(value) <= _EXACT else None
