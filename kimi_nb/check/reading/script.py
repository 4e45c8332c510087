"""What is read of a script: its commands, words and variables.

script.commands[0].argv          # ('vllm', 'serve', 'm', '--port', '8000')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: its text with variables put in, its line, whether all of it is known,
    and how it stands in the file (first bytes)."""

    text: str
    line: int
    known: bool = True
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. ``env`` is what it sees exported, ``lines`` the line of each of these,
    ``certain`` whether it runs at all, ``background`` whether the next runs beside it;
    ``unset`` are variables that its words use and nothing sets."""

    words: tuple[Word, ...]
    env: Mapping[str, str]
    env_lines: Mapping[str, int]
    line: int
    certain: bool
    background: bool
    unset: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The words as texts."""
        return tuple(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable; ``text`` is None where it cannot be known."""

    text: str | None
    line: int
    exported: bool = False
    items: tuple[Word, ...] | None = None


@dataclass
class Script:
    """What was read of one file: commands in order, the variables at its end, texts that it
    writes to other files, and how far reading came."""

    file: str
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    written: dict[str, tuple[str, int]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    unread: list[tuple[int, str]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)


class Enough(Exception):
    """Reading stops here."""
