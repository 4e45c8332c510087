"""What stands for vllm-ascend's example proxy does what that program was recorded to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re

import pytest
from testbed import door_scenes
from testbed.silent_logs import SilentLogs

from kimi_nb.bundle import scripts
from kimi_nb.check import judge
from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.host_programs import upstream_proxy
from kimi_nb.rehearse.host_programs.engine_client import EngineClient
from kimi_nb.rehearse.stand_in_call import Refused
from kimi_nb.service import http_client, probe
from kimi_nb.service.readiness import Found, Watch

RECORDED = json.loads(door_scenes.RECORDING.read_text(encoding="utf-8"))
SCENES = [
    (scene, tag)
    for scene in RECORDED["scenes"]
    for one in scene["came"]
    # How long an idle connection is kept takes seconds to see, and is alike in all.
    for tag in (one["tags"] if scene["name"] != "an idle connection" else one["tags"][:1])
]
ROUTED = ("router=vllm-router",)
# As the spawner does: forked from a process that has imported everything.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([upstream_proxy.__name__])


def door_of(tag):
    @contextlib.contextmanager
    def door(words):
        given = upstream_proxy.options(words)
        process = FORKS.Process(
            target=upstream_proxy.serve, args=(given, tag, door_scenes.KEY, print)
        )
        process.start()
        try:
            yield
        finally:
            process.terminate()
            process.join(5)
            process.kill()

    return door


@pytest.mark.parametrize(("scene", "tag"), SCENES, ids=[f"{s['name']}-{tag}" for s, tag in SCENES])
def test_the_recording_is_replayed(scene, tag):
    had = door_scenes.play(scene, door_of(tag))
    want = door_scenes.recorded(scene, tag)
    for step, mine, theirs in zip(scene["steps"], had, want, strict=True):
        if not step.get("left_out"):
            assert _settled(mine, step) == _settled(theirs, step), step


def _settled(found, step):
    """What is not chance: of requests that prefill lets go at once, which decode is free is."""
    if step.get("held") != "prefill":
        return found
    return {**found, "sent": [re.sub(r"^decode\d+", "decode", name) for name in found["sent"]]}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prefiller-hosts", "a", "b"], "Number of prefiller hosts must match"),
        (["--decoder-ports", "1", "2"], "Number of decoder hosts must match"),
        (["--decoder-ports", "one"], "invalid int value: 'one'"),
        (["--policy", "round_robin"], "unrecognized arguments: --policy"),
    ],
)
def test_options_that_the_program_does_not_take(words, says):
    with pytest.raises(Refused, match=says):
        upstream_proxy.options(words)


# In a rehearsal --------------------------------------------------------------------------

PD = ("k2.6", "a3", "pd")


def test_a_rehearsal_says_which_door_ran(tmp_path):
    """What is planned by itself, and what --set router=vllm-router plans, checks and rehearses."""
    for pairs, runs, hides in (((), "stands for vllm-ascend", True), (ROUTED, "the real", False)):
        plan = build.plan(*PD, scenario="throughput", pairs=pairs)
        assert not judge.plan(plan).errors
        assert any("--set router=vllm-router" in note for note in plan.notes) == hides
        found = rehearsal.rehearse(plan, tmp_path / runs.split()[0])
        assert found.ok, found
        assert runs in found.notes[0] and ("500 without a reason" in str(found)) == hides
        log = (found.folder / "logs" / "router.log").read_text()
        assert ("in place of vllm-ascend 0.20.2rc1's example proxy" in log) == hides
        assert all(MARK in line for line in log.splitlines()) or not hides


def test_the_bundle_says_what_its_door_does():
    for pairs, hides in (((), True), (ROUTED, False)):
        files = scripts.files(build.plan(*PD, pairs=pairs))
        assert ("The front door is vllm-ascend's example proxy" in files["README.md"]) == hides
        assert ("which the front door causes" in files["DAY.md"]) == hides


def test_an_engine_that_dies_behind_it_is_found(tmp_path):
    """A user gets 200 with nothing in it; the diagnosis is the rank's all the same."""
    plan = build.plan(*PD, scenario="throughput")
    found = rehearsal.rehearse(plan, tmp_path, fault="rank-dies-while-serving@decode0-rank0")
    assert (found.diagnosis.kind, found.diagnosis.rank) == ("rank-dies-while-serving", 0), found


def test_what_users_got_for_an_engine_that_is_gone_is_told(monkeypatch):
    """And each rank is asked by itself: this door leaves idle ones out."""
    plan, asked = build.plan(*PD, scenario="throughput"), []
    well = json.dumps({"choices": [{"message": {"content": "words"}}]})

    def chat(self, where, *args, **more):
        asked.append(where)
        return http_client.Reply(200, "" if where == plan.url else well, 0.1)

    monkeypatch.setattr(Watch, "_chat", chat)
    watch = Watch(plan, SilentLogs(), dict, rehearsal.LIMITS, say=print)
    with pytest.raises(Found, match="4 of 12 requests under load had no answer"):
        watch.load()
    assert watch.notes == [
        "4 of 4 requests through the front door got status 200 without a completion, which a "
        "client may take for an answer"
    ]
    alone = [one.name for one in asked if one != plan.url]
    assert sorted(alone) == sorted(2 * [one.name for one in probe.endpoints(plan)])


def test_a_chunk_that_the_network_cuts_is_one_piece():
    """The proxy drops a piece of blanks only: it would take the end of an event for one."""
    events = [b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n"]
    chunks = [f"{len(one):x}\r\n".encode() + one + b"\r\n" for one in events]
    wire = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
    )

    async def pieces(cut: int) -> list[bytes]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            for part in (wire[:cut], wire[cut:]):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.005)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            client = EngineClient("127.0.0.1", server.sockets[0].getsockname()[1])
            async with client.post("/v1/completions", b"{}", {}) as reply:
                return [piece async for piece in reply.pieces()]

    start = wire.index(b"data")
    for cut in range(start, len(wire) - 1):
        assert asyncio.run(pieces(cut)) == events, cut
