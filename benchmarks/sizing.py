"""CPU of ``kimi-nb size`` for 64 and for 1,024 devices, beside one plan and its check.

    python benchmarks/sizing.py

Each in a process of its own. One process uses one core, so that CPU is the time on a quiet machine.
"""

from __future__ import annotations

import sys

import judging

CASES = (
    (64, "a3", 4, 10.0),
    (64, "h200", 8, 10.0),
    (64, "gb200", 16, 10.0),
    (1024, "a3", 64, 60.0),
    (1024, "h200", 128, 60.0),
)
REPEATS = 3
LOAD = ["--input", "16000", "--output", "1000", "--ttft", "2s", "--tpot", "50ms"]


def main(judge: judging.Judge) -> None:
    plan = ["--model", "k2.5", "--hw", "a3", "--layout", "pd"]
    (floor,) = judging.repeated(REPEATS, lambda: cpu("check", *plan))
    peer = ("kimi-nb check of one plan", floor)
    for devices, hardware, nodes, most in CASES:
        words = ["--model", "k2.5", "--hw", hardware, "--nodes", str(nodes), *LOAD]
        (ours,) = judging.repeated(REPEATS, lambda words=words: cpu("size", *words))
        judge.figure(
            f"kimi-nb size, {devices} devices of {hardware}", ours, "s CPU", most=most, peer=peer
        )


def cpu(*words: str) -> float:
    """CPU seconds of a command."""
    return judging.cpu_of([sys.executable, "-m", "kimi_nb", *words])


if __name__ == "__main__":
    sys.exit(judging.judged(main))
