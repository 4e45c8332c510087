"""Log files as they grow.

tails = Tails()
tails.read([Path("a.out")])      # {Path("a.out"): ["what is new"]}
tails.lines[Path("a.out")]       # all of it
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_WAITING = "Waiting for "  # said again and again: no progress


class Tails:
    """Files, read where the last look ended. ``progress`` counts the lines that say something
    new."""

    def __init__(self) -> None:
        self.lines: dict[Path, list[str]] = {}
        self.progress = 0
        self._at: dict[Path, int] = {}
        self._waits: dict[Path, str] = {}

    def read(self, paths: Iterable[Path]) -> dict[Path, list[str]]:
        """Take in and return what is new, for each file that has any. Only whole lines: the rest
        is read when it is there."""
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
                # Who waits for the same as before has not moved.
                self.progress += not waits or waits != self._waits.get(path)
                self._waits[path] = waits
            if lines:
                out[path] = lines
        return out
