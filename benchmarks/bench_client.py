"""Our load client beside the real ``vllm bench serve``, on one real engine.

    make engine && python benchmarks/bench_client.py

The engine is vLLM on this machine's CPU with a tiny model, deployed as notebook 03 does. Both
tools send the same load in turns; bounded are our figures over vLLM's, from below and above. Prompts
are not the same ones, only as long. Figures taken beside other work say little: a range wider than
the bounds is a sign of it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import judging
from sweep import ENGINE, NO_ENGINE

import kimi_nb
from kimi_nb.prove.bench import measurements as runner
from kimi_nb.prove.bench import workload

ROUNDS = 3
LEAST, MOST = 0.8, 1.25  # the ratio of two medians on a machine that others may use
CONCURRENCY, TOKENS, PROMPTS = "1,4", (64, 32), 24
FIGURES = {
    "mean_ttft_ms": ("mean TTFT", "ms"),
    "mean_tpot_ms": ("mean TPOT", "ms"),
    "output_throughput": ("throughput", "tokens/s"),
}


def main(judge: judging.Judge) -> None:
    if not ENGINE.exists():
        judge.not_measured("our load client on the real engine", NO_ENGINE)
        return
    with tempfile.TemporaryDirectory(prefix="kimi-nb-bench-client-") as folder:
        run = kimi_nb.start(
            hw="cpu", model="k2.5", action="deploy", confirm="local", run_dir=folder
        )
        plan = run.plan(run.choose("single"))
        service = run.serve(plan)
        try:
            compare(judge, service, Path(folder))
        finally:
            service.stop()


def compare(judge: judging.Judge, service: Any, folder: Path) -> None:
    """Both tools in turns on a service."""
    loads = workload.sweep(CONCURRENCY, input_len=TOKENS[0], output_len=TOKENS[1], prompts=PROMPTS)
    found = {}
    for rounds in range(1, ROUNDS + 1):  # what earlier rounds have measured is kept
        for tool in ("vllm", "kimi_nb"):
            found[tool] = runner.measure(
                service, loads, folder / tool, repetitions=rounds, tool=tool
            ).frame
    for many in (one.concurrency for one in loads.cells):
        for name, (title, unit) in FIGURES.items():
            theirs, ours = (
                found[tool].query(f"concurrency == {many}")[name] for tool in ("vllm", "kimi_nb")
            )
            judge.ratio(
                f"{title}, {many} at once",
                list(ours),
                unit,
                least=LEAST,
                most=MOST,
                peer=("vllm bench serve", list(theirs)),
            )


if __name__ == "__main__":
    sys.exit(judging.judged(main))
