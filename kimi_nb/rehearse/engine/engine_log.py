"""The lines of a stand-in engine, in vLLM's own form; each says REHEARSAL."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from kimi_nb.rehearse.simulated_site import MARK


class Log:
    """Writes as the API server, or as the engine core of a rank: ``log.core(3).info(...)``."""

    def __init__(self, who: str = "APIServer") -> None:
        self._who = who

    def core(self, rank: int, size: int) -> Log:
        """The log of a rank's engine core; vLLM numbers it where there are several."""
        return Log(f"EngineCore_DP{rank}" if size > 1 else "EngineCore")

    def info(self, where: str, text: str) -> None:
        """A line of level INFO; ``where`` is the source it comes from in vLLM, file.py:line."""
        self._write("INFO", where, text)

    def error(self, where: str, text: str) -> None:
        """Lines of level ERROR, one for each line of the text."""
        for line in text.splitlines():
            self._write("ERROR", where, line)

    def plain(self, lines: Iterable[str]) -> None:
        """What no logger wrote: an exception at the end of a process."""
        print("\n".join(f"{self._head()} {line}" for line in lines), file=sys.stderr, flush=True)

    def _head(self) -> str:
        return f"{MARK} ({self._who} pid={os.getpid()})"

    def _write(self, level: str, where: str, text: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        print(f"{self._head()} {level} {stamp} [{where}] {text}", flush=True)


class StartError(Exception):
    """What ends a start: the exception's name in vLLM, its text, the core that raised it (None:
    the API server), and the ranks' exit code."""

    def __init__(self, name: str, text: str, rank: int | None = None, code: int = 1) -> None:
        self.name, self.text, self.rank, self.code = name, text, rank, code
        super().__init__(f"{name}: {text}")
