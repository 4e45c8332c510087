"""Read the command lines of stand-ins, and keep what they write within the rehearsal's folder."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.stand_in_call import Call, Refused


def parts(words: Sequence[str], valued: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Return the operands and the options of a command line; ``valued`` options take a value."""
    operands: list[str] = []
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=")
        if not word.startswith("-") or word == "-":
            operands.append(word)
        elif name in valued and not equals:
            options[name] = rest.pop(0) if rest else ""
        else:
            options[name] = text
    return operands, options


def first(options: dict[str, str], *names: str) -> str:
    """Return the value of the first of these options that has one, or ""."""
    return next((options[name] for name in names if options.get(name)), "")


def inside(call: Call, folder: str) -> Path | None:
    """Return the path of a folder, or None if it is outside the rehearsal's folder."""
    path = (call.folder / folder).resolve()
    return path if path.is_relative_to(call.root.resolve()) else None


def not_rehearsed(call: Call) -> Refused:
    """Return the refusal of a call for which there is no stand-in."""
    return Refused(f"{MARK}: {shlex.join([call.tool, *call.words])} is not part of a rehearsal", 1)
