"""Replicas behind the real vllm-router, rehearsed: it starts, shares out requests, asks for a key."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from kimi_nb.plan import build
from kimi_nb.prove.verify import contract, target, verify
from kimi_nb.rehearse import rehearsal
from kimi_nb.service.handle import Service

ROUTED = ("groups=2", "router=vllm-router")


def plan_of(site, hardware="h200", layout="single", variant="pip"):
    return build.plan("k2.5", hardware, layout, variant=variant, site=str(site), pairs=ROUTED)


def keyed(nodes_file, tmp_path, hardware="h200"):
    path = tmp_path / "keyed.yaml"
    path.write_text(Path(nodes_file(hardware, 2)).read_text() + "api_key_env: KIMI_KEY\n")
    return path


def asked(url: str, key: str = "", **body: object) -> int:
    """The status of a request: a POST of a body, or a GET."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def prompts(url: str) -> float:
    """How many prompt tokens an engine says that it has computed."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as reply:
        text = reply.read().decode()
    return sum(map(float, re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", text, re.M)))


@pytest.mark.parametrize(
    ("hardware", "layout", "variant", "nodes"),
    [
        ("h200", "single", "docker", 2),  # the container runs the engine, the host the router
        ("a3", "single", "docker", 2),  # the container runs the scripts, the host the router
        ("gb200", "dp", "tensor-parallel", 4),  # each replica over two nodes
    ],
)
def test_each_way_to_install_has_its_router(nodes_file, tmp_path, hardware, layout, variant, nodes):
    plan = plan_of(nodes_file(hardware, nodes), hardware, layout, variant)
    found = rehearsal.rehearse(plan, tmp_path)
    assert found.ok and found.ready == len(plan.engines), found
    log = (Path(found.folder) / "logs" / "router.log").read_text()
    assert "the real vllm-router in front of stand-ins" in log and "--worker-urls" in log


def test_requests_reach_every_replica(nodes_file, tmp_path):
    plan = plan_of(nodes_file("h200", 2))
    with rehearsal.start(plan, tmp_path) as live:
        assert live.result.ok, live.result
        before = [prompts(engine.url) for engine in live.plan.engines]
        for at in range(4):
            body = {"role": "user", "content": f"Request {at}: who are you?"}
            chat = f"{live.url}/v1/chat/completions"
            assert asked(chat, model=plan.served_name, messages=[body]) == 200
        after = [prompts(engine.url) for engine in live.plan.engines]
        assert all(now > then for now, then in zip(after, before, strict=True)), (before, after)

        service = Service(None, plan, live)
        assert [one.url for one in service.endpoints] == [one.url for one in live.plan.engines]
        found = verify(target.of(service), only=["api", "engines", "streaming"])
        assert found.ok and found.counts[contract.PASS] > 5, found
        got = {one.name: one.got for one in found.results}
        assert "3 of 3 places" in got["streaming/equal"], "the router and both replicas"


def test_a_router_that_answers_nothing_is_named(nodes_file, tmp_path):
    found = rehearsal.rehearse(plan_of(nodes_file("h200", 2)), tmp_path, fault="empty-200")
    assert (found.diagnosis.kind, found.diagnosis.node) == ("empty-200", "node-0"), found


def test_nobody_adds_an_engine_without_the_key(nodes_file, tmp_path):
    """vllm-router alone takes further engines from anybody, who would then see requests and keys."""
    with rehearsal.start(plan_of(nodes_file("h200", 2)), tmp_path / "open") as live:
        assert live.result.ok, live.result
        there = live.plan.engines[0].url  # it answers at once: a new one would have to be healthy
        assert asked(f"{live.url}/add_worker?url={there}", a=1) not in (401, 404)
        assert asked(f"{live.url}/list_workers") == 200
    plan = plan_of(keyed(nodes_file, tmp_path))
    with rehearsal.start(plan, tmp_path / "keyed") as live:
        assert live.result.ok, live.result
        there = live.plan.engines[0].url
        assert asked(f"{live.url}/add_worker?url={there}", a=1) == 401
        assert asked(f"{live.url}/list_workers") == 401
        chat = {"model": plan.served_name, "messages": [{"role": "user", "content": "a"}]}
        where = f"{live.url}/v1/chat/completions"
        assert asked(where, **chat) == asked(where, "wrong", **chat) == 401
        assert asked(where, live.key, **chat) == 200
        assert asked(live.plan.engines[1].url + "/v1/models") == 401, "engines ask for it too"


@pytest.mark.parametrize("more", ["", "api_key_env: KIMI_KEY\n"], ids=["open", "keyed"])
def test_a_slurm_job_of_replicas_is_rehearsed(nodes_file, tmp_path, more):
    path = tmp_path / "site.yaml"
    path.write_text(Path(nodes_file("h200-slurm", 2)).read_text() + more)
    plan = build.plan(
        "k2.5", "h200", "single", variant="slurm", scenario="replicas", site=str(path)
    )
    with rehearsal.start(plan, tmp_path / "run") as live:
        assert live.result.ok and live.result.ready == 2, live.result
        before = [prompts(engine.url) for engine in live.plan.engines]
        for at in range(4):
            body = {"role": "user", "content": f"Request {at}: who are you?"}
            chat = f"{live.url}/v1/chat/completions"
            asks = {"model": live.plan.served_name, "messages": [body]}
            assert asked(chat, live.key, **asks) == 200
            assert asked(chat, "wrong", **asks) == (401 if more else 200)
        after = [prompts(engine.url) for engine in live.plan.engines]
        assert all(now > then for now, then in zip(after, before, strict=True)), (before, after)
    log = live.result.folder / "logs" / "node-0" / "engines.log"
    assert ("asks for the key; behind it: vllm-router" in log.read_text()) == bool(more)


def test_a_replica_that_dies_in_a_job_is_named(nodes_file, tmp_path):
    site = nodes_file("h200-slurm", 2)
    plan = build.plan("k2.5", "h200", "single", variant="slurm", scenario="replicas", site=site)
    found = rehearsal.rehearse(plan, tmp_path, fault="out-of-memory-at-load")
    assert not found.ok and found.diagnosis.kind == "out-of-memory-at-load", found
