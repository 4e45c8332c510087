"""The logs of a cluster's jobs, read on the shared file system while they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kimi_nb.core import known_secrets as secrecy
from kimi_nb.core.tail import Tails
from kimi_nb.diagnose.first_failure import Log

_LAST = 3  # lines that show how a job ended
SLURM = "scontrol show job"  # the "file" of what SLURM itself says of a job


class JobLogs:
    """`readiness.Logs` of the serving job: its output and error output, and, once it has ended,
    what SLURM says of that. ``files`` and ``word`` are asked at each look: the job may be another
    one by then. What was read is kept in ``folder``."""

    def __init__(
        self,
        folder: Path,
        node: Callable[[], str],
        files: Callable[[], Sequence[Path]],
        word: Callable[[], str],
    ) -> None:
        self._folder, self._node, self._files, self._word = folder, node, files, word
        self._tails = Tails()
        self._said = ""

    @property
    def progress(self) -> int:
        """How many lines said something new."""
        return self._tails.progress

    def read(self) -> None:
        """Take in what is new, and keep it."""
        for path, lines in self._tails.read(self._files()).items():
            self._folder.mkdir(parents=True, exist_ok=True)
            # The first look reads all: what an earlier process kept is written again.
            first = len(self._tails.lines[path]) == len(lines)
            with (self._folder / path.name).open("w" if first else "a", encoding="utf-8") as file:
                file.writelines(f"{secrecy.text(line)}\n" for line in lines)
        self._said = self._word()

    def all(self) -> list[Log]:
        """What was read."""
        out = [
            Log(self._node(), None, path.name, self._tails.lines.get(path, ()))
            for path in self._files()
        ]
        return [*out, Log(self._node(), None, SLURM, [self._said])] if self._said else out

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """(file, last line); a job has one log for all of its ranks."""
        return self._last(1)

    def last_of(self, name: str) -> tuple[str, str]:
        """(file, last lines) of the job, and how SLURM says that it ended."""
        return self._last(_LAST)

    def _last(self, most: int) -> tuple[str, str]:
        word = f"{SLURM}: {self._said} | " if self._said else ""
        # vLLM logs to the error output; an exit without a word there may have one in the other.
        for path in reversed(self._files()):
            lines = [line for line in self._tails.lines.get(path, ()) if line.strip()]
            if lines:
                return path.name, word + " | ".join(lines[-most:])
        return "", word + "no log"


def follow(
    files: Callable[[], Mapping[str, Sequence[Path]]], stop: Callable[[], bool], wait: float = 0.3
) -> Iterator[tuple[str, str]]:
    """(name, line) of every line of every job, as they come, until ``stop``; ``files`` are a
    job's files by its name, asked at each look."""
    tails = Tails()
    while True:
        last = stop()
        named = {path: name for name, paths in files().items() for path in paths}
        for path, lines in tails.read(named).items():
            tails.lines[path].clear()  # who follows for days keeps nothing
            for line in lines:
                yield named[path], line
        if last:
            return
        time.sleep(wait)
