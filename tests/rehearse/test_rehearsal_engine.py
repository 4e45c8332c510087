"""The stand-in engine over real HTTP and TCP: routes, ranks, devices, caches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from testbed import metric_families

from kimi_nb import catalog
from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.rehearse import loopback, rehearsal
from kimi_nb.rehearse.engine import engine_log
from kimi_nb.rehearse.engine.api import answers, decode_steps
from kimi_nb.rehearse.engine.api.stand_in import Engine
from kimi_nb.rehearse.engine.ranks import rendezvous
from kimi_nb.rehearse.engine.start import serve, start_settings
from kimi_nb.rehearse.simulated_site import FOLDER, NODE, SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call

NEWER = json.loads((Path(__file__).parent / "contract" / "metrics-0.32.0.json").read_text())
CONTRACT = json.loads((Path(__file__).parent / "contract" / "api.json").read_text())


@contextlib.contextmanager
def live(folder, *names, **more):
    with rehearsal.start(build.plan(*names, **more), folder) as found:
        assert found.result.ok, found.result
        yield found


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One engine process with four ranks and both parsers."""
    with live(
        tmp_path_factory.mktemp("single"),
        "k2.5",
        "a3",
        "single",
        chosen=("reasoning-parser", "tool-parser"),
    ) as found:
        yield found


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Prefill and decode, two ranks each, over Mooncake."""
    with live(tmp_path_factory.mktemp("pair"), "k2.6", "a3", "pd", scenario="throughput") as found:
        yield found


def ask(url: str, model: str, **more) -> requests.Response:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "hello world"}],
        "max_tokens": 48,
        "temperature": 0,
        **more,
    }
    return requests.post(f"{url}/v1/chat/completions", json=body, timeout=10)


def test_everything_that_is_served_says_rehearsal(single):
    for path in ("/health", "/ping", "/version", "/v1/models", "/metrics", "/load", "/nope"):
        answer = requests.get(single.url + path, timeout=60)
        assert answer.headers["x-rehearsal"] == MARK, path
    assert requests.get(f"{single.url}/version", timeout=60).json() == {"version": "0.22.1"}
    assert MARK in requests.get(f"{single.url}/metrics", timeout=60).text


def test_routes_answer_with_the_recorded_status(single):
    """What a real vLLM was asked; only its model's name and context are other ones."""
    model = single.plan.served_name
    for exchange in CONTRACT["exchanges"]:
        if exchange["name"] in (
            "tools_named",
            "image",
            "too_long",
            "too_many_tokens",
            "dp_rank_bad",
        ):
            continue  # a fault of 0.20.2, a model without eyes, another context, one rank
        body = exchange["request"]
        data = (
            body if isinstance(body, str) else body and json.dumps(body).replace("kimi_k25", model)
        )
        answer = requests.request(
            exchange["method"],
            single.url + exchange["path"],
            data=data,
            headers={"Content-Type": "application/json", **exchange["headers"]},
            timeout=10,
        )
        assert answer.status_code == exchange["status"], (exchange["name"], answer.text)
        assert answer.headers.get("content-type") == exchange["type"], exchange["name"]


def test_every_count_has_a_recorded_name(single):
    """0.20.2 was asked nothing: its histograms of times were not there yet."""
    text = requests.get(f"{single.url}/metrics", timeout=60).text
    for name, family in metric_families.of(text).items():
        recorded = NEWER["families"].get(name)
        # The plan drafts; those families are read from vLLM's source.
        assert recorded or name.startswith("vllm:spec_decode"), name
        assert not recorded or recorded["help"] == family["help"], name
    assert set(CONTRACT["metrics"]) <= set(metric_families.of(text))


def test_streaming_is_the_same_answer(single):
    whole = ask(single.url, single.plan.served_name).json()
    lines = ask(
        single.url, single.plan.served_name, stream=True, stream_options={"include_usage": True}
    ).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    frames = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    for part in ("content", "reasoning"):
        told = "".join(
            choice["delta"].get(part) or "" for frame in frames for choice in frame["choices"]
        )
        assert told == whole["choices"][0]["message"][part]
    assert frames[-1]["usage"] == {key: whole["usage"][key] for key in frames[-1]["usage"]}


