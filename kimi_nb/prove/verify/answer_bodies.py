"""Read the body of an answer, in one piece or streamed; Failed says why it is none.

>>> parsed('{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}').content
'Hi'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from kimi_nb.prove.verify.contract import Failed
from kimi_nb.prove.verify.received import Answer, ToolCall, Wire, form, short

THOUGHTS = ("reasoning", "reasoning_content")  # vLLM's name since 0.12, and its name before
DONE = "[DONE]"  # the last event of a stream
_SSE = ("data:", ":", "event:", "id:", "retry:")  # how the lines of an event stream begin


def parsed(text: str, *, strict: bool = True) -> Answer:
    """Return the answer in a JSON body; unless ``strict``, its content may be no text.

    Raises:
        Failed: If the body is not a chat completion (malformed).
    """
    body = mapping(text)
    choice = _choice(body, text)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Failed(f"choices[0] has no message: {short(text)}", "malformed")
    if strict:
        _texts(message, text)
    return Answer(
        _text(message.get("content")),
        _thoughts(message),
        tuple(_call(one, text) for one in _list(message, "tool_calls", text)),
        _text(choice.get("finish_reason")),
        _usage(body),
        tuple(name for name in THOUGHTS if message.get(name)),
        _text(body.get("id")),
        body,
    )


def streamed(text: str, *, strict: bool = True) -> Answer:
    """Return the answer that a stream of server-sent events adds up to.

    Unless ``strict``, it may end without [DONE] and without a finish_reason, which then is "stop".

    Raises:
        Failed: If the stream is not valid (empty-stream, cut-stream, malformed, server-error).

    >>> events = [
    ...     'data: {"choices": [{"delta": {"content": "Hel"}}]}',
    ...     'data: {"choices": [{"delta": {"content": "lo"}, "finish_reason": "stop"}]}',
    ...     "data: [DONE]",
    ... ]
    >>> str(streamed(chr(10).join(events)))
    "content 'Hello', finish_reason stop"
    """
    # Not splitlines: a text may contain U+2028, which does not end a line of the stream.
    raw = re.split("\r?\n|\r", text)
    lines = [line[5:].strip() for line in raw if line.startswith("data:")]
    if strict and not any(lines):
        raise Failed(f"no event in the stream: {short(text)!r}", "empty-stream")
    usage: dict[str, Any] = {}
    made, reason, name = _Parts(), "", ""
    events: list[Mapping[str, Any]] = []
    for line in lines:
        if line == DONE:
            break
        event = mapping(line)
        events.append(event)
        if "error" in event:
            raise Failed(f"an error in the stream: {short(line)}", "server-error")
        usage, name = _usage(event) or usage, _text(event.get("id")) or name
        if not event.get("choices"):
            continue  # the event with the usage
        choice = _choice(event, line)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            raise Failed(f"an event without delta: {short(line)}", "malformed")
        _texts(delta, line)
        made.add(delta, line)
        reason = _text(choice.get("finish_reason")) or reason
    else:
        if strict:
            raise Failed(f"the stream ends without [DONE], after {short(lines[-1])}", "cut-stream")
    if not reason and strict:
        raise Failed(f"no finish_reason in {len(lines)} events", "cut-stream")
    return Answer(
        "".join(made.content),
        "".join(made.thoughts),
        made.whole(),
        reason or "stop",
        usage,
        tuple(made.named),
        name,
        wire=Wire(
            streamed=True,
            events=tuple(events),
            ends=lines.count(DONE),
            strange=(
                *(line for line in raw if line and not line.startswith(_SSE)),
                *(line for line in lines[len(events) + 1 :] if line != DONE),
            ),
        ),
    )


class _Parts:
    """A message that is received in pieces."""

    def __init__(self) -> None:
        self.content: list[str] = []
        self.thoughts: list[str] = []
        self.named: dict[str, None] = {}
        self.calls: dict[int, list[str]] = {}

    def add(self, delta: Mapping[str, Any], line: str) -> None:
        self.content.append(_text(delta.get("content")))
        self.thoughts.append(_thoughts(delta))
        self.named |= dict.fromkeys(name for name in THOUGHTS if delta.get(name))
        for one in _list(delta, "tool_calls", line):
            if not isinstance(one, dict) or not isinstance(one.get("index"), int):
                raise Failed(f"a piece of a tool call without index: {short(line)}", "malformed")
            function = one.get("function")
            if not isinstance(function, dict):
                function = {}
            call = self.calls.setdefault(one["index"], ["", "", ""])
            for at, piece in enumerate(
                (one.get("id"), function.get("name"), function.get("arguments"))
            ):
                call[at] += _text(piece)

    def whole(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(*self.calls[at]) for at in sorted(self.calls))


def mapping(text: str) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        Failed: If the text is not one (malformed).
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        why = f" ({error})" if "no number of JSON" in str(error) else ""
        raise Failed(f"no JSON object{why}: {short(text)!r}", "malformed") from None
    if not isinstance(value, dict):
        raise Failed(f"no JSON object: {short(text)!r}", "malformed")
    return value


def _no_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads and other clients do not."""
    raise ValueError(f"{name} is no number of JSON")


def _choice(body: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Failed(f"no choices: {short(text)}", "malformed")
    return choices[0]


def _call(one: Any, text: str) -> ToolCall:
    function = one.get("function") if isinstance(one, dict) else None
    if not isinstance(function, dict):
        raise Failed(f"a tool call without function: {short(text)}", "malformed")
    arguments = function.get("arguments")
    name = _text(one.get("id")), _text(function.get("name"))
    if isinstance(arguments, str):
        return ToolCall(*name, arguments)
    return ToolCall(*name, json.dumps(arguments), form(arguments))


def _thoughts(message: Mapping[str, Any]) -> str:
    return next((_text(message[name]) for name in THOUGHTS if message.get(name)), "")


def _usage(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token counts that streamed and whole answers have in common."""
    given = body.get("usage")
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: given.get(name) for name in names} if isinstance(given, dict) else {}


def _texts(message: Mapping[str, Any], text: str) -> None:
    """Check that content and thoughts are texts, or absent.

    Raises:
        Failed: If one is not (malformed): a client would show something else than was said.
    """
    for name in ("content", *THOUGHTS):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise Failed(f"{name} is {form(value)}, not a text: {short(text)}", "malformed")


def _list(message: Mapping[str, Any], name: str, text: str) -> list[Any]:
    value = message.get(name)
    if value is None or isinstance(value, list):
        return value or []
    raise Failed(f"{name} is {form(value)}, not a list: {short(text)}", "malformed")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
