"""Tests and tutorials of vllm-ascend: their deployments."""

from __future__ import annotations

import pytest
from small_checkouts import CASES, NODES, POOLS, TUTORIAL, ascend

from kimi_nb.upstream import vllm_ascend
from kimi_nb.upstream.checkout import open_checkout
from kimi_nb.upstream.published import Layout


@pytest.fixture
def checkout(tmp_path):
    """The small checkout."""
    return open_checkout(ascend(tmp_path))


def test_a_case_on_one_node(checkout):
    (one,) = [one for one in vllm_ascend.read(checkout, "toy") if one.id.endswith(":short")]
    assert one.id == "va-ci:weekly:Kimi-Toy:short"
    assert (one.model, one.hardware, one.status) == ("acme/Kimi-Toy-w4a8", "a2", "tested weekly")
    assert one.roles[0].argv == (
        ("--tensor-parallel-size", 8),
        ("--port", "$SERVER_PORT"),
        ("--enforce-eager", True),
    )
    # As the tests export them: by Python's str.
    assert one.roles[0].env == {"OMP_NUM_THREADS": "1", "FLAG": "False", "HCCL_BUFFSIZE": "800"}
    assert CASES.splitlines()[one.source.line - 1].strip() == "- name: short"
    assert one.notes == ('perf {"case_type": "performance", "num_prompts": 8, "baseline": 12.5}',)
    assert [said.partition(": ")[2] for said in checkout.unread] == [
        "the case proxy has no server_cmd."
    ]


def test_a_service_of_pools(checkout):
    one = next(one for one in vllm_ascend.read(checkout) if one.id == "va-ci:weekly:Kimi-Toy-PD")
    prefill, decode = one.roles
    assert (one.hardware, one.nodes, prefill.name, decode.name) == ("a3", 2, "prefill", "decode")
    assert prefill.layout == Layout(tp=8, dp=2)
    assert decode.layout == Layout(tp=4, dp=4, ep=True)
    assert prefill.flags["--data-parallel-rank"] == "${DP_RANK}"
    assert prefill.flags["--data-parallel-rpc-port"] == 12321
    assert POOLS.splitlines()[decode.line - 1].strip() == "- node_index: 1"
    assert one.notes[1] == "node 1: 4 ranks from rank 0, first port 7100"


def test_a_service_whose_commands_are_written_out(checkout):
    one = next(one for one in vllm_ascend.read(checkout) if one.id.endswith("Kimi-Toy-nodes"))
    head, worker = one.roles
    assert (one.hardware, one.nodes, head.name, worker.name) == ("a2", 2, "head", "worker")
    assert head.flags == {"--port": "$SERVER_PORT", "--speculative-config": {"method": "eagle3"}}
    assert worker.flags == {"--headless": True, "--data-parallel-start-rank": 1}
    assert NODES.splitlines()[worker.line - 1].strip() == "server_cmd: >"


def test_the_commands_of_a_tutorial(checkout):
    documented = [one for one in vllm_ascend.read(checkout) if one.status == "documented"]
    mixed, pools, many = documented
    assert mixed.id == f"va-docs:Kimi-Toy:{mixed.source.line}"
    assert "vllm serve" in TUTORIAL.splitlines()[mixed.source.line - 1]
    assert (mixed.hardware, mixed.nodes) == ("a3", 1)
    assert mixed.roles[0].env == {"HCCL_BUFFSIZE": "800"}
    assert mixed.strategy == "Toy / 5 Deploy / 5.1 One node"
    assert pools.strategy == "Toy / 5 Deploy / 5.2 Pools [Node 0(Prefill)]"
    # $3 and $7 are the launcher's; the connector states them.
    assert [(r.name, r.layout.tp, r.layout.dp) for r in pools.roles] == [
        ("prefill", 8, 2),
        ("decode", 4, 4),
    ]
    # What the document leaves to its reader stays as it is written, or nearly so.
    assert (many.model, many.hardware, many.nodes) == ("<TOY_PATH>", "a2", 4)
    head, worker = many.roles
    assert (head.name, worker.name, worker.nodes) == ("head", "worker", 3)
    assert head.flags["--host"] == "<node0_ip>"
    assert worker.flags["--data-parallel-start-rank"] == "<1_OR_2_OR_3>"


@pytest.mark.parametrize(
    "cases, said",
    [
        ("test_cases: {a: 1}", "test_cases: Input should be a valid tuple"),
        ("test_cases: [{name: x}]", "test_cases.0.model: Field required"),
        (CASES.replace("800", "[1]"), "HCCL_BUFFSIZE"),
        ("test_cases: [" * 70, "nested more than 64 levels deep"),
    ],
)
def test_a_configuration_that_cannot_be_read(tmp_path, cases, said):
    checkout = open_checkout(ascend(tmp_path, cases=cases + "\n# Kimi"))
    found = list(vllm_ascend.read(checkout))
    assert len(found) == 5 and len(checkout.unread) == 1
    assert said in checkout.unread[0]
