"""The path of somebody new: from a clone to the report of a rehearsed A3 service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pages import check_page

from kimi_nb import report
from kimi_nb.bundle import scripts
from kimi_nb.notebook import runbook
from kimi_nb.plan import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_from_clone_to_report_in_two_commands(tmp_path):
    """Timed, and the time printed (pytest -s). The environment is the one of these tests (BIN):
    to build it takes minutes, and says more about a network than about this project."""
    if not (ROOT / ".git").exists() or not shutil.which("git") or not shutil.which("make"):
        pytest.skip("no checkout to clone, no git, or no make here")
    here = tmp_path / "kimi_nb"
    cloned = subprocess.run(
        ["git", "clone", "--quiet", str(ROOT), str(here)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert cloned.returncode == 0, cloned.stderr
    # The clone's own package, and not that of the checkout which this environment knows.
    env = {**os.environ, "PYTHONPATH": str(here)}
    commands = (
        ["make", "run", f"BIN={Path(sys.executable).parent}", "JOBS=2"],
        [str(Path(sys.executable).parent / "kimi-nb"), "report"],
    )
    begun, said = time.monotonic(), ""
    for command in commands:
        done = subprocess.run(
            command, cwd=here, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = done.stdout
    print(f"from clone to report: {time.monotonic() - begun:.1f} s, {len(commands)} commands")
    pages = list(here.glob("runs/*-k2.5-a3/report.html"))
    assert len(pages) == 1 and str(pages[0]) in said
    assert "36 of 36 engines ready" in check_page(pages[0])
    found = report.collect(pages[0].parent)
    assert found.verdict.status == "ok" and found.verdict.mark == "REHEARSAL"
    assert {one.status for one in found.notebooks} == {"ok"}
    assert [one.name for one in found.notebooks] == runbook.which("k2.5", "a3")
    changed = subprocess.run(
        ["git", "-C", str(here), "status", "--porcelain"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert changed.stdout == "", "a run leaves the checkout as it was"


def test_one_file_is_all_there_is_to_edit(site_file):
    """A site file of one's own, and nothing of the example is left in any script."""
    changes = [
        ("a3-example", "my-cluster"),
        ("enp67s0f5", "eth9"),
        ("user: root", "user: me"),
        ("/root/.cache", "/data/cache"),
        ("/root/kimi", "/data/kimi"),
    ]
    changes += [
        (
            f"{{name: a3-{at}, address: 192.0.2.1{at + 1}}}",
            f"{{name: box{at}, address: 198.51.100.{at + 1}}}",
        )
        for at in range(4)
    ]
    mine = site_file(*changes)
    plan = build.plan("k2.5", "a3", "pd", site=mine)
    assert plan.site == "my-cluster" and plan.nodes == tuple(f"box{at}" for at in range(4))
    # plan.json quotes what documents say, with their addresses.
    text = "\n".join(text for name, text in scripts.files(plan).items() if name != "plan.json")
    for old in (
        "192.0.2.11",
        "192.0.2.12",
        "192.0.2.13",
        "192.0.2.14",
        "a3-example",
        "enp67s0f5",
        "a3-0",
        "/root/kimi",
    ):
        assert old not in text, old
    for new in ("198.51.100.4", "eth9", "box3", "/data/cache"):
        assert new in text, new
