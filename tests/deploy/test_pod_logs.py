"""Copies of the logs of pods, as kubectl prints them."""

from __future__ import annotations

import os

import pytest

from kimi_nb.deploy import log_copies
from kimi_nb.deploy.kubernetes import kubectl, pod_logs
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd", site="a3-kubernetes")
POD = "kimi-decode-0"


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Returns the copies as a new process reads them, while the pod says a line."""
    program = tmp_path / "kubectl"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def says(line: str) -> pod_logs.PodLogs:
        program.write_text(f"#!/bin/sh\necho '[pod/{POD}/engine] 2026-01-01T00:00:00Z {line}'\n")
        program.chmod(0o755)
        names = pod_logs.name_of(PLAN, "kimi-router", "kimi-weights")
        return pod_logs.PodLogs(PLAN, tmp_path / "run", kubectl.Kubectl("c", "n"), "a=b", 9, names)

    return says


def crowded(folder) -> None:
    """As many copies of earlier logs as are kept."""
    folder.mkdir(parents=True)
    for at in range(1, log_copies.MOST + 1):
        (folder / f"engines.{at}.before").write_text(f"{at}\n")


def test_a_pod_that_is_replaced_without_end_is_named(logs, tmp_path):
    folder = tmp_path / "run" / "logs" / POD
    crowded(folder)
    first = logs("one")
    first.read(now=True)
    assert first.strange == {}
    again = logs("two")
    again.read(now=True)
    assert list(again.strange) == [POD] and "begun anew" in again.strange[POD]
    assert len(list(folder.glob("*.before"))) == log_copies.MOST
    # What the pod says now is what a diagnosis needs.
    assert (folder / "engines.log").read_text() == "two\n"
    assert (folder / "engines.1.before").read_text() == "1\n"


def test_a_start_makes_way_even_where_no_copy_has_room(logs, tmp_path):
    folder = tmp_path / "run" / "logs" / POD
    made = logs("one")
    made.read(now=True)
    made.begin()
    assert (folder / "engines.1.before").read_text() == "one\n"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    crowded(folder)
    (folder / "engines.log").write_text("old\n")
    made.begin()
    assert len(list(folder.iterdir())) == log_copies.MOST
    assert not (folder / "engines.log").exists()
