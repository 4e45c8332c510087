"""Start the programs of a run, watch them, and end them when the caller ends.

It is run as ``python -m kimi_nb.core.supervisor`` and speaks JSON lines: orders (start, stop,
measure) on its input, events on its output. `processes` is the caller's side.

The supervisor is a session of its own, so that a Ctrl-C meant for the caller does not reach it. It
adopts every orphan below it (PR_SET_CHILD_SUBREAPER), so that whatever a script leaves behind is
found among its descendants, never by name. When the caller ends, even by SIGKILL, the supervisor's
input ends, and that tells it to stop everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from kimi_nb.core import prctl

GRACE = 1.5  # seconds from SIGTERM to SIGKILL; everything must be gone within 5
MEASURE_EVERY = 0.7  # least seconds between two memory measurements while something runs
# A measurement walks the pages of every process: with 80 of them it takes a core for 0.1 s and more.
# It may have this share of the time.
MEASURE_SHARE = 0.05


def main() -> int:
    """Serve the caller until it ends; return 0."""
    return _Supervisor().serve()


class _Supervisor:
    def __init__(self) -> None:
        self.children: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.peak = 0.0
        self.prctl = prctl.prctl()
        self.ended_by: int | None = None

    def serve(self) -> int:
        self.prctl(prctl.PR_SET_CHILD_SUBREAPER, 1)
        reader = prctl.wakeup()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        waiting = selectors.DefaultSelector()
        waiting.register(0, selectors.EVENT_READ)
        waiting.register(reader, selectors.EVENT_READ)
        rest, due = b"", time.monotonic() + MEASURE_EVERY
        try:
            while self.ended_by is None:
                ready = waiting.select(MEASURE_EVERY)
                if any(key.fd == reader for key, _ in ready):
                    os.read(reader, 4096)
                self._collect()
                if any(key.fd == 0 for key, _ in ready):
                    got = os.read(0, 1 << 20)
                    if not got:
                        break
                    *lines, rest = (rest + got).split(b"\n")
                    for line in lines:
                        self._obey(json.loads(line))
                if self.children and time.monotonic() > due:
                    due = time.monotonic() + _pause(self._measure())
        finally:
            self._stop_all()
        return 0

    def _end(self, number: int, frame: Any) -> None:
        self.ended_by = number

    def _obey(self, order: Mapping[str, Any]) -> None:
        if order["do"] == "start":
            self._start(order)
        elif order["do"] == "stop":
            if order["name"] is None:
                self._stop_all()
            else:
                self._stop(
                    [
                        process.pid
                        for name, process in self.children.values()
                        if name == order["name"]
                    ]
                )
            self._tell(event="stopped", name=order["name"])
        else:
            if order["memory"]:
                self._measure()
            below = _below()
            self._tell(
                event="measured",
                peak_mb=self.peak,
                processes=len(below),
                cpu_s=sum(map(_cpu, below)),
            )

    def _start(self, order: Mapping[str, Any]) -> None:
        me = os.getpid()

        def die_with_me() -> None:
            # In case the supervisor is killed and can stop nothing; the setting survives exec.
            self.prctl(prctl.PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != me:
                os._exit(1)

        try:
            with open(order["log"], "ab", buffering=0) as log:
                process = subprocess.Popen(
                    order["argv"],
                    cwd=order["cwd"],
                    env=order["env"],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=die_with_me,
                )
        except (OSError, subprocess.SubprocessError) as error:
            self._tell(event="ended", name=order["name"], code=127, error=str(error))
            return
        self.children[process.pid] = (order["name"], process)

    def _collect(self) -> None:
        """Reap every child that has ended, and report those that the caller started."""
        for pid, code in prctl.reaped():
            if pid in self.children:
                name, process = self.children.pop(pid)
                process.returncode = code
                self._tell(event="ended", name=name, code=code)

    def _stop_all(self) -> None:
        self._stop(None)

    def _stop(self, roots: Sequence[int] | None) -> None:
        """End the processes ``roots`` and those below them, None: all. SIGTERM, then SIGKILL.

        Of all programs the last is told first: who needs another one was started after it, and is to
        end because it is told to, not because that one has gone.
        """
        known: dict[psutil.Process, None] = {}
        for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            end = time.monotonic() + wait
            while time.monotonic() < end:
                found = _below(roots)
                if roots is None:
                    found = [*dict.fromkeys([*_below([*reversed(self.children)]), *found])]
                # A parent first: it is stopped, and does not see its children fail.
                for process in found:
                    if number == signal.SIGKILL or process not in known:
                        _signal(process, number)
                known |= dict.fromkeys(found)
                # Descendants of a root must be remembered: they are orphans once the root is gone.
                alive = [one for one in known if _lives(one)]
                self._collect()
                if not alive:
                    return
                if number == signal.SIGKILL:
                    for process in alive:
                        _signal(process, number)
                time.sleep(0.02)
            self._collect()

    def _measure(self) -> float:
        """Note the memory of all processes, and return the seconds that this took."""
        begun = time.monotonic()
        total = _pss(psutil.Process())
        for process in _below():
            total += _pss(process)
        self.peak = max(self.peak, total / 1e6)
        return time.monotonic() - begun

    def _tell(self, **event: Any) -> None:
        # The caller may be gone, which the end of our input reports as well.
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps(event) + "\n").encode())


def _pause(took: float) -> float:
    """Return how many seconds to wait after a measurement of ``took`` seconds."""
    return max(MEASURE_EVERY, took / MEASURE_SHARE)


def _below(roots: Sequence[int] | None = None) -> list[psutil.Process]:
    """Return every living descendant of this process, or ``roots`` and their descendants.

    Each parent comes before its children.
    """
    try:
        if roots is not None:
            tops = [psutil.Process(root) for root in roots if psutil.pid_exists(root)]
            found = [one for top in tops for one in (top, *top.children(recursive=True))]
        else:
            found = psutil.Process().children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in dict.fromkeys(found) if _lives(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds used by a process and the children it has waited for."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def _pss(process: psutil.Process) -> int:
    """Return the memory of a process in bytes, with shared pages counted in proportion (PSS)."""
    try:
        return process.memory_full_info().pss
    except (psutil.Error, OSError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
