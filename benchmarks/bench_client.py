"""Our load client beside the real ``vllm bench serve``, on one real engine.

    make engine && python benchmarks/bench_client.py

The engine is vLLM on this machine's CPU with a tiny model, deployed as notebook 03 does. Both
tools send the same load in turns; figures are medians of the rounds, ratios are ours over vLLM's.
Prompts are not the same ones, only as long. "others" is how much of the machine went to programs
that are not the benchmark's: figures taken beside other work say little.

Exit code 1 when a ratio lies outside of the bounds, 2 where there is no engine.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from rehearsal import others

import kimi_nb
from kimi_nb.bench import load
from kimi_nb.bench import run as runner
from kimi_nb.errors import KimiError

ROUNDS = 3
LEAST, MOST = 0.8, 1.25  # the ratio of two medians on a machine that others may use
CONCURRENCY, TOKENS, PROMPTS = "1,4", (64, 32), 24
FIGURES = {"mean_ttft_ms": "mean TTFT ms", "mean_tpot_ms": "mean TPOT ms",
           "output_throughput": "tokens/s"}


def main() -> int:
    """Print the figures; 1 when a bound is missed."""
    with tempfile.TemporaryDirectory(prefix="kimi-nb-bench-client-") as folder:
        run = kimi_nb.start(hw="cpu", model="k2.5", action="deploy", confirm="local",
                            run_dir=folder)
        plan = run.plan("single")
        service = run.serve(plan)
        try:
            return compare(service, Path(folder))
        finally:
            service.stop()


def compare(service: object, folder: Path) -> int:
    """Both tools in turns on a service; 1 when a bound is missed."""
    loads = load.sweep(CONCURRENCY, input_len=TOKENS[0], output_len=TOKENS[1], prompts=PROMPTS)
    found = {}
    with others() as share:
        for rounds in range(1, ROUNDS + 1):  # what earlier rounds have measured is kept
            for tool in ("vllm", "kimi_nb"):
                found[tool] = runner.measure(service, loads, folder / tool, repetitions=rounds,
                                             tool=tool)
    theirs, ours = (found[tool].summary().set_index("concurrency")
                    for tool in ("vllm", "kimi_nb"))
    missed = 0
    print(f"\n{'concurrency':>11}  {'figure':14} {'vllm bench':>11} {'ours':>11}  ratio")
    for many in theirs.index:
        for name, title in FIGURES.items():
            ratio = ours.loc[many, name] / theirs.loc[many, name]
            missed += not LEAST <= ratio <= MOST
            print(f"{many:11}  {title:14} {theirs.loc[many, name]:11.2f} "
                  f"{ours.loc[many, name]:11.2f}  {ratio:.2f}")
    print(f"medians of {ROUNDS} rounds; others {share[0]:.0%}; bounds {LEAST} to {MOST}: "
          + (f"{missed} missed" if missed else "kept"))
    return 1 if missed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KimiError as error:
        print(f"bench_client: {error}", file=sys.stderr)
        sys.exit(2)
