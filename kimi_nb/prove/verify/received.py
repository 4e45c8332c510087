"""An answer as it was received, in the same form whether streamed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core import errors, known_secrets
from kimi_nb.prove.verify.contract import Skip

_LONGEST = 160  # characters to show of an answer
_NAMES, _NAME = 20, 80  # models to show of a list, and characters of each


@dataclass(frozen=True)
class ToolCall:
    """One tool call.

    Attributes:
        arguments: The text as received, or the JSON of what was received in its place.
        form: What was received in place of a text, such as "an object"; "" for a text.
    """

    id: str
    name: str
    arguments: str
    form: str = field(default="", compare=False)


@dataclass(frozen=True)
class Wire:
    """How an answer came, before anything of it was read.

    Attributes:
        streamed: Whether it came as server-sent events.
        kind: Its Content-Type.
        sized: Whether it had a Content-Length.
        events: The JSON of each event of a stream.
        ends: How often the stream said [DONE].
        strange: Lines of the stream that are no event, and events after [DONE].
        arrivals: Seconds from the request to each chunk, () if they are not known.
        seconds: Seconds from the request to the end.
    """

    streamed: bool = False
    kind: str = ""
    sized: bool = False
    events: tuple[Mapping[str, Any], ...] = ()
    ends: int = 0
    strange: tuple[str, ...] = ()
    arrivals: tuple[float, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    """One completion. Two are equal if all fields except ``id``, ``body`` and ``wire`` are.

    Attributes:
        thoughts: The reasoning, which comes in a field of its own.
        named: The fields of the message in which thoughts came.
    """

    content: str
    thoughts: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    usage: Mapping[str, Any]
    named: tuple[str, ...] = ()
    id: str = field(default="", compare=False)
    body: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    wire: Wire = field(default_factory=Wire, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The thoughts and the content."""
        return self.thoughts + self.content

    @property
    def prompt_tokens(self) -> int:
        """The counted tokens of the prompt.

        Raises:
            Skip: If the usage has no such count, which is for api/usage to report.
        """
        told = self.usage.get("prompt_tokens")
        if wrong := no_count("prompt_tokens", told):
            raise Skip(f"usage: {wrong}; api/usage says more")
        return int(told)  # type: ignore[arg-type] # no_count has looked

    @property
    def answered(self) -> bool:
        """Whether there is any text or tool call."""
        return bool(self.text or self.calls)

    def __str__(self) -> str:
        parts = [f"thoughts {short(self.thoughts)!r}"] if self.thoughts else []
        parts += [f"content {short(self.content)!r}"] if self.content else []
        parts += [f"calls {one.id} {one.name}({short(one.arguments)})" for one in self.calls]
        return ", ".join([*(parts or ["no words"]), f"finish_reason {self.finish_reason}"])


def short(text: str, most: int = _LONGEST) -> str:
    """Shorten a text to what fits into a table.

    >>> short("garbled", 4)
    'garb ... (7 characters)'
    """
    if len(text) <= most:
        return text
    # Of half a key nobody could tell any more that it is one.
    return f"{known_secrets.text(text)[:most]} ... ({len(text)} characters)"


def names(given: Sequence[str]) -> str:
    """Return the names that a service lists, as far as they fit into a table.

    >>> names(["kimi", "other"])
    'kimi, other'
    """
    rest = f" and {len(given) - _NAMES} more" if len(given) > _NAMES else ""
    return ", ".join(errors.short(one, _NAME) for one in given[:_NAMES]) + rest


def no_count(name: str, value: object) -> str:
    """Return why a value of usage is no count of tokens, or "" if it is one.

    >>> no_count("prompt_tokens", "15")
    "prompt_tokens is the text '15', not a whole number"
    """
    if type(value) is int:  # True is an int as well
        return ""
    return f"{name} is {form(value)}, not a whole number"


def form(value: object) -> str:
    """Say what kind of JSON a value is.

    >>> form({"city": "Beijing"}), form(None), form(1.5)
    ('an object', 'null', 'the number 1.5')
    """
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"the text {short(value, 40)!r}"
    return (
        "null" if value is None else f"the number {value}" if type(value) is float else f"{value}"
    )
