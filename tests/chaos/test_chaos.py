"""The disasters of a seed, what is half-written, and a run of three disasters."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chaos import disasters, wholeness

ROOT = Path(__file__).resolve().parents[2]


def test_a_seed_is_always_the_same():
    assert disasters.plan(3, 100) == disasters.plan(3, 100)
    assert disasters.plan(3, 20) == disasters.plan(3, 100)[:20], "fewer are the first of them"
    assert disasters.plan(3, 100) != disasters.plan(4, 100)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_have_each_command_and_kind(seed):
    found = disasters.plan(seed, 100)
    assert [one.step for one in found] == list(range(1, 101))
    commands = Counter(one.command for one in found)
    assert set(commands) == set(disasters.COMMANDS) and min(commands.values()) > 10
    kinds = Counter(one.kind for one in found)
    assert kinds["kill"] == 45 and kinds["link"] == 12 and min(kinds.values()) > 5
    assert {one.command for one in found if one.kind == "link"} == {"up"}
    assert all(0 <= one.moment < 1 and 0 <= one.dice <= 1 for one in found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"a": 1'),
        ("evidence.jsonl", '{"a": 1}\n{"b"'),
        ("book.ipynb", '{"cells": ['),
        ("book.ipynb", "{}"),
        ("page.html", "<html><body>"),
        ("site.yaml", "a: [1"),
        ("site.yaml", ""),
        ("serve.sh", "vllm ser"),
    ],
)
def test_what_is_half_written_is_found(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    (found,) = wholeness.halves(tmp_path)
    assert found.startswith(f"{name}: ") and wholeness.scratch(tmp_path) == []


def test_what_is_whole_or_says_that_it_is_not_is_no_fault(tmp_path):
    for name, text in {"a.json": "{}", "e.jsonl": '{"a": 1}\n', "x.log": "half a li"}.items():
        (tmp_path / name).write_text(text)
    for name in (".a.json.7.new", "c1.7.tmp", ".claim.00ff00ff00ff00ff"):
        (tmp_path / name).write_text("{")
    (tmp_path / ".k2.5-a3.0123abcd").mkdir()
    (tmp_path / ".k2.5-a3.0123abcd" / "plan.json").write_text("{")
    assert wholeness.halves(tmp_path) == []
    assert len(wholeness.scratch(tmp_path)) == 4


@pytest.mark.long
def test_three_disasters(tmp_path):
    words = [sys.executable, "tests/chaos/run.py", "--only", "12", "13", "15"]
    done = subprocess.run(
        [*words, "--folder", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("rehearse") >= 3 and "again:" not in done.stdout
