"""The benchmarks can fail: each is judged, and ends with the judge's exit code. None is run here."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
FILES = sorted(set(FOLDER.glob("*.py")) - {FOLDER / "__main__.py", FOLDER / "judging.py"})
HEAD = "import sys, judging\ndef main(judge):\n"
TAIL = 'if __name__ == "__main__":\n    sys.exit(judging.judged(main))\n'


def python(*words: str | Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def judged(*lines: str) -> tuple[int, list[str]]:
    """(exit code, lines) of a benchmark that says so."""
    code = HEAD + "".join(f"    {line}\n" for line in lines) + TAIL
    done = python("-c", code, PYTHONPATH=f"{FOLDER}:{ROOT}")
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_benchmark_ends_as_the_judge_says(path):
    tree = ast.parse(path.read_text())
    assert ast.unparse(tree.body[-1]) == ast.unparse(ast.parse(TAIL))
    (main,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "main")
    assert [one.arg for one in main.args.args] == ["judge"]
    bounds = [
        call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) in ("judge.figure", "judge.ratio")
        and {"most", "least"} & {word.arg for word in call.keywords}
    ]
    assert bounds, "no bound"
    # A bound says what it is compared with, where only a count has nothing to be compared with.
    words = {word.arg for call in bounds for word in call.keywords}
    assert "peer" in words, "no floor and no peer"


WITHIN = 'judge.figure("planning", [1.0, 3.0, 2.0], "s", most=2.5, peer=("a floor", [0.5]))'
PAST = 'judge.figure("planning", [1.0, 3.0, 2.0], "s", most=1.5, peer=("a floor", [0.5]))'


def test_within_its_bound():
    code, lines = judged(WITHIN)
    assert code == 0
    assert lines[0] == ("planning: 2 s (1 to 3); a floor 0.500 s: 4 times; at most 2.50 s: kept")
    assert lines[1].startswith("bounds: 1 kept (other programs took ")


def test_past_its_bound():
    code, lines = judged(PAST, WITHIN)
    assert code == 1
    assert lines[0].endswith("at most 1.50 s: not kept") and lines[1].endswith(": kept")
    assert lines[2].startswith("bounds: 1 kept, 1 not kept ")


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        ("most=2.0", True),
        ("most=1.9", False),
        ("least=2.0", True),
        ("least=2.1", False),
        ("least=0.8, most=1.25", False),
        ("least=0.8, most=2.5", True),
    ],
)
def test_a_ratio_is_that_of_the_medians(bound, kept):
    code, lines = judged(
        f'judge.ratio("ours", [4.0, 1.0, 9.0], "s", peer=("theirs", [2.0, 8.0, 1.0]), {bound})'
    )
    assert code == (not kept) and lines[0].endswith(": kept" if kept else ": not kept")
    assert "ours: 4 s (1 to 9); theirs 2 s (1 to 8): 2 times; at " in lines[0]


def test_what_is_no_number_keeps_no_bound():
    assert judged('judge.figure("x", [float("nan")], "s", most=1.0)')[0] == 1
    assert judged('judge.ratio("x", [1.0], "s", most=9.0, peer=("y", [0.0]))')[0] == 1


def test_without_a_bound_nothing_is_kept():
    code, lines = judged('judge.figure("x", [1.0], "s")')
    assert (
        code == 1 and lines[0] == "x: 1 s; no bound" and "not kept: there is no bound" in lines[1]
    )


def test_what_cannot_be_measured_is_told_and_hides_no_miss():
    missing = 'judge.not_measured("spacing", "no peer")'
    code, lines = judged(missing, WITHIN)
    assert code == 2 and lines[0] == "spacing: not measured: no peer"
    assert lines[2].startswith("bounds: 1 kept, 1 not measured ")
    assert judged(missing, PAST)[0] == 1


def test_an_error_of_the_program_is_no_bound_kept():
    error = "from kimi_nb.core.errors import KimiError; raise KimiError('no room')"
    code, lines = judged(WITHIN, error)
    assert code == 1 and lines[-1] == "not kept: no room"


def test_all_run_and_the_end_fails(tmp_path):
    """What make bench calls does not stop at the first that fails."""
    for name in ("__main__.py", "judging.py"):
        shutil.copy(FOLDER / name, tmp_path)
    ends = {"a": f"    {PAST}\n", "b": f"    {WITHIN}\n", "c": "    judge.not_measured('x', 'y')\n"}
    for name, line in ends.items():
        (tmp_path / f"{name}.py").write_text(HEAD + line + TAIL)
    path = {"PYTHONPATH": str(ROOT)}
    done = python(tmp_path, **path)
    assert done.returncode == 1 and [f"== {name}" in done.stdout for name in ends] == [True] * 3
    assert done.stdout.splitlines()[-3:] == ["kept: b", "not all measured: c", "not kept: a"]
    assert python(tmp_path, "b", "c", **path).returncode == 0
    (tmp_path / "d.py").write_text("raise SystemExit('gone')")
    assert python(tmp_path, "d", **path).returncode == 1
    wrong = python(tmp_path, "e", **path)
    assert wrong.returncode == 2 and "there are: a, b, c, d" in wrong.stdout


def test_make_bench_runs_them_all():
    done = subprocess.run(
        ["make", "-n", "bench", "BIN=bin"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["bin/python", "benchmarks"]
