"""Run programs that end when this process ends: the caller's side of `supervisor`.

Example, in which "a3-0 serve" is a name of the caller's choice::

    with processes.Programs(folder / "supervisor.log") as programs:
        programs.start("a3-0 serve", ["bash", "serve.sh"], folder, env, folder / "serve.log")
        programs.ended()  # {"a3-0 serve": 1} once it has exited with 1
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kimi_nb.core.errors import KimiError

STOP_WAIT = 8.0  # seconds; the supervisor needs at most 3


class Programs:
    """A supervisor process and the programs that it runs; leaving the ``with`` stops them all."""

    def __init__(self, log: Path, keep: Sequence[int] = ()) -> None:
        """Start the supervisor, which writes its own errors to ``log``.

        ``keep`` are file descriptors that stay open as long as anything runs.
        """
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kimi_nb.core.supervisor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                pass_fds=keep,
            )
        self._log = log
        self._changed = threading.Condition()
        self._ended: dict[str, int] = {}
        self._answers: list[Mapping[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str], log: Path
    ) -> None:
        """Start a program and send its output to ``log``."""
        self._ended.pop(name, None)
        self._order(
            do="start", name=name, argv=list(argv), cwd=str(folder), env=dict(env), log=str(log)
        )

    def ended(self) -> dict[str, int]:
        """Return the exit codes of the programs that have ended, by name; negative for a signal.

        Raises KimiError if the supervisor has ended, because it takes every program with it.
        """
        if not self._alive:
            raise self._gone()
        with self._changed:
            return dict(self._ended)

    def wait(self, name: str, seconds: float) -> int | None:
        """Wait for a program and return its exit code; None if it still runs after ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._ended or not self._alive, seconds)
            return self._ended.get(name)

    def stop(self, name: str | None = None) -> None:
        """Stop one program, or all of them, including all of their descendants."""
        self._ask("stopped", do="stop", name=name)

    def peak_mb(self) -> float:
        """Return the highest total memory use seen so far, in MB of PSS."""
        return float(self._ask("measured", do="measure", memory=True).get("peak_mb", 0.0))

    def busy(self, seconds: float) -> float:
        """Return how many cores the programs keep busy, measured over ``seconds``."""
        before = float(self._ask("measured", do="measure", memory=False).get("cpu_s", 0.0))
        time.sleep(seconds)
        after = float(self._ask("measured", do="measure", memory=False).get("cpu_s", 0.0))
        return max(0.0, after - before) / seconds

    def close(self) -> None:
        """Stop all programs and wait until they are gone."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(1)
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _alive(self) -> bool:
        return self._process.poll() is None

    def _gone(self, why: str = "") -> KimiError:
        return KimiError(
            f"The supervisor of this run has ended{why}: it was stopped from outside, "
            f"and everything that it had started with it. Its messages: {self._log}"
        )

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(order) + "\n").encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._gone(f" ({error.strerror})") from None

    def _ask(self, event: str, **order: Any) -> Mapping[str, Any]:
        with self._changed:
            self._answers.clear()
        self._order(**order)
        if not self._alive:
            raise self._gone()
        end = time.monotonic() + STOP_WAIT
        with self._changed:
            self._changed.wait_for(
                lambda: any(one["event"] == event for one in self._answers) or not self._alive,
                end - time.monotonic(),
            )
            found = next((one for one in self._answers if one["event"] == event), None)
        if found is None:
            raise self._gone()
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            with self._changed:
                if event["event"] == "ended":
                    self._ended[event["name"]] = event["code"]
                    if event.get("error"):
                        os.write(2, f"{event['name']}: {event['error']}\n".encode())
                else:
                    self._answers.append(event)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
