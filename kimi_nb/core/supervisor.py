"""The process that starts what a run needs, watches it, and ends it when its caller ends.

    python -m kimi_nb.core.supervisor      # JSON lines in: start, stop, measure; JSON lines out: events

It is a session of its own, so that a Ctrl-C meant for the caller does not reach it, and it
adopts every orphan below it (PR_SET_CHILD_SUBREAPER): whatever a script leaves behind is found
by walking down from here, never by name. The caller's end, a SIGKILL included, is the end of its
input. `processes` is the caller's side.
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
from collections.abc import Iterable, Mapping
from typing import Any

import psutil

from kimi_nb.core import prctl as linux

GRACE = 1.5  # seconds from SIGTERM to SIGKILL: everything is gone within 5
MEASURE_EVERY = 0.7  # seconds between looks at the memory while something runs


def main() -> int:
    """Serve the caller until its end; 0."""
    return _Supervisor().serve()


class _Supervisor:
    def __init__(self) -> None:
        self.children: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.peak = 0.0
        self.prctl = linux.prctl()
        self.ended_by: int | None = None

    def serve(self) -> int:
        self.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        reader = linux.wakeup()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        waiting = selectors.DefaultSelector()
        waiting.register(0, selectors.EVENT_READ)
        waiting.register(reader, selectors.EVENT_READ)
        rest, measured = b"", time.monotonic()
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
                if self.children and time.monotonic() - measured > MEASURE_EVERY:
                    self._measure()
                    measured = time.monotonic()
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
            below = _below(os.getpid())
            self._tell(
                event="measured",
                peak_mb=self.peak,
                processes=len(below),
                cpu_s=sum(map(_cpu, below)),
            )

    def _start(self, order: Mapping[str, Any]) -> None:
        me = os.getpid()

        def die_with_me() -> None:
            # For a supervisor that is killed and can stop nobody; kept through every exec.
            self.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
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
        """Reap what has ended, orphans too; tell of the ones that were asked for."""
        for pid, code in linux.reaped():
            if pid in self.children:
                name, process = self.children.pop(pid)
                process.returncode = code
                self._tell(event="ended", name=name, code=code)

    def _stop_all(self) -> None:
        self._stop([])

    def _stop(self, roots: Iterable[int]) -> None:
        """End everything below us, or below the processes ``roots``: SIGTERM, then SIGKILL."""
        roots = list(roots)
        known: set[psutil.Process] = set()
        for number, wait in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            end = time.monotonic() + wait
            while time.monotonic() < end:
                found = _below(os.getpid(), roots)
                for process in found if number == signal.SIGKILL else found - known:
                    _signal(process, number)
                known |= found
                self._collect()
                # What was below a root stays known after the root is gone.
                alive = {one for one in known | found if _lives(one)}
                if not alive:
                    break
                if number == signal.SIGKILL:
                    for process in alive:
                        _signal(process, number)
                time.sleep(0.02)
            self._collect()

    def _measure(self) -> None:
        total = _pss(psutil.Process())
        for process in _below(os.getpid()):
            total += _pss(process)
        self.peak = max(self.peak, total / 1e6)

    def _tell(self, **event: Any) -> None:
        # The caller may be gone; the end of our input says so as well.
        with contextlib.suppress(OSError):
            os.write(1, (json.dumps(event) + "\n").encode())


def _below(pid: int, roots: Iterable[int] = ()) -> set[psutil.Process]:
    """Every living process below ``pid``; with ``roots``: those and what is below them."""
    try:
        if roots:
            tops = [psutil.Process(root) for root in roots if psutil.pid_exists(root)]
            found = {*tops, *(child for top in tops for child in top.children(recursive=True))}
        else:
            found = set(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()
    return {process for process in found if _lives(process)}


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _cpu(process: psutil.Process) -> float:
    """Seconds of CPU that a process and what it has waited for have used."""
    try:
        return float(sum(process.cpu_times()[:4]))
    except psutil.Error:
        return 0.0


def _pss(process: psutil.Process) -> int:
    """Bytes of memory of a process, shared pages counted in proportion."""
    try:
        return process.memory_full_info().pss
    except (psutil.Error, OSError):
        return 0


if __name__ == "__main__":
    sys.exit(main())
