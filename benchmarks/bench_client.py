"""Our load client beside the real ``vllm bench serve``, on one real engine.

    make engine && python benchmarks/bench_client.py

The engine is vLLM on this machine's CPU with a tiny model, deployed as notebook 03 does. Both
tools send the same load in turns; figures are medians of the rounds with their range, ratios are
ours over vLLM's. Prompts are not the same ones, only as long. Figures taken beside other work say
little: a range wider than the bounds is a sign of it.

Exit code 1 when a ratio lies outside of the bounds, 2 where there is no engine.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import kimi_nb
from kimi_nb.core.errors import KimiError
from kimi_nb.prove.bench import measurements as runner
from kimi_nb.prove.bench import workload as load

ROUNDS = 3
LEAST, MOST = 0.8, 1.25  # the ratio of two medians on a machine that others may use
CONCURRENCY, TOKENS, PROMPTS = "1,4", (64, 32), 24
FIGURES = {
    "mean_ttft_ms": "mean TTFT ms",
    "mean_tpot_ms": "mean TPOT ms",
    "output_throughput": "tokens/s",
}


def main() -> int:
    """Print the figures; 1 when a bound is missed."""
    with tempfile.TemporaryDirectory(prefix="kimi-nb-bench-client-") as folder:
        run = kimi_nb.start(
            hw="cpu", model="k2.5", action="deploy", confirm="local", run_dir=folder
        )
        plan = run.plan("single")
        service = run.serve(plan)
        try:
            return compare(service, Path(folder))
        finally:
            service.stop()


def compare(service: Any, folder: Path) -> int:
    """Both tools in turns on a service; 1 when a bound is missed."""
    loads = load.sweep(CONCURRENCY, input_len=TOKENS[0], output_len=TOKENS[1], prompts=PROMPTS)
    found = {}
    for rounds in range(1, ROUNDS + 1):  # what earlier rounds have measured is kept
        for tool in ("vllm", "kimi_nb"):
            found[tool] = runner.measure(
                service, loads, folder / tool, repetitions=rounds, tool=tool
            ).frame
    missed = 0
    print(f"\n{'concurrency':>11}  {'figure':12} {'vllm bench':>24} {'ours':>24}  ratio")
    for many in (one.concurrency for one in loads.cells):
        for name, title in FIGURES.items():
            theirs, ours = (
                found[tool].query(f"concurrency == {many}")[name] for tool in ("vllm", "kimi_nb")
            )
            ratio = ours.median() / theirs.median()
            missed += not LEAST <= ratio <= MOST
            print(f"{many:11}  {title:12} {told(theirs):>24} {told(ours):>24}  {ratio:.2f}")
    print(
        f"medians of {ROUNDS} rounds; bounds {LEAST} to {MOST}: "
        + (f"{missed} missed" if missed else "kept")
    )
    return 1 if missed else 0


def told(values: Any) -> str:
    """median (least to largest)"""
    return f"{values.median():.1f} ({values.min():.1f} to {values.max():.1f})"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KimiError as error:
        print(f"bench_client: {error}", file=sys.stderr)
        sys.exit(2)
