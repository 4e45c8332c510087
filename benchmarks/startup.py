"""CPU of ``import kimi_nb``, of ``kimi-nb list``, and of ``kimi-nb plan`` for the recipes.

    python benchmarks/startup.py [EVERY]

The floor is an interpreter that imports nothing. Each in a process of its own. Every tenth recipe
(or every EVERYth) is planned once, and the slowest of them again and again: the slowest of many
single figures is the one with the most noise in it. The list that is judged finds what an earlier
one has kept; the first one after a change of the project has to derive it.
"""

from __future__ import annotations

import sys

import judging

from kimi_nb.params import recipes

IMPORT, LIST, PLAN = 0.05, 0.5, 0.35  # s CPU
REPEATS = 7
AFTER_A_CHANGE = (
    "from kimi_nb.core import kept_results; kept_results.of = lambda name, make: make();"
    "import sys; sys.argv[1:] = ['list']; from kimi_nb.__main__ import run; sys.exit(run())"
)


def main(judge: judging.Judge) -> None:
    floor, ours = judging.repeated(
        REPEATS,
        lambda: judging.cpu_of([sys.executable, "-c", "pass"]),
        lambda: judging.cpu_of([sys.executable, "-c", "import kimi_nb"]),
    )
    peer = ("an interpreter alone", floor)
    judge.figure("import kimi_nb", ours, "s CPU", most=IMPORT, peer=peer)
    every = recipes.listing()
    rows = every[:: int(sys.argv[1]) if len(sys.argv) > 1 else 10]
    listed, derived = judging.repeated(
        REPEATS,
        lambda: judging.cpu_of([sys.executable, "-m", "kimi_nb", "list"]),
        lambda: judging.cpu_of([sys.executable, "-c", AFTER_A_CHANGE]),
    )
    judge.figure(f"kimi-nb list, {len(every)} rows", listed, "s CPU", most=LIST, peer=peer)
    first = "kimi-nb list, the first after a change"
    judge.figure(first, derived, "s CPU", most=LIST, peer=peer)
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
