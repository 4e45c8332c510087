"""What the whole runbook costs: each notebook of K2.5 on A3, rehearsed, and its report.

    python benchmarks/runbook.py

``kimi-nb run`` with two notebooks at a time, as ``make run`` calls it. Its wall seconds are judged
where the machine has two cores and little else to do. Its CPU seconds, with those of kernels and
stand-ins, are judged everywhere, beside as many empty notebooks executed by plain papermill. So are
notebooks 00 to 05 alone, which with action plan start nothing: as a person runs them, each by a
command ``papermill`` of its own, and all in one process, where only kernels and cells count.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import judging
import nbformat
import psutil

from kimi_nb.core import paths
from kimi_nb.notebook import runbook

SECONDS = 30.0  # on two idle cores
TIMES, PLANNED, TOGETHER = 8.5, 1.3, 2.0  # the CPU of as many empty notebooks
REPEATS = 3
PLANNING = ("00_start", "01_prerequisites", "02_install", "03_single_node", "05_pd")
BUSY = 10.0  # percent of the machine that other programs may take
PAPERMILL = """
import json, sys
import papermill
for source, target, given in json.loads(sys.argv[1]):
    papermill.execute_notebook(source, target, parameters=given, progress_bar=False, cwd=".")
"""


def main(judge: judging.Judge) -> None:
    names = [*runbook.which("k2.5", "a3"), "11_report"]
    whole: list[float] = []
    ours, empty = judging.repeated(REPEATS, lambda: rehearsed(whole), lambda: executed(names, {}))
    what = f"{len(names)} notebooks"
    if (os.cpu_count() or 1) < 2 or psutil.cpu_percent(3.0) > BUSY:
        judge.not_measured(f"{what}, rehearsed, wall", "it wants two idle cores")
        judge.figure(f"{what}, rehearsed, wall, beside other programs", whole, "s")
    else:
        judge.figure(f"{what}, rehearsed, wall", whole, "s", most=SECONDS)
    peer = (f"{len(names)} empty ones", empty)
    judge.ratio(f"{what}, rehearsed", ours, "s CPU", most=TIMES, peer=peer)
    given = {"action": "plan", "hw": "a3", "model": "k2.5"}
    peer_name = f"{len(PLANNING)} empty ones"
    for what, most, spent in (
        ("notebooks 00 to 05, planned, a command each", PLANNED, commanded),
        ("notebooks 00 to 05, planned, in one process", TOGETHER, executed),
    ):
        ours, empty = judging.repeated(
            REPEATS, lambda do=spent: do(PLANNING, given), lambda do=spent: do(PLANNING, {})
        )
        judge.ratio(what, ours, "s CPU", most=most, peer=(peer_name, empty))


def rehearsed(whole: list[float]) -> float:
    """CPU seconds of the whole run; its wall seconds are added to a list."""
    words = ["run", "--model", "k2.5", "--hw", "a3", "--jobs", "2", "--run-dir"]
    spent: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "kimi_nb", *words, f"{folder}/run"]
        whole.append(judging.wall(lambda: spent.append(judging.cpu_of(argv))))
    return spent[0]


def executed(names: Sequence[str], given: dict[str, str]) -> float:
    """CPU seconds of papermill on notebooks; on as many empty ones without parameters."""
    with tempfile.TemporaryDirectory() as folder:
        work = json.dumps(_work(names, given, Path(folder)))
        return judging.cpu_of([sys.executable, "-c", PAPERMILL, work])


def commanded(names: Sequence[str], given: dict[str, str]) -> float:
    """The same, with a command ``papermill`` for each of them."""
    with tempfile.TemporaryDirectory() as folder:
        return sum(
            judging.cpu_of(
                [
                    str(Path(sys.executable).with_name("papermill")),
                    "--no-progress-bar",
                    *(source, target),
                    *(word for pair in more.items() for word in ("-p", *pair)),
                ]
            )
            for source, target, more in _work(names, given, Path(folder))
        )


def _work(
    names: Sequence[str], given: dict[str, str], folder: Path
) -> list[tuple[str, str, dict[str, str]]]:
    """Source, target and parameters of each notebook; an empty source without parameters."""
    blank = folder / "blank.ipynb"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("None")])
    book.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
    nbformat.write(book, blank)
    more = {**given, "run_dir": str(folder / "run")} if given else {}
    return [
        (
            str(paths.root() / "notebooks" / f"{one}.ipynb" if given else blank),
            str(folder / f"{one}.ipynb"),
            more,
        )
        for one in names
    ]


if __name__ == "__main__":
    sys.exit(judging.judged(main))
