"""The disasters of a seed, what is half-written, and a run of three disasters."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections import Counter
from pathlib import Path

import psutil
import pytest

from chaos import disasters, links, scene, wholeness
from kimi_nb.core import scratch

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
    assert Counter((one.command, one.kind) for one in found) == {
        (command, kind): number
        for kind, numbers in disasters.DECK.items()
        for command, number in zip(disasters.COMMANDS, numbers, strict=True)
        if number
    }
    kinds = Counter(one.kind for one in found)
    assert kinds["kill"] == 44 and kinds["link"] == 12 and min(kinds.values()) > 5
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


def test_what_a_killed_writer_left_goes_hours_later(tmp_path):
    """Also where its number is that of another process: each scene counts from 1."""
    left = tmp_path / f".a.json.{os.getppid()}.new"
    left.write_text("{")
    scratch.beside(tmp_path / "a.json")
    assert wholeness.scratch(tmp_path) == [left.name]
    wholeness.forget(tmp_path)
    scratch.beside(tmp_path / "a.json")
    assert wholeness.scratch(tmp_path) == []


def test_progress_is_no_word_for_the_person():
    progress = "  1.4 s  reach: reach every node\n 11.9 s  claim: take the nodes"
    assert scene.last_words(progress) == ""
    assert scene.last_words(f"result  failed\nlogs    /x\n{progress}\n") == "logs    /x"


def test_an_engine_is_known_by_the_port_that_it_listens_on():
    with socket.create_server(("127.0.0.1", 0)):
        assert scene.listens(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as other:
        assert not scene.listens(other.pid)
        other.kill()


@pytest.mark.parametrize(
    ("lacking", "what", "how"),
    [
        ((), "slow", "tc netem"),
        ((), "lossy", "tc netem"),
        (("netem",), "slow", "tc tbf"),
        (("netem",), "lossy", "iptables"),
        (("netem", "tbf"), "slow", ""),
        (("netem", "iptables"), "lossy", ""),
        (("netem", "tbf", "iptables"), "gone", "ip link"),
    ],
)
def test_a_link_is_spoilt_with_what_the_kernel_has(lacking, what, how, monkeypatch):
    done = []

    def run(argv, **_options):
        code = int(any(word in lacking for word in argv))
        done.append((argv, code))
        return subprocess.CompletedProcess(argv, code, "", "Specified qdisc kind is unknown.")

    monkeypatch.setattr(links.subprocess, "run", run)
    link = links.Link(types.SimpleNamespace(netns="h1", number=1), "bridge")
    if not how:
        with pytest.raises(RuntimeError):
            link.spoil(what)
    else:
        link.spoil(what)
        assert link.how == how
        made = sum(code == 0 for _, code in done)
        link.mend()
        assert len(done) - made - sum(code for _, code in done) == made, "each is undone"


def steps(command: str, *kinds: str) -> list[str]:
    """The first disaster of each kind for a command, as `run.py --only` takes them."""
    found = {one.kind: str(one.step) for one in reversed(disasters.plan(1, 100))
             if one.command == command}  # fmt: skip
    return [found[kind] for kind in kinds]


@pytest.mark.long
def test_three_disasters(tmp_path):
    only = steps("rehearse", "kill", "full output", "full disk")
    words = [sys.executable, "tests/chaos/run.py", "--only", *only]
    done = subprocess.run(
        [*words, "--folder", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "again:" not in done.stdout
    there = [line for line in done.stdout.splitlines() if " rehearse: " in line]
    assert len(there) == 3 - ("disks need root" in done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_makes_disasters_takes_its_scenes_with_it(number, tmp_path):
    words = [sys.executable, "tests/chaos/run.py", "--only", *steps("rehearse", "kill")]
    program = subprocess.Popen([*words, "--folder", str(tmp_path)], cwd=ROOT, text=True)
    end = time.monotonic() + 60
    while len(mine := running(tmp_path)) < 4 and time.monotonic() < end:
        time.sleep(0.1)
    assert len(mine) >= 4, "the program, its scene, and a command with what that has started"
    program.send_signal(number)
    assert program.wait(30) == (130 if number == signal.SIGTERM else -number)
    while (left := running(tmp_path)) and time.monotonic() < end + 30:
        time.sleep(0.1)
    assert not left


def running(folder: Path) -> list[str]:
    """The command lines that name a folder, of processes in any namespace."""
    lines = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in (line := " ".join(one.cmdline())):
                lines.append(line)
    return lines
