"""Other people's clients: each makes the same of the stand-in engine as of the real one on this CPU.

`make engine` installs the engine, `make test-engine` the clients (clients.txt and
testbed/load_tools.py); without either the tests are skipped, and say so.
"""

from __future__ import annotations

import asyncio.base_events
import contextlib
import json
import os
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from testbed import load_tools, metric_families

from kimi_nb.plan import build
from kimi_nb.prove.bench import (
    bench_commands,
    definitions,
    load_programs,
    summary,
    timed_stream,
    workload,
)
from kimi_nb.rehearse import launch, rehearsal

ROOT = Path(__file__).resolve().parents[2]
ENGINE, CLIENTS = ROOT / ".engine", ROOT / ".clients"
NAMES = ("openai", "langchain-openai", "litellm", "instructor", "pydantic-ai")
READY = 240  # seconds until the real engine answers, on a busy machine
# What differs, as "client: call", and why. Nothing does.
DIFFERENT: dict[str, str] = {}
STEP = 0.01  # seconds for each token of the stand-in
# Figures of load clients that differ, and why.
TOKENIZER = "the stand-in counts words, not the model's tokens"
CHUNKS = (
    "the engine sends tokens together that its API server has not fetched, or that make a character"
)
DIFFERENT_FIGURES = {
    "aiperf: tokens in, of one": TOKENIZER,
    "guidellm: tokens in, of one": TOKENIZER,
    "guidellm: chunks of one": CHUNKS,
}

pytestmark = [
    pytest.mark.skipif(
        not (ENGINE / "bin/vllm").exists(),
        reason=f"the real engine is not installed in {ENGINE}: make engine",
    ),
    pytest.mark.skipif(
        not (CLIENTS / ".stamp").exists(),
        reason=f"the clients are not installed in {CLIENTS}: make .clients/.stamp",
    ),
]


