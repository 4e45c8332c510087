"""What a derived recipe is made of: sizes, settings, and the rule of each value that differs.

The devices have 10,000 GB each, so that the first sizes fit: those of the base, for as many devices.
"""

from __future__ import annotations

import functools

import pytest
from plan import made_values
from plan.made_values import SOURCE

from kimi_nb import catalog
from kimi_nb.catalog import known_faults
from kimi_nb.params import load, schema
from kimi_nb.plan.derivation import making
from kimi_nb.plan.derivation.adapting import Impossible, Subject
from kimi_nb.plan.derivation.bases import Base
from kimi_nb.plan.derivation.fitting import Sizes

ENGINE = catalog.engine("vllm", "0.25.1")
H200 = load.hardware("h200")
MINE = load.model("k2.5").model_copy(update={"name": "mine", "title": "Kimi-Mine"})
OTHER = MINE.model_copy(update={"name": "other", "title": "Kimi-Other"})
LARGE = MINE.model_copy(update={"architecture": {**MINE.architecture, "layers": 62}})
INT4, NVFP4 = "moonshotai/Kimi-K2.5", "nvidia/Kimi-K2.5-NVFP4"
NIXL, MOONCAKE = ({"kv-transfer-config": {"kv_connector": it}} for it in ("NixlX", "MooncakeX"))
HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"


def chip(name: str, count=8, memory=10_000, **more) -> schema.Hardware:
    devices = H200.devices.model_copy(update={"count": count, "memory_gb": memory})
    return H200.model_copy(
        update={"name": name, "title": f"Node {name}", "devices": devices, "container": None} | more
    )


HERE, THERE, FOUR = chip("here"), chip("there"), chip("here", 4)
role = schema.RoleSpec


def put(flags=None, **env) -> schema.Settings:
    return schema.Settings(flags=flags or {}, env=env)


def recipe(hardware="here", layout="single", flags=None, env=None, **roles) -> schema.Recipe:
    given = made_values.recipe(hardware, layout, "wheel", settings=put(flags, **(env or {})))
    return given.model_copy(update={"roles": given.roles | roles})


def pair(prefill: schema.RoleSpec, decode: schema.RoleSpec, **more) -> schema.Recipe:
    return recipe(layout="pd", prefill=prefill, decode=decode, **more)


def subject(base, layout="", *, here=HERE, there=HERE, model=MINE, of=MINE, weights="int4"):
    return Subject(model, here, layout or base.layout, Base(of, there, base), weights, ENGINE)


def made(base: schema.Recipe, layout="", **more) -> making.Made:
    return making.made(subject(base, layout, **more), "0.25.1", "a rule")


@pytest.fixture(autouse=True)
def faults(monkeypatch):
    """Know these faults and no others."""
    known = functools.partial(monkeypatch.setattr, known_faults, "every")
    known(tuple)
    return lambda *given: known(lambda: given)


def fault(**more) -> known_faults.KnownFault:
    given = {"kind": "no-start", "first": "0.1.0", "way_out": "take dp"} | more
    return known_faults.KnownFault(
        "t-1", "vllm", symptom="it stops", source="a page", evidence="a test", **given
    )


AS_THERE = {
    "weights": (INT4, "INT4, as the nearest recipe's"),
    "engine version": ("0.25.1", "a rule"),
}


# The whole --------------------------------------------------------------------------------------


def test_what_fits_stays_as_it_is():
    spec = role(groups=2, nodes=2, dp=4, tp=4, ports={"http": 9}, settings=put({"x": 1}, B="2"))
    base = recipe(layout="dp", flags={"seed": 1}, env={"A": "1"}, mixed=spec).model_copy(
        update={"features": ("prefix-caching",)}
    )
    found = made(base)
    assert found.subject == subject(base) and found.version == "0.25.1"
    assert (found.features, found.processes) == (("prefix-caching",), "node")
    assert found.settings == put({"seed": 1}, A="1") and found.specs == {"mixed": spec}
    assert found.roles["mixed"].sizes == Sizes(2, 4, 4)
    assert found.steps == AS_THERE


