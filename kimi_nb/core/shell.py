"""Build shell text from lists of words, every one of which is quoted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

# Lists of folders or libraries: a script prepends its value to the current one.
LISTS = ("PATH", "LD_PRELOAD", "LD_LIBRARY_PATH")
_TOLD = re.compile(r"(?:INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[^]]+:\d+\] [^:]*: ")


def quote(word: object) -> str:
    """Return a word, quoted if the shell would interpret anything in it."""
    return shlex.quote(str(word))


class Raw(str):
    """A word that is meant to be interpreted by the shell (``"$1"``) and is not quoted.

    Only `bundle` and `plan.jobs` create one, from constant text and from what they have quoted. It
    is a type of its own so that no value can be mistaken for one.
    """


def _word(word: object) -> str:
    return str(word) if isinstance(word, Raw) else quote(word)


def command(argv: Sequence[object], indent: str = "    ") -> list[str]:
    r"""Return a command as lines of a script: one option per line, continued with a backslash.

    >>> command(["vllm", "serve", "m", "--port", 8088, "--headless"])
    ['vllm serve m \\', '    --port 8088 \\', '    --headless']
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
    """Return ``export NAME=value``.

    For variables that hold a list of folders or libraries the value is prepended to the current
    one.

    >>> export("HCCL_BUFFSIZE", 1024)
    'export HCCL_BUFFSIZE=1024'
    >>> export("PATH", "/opt/vllm/bin")
    'export PATH=/opt/vllm/bin${PATH:+:$PATH}'
    """
    if name == "LD_LIBRARY_PATH":
        # Of an image's value that ends in a colon: the loader takes an empty element for the
        # current folder.
        return f"export {name}={_word(value)}${{{name}:+:${{{name}%:}}}}"
    if name in LISTS:
        return f"export {name}={_word(value)}${{{name}:+:${name}}}"
    return f"export {name}={_word(value)}"


def append(name: str, value: object) -> str:
    """Return a line that puts a folder at the end of a variable that holds a list of folders.

    >>> append("LD_LIBRARY_PATH", "/usr/local/lib")
    'export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH%:}:}/usr/local/lib'
    """
    return f"export {name}=${{{name}:+${{{name}%:}}:}}{quote(value)}"


def remark(text: str) -> str:
    """Return a shell comment on one line; line breaks in the text would end the comment."""
    return f"# {' '.join(text.split())}".rstrip()


def teller(who: str) -> str:
    """Return the line that defines ``tell LEVEL TEXT``, which writes one line into a log.

    The line has the form of vLLM's own, between which it stands: level, local time, the script and
    its line, then who speaks. ``who`` is "rank 3" or "node a3-0", and may hold variables of the
    shell, but for arguments: $1 is the function's own.

    >>> "%(%m-%d %H:%M:%S)T" in teller("rank $rank")
    True
    """
    place = '"${0##*/}" "${BASH_LINENO[0]}"'
    form = "'%s %(%m-%d %H:%M:%S)T [%s:%s] %s: %s\\n'"
    return f'tell() {{ printf {form} "$1" -1 {place} "{who}" "$2"; }}'


def message(line: str) -> str:
    """Return what a line of ``tell`` says, without what stands before it; any other as it is.

    >>> message("INFO 11-23 06:04:02 [job_7:31] node dgx-07: Install complete.")
    'Install complete.'
    """
    return _TOLD.sub("", line, count=1)


def script(comment: Iterable[str], lines: Iterable[str], strict: str = "set -euo pipefail") -> str:
    """Return a bash script: the shebang line, a comment, the shell options, then ``lines``."""
    head = ["#!/bin/bash", *map(remark, comment), strict, ""]
    return "\n".join([*head, *lines]).rstrip() + "\n"
