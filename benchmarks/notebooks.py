"""What ``kimi-nb run`` spends around the kernels, beside plain papermill and nbconvert.

    python benchmarks/notebooks.py

The same notebooks by both, one after the other: those that rehearse nothing, so that no stand-in
counts. The peer is a program that calls ``papermill.execute_notebook`` and nbconvert's HTMLExporter
as their documents do. Judged is the CPU of the program alone; the cells are the same, and so is
what the kernels spend on them, which is shown. Ours also keeps evidence, takes out secrets and
writes the report; it has less to import, and saves a notebook once and not after each cell.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import judging

from kimi_nb.core import paths

NAMES = ("00_start", "01_prerequisites", "02_install", "10_faq")
PARAMETERS = {"model": "k2.5", "hw": "a3"}
MOST = 1.3
REPEATS = 3
OURS = """
from kimi_nb.cli import main
assert main.main(sys.argv[1:]) == 0
"""
PLAIN = """
import papermill
from nbconvert import HTMLExporter
source, target, parameters = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
exporter = HTMLExporter()
for name in sys.argv[4:]:
    executed = target / f"{name}.ipynb"
    papermill.execute_notebook(
        str(source / f"{name}.ipynb"), str(executed), parameters=parameters, cwd=str(source),
        progress_bar=False)
    page, _ = exporter.from_filename(str(executed))
    executed.with_suffix(".html").write_text(page)
"""
FRAME = """
import json, resource, sys
from pathlib import Path
{}
own, kernels = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
Path({!r}).write_text(json.dumps([one.ru_utime + one.ru_stime for one in (own, kernels)]))
"""


def main(judge: judging.Judge) -> None:
    kernels: dict[str, list[float]] = {"ours": [], "plain": []}
    ours, plain = judging.repeated(
        REPEATS,
        lambda: executed(ours_in, kernels["ours"]),
        lambda: executed(plain_in, kernels["plain"]),
    )
    what = f"{len(NAMES)} notebooks"
    peer = "papermill and nbconvert"
    judge.ratio(f"{what}, around the kernels", ours, "s CPU", most=MOST, peer=(peer, plain))
    judge.figure(f"{what}, in the kernels", kernels["ours"], "s CPU", peer=(peer, kernels["plain"]))


def ours_in(folder: Path) -> tuple[str, list[str]]:
    """The runner, into a folder."""
    only = ",".join(name.partition("_")[0] for name in NAMES)
    words = ["--model", PARAMETERS["model"], "--hw", PARAMETERS["hw"], "--only", only]
    return OURS, ["run", *words, "--run-dir", str(folder)]


def plain_in(folder: Path) -> tuple[str, list[str]]:
    """The peer, into a folder."""
    given = json.dumps({**PARAMETERS, "run_dir": str(folder)})
    return PLAIN, [str(paths.root() / "notebooks"), str(folder), given, *NAMES]


def executed(program, kernels: list[float]) -> float:
    """CPU seconds of a program that executes the notebooks; those of its kernels are added to a
    list."""
    with tempfile.TemporaryDirectory() as name:
        folder, spent = Path(name, "run"), Path(name, "spent.json")
        folder.mkdir()
        code, words = program(folder)
        argv = [sys.executable, "-c", FRAME.format(code, str(spent)), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0 or len(list(folder.glob("*_*.html"))) != len(NAMES):
            sys.exit(f"the notebooks were not executed:\n{done.stdout}{done.stderr}")
        own, theirs = json.loads(spent.read_text())
        kernels.append(theirs)
        return own


if __name__ == "__main__":
    sys.exit(judging.judged(main))