@contextlib.contextmanager
def real_engine(plan, folder):
    """The engine of the plan, on a port that is free, until the end of the block."""
    engine = plan.engines[0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [str(ENGINE / "bin/vllm"), *engine.argv[1:]]
    argv[argv.index("--port") + 1] = str(port)
    path = f"{ENGINE / 'bin'}:{os.environ['PATH']}"
    with (folder / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **engine.env, "PATH": path},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            yield _ready(f"http://127.0.0.1:{port}", process, folder / "engine.log")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(url, process, log):
    until = time.monotonic() + READY
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/health", timeout=5).ok:
                return url
        time.sleep(1)
    raise AssertionError(f"not ready after {READY} s: {log.read_text()[-2000:]}")


def asked(url):
    """What each client makes of a server."""
    done = subprocess.run(
        [CLIENTS / "bin/python", ROOT / "tests/deploy/client_calls.py", url, "kimi_k25"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={
            **{name: text for name, text in os.environ.items() if "proxy" not in name.lower()},
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(the plan, the real engine's URL, the stand-in's), started with the same words."""
    plan = build.plan("k2.5", "cpu", "single")
    of = launch.SimulatedSite.of
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        slow = staticmethod(lambda plan: replace(of(plan), seconds_per_token=STEP))
        patch.setattr(launch.SimulatedSite, "of", slow)
        real = stack.enter_context(real_engine(plan, tmp_path_factory.mktemp("real")))
        live = stack.enter_context(rehearsal.start(plan, tmp_path_factory.mktemp("stand-in")))
        assert live.result.ok, live.result
        yield plan, real, live.url


@pytest.fixture(scope="module")
def outcomes(served):
    """(of the real engine, of the stand-in)."""
    return asked(served[1]), asked(served[2])


@pytest.mark.parametrize("client", NAMES)
def test_a_client_sees_no_difference(client, outcomes):
    real, rehearsed = (one[client] for one in outcomes)
    assert set(real) == set(rehearsed) and "error" not in real, (real, rehearsed)
    differ = {f"{client}: {call}" for call in real if real[call] != rehearsed[call]}
    assert differ == {one for one in DIFFERENT if one.startswith(f"{client}: ")}, {
        one: (real[one.partition(": ")[2]], rehearsed[one.partition(": ")[2]]) for one in differ
    }


def test_the_calls_came_through(outcomes):
    """The same failure everywhere would be no proof: what must succeed has succeeded."""
    real, _ = outcomes
    assert real["openai"]["chat"][1] == ["length"] and real["openai"]["choice"][1] == ["stop"]
    assert real["langchain-openai"]["choice"] == ["yes", "stop"]
    assert real["litellm"]["two"][1] == ["length", "length"]
    assert real["instructor"]["typed"] == "bool"
    assert real["pydantic-ai"]["choice"][0] == "yes"
    assert {real[name]["no model"]["status"] for name in ("openai", "litellm")} == {404}


# Load clients -------------------------------------------------------------------------


@pytest.mark.parametrize("client", load_tools.NAMES)
@pytest.mark.skipif(
    bool(load_tools.lacks(CLIENTS / "load")),
    reason=f"not installed in {CLIENTS / 'load'}: {load_tools.lacks(CLIENTS / 'load')}",
)
def test_a_load_client_sees_no_difference(client, served, tmp_path):
    plan, *urls = served
    tokenizer = ROOT / bench_commands.target(plan).tokenizer
    real, rehearsed = (
        load_tools.asked(
            client, CLIENTS / "load", url, plan.served_name, tokenizer, tmp_path / str(at)
        )
        for at, url in enumerate(urls)
    )
    done = real.get("completed", real.get("answered"))
    assert done == load_tools.PROMPTS and real.get("score", 1.0) == 1.0, real
    assert set(real) == set(rehearsed)
    differ = {f"{client}: {name}" for name in real if real[name] != rehearsed[name]}
    assert differ <= set(DIFFERENT_FIGURES), (real, rehearsed)


def _timed(result):
    """The requests of a result with their times."""
    names = ("input_lens", "errors", "ttfts", "itls", "output_lens", "start_times")
    return [
        timed_stream.Timed(words, start, ttft, itl, ttft + sum(itl), tokens, error=error)
        for words, error, ttft, itl, tokens, start in zip(
            *(result[name] for name in names), strict=True
        )
    ]


@pytest.mark.parametrize("which", ["the real engine", "known steps"])
@pytest.mark.parametrize("tool", ["kimi_nb", "vllm"])
def test_our_figures_are_those_of_vllm_bench(tool, which, served, tmp_path):
    """From the times of the same requests, whoever has recorded them; but for `definitions`.

    How long the two take for the same load is measured by benchmarks/bench_client.py.
    """
    plan, real, rehearsed = served
    load = workload.sweep(4, input_len=32, output_len=64, prompts=24).cells[0]
    url = real if which == "the real engine" else rehearsed
    at = bench_commands.target(plan, url)
    one, _ = load_programs.choose(tool, plan, "").run(load, at, "", lambda done, failed: None, {})
    assert (one["completed"], one["failed"], one["output_lens"]) == (24, 0, [64] * 24)
    if which == "known steps":  # no token can come earlier
        assert one["median_tpot_ms"] > STEP * 950
    (tmp_path / "result.json").write_text(json.dumps(one))
    argv = [ENGINE / "bin/python", ROOT / "tests/testbed/vllm_figures.py", tmp_path / "result.json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert theirs.pop("output_lens") == one["output_lens"]
    # Those of the result itself, and by our arithmetic from the same times.
    for found in (one, summary.of(_timed(one), one["duration"])):
        assert {name: found[name] for name in theirs} == pytest.approx(theirs, rel=1e-6)
    assert {"ttft", "total_input_tokens", "failed"} == definitions.differing()


def test_the_ttft_of_vllm_bench_has_two_hand_overs_to_threads(served, tmp_path, monkeypatch):
    """The reason that a result gives: they stand between the clock and the request."""
    plan, _, url = served
    load = workload.sweep(4, input_len=32, output_len=4, prompts=24).cells[0]
    at = bench_commands.target(plan, url)
    tool = load_programs.choose("vllm", plan, "")
    argv = [*bench_commands.bench_serve(load, at, tool.engine, str(tmp_path), "out.json", {})]
    env = load_programs.environment(os.environ, url, "")
    env |= {"PYTHONPATH": str(ROOT / "tests/testbed/hand_overs")}
    env |= {"HAND_OVERS": str(tmp_path / "seconds.json")}
    argv = [tool.program, *argv[1:], "--ready-check-timeout-sec", "0"]
    subprocess.run(argv, env=env, cwd=tmp_path, check=True, capture_output=True, timeout=400)
    seconds = json.loads((tmp_path / "seconds.json").read_text())
    sent = load.prompts + load.warmup
    assert len(seconds) >= 2 * sent and min(seconds) > 0
    assert len(seconds) <= 2 * (sent + 8), "more than two for each request and look at /metrics"

    def none(*args):
        raise AssertionError("our client has handed something to a thread")

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "run_in_executor", none)
    own = load_programs.choose("kimi_nb", plan, "")
    result, _ = own.run(load, at, "", lambda done, failed: None, {})
    assert result["completed"] == load.prompts


def test_metrics_have_the_same_families(served):
    """Names, types, texts, labels and buckets of a running engine and of its stand-in."""
    found = []
    for url in served[1:]:
        requests.post(f"{url}/v1/completions", json={"prompt": "hi", "max_tokens": 2}, timeout=60)
        found.append(metric_families.of(requests.get(f"{url}/metrics", timeout=20).text))
    real, rehearsed = found
    assert set(real) == set(rehearsed)
    assert real == rehearsed, {name for name in real if real[name] != rehearsed[name]}
