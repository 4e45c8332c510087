"""Command lines and variables of engines: what a role shares, and in which words its engines differ."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_nb.params import schema
from kimi_nb.params.schema import Node
from kimi_nb.params.settings import EMPTY, Value, lay
from kimi_nb.plan import build, command_lines, placement
from kimi_nb.plan.command_lines import argv_of, role_values, text_of
from kimi_nb.plan.roles import HYBRID, Request, RolePlan

PORTS = dict.fromkeys(("http", "rpc", "kv", "side_channel", "master"))
ASKED = build.request("k2.5", "h200", "single")


def request(of: Request = ASKED, **recipe) -> Request:
    return dataclasses.replace(of, recipe=of.recipe.model_copy(update=recipe))


def role(name="mixed", flags=None, env=None, ports=None, host=(), **sizes) -> RolePlan:
    """A role of one rank on one device of one node, but for what is said."""
    shape = dict.fromkeys(("groups", "nodes", "dp", "tp", "pp"), 1) | sizes
    return RolePlan(
        role=name,
        ports=PORTS | (ports or {}),
        settings=lay(EMPTY, {"flags": flags or {}, "env": env or {}}, "recipe", "a test"),
        features=(),
        host_tuning=False,
        notes=(),
        host=host,
        **shape,
    )


# Words --------------------------------------------------------------------------------------------


def test_a_command_line_begins_with_host_port_and_name():
    flags = {
        "seed": 1,
        "eplb-config.step_interval": 2,
        "port": 8000,
        "served-model-name": "m",
        "enable-x": True,
        "enable-y": False,
        "eplb-config.b": [1, "a"],
        "host": "h",
        "rate": 0.5,
    }
    assert argv_of("/w", flags) == (
        *("vllm", "serve", "/w", "--host", "h", "--port", "8000", "--served-model-name", "m"),
        *("--seed", "1", "--eplb-config", '{"step_interval":2,"b":[1,"a"]}'),
        *("--enable-x", "--no-enable-y", "--rate", "0.5"),
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [({"a": {"b": 1}}, '{"a":{"b":1}}'), ([1, 2], "[1,2]"), (1, "1"), (0.9, "0.9"), ("a b", "a b")],
)
def test_a_value_is_one_word(value, text):
    assert text_of(value) == text


# What a role shares -------------------------------------------------------------------------------


def worked_out(value, reason="") -> Value:
    return Value(value, "plan", "worked out", reason)


def test_sizes_are_told_where_they_are_not_one():
    one = role(flags={"seed": 1}, env={"A": "1"}, tp=8)
    flags, env = role_values(request(), one, {"mixed": one}, 1)
    assert flags == {
        "seed": Value(1, "recipe", "a test"),
        "tensor-parallel-size": worked_out(8),
    }
    assert env == {"A": Value("1", "recipe", "a test")}
    wide = role(tp=4, dp=2, pp=2)
    flags, env = role_values(request(), wide, {"mixed": wide}, 1)
    assert flags == {
        "tensor-parallel-size": worked_out(4),
        "pipeline-parallel-size": worked_out(2),
        "data-parallel-size": worked_out(2),
    }
    assert env == {}
    flags, _ = role_values(request(), role(tp=1, dp=2), {}, 1)
    assert "pipeline-parallel-size" not in flags and flags["tensor-parallel-size"].value == 1


CONNECTOR = {"kv-transfer-config": {"kv_connector": "MooncakeConnectorV1"}}
BASE = "kv-transfer-config.kv_connector_extra_config"


@pytest.mark.parametrize(
    ("name", "says"),
    [("prefill", "kv_producer"), ("decode", "kv_consumer"), ("mixed", "kv_both")],
)
def test_a_connector_is_told_its_role_and_the_sizes_of_both(name, says):
    of = request(roles={name: schema.RoleSpec()})
    mine = role(name, CONNECTOR, ports={"kv": 36000}, tp=8)
    other = role("other", CONNECTOR, tp=2, dp=4, pp=2)
    flags, _ = role_values(of, mine, {name: mine, "other": other}, 1)
    found = {key: it for key, it in flags.items() if key.startswith("kv-transfer-config")}
    assert found == {
        "kv-transfer-config.kv_connector": Value("MooncakeConnectorV1", "recipe", "a test"),
        "kv-transfer-config.kv_role": worked_out(says),
        f"{BASE}.{name}.dp_size": worked_out(1),
        f"{BASE}.{name}.tp_size": worked_out(8),
        f"{BASE}.other.dp_size": worked_out(4),
        f"{BASE}.other.tp_size": worked_out(2),
        f"{BASE}.other.pp_size": worked_out(2),
    }
    without_a_port = dataclasses.replace(mine, ports=PORTS)
    flags, _ = role_values(of, without_a_port, {name: mine, "other": other}, 1)
    assert [key for key in flags if key.startswith("kv-")] == [
        *("kv-transfer-config.kv_connector", "kv-transfer-config.kv_role"),
    ]
    plain = dataclasses.replace(mine, settings=EMPTY)
    flags, _ = role_values(of, plain, {name: plain}, 1)
    assert not [key for key in flags if key.startswith("kv-")]


def test_the_network_of_several_nodes_has_variables():
    chip = ASKED.hardware.model_copy(update={"network_env": {"A": "{nic}", "B": "2"}})
    site = ASKED.site.model_copy(update={"name": "mine"})
    of = dataclasses.replace(ASKED, hardware=chip, site=site)
    one = role(env={"B": "own"})
    _, env = role_values(of, one, {"mixed": one}, 2)
    assert env == {
        "B": Value("own", "recipe", "a test"),
        "A": Value("{nic}", "site", "site mine", "the plan has more than one node"),
    }
    assert set(role_values(of, one, {"mixed": one}, 1)[1]) == {"B"}


def test_the_port_of_nixl_is_a_variable():
    one = role(ports={"side_channel": 5600})
    _, env = role_values(request(), one, {"mixed": one}, 1)
    assert env == {
        "VLLM_NIXL_SIDE_CHANNEL_PORT": worked_out(
            "5600", "the base: vLLM adds the data parallel rank itself"
        )
    }


def test_a_size_of_a_derived_recipe_has_its_rule():
    marks = schema.Derivation(
        model="k2.6",
        hardware="a3",
        layout="single",
        variant="docker",
        base="there",
        kept="as there",
        steps=({"what": "mixed.tp", "value": "8", "rule": "heads / 8"},),
    )
    spec = schema.RoleSpec(tp=8, dp=2)
    of = request(derivation=marks, roles={"mixed": spec})
    flags, _ = role_values(of, role(tp=8, dp=2), {}, 1)
    assert flags["tensor-parallel-size"].reason == "derived from there: heads / 8"
    assert flags["data-parallel-size"].reason == "derived from there: as there"
    flags, _ = role_values(of, role(tp=4, dp=4), {}, 1)
    assert {flags[name].reason for name in flags} == {""}
    both = request(derivation=marks, roles={"decode": schema.RoleSpec(tp=2), "prefill": spec})
    flags, _ = role_values(both, role("prefill", tp=8), {}, 1)
    assert flags["tensor-parallel-size"].reason == "derived from there: as there"


# In which flags an engine differs -----------------------------------------------------------------


def nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(name=f"n{i}", address=f"192.0.2.{i + 1}") for i in range(count))


def group(one: RolePlan, rpc=None, kv=None, index=0, number=0) -> placement.Group:
    return placement.Group(
        index=index,
        role=one.role,
        number=number,
        dp=one.dp,
        tp=one.tp,
        pp=one.pp,
        pcp=one.pcp,
        hybrid=one.hybrid,
        nodes=nodes(one.nodes),
        rpc_port=rpc,
        kv_port=kv,
        side_channel_port=one.ports["side_channel"],
        master_port=one.ports["master"],
    )


def flags_of(of: Request, one: RolePlan, **more) -> list[dict]:
    per_rank = of.recipe.processes == "rank"
    places = placement.places(group(one, **more), one, 8, per_rank)
    return [command_lines.place_flags(of, one, place) for place in places]


ALL, ADDRESS = {"bind": "all"}, {"bind": "address"}


@pytest.mark.parametrize(
    ("recipe", "given", "sizes", "host"),
    [
        (ADDRESS, (), {}, "192.0.2.1"),
        (ALL | {"install": "docker"}, (), {}, None),
        (ALL | {"install": "docker", "layout": "pd"}, (), {}, "192.0.2.1"),
        (ALL | {"install": "pip", "layout": "pd"}, (), {}, None),
        (ALL, (), {"nodes": 2, "dp": 2}, "192.0.2.1"),
        (ALL | {"jobs": True}, (), {"nodes": 2, "dp": 2}, None),
        (ADDRESS, "0.0.0.0", {}, "0.0.0.0"),
        (ADDRESS, None, {}, None),
    ],
)
def test_where_an_engine_listens(recipe, given, sizes, host):
    of = request(**{"install": "pip"} | recipe)
    first = flags_of(of, role(host=given, **sizes))[0]
    assert first.get("host") == host and ("host" in first) == (host is not None)


def test_each_engine_listens_at_the_address_of_its_own_node():
    found = flags_of(request(bind="address"), role(nodes=2, dp=2))
    assert [one["host"] for one in found] == ["192.0.2.1", "192.0.2.2"]


BARE = request(bind="all", install="pip")
PER_RANK = request(bind="all", install="pip", processes="rank")


def test_the_port_is_told_where_the_recipe_has_one():
    (plain,) = flags_of(BARE, role())
    assert plain == {}
    (told,) = flags_of(BARE, role(ports={"http": 8010}))
    assert told == {"port": 8010}
    ranks = flags_of(PER_RANK, role(dp=2, ports={"http": 8010}))
    assert [one["port"] for one in ranks] == [8010, 8011]
    # A follower of a group has no API, but the flag of its role.
    group = flags_of(BARE, role(nodes=2, dp=2, ports={"http": 8010}))
    assert [one["port"] for one in group] == [8010, 8010]


def test_a_rank_over_nodes():
    found = flags_of(BARE, role(nodes=2, tp=16, ports={"master": 29700}))
    meets = {"host": "192.0.2.1", "master-addr": "192.0.2.1", "master-port": 29700, "nnodes": 2}
    assert found == [
        meets | {"node-rank": 0},
        meets | {"host": "192.0.2.2", "node-rank": 1, "headless": True},
    ]
    assert "master-port" not in flags_of(BARE, role(nodes=2, tp=16))[0]


def test_a_process_for_each_rank_is_told_its_number():
    found = flags_of(PER_RANK, role(dp=3), rpc=13395)
    meets = {"data-parallel-address": "192.0.2.1", "data-parallel-rpc-port": 13395}
    assert found == [{"data-parallel-rank": rank} | meets for rank in range(3)]
    assert flags_of(PER_RANK, role(dp=1)) == [{}]


def test_the_nodes_of_a_group_are_told_their_ranks():
    found = flags_of(BARE, role(nodes=2, dp=4), rpc=13395)
    meets = {"data-parallel-address": "192.0.2.1", "data-parallel-rpc-port": 13395}
    assert found == [
        {"host": "192.0.2.1", "data-parallel-size-local": 2} | meets,
        {"host": "192.0.2.2", "data-parallel-size-local": 2, "data-parallel-start-rank": 2}
        | meets
        | {"headless": True},
    ]
    apart = flags_of(BARE, role(nodes=2, dp=4, flags={HYBRID: True}))
    assert not any("headless" in one for one in apart)
    assert flags_of(BARE, role(dp=4)) == [{}]


def test_the_connector_is_told_its_port_and_its_group():
    (found,) = flags_of(BARE, role(), kv=36100, index=1)
    assert found == {"kv-transfer-config.kv_port": 36100, "kv-transfer-config.engine_id": "1"}


# The engines of a group ---------------------------------------------------------------------------


def test_placeholders_of_an_engine():
    site = ASKED.site.model_copy(update={"nic": "eth7"})
    of = dataclasses.replace(ASKED, site=site)
    first, second = placement.places(group(role(nodes=2, dp=2)), role(nodes=2, dp=2), 8, False)
    folder = f"{of.folder}/n"
    assert command_lines.words_of(of, second) == {
        "address": "192.0.2.2",
        "nic": "eth7",
        "leader": "192.0.2.1",
        "node_folder": f"{folder}1",
    }
    own = dataclasses.replace(first, node=Node(name="n0", address="192.0.2.9", nic="ib0"))
    assert command_lines.words_of(of, own) == {
        "address": "192.0.2.9",
        "nic": "ib0",
        "leader": "192.0.2.1",
        "node_folder": f"{folder}0",
    }


def engines(of: Request, one: RolePlan, flags: dict, env: dict, **more):
    where = group(one, **more)
    places = list(placement.places(where, one, 8, of.recipe.processes == "rank"))
    return list(command_lines.group_engines(of, one, places, flags, env))


def test_every_engine_has_its_own_words_in_the_command_of_its_role():
    one = role("decode", dp=2, tp=4, ports={"http": 7100, "side_channel": 5600})
    found = engines(
        PER_RANK,
        one,
        {"seed": 1, "kv-transfer-config.kv_connector": "C"},
        {"A": "1", "B": "{address}:{other}", "C": "{nic}"},
        rpc=13395,
        kv=36000,
        index=2,
        number=3,
    )
    head = ("vllm", "serve", "moonshotai/Kimi-K2.5")
    config = '{"kv_connector":"C","kv_port":36000,"engine_id":"2"}'
    for rank, engine in enumerate(found):
        assert engine.argv == (
            *(*head, "--port", str(7100 + rank), "--seed", "1", "--kv-transfer-config", config),
            *("--data-parallel-rank", str(rank), "--data-parallel-address", "192.0.2.1"),
            *("--data-parallel-rpc-port", "13395"),
        )
        assert engine.env == {
            "A": "1",
            "B": "192.0.2.1:{other}",
            "C": "eth0",
            "CUDA_VISIBLE_DEVICES": ",".join(str(4 * rank + i) for i in range(4)),
        }
        assert (engine.name, engine.node, engine.address) == (
            *(f"decode3-rank{rank}", "n0", "192.0.2.1"),
        )
        assert (engine.role, engine.group, engine.rank, engine.ranks) == ("decode", 3, rank, 1)
        assert (engine.dp_size, engine.tp_size, engine.pp_size, engine.pcp_size) == (2, 4, 1, 1)
        assert engine.devices == tuple(range(4 * rank, 4 * rank + 4))
        assert (engine.http_port, engine.rpc_port) == (7100 + rank, 13395)
        assert (engine.kv_port, engine.side_channel_port) == (36000 + 4 * rank, 5600 + rank)
        assert engine.headless is False


def test_an_engine_for_each_node():
    one = role(flags={"prefill-context-parallel-size": 2}, nodes=3, dp=3, tp=2, pp=2)
    given = {"tensor-parallel-size": 2}
    found = engines(BARE, one, given, {"A": "1"}, rpc=13395)
    words = [dict(zip(it.argv, it.argv[1:], strict=False)) for it in found]
    assert [it["--host"] for it in words] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [it.get("--data-parallel-start-rank") for it in words] == [None, "1", "2"]
    assert ["--headless" in it.argv for it in found] == [False, True, True]
    assert [it.headless for it in found] == [False, True, True]
    assert [it.env for it in found] == [{"A": "1"}] * 3
    assert {(it.pp_size, it.pcp_size) for it in found} == {(2, 2)}
    assert {(it.kv_port, it.side_channel_port) for it in found} == {(None, None)}


def test_a_host_that_is_a_word_of_the_command_is_replaced_in_its_place_only():
    """The values are found by their flags: the address of the first engine is a value of two."""
    one = role(nodes=3, dp=3)
    found = engines(request(bind="address"), one, {"seed": 1}, {}, rpc=13395)
    for at, engine in enumerate(found):
        words = dict(zip(engine.argv, engine.argv[1:], strict=False))
        assert words["--host"] == f"192.0.2.{at + 1}"
        assert words["--data-parallel-address"] == "192.0.2.1"
        assert words["--seed"] == "1"
