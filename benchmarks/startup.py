"""CPU of ``import kimi_nb`` and wall time of ``kimi-nb plan`` for every documented recipe.

    python benchmarks/startup.py

The floor is an interpreter that imports nothing. Medians of several, each in its own process.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time

from kimi_nb.params import recipes

REPEATS = 7


def cpu(code: str) -> float:
    """Median CPU seconds of a fresh interpreter that runs ``code``."""
    seconds = []
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(seconds)


def wall(args: list[str]) -> float:
    """Median wall seconds of one command."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "kimi_nb.cli.main", *args], check=True, stdout=subprocess.DEVNULL
        )
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main() -> None:
    floor, ours = cpu("pass"), cpu("import kimi_nb")
    print(f"import kimi_nb: {ours:.3f} s CPU (interpreter alone {floor:.3f} s); at most 0.25")
    times = {}
    for row in recipes.listing():
        args = [
            "plan",
            "--model",
            row["model"],
            "--hw",
            row["hardware"],
            "--layout",
            row["layout"],
            "--variant",
            row["variant"],
            "--scenario",
            row["scenario"],
            "--json",
        ]
        times[" ".join(args[2:11:2])] = wall(args)
    slowest = max(times, key=times.__getitem__)
    print(
        f"kimi-nb plan, {len(times)} recipes: median {statistics.median(times.values()):.3f} s, "
        f"slowest {times[slowest]:.3f} s wall ({slowest}); at most 0.8"
    )


if __name__ == "__main__":
    main()
