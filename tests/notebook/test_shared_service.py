"""One rehearsal for the notebooks of a run: who takes it, who does not, and that it ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import kimi_nb
from kimi_nb.core import evidence
from kimi_nb.core.errors import ServiceError
from kimi_nb.notebook import serving, shared_service
from kimi_nb.notebook.run import Run
from kimi_nb.notebook.subject import Subject
from kimi_nb.rehearse import rehearsal, sharing
from kimi_nb.service import http_client


def session(folder: Path) -> Run:
    return Run("k2.5", "a2", "", "rehearse", "", folder, Subject.load("k2.5", "a2"))


def stages(folder: Path) -> list[str]:
    return [one["stage"] for one in evidence.read(folder)]


def test_notebooks_of_a_run_take_one_rehearsal(tmp_path):
    with shared_service.kept(session(tmp_path)):
        run = kimi_nb.start(hw="a2", model="k2.5", action="rehearse", run_dir=str(tmp_path))
        first, second = run.service(), run.serve(run.choose("dp").plan())
        assert first.shared and second.shared and first.url == second.url
        assert first.ready == first.engines > 1 and first.mark == "REHEARSAL"
        assert "several notebooks" in str(first)
        first.stop()
        run.close()
        assert second.up and http_client.listens(second.url, 1.0), "its owner stops it, nobody else"
        another = run.choose("dp", overrides="port=8100").plan()
        assert sharing.take(tmp_path, another) is None
    assert not second.up and not http_client.listens(second.url, 1.0)
    assert not (tmp_path / sharing.FILE).exists()
    assert stages(tmp_path).count("share") == 3 and stages(tmp_path)[-1] == "stop"
    assert stages(tmp_path).count("plan") == stages(tmp_path).count("write") == 1
    (result,) = tmp_path.glob("*/rehearsals/*/rehearsal.json")
    assert json.loads(result.read_text())["ok"] is True


@pytest.mark.parametrize(
    "action, more, asks",
    [
        ("rehearse", {}, True),
        ("rehearse", {"fault": "rank-dies-at-start"}, False),
        ("rehearse", {"url": "http://127.0.0.1:9"}, False),
        ("plan", {}, False),
    ],
)
def test_a_fault_a_plan_and_an_url_want_no_shared_service(
    action, more, asks, tmp_path, monkeypatch
):
    class Started(Exception):
        pass

    def start(*_given, **_more):
        raise Started

    taken = []
    monkeypatch.setattr(sharing, "take", lambda *given: taken.append(given))
    monkeypatch.setattr(serving, "rehearse", start)
    run = kimi_nb.start(hw="a2", model="k2.5", action=action, run_dir=str(tmp_path))
    with contextlib.suppress(Started, ServiceError):  # nobody listens at port 9
        run.service(**more)
    assert bool(taken) == asks


def test_a_run_that_ends_early_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), shared_service.kept(session(tmp_path)):
        raise KeyboardInterrupt
    assert not (tmp_path / sharing.FILE).exists()
    assert not list(tmp_path.glob("*/rehearsals/*/spawner.sock"))


def test_what_does_not_start_is_left_to_each_notebook(tmp_path, monkeypatch):
    def start(*_given, **_more):
        raise rehearsal.RehearsalError("no room")

    monkeypatch.setattr(rehearsal, "start", start)
    with shared_service.kept(session(tmp_path)):
        assert sharing.take(tmp_path, session(tmp_path).choose("dp").plan()) is None
    assert stages(tmp_path) == []


def test_what_a_killed_owner_leaves_is_not_taken(tmp_path):
    plan = session(tmp_path).choose("dp").plan()
    code = (
        "import os, signal, sys; from pathlib import Path; from kimi_nb.rehearse import sharing\n"
        "with sharing.offer(Path(sys.argv[1])) as offer:\n"
        "    offer._write(state='up', hash='x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / sharing.FILE).is_file() and sharing.take(tmp_path, plan) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": "up"}', '{"state": 3, "hash": []}'])
def test_an_offer_that_makes_no_sense_is_none(text, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "_WAIT", 0.3)
    plan = session(tmp_path).choose("dp").plan()
    with sharing.offer(tmp_path) as offer:
        offer.path.write_text(text)
        assert sharing.take(tmp_path, plan) is None