def test_settings_lie_above_each_other():
    """Those of all roles, of the role, of its features that are on; the account reads them too."""
    spec = role(
        tp=8,
        features=("fp8-kv-cache", "mm-encoder-data"),
        settings=put({"max-num-batched-tokens": 2001, "max-model-len": 3001, "j": {"a": 1}}, A="2"),
        when={
            "prefix-caching": put({"max-model-len": 3002, "j": {"b": 2}}, B="3"),
            "eplb": put({"max-model-len": 3003}, B="4"),
            "fp8-kv-cache": put({"k": 5}),
        },
    )
    all_roles = {"max-num-seqs": 10, "max-num-batched-tokens": 2000, "max-model-len": 3000}
    base = recipe(flags=all_roles, env={"A": "1"}, mixed=spec).model_copy(
        update={"features": ("prefix-caching",)}
    )
    found = made(base)
    own = {"max-num-batched-tokens": 2001, "max-model-len": 3002, "j": {"a": 1, "b": 2}, "k": 5}
    assert found.specs["mixed"] == spec.model_copy(
        update={"settings": put(own, A="2", B="3"), "when": {}}
    )
    shape = found.roles["mixed"].account.shape
    assert (shape.seqs, shape.batched_tokens, shape.model_len) == (10, 2001, 3002)
    assert (shape.cache_bytes, shape.whole_vision, shape.tp) == (1, True, 8)
    assert found.settings == base.settings and found.steps == AS_THERE


def test_what_does_not_hold_here_is_left_out_wherever_it_stands():
    spec = role(
        tp=8,
        pp=1,
        features=("thinking-off", "chunked-prefill"),
        settings=put({"tool-call-parser": "b"}, HCCL_INTRA_B="2", B="2"),
        when={"chunked-prefill": put(HCCL_INTRA_C="3", C="3")},
    )
    base = recipe(
        "there", flags={"reasoning-parser": "a"}, env={"HCCL_INTRA_A": "1", "A": "1"}, mixed=spec
    ).model_copy(update={"features": ("recompute-scheduler", "eplb")})
    found = made(base, there=THERE)
    assert (found.features, found.specs["mixed"].features) == ((), ("chunked-prefill",))
    assert found.settings == put({"reasoning-parser": "kimi_k2"}, A="1")
    assert found.specs["mixed"].settings == put({"tool-call-parser": "kimi_k2"}, B="2", C="3")
    links = ("left out", "chosen for the links inside one kind of node")
    parser = ("kimi_k2", "that of Kimi-Mine")
    assert found.steps == AS_THERE | {
        "hardware": ("here", "of the same vendor as there"),
        "feature recompute-scheduler": ("left out", "it is not for layout single"),
        "feature eplb": ("left out", "it requires expert-parallel"),
        "feature thinking-off": ("left out", "it is not for Kimi-Mine"),
        "reasoning-parser": parser,
        "tool-call-parser": parser,
        **{f"HCCL_INTRA_{letter}": links for letter in "ABC"},
    }


def test_what_memory_asks_for_is_a_setting_with_its_sum():
    spec = role(tp=8, settings=put({"max-num-seqs": 4, "seed": 1}))
    found = made(recipe(mixed=spec), here=chip("here", memory=96))
    ((name, (length, why)),) = found.roles["mixed"].limits.items()
    assert name == "max-model-len" and 8192 <= length < 262_144
    flags = {"max-num-seqs": 4, "seed": 1, name: {"value": length, "reason": why}}
    assert found.specs["mixed"].settings == put(flags)
    assert found.steps == AS_THERE | {name: (str(length), why)}


# Sizes ------------------------------------------------------------------------------------------


def rule(nodes: int, count: int) -> tuple[str, str]:
    return str(nodes), f"the least that hold the weights and a cache, of {count} devices each"


def test_each_size_that_differs_has_its_rule():
    base = recipe(layout="dp", mixed=role(nodes=2, dp=4, tp=4, groups=3))
    found = made(base, here=FOUR)
    assert found.specs["mixed"] == role(nodes=4, dp=4, tp=4, groups=3)
    assert found.steps == AS_THERE | {"mixed.nodes": rule(4, 4)}


