"""Shell text from lists of words. Every word is quoted; nothing is ever pasted in."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from kimi_nb.params.settings import LISTS


def quote(word: object) -> str:
    """One word, quoted where the shell would read anything into it."""
    return shlex.quote(str(word))


class Raw(str):
    """A word that is shell on purpose (``"$1"``). Only scripts.py and jobs.py make one, of texts
    of their own, never of a value; a type, so that no value can pretend to be one."""


def _word(word: object) -> str:
    return str(word) if isinstance(word, Raw) else quote(word)


def command(argv: Sequence[object], indent: str = "    ") -> list[str]:
    """A command as lines of a script: one option a line, continued with a backslash.

    >>> command(["vllm", "serve", "m", "--port", 8088, "--headless"])
    ['vllm serve m \\\\', '    --port 8088 \\\\', '    --headless']
    """
    groups: list[list[str]] = [[]]
    for word in argv:
        plain = str(word)
        if plain.startswith("-") and len(plain) > 1 and not plain[1].isdigit():
            groups.append([])
        groups[-1].append(_word(word))
    lines = [" ".join(group) for group in groups if group]
    return [
        f"{'' if i == 0 else indent}{line}{' ' + chr(92) if i < len(lines) - 1 else ''}"
        for i, line in enumerate(lines)
    ]


def export(name: str, value: object) -> str:
    """``export NAME=value``; a list of folders or libraries goes in front of what is there."""
    if name in LISTS:
        return f"export {name}={quote(value)}${{{name}:+:${name}}}"
    return f"export {name}={quote(value)}"


def remark(text: str) -> str:
    """A comment of one line: a line break in it would end it."""
    return f"# {' '.join(text.split())}".rstrip()


def script(comment: Iterable[str], lines: Iterable[str], strict: str = "set -euo pipefail") -> str:
    """A bash script: first line, what it is for, then ``lines``."""
    head = ["#!/bin/bash", *map(remark, comment), strict, ""]
    return "\n".join([*head, *lines]).rstrip() + "\n"
