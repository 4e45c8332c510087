"""The arithmetic of ports, rank by rank, and why a port of a role is idle."""

from __future__ import annotations

import itertools

import pytest

from kimi_nb.plan import build, ports


def test_the_ports_of_ranks_lie_side_by_side():
    """Of later ranks too: the first rank's ports are right by almost any formula."""
    ranges = [ports.kv(36000, rank, 4) for rank in range(4)]
    assert [list(one) for one in ranges] == [
        [36000, 36001, 36002, 36003],
        [36004, 36005, 36006, 36007],
        [36008, 36009, 36010, 36011],
        [36012, 36013, 36014, 36015],
    ]
    assert ports.kv(36000, 2, 4, ranks=2) == range(36008, 36016)
    assert ports.kv(36000, 0, 4, ranks=4) == range(36000, 36016)
    assert [ports.side_channel(5600, rank) for rank in (0, 3)] == [
        range(5600, 5601),
        range(5603, 5604),
    ]
    assert ports.side_channel(5600, 4, ranks=4) == range(5604, 5608)


def test_groups_have_ports_of_their_own_which_repeat_after_64():
    bases = [ports.kv_base(36000, group) for group in range(130)]
    assert bases[:3] == [36000, 36100, 36200] and len(set(bases)) == 64
    assert bases[63] == 42300 and bases[64:128] == bases[:64] and bases[129] == 36100
    assert max(bases) + 100 < ports.LAST


@pytest.mark.parametrize("devices", [1, 8, 16])
def test_random_ports_of_ascend(devices):
    assert ports.ascend_random(devices) == range(20000, 20000 + 1000 * devices)


def test_the_engines_of_a_plan_have_ranks_devices_and_kv_ports_of_their_own():
    plan = build.plan("k2.5", "a3", "pd")
    several = False
    for _, found in itertools.groupby(plan.engines, key=lambda one: (one.role, one.group)):
        engines = list(found)
        assert [one.rank for one in engines] == list(range(len(engines)))
        first = engines[0].kv_port
        tp = len(engines[0].devices)
        assert [one.kv_port for one in engines] == [first + tp * one.rank for one in engines]
        by_node = itertools.groupby(engines, key=lambda one: one.node)
        for _, same in by_node:
            here = [one.devices for one in same]
            several |= len(here) > 1
            flat = [number for numbers in here for number in numbers]
            assert flat == list(range(len(flat))), here
    assert several
    firsts = {one.kv_port for one in plan.engines if one.rank == 0}
    assert len(firsts) == len({(one.role, one.group) for one in plan.engines})


def test_one_process_for_a_node_has_the_devices_of_all_of_its_ranks():
    (engine,) = build.plan("k2.5", "a3", "single").engines
    assert (engine.ranks, engine.tp_size) == (4, 4)
    assert engine.devices == tuple(range(engine.ranks * engine.tp_size))


# kind, connector, per rank, nodes of a group, spans: words of why nothing listens, "" if something does
IDLE = [
    ("kv", "MooncakeConnectorV1", True, 1, False, ""),
    ("kv", "NixlConnector", True, 1, False, "Mooncake listens there, this is NixlConnector; its port is side-channel-port"),
    ("kv", None, True, 1, False, "a connector such as Mooncake listens there, and none is set"),
    ("kv", "", True, 1, False, "a connector such as Mooncake listens there, and none is set"),
    ("side_channel", "NixlConnector", True, 1, False, ""),
    ("side_channel", "MultiConnector", True, 1, False, ""),
    ("side_channel", "MooncakeConnectorV1", True, 1, False, "NIXL listens there, this is MooncakeConnectorV1; its port is kv-port"),
    ("side_channel", None, True, 1, False, "a connector such as NIXL listens there, and none is set: layout pd, or kv-transfer-config.kv_connector, brings one"),
    ("rpc", None, True, 1, False, ""),
    ("rpc", None, False, 2, False, ""),
    ("rpc", None, False, 1, False, "meet there: this is one process of one node (nodes=2 would make two)"),
    ("rpc", None, True, 2, True, "meet there: a rank over several nodes meets at master-port"),
    ("master", None, False, 2, True, ""),
    ("master", None, True, 2, False, "one engine over several nodes meets there"),
    ("http", None, True, 1, False, ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "connector", "per_rank", "nodes", "spans", "words"), IDLE)
def test_why_nothing_listens_at_a_port(kind, connector, per_rank, nodes, spans, words):
    said = ports.idle(kind, connector, per_rank, nodes, spans)
    assert said == "" if not words else words in said


def test_one_engine_on_one_node_meets_nobody():
    assert ports.idle("master", None, False, 1, False) == (
        "one engine over several nodes meets there: here each rank has room on one node"
    )