def test_a_rank_over_nodes_has_a_rule_of_its_own():
    found = made(recipe(layout="dp", mixed=role(nodes=2, tp=16)), here=chip("here", 16))
    assert found.specs["mixed"] == role(nodes=2, tp=32)
    tp = ("32", "one rank over 2 nodes of 16 devices, divides 64 heads")
    assert found.steps == AS_THERE | {"mixed.tp": tp}


def test_pipelines_are_not_derived():
    found = made(recipe(layout="dp", mixed=role(nodes=2, dp=1, tp=8, pp=2)))
    assert found.specs["mixed"] == role(nodes=2, dp=2, tp=8)
    assert found.steps == AS_THERE | {"mixed.dp": ("2", "2 x 8 devices / tp 8")}


EXPERTS = ("on", "data parallel ranks over nodes share whole experts")


@pytest.mark.parametrize(
    ("base", "layout", "features", "on", "step"),
    [
        ("single", "dp", (), ["expert-parallel"], True),
        ("single", "dp", ("prefix-caching",), ["prefix-caching", "expert-parallel"], True),
        ("single", "dp", ("expert-parallel",), ["expert-parallel"], False),
        ("dp", "single", (), [], False),
    ],
)
def test_another_layout_has_every_size_told(base, layout, features, on, step):
    """Of one node several are made, whose ranks share whole experts; there is no other change."""
    nodes, dp = (2, 2) if layout == "dp" else (1, 1)
    spec = role(nodes=nodes, dp=dp, tp=8)
    found = made(recipe(layout=base, mixed=spec).model_copy(update={"features": features}), layout)
    assert list(found.features) == on and found.specs["mixed"] == spec
    assert found.roles["mixed"].account.shape.expert_parallel == bool(on)
    assert found.steps == AS_THERE | {
        "mixed.nodes": rule(nodes, 8),
        "mixed.dp": (str(dp), f"{nodes} x 8 devices / tp 8"),
        "mixed.tp": ("8", "divides 64 heads and the 8 devices of a node"),
        **({"feature expert-parallel": EXPERTS} if step else {}),
    }


def test_experts_stay_in_slices_where_they_are_published_so(monkeypatch):
    base = recipe(layout="dp", mixed=role(nodes=2, dp=2, tp=8))
    assert made(base).features == ()
    known = load.features()
    amd = known["expert-parallel"].model_copy(update={"vendors": ("amd",)})
    monkeypatch.setattr(load, "features", lambda: known | {"expert-parallel": amd})
    found = made(recipe(mixed=role(tp=8)), "dp")
    assert found.features == () and "feature expert-parallel" not in found.steps


# Roles of prefill and decode --------------------------------------------------------------------


@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize(
    ("connector", "order", "prefill"),
    [
        # Mooncake's tp of prefill is no smaller than that of decode.
        (MOONCAKE, ["decode", "prefill"], role(dp=2, tp=4)),
        (NIXL, ["prefill", "decode"], role(dp=8, tp=1)),
        ({"kv-transfer-config": "MooncakeX"}, ["prefill", "decode"], role(dp=8, tp=1)),
        ({}, ["prefill", "decode"], role(dp=8, tp=1)),
    ],
)
def test_the_role_that_decides_is_settled_first(common, connector, order, prefill):
    of_role = put({} if common else connector)
    decode = role(dp=2, tp=4, settings=of_role)
    base = pair(role(dp=8, tp=1), decode, flags=connector if common else {}, env={HOST: "x"})
    found = made(base)
    assert list(found.roles) == order and list(found.specs) == ["prefill", "decode"]
    assert found.specs == {"prefill": prefill, "decode": decode}
    assert {one for one in found.steps if "." in one} == (
        {"prefill.dp", "prefill.tp"} if prefill.tp == 4 else set()
    )
    assert making.recipe(found).title == "Kimi-Mine on 2 nodes of Node here"
    turned = made(base.model_copy(update={"roles": dict(reversed(base.roles.items()))}))
    assert list(turned.roles) == order and list(turned.specs) == ["decode", "prefill"]
    assert turned.specs == found.specs


