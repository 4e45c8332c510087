"""Sizes of parallelism: which fit 16 devices a node and 64 heads, and each refusal word by word."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import PlanError
from kimi_nb.params import load
from kimi_nb.params.settings import EMPTY, lay
from kimi_nb.plan import sizes
from kimi_nb.plan.roles import HYBRID, RolePlan

NO_PORTS = dict.fromkeys(("http", "rpc", "kv", "side_channel", "master"))
A3 = load.hardware("a3")  # 16 devices
NODE = "Atlas 800 A3 (16 NPUs of 64 GB)"
PCP, DCP = "prefill-context-parallel-size", "decode-context-parallel-size"


def role(name="mixed", pcp=None, dcp=None, hybrid=None, **shape) -> RolePlan:
    """A role of one group on one node with one rank, but for what is said."""
    flags = {PCP: pcp, DCP: dcp, HYBRID: hybrid}
    return RolePlan(
        role=name,
        ports=NO_PORTS,
        settings=lay(
            EMPTY,
            {"flags": {flag: value for flag, value in flags.items() if value is not None}},
            "recipe",
            "a test",
        ),
        features=(),
        host_tuning=False,
        notes=(),
        **dict.fromkeys(("groups", "nodes", "dp", "tp", "pp"), 1) | shape,
    )


def said(one: RolePlan, per_rank: bool = False, heads: int = 64) -> str:
    """What the refusal of these sizes says, "" without one."""
    try:
        sizes.check(one, A3, per_rank, heads)
    except PlanError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("shape", "per_rank"),
    [
        ({"tp": 16}, False),
        ({"tp": 16}, True),
        ({"dp": 2, "tp": 8}, False),
        ({"dp": 4, "tp": 8, "nodes": 2}, True),
        ({"dp": 4, "tp": 4}, False),
        ({"tp": 8, "pp": 2}, False),
        ({"tp": 8, "pcp": 2}, True),
        ({"tp": 8, "dcp": 4}, False),
        ({"tp": 4, "pcp": 2, "dcp": 1}, False),
        ({"tp": 4, "pcp": 2, "dcp": 2}, False),
        ({"tp": 4, "pcp": 2, "dcp": 8}, False),
        ({"tp": 32, "nodes": 2}, False),
        ({"tp": 16, "pp": 2, "nodes": 2}, False),
        ({"tp": 32, "dp": 2, "nodes": 4}, False),
        ({"dp": 4, "tp": 8, "nodes": 2, "hybrid": True}, False),
        ({"tp": 16, "hybrid": False}, True),
    ],
)
def test_sizes_that_fit(shape, per_rank):
    assert said(role(**shape), per_rank) == ""


def test_tp_divides_the_heads():
    assert said(role("decode", tp=12)) == (
        "decode: tp 12 does not divide the 64 attention heads (64 / 12 = 5.33); "
        "allowed: 1, 2, 4, 8, 16, 32, 64."
    )
    assert said(role(tp=4), heads=6) == (
        "mixed: tp 4 does not divide the 6 attention heads (6 / 4 = 1.50); allowed: 1, 2, 3, 6."
    )


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"tp": 8, "dcp": 3}, "3 does not divide tp 8 (a test)"),
        ({"tp": 8, "dcp": 16}, "16 does not divide tp 8 (a test)"),
        ({"tp": 8, "pcp": 1, "dcp": 16}, "16 does not divide tp 8 (a test)"),
    ],
)
def test_decode_context_parallelism_splits_the_ranks_of_tp(shape, words):
    assert said(role(**shape)) == (
        f"mixed: decode-context-parallel-size {words}: it splits the ranks of one tensor parallel "
        "group."
    )


@pytest.mark.parametrize("dcp", [3, 4])
def test_beside_prefill_context_parallelism_three_sizes_are_allowed(dcp):
    assert said(role(tp=4, pcp=2, dcp=dcp)) == (
        f"mixed: decode-context-parallel-size {dcp} (a test) beside prefill-context-parallel-size 2 "
        "and tp 4: vLLM allows 1, 2 and 8 (tp x pcp)."
    )


def test_pipeline_stages_need_one_process_on_each_node():
    assert said(role("prefill", tp=4, pp=2), per_rank=True) == (
        "prefill: pp 2 where each rank is one process that launch_online_dp.py starts: it counts tp "
        "devices for a rank. Take prefill.pp away, or choose a recipe with one process on each node."
    )


@pytest.mark.parametrize(
    ("one", "per_rank", "why", "name"),
    [
        (
            role(dp=4, tp=8, nodes=2, hybrid=True),
            True,
            "each rank is a process with --data-parallel-rank and its own API, and vLLM refuses two "
            "ways of balancing at once",
            HYBRID,
        ),
        (
            role("decode", tp=32, nodes=2, hybrid=True),
            False,
            "a rank of 32 devices spans nodes, of which only the first answers for the others",
            f"decode.{HYBRID}",
        ),
        (
            role("prefill", dp=2, tp=8, hybrid=True),
            False,
            "a group on one node has one API anyway",
            f"prefill.{HYBRID}",
        ),
        (role(tp=16, hybrid=True), False, "a group on one node has one API anyway", HYBRID),
    ],
)
def test_nodes_that_cannot_answer_for_their_own_ranks(one, per_rank, why, name):
    assert said(one, per_rank) == (
        f"{one.role}: {HYBRID} lets every node of a group answer for its own ranks; here {why}. "
        f"Take it away (--set {name}=null)."
    )


@pytest.mark.parametrize(
    ("shape", "product", "factors", "found"),
    [
        ({"tp": 32}, "tp 32", "tp", "dp 1 x 32 = 32 and 1 x 16 = 16"),
        ({"tp": 32, "nodes": 3}, "tp 32", "tp", "dp 1 x 32 = 32 and 3 x 16 = 48"),
        (
            {"tp": 8, "pp": 3, "dp": 2, "nodes": 3},
            "tp 8 x pp 3 = 24",
            "tp x pp",
            "dp 2 x 24 = 48 and 3 x 16 = 48",
        ),
        (
            {"tp": 16, "pcp": 2, "dp": 2, "nodes": 2},
            "tp 16 x pcp 2 = 32",
            "tp x pcp",
            "dp 2 x 32 = 64 and 2 x 16 = 32",
        ),
        (
            {"tp": 8, "pp": 2, "pcp": 2, "nodes": 4},
            "tp 8 x pp 2 x pcp 2 = 32",
            "tp x pp x pcp",
            "dp 1 x 32 = 32 and 4 x 16 = 64",
        ),
    ],
)
def test_a_rank_over_nodes_takes_all_devices_of_each(shape, product, factors, found):
    assert said(role(**shape)) == (
        f"mixed: {product} is more than the 16 devices of one {NODE}. Over nodes it works with all "
        f"devices of each: {factors} = a multiple of 16, and dp x {factors} = nodes x 16; found "
        f"{found}."
    )


@pytest.mark.parametrize(
    ("shape", "heads", "product", "allowed"),
    [
        ({"tp": 32, "nodes": 2}, 64, "tp 32", "1, 2, 4, 8, 16"),
        ({"tp": 24, "nodes": 2}, 48, "tp 24", "1, 2, 3, 4, 6, 8, 12, 16"),
        ({"tp": 16, "pcp": 2}, 64, "tp 16 x pcp 2 = 32", "1, 2, 4, 8"),
    ],
)
def test_a_rank_that_is_one_process_stays_on_one_node(shape, heads, product, allowed):
    assert said(role("decode", **shape), True, heads) == (
        f"decode: {product} is more than the 16 devices of one {NODE}, and here each rank is one "
        f"process on one node, which launch_online_dp.py starts; allowed: {allowed}. Lower "
        "decode.tp, and raise decode.dp to use more nodes."
    )


def test_every_node_has_as_many_ranks():
    assert said(role(dp=5, tp=4, nodes=2)) == (
        "mixed: dp 5 over 2 nodes is 2.50 ranks a node; dp must be a multiple of 2."
    )


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (
            {"dp": 3, "tp": 8},
            "dp 3 over 1 node is 3 ranks a node; 3 ranks x tp 8 = 24 devices",
        ),
        (
            {"dp": 6, "tp": 4, "pp": 2, "nodes": 2},
            "dp 6 over 2 nodes is 3 ranks a node; 3 ranks x tp 4 x pp 2 = 24 devices",
        ),
        (
            {"dp": 2, "tp": 4, "pcp": 4},
            "dp 2 over 1 node is 2 ranks a node; 2 ranks x tp 4 x pcp 4 = 32 devices",
        ),
    ],
)
def test_the_ranks_of_a_node_fit_its_devices(shape, words):
    assert said(role(**shape)) == f"mixed: {words}, one {NODE} has 16."
