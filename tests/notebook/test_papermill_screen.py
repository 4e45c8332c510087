"""What papermill prints where a person's parameter is wrong: one screen, our message last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCREEN = 40  # lines


@pytest.mark.parametrize(
    "given, last",
    [
        (["hw", "a33"], "ParameterError: hardware 'a33' is not known; did you mean 'a3'?"),
        (["action", "deploy", "-p", "confirm", "x"], "Error: "),
    ],
    ids=["hw", "confirm"],
)
def test_a_person_s_mistake_is_one_screen(given, last, tmp_path):
    places = [str(tmp_path / "out.ipynb"), "-p", "run_dir", str(tmp_path / "run")]
    papermill = [sys.executable, "-m", "papermill", "--no-progress-bar"]
    done = subprocess.run(
        [*papermill, "notebooks/03_single_node.ipynb", *places, "-p", *given],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    lines = done.stderr.rstrip().splitlines()
    assert done.returncode != 0 and len(lines) <= SCREEN, done.stderr
    traceback = max(at for at, line in enumerate(lines) if line.startswith("Exception encountered"))
    told = lines[traceback + 1 :]
    assert last in told[0] and len(told) <= 12, done.stderr
    assert not [line for line in told if line.startswith(("Traceback", "  File"))]