@pytest.mark.parametrize(
    ("flags", "settings", "added"),
    [
        (NIXL, put(), True),
        ({}, put(NIXL), True),
        (MOONCAKE, put(), False),
        ({}, put(), False),
        (NIXL, put(**{HOST: "{nic}"}), False),
    ],
)
def test_nixl_is_asked_at_the_address_of_the_node(flags, settings, added):
    base = pair(role(tp=8), role(tp=8, settings=settings), flags=flags, env={"A": "1"})
    found = made(base)
    more = {HOST: "{address}"} if added else {}
    assert found.settings == put(flags, A="1", **more)
    assert found.specs["decode"] == base.roles["decode"]
    step = ("{address}", "else NIXL names 127.0.0.1 to the other nodes")
    assert found.steps == AS_THERE | ({HOST: step} if added else {})


def test_the_address_of_the_base_stays():
    found = made(pair(role(tp=8), role(tp=8), flags=NIXL, env={HOST: "x"}))
    assert found.settings == put(NIXL, **{HOST: "x"}) and found.steps == AS_THERE


RANKS = ("rank", "ranks of prefill on several nodes each answer for themselves")


@pytest.mark.parametrize(
    ("prefill", "decode", "processes", "told"),
    [
        (role(dp=8, tp=1), role(dp=1, tp=4), "rank", True),
        (role(dp=8, tp=1), role(dp=4, tp=2), "rank", True),
        # Ranks of one node, one rank of several, and such a rank of decode.
        (role(dp=4, tp=1), role(dp=8, tp=1), "node", False),
        (role(dp=1, tp=8), role(dp=8, tp=1), "node", False),
        (role(dp=8, tp=1), role(dp=1, tp=8), "node", False),
    ],
)
def test_ranks_of_prefill_over_nodes_are_processes(prefill, decode, processes, told):
    base = pair(prefill, decode.model_copy(update={"ports": schema.Ports(http=9000, kv=7)}))
    found = made(base, here=FOUR)
    assert found.processes == processes
    assert [one.ports for one in found.specs.values()] == [
        schema.Ports(http=8000 if told else None),
        schema.Ports(http=9000, kv=7),
    ]
    assert found.steps.get("processes") == (RANKS if told else None)
    assert making.recipe(found).processes == processes


def test_processes_of_ranks_stay_so():
    for base in (
        pair(role(dp=8, tp=1), role(dp=8, tp=1)),
        recipe(layout="dp", mixed=role(nodes=2, dp=8, tp=2)),
    ):
        found = made(base.model_copy(update={"processes": "rank"}), here=FOUR)
        assert found.processes == "rank" and "processes" not in found.steps
        assert {one.ports.http for one in found.specs.values()} == {8000}
    assert made(recipe(layout="dp", mixed=role(nodes=2, dp=8, tp=2))).processes == "node"


# Where it is from -------------------------------------------------------------------------------


def test_another_model_on_other_hardware_with_other_weights():
    steps = made(
        recipe("there", mixed=role(tp=8)), there=THERE, model=LARGE, of=OTHER, weights="nvfp4"
    ).steps
    assert steps == {
        "weights": (
            NVFP4,
            "NVFP4: here computes it, and Kimi-Mine has no INT4 that it computes and that fits",
        ),
        "engine version": ("0.25.1", "a rule"),
        "model": ("mine", "another architecture as other"),
        "hardware": ("here", "of the same vendor as there"),
    }
    steps = made(recipe(mixed=role(tp=8)), of=OTHER).steps
    assert steps == AS_THERE | {"model": ("mine", "the same architecture as other")}


OF_WEIGHTS = "the id of these weights"


@pytest.mark.parametrize(
    ("name", "of", "weights", "kept", "step"),
    [
        ("kimi", MINE, "int4", "kimi", None),
        ("an/id", MINE, "int4", "an/id", None),
        (INT4, MINE, "int4", INT4, None),
        (INT4, MINE, "nvfp4", NVFP4, (NVFP4, OF_WEIGHTS)),
        (INT4, OTHER, "nvfp4", NVFP4, (NVFP4, OF_WEIGHTS)),
        ("kimi", OTHER, "int4", None, ("left out", "it names Kimi-Other")),
        ("an/id", OTHER, "nvfp4", None, ("left out", "it names Kimi-Other")),
        (INT4, OTHER, "int4", None, ("left out", "it names Kimi-Other")),
        (None, OTHER, "nvfp4", None, None),
    ],
)
def test_a_service_has_the_name_of_what_it_serves(name, of, weights, kept, step):
    key = "served-model-name"
    base = recipe(flags={"seed": 1, key: name}, env={"A": "1"}, mixed=role(tp=8))
    found = made(base, of=of, weights=weights)
    assert found.settings.flags.get(key) == kept
    assert found.settings.flags["seed"] == 1 and found.settings.env == {"A": "1"}
    assert found.steps.get(key) == step


