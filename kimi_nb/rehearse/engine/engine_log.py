"""Write the log lines of a stand-in engine in vLLM's format, each marked REHEARSAL."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

from kimi_nb.core.marks import MARK


class Log:
    """The log of the API server, or of the engine core of a rank: ``log.core(3, 8).info(...)``."""

    def __init__(self, who: str = "APIServer") -> None:
        self._who = who

    def core(self, rank: int, size: int) -> Log:
        """Return the log of a rank's engine core, numbered as in vLLM if there are several."""
        return Log(f"EngineCore_DP{rank}" if size > 1 else "EngineCore")

    def info(self, where: str, text: str) -> None:
        """Write a line of level INFO; ``where`` is its source in vLLM, as file.py:line."""
        self._write("INFO", where, text)

    def warning(self, where: str, text: str) -> None:
        """Write a line of level WARNING."""
        self._write("WARNING", where, text)

    def error(self, where: str, text: str) -> None:
        """Write each line of the text as a line of level ERROR."""
        for line in text.splitlines():
            self._write("ERROR", where, line)

    def plain(self, lines: Iterable[str]) -> None:
        """Write lines that come from no logger, such as the exception that ends a process."""
        print("\n".join(f"{self._head()} {line}" for line in lines), file=sys.stderr, flush=True)

    def _head(self) -> str:
        return f"{MARK} ({self._who} pid={os.getpid()})"

    def _write(self, level: str, where: str, text: str) -> None:
        stamp = time.strftime("%m-%d %H:%M:%S")
        print(f"{self._head()} {level} {stamp} [{where}] {text}", flush=True)


class StartError(Exception):
    """An error that ends a start.

    Attributes:
        name: The name of the exception in vLLM.
        text: Its message.
        rank: The rank whose engine core raised it; None for the API server.
        code: The exit code.
    """

    def __init__(self, name: str, text: str, rank: int | None = None, code: int = 1) -> None:
        self.name, self.text, self.rank, self.code = name, text, rank, code
        super().__init__(f"{name}: {text}")
