"""Read the logs of a cluster's jobs from the shared file system while they grow."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kimi_nb.core import known_secrets
from kimi_nb.core.tail import Tails
from kimi_nb.diagnose.first_failure import Log

_LAST = 3  # last lines of a job that show how it ended
_NO_NAME = re.compile(r"[^\w.-]|^\.+")  # what cannot stand in the name of a folder
SLURM = "scontrol show job"  # the "file" of SLURM's description of a job


class JobLogs:
    """The logs of the serving job, as `readiness.Logs`.

    They are its output, its error output and, once it has ended, SLURM's description of its end.
    ``files`` returns the node of each file, that of the job itself first; it and ``word`` are
    called at each look, because the job may have been replaced. What was read is kept in
    ``folder``.
    """

    def __init__(
        self,
        folder: Path,
        files: Callable[[], Mapping[Path, str]],
        word: Callable[[], str],
    ) -> None:
        self._folder, self._files, self._word = folder, files, word
        self._tails = Tails()
        self._said = ""

    @property
    def progress(self) -> int:
        """The number of lines that said something new."""
        return self._tails.progress

    def read(self) -> None:
        """Read what is new, and keep a copy."""
        files = self._files()
        for path, lines in self._tails.read(files).items():
            # The first look reads everything, so a copy of an earlier process is overwritten.
            first = len(self._tails.lines[path]) == len(lines)
            with self._copy(path, files[path]).open(
                "w" if first else "a", encoding="utf-8"
            ) as file:
                file.writelines(f"{known_secrets.text(line)}\n" for line in lines)
        self._said = self._word()

    def keep(self, files: Mapping[Path, str]) -> None:
        """Copy what jobs have written; ``files`` returns the node of each file, or ""."""
        for path, node in files.items():
            # A job that never ran has written nothing.
            with (
                contextlib.suppress(OSError),
                path.open(encoding="utf-8", errors="replace") as file,
                self._copy(path, node).open("w", encoding="utf-8") as copy,
            ):
                copy.writelines(map(known_secrets.text, file))

    def _copy(self, path: Path, node: str) -> Path:
        """Return where the copy of a file stands: in a folder of its node, if it has one."""
        folder = self._folder / _NO_NAME.sub("_", node)
        folder.mkdir(parents=True, exist_ok=True)
        name, number, *_ = path.name.split(".")
        for old in folder.glob(f"{name}.*"):
            # Of a job that another one has replaced.
            if not old.name.startswith(f"{name}.{number}.") and old.suffix in (".out", ".err"):
                old.rename(old.with_name(f"{old.stem}-{old.suffix[1:]}.before"))
        return folder / path.name

    def all(self) -> list[Log]:
        """Return everything read so far."""
        files = self._files()
        out = [
            Log(node, None, path.name, self._tails.lines.get(path, ()))
            for path, node in files.items()
        ]
        first = next(iter(files.values()), "")
        return [*out, Log(first, None, SLURM, [self._said])] if self._said else out

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """Return (file, last line); a node has one log for all of its ranks."""
        return self._last(node, 1)

    def last_of(self, name: str) -> tuple[str, str]:
        """Return (file, last lines) of the job on a node, with SLURM's description of its end.

        What stands on no node by itself, such as the router, writes into the job's own files.
        """
        return self._last(name.partition(" ")[0], _LAST)

    def _last(self, node: str, most: int) -> tuple[str, str]:
        word = f"{SLURM}: {self._said} | " if self._said else ""
        files = self._files()
        mine = [path for path, where in files.items() if where == node] or list(files)[:2]
        # vLLM logs to the error output; if that is empty, the standard output may explain the end.
        for path in reversed(mine):
            lines = [line for line in self._tails.lines.get(path, ()) if line.strip()]
            if lines:
                return path.name, word + " | ".join(lines[-most:])
        return "", word + "no log"


def source(node: str, path: Path) -> str:
    """Return what `follow` and the copies call the lines of a file: "NODE JOB", or the job.

    >>> source("dgx-01", Path("vllm_kimi.7.task0.err"))
    'dgx-01 vllm_kimi'
    """
    return f"{node} {path.name.partition('.')[0]}".strip()


def follow(
    files: Callable[[], Mapping[Path, str]], stop: Callable[[], bool], wait: float = 0.3
) -> Iterator[tuple[str, str]]:
    """Yield (source, line) of every new line of every job, until ``stop`` returns true.

    ``files`` returns the source of each file; it is called at each look.
    """
    tails = Tails()
    while True:
        last = stop()
        named = files()
        for path, lines in tails.read(named).items():
            tails.lines[path].clear()  # following for days must not fill the memory
            for line in lines:
                yield named[path], line
        if last:
            return
        time.sleep(wait)