@pytest.mark.parametrize(
    ("common", "own", "kept"),
    [
        ((), (), False),
        (("prefix-caching",), ("fp8-kv-cache",), False),
        (("eagle3-thinking", "prefix-caching"), (), True),
        ((), ("fp8-kv-cache", "eagle3-thinking"), True),
    ],
)
def test_without_a_draft_there_are_no_settings_of_one(common, own, kept):
    given = {"seed": 1, "speculative-config": {"model": "x"}}
    spec = role(tp=8, features=own, settings=put(given, A="1"))
    found = made(recipe(mixed=spec).model_copy(update={"features": common}))
    flags = given if kept else {"seed": 1}
    assert found.specs["mixed"].settings == put(flags, A="1")
    step = {} if kept else {"speculative-config": ("left out", "there is no draft")}
    assert found.steps == AS_THERE | step


# Known faults -----------------------------------------------------------------------------------


def test_what_a_known_fault_may_ask_of_a_role():
    base = pair(role(dp=4, tp=2, settings=put(X="1")), role(tp=8), flags=NIXL)
    found, given = made(base), []
    for name, flags in (("prefill", NIXL), ("decode", {})):
        settings = making.fitting.settings(subject(base), name, [], [put(flags, X="1")])
        given.append(making._situation(subject(base), name, found.roles[name], settings))
    facts = {"layout": "pd", "precision": "INT4"}
    model = {"trust-remote-code": True}
    assert given == [
        known_faults.Situation(
            facts | {"role": "prefill", "tp": 2, "dp": 4, "connector": "NixlX"},
            NIXL | model,
            {"X": "1"},
            whole=False,
        ),
        known_faults.Situation(
            facts | {"role": "decode", "tp": 8, "dp": 1}, model, {"X": "1"}, whole=False
        ),
    ]


@pytest.mark.parametrize(
    ("known", "refused"),
    [
        (fault(), True),
        (fault(kind="wrong-answers"), True),
        (fault(kind="slow"), False),
        (fault(first="0.26.0"), False),
        (fault(models=("k2.5",)), True),
        (fault(models=("mine",)), False),
        (fault(hardware=("here",)), True),
        (fault(hardware=("there",)), True),
        (fault(hardware=("elsewhere",)), False),
        (fault(when={"role": "decode", "tp": 4, "X": "1", "--seed": 1}), True),
        (fault(when={"role": "prefill", "tp": 8}), True),
        (fault(when={"role": "decode", "tp": 8}), False),
        (fault(when={"--another": "absent"}), False),
    ],
)
def test_what_is_known_not_to_work_is_not_made(faults, known, refused):
    base = pair(role(tp=8), role(dp=2, tp=4, settings=put({"seed": 1}, X="1")))
    here = chip("here", like="there")
    faults(fault(kind="slow"), known)
    if not refused:
        assert made(base, here=here).steps == AS_THERE
        return
    with pytest.raises(Impossible) as caught:
        made(base, here=here)
    assert str(caught.value) == (
        "known fault t-1: it stops (vllm from 0.1.0, no fix known; a page). take dp"
    )


def test_a_fault_without_a_way_out(faults):
    faults(fault(way_out=""))
    with pytest.raises(Impossible, match=r"\(vllm from 0\.1\.0, no fix known; a page\)$"):
        made(recipe(mixed=role(tp=8)))


# As a recipe ------------------------------------------------------------------------------------


