"""Read decode's answer piece by piece as vllm-ascend's example proxy does, and what it changes."""

from __future__ import annotations

import json
from typing import Any

_USUAL_TOKENS = 16  # max_tokens of a request without it, when an answer is computed again


class Said:
    """What decode has said so far, which is computed again if decode asks for that.

    ``strict`` is the form before v0.21.0rc1, which cannot read an answer without its usage.
    """

    def __init__(self, asked: dict[str, Any], origin: Any, streams: bool, strict: bool) -> None:
        self._asked, self._origin, self._streams, self._strict = asked, origin, streams, strict
        self._most = asked.get("max_tokens", _USUAL_TOKENS)
        self._text, self._tokens, self._agains = "", 0, 0

    def read(self, piece: bytes, cached: int | None) -> tuple[bytes, bool]:
        """Return what the client gets of a piece, and whether decode asks to compute again.

        If it does, the request now holds the text so far. A piece that is no single JSON value
        passes as it is.
        """
        try:
            text = piece.decode().strip()
            if not text:
                return b"", False
            found = json.loads(text.removeprefix("data: "))
        except ValueError:
            return piece, False
        event = text.startswith("data: ")
        if not (choices := found.get("choices", [])):
            return (_with_cached(found, cached, event) or piece), False
        choice = choices[0]
        delta, message = choice.get("delta") or {}, choice.get("message") or {}
        self._text += delta.get("content") or message.get("content") or choice.get("text") or ""
        usage = found.get("usage", {})
        if self._streams:
            self._tokens += 1
        elif self._strict:
            self._tokens += usage.get("completion_tokens")
        else:
            self._tokens += usage.get("completion_tokens", 0)
        if choice.get("stop_reason") == "recomputed":
            self._ask_again()
            return b"", True
        if self._agains and not self._streams:
            if "messages" in self._asked:
                choice["message"]["content"] = self._text
            else:
                choice["text"] = self._text
            return json.dumps(found).encode(), False
        return piece, False

    def _ask_again(self) -> None:
        self._agains += 1
        if "messages" in self._asked:
            self._asked["messages"][0]["content"] = self._origin + self._text
        else:
            self._asked["prompt"] = self._origin + self._text
        self._asked["max_tokens"] = self._most - self._tokens + self._agains


def _with_cached(found: dict[str, Any], cached: int | None, event: bool) -> bytes:
    """Return the usage with prefill's count of cached tokens; b"" if nothing is to change."""
    usage = found.get("usage")
    if cached is None or not isinstance(usage, dict):
        return b""
    details = usage.get("prompt_tokens_details")
    usage["prompt_tokens_details"] = {
        **(details if isinstance(details, dict) else {}),
        "cached_tokens": cached,
    }
    text = json.dumps(found, ensure_ascii=False)
    return (f"data: {text}\n\n" if event else text).encode()


def first_prompt(asked: dict[str, Any]) -> Any:
    """Return the prompt, or the content of the first message."""
    if "prompt" in asked:
        return asked["prompt"]
    if "messages" in asked:
        return asked["messages"][0].get("content", "")
    return ""
