"""Plan and bundle of a large prefill-decode deployment: seconds, and whether they are linear.

    python benchmarks/large_plan.py

512 and 1,024 A3 nodes, half of them prefill groups of one node, half one decode group with one
rank a device. The bundle is written to memory (/dev/shm), which shows what the program costs: CPU
seconds, which are its wall seconds on an idle machine. The floor is to write files of the same
names and contents with open, write and close. Linear is 2.00 times as long for twice the nodes,
quadratic 4.00.

Below the working directory the bundle is written once more, in wall seconds: they are the disk's
(a file took 0.02 ms at one time and 1 ms at another on one disk here), and have no bound.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import judging
import yaml

from kimi_nb.bundle import scripts, writer
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

NODES = (512, 1024)
SECONDS, LINEAR = 1.0, 2.5  # s; times for twice the nodes
REPEATS = 5
MEMORY = Path("/dev/shm")


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


def large(path: Path, nodes: int) -> Plan:
    """The plan for such a site."""
    pairs = [f"prefill.groups={nodes // 2}", f"decode.nodes={nodes // 2}", f"decode.dp={nodes * 8}"]
    return build.plan("k2.5", "a3", "pd", site=str(path), pairs=pairs)


def ours(path: Path, nodes: int, folder: Path) -> None:
    """Plan, and write the bundle."""
    writer.write(scripts.files(large(path, nodes)), folder)


def floor(files: dict[str, str], folder: Path) -> None:
    """Write the same files with nothing around it."""
    for name in dict.fromkeys(name.rpartition("/")[0] for name in files):
        os.makedirs(folder / name, exist_ok=True)
    for name, text in files.items():
        handle = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o755)
        os.write(handle, text.encode())
        os.close(handle)


def main(judge: judging.Judge) -> None:
    if MEMORY.is_dir():
        half, whole, least = measured(MEMORY, REPEATS, judging.cpu)
        peer = ("the files alone", least)
        judge.figure(f"{NODES[1]:,} nodes, in {MEMORY}", whole, "s CPU", most=SECONDS, peer=peer)
        peer = (f"{NODES[0]} nodes", half)
        judge.ratio("twice the nodes", whole, "s CPU", most=LINEAR, peer=peer)
    else:
        judge.not_measured("plan and bundle", f"there is no {MEMORY}")
    _, whole, least = measured(Path.cwd(), 1, judging.wall)
    peer = ("the files alone", least)
    judge.figure(f"{NODES[1]:,} nodes, in {Path.cwd()}", whole, "s", peer=peer)


def measured(place: Path, times: int, clock: Callable[..., float]) -> list[list[float]]:
    """Seconds of planning and writing the smaller bundle, the larger one, and the larger one's
    files alone."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        folder = Path(name)
        paths = {nodes: site(folder, nodes) for nodes in NODES}
        files = scripts.files(large(paths[NODES[1]], NODES[1]))

        def timed(call: Callable[..., None], *words: object) -> float:
            seconds = clock(lambda: call(*words, folder / "out"))
            shutil.rmtree(folder / "out")
            return seconds

        return judging.repeated(
            times,
            *(lambda nodes=nodes: timed(ours, paths[nodes], nodes) for nodes in NODES),
            lambda: timed(floor, files),
        )


if __name__ == "__main__":
    sys.exit(judging.judged(main))
