"""Groups, engine processes and their ports, each by itself: numbers, and refusals word by word."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params import load
from kimi_nb.params.schema import Node
from kimi_nb.params.settings import EMPTY, lay
from kimi_nb.plan import placement, ports
from kimi_nb.plan.roles import HYBRID, RolePlan

NO_PORTS = dict.fromkeys(("http", "rpc", "kv", "side_channel", "master"))
A3 = load.hardware("a3")  # 16 devices


def role(name="mixed", connector=None, flags=None, where=None, **sizes) -> RolePlan:
    """A role of one group on one node with one rank, but for what is said."""
    flags = dict(flags or {}) | (
        {"kv-transfer-config.kv_connector": connector} if connector else {}
    )
    shape = dict.fromkeys(("groups", "nodes", "dp", "tp", "pp"), 1) | sizes
    return RolePlan(
        role=name,
        ports=NO_PORTS | (where or {}),
        settings=lay(EMPTY, {"flags": flags}, "recipe", "a test"),
        features=(),
        host_tuning=False,
        notes=(),
        **shape,
    )


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(name=f"n{i}", address=f"192.0.2.{i + 1}") for i in range(count))


def site(count: int):
    return load.site("a3").model_copy(update={"name": "mine", "nodes": nodes(count)})


def groups(*roles: RolePlan, there: int = 4, per_rank: bool = False) -> list[placement.Group]:
    by_name = {one.role: one for one in roles}
    return placement.layout(by_name, A3, site(there), per_rank, 64)


# Groups -----------------------------------------------------------------------------------------


def test_groups_take_the_nodes_of_the_site_in_turn():
    prefill = role("prefill", groups=2, tp=8, pp=2, where={"kv": 36000, "side_channel": 5600})
    decode = role("decode", nodes=2, dp=4, tp=8, where={"kv": 30000, "rpc": 13395, "master": 29700})
    found = groups(prefill, decode)
    assert found == [
        placement.Group(0, "prefill", 0, 1, 8, 2, 1, False, nodes(1), None, 36000, 5600),
        placement.Group(1, "prefill", 1, 1, 8, 2, 1, False, nodes(2)[1:], None, 36100, 5600),
        placement.Group(2, "decode", 0, 4, 8, 1, 1, False, nodes(4)[2:], 13395, 30200, None, 29700),
    ]
    assert [one.address for one in found] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [one.world for one in found] == [16, 16, 8]


def test_the_world_of_a_rank_has_its_context_parallel_devices():
    (group,) = groups(role(tp=4, pp=2, flags={"prefill-context-parallel-size": 2}))
    assert (group.tp, group.pp, group.pcp, group.world) == (4, 2, 2, 16)


def test_a_group_answers_apart_where_its_settings_say_so():
    (group,) = groups(role(nodes=2, dp=4, tp=8, flags={HYBRID: True}))
    assert group.hybrid is True


@pytest.mark.parametrize(
    ("per_rank", "sizes", "given", "rpc"),
    [
        (False, {"dp": 2}, 13395, None),  # one process
        (False, {"dp": 2, "nodes": 2}, 13395, 13395),
        (False, {"dp": 2, "nodes": 2}, None, 29550),
        (True, {"dp": 2}, 13395, 13395),
        (True, {"dp": 2}, None, ports.RPC),
        (True, {"dp": 1}, 13395, None),
        (False, {"dp": 1, "nodes": 2, "tp": 32}, 13395, None),  # meets at the master port
    ],
)
def test_ranks_of_several_processes_meet_at_a_port(per_rank, sizes, given, rpc):
    (group,) = groups(role(where={"rpc": given}, **sizes), per_rank=per_rank)
    assert group.rpc_port == rpc


# Refusals of a layout -----------------------------------------------------------------------------


def refused(*roles: RolePlan, **there) -> str:
    with pytest.raises(PlanError) as caught:
        groups(*roles, **there)
    return str(caught.value)


def test_a_site_with_too_few_nodes_is_told_how_many_are_needed():
    prefill, decode = role("prefill", groups=2), role("decode", nodes=3, dp=3)
    assert refused(prefill, decode) == (
        "This plan needs 5 nodes (prefill 2 x 1 + decode 1 x 3: groups x nodes), the site mine has "
        "4: n0, n1, n2, n3. Add nodes to the site file (--site) or plan smaller (--set)."
    )
    assert len(groups(prefill, decode, there=5)) == 3
    nine = refused(role(groups=10), there=9)
    assert "has 9: n0, n1, n2, n3, n4, n5, n6, n7, .... Add" in nine
    eight = refused(role(groups=10), there=8)
    assert "has 8: n0, n1, n2, n3, n4, n5, n6, n7. Add" in eight


def test_mooncake_wants_as_many_prefill_ranks_as_decode_ranks():
    decode = role("decode", tp=8)
    assert refused(role("prefill", "MooncakeConnectorV1", tp=4), decode) == (
        "prefill tp 4 is less than decode tp 8: Mooncake hands each prefill rank's cache to as many "
        "decode ranks or fewer. Raise prefill.tp or lower decode.tp."
    )
    assert len(groups(role("prefill", "MooncakeConnectorV1", tp=8), decode)) == 2
    assert len(groups(role("prefill", "MooncakeConnectorV1", tp=16), decode)) == 2
    assert len(groups(role("prefill", "NixlConnector", tp=4), decode)) == 2
    assert len(groups(role("prefill", tp=4), decode)) == 2


@pytest.mark.parametrize(
    ("sizes", "per_rank", "words"),
    [
        ({"tp": 3}, False, "tp 3 does not divide the 64 attention heads"),
        ({"tp": 32}, False, "32 is more than the 16 devices"),
        ({"tp": 8, "pp": 2}, True, "pp 2 where each rank is one process"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_first(sizes, per_rank, words):
    assert words in refused(role(**sizes), per_rank=per_rank)


# Processes ----------------------------------------------------------------------------------------


def engines(one: RolePlan, per_rank: bool = False, devices: int = 16) -> list[placement.Place]:
    (group,) = groups(one, per_rank=per_rank)
    return list(placement.places(group, one, devices, per_rank))


def told(places: list[placement.Place]) -> list[tuple]:
    return [
        (
            *(one.name, one.node.name, one.rank, one.ranks, one.node_rank),
            *(one.devices, one.http_port, one.headless),
        )
        for one in places
    ]


def test_a_process_for_each_rank():
    both = tuple(range(8)), tuple(range(8, 16))
    found = engines(role("decode", nodes=2, dp=4, tp=8, where={"http": 7100}), per_rank=True)
    assert told(found) == [
        ("decode0-rank0", "n0", 0, 1, 0, both[0], 7100, False),
        ("decode0-rank1", "n0", 1, 1, 0, both[1], 7101, False),
        ("decode0-rank2", "n1", 2, 1, 0, both[0], 7100, False),
        ("decode0-rank3", "n1", 3, 1, 0, both[1], 7101, False),
    ]
    assert not any(one.spans for one in found)
    plain = engines(role(dp=2, tp=4, pp=1), per_rank=True)
    assert [one.http_port for one in plain] == [8000, 8001]


def test_a_process_for_each_node():
    found = engines(role(nodes=2, dp=4, tp=4, where={"http": 8010}))
    assert told(found) == [
        ("mixed0-rank0", "n0", 0, 2, 0, tuple(range(8)), 8010, False),
        ("mixed0-rank2", "n1", 2, 2, 0, tuple(range(8)), None, True),
    ]
    assert [one.http_port for one in engines(role(nodes=2, dp=4, tp=4))] == [8000, None]
    apart = engines(role(nodes=2, dp=4, tp=4, flags={HYBRID: True}, where={"http": 8010}))
    assert [(one.http_port, one.headless) for one in apart] == [(8010, False), (8010, False)]


def test_a_rank_over_nodes():
    """The first node of each rank begins it; only the first of all has the API."""
    found = engines(role(nodes=4, dp=2, tp=32, where={"http": 8010}))
    whole = tuple(range(16))
    assert told(found) == [
        ("mixed0-node0", "n0", 0, 1, 0, whole, 8010, False),
        ("mixed0-node1", "n1", 0, 1, 1, whole, None, True),
        ("mixed0-node2", "n2", 1, 1, 2, whole, None, True),
        ("mixed0-node3", "n3", 1, 1, 3, whole, None, True),
    ]
    assert all(one.spans for one in found)
    assert [one.http_port for one in engines(role(nodes=2, tp=32))] == [8000, None]


def test_a_rank_that_fills_its_node_does_not_span():
    whole = tuple(range(16))
    found = engines(role(nodes=2, dp=2, tp=16))
    assert told(found) == [
        ("mixed0-rank0", "n0", 0, 1, 0, whole, 8000, False),
        ("mixed0-rank1", "n1", 1, 1, 0, whole, None, True),
    ]
    assert not any(one.spans for one in found)


# Ports --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "per_rank", "kv", "side"),
    [
        ({"dp": 2, "tp": 8}, True, [(36000, 36008), (36008, 36016)], [(5600, 5601), (5601, 5602)]),
        ({"dp": 2, "tp": 8}, False, [(36000, 36016)], [(5600, 5602)]),
        (
            {"nodes": 2, "dp": 4, "tp": 4, "pp": 2},
            False,
            [(36000, 36016), (36016, 36032)],
            [(5600, 5602), (5602, 5604)],
        ),
        (
            {"nodes": 2, "tp": 32},
            False,
            [(36000, 36016), (36016, 36032)],
            [(5600, 5601), (5600, 5601)],
        ),
    ],
)
def test_the_ports_of_the_cache(sizes, per_rank, kv, side):
    one = role(where={"kv": 36000, "side_channel": 5600}, **sizes)
    found = engines(one, per_rank)
    assert [(place.kv_ports.start, place.kv_ports.stop) for place in found] == kv
    sides = [place.side_channel_ports for place in found]
    assert [(ports.start, ports.stop) for ports in sides] == side


def test_without_a_base_nothing_of_the_cache_listens():
    (place,) = engines(role(tp=16))
    assert list(place.kv_ports) == [] and list(place.side_channel_ports) == []


def test_the_connector_of_a_role():
    assert placement.connector(role(connector="NixlConnector")) == "NixlConnector"
    assert placement.connector(role(connector=7)) == "7"
    assert placement.connector(role()) is None


@pytest.mark.parametrize(
    ("given", "sizes", "per_rank", "says"),
    [
        ({"kv": 36000, "rpc": 13395}, {"connector": "MooncakeConnectorV1", "dp": 2}, True, ""),
        (
            {"side_channel": 5600},
            {"connector": "MooncakeConnectorV1"},
            True,
            "--set decode.side-channel-port=5600 would change nothing: NIXL listens there, this is "
            "MooncakeConnectorV1; its port is kv-port.",
        ),
        (
            {"rpc": 13395},
            {"dp": 2},
            False,
            "--set decode.rpc-port=13395 would change nothing: the processes of one data parallel "
            "group meet there: this is one process of one node (nodes=2 would make two).",
        ),
        ({"rpc": 13395}, {"nodes": 2, "dp": 2}, False, ""),
        ({"rpc": 13395}, {"nodes": 4, "dp": 2, "tp": 32}, False, ""),
        (
            {"rpc": 13395},
            {"nodes": 2, "tp": 32},
            False,
            "--set decode.rpc-port=13395 would change nothing: the processes of one data parallel "
            "group meet there: a rank over several nodes meets at master-port.",
        ),
        ({"master": 29700}, {"nodes": 2, "tp": 32}, False, ""),
        ({"master": 29700}, {"tp": 17}, False, ""),
        (
            {"master": 29700},
            {"tp": 16},
            False,
            "--set decode.master-port=29700 would change nothing: one engine over several nodes "
            "meets there: here each rank has room on one node.",
        ),
    ],
)
def test_a_port_is_refused_where_nothing_listens(given, sizes, per_rank, says):
    one = role("decode", **sizes)
    if not says:
        assert placement.check_set_ports(one, given, A3, per_rank) is None
        return
    with pytest.raises(ParameterError) as caught:
        placement.check_set_ports(one, given, A3, per_rank)
    assert str(caught.value) == says


def claimed(places: list[placement.Place], *extra: tuple[str, int, str]) -> str:
    """What is said of the listeners of these places, and of others; "" where all have room."""
    try:
        placement.check_ports(places, list(extra))
    except PlanError as error:
        return str(error)
    return ""


WANTS = {"http": 7100, "rpc": 7200, "kv": 7300, "side_channel": 7400}


@pytest.mark.parametrize(
    ("node", "port", "by"),
    [
        ("n0", 7100, "HTTP of decode0-rank0"),
        ("n0", 7101, "HTTP of decode0-rank1"),
        ("n1", 7101, "HTTP of decode0-rank3"),
        ("n0", 7102, ""),
        ("n0", 7200, "the rpc port of decode group 0"),
        ("n1", 7200, ""),
        ("n0", 7300, "the KV cache of decode0-rank0"),
        ("n0", 7315, "the KV cache of decode0-rank1"),
        ("n0", 7316, ""),
        ("n1", 7316, "the KV cache of decode0-rank2"),
        ("n0", 7401, "the NIXL side channel of decode0-rank1"),
        ("n1", 7403, "the NIXL side channel of decode0-rank3"),
        ("n1", 7401, ""),
        ("n2", 7100, ""),
    ],
)
def test_who_listens_where(node, port, by):
    places = engines(role("decode", nodes=2, dp=4, tp=8, where=WANTS), per_rank=True)
    said = claimed(places, (node, port, "the router"))
    assert said == (
        f"{node}: port {port} is wanted twice: by {by} and by the router. Move one of them (--set "
        "port=, kv-port=, rpc-port=, master-port=, router.port=)."
        if by
        else ""
    )


@pytest.mark.parametrize("given", [29700, None])
def test_a_rank_over_nodes_meets_at_the_master_port(given):
    port = given or 29501
    places = engines(role(nodes=4, dp=2, tp=32, where={"rpc": 7200, "master": given}))
    said = f"n0: port {port} is wanted twice: by the master port of mixed0-node0 and by a door"
    assert claimed(places, ("n0", port, "a door")).startswith(said)
    others = [("n1", port), ("n2", port), ("n1", 7200), ("n2", 7200), ("n1", 8000)]
    for node, free in others:
        assert claimed(places, (node, free, "a door")) == "", (node, free)
    assert "the rpc port of mixed group 0" in claimed(places, ("n0", 7200, "a door"))


def test_the_first_of_two_claims_is_named_first():
    places = engines(role(tp=16, where={"http": 7100, "side_channel": 7100}))
    assert "7100 is wanted twice: by HTTP of mixed0-rank0 and by the NIXL side" in claimed(places)


def test_no_port_is_above_the_last_one():
    places = engines(role(tp=16))
    assert claimed(places, ("n0", 65535, "the router")) == ""
    assert claimed(places, ("n0", 65536, "the router")) == (
        "n0: the router would listen at port 65536; the last one is 65535. Lower the first port."
    )
    assert claimed(places, ("n1", 8000, "a"), ("n1", 8000, "b")).startswith(
        "n1: port 8000 is wanted twice: by a and by b."
    )
