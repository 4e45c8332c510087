"""Our load client beside the real ``vllm bench serve``: on a stand-in of known steps, on one real engine.

    make engine && python benchmarks/bench_client.py

The engine is vLLM on this machine's CPU with a tiny model, deployed as notebook 03 does. Both
tools send the same load in turns; bounded are our figures over vLLM's, from below and above, of
those that both define alike (`kimi_nb.prove.bench.definitions`). Prompts are not the same ones,
only as long. Figures taken beside other work say little: a range wider than the bounds is a sign
of it.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import judging
from sweep import ENGINE, NO_ENGINE

import kimi_nb
from kimi_nb.plan import build
from kimi_nb.prove.bench import bench_commands, load_programs, workload
from kimi_nb.rehearse import launch, rehearsal

ROUNDS = 5
LEAST, MOST = 0.9, 1.1  # the ratio of two medians
LOAD = {"input_len": 64, "output_len": 64, "prompts": 24}
AT_ONCE = 4
STEP = 0.01  # seconds for each token of the stand-in
FIGURES = {
    **{
        f"{kind}_{name}_ms": (f"{kind} {title}", "ms")
        for name, title in (("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "end to end latency"))
        for kind in ("mean", "p50")
    },
    "output_throughput": ("throughput", "tokens/s"),
    "request_throughput": ("requests", "requests/s"),
}
OTHERWISE = {"mean_ttft_ms": ("mean TTFT, defined otherwise", "ms")}  # shown without a bound


def main(judge: judging.Judge) -> None:
    if not ENGINE.exists():
        judge.not_measured("our load client beside vllm bench", NO_ENGINE)
        return
    known_steps(judge)
    real_engine(judge)


def known_steps(judge: judging.Judge) -> None:
    """On a stand-in engine."""
    plan = build.plan("k2.5", "cpu", "single")
    of = launch.SimulatedSite.of
    launch.SimulatedSite.of = staticmethod(  # type: ignore[method-assign]
        lambda plan: replace(of(plan), seconds_per_token=STEP)
    )
    with (
        tempfile.TemporaryDirectory(prefix="kimi-nb-bench-client-") as folder,
        rehearsal.start(plan, Path(folder)) as live,
    ):
        compare(judge, "steps of 10 ms", plan, live.url)


def real_engine(judge: judging.Judge) -> None:
    """On vLLM with a tiny model."""
    with tempfile.TemporaryDirectory(prefix="kimi-nb-bench-client-") as folder:
        run = kimi_nb.start(
            hw="cpu", model="k2.5", action="deploy", confirm="local", run_dir=folder
        )
        plan = run.plan(run.choose("single"))
        service = run.serve(plan)
        try:
            compare(judge, "real engine", plan, service.url)
        finally:
            service.stop()


def compare(judge: judging.Judge, title: str, plan: Any, url: str) -> None:
    """Both tools in turns on a service."""
    at = bench_commands.target(plan, url)
    load = workload.sweep(AT_ONCE, **LOAD).cells[0]
    found = defaultdict(list)
    for seed in range(1, ROUNDS + 1):
        for name in ("vllm", "kimi_nb")[:: 1 if seed % 2 else -1]:
            tool = load_programs.choose(name, plan, "")
            found[name].append(
                tool.run(load.seeded(seed), at, "", lambda done, failed: None, {})[0]
            )
    for name, (figure, unit) in (FIGURES | OTHERWISE).items():
        theirs, ours = ([run[name] for run in found[tool]] for tool in ("vllm", "kimi_nb"))
        what, peer = f"{figure}, {title}", ("vllm bench serve", theirs)
        if name in OTHERWISE:
            judge.figure(what, ours, unit, peer=peer)
        else:
            judge.ratio(what, ours, unit, least=LEAST, most=MOST, peer=peer)


if __name__ == "__main__":
    sys.exit(judging.judged(main))
