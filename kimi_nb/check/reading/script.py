"""What is read of a script: its commands, words and variables.

>>> from kimi_nb.check.reading import bash
>>> bash.interpret("vllm serve m --port 8000", "run.sh").commands[0].argv
('vllm', 'serve', 'm', '--port', '8000')
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Word(NamedTuple):
    """A word of a command.

    ``text`` has its variables filled in, and ``known`` is whether all of it is known. ``raw`` is
    the beginning of the word as it stands in the file.
    """

    text: str
    line: int
    known: bool = True
    raw: str = ""


@dataclass(frozen=True)
class Command:
    """A simple command.

    ``env`` is the environment that is exported to it, ``env_lines`` the line of each of its
    variables. ``certain`` is whether the command surely runs, ``background`` whether the next one
    runs beside it. ``unset`` are the variables that its words use and nothing sets, ``own`` those that
    are set before it on its line.
    """

    words: tuple[Word, ...]
    env: Mapping[str, str]
    env_lines: Mapping[str, int]
    line: int
    certain: bool
    background: bool
    unset: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    @functools.cached_property
    def argv(self) -> tuple[str, ...]:
        """The words as texts."""
        return tuple(word.text for word in self.words)


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable; ``text`` is None if it cannot be known.

    ``items`` are the elements of an array.
    """

    text: str | None
    line: int
    exported: bool = False
    items: tuple[Word, ...] | None = None


@dataclass
class Script:
    """What was read of one file.

    ``commands`` are in order, ``variables`` as they are at the end. ``written`` holds the texts
    that it writes to other files with their lines, ``manifests`` those that are YAML, whoever reads
    them, and ``sources`` the files that it sources and that are not here. ``expected`` are the variables that the caller must set (``${NAME:?}``).
    ``unread`` says where and why reading stopped.
    """

    file: str
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, Variable] = field(default_factory=dict)
    written: dict[str, tuple[str, int]] = field(default_factory=dict)
    manifests: list[tuple[str, int]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    unread: list[tuple[int, str]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)


class Enough(Exception):
    """Raised to stop reading; the message is empty if the script itself ends there."""


class Ended(Enough):
    """Raised where the script itself ends."""
