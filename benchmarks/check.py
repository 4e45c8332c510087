"""How long checking takes: a large plan, and a thousand scripts of other people.

    python benchmarks/check.py

The plan has 256, 512 and 1,024 A3 nodes (9,216 engines); the peer is planning it, in the same
run. The scripts are 1,000 that differ: serve scripts, templates with launch lines and containers
of every recipe; the peer is shellcheck on the same files. Medians of three.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from large_plan import site

from kimi_nb.bundle import scripts
from kimi_nb.check import judge as check
from kimi_nb.params import recipes
from kimi_nb.plan import build

REPEATS = 3


def timed(call) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def plans() -> None:
    with tempfile.TemporaryDirectory() as name:
        seconds = {}
        for nodes in (256, 512, 1024):
            path = site(Path(name), nodes)
            pairs = [
                f"prefill.groups={nodes // 2}",
                f"decode.nodes={nodes // 2}",
                f"decode.dp={nodes * 8}",
            ]
            planned, checked = [], []
            for _ in range(REPEATS):
                began = time.perf_counter()
                plan = build.plan("k2.5", "a3", "pd", site=str(path), pairs=pairs)
                planned.append(time.perf_counter() - began)
                checked.append(timed(lambda plan=plan: check.plan(plan)))
            seconds[nodes] = statistics.median(checked)
            print(
                f"{nodes:5} nodes, {len(plan.engines)} engines: check {seconds[nodes]:.2f} s, "
                f"{seconds[nodes] / statistics.median(planned):.1f} times the planning"
            )
        print(
            f"512 to 1,024 nodes: {seconds[1024] / seconds[512]:.2f} times as long (linear: "
            "2.00); 1,024 at most 2 s"
        )


def write(folder: Path, count: int) -> list[Path]:
    """``count`` different scripts in folders of one node each."""
    kinds = []
    for row in recipes.listing():
        plan = build.plan(
            row["model"],
            row["hardware"],
            row["layout"],
            variant=row["variant"],
            scenario="" if row["scenario"] == "default" else row["scenario"],
        )
        kinds += [
            text for name, text in scripts.files(plan).items() if name.endswith((".sh", ".sbatch"))
        ]
    out = []
    for index in range(count):
        path = folder / f"node{index:04}" / "run.sh"
        path.parent.mkdir()
        path.write_text(kinds[index % len(kinds)].replace("8088", str(10000 + index)))
        out.append(path)
    return out


def linter() -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = write(Path(name), 1000)
        ours = statistics.median(timed(lambda: check.files([name])) for _ in range(REPEATS))
        peer = timed(
            lambda: subprocess.run(
                ["shellcheck", *map(str, paths)], capture_output=True, check=False
            )
        )
        print(
            f"1,000 scripts as one deployment: {ours:.1f} s (at most 20), shellcheck {peer:.1f} "
            f"s: {ours / peer:.2f} times as long"
        )
        each = timed(lambda: [check.files([path]) for path in paths])
        print(f"1,000 scripts one by one: {each:.1f} s")


if __name__ == "__main__":
    plans()
    linter()
