"""Pipelines, ranks over nodes and nodes that answer apart: what is planned, and what is refused."""

from __future__ import annotations

import pytest

from kimi_nb.check import judge
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.plan import build
from kimi_nb.service import probe


def over(nodes_file, hardware, count, *pairs, **names):
    return build.plan("k2.5", hardware, site=nodes_file(hardware, count), pairs=pairs, **names)


def said(engine) -> dict[str, str]:
    return dict(zip(engine.argv, engine.argv[1:], strict=False))


def test_a_pipeline_over_two_nodes(nodes_file):
    plan = over(nodes_file, "h200", 2, "nodes=2", "pp=2", layout="single", variant="pip")
    assert plan.title.endswith("tp8 pp2")
    head, follower = plan.engines
    for number, engine in enumerate(plan.engines):
        words = said(engine)
        assert (words["--tensor-parallel-size"], words["--pipeline-parallel-size"]) == ("8", "2")
        assert (words["--nnodes"], words["--node-rank"]) == ("2", str(number))
        assert words["--master-addr"] == head.address
        assert (engine.part, engine.spans, engine.world) == (number, True, 16)
        assert "--data-parallel-size" not in words
    assert "--headless" in follower.argv and "--headless" not in head.argv
    assert [one.rank for one in probe.endpoints(plan)] == [0]


def test_stages_of_one_node_need_no_other(nodes_file):
    plan = over(nodes_file, "h200", 1, "tp=4", "pp=2", layout="single", variant="pip")
    (engine,) = plan.engines
    assert engine.devices == tuple(range(8)) and not engine.spans
    assert "--nnodes" not in engine.argv and "--headless" not in engine.argv


def test_a_pipeline_of_one_stage_is_not_told(nodes_file):
    told, silent = (
        over(nodes_file, "h200", 1, *pairs, layout="single", variant="pip")
        for pairs in (["pp=1"], [])
    )
    assert told.engines == silent.engines and told.flags == silent.flags


def test_two_ranks_over_two_nodes_each(nodes_file):
    """The first node of the group has the API; the first of each rank stands for its rank."""
    plan = over(nodes_file, "h200", 4, "nodes=4", "dp=2", "tp=16", layout="single", variant="pip")
    assert [(one.rank, one.part) for one in plan.engines] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [one.headless for one in plan.engines] == [False, True, True, True]
    head = plan.engines[0].address
    for number, engine in enumerate(plan.engines):
        words = said(engine)
        assert (words["--nnodes"], words["--node-rank"]) == ("4", str(number))
        assert (words["--data-parallel-size"], words["--data-parallel-address"]) == ("2", head)
        assert "--data-parallel-size-local" not in words  # vLLM works it out from the nodes
    ranks = [(one.rank, one.index, one.url) for one in probe.endpoints(plan)]
    assert ranks == [(0, 0, plan.url), (1, 1, plan.url)]


def test_prefill_over_two_nodes_and_decode_nodes_that_answer_apart(nodes_file, wide_model):
    plan = build.plan(wide_model, "h200", site=nodes_file("h200", 4))
    prefill, part, one, two = plan.engines
    assert (said(prefill)["--nnodes"], said(part)["--node-rank"]) == ("2", "1")
    assert part.headless and not two.headless
    for engine, start in ((one, None), (two, "8")):
        words = said(engine)
        assert "--data-parallel-hybrid-lb" in words
        assert words["--data-parallel-size-local"] == "8"
        assert words.get("--data-parallel-start-rank") == start
        assert words["--data-parallel-rpc-port"] == "13345"
        assert engine.url == f"http://{engine.address}:8002"
    assert [url for _, url, _ in plan.router.workers] == [prefill.url, one.url, two.url]
    decode = [end for end in probe.endpoints(plan) if end.role == "decode"]
    assert [(end.rank, end.index) for end in decode] == [(at, at % 8) for at in range(16)]
    assert {end.url for end in decode[8:]} == {two.url}


def test_nodes_that_answer_apart_want_a_router(nodes_file):
    pairs = ["nodes=2", "dp=4", "tp=4", "data-parallel-hybrid-lb=true"]
    plan = over(nodes_file, "h200", 2, *pairs, layout="single", variant="pip")
    assert plan.router is None
    assert any("2 nodes answer on their own, without a router" in note for note in plan.notes)
    fronted = over(
        nodes_file, "h200", 2, *pairs, "router=vllm-router", layout="single", variant="pip"
    )
    assert [url for _, url, _ in fronted.router.workers] == [engine.url for engine in plan.engines]
    assert not any("on their own" in note for note in fronted.notes)


