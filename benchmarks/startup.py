"""CPU of ``import kimi_nb``, and of ``kimi-nb plan`` for every documented recipe.

    python benchmarks/startup.py

The floor is an interpreter that imports nothing. Each in a process of its own. Every recipe is
planned once, and the slowest of them again and again: the slowest of many single figures is the one
with the most noise in it.
"""

from __future__ import annotations

import sys

import judging

from kimi_nb.params import recipes

IMPORT, PLAN = 0.05, 0.35  # s CPU
REPEATS = 7


def main(judge: judging.Judge) -> None:
    floor, ours = judging.repeated(
        REPEATS,
        lambda: judging.cpu_of([sys.executable, "-c", "pass"]),
        lambda: judging.cpu_of([sys.executable, "-c", "import kimi_nb"]),
    )
    peer = ("an interpreter alone", floor)
    judge.figure("import kimi_nb", ours, "s CPU", most=IMPORT, peer=peer)
    rows = recipes.listing()
    once = [plan(row) for row in rows]
    slowest = rows[once.index(max(once))]
    judge.figure(f"kimi-nb plan, each of {len(rows)} recipes", once, "s CPU")
    (again,) = judging.repeated(REPEATS, lambda: plan(slowest))
    name = "-".join(slowest[key] for key in ("model", "hardware", "layout", "variant", "scenario"))
    judge.figure(f"kimi-nb plan, the slowest ({name})", again, "s CPU", most=PLAN, peer=peer)


def plan(row: dict[str, str]) -> float:
    """CPU seconds of planning a recipe."""
    words = ["-m", "kimi_nb", "plan", "--json", "--model", row["model"]]
    words += ["--hw", row["hardware"], "--layout", row["layout"]]
    words += ["--variant", row["variant"], "--scenario", row["scenario"]]
    return judging.cpu_of([sys.executable, *words])


if __name__ == "__main__":
    sys.exit(judging.judged(main))
