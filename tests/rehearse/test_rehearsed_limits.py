"""What a node or container lacks, rehearsed: buffers, builds, shared and locked memory."""

from __future__ import annotations

import re

import pytest

from kimi_nb import catalog
from kimi_nb.check import judge
from kimi_nb.check.view import container_start
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.params import recipes
from kimi_nb.plan import build
from kimi_nb.rehearse import wheels
from kimi_nb.rehearse.engine.start import dispatch_buffer, start_settings
from kimi_nb.rehearse.host_programs import container_limits
from kimi_nb.rehearse.host_programs.container_limits import CONTAINER, RDMA, SHARED
from kimi_nb.rehearse.simulated_site import NODE, SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call

ON_A3 = [
    (row["model"], row["layout"], row["scenario"])
    for row in recipes.listing()
    if row["hardware"] == "a3" and not row["deployment"]
]


def decode_engines(plan, tmp_path, **env: str):
    """Give (call, settings) of each engine that may dispatch tokens."""
    site = SimulatedSite.of(plan)
    engine = catalog.engine(plan.engine, plan.engine_version)
    for one in plan.engines:
        if one.role != "prefill":
            told = {**one.env, NODE: one.node, **env}
            call = Call("vllm", tuple(one.argv[1:]), told, tmp_path, tmp_path, site)
            yield call, start_settings.settings(call, engine)


def test_the_arithmetic_is_that_of_a_public_log():
    assert dispatch_buffer.needed(64, 2048, 4, 128, 10) == (4608, 4096, 294)


@pytest.mark.parametrize(("model", "layout", "scenario"), ON_A3)
def test_rule_and_stand_in_name_the_same_need(model, layout, scenario, tmp_path):
    """Computed twice, from other numbers and by other code; no plan of ours is refused."""
    plan = build.plan(model, "a3", layout, scenario=scenario)
    assert not any(dispatch_buffer.short(*one) for one in decode_engines(plan, tmp_path))
    plan = build.plan(model, "a3", layout, scenario=scenario, pairs=["env.HCCL_BUFFSIZE=1"])
    ruled = {
        need
        for one in judge.plan(plan).findings
        if one.rule == "capacity/hccl-buffer"
        for need in re.findall(r"needs (\d+) MB", one.message)
    }
    said = {
        need
        for one in decode_engines(plan, tmp_path)
        for need in re.findall(r"= (\d+)MB, HCCL_BUFFSIZE=1MB", dispatch_buffer.short(*one))
    }
    assert said == ruled
    if (model, layout, scenario) == ("k2.5", "pd", "default"):
        assert said == {"2131"}


@pytest.mark.parametrize(
    ("vllm", "torch", "vendor", "cuda", "says"),
    [
        ("0.19.1+cu129", "+cu128", "nvidia", "", ""),
        ("0.19.1+cu129", "+cu130", "nvidia", "", "libcudart.so.12"),
        ("0.22.1+cu130", "+cu129", "nvidia", "", "libcudart.so.13"),
        ("0.22.1+cu130", "+cu130", "nvidia", "12.8", "too old (found version 12080)"),
        ("0.19.1+cu129", "+cu129", "nvidia", "12.4", ""),
        ("0.19.1+cu129", "+cu128", "amd", "", "Failed to infer device type"),
        ("0.19.1+rocm", "+rocm", "amd", "", ""),
        ("", "", "nvidia", "", ""),
    ],
)
def test_builds_that_do_not_fit(vllm, torch, vendor, cuda, says):
    found = wheels.unfit(vllm, torch, vendor, cuda)
    assert says in found and bool(found) == bool(says)


@pytest.mark.parametrize(
    ("words", "shared", "rdma"),
    [
        ("", 64 << 20, ""),
        ("--shm-size=1g", 1 << 30, ""),
        ("--shm-size 512g --device /dev/infiniband", 512 << 30, "device"),
        ("--ipc=host --cap-add IPC_LOCK", None, "locked"),
        ("--ipc=host --ulimit memlock=-1 --device /dev/infiniband/uverbs0", None, "device locked"),
        ("--privileged", 64 << 20, "device locked"),
    ],
)
def test_what_a_container_gives(words, shared, rdma):
    box = container_start.box(["docker", "run", *words.split(), "image"], {}, Spot("x"), "n", at=2)
    found = container_limits.of(box, "id")
    assert found[CONTAINER] == "id" and found[RDMA] == rdma
    assert found.get(SHARED) == (None if shared is None else str(shared))
