"""Services that drip, flood, lie or send away: verify, a start, bench end in time and name it."""

from __future__ import annotations

import dataclasses
import json
import time

import hostile
import pytest
from hostile import HostileServer
from testbed.silent_logs import SilentLogs

from kimi_nb.cli import main
from kimi_nb.core import known_secrets
from kimi_nb.plan import build
from kimi_nb.prove import verify
from kimi_nb.prove.bench import load_client, metrics, random_prompts, request_faults, workload
from kimi_nb.prove.verify import received, target
from kimi_nb.service import probe
from kimi_nb.service.http_client import Limits
from kimi_nb.service.readiness import Found, Watch
from kimi_nb.service.readiness import Limits as Patience

# (how it answers, the cause that verify names, the kind of error that bench counts)
MANNERS = [
    (hostile.drips_body, "drips", "drips"),
    (hostile.floods_length, "floods", "floods"),
    (hostile.floods_stream, "floods", "floods"),
    (hostile.redirects("http://127.0.0.9:1/v1"), "elsewhere", "redirected"),
    (hostile.bomb, "floods", "malformed"),
    (hostile.is_no_http, "no-http", "malformed"),
]
IDS = ["drips", "announces", "streams", "redirects", "bomb", "no-http"]
PATIENCE = Patience(ready=20.0, progress=20.0, answer=0.4, door=0.4)


def seconds(manner):
    """How long to wait: a service that never ends is given up soon, a flood is to be met."""
    return 5.0 if manner in (hostile.bomb, hostile.floods_stream) else 0.4


@pytest.fixture(autouse=True)
def few_bytes(monkeypatch):
    """The bound of a body as it would be met on a quick network."""
    monkeypatch.setattr(Limits.__init__, "__defaults__", (30.0, 120.0, 1 << 20))
    monkeypatch.setattr(random_prompts, "_LIMITS", Limits(0.4))


@pytest.mark.parametrize(("manner", "cause", "_"), MANNERS, ids=IDS)
def test_verify_names_it(manner, cause, _):
    with HostileServer(manner) as server:
        begun = time.monotonic()
        asked = target.at(server.url, "kimi", seconds=seconds(manner), pauses=())
        found = verify.verify(asked, only=["api/chat", "streaming/equal"])
        assert time.monotonic() - begun < 15
        assert not found.ok and {one.cause for one in found.failed} == {cause}, found
        assert all(one.help for one in found.failed)


def lists(*names):
    """How a service answers that says these names, whatever it is asked."""
    data = json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()

    def manner(one):
        one.sendall(hostile.HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    return manner


@pytest.mark.parametrize("model", ["kimi", "another"])
@pytest.mark.parametrize("name", ["9" * 50_000, "kimi" + "9" * 50_000])
def test_a_name_of_thousands_of_characters_is_shown_in_part(name, model):
    with HostileServer(lists(name, *["kimi"] * 400)) as server:
        asked = target.at(server.url, model, seconds=1.0, pauses=())
        found = verify.verify(asked)
    (listed,) = [one for one in found.results if one.name == "api/models"]
    assert listed.status == ("pass" if model == "kimi" else "fail")
    assert "999..." in listed.got and "and 381 more" in listed.got and len(listed.got) < 1000
    assert all(len(one.got) < 3000 for one in found.results)


def test_a_reason_of_thousands_of_characters_is_shown_in_part():
    message = {"role": "assistant", "content": "words"}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "x" * 50_000}]}
    data = json.dumps(body).encode()

    def says(one):
        one.sendall(hostile.HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    with HostileServer(says) as server:
        asked = target.at(server.url, "kimi", seconds=1.0, pauses=())
        found = verify.verify(asked, only=["api/chat", "api/finish-reason"])
    assert all("xxx" in one.got and len(one.got) < 3000 for one in found.results), found


def test_several_models_without_end_are_one_screen(capsys):
    with HostileServer(lists(*("m" * 500 + str(at) for at in range(500)))) as server:
        assert main.main(["verify", server.url]) == 2
    told = capsys.readouterr().err
    assert "name one of them" in told and "and 480 more" in told and len(told) < 3000


@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_key_is_cut_nowhere(at, monkeypatch, tmp_path, capsys):
    """Of half a key nobody could tell any more that it is one."""
    monkeypatch.setattr(known_secrets, "_names", set())
    monkeypatch.setenv("DOOR", "open-sesame-4711-and-more")  # its name does not say that it is one
    said = "x" * (received._LONGEST - at) + "open-sesame-4711-and-more" + "y" * 500

    def says(one):
        one.sendall(b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said.encode()))

    with HostileServer(says) as server:
        words = ["verify", server.url, "--model", "kimi", "--api-key-env", "DOOR", "--only", "api"]
        assert main.main([*words, "--run-dir", str(tmp_path)]) == 1
    shown = "".join(capsys.readouterr()) + (tmp_path / "verify.jsonl").read_text()
    assert "500: xxx" in shown and "open-" not in shown


