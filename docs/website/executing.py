"""Execute the notebooks in rehearsal, with the programs of another environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from website.source_tree import EXAMPLE, ROOT, TRANSLATED

MODEL, HARDWARE = "k2.5", "a3"
# Notebooks that do not apply to these: the hardware on which a document has their layout.
ELSEWHERE = {"04": "a2"}
REPORT, DRILL = "11_report", "12_drills"
# What is drawn by chance otherwise, and what somebody answers.
DRILL_PARAMETERS = {
    "layout": "pd",
    "seed": "24",
    "answer": "a node's docker image has a wrong tag",
}


class Failed(Exception):
    """A notebook has failed; the message ends with what it said."""


def execute(programs: Path, work: Path) -> tuple[Path, Path]:
    """Execute every notebook, in every language.

    Args:
        programs: The ``bin`` of the environment in which the notebooks run.
        work: A folder, written anew.

    Returns:
        The folder of the executed notebooks, with a folder for each other language, and that of
        the run that they belong to.

    Raises:
        Failed: One has failed.
    """
    shutil.rmtree(work, ignore_errors=True)
    executed, runs = work / "executed", work / "run"
    _execute(programs, work, executed, runs, "en")
    for language in TRANSLATED:
        _execute(programs, work / language, executed / language, work / language / "run", language)
    return executed, runs


def _execute(programs: Path, work: Path, executed: Path, runs: Path, language: str) -> None:
    """Execute the notebooks of a language into a folder."""
    executed.mkdir(parents=True)
    _run(programs, runs, HARDWARE, "--jobs", "2", "--language", language)
    for number, hardware in ELSEWHERE.items():
        _run(programs, work / hardware, hardware, "--only", number, "--language", language)
    for folder in (runs, *(work / hardware for hardware in ELSEWHERE.values())):
        for path in folder.glob("[0-9]*.ipynb"):
            shutil.copyfile(path, executed / path.name)
    given = {"language": language, "run_dir": str(runs), "links": f"../{EXAMPLE}"}
    _papermill(programs, executed, REPORT, given)
    drilled = DRILL_PARAMETERS | {"language": language, "run_dir": str(work / "drill")}
    _papermill(programs, executed, DRILL, drilled)


def _run(programs: Path, folder: Path, hardware: str, *options: str) -> None:
    target = ("--model", MODEL, "--hw", hardware, "--run-dir", str(folder))
    _call([str(programs / "kimi-nb"), "run", *target, *options])


def _papermill(programs: Path, executed: Path, name: str, given: dict[str, str]) -> None:
    parameters = [
        word
        for key, value in given.items()
        for word in ("-p" if value.isdecimal() else "-r", key, value)
    ]
    source, target = ROOT / "notebooks" / f"{name}.ipynb", executed / f"{name}.ipynb"
    command = [str(programs / "python"), "-m", "papermill", "--no-progress-bar", "-k", "python3"]
    _call([*command, str(source), str(target), *parameters])


def _call(command: Sequence[str]) -> None:
    print(f"  {' '.join(command[:3])} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
