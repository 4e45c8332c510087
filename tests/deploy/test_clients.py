"""Other people's clients: each makes the same of the stand-in engine as of the real one on this CPU.

`make engine` installs the engine, `make test-engine` the clients (clients.txt); without either the
tests are skipped, and say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests

from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal

ROOT = Path(__file__).resolve().parents[2]
ENGINE, CLIENTS = ROOT / ".engine", ROOT / ".clients"
NAMES = ("openai", "langchain-openai", "litellm", "instructor", "pydantic-ai")
READY = 240  # seconds until the real engine answers, on a busy machine
# What differs, as "client: call", and why. Nothing does.
DIFFERENT: dict[str, str] = {}

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
def outcomes(tmp_path_factory):
    """(of the real engine, of the stand-in), started with the same words."""
    plan = build.plan("k2.5", "cpu", "single")
    with real_engine(plan, tmp_path_factory.mktemp("real")) as url:
        real = asked(url)
    with rehearsal.start(plan, tmp_path_factory.mktemp("stand-in")) as live:
        assert live.result.ok, live.result
        return real, asked(live.url)


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
