"""Read log files while they grow.

Example::

    tails = Tails()
    tails.read([Path("a.out")])  # {Path("a.out"): ["the new lines"]}
    tails.lines[Path("a.out")]  # all lines so far
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WAITING = "Waiting for "  # repeated while a program waits, so not a sign of progress


class Tails:
    """Files, each read from where the previous read ended.

    ``progress`` counts the lines that say something new.
    """

    def __init__(self) -> None:
        self.lines: dict[Path, list[str]] = {}
        self.progress = 0
        self._at: dict[Path, int] = {}
        self._waits: dict[Path, str] = {}

    def read(self, paths: Iterable[Path]) -> dict[Path, list[str]]:
        """Return the new lines of each file that has any, and add them to ``lines``.

        Only whole lines are read; an incomplete one is left for a later call.
        """
        out = {}
        for path in paths:
            try:
                with path.open("rb") as file:
                    file.seek(self._at.get(path, 0))
                    data = file.read()
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._at[path] = self._at.get(path, 0) + len(whole)
            lines = _COLOURS.sub("", whole.decode("utf-8", "replace")).splitlines()
            self.lines.setdefault(path, []).extend(lines)
            for line in lines:
                waits = line.partition(_WAITING)[2]
                # A program that still waits for the same thing has made no progress.
                self.progress += not waits or waits != self._waits.get(path)
                self._waits[path] = waits
            if lines:
                out[path] = lines
        return out