def test_the_first_frame_waits_for_no_acknowledgement(single):
    """On a connection that is kept a client acknowledges late: 40 ms, if Nagle's algorithm waits."""
    host, _, port = single.url.removeprefix("http://").partition(":")
    body = {"model": single.plan.served_name, "prompt": "x", "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    waits = []
    with socket.create_connection((host, int(port)), 10) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(8):
            begun, got, first = time.perf_counter(), b"", 0.0
            one.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
            while b"\r\n0\r\n\r\n" not in got:
                got += one.recv(65536)
                if not first and b"data: " in got:
                    first = time.perf_counter() - begun
            waits.append(first)
    assert min(waits[1:]) < 0.03, waits


@pytest.mark.parametrize("choices, tokens", [(1, 1), (1, 2), (1, 7), (3, 1), (3, 5)])
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_every_frame_belongs_to_one_step(kind, choices, tokens):
    served = answers.Served(("m",), "m", 4096, "", "", False, False, "0.20.2")
    body = {
        "model": "m",
        "max_tokens": tokens,
        "n": choices,
        "temperature": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        **({"messages": [{"role": "user", "content": "x"}]} if kind == "chat" else {"prompt": "x"}),
    }
    ask = getattr(answers, kind)(served, json.dumps(body).encode(), {}, "id", 0)
    groups = answers.steps(ask)
    assert [frame for group in groups for frame in group] == list(answers.frames(ask))
    assert len(groups) == len(ask.tokens) == tokens


def test_a_client_that_does_not_read_keeps_nobody_waiting():
    """Steps go on for the others; the slow one gets all of its frames, later."""

    async def play() -> tuple[list[bytes], list[bytes], float]:
        beat, reads = decode_steps.Steps(0.005), asyncio.Event()
        slow: list[bytes] = []
        quick: list[bytes] = []

        async def blocked(message):
            if len(slow) == 1:
                await reads.wait()
            slow.append(message["body"])

        async def free(message):
            quick.append(message["body"])

        groups = [[b"%d" % at] for at in range(20)]
        never = asyncio.get_running_loop().create_future()
        late = asyncio.ensure_future(beat.run(decode_steps.Stream(groups, blocked), never))
        begun = time.monotonic()
        assert await beat.run(decode_steps.Stream(groups, free), never)
        took = time.monotonic() - begun
        reads.set()
        assert await late
        return slow, quick, took

    slow, quick, took = asyncio.run(play())
    assert slow == quick == [b"%d" % at for at in range(20)]
    assert took < 2


def test_every_rank_answers_for_itself(single):
    for rank in range(4):
        url = f"{single.url}/v1/chat/completions"
        before = requests.get(f"{single.url}/metrics", timeout=60).text
        answer = requests.post(
            url,
            headers={"X-data-parallel-rank": str(rank)},
            timeout=60,
            json={"model": single.plan.served_name, "messages": [{"role": "user", "content": "x"}]},
        )
        assert answer.status_code == 200
        after = requests.get(f"{single.url}/metrics", timeout=60).text
        series = f'vllm:request_success_total{{engine="{rank}",'
        assert [line for line in before.splitlines() if line.startswith(series)] != [
            line for line in after.splitlines() if line.startswith(series)
        ]
    answer = requests.post(
        url,
        headers={"X-data-parallel-rank": "4"},
        timeout=60,
        json={"model": single.plan.served_name, "messages": [{"role": "user", "content": "x"}]},
    )
    assert answer.status_code == 400 and "out of range [0, 4)" in answer.text


def test_requests_at_the_same_time_do_not_mix(single):
    def one(number: int) -> str:
        return ask(
            single.url,
            single.plan.served_name,
            messages=[{"role": "user", "content": f"number {number} it is"}],
        ).json()["choices"][0]["message"]["content"]

    with ThreadPoolExecutor(16) as pool:
        for number, text in enumerate(pool.map(one, range(64))):
            assert f"number {number} it is" in text


def test_a_client_that_goes_away_leaves_a_working_engine(single):
    with requests.post(
        f"{single.url}/v1/chat/completions",
        stream=True,
        timeout=60,
        json={
            "model": single.plan.served_name,
            "stream": True,
            "ignore_eos": True,
            "max_tokens": 10000,
            "messages": [{"role": "user", "content": "long"}],
        },
    ) as answer:
        next(answer.iter_lines())
    end = time.monotonic() + 60
    while time.monotonic() < end:
        text = requests.get(f"{single.url}/metrics", timeout=60).text
        if 'num_requests_running{engine="0"' in text and not re.search(
            r"num_requests_running\S+ [1-9]", text
        ):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the request still runs")
    assert ask(single.url, single.plan.served_name).status_code == 200


def test_garbage_on_the_port_is_survived(single):
    host, _, port = single.url.removeprefix("http://").partition(":")
    for noise in (
        b"\x00\xff" * 100,
        b"GET",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\n\r\n{",
        b"A" * 70000 + b"\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), 2) as raw:
            raw.sendall(noise)
    assert ask(single.url, single.plan.served_name).status_code == 200


# What one node has, one process has ----------------------------------------------------


def stand_in(found, *words: str, node: str = "a3-0", **env: str) -> subprocess.CompletedProcess:
    """Another program on a node of a live rehearsal."""
    root = found.result.folder
    return subprocess.run(
        [str(root / "stubs" / words[0]), *words[1:]],
        capture_output=True,
        text=True,
        timeout=20,
        env={"PATH": f"{root / 'bin'}:{os.environ['PATH']}", FOLDER: str(root), NODE: node, **env},
        cwd=root / "bundle",
        check=False,
    )


def test_a_second_engine_finds_port_and_devices_taken(single):
    model = single.plan.engines[0].argv[2]
    port = str(single.plan.engines[0].http_port)
    done = stand_in(single, "vllm", "serve", model, "--port", port, "--quantization", "ascend")
    assert done.returncode == 1 and "Address already in use" in done.stderr
    done = stand_in(single, "vllm", "serve", model, "--port", "7999", "--quantization", "ascend")
    assert done.returncode == 1
    assert "Free memory on device npu:0" in done.stdout and "held by rank 0" in done.stdout


def test_only_two_commands_are_rehearsed(single):
    done = stand_in(single, "vllm", "bench", "latency")
    assert done.returncode == 1 and "left to the real vLLM" in done.stderr
    assert MARK in stand_in(single, "vllm", "--version").stdout


def test_a_stand_in_ends_with_the_signal_that_ends_its_engine(single):
    root = single.result.folder
    env = {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", FOLDER: str(root), NODE: "a3-0"}
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        # Devices that the running engine does not have.
        process = subprocess.Popen(
            [
                str(root / "stubs" / "vllm"),
                "serve",
                single.plan.engines[0].argv[2],
                "--port",
                "7998",
                "--quantization",
                "ascend",
                "--headless",
                "--data-parallel-size",
                "2",
                "--data-parallel-size-local",
                "1",
                "--data-parallel-start-rank",
                "1",
                "--data-parallel-address",
                "127.0.0.9",
                "--data-parallel-rpc-port",
                "7997",
            ],
            env={**env, "ASCEND_RT_VISIBLE_DEVICES": "0", NODE: "a3-1"},
            cwd=root / "bundle",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert any("Waiting for rank 0" in line for line in process.stdout)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == code


def test_kv_ports_are_bound(pair):
    for engine in pair.plan.engines:
        for port in range(engine.kv_port, engine.kv_port + engine.tp_size):
            with socket.socket() as probe, pytest.raises(OSError, match="in use"):
                probe.bind((engine.address, port))


# The cache that travels ------------------------------------------------------------------


def roles(found):
    return tuple(
        next(engine for engine in found.plan.engines if engine.role == role)
        for role in ("prefill", "decode")
    )


def test_decode_says_what_prefill_computed(pair):
    prefill, decode = roles(pair)
    name = pair.plan.served_name
    first = ask(prefill.url, name, max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    params = first.json()["kv_transfer_params"]
    assert params["do_remote_prefill"] and params["remote_engine_id"] == "0"
    before = moved(decode.url)
    after_transfer = ask(decode.url, name, kv_transfer_params=params).json()
    direct = ask(decode.url, name).json()
    assert after_transfer["choices"][0]["message"] == direct["choices"][0]["message"]
    assert moved(decode.url) == before + first.json()["usage"]["prompt_tokens"]


def moved(url: str) -> float:
    text = requests.get(f"{url}/metrics", timeout=60).text
    return sum(float(value) for value in re.findall(r'source="external_kv_transfer"\} (\S+)', text))


def test_the_cache_of_another_prompt_is_heard(pair):
    """Decode goes on with what it received: another prompt's cache gives another answer."""
    prefill, decode = roles(pair)
    name = pair.plan.served_name
    other = ask(
        prefill.url,
        name,
        max_tokens=1,
        kv_transfer_params={"do_remote_decode": True},
        messages=[{"role": "user", "content": "something else"}],
    ).json()
    wrong = ask(decode.url, name, kv_transfer_params=other["kv_transfer_params"]).json()
    right = ask(decode.url, name).json()
    assert wrong["choices"][0]["message"] != right["choices"][0]["message"]


@pytest.mark.parametrize(
    "change, wanted",
    [
        ({"remote_engine_id": "7"}, "engine id mismatch"),
        ({"remote_port": 1}, "Failed to connect to target"),
        ({"remote_request_id": "nobody's"}, "holds no cache"),
    ],
)
def test_a_transfer_that_cannot_be_fails(change, wanted, pair):
    prefill, decode = roles(pair)
    name = pair.plan.served_name
    params = ask(
        prefill.url, name, max_tokens=1, kv_transfer_params={"do_remote_decode": True}
    ).json()["kv_transfer_params"]
    answer = ask(decode.url, name, kv_transfer_params={**params, **change})
    assert answer.status_code == 500 and wanted in answer.text


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_port": "x"},
        {"do_remote_prefill": True, "remote_host": 7, "remote_port": -1, "tp_size": "wide"},
        {"do_remote_prefill": True, "remote_host": [], "remote_port": {}},
    ],
)
def test_parameters_that_are_none_are_no_crash(params, pair):
    _, decode = roles(pair)
    answer = ask(decode.url, pair.plan.served_name, kv_transfer_params=params)
    assert answer.status_code in (400, 500) and answer.json()["error"]["message"]


# Keys -------------------------------------------------------------------------------------


def test_a_key_is_asked_for(tmp_path, site_file):
    site = site_file(("transport:", "api_key_env: KIMI_KEY\ntransport:"))
    with live(tmp_path / "run", "k2.5", "a3", "single", site=site) as found:
        model = found.plan.served_name
        assert ask(found.url, model).status_code == 401
        assert requests.get(f"{found.url}/v1/models", timeout=60).json() == {
            "error": "Unauthorized"
        }
        assert requests.get(f"{found.url}/health", timeout=60).status_code == 200


# Where ranks meet -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ("--data-parallel-size 2 --data-parallel-size-local 1", 29550),
        (
            "--data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-address localhost",
            29550,
        ),
        ("--tensor-parallel-size 16 --nnodes 2 --node-rank 1", 29501),
    ],
)
def test_who_is_told_no_address_waits_at_its_own(words, port, tmp_path):
    """vLLM takes 127.0.0.1: each node its own, where the nodes of a rehearsal have one address."""
    plan = build.plan("k2.5", "h200", "single", variant="pip")
    site = SimulatedSite.of(plan)
    address = site.nodes["dgx-0"]
    call = Call(
        "vllm", ("serve", "m", *words.split(" ")), {NODE: "dgx-0"}, tmp_path, tmp_path, site
    )
    made = start_settings.settings(call, catalog.engine("vllm", "0.19.1"))
    assert made.meets == (loopback.own(address), port)


@pytest.mark.parametrize(("words", "port"), [([], 8000), (["--port", "0"], 0)])
def test_a_port_that_is_given_counts_though_it_is_zero(words, port, tmp_path):
    site = SimulatedSite.of(build.plan("k2.5", "h200", "single", variant="pip"))
    call = Call("vllm", ("serve", "m", *words), {NODE: "dgx-0"}, tmp_path, tmp_path, site)
    assert start_settings.settings(call, catalog.engine("vllm", "0.19.1")).port == port


@pytest.mark.parametrize(
    "change, wanted",
    [
        ({"place": 1}, "rank 1 is in the group already"),
        ({"place": 3}, r"data_parallel_rank \(3\) must be in the range \[0, 3\)"),
        (
            {"place": 2, "shared": {"--max-num-seqs": 9}},
            "--max-num-seqs 9, rank 0 has --max-num-seqs 8",
        ),
        ({"place": 2, "tp": 2}, "here dp 3 tp 2, rank 0 has dp 3 tp 1"),
    ],
)
def test_who_does_not_belong_is_refused_where_ranks_meet(change, wanted):
    async def play() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.3", 0))
            meets = probe.getsockname()

        def group(place: int, **other) -> rendezvous.Group:
            mine = {
                "place": place,
                "count": 1,
                "size": 3,
                "tp": 1,
                "rank": place,
                "spans": False,
                "node": f"n{place}",
                "meets": meets,
                "alone": True,
                "headless": False,
                "here": range(place, place + 1),
                "shared": {"--max-num-seqs": 8},
                **other,
            }
            return rendezvous.Group(SimpleNamespace(**mine), engine_log.Log())

        first = asyncio.ensure_future(group(0).join())
        second = asyncio.ensure_future(group(1).join())
        await asyncio.sleep(0.2)
        with pytest.raises(engine_log.StartError, match=wanted):
            await asyncio.wait_for(group(**change).join(), 5)
        assert not first.done() and not second.done(), "the others go on waiting"
        await asyncio.wait_for(asyncio.gather(first, second, group(2).join()), 5)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("node", "rank", "others"),
    [(0, 0, [1]), (0, 1, [2, 3])],  # the first node has the API of all
)
def test_a_request_needs_every_node_of_its_rank(node, rank, others):
    """Two ranks of two nodes each: those of rank 1 are nodes 2 and 3."""
    mine = SimpleNamespace(spans=True, ranks=1, span=2, node_rank=node, here=range(1))
    asked = Engine._elsewhere(SimpleNamespace(settings=mine), rank)
    assert list(asked) == others


def test_a_server_says_that_it_has_started_before_it_answers(monkeypatch, capsys):
    """Else what its first request shows may come before it in the log, as of a start."""
    said = []

    async def listen(*_):
        said.append(capsys.readouterr().err)

    monkeypatch.setattr(serve.uvicorn.Server, "startup", listen)
    server = serve._Server(serve.uvicorn.Config(print), engine_log.Log())
    asyncio.run(server.startup([]))
    assert len(said) == 1 and said[0].endswith("Application startup complete.\n")
