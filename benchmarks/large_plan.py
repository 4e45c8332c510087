"""Plan and bundle of a large prefill-decode deployment: seconds, and whether they are linear.

    python benchmarks/large_plan.py

256, 512 and 1,024 A3 nodes, half of them prefill groups of one node, half one decode group with
one rank a device. The bundle is written to memory (/dev/shm), which shows what the program costs,
and below the working directory, which shows the disk as well: there the floor is the time to write
files of the same names and sizes with open, write and close (a file took 0.02 ms at one time and
1 ms at another on one disk here). Medians of five in one process; the first, which loads the
parameter files, is told apart.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import yaml

from kimi_nb.bundle import scripts
from kimi_nb.bundle import writer as bundle
from kimi_nb.plan import build

REPEATS = 5


def site(folder: Path, nodes: int) -> Path:
    """A site file with that many nodes (private addresses: nobody's in particular)."""
    path = folder / f"site-{nodes}.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": f"large-{nodes}",
                "hardware": "a3",
                "transport": "ssh",
                "nodes": [
                    {"name": f"n{i}", "address": f"10.1.{i // 250}.{i % 250 + 1}"}
                    for i in range(nodes)
                ],
                "paths": {"cache": "/root/.cache"},
            }
        )
    )
    return path


def floor(files: dict[str, str], folder: Path) -> float:
    """Seconds to write the same files with nothing around it."""
    began = time.perf_counter()
    for name in dict.fromkeys(name.rpartition("/")[0] for name in files):
        os.makedirs(folder / "floor" / name, exist_ok=True)
    for name, text in files.items():
        handle = os.open(f"{folder}/floor/{name}", os.O_WRONLY | os.O_CREAT, 0o755)
        os.write(handle, text.encode())
        os.close(handle)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder / "floor")
    return seconds


def once(path: Path, nodes: int, folder: Path) -> tuple[float, float, int, float]:
    """(seconds to plan, seconds to write, engines, the floor of writing)."""
    began = time.perf_counter()
    plan = build.plan(
        "k2.5",
        "a3",
        "pd",
        site=str(path),
        pairs=[
            f"prefill.groups={nodes // 2}",
            f"decode.nodes={nodes // 2}",
            f"decode.dp={nodes * 8}",
        ],
    )
    planned = time.perf_counter()
    files = scripts.files(plan)
    bundle.write(files, folder / "bundle")
    written = time.perf_counter()
    shutil.rmtree(folder / "bundle")
    return planned - began, written - planned, len(plan.engines), floor(files, folder)


def main() -> None:
    for place in ("/dev/shm", "."):
        if os.path.isdir(place):
            print(f"in {os.path.abspath(place)}:")
            measure(place)


def measure(place: str) -> None:
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        totals = {}
        for nodes in (256, 512, 1024):
            path = site(folder, nodes)
            runs = [once(path, nodes, folder) for _ in range(REPEATS)]
            plan, write, least = (statistics.median(run[i] for run in runs) for i in (0, 1, 3))
            totals[nodes] = statistics.median(run[0] + run[1] for run in runs)
            print(
                f"{nodes:5} nodes, {nodes * 16:6} NPUs, {runs[0][2]:5} engines: "
                f"plan {plan:.2f} s, bundle {write:.2f} s "
                f"(files alone {least:.2f} s), together {totals[nodes]:.2f} s "
                f"(first {sum(runs[0][:2]):.2f} s)"
            )
        print(
            f"twice the nodes take {totals[512] / totals[256]:.2f} and "
            f"{totals[1024] / totals[512]:.2f} times as long (linear: 2.00); 1024 at most 1 s"
        )


if __name__ == "__main__":
    main()
