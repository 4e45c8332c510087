"""What a sweep spends on itself: everything but starting, stopping and loading the service.

    python benchmarks/sweep.py

Two settings and two loads, three repetitions, on the real engine of hardware cpu where `make
engine` has installed it (some minutes, one round), else on stand-ins. The load is the time in the
tool that sends it, the service that in `Run.serve` and `Service.stop`; the rest is bookkeeping:
plans, checks, the probe, /metrics before and after, files, tables, the picture and the winner's
file. At most 5 % of a sweep of a real engine. Stand-ins start and answer in no time, so that
their share says nothing; the seconds do.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import judging

import kimi_nb
from kimi_nb.core import paths
from kimi_nb.notebook.run import Run
from kimi_nb.prove.bench import load_programs
from kimi_nb.service.handle import Service

ENGINE = paths.root() / ".engine" / "bin" / "vllm"
NO_ENGINE = f"{ENGINE} is not there; make engine installs it"
MOST = 0.05
SWEEP = "max-num-seqs: [4, 8]; concurrency: [1, 4]"


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


def sweep(real: bool, spent: list[float]) -> tuple[float, float]:
    """(seconds of a whole sweep, seconds of them in the service and its load)."""
    spent.clear()
    words = (
        {"hw": "cpu", "action": "deploy", "confirm": "local"}
        if real
        else {"hw": "a3", "action": "rehearse"}
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = kimi_nb.start(model="k2.5", run_dir=folder, **words)
        plan = run.plan(run.choose("single"))
        begun = time.perf_counter()
        design = run.design(plan, SWEEP, input_len=64, output_len=32)
        found = run.sweep(design, repetitions=3)
        found.table(), found.pareto(), found.advice(), found.write()
        whole = time.perf_counter() - begun
        run.close()
    if found.failed:
        sys.exit(f"the sweep failed: {dict(found.failed)}")
    return whole, sum(spent)


def main(judge: judging.Judge) -> None:
    real = ENGINE.exists()
    spent: list[float] = []
    for owner, name in ((Run, "serve"), (Service, "stop"), (load_programs.Tool, "run")):
        timed(owner, name, spent)
    whole, engine = sweep(real, spent)
    judge.ratio(
        f"bookkeeping of a sweep on {'the real engine' if real else 'stand-ins'}",
        [whole - engine],
        "s",
        most=MOST if real else None,
        peer=("the whole sweep", [whole]),
    )
    if not real:
        judge.not_measured("bookkeeping of a sweep on the real engine", NO_ENGINE)


if __name__ == "__main__":
    sys.exit(judging.judged(main))
