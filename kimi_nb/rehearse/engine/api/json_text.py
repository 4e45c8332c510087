"""Parse and write JSON as vLLM's API does."""

from __future__ import annotations

import json
from typing import Any

LEVELS = 64  # of nesting in a body; deeper bodies are refused
_TOO_DEEP = "recursion limit exceeded"


def parse(text: str) -> Any:
    """Parse JSON that can be written again.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has numbers or characters that
            cannot be written.
    """
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(LEVELS):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise ValueError(_TOO_DEEP)
    if "\\ud" in text or "\\uD" in text:
        compact(value).encode()  # refuses half of a surrogate pair
    return value


def _finite(word: str) -> float:
    value = float(word)
    if value - value != 0:
        raise ValueError(f"Out of range float value: {word}")
    return value


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