def test_the_parts_are_a_recipe_that_says_where_it_is_from():
    base = made_values.recipe(
        "there",
        "single",
        "slow",
        bind="all",
        router="vllm-router",
        router_port=7,
        source=SOURCE.model_copy(update={"commands": ("serve",), "deployment": "an:id"}),
        clients=("none", "visionarena"),
        scenarios={"fast": schema.Scenario(title="Fast", source=SOURCE)},
        settings=put({"seed": 1, "served-model-name": "kimi"}),
        roles={"mixed": role(groups=3, tp=8)},
        weights="nvfp4",
        engine_version="0.20.0",
    )
    boxed = H200.container.model_copy(update={"entrypoint": "bash"})
    found = making.recipe(
        made(base, "dp", here=chip("here", container=boxed), there=THERE, of=OTHER)
    )
    steps = {step.what: (step.value, step.rule) for step in found.derivation.steps}
    assert list(steps) == [
        *("weights", "engine version", "model", "hardware", "feature expert-parallel"),
        *("served-model-name", "mixed.nodes", "mixed.dp", "mixed.tp"),
    ]
    assert steps["model"] == ("mine", "the same architecture as other")
    assert found.derivation.model_copy(update={"steps": ()}) == schema.Derivation(
        model="other",
        hardware="there",
        layout="single",
        variant="slow",
        base="other there single slow (guide 1)",
        kept="kept: a setting for nvidia",
        steps=(),
    )
    assert found.model_copy(update={"derivation": None}) == schema.Recipe(
        hardware="here",
        layout="dp",
        variant="docker",
        title="Kimi-Mine on 6 nodes of Node here",
        documented=False,
        source=schema.Source(document="guide", section="1", deployment="an:id"),
        engine_version="0.25.1",
        weights="int4",
        install="docker",
        bind="all",
        router="vllm-router",
        router_port=7,
        features=("expert-parallel",),
        settings=put({"seed": 1}),
        roles={"mixed": role(groups=3, nodes=2, dp=2, tp=8)},
        clients=("visionarena",),
    )


def test_on_the_hardware_of_the_base_its_settings_are_kept_for_it():
    base = recipe(mixed=role(tp=8)).model_copy(update={"clients": ("none",), "processes": "rank"})
    found = making.recipe(made(base, there=chip("here")))
    assert found.title == "Kimi-Mine on 1 node of Node here"
    assert found.derivation.kept == "kept: a setting for here"
    assert found.clients == ("bench",)  # the first of the model itself
    assert (found.install, found.variant, found.processes) == ("pip", "pip", "rank")
    last = found.derivation.steps[-1]
    assert (last.what, last.value, last.rule) == ("install", "pip", "docker is not there on here")


@pytest.mark.parametrize(
    ("entrypoint", "processes", "wanted", "installs", "install", "rule"),
    [
        ("vllm serve", "node", "docker", ["docker", "pip"], "docker", None),
        ("bash", "rank", "docker", ["docker", "pip"], "docker", None),
        ("vllm serve", "rank", "pip", ["docker", "pip", "conda"], "pip", None),
        ("vllm serve", "rank", "conda", ["docker", "pip", "conda"], "conda", None),
        ("vllm serve", "rank", "docker", ["docker", "pip", "conda"], "pip",
         "docker starts one engine a container on here"),
        (None, "node", "docker", ["conda", "docker"], "conda", "docker is not there on here"),
        (None, "node", "docker", ["docker"], None, None),
        ("bash", "node", "pip", [], None, None),
    ],
)  # fmt: skip
def test_the_way_to_install(entrypoint, processes, wanted, installs, install, rule):
    container = entrypoint and H200.container.model_copy(update={"entrypoint": entrypoint})
    here = chip("here", container=container, installs=dict.fromkeys(installs, ()))
    base = recipe(mixed=role(tp=8)).model_copy(update={"install": wanted, "processes": processes})
    parts = made(base, here=here)
    if install is None:
        with pytest.raises(Impossible) as caught:
            making.recipe(parts)
        assert str(caught.value) == "no way to install an engine on here is known"
        return
    found = making.recipe(parts)
    assert (found.install, found.variant) == (install, install)
    told = {step.what: (step.value, step.rule) for step in found.derivation.steps}
    assert told.get("install") == ((install, rule) if rule else None)
    assert "install" not in parts.steps
