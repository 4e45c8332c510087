"""The commands of README.md, in a clone: each ends well and leaves nothing that git would add."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
# What is left out, and why: the environment is the one of these tests, and nothing is installed.
APART = {
    "make lab": "it serves until it is stopped",
    "make site": "tests/website builds the pages, and the build needs an environment of its own",
    "make test": "it would call itself",
    "make bench": "it takes both cores for minutes",
    "conda env create": "it installs",
    "conda activate": "it needs the environment that conda would make",
    "pip install": "it installs",
}
LONG = ("make run",)


def commands() -> list[str]:
    """Return the lines of the blocks of shell in README.md without their comments."""
    blocks = MarkdownIt().parse((ROOT / "README.md").read_text(encoding="utf-8"))
    shell = [one.content for one in blocks if one.type == "fence" and one.info == "bash"]
    return [line.partition("  #")[0].strip() for text in shell for line in text.splitlines()]


QUICK = [line for line in commands() if not line.startswith((*APART, *LONG))]


@pytest.fixture
def clone(tmp_path):
    """A function that runs a command in a clone with the environment of these tests."""
    if not (ROOT / ".git").exists() or not shutil.which("git") or not shutil.which("make"):
        pytest.skip("no checkout to clone, no git, or no make here")
    here, programs = tmp_path / "kimi_nb", Path(sys.executable).parent
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(here)], check=True)
    # The clone's own package, and not that of the checkout which this environment knows.
    env = {**os.environ, "PYTHONPATH": str(here), "CONDA_PREFIX": str(programs.parent)}

    def run(command: str) -> None:
        command = re.sub(r"(^|\s)\.venv/bin/", rf"\1{programs}/", command)
        command = command.replace("make run", f"make run BIN={programs}", 1)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=here,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, (command, done.stdout + done.stderr)
        status = ["git", "-C", str(here), "status", "--porcelain"]
        left = subprocess.run(status, capture_output=True, text=True, check=True).stdout
        assert left == "", (command, left)

    return run


def test_every_command_is_run_or_says_why_not():
    assert len(QUICK) >= 2
    for beginning in (*APART, *LONG):
        assert any(line.startswith(beginning) for line in commands()), beginning


def test_quick_commands_leave_nothing_that_git_would_add(clone):
    """One after the other: the second takes what the first has written."""
    for command in QUICK:
        clone(command)


@pytest.mark.long
@pytest.mark.parametrize("command", [line for line in commands() if line.startswith(LONG)])
def test_a_run_leaves_nothing_that_git_would_add(clone, command):
    clone(command)