@pytest.mark.parametrize(
    ("hardware", "layout", "count", "pairs", "words"),
    [
        ("h200", "single", 2, ["nodes=2", "tp=8", "pp=3"], ["tp 8 x pp 3 = 24", "2 x 8 = 16"]),
        ("h200", "single", 1, ["dp=2", "tp=4", "pp=2"], ["tp 4 x pp 2 = 16 devices", "has 8"]),
        ("h200", "single", 2, ["nodes=2", "dp=2", "tp=16"], ["dp x tp = nodes x 8", "2 x 16"]),
        ("a3", "pd", 4, ["prefill.pp=2"], ["prefill: pp 2", "launch_online_dp.py"]),
        ("cpu", "pd", 4, ["decode.pp=2"], ["decode: pp 2 with NixlConnector", "decode.pp=1"]),
        (
            "cpu",
            "pd",
            4,
            ["decode.nodes=2", "decode.tp=4", "decode.decode-context-parallel-size=2"],
            ["decode-context-parallel-size 2 with NixlConnector", "allowed: 1, 4"],
        ),
        (
            "h200",
            "single",
            1,
            ["tp=4", "prefill-context-parallel-size=2", "decode-context-parallel-size=4"],
            ["beside prefill-context-parallel-size 2 and tp 4", "1, 2 and 8"],
        ),
        (
            "h200",
            "single",
            1,
            ["tp=8", "prefill-context-parallel-size=2"],
            ["tp 8 x pcp 2 = 16", "8 devices"],
        ),
        (
            "h200",
            "single",
            1,
            ["data-parallel-hybrid-lb=true"],
            ["one API anyway", "--set data-parallel-hybrid-lb=null"],
        ),
        (
            "h200",
            "single",
            4,
            ["nodes=4", "dp=2", "tp=16", "data-parallel-hybrid-lb=true"],
            ["a rank of 16 devices spans nodes"],
        ),
        (
            "a3",
            "pd",
            4,
            ["decode.data-parallel-hybrid-lb=true"],
            ["--data-parallel-rank", "decode.data-parallel-hybrid-lb=null"],
        ),
        ("h200", "single", 1, ["router=vllm-router"], ["needs no router"]),
    ],
)
def test_what_vllm_would_refuse_is_refused(nodes_file, hardware, layout, count, pairs, words):
    model, variant = "tiny-k2.5" if hardware == "cpu" else "k2.5", "pip" * (hardware == "h200")
    site = nodes_file(hardware, count)
    with pytest.raises((PlanError, ParameterError)) as caught:
        build.plan(model, hardware, layout, variant=variant, site=site, pairs=pairs)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_context_parallel_ranks_share_the_devices_of_a_node(nodes_file):
    pairs = ["tp=4", "prefill-context-parallel-size=2", "decode-context-parallel-size=8"]
    plan = over(nodes_file, "h200", 1, *pairs, layout="single", variant="pip")
    (engine,) = plan.engines
    assert engine.devices == tuple(range(8)) and "pcp2" in plan.title
    (bar,) = judge.plan(plan).memory
    assert bar.fit.shape.expert_ranks == 8


def test_the_memory_of_a_pipeline_is_that_of_a_stage(nodes_file):
    """Two nodes of half of the layers have room for several times as many tokens as one node."""
    whole = judge.plan(over(nodes_file, "h200", 1, layout="single", variant="pip")).memory[0]
    stage = judge.plan(
        over(nodes_file, "h200", 2, "nodes=2", "pp=2", layout="single", variant="pip")
    ).memory[0]
    assert stage.fit.weights < 0.53 * whole.fit.weights
    assert stage.fit.tokens > 2 * whole.fit.tokens


def test_a_kv_port_for_each_device_of_a_rank_over_nodes(nodes_file, wide_model):
    """Ascend's connector listens at kv_port + rank x tp x pp + the device's number in its rank."""
    flags = ["kv-transfer-config.kv_connector=MooncakeConnectorV1"]
    plan = build.plan(
        wide_model,
        "h200",
        site=nodes_file("h200", 4),
        pairs=[
            *(f"{role}.{pair}" for role in ("prefill", "decode") for pair in flags),
            *("prefill.kv-port=36000", "decode.kv-port=36100"),
            *("prefill.tp=8", "prefill.pp=2"),
        ],
    )
    assert [engine.kv_ports for engine in plan.engines] == [
        range(36000, 36008),
        range(36008, 36016),
        range(36200, 36208),
        range(36208, 36216),
    ]
    sizes = plan.flags["decode"]
    base = "kv-transfer-config.kv_connector_extra_config"
    assert sizes[f"{base}.prefill.pp_size"].value == 2
    assert f"{base}.decode.pp_size" not in sizes
