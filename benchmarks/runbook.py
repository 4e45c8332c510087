"""What the whole runbook costs: each notebook of K2.5 on A3, rehearsed, and its report.

    python benchmarks/runbook.py

``kimi-nb run`` with two notebooks at a time, as ``make run`` calls it. Its wall seconds are judged
where the machine has two cores and little else to do. Its CPU seconds, with those of kernels and
stand-ins, are judged everywhere, beside as many empty notebooks executed by plain papermill. So are
notebooks 00 to 05 alone, which with action plan start nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import judging
import nbformat
import psutil

from kimi_nb.core import paths
from kimi_nb.notebook import runbook

SECONDS = 30.0  # on two idle cores
TIMES, PLANNED = 8.5, 2.3  # the CPU of as many empty notebooks
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
    ours, empty = judging.repeated(
        REPEATS, lambda: executed(PLANNING, given), lambda: executed(PLANNING, {})
    )
    peer = (f"{len(PLANNING)} empty ones", empty)
    judge.ratio("notebooks 00 to 05, planned", ours, "s CPU", most=PLANNED, peer=peer)


def rehearsed(whole: list[float]) -> float:
    """CPU seconds of the whole run; its wall seconds are added to a list."""
    words = ["run", "--model", "k2.5", "--hw", "a3", "--jobs", "2", "--run-dir"]
    spent: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "kimi_nb", *words, f"{folder}/run"]
        whole.append(judging.wall(lambda: spent.append(judging.cpu_of(argv))))
    return spent[0]


def executed(names: list[str] | tuple[str, ...], given: dict[str, str]) -> float:
    """CPU seconds of papermill on notebooks; on as many empty ones without parameters."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        blank = folder / "blank.ipynb"
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("None")])
        book.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
        nbformat.write(book, blank)
        more = {**given, "run_dir": str(folder / "run")} if given else {}
        work = [
            (
                str(paths.root() / "notebooks" / f"{one}.ipynb" if given else blank),
                f"{one}.ipynb",
                more,
            )
            for one in names
        ]
        work = [(source, str(folder / target), more) for source, target, more in work]
        return judging.cpu_of([sys.executable, "-c", PAPERMILL, json.dumps(work)])


if __name__ == "__main__":
    sys.exit(judging.judged(main))
