"""Replies of stand-ins are known as such, whatever stands between them and the client."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from testbed import mixed_service
from testbed.mixed_service import MixedService

from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.service import handle, http_client, probe, readiness, reply_mark
from kimi_nb.service.http_client import Reply


@pytest.mark.parametrize(
    ("header", "body", "mark"),
    [
        ("REHEARSAL", "", MARK),
        ("measured", "", ""),  # another program's own header says nothing
        ("", '{"choices": [{"message": {"content": "REHEARSAL: hello"}}]}', MARK),
        ("", '{"choices":[{"message":{"content":"","reasoning":"REHEARSAL thinking"}}]}', MARK),
        ("", '{"choices": [{"text": " and REHEARSAL so it is"}]}', MARK),
        ("", mixed_service.stream("REHEARSAL: hello").decode(), MARK),
        ("", mixed_service.stream("I am Kimi.").decode(), ""),
        ("", '{"choices": [{"message": {"content": "The last REHEARSAL was good."}}]}', ""),
        ("", '{"choices": [{"message": {"content": "REHEARSALS are fine."}}]}', ""),
        ("", '{"error": "REHEARSAL"}', ""),
        ("", "", ""),
    ],
)
def test_the_mark_of_a_reply(header, body, mark):
    assert reply_mark.of(header, body) == mark


def test_the_mark_of_texts():
    assert reply_mark.of_texts(["I am Kimi.", None, 7, "REHEARSAL: hello"]) == MARK
    assert reply_mark.of_texts(["I am Kimi.", None]) == "" == reply_mark.of_texts([])


@pytest.mark.parametrize("kept", [True, False])
def test_a_gateway_that_drops_the_header_hides_nothing(kept):
    body = {"model": "kimi", "messages": [{"role": "user", "content": "Hello"}]}
    with MixedService("engine", "engine", "stand-in", "stand-in", kept=kept) as service:
        chats = f"{service.url}/v1/chat/completions"
        marks = [
            reply.mark
            for _ in range(2)
            for reply in (
                http_client.send("POST", chats, 5.0, json=body),
                http_client.stream(chats, 5.0, json=body | {"stream": True}),
            )
        ]
    assert marks == ["", "", MARK, MARK]


def test_one_stand_in_among_the_engines_marks_the_service(monkeypatch):
    monkeypatch.setattr(
        http_client,
        "send",
        lambda method, url, limits: Reply(200, "{}", 0.1, mark=MARK if "1:3" in url else ""),
    )
    door, engines = "http://127.0.0.1:1", ["http://127.0.0.1:2", "http://127.0.0.1:3"]
    assert probe.mark([door, *engines], 1.0) == MARK
    assert probe.mark([door, engines[0]], 1.0) == ""


def test_a_service_at_a_url_is_asked_at_each_engine_and_once(monkeypatch):
    asked = []

    def mark(urls, seconds):
        asked.append(list(urls))
        return MARK

    monkeypatch.setattr(probe, "mark", mark)
    plan = build.plan("k2.5", "a3", "pd")
    service = handle.Service(SimpleNamespace(), plan, None, plan.url, True)
    assert service.mark == MARK == service.mark
    (urls,) = asked
    assert urls[0] == plan.url and {one.url for one in plan.engines if one.url} <= set(urls)


def test_the_progress_of_a_start_says_who_answers(monkeypatch):
    """The door of real engines, one of whose ranks is a stand-in: the lines after its reply."""
    plan = build.plan("k2.5", "a3", "pd")
    ranks = probe.endpoints(plan)
    stand_in = ranks[-1].url

    def answer(where, *_, **__):
        at = where if isinstance(where, str) else where.url
        body = {"choices": [{"message": {"content": "I am Kimi."}}]}
        return Reply(200, json.dumps(body), 0.1, mark=MARK if at == stand_in else "")

    monkeypatch.setattr(http_client, "listens", lambda *_: True)
    monkeypatch.setattr(probe, "health", lambda url, seconds: Reply(200, "", 0.1))
    monkeypatch.setattr(probe, "chat", answer)
    limits = readiness.Limits(1, 1, 1, 1)
    said: list[str] = []
    watch = readiness.Watch(plan, SimpleNamespace(), dict, limits, say=said.append)
    watch.wait_ready()
    watch.first_answer()
    assert watch.mark == MARK and watch.answer.mark == ""
    assert said == [f"{MARK}: {len(plan.engines)} of {len(plan.engines)} engines ready"]
    stand_in = ""
    real = readiness.Watch(plan, SimpleNamespace(), dict, limits, say=said.append)
    real.wait_ready()
    assert real.mark == "" and not said[-1].startswith(MARK)
    rehearsed = readiness.Watch(plan, SimpleNamespace(), dict, limits, say=said.append, mark=MARK)
    rehearsed.wait_ready()
    assert said[-1].startswith(f"{MARK}: ")
