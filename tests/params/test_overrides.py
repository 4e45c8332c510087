"""`--set KEY=VALUE`: what each key means, and what is refused in which words."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import overrides
from kimi_nb.params.overrides import Overrides, parse

PD = ("prefill", "decode")
ONE = ("mixed",)


def refused(pair: str, roles: tuple[str, ...] = PD) -> str:
    """What is told of a pair, without the pair itself."""
    with pytest.raises(ParameterError) as caught:
        parse([pair], roles)
    told = str(caught.value)
    assert told.startswith(f"--set {pair[:80]}: ")
    return told.removeprefix(f"--set {pair[:80]}: ")


def flag(pair: str, roles: tuple[str, ...] = PD):
    """The only flag that a pair sets."""
    found = parse([pair], roles)
    assert found == Overrides(settings=found.settings)
    ((role, where, given),) = found.settings
    assert where == f"--set {pair[:80]}"
    return role, given


# What is meant --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "shape"),
    [
        ("prefill.groups=3", {"prefill": {"groups": 3}}),
        ("decode.nodes=2", {"decode": {"nodes": 2}}),
        ("decode.dp=64", {"decode": {"dp": 64}}),
        ("decode.tp=8", {"decode": {"tp": 8}}),
        ("decode.pp=2", {"decode": {"pp": 2}}),
        ("decode.data-parallel-size=64", {"decode": {"dp": 64}}),
        ("decode.--tensor_parallel_size=8", {"decode": {"tp": 8}}),
        ("decode.pipeline-parallel-size=2", {"decode": {"pp": 2}}),
        (" decode.tp =8", {"decode": {"tp": 8}}),
    ],
)
def test_the_shape_of_a_role(pair, shape):
    assert parse([pair], PD) == Overrides(shape=shape)


@pytest.mark.parametrize(
    ("pair", "ports"),
    [
        ("decode.port=8000", {"decode": {"http": 8000}}),
        ("decode.vllm-start-port=8001", {"decode": {"http": 8001}}),
        ("decode.rpc-port=1", {"decode": {"rpc": 1}}),
        ("decode.data_parallel_rpc_port=5", {"decode": {"rpc": 5}}),
        ("prefill.kv-port=37000", {"prefill": {"kv": 37000}}),
        ("prefill.side-channel-port=65535", {"prefill": {"side_channel": 65535}}),
        ("prefill.master-port=9", {"prefill": {"master": 9}}),
    ],
)
def test_the_ports_of_a_role(pair, ports):
    assert parse([pair], PD) == Overrides(ports=ports)


def test_the_only_role_need_not_be_named():
    assert parse(["tp=4", "port=80"], ONE) == Overrides(
        shape={"mixed": {"tp": 4}}, ports={"mixed": {"http": 80}}
    )
    assert parse(["mixed.tp=4"], ONE).shape == {"mixed": {"tp": 4}}


def test_of_several_roles_one_is_named():
    assert refused("--tp=4") == (
        "this layout has the roles prefill and decode; say which one, such as prefill.--tp=4."
    )
    assert refused(f"port={'8' * 50}") == (
        "this layout has the roles prefill and decode; say which one, such as "
        f"prefill.port={'8' * 40}."
    )


def test_the_later_pair_wins_and_each_keeps_the_others():
    found = parse(
        ["decode.tp=4", "decode.dp=2", "prefill.tp=1", "decode.tp=8", "decode.port=1",
         "decode.kv-port=2", "router=upstream", "router.kind=vllm-router", "router.port=1998"],
        PD,
    )  # fmt: skip
    assert found == Overrides(
        shape={"decode": {"tp": 8, "dp": 2}, "prefill": {"tp": 1}},
        ports={"decode": {"http": 1, "kv": 2}},
        router="vllm-router",
        router_port=1998,
    )


def test_the_router():
    assert parse(["router=upstream"], PD) == Overrides(router="upstream")
    assert parse(["router.kind=vllm-router"], PD) == Overrides(router="vllm-router")
    assert parse(["router.port=1"], PD) == Overrides(router_port=1)
    assert parse([], PD) == Overrides()
    for key in ("router", "router.kind"):
        assert refused(f"{key}=nginx") == (
            "router 'nginx' is not known. Allowed: upstream, vllm-router."
        )
    assert refused("router.port=0") == "a whole number of 1 or more is wanted, found '0'."


def test_settings_of_a_role_follow_those_of_all():
    found = parse(["decode.seed=1", "seed=2", "prefill.seed=3", "env.A=x", "decode.env.B=y"], PD)
    assert found.settings == [
        ("decode", "--set decode.seed=1", {"flags": {"seed": 1}}),
        ("", "--set seed=2", {"flags": {"seed": 2}}),
        ("prefill", "--set prefill.seed=3", {"flags": {"seed": 3}}),
        ("", "--set env.A=x", {"env": {"A": "x"}}),
        ("decode", "--set decode.env.B=y", {"env": {"B": "y"}}),
    ]
    assert found.of("decode") == [
        ("--set seed=2", {"flags": {"seed": 2}}),
        ("--set env.A=x", {"env": {"A": "x"}}),
        ("--set decode.seed=1", {"flags": {"seed": 1}}),
        ("--set decode.env.B=y", {"env": {"B": "y"}}),
    ]
    assert found.of("mixed") == found.of("decode")[:2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("True", "True"),
        ("yes", "yes"),
        ("0", 0),
        ("-7", -7),
        ("10", 10),
        ("9" * 19, int("9" * 19)),
        ("9" * 20, "9" * 20),
        ("0123", "0123"),
        ("00", "00"),
        ("0.5", 0.5),
        ("-10.25", -10.25),
        (f"{'1' * 18}.{'2' * 18}", float(f"{'1' * 18}.{'2' * 18}")),
        (f"{'1' * 19}.5", f"{'1' * 19}.5"),
        (f"1.{'2' * 19}", f"1.{'2' * 19}"),
        ("1.", "1."),
        (".5", ".5"),
        ("1e3", "1e3"),
        ("12:30", "12:30"),
        ("a=b", "a=b"),
        ('[1, "x"]', [1, "x"]),
        ('{"a": [null]}', {"a": [None]}),
        ("x{", "x{"),
        ("X[", "X["),
    ],
)
def test_the_value_of_a_flag(text, value):
    role, given = flag(f"a_b={text}")
    assert (role, given) == ("", {"flags": {"a-b": value}})
    assert type(given["flags"]["a-b"]) is type(value)


def test_what_is_a_number_to_an_engine_is_a_text_to_a_variable():
    assert flag("env.A_B=0123") == ("", {"env": {"A_B": "0123"}})
    assert flag("decode.env.A=true") == ("decode", {"env": {"A": "true"}})
    assert flag("env.A.b= x=y ") == ("", {"env": {"A.b": " x=y "}})


# What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", ["seed", "=1", " = 1", "", "x" * 99])
def test_what_is_no_pair(pair):
    assert refused(pair) == "key=value is wanted, such as max-num-seqs=32."


def test_a_key_is_not_longer_than_any_of_an_engine():
    assert flag(f"{'k' * 300}=1") == ("", {"flags": {"k" * 300: 1}})
    assert flag(f"k{'.k' * 20}=1") == ("", {"flags": {f"k{'.k' * 20}": 1}})
    wanted = "a key of at most 300 characters and 20 dots is wanted, found "
    assert refused(f"{'k' * 1301}=1") == f"{wanted}1,301 and 0."
    assert refused(f"{'k' * 301}=1") == f"{wanted}301 and 0."
    assert refused(f"k{'.k' * 21}=1") == f"{wanted}43 and 21."
    assert refused(f"{'.' * 1001}=1") == f"{wanted}1,001 and 1,001."


def test_a_role_of_another_layout():
    assert refused("mixed.seed=1") == (
        "role of this layout 'mixed' is not known. Allowed: prefill, decode."
    )
    assert refused("decode.tp=1", ONE) == (
        "role of this layout 'decode' is not known. Allowed: mixed."
    )
    # Without a dot it is the name of a flag.
    assert flag("decode=1") == ("", {"flags": {"decode": 1}})


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "1" * 10, "01"])
def test_a_count_is_whole_and_one_at_the_least(text):
    assert refused(f"decode.tp={text}") == (
        f"a whole number of 1 or more is wanted, found {text!r}."
    )
    assert refused(f"decode.port={text}") == (
        f"a whole number of 1 or more is wanted, found {text!r}."
    )


def test_bounds_of_numbers():
    assert parse([f"decode.dp={'9' * 9}"], PD).shape == {"decode": {"dp": 999_999_999}}
    assert refused("decode.port=65536") == "a port is 1 to 65535, found 65536."
    assert refused(f"decode.tp={'7' * 60}") == (
        f"a whole number of 1 or more is wanted, found {'7' * 40!r}."
    )


@pytest.mark.parametrize("pair", ["seed=", "seed= ", "decode.seed="])
def test_a_flag_without_a_value(pair):
    assert refused(pair) == "a value is wanted after '='; null takes the flag away."


def test_a_variable_without_a_value():
    assert refused("env.A=") == "a value is wanted after '='."
    assert refused("decode.env.A=") == "a value is wanted after '='."


@pytest.mark.parametrize(
    "name",
    ["ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
     "ROCR_VISIBLE_DEVICES", "HCCL_IF_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_HOST_IP"],
)  # fmt: skip
def test_variables_of_each_rank(name):
    told = f"the plan sets {name} for each rank; change the site file, dp= or tp=."
    assert refused(f"env.{name}=1") == told
    assert refused(f"decode.env.{name}=") == told
    assert flag(f"{name}=1") == ("", {"flags": {name.replace("_", "-"): 1}})


SIZES, NODES = "dp=, tp= and pp=", "nodes=, dp=, tp= or the site file"
PORTS, KV = "port=, rpc-port= or master-port=", "kv-port=, dp= and tp="


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("tensor-parallel-size", SIZES),
        ("data-parallel-size", SIZES),
        ("pipeline-parallel-size", SIZES),
        ("data-parallel-size-local", NODES),
        ("data-parallel-start-rank", NODES),
        ("data-parallel-rank", NODES),
        ("data-parallel-address", NODES),
        ("headless", NODES),
        ("nnodes", NODES),
        ("node-rank", NODES),
        ("master-addr", NODES),
        ("port", PORTS),
        ("data-parallel-rpc-port", PORTS),
        ("master-port", PORTS),
        ("host", "the node's address in the site file"),
        ("kv-transfer-config.kv_port", KV),
        ("kv-transfer-config.engine_id", KV),
        ("kv-transfer-config.kv_role", KV),
        ("kv-transfer-config.kv_connector_extra_config.prefill", KV),
        ("kv-transfer-config.kv_connector_extra_config.decode", KV),
    ],
)
def test_flags_that_the_plan_derives(name, instead):
    told = f"the plan works out --{name}; change {instead}."
    for given in (name, f"{name}.of"):
        assert overrides.is_derived(given)
        with pytest.raises(ParameterError) as caught:
            overrides.refuse_derived(given, "here")
        assert str(caught.value) == f"here: {told}"
    assert not overrides.is_derived(f"{name}-of") and not overrides.is_derived(f"x.{name}")
    overrides.refuse_derived(f"{name}-of", "here")


def test_a_derived_flag_within_a_pair():
    told = "the plan works out --kv-transfer-config.kv_role; change kv-port=, dp= and tp=."
    assert refused("kv_transfer_config.kv_role=x") == told
    assert refused('kv-transfer-config={"a": 1, "kv_role": "x"}') == told
    assert refused("decode.headless=true").startswith("the plan works out --headless;")
    assert refused("headless=").startswith("the plan works out --headless;")
    _, given = flag('kv-transfer-config={"kv_connector": "x"}')
    assert given == {"flags": {"kv-transfer-config": {"kv_connector": "x"}}}


@pytest.mark.parametrize(
    "name",
    ["data-parallel-external-lb", "data-parallel-backend", "api-server-count",
     "distributed-executor-backend"],
)  # fmt: skip
def test_ways_to_lay_out_engines_that_are_not_planned(name):
    for given in (name, f"decode.{name}", f"{name}.x"):
        assert refused(f"{given}=1") == (
            f"--{name} is not planned here: devices and ports are counted for one process on each "
            "node, or for each rank."
        )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model", "the recipe names the weights"),
        ("help", "it would end the engine"),
        ("config", "a file of flags would bypass the plan"),
        ("api-key", "secrets are never written down; name one with api_key_env in the site file"),
    ],
)
def test_flags_that_are_not_set_by_hand(name, why):
    assert refused(f"{name}=x") == f"--{name} is not set by hand: {why}."
    assert refused(f"--{name.replace('-', '_')}.a=x") == f"--{name} is not set by hand: {why}."


@pytest.mark.parametrize("text", ["[1", "{a: 1}", '{"a": 1}}', "[" * 20_000])
def test_what_begins_like_json_is_json(text):
    told = refused(f"a={text}")
    assert told.startswith("not JSON: ") and told.endswith(".")
    assert len(told) < 140


def test_what_is_wrong_with_json_is_told():
    assert refused("a=[1") == "not JSON: Expecting ',' delimiter: line 1 column 3 (char 2)."
    long = refused(f"a=[{'1' * 5000}]")  # what Python says of it has more than 120 characters
    assert long.startswith("not JSON: Exceeds the limit") and len(long) == len("not JSON: .") + 120
