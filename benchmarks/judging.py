"""What a benchmark says of its bounds, and its exit code.

    def main(judge: Judge) -> None:
        judge.figure("import kimi_nb", ours, "s CPU", most=0.05, peer=("an interpreter alone", floor))
        judge.ratio("doctor", ours, "s", most=0.8, peer=("grep", theirs))

    sys.exit(judged(main))

Each figure is a line: the median of what was measured with its range, the floor or peer of the
same run, the bound, and "kept" or "not kept". Exit codes: 0 every bound is kept; 1 one is not, or
there is none; 2 none is missed, and one could not be measured here.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil

from kimi_nb.core.errors import KimiError

KEPT, NOT_KEPT, NOT_MEASURED, INTERRUPTED = 0, 1, 2, 130
T = TypeVar("T")
Peer = tuple[str, Sequence[float]]  # its name, what was measured of it


class Judge:
    """Prints each figure as it comes, and remembers which bounds are not kept."""

    def __init__(self) -> None:
        self.kept = 0
        self.missed: list[str] = []
        self.unmeasured: list[str] = []

    def figure(
        self,
        what: str,
        values: Sequence[float],
        unit: str,
        *,
        most: float | None = None,
        least: float | None = None,
        peer: Peer | None = None,
    ) -> None:
        """Judge the median of what was measured; without a bound it is only shown."""
        self._judge(what, _told(values, unit, peer), statistics.median(values), unit, most, least)

    def ratio(
        self,
        what: str,
        values: Sequence[float],
        unit: str,
        *,
        most: float | None = None,
        least: float | None = None,
        peer: Peer,
    ) -> None:
        """Judge the median of what was measured over the peer's."""
        times = over(values, peer[1])
        self._judge(what, _told(values, unit, peer), times, "times", most, least)

    def not_measured(self, what: str, why: str) -> None:
        """A bound that cannot be judged on this machine."""
        self.unmeasured.append(what)
        print(f"{what}: not measured: {why}", flush=True)

    @property
    def exit_code(self) -> int:
        if self.missed or not (self.kept or self.unmeasured):
            return NOT_KEPT
        return NOT_MEASURED if self.unmeasured else KEPT

    def __str__(self) -> str:
        """The last line."""
        if not (self.kept or self.missed or self.unmeasured):
            return "not kept: there is no bound"
        counts = (
            (self.kept, "kept"),
            (len(self.missed), "not kept"),
            (len(self.unmeasured), "not measured"),
        )
        return "bounds: " + ", ".join(f"{count} {word}" for count, word in counts if count)

    def _judge(
        self,
        what: str,
        told: str,
        value: float,
        unit: str,
        most: float | None,
        least: float | None,
    ) -> None:
        bounds = [
            f"at {word} {number(bound)} {unit}"
            for word, bound in (("least", least), ("most", most))
            if bound is not None
        ]
        if not bounds:
            print(f"{what}: {told}; no bound", flush=True)
            return
        # A figure that is no number keeps no bound.
        kept = (most is None or value <= most) and (least is None or value >= least)
        if kept:
            self.kept += 1
        else:
            self.missed.append(what)
        print(
            f"{what}: {told}; {', '.join(bounds)}: {'kept' if kept else 'not kept'}",
            flush=True,
        )


def judged(main: Callable[[Judge], None]) -> int:
    """Run a benchmark and return its exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    judge = Judge()
    try:
        with others() as share:
            main(judge)
    except KimiError as error:
        print(f"not kept: {error}", flush=True)
        return NOT_KEPT
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return INTERRUPTED
    print(f"{judge} (other programs took {share[0]:.0%} of this machine)", flush=True)
    return judge.exit_code


def over(values: Sequence[float], peer: Sequence[float]) -> float:
    """The ratio of two medians."""
    least = statistics.median(peer)
    return statistics.median(values) / least if least else float("inf")


def _told(values: Sequence[float], unit: str, peer: Peer | None) -> str:
    text = _measured(values, unit)
    if peer is None:
        return text
    name, theirs = peer
    return f"{text}; {name} {_measured(theirs, unit)}: {number(over(values, theirs))} times"


def _measured(values: Sequence[float], unit: str) -> str:
    text = f"{number(statistics.median(values))} {unit}"
    if len(values) == 1:
        return text
    return f"{text} ({number(min(values))} to {number(max(values))})"


def number(value: float) -> str:
    """With as many digits as say something."""
    if float(value).is_integer():
        return f"{value:,.0f}"
    size = abs(value)
    return f"{value:.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


# What is measured ---------------------------------------------------------------------------


def repeated(times: int, *calls: Callable[[], T]) -> list[list[T]]:
    """What each call gives so many times; the calls take turns, so that a minute in which the
    machine is slow is slow for all of them."""
    rows = [[call() for call in calls] for _ in range(times)]
    return [list(column) for column in zip(*rows, strict=True)]


def wall(call: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cpu(call: Callable[[], object]) -> float:
    """CPU seconds of a call in this process. Without disk and network they are the wall seconds of
    an idle machine, and other programs change them less."""
    began = time.process_time()
    call()
    return time.process_time() - began


def cpu_of(argv: Sequence[str]) -> float:
    """CPU seconds of a command that succeeds, and of all that it starts and waits for."""
    before = _spent(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{argv[0]}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr}")
    return _spent(resource.RUSAGE_CHILDREN) - before


@contextlib.contextmanager
def others() -> Iterator[list[float]]:
    """The share of the machine's CPU that went to programs other than our own and what they have
    started and waited for; there at the end of the ``with``."""
    found: list[float] = []
    began, worked, own = time.monotonic(), busy(), _own()
    yield found
    spent = (busy() - worked) - (_own() - own)
    found.append(max(0.0, spent / (time.monotonic() - began) / (psutil.cpu_count() or 1)))


def busy() -> float:
    """CPU seconds of all processes there are, and of those that they have waited for. The
    machine's own count samples at clock ticks, and misses what runs between two."""
    times = (one.info["cpu_times"] for one in psutil.process_iter(["cpu_times"]))
    return sum(sum(one[:4]) for one in times if one is not None)


def _own() -> float:
    return _spent(resource.RUSAGE_SELF) + _spent(resource.RUSAGE_CHILDREN)


def _spent(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def executable(name: str) -> str | None:
    """The path of a program of this environment, or on PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.is_file() else shutil.which(name)
