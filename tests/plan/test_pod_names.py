"""Pods as a LeaderWorkerSet names them: those of the roles of a plan, and the nodes they replace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kimi_nb.params import load
from kimi_nb.params.kubernetes_site import Kubernetes, Volume
from kimi_nb.params.schema import Node
from kimi_nb.params.settings import EMPTY
from kimi_nb.plan import pod_names
from kimi_nb.plan.pod_names import PodSet
from kimi_nb.plan.roles import RolePlan

CLUSTER = Kubernetes(
    context="lab",
    namespace="team",
    name="kimi",
    device="nvidia.com/gpu",
    weights=Volume(claim="weights"),
)


def site(count: int):
    nodes = tuple(Node(name=f"n{i}", address=f"192.0.2.{i + 1}") for i in range(count))
    return load.site("h200").model_copy(update={"nodes": nodes, "kubernetes": CLUSTER})


def role(name: str, groups: int, nodes: int) -> RolePlan:
    return RolePlan(name, groups, nodes, 1, 8, {}, EMPTY, (), False, ())


# Two groups of one node, and one group of three.
ROLES = {"prefill": role("prefill", 2, 1), "decode": role("decode", 1, 3)}
PODS = [
    ("kimi-prefill-0", "kimi-prefill-0.kimi-prefill.team"),
    ("kimi-prefill-1", "kimi-prefill-1.kimi-prefill.team"),
    ("kimi-decode-0", "kimi-decode-0.kimi-decode.team"),
    ("kimi-decode-0-1", "kimi-decode-0-1.kimi-decode.team"),
    ("kimi-decode-0-2", "kimi-decode-0-2.kimi-decode.team"),
]


@pytest.mark.parametrize("count", [3, 5, 7])
def test_pods_stand_in_the_place_of_nodes(count):
    """A site with fewer nodes keeps its number, so that the plan is refused for want of nodes."""
    before = site(count)
    made = pod_names.site_of_pods(before, ROLES)
    assert [(one.name, one.address) for one in made.nodes[:5]] == PODS[:count]
    assert made.nodes[5:] == before.nodes[5:] and len(made.nodes) == count
    assert made.model_copy(update={"nodes": before.nodes}) == before


def test_the_workers_of_a_second_group_follow_its_leader():
    made = pod_names.site_of_pods(site(4), {"mixed": role("mixed", 2, 2)})
    names = ["kimi-mixed-0", "kimi-mixed-0-1", "kimi-mixed-1", "kimi-mixed-1-1"]
    assert [one.name for one in made.nodes] == names


def test_the_front_door():
    assert pod_names.door_node(CLUSTER) == "kimi-router"
    assert pod_names.door_host(CLUSTER) == "kimi.team"


def test_the_sets_of_a_plan_have_each_node_once():
    engines = [
        SimpleNamespace(role=name, group=group, node=node)
        for name, group, node in [
            ("prefill", 0, "kimi-prefill-0"),
            ("prefill", 1, "kimi-prefill-1"),
            ("decode", 2, "kimi-decode-0"),
            ("decode", 2, "kimi-decode-0"),
            ("decode", 2, "kimi-decode-0-1"),
        ]
    ]
    plan = SimpleNamespace(engines=engines, request=SimpleNamespace(site=site(5)))
    first, second = pod_names.sets(plan)
    assert first == PodSet("kimi-prefill", "prefill", (("kimi-prefill-0",), ("kimi-prefill-1",)))
    assert second == PodSet("kimi-decode", "decode", (("kimi-decode-0", "kimi-decode-0-1"),))
    assert (first.size, second.size) == (1, 2)
