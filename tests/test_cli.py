"""The command line, as a separate process: output, exit codes, errors of one screen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest


def kimi(*args: str, cwd=None, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kimi_nb.cli.main", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
    )


PLAN = ("plan", "--model", "k2.5", "--hw", "a3", "--layout")


def test_list():
    done = kimi("list", "--json")
    data = json.loads(done.stdout)
    for row in data["recipes"]:
        assert {
            "model",
            "hardware",
            "layout",
            "scenario",
            "variant",
            "documented",
            "source",
        } <= set(row)
    text = kimi("list").stdout
    assert "does not exist" in text and "documented" in text and "container only" in text


def test_plan_json_is_one_document_and_nothing_else(tmp_path):
    done = kimi(*PLAN, "pd", "--json", "--out", str(tmp_path / "b"))
    assert done.returncode == 0 and done.stderr == ""
    data = json.loads(done.stdout)
    written = {
        str(path.relative_to(tmp_path / "b"))
        for path in (tmp_path / "b").rglob("*")
        if path.is_file()
    }
    assert set(data["files"]) == written
    assert done.stdout == kimi(*PLAN, "pd", "--json").stdout


def test_plan_options(tmp_path):
    done = kimi(
        *PLAN,
        "single",
        "--scenario",
        "long-context-low-concurrency",
        "--with",
        "tool-parser",
        "--without",
        "jemalloc",
        "--set",
        "max-num-seqs=2",
        "--engine-version",
        "v0.23.0",
        "--json",
    )
    engine = json.loads(done.stdout)["engines"][0]
    argv = engine["argv"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "16"
    assert argv[argv.index("--max-num-seqs") + 1] == "2"
    assert "--tool-call-parser" in argv and "LD_PRELOAD" not in engine["env"]
    text = kimi(*PLAN, "single", "--explain").stdout
    assert "HCCL_BUFFSIZE" in text and "k2.5-balance-scheduling" in text


def test_out_twice(tmp_path):
    where = str(tmp_path / "b")
    assert "new or changed" in kimi(*PLAN, "pd", "--out", where).stdout
    assert "no change" in kimi(*PLAN, "pd", "--out", where).stdout


@pytest.mark.parametrize(
    "args, wanted",
    [
        ((*PLAN, "triple"), "triple"),
        ((*PLAN, "dp"), "There is:"),
        (("plan", "--model", "k2.5", "--hw", "a3"), "say which one"),
        (("plan", "--model", "k9", "--hw", "a3"), "k2-thinking"),
        ((*PLAN, "pd", "--site", "/none.yaml"), "no such file"),
        ((*PLAN, "pd", "--set", "decode.tp=5"), "attention heads"),
        ((*PLAN, "pd", "--out", "/proc/none/b"), "cannot be written"),
        (("run", "--model", "k2.5", "--hw", "a3", "--only", "99"), "'99'"),
        (("run", "--model", "k2.5", "--hw", "a3", "--only", "04"), "layout dp"),
        (("run", "--model", "k2.6", "--hw", "h200"), "There is:"),
        (("run", "--model", "k2.5", "--hw", "a3", "--jobs", "0"), "--jobs"),
        (("run", "--model", "k2.5", "--hw", "a3", "--run-dir", "/proc/none"), "cannot be written"),
        (("run", "--model", "k2.5", "--hw", "a3", "--site", "/none.yaml"), "no such file"),
        (
            ("run", "--model", "k2.5", "--hw", "a3", "--site", "params/sites/h200.yaml"),
            "has hardware h200",
        ),
        (
            ("up", "--model", "k2.5", "--hw", "a3", "--layout", "pd", "--confirm", "nope"),
            "confirm='a3-example'",
        ),
    ],
)
def test_mistakes(args, wanted):
    done = kimi(*args)
    assert done.returncode == 2
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert len(done.stderr.splitlines()) <= 25


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_says_so(tmp_path, number):
    """Evidence is closed and the exit code says that it was not finished."""
    folder = tmp_path / "run"
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kimi_nb.cli.main",
            "run",
            "--model",
            "k2.5",
            "--hw",
            "a3",
            "--run-dir",
            str(folder),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        # The first page stands: the second notebook is on its way.
        while not (folder / "00_start.html").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in errors
    assert "Traceback" not in errors
    last = json.loads((folder / "evidence.jsonl").read_text().splitlines()[-1])
    assert (last["stage"], last["ok"], last["interrupted"]) == ("end", False, True)


def test_a_reader_that_has_seen_enough():
    done = subprocess.run(
        f"{sys.executable} -m kimi_nb.cli.main list | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "Deployments" and done.stderr == ""


def test_the_start_is_light(tmp_path):
    """What a plan does not need is not imported for it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, kimi_nb, kimi_nb.cli.main as c; "
            "c.main(['plan','--model','k2.5','--hw','a3','--layout','pd','--out',sys.argv[1]]); "
            "heavy = {'pandas', 'matplotlib', 'papermill', 'nbconvert', 'IPython', 'requests'}; "
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)",
            str(tmp_path / "b"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    subprocess.run(["rm", "-rf", str(tmp_path / "b")], check=True)
    assert done.returncode == 0, done.stderr