@pytest.mark.parametrize(("manner", "cause", "_"), MANNERS, ids=IDS)
def test_a_start_names_it(manner, cause, _):
    with HostileServer(manner) as server:
        found = build.plan("k2.5", "h200", "single")
        patience = dataclasses.replace(PATIENCE, answer=seconds(manner), door=seconds(manner))
        watch = Watch(found, SilentLogs(), dict, patience, say=lambda text: None)
        watch._endpoints = tuple(
            dataclasses.replace(one, url=server.url) for one in probe.endpoints(found)
        )
        begun = time.monotonic()
        with pytest.raises(Found) as caught:
            watch.wait_ready()
        assert time.monotonic() - begun < 10
        assert caught.value.found.kind == cause and caught.value.found.node
        door = dataclasses.replace(found, url=server.url)
        watch = Watch(door, SilentLogs(), dict, patience, say=lambda text: None)
        with pytest.raises(Found) as caught:
            watch.first_answer()
        assert caught.value.found.kind == cause and "front door" in caught.value.found.cause


@pytest.mark.parametrize(("manner", "_", "kind"), MANNERS, ids=IDS)
def test_bench_counts_it(manner, _, kind):
    load = workload.Load(1, prompts=2, warmup=0, input_len=4, output_len=4)
    with HostileServer(manner) as server:
        begun = time.monotonic()
        found = load_client.run(load, server.url, "kimi", seconds=seconds(manner))
        assert time.monotonic() - begun < 15
        assert request_faults.counts(found["errors"]) == {kind: 2}, found["errors"]
        assert kind in request_faults.told({kind: 2})


def test_bench_ends_a_silence(monkeypatch):
    monkeypatch.setattr(load_client, "_IDLE", 0.2)
    load = workload.Load(1, prompts=1, warmup=0, input_len=4, output_len=4)
    with HostileServer(hostile.falls_silent) as server:
        found = load_client.run(load, server.url, "kimi", seconds=20.0)
        assert request_faults.counts(found["errors"]) == {"timeout": 1}
        assert "nothing came for 0.2 s" in found["errors"][0]


def test_a_message_without_an_end_is_no_work_without_an_end():
    def pours(one):
        one.sendall(hostile.CHUNKED)
        while True:
            one.sendall(b"10000\r\ndata: " + b"x" * 65530 + b"\r\n")

    load = workload.Load(1, prompts=1, warmup=0, input_len=4, output_len=4)
    with HostileServer(pours) as server:
        found = load_client.run(load, server.url, "kimi", seconds=20.0)
        assert request_faults.counts(found["errors"]) == {"floods": 1}


def test_bench_uses_no_proxy_of_the_environment(monkeypatch):
    load = workload.Load(1, prompts=1, warmup=0, input_len=4, output_len=4)
    with HostileServer(hostile.well) as proxy, HostileServer(hostile.well, "127.0.0.2") as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        load_client.run(load, server.url, "kimi", seconds=2.0)
        assert server.asked and not proxy.asked


@pytest.mark.parametrize(
    "text",
    [
        "vllm:x{",
        'vllm:num_requests_running{, ={}a="b"',
        'vllm:num_requests_running{a="b} 1',
        "vllm:x one",
    ],
)
def test_metrics_that_are_none(text):
    def says(one):
        data = (text + "\nvllm:num_requests_running many\n").encode()
        one.sendall(hostile.HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    with HostileServer(says) as server, metrics.Sampler([server.url], every=0.01) as seen:
        time.sleep(0.1)
    assert "not readable" in str(seen.result())


def test_counts_of_a_cache_that_are_none():
    line = b'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} '
    data = b"".join(line + value + b"\n" for value in (b"many", b"nan", b"inf", b"3"))

    def says(one):
        one.sendall(hostile.HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    with HostileServer(says) as server:
        assert probe.moved([server.url], 1.0) == (3, None)
