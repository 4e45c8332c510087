"""What a sweep spends on itself: everything but starting, stopping and loading the service.

    python benchmarks/sweep.py

A rehearsal of two settings and two loads, three rounds. The load is the time in the tool that
sends it, the service that in `Run.serve` and `Service.stop`; the rest is bookkeeping: plans,
checks, the probe, /metrics before and after, files, tables, the picture and the winner's file. At
most 5 % of the whole. Stand-ins start in seconds, so that the share is larger than on hardware.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import kimi_nb
from kimi_nb.bench import tools
from kimi_nb.run import Run
from kimi_nb.served import Service

ROUNDS, MOST = 3, 0.05
SWEEP = "max-num-seqs: [8, 16]; concurrency: [1, 4]"


def timed(owner: Any, name: str, spent: list[float]) -> None:
    """Count the seconds in a method."""
    inner: Callable[..., Any] = getattr(owner, name)

    def outer(*args: Any, **more: Any) -> Any:
        begun = time.perf_counter()
        try:
            return inner(*args, **more)
        finally:
            spent.append(time.perf_counter() - begun)

    setattr(owner, name, outer)


def round_of(spent: list[float]) -> tuple[float, float]:
    """(seconds of a whole sweep, seconds of them in the service and its load)."""
    spent.clear()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = kimi_nb.start(hw="a3", model="k2.5", action="rehearse", run_dir=folder)
        plan = run.plan("single")
        begun = time.perf_counter()
        # So long a load that a measurement takes seconds, as the shortest on hardware do.
        design = run.design(plan, SWEEP, input_len=256, output_len=256)
        found = run.sweep(design, repetitions=3)
        found.table(), found.pareto(), found.advice(), found.write()
        whole = time.perf_counter() - begun
        run.close()
    return whole, sum(spent)


def main() -> int:
    """Print the figures; 1 when the bound is missed."""
    spent: list[float] = []
    for owner, name in ((Run, "serve"), (Service, "stop"), (tools.Tool, "run")):
        timed(owner, name, spent)
    shares = []
    for _ in range(ROUNDS):
        whole, engine = round_of(spent)
        shares.append(1 - engine / whole)
        print(f"whole {whole:5.1f} s, service and load {engine:5.1f} s, bookkeeping "
              f"{whole - engine:4.2f} s: {shares[-1]:.1%}", flush=True)
    share = statistics.median(shares)
    print(f"bookkeeping: {share:.1%} of a sweep (median of {ROUNDS}), at most {MOST:.0%}")
    return 0 if share <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
