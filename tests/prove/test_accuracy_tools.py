"""The real lm-eval and AISBench against a service that goes wrong, and against a rehearsal.

`make tools` installs them; without them these tests are skipped, and say so.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from chat_stub import Chat, late, right, serving

import kimi_nb
from kimi_nb.core import evidence
from kimi_nb.core.errors import AccuracyError
from kimi_nb.prove.accuracy import evaluators

SECRET = "stub-key-1"


def needs(name):
    return pytest.mark.skipif(evaluators.find(name) is None, reason=evaluators.reason(name))


@pytest.fixture
def keyed(tmp_path, monkeypatch):
    """A run, and a plan whose service wants a key."""
    monkeypatch.setenv("STUB_KEY", SECRET)
    run = kimi_nb.start(hw="a3", model="k2.5", action="plan", run_dir=str(tmp_path / "run"))
    plan = dataclasses.replace(run.plan(run.choose("single")), secrets={"VLLM_API_KEY": "STUB_KEY"})
    return run, plan


def _nowhere(folder: Path) -> None:
    """The key stands in no file."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@needs("lm-eval")
def test_lm_eval_fails_half_way_and_goes_on(keyed):
    run, plan = keyed
    chat = Chat(late(10, 500, f'{{"error": "boom {SECRET}"}}'.encode()), key=SECRET)
    with serving(chat) as url:
        service = run.serve(plan, url=url)
        with pytest.raises(AccuracyError, match="HTTP 500") as caught:
            run.accuracy(service, run.evaluations("lm-eval"))
        assert "answered: 10 of 24" in str(caught.value) and SECRET not in str(caught.value)
        chat.behave, before = right, len(chat.asked)
        score = run.accuracy(service, run.evaluations("lm-eval"), resume=True)
        assert len(chat.asked) - before == 14
        assert [part.correct for part in score.parts] == [24, 24] and score.samples == 24
        assert len(chat.asked[0]["messages"]) == 5  # two examples as turns, and the question
        assert (
            run.accuracy(service, run.evaluations("lm-eval"), resume=True) == score
            and len(chat.asked) - before == 14
        )
    lines = [line for line in evidence.read(run.folder) if line["stage"] == "accuracy"]
    assert "HTTP 500" in lines[0]["fault"] and lines[0]["answered"] == 10
    assert not run.compare(score).comparable
    _nowhere(run.folder)


@needs("lm-eval")
def test_lm_eval_is_killed_and_goes_on(tmp_path):
    """SIGKILL of the process that holds it: the tool ends too, its answers are kept."""
    chat = Chat(right, seconds=0.4)
    code = (
        "import sys, kimi_nb; r = kimi_nb.start(hw='a3', model='k2.5', run_dir=sys.argv[1]);"
        "service = r.serve(r.plan(r.choose('single')), url=sys.argv[2]);"
        "r.accuracy(service, r.evaluations('lm-eval'))"
    )
    with serving(chat) as url:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "run"), url], stdout=subprocess.DEVNULL
        )
        end = time.monotonic() + 240
        while len(chat.asked) < 9 and time.monotonic() < end:
            time.sleep(0.1)
        below = psutil.Process(child.pid).children(recursive=True)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert below and not psutil.wait_procs(below, timeout=20)[1]
        chat.seconds, before = 0.0, len(chat.asked)
        run = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
        score = run.accuracy(
            run.serve(run.plan(run.choose("single")), url=url),
            run.evaluations("lm-eval"),
            resume=True,
        )
    assert score.parts[0].correct == 24 and 0 < len(chat.asked) - before < 24


@needs("lm-eval")
@pytest.mark.parametrize(
    "body, word",
    [(b"{}", "14 of 24 answers are no completions"), ("", "14 of 24 answers have no content")],
)
def test_lm_eval_counts_what_is_no_answer(body, word, tmp_path):
    run = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    with serving(Chat(late(10, 200, body))) as url:
        service = run.serve(run.plan(run.choose("single")), url=url)
        if body:
            with pytest.raises(AccuracyError, match=word):
                run.accuracy(service, run.evaluations("lm-eval"))
        else:
            score = run.accuracy(service, run.evaluations("lm-eval"))
            assert score.empty == 14 and word in score.notes[0]


def test_a_service_that_is_gone_is_said_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluators, "reason", lambda name: "")
    run = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    with serving(Chat(right)) as url:
        service = run.serve(run.plan(run.choose("single")), url=url)
    with pytest.raises(AccuracyError, match="no connection"):
        run.accuracy(service, run.evaluations("lm-eval"))


@needs("ais-bench")
def test_aisbench_fails_half_way_and_goes_on(keyed):
    run, plan = keyed
    chat = Chat(late(10, 500, b"boom"), key=SECRET)
    with serving(chat) as url:
        service = run.serve(plan, url=url)
        with pytest.raises(AccuracyError, match="requests came to nothing: HTTP 5"):
            run.accuracy(service, run.evaluations("ais-bench"), "ais-bench")
        chat.behave, before = right, len(chat.asked)
        score = run.accuracy(service, run.evaluations("ais-bench"), "ais-bench", resume=True)
        assert 14 <= len(chat.asked) - before <= 17  # a warm-up, and what had failed
    assert score.parts[0].correct == score.samples == 24
    _nowhere(run.folder)
