"""How long checking takes: a large plan, and a thousand scripts of other people.

    python benchmarks/check.py

The plan has 512 and 1,024 A3 nodes (9,216 engines); the peer is planning it. Linear is 2.00 times
as long for twice the nodes, quadratic 4.00. The scripts are 1,000 that differ: serve scripts,
templates with launch lines and containers of every recipe; the peer is shellcheck on the same
files. Seconds are of the CPU: the wall seconds of an idle machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import judging
from large_plan import large, site

from kimi_nb.bundle import scripts
from kimi_nb.check import judge as checks
from kimi_nb.params import recipes
from kimi_nb.plan import build

NODES = (512, 1024)
LARGE, LINEAR, SCRIPTS = 2.0, 2.5, 6.0  # s; times for twice the nodes; s
COUNT = 1000
MANY, LINEAR_SCRIPTS = 5000, 6.0  # scripts; times as long as for a fifth of them (linear is 5)
REPEATS = 5


def main(judge: judging.Judge) -> None:
    plans(judge)
    files(judge)


def plans(judge: judging.Judge) -> None:
    """Plans of many nodes."""
    with tempfile.TemporaryDirectory() as name:
        paths = {nodes: site(Path(name), nodes) for nodes in NODES}
        plans = {nodes: large(path, nodes) for nodes, path in paths.items()}
        half, whole, planned = judging.repeated(
            REPEATS,
            *(lambda plan=plan: judging.cpu(lambda: checks.plan(plan)) for plan in plans.values()),
            lambda: judging.cpu(lambda: large(paths[NODES[1]], NODES[1])),
        )
    judge.figure(
        f"check of a plan, {NODES[1]:,} nodes, {len(plans[NODES[1]].engines):,} engines",
        whole,
        "s CPU",
        most=LARGE,
        peer=("planning it", planned),
    )
    judge.ratio(
        "check of twice the nodes", whole, "s CPU", most=LINEAR, peer=(f"{NODES[0]} nodes", half)
    )


def files(judge: judging.Judge) -> None:
    """Scripts of other people."""
    with tempfile.TemporaryDirectory() as name:
        paths = write(Path(name), COUNT)
        (ours,) = judging.repeated(REPEATS, lambda: judging.cpu(lambda: checks.files([name])))
        linter, peer = judging.executable("shellcheck"), None
        if linter:  # once, as it takes minutes; it looks for everything, and there are no errors
            argv = [linter, "--severity=error", *map(str, paths)]
            peer = ("shellcheck", [judging.cpu_of(argv)])
        judge.figure(
            f"check of {COUNT:,} scripts as one deployment", ours, "s CPU", most=SCRIPTS, peer=peer
        )
        with tempfile.TemporaryDirectory() as other:
            write(Path(other), MANY)
            many = judging.cpu(lambda: checks.files([other]))
        judge.ratio(
            f"check of {MANY:,} scripts",
            [many],
            "s CPU",
            most=LINEAR_SCRIPTS,
            peer=(f"{COUNT:,} of them", ours),
        )
        each = judging.cpu(lambda: [checks.files([path]) for path in paths])
        judge.figure(f"check of {COUNT:,} scripts one by one", [each], "s CPU")


def write(folder: Path, count: int) -> list[Path]:
    """``count`` different scripts in folders of one node each."""
    kinds: dict[str, None] = {}  # each once: recipes share node.sh, the largest of them
    for row in recipes.listing():
        plan = build.plan(
            row["model"],
            row["hardware"],
            row["layout"],
            variant=row["variant"],
            scenario="" if row["scenario"] == "default" else row["scenario"],
        )
        kinds |= dict.fromkeys(
            text for name, text in scripts.files(plan).items() if name.endswith((".sh", ".sbatch"))
        )
    texts, out = list(kinds), []
    for index in range(count):
        path = folder / f"node{index:04}" / "run.sh"
        path.parent.mkdir()
        text = texts[index % len(texts)].replace("8088", str(10000 + index))
        path.write_text(f"{text}\n# node {index}\n")
        out.append(path)
    return out


if __name__ == "__main__":
    sys.exit(judging.judged(main))
