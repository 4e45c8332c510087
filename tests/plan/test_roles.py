"""Settings layer by layer, features one by one, and what a request says of itself."""

from __future__ import annotations

import dataclasses

import pytest

from kimi_nb import catalog
from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params import load, overrides, schema
from kimi_nb.params.settings import EMPTY, Value, lay
from kimi_nb.plan import roles
from kimi_nb.plan.roles import HYBRID, Request, RolePlan, fill, resolve

K25, H200 = load.model("k2.5"), load.hardware("h200")
SOURCE = schema.Source(document="guide", section="1")
PORTS = {"http": None, "rpc": None, "kv": None, "side_channel": None, "master": None}


def flags(**values) -> schema.Settings:
    return schema.Settings(flags=values)


def recipe(layout="single", roles=None, **more) -> schema.Recipe:
    names = ("prefill", "decode") if layout == "pd" else ("mixed",)
    spec = {
        "hardware": "h200",
        "layout": layout,
        "variant": "docker",
        "title": "A recipe of a test",
        "source": SOURCE,
        "engine_version": "0.32.0",
        "weights": "int4",
        "install": "docker",
        "router": "upstream" if layout == "pd" else None,
        "roles": {name: (roles or {}).get(name, {}) for name in names},
    }
    return schema.Recipe(**spec | more)


def scenario(**more) -> schema.Scenario:
    return schema.Scenario(title="A row", source={"document": "table", "section": "2"}, **more)


def asked(*pairs: str, of=None, row=None, site=None, **more) -> Request:
    """A request on H200 nodes for Kimi-K2.5 with vLLM 0.32.0, but for what is said."""
    made = of or recipe()
    there = load.site("h200").model_copy(update={"name": "mine"} | (site or {}))
    given = {
        "model": K25,
        "hardware": H200,
        "recipe": made,
        "scenario": row,
        "site": there,
        "engine": catalog.engine("vllm", "0.32.0"),
        "overrides": overrides.parse(pairs, tuple(made.roles)),
    }
    return Request(**given | more)


# A request ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "own", "groups", "row", "pair", "kind"),
    [
        ("pd", "upstream", 1, None, "", "upstream"),
        ("pd", "vllm-router", 1, None, "", "vllm-router"),
        ("pd", "upstream", 1, None, "router=vllm-router", "vllm-router"),
        ("single", None, 1, None, "", None),
        ("single", "vllm-router", 1, None, "", None),
        ("single", "vllm-router", 2, None, "", "vllm-router"),
        ("single", None, 2, None, "", None),
        ("single", None, 1, "vllm-router", "", "vllm-router"),
        ("single", None, 1, None, "router=vllm-router", "vllm-router"),
        ("single", None, 1, "vllm-router", "router=upstream", "upstream"),
    ],
)
def test_the_front_door_that_is_asked_for(layout, own, groups, row, pair, kind):
    of = recipe(layout, router=own, roles={"mixed": {"groups": groups}})
    one = asked(*[pair] * bool(pair), of=of, row=scenario(router=row) if row else None)
    assert one.router == kind


def test_the_store_of_a_scenario_comes_before_that_of_its_recipe():
    first, second = (schema.Store(mode="distributed", segment_gb=size) for size in (1, 2))
    assert asked().store is None
    assert asked(of=recipe(store=first)).store == first
    assert asked(of=recipe(store=first), row=scenario()).store == first
    assert asked(of=recipe(store=first), row=scenario(store=second)).store == second


def test_the_name_of_a_scenario_is_that_in_its_recipe():
    row, other = scenario(), scenario(router="vllm-router")
    of = recipe(scenarios={"throughput": other, "long": row})
    assert asked(of=of, row=of.scenarios["long"]).scenario_name == "long"
    assert asked(of=of).scenario_name == "default"
    assert asked(of=of, row=scenario()).scenario_name == "default"


def test_as_documented_is_every_correction_off():
    assert asked(errata=("k2.5-host=on", "all=off")).as_documented is True
    assert asked(errata=("k2.5-host=off",)).as_documented is False
    assert asked().as_documented is False


DERIVATION = schema.Derivation(
    model="k2.6",
    hardware="a3",
    layout="single",
    variant="docker",
    base="k2.6-a3-single (guide 5)",
    kept="as there",
    steps=(
        {"what": "seed", "value": "1", "rule": "by hand"},
        {"what": "feature prefix-caching", "value": "on", "rule": "the feature goes along"},
    ),
)


def test_the_folder_on_the_nodes_says_what_is_not_the_default():
    assert asked().folder == "/root/kimi/k2.5-h200-single"
    row = scenario()
    of = recipe(variant="pip", scenarios={"long": row}, derivation=DERIVATION)
    one = asked(of=of, row=of.scenarios["long"], errata=("all=off",))
    assert one.folder == "/root/kimi/k2.5-h200-single-pip-long-as-documented-derived"


@pytest.mark.parametrize(
    ("own", "row", "pairs", "groups"),
    [
        (3, None, [], 3),
        (3, {}, [], 3),
        (3, {"groups": 2}, [], 2),
        (3, {"groups": 2}, ["groups=5"], 5),
    ],
)
def test_the_groups_of_a_role(own, row, pairs, groups):
    change = None if row is None else scenario(roles={"mixed": row})
    of = recipe(roles={"mixed": {"groups": own}})
    assert asked(*pairs, of=of, row=change).groups("mixed") == groups
    assert asked(of=of, row=scenario()).groups("mixed") == own


MODELSCOPE = recipe(weights="w4a8")
PUBLISHED = recipe(
    weights="w4a8", source=SOURCE.model_copy(update={"commands": ("k2.5/a3/single",)})
)


def paths(**more):
    return {"paths": schema.Paths(cache="/cache", work="/wf", **more)}


def test_where_the_weights_lie_on_the_nodes():
    draft = K25.drafts["eagle3"]
    hub = asked()
    assert (hub.models, hub.located(hub.weights)) == ("", "moonshotai/Kimi-K2.5")
    assert hub.located(draft) == "lightseekorg/kimi-k2.5-eagle3"
    named = asked(site=paths(models="/models"))
    assert (named.models, named.located(named.weights)) == ("/models", "/models/kimi-k2.5")
    scope = asked(of=MODELSCOPE, site=paths())
    assert (scope.models, scope.located(draft)) == ("/wf/models", "/wf/models/kimi-k2.5-eagle3")
    off = frozenset({"k2.5-local-weights", "k2.5-host"})
    published = asked(of=PUBLISHED, site=paths(), errata_off=off)
    assert published.located(published.weights) == "Eco-Tech/Kimi-K2.5-W4A8"
    assert asked(of=PUBLISHED, site=paths(models="/m"), errata_off=off).models == "/m"
    kept = asked(of=PUBLISHED, site=paths(), errata_off=frozenset({"k2.5-host"}))
    assert kept.models == "/wf/models"


def test_what_placeholders_of_the_site_and_the_model_mean():
    parsers = schema.Parsers(tool="hammer", reasoning="mind")
    model = K25.model_copy(update={"parsers": parsers})
    assert asked(site=paths(), model=model).places() == {
        "cache": "/cache",
        "work": "/wf",
        "project": "/wf",
        "tuning": "/wf/configs/moe_tuning",
        "virtual_env": "/wf/virt_envs/vllm-kimi",
        "tool_parser": "hammer",
        "reasoning_parser": "mind",
    }
    shared = asked(site=paths(project="/shared")).places()
    assert shared["project"] == "/shared" and shared["work"] == "/wf"
    assert shared["tuning"] == "/shared/configs/moe_tuning"
    assert shared["virtual_env"] == "/shared/virt_envs/vllm-kimi"


def test_known_placeholders_are_filled_and_others_stay():
    words = {"cache": "/data", "work": "/w"}
    assert fill("{work}:{cache}/{other}{cache}", words) == "/w:/data/{other}/data"
    assert fill("cache", words) == "cache" and fill(7, words) == 7 and fill(None, words) is None


# Sizes of a role ----------------------------------------------------------------------------------


def shaped(pp=1, **given) -> RolePlan:
    settings = lay(
        EMPTY, {"flags": {key.replace("_", "-"): it for key, it in given.items()}}, "a", "b"
    )
    return RolePlan("mixed", 1, 1, 1, 4, PORTS, settings, (), False, (), pp=pp)


@pytest.mark.parametrize(("given", "size"), [(None, 1), (1, 1), (2, 2), (0, 1), (-1, 1), ("2", 1)])
def test_sizes_of_context_parallelism_are_those_of_the_settings(given, size):
    one = shaped(**({} if given is None else {"prefill_context_parallel_size": given}))
    assert (one.pcp, one.dcp) == (size, 1)
    one = shaped(**({} if given is None else {"decode_context_parallel_size": given}))
    assert (one.pcp, one.dcp) == (1, size)


def test_the_world_of_a_rank():
    assert shaped(pp=3, prefill_context_parallel_size=2).world == 24
    assert shaped(decode_context_parallel_size=2).world == 4


@pytest.mark.parametrize(
    ("given", "hybrid"),
    [({}, False), ({HYBRID: True}, True), ({HYBRID: False}, False), ({HYBRID: 1}, False)],
)
def test_nodes_answer_apart_where_the_switch_is_on(given, hybrid):
    assert shaped(**given).hybrid is hybrid


# Layers -------------------------------------------------------------------------------------------

# From high to low: who sets the seed, the layer, and the source that is told.
STACK = [
    ("override", "override", "--set seed=13"),
    ("site", "site", "site mine"),
    ("row's role", "recipe", "table 2"),
    ("row", "recipe", "table 2"),
    ("when", "recipe", "guide 1, with prefix-caching"),
    ("role", "recipe", "guide 1"),
    ("recipe", "recipe", "guide 1"),
    ("weights", "model", "its card"),
    ("model", "model", "h200-slurm 1"),
    ("hardware", "hardware", "h200-slurm 2"),
]


def stacked(names) -> Request:
    """A request in which each of these sets the seed, to its place in STACK."""

    def seed(name):
        at = [one[0] for one in STACK].index(name)
        return flags(seed=at) if name in names else schema.Settings()

    spec = {"settings": seed("role"), "features": ("prefix-caching",)}
    spec["when"] = {"prefix-caching": seed("when"), "jemalloc": flags(seed=99)}
    row = scenario(settings=seed("row"), roles={"mixed": {"settings": seed("row's role")}})
    weights = K25.weights["int4"].model_copy(
        update={"settings": seed("weights"), "source": "its card"}
    )
    return asked(
        *(["seed=13"] if "override" in names else []),
        of=recipe(settings=seed("recipe"), roles={"mixed": spec}),
        row=row,
        site={"settings": seed("site")},
        hardware=H200.model_copy(update={"settings": seed("hardware")}),
        model=K25.model_copy(
            update={"settings": seed("model"), "weights": K25.weights | {"int4": weights}}
        ),
    )


@pytest.mark.parametrize("top", range(len(STACK)))
def test_the_highest_layer_wins(top):
    found = resolve(stacked([name for name, _, _ in STACK[top:]]), "mixed").settings.flags["seed"]
    _, layer, source = STACK[top]
    assert (found.value, found.layer, found.source) == (top or 13, layer, source)


def test_weights_without_a_source_have_that_of_their_model():
    weights = K25.weights["int4"].model_copy(update={"settings": flags(seed=1), "source": ""})
    model = K25.model_copy(update={"weights": {"int4": weights}})
    found = resolve(asked(model=model), "mixed").settings.flags["seed"]
    assert found == Value(1, "model", "h200-slurm 1")


def value_of(request: Request, flag: str, role="mixed") -> Value | None:
    return resolve(request, role).settings.flags.get(flag)


def test_a_feature_comes_before_the_settings_of_its_recipe():
    flag = "enable-prefix-caching"
    on = Value(True, "recipe", "feature prefix-caching")
    assert value_of(asked(of=recipe(features=("prefix-caching",))), flag) == on
    of_role = recipe(roles={"mixed": {"features": ("prefix-caching",)}})
    assert value_of(asked(of=of_role), flag) == on
    its_own = recipe(features=("prefix-caching",), settings=flags(**{flag: False}))
    assert value_of(asked(of=its_own), flag) == Value(False, "recipe", "guide 1")


def test_a_scenario_switches_features_after_the_settings_of_its_recipe():
    flag = "enable-prefix-caching"
    of = recipe(features=("prefix-caching",), settings=flags(**{flag: True}))
    gone = value_of(asked(of=of, row=scenario(without=("prefix-caching",))), flag)
    assert gone == Value(False, "recipe", "without prefix-caching")
    of = recipe(settings=flags(**{flag: False}))
    come = value_of(asked(of=of, row=scenario(features=("prefix-caching",))), flag)
    assert come == Value(True, "recipe", "feature prefix-caching")


def test_the_user_switches_features_after_the_site():
    flag = "enable-prefix-caching"
    said_off = {"settings": flags(**{flag: False})}
    on = value_of(asked(site=said_off, chosen=("prefix-caching",)), flag)
    assert on == Value(True, "override", "--with prefix-caching")
    of = recipe(features=("prefix-caching",))
    off = value_of(
        asked(of=of, site={"settings": flags(**{flag: True})}, dropped=("prefix-caching",)), flag
    )
    assert off == Value(False, "override", "--without prefix-caching")
    pair = value_of(asked(f"{flag}=false", chosen=("prefix-caching",)), flag)
    assert pair == Value(False, "override", f"--set {flag}=false")


def test_a_feature_is_switched_on_in_its_roles_only():
    of = recipe("pd", features=("mm-encoder-data",))
    on = Value("data", "recipe", "feature mm-encoder-data")
    assert value_of(asked(of=of), "mm-encoder-tp-mode", "prefill") == on
    assert value_of(asked(of=of), "mm-encoder-tp-mode", "decode") is None
    chosen = asked(of=recipe("pd"), chosen=("mm-encoder-data",))
    assert value_of(chosen, "mm-encoder-tp-mode", "prefill").source == "--with mm-encoder-data"
    assert value_of(chosen, "mm-encoder-tp-mode", "decode") is None
    assert resolve(chosen, "prefill").features == ("mm-encoder-data",)
    assert resolve(chosen, "decode").features == ()


def test_a_scenario_changes_the_role_that_it_names():
    of = recipe("pd")
    row = scenario(roles={"decode": {"dp": 4, "settings": flags(seed=2)}})
    one = asked(of=of, row=row)
    assert (resolve(one, "decode").dp, resolve(one, "prefill").dp) == (4, 1)
    assert value_of(one, "seed", "decode") == Value(2, "recipe", "table 2")
    assert value_of(one, "seed", "prefill") is None


def test_the_shape_of_a_role_comes_from_the_recipe_the_scenario_and_the_user():
    spec = {"groups": 2, "nodes": 3, "dp": 4, "tp": 8, "pp": 5, "ports": {"http": 8001, "kv": 3}}
    of = recipe(roles={"mixed": spec})
    row = scenario(roles={"mixed": {"nodes": 6, "tp": 2}})
    one = resolve(asked("dp=7", "tp=4", "port=8002", of=of, row=row), "mixed")
    assert (one.role, one.groups, one.nodes, one.dp, one.tp, one.pp) == ("mixed", 2, 6, 7, 4, 5)
    assert one.ports == PORTS | {"http": 8002, "kv": 3}
    assert (one.host, one.host_tuning, one.notes, one.features) == ((), False, (), ())


def test_a_store_brings_its_settings_before_those_of_the_recipe():
    store = schema.Store(mode="distributed", segment_gb=1)
    one = asked(of=recipe(store=store))
    flag = "kv-transfer-config.kv_connector"
    assert value_of(one, flag) == Value("MooncakeStoreConnector", "recipe", "guide 1, KV store")
    other = recipe(store=store, settings=flags(**{"kv-transfer-config": {"kv_connector": "Other"}}))
    assert value_of(asked(of=other), flag).value == "Other"


def test_the_variables_of_a_group_over_nodes():
    wide = recipe(roles={"mixed": {"nodes": 2}})
    found = resolve(asked(of=wide), "mixed").settings.env
    assert found["NCCL_SOCKET_IFNAME"] == Value(
        "{nic}", "hardware", "site mine, a group on 2 nodes"
    )
    assert "NCCL_SOCKET_IFNAME" not in resolve(asked(), "mixed").settings.env
    slurm = load.site("h200-slurm").model_copy(update={"name": "mine"})
    assert "NCCL_SOCKET_IFNAME" not in resolve(_on(wide, slurm), "mixed").settings.env
    named = slurm.model_copy(update={"nic": "ib0"})
    assert "NCCL_SOCKET_IFNAME" in resolve(_on(wide, named), "mixed").settings.env
    # A layer below all others: what the recipe says of the same variable stands.
    own = recipe(
        settings=schema.Settings(env={"NCCL_SOCKET_IFNAME": "ib1"}), roles={"mixed": {"nodes": 2}}
    )
    assert resolve(asked(of=own), "mixed").settings.env["NCCL_SOCKET_IFNAME"].value == "ib1"


def _on(of: schema.Recipe, site: schema.Site) -> Request:
    return dataclasses.replace(asked(of=of), site=site)


def test_jobs_in_an_image_have_the_environment_of_the_image():
    of = recipe(settings=schema.Settings(env={"VIRTUAL_ENV": "/env", "PATH": "/env/bin", "A": "1"}))
    site = load.site("h200-slurm")
    assert set(resolve(_on(of, site), "mixed").settings.env) == {"VIRTUAL_ENV", "PATH", "A"}
    contained = site.slurm.model_copy(update={"container": schema.JobContainer(runtime="pyxis")})
    inside = site.model_copy(update={"slurm": contained})
    assert set(resolve(_on(of, inside), "mixed").settings.env) == {"A"}
    own = inside.model_copy(update={"settings": schema.Settings(env={"PATH": "/site"})})
    found = resolve(_on(of, own), "mixed").settings.env
    assert (set(found), found["PATH"].value) == ({"PATH", "A"}, "/site")


def test_placeholders_of_the_site_are_filled_and_those_of_an_engine_stay():
    of = recipe(
        features=("tool-parser",),
        settings=schema.Settings(
            flags={"download-dir": {"value": "{cache}/x", "reason": "room"}},
            env={"A": {"value": "{work}/{address}", "reason": "why"}},
        ),
    )
    found = resolve(asked(of=of, site=paths()), "mixed").settings
    assert found.flags["download-dir"] == Value("/cache/x", "recipe", "guide 1", "room")
    assert found.flags["tool-call-parser"].value == "kimi_k2"
    assert found.env["A"] == Value("/wf/{address}", "recipe", "guide 1", "why")


# Derived recipes ----------------------------------------------------------------------------------


def test_a_derived_recipe_says_the_rule_of_each_setting():
    settings = schema.Settings(
        flags={"seed": 1, "max-num-seqs": {"value": 8, "reason": "as measured"}},
        env={"A": {"value": "1", "reason": "as there"}},
    )
    of = recipe(features=("prefix-caching",), settings=settings, derivation=DERIVATION)
    found = resolve(asked("max-model-len=100", of=of), "mixed").settings
    base = "derived from k2.6-a3-single (guide 5)"
    assert found.flags["seed"] == Value(1, "recipe", base, "by hand")
    assert found.flags["max-num-seqs"] == Value(8, "recipe", base, "as there; as measured")
    assert found.flags["enable-prefix-caching"] == Value(
        True, "recipe", f"feature prefix-caching: {base}", "the feature goes along"
    )
    assert found.env["A"] == Value("1", "recipe", base, "as there")
    assert found.flags["max-model-len"] == Value(100, "override", "--set max-model-len=100")
    assert found.flags["trust-remote-code"].source == "h200-slurm 1"


# Refusals of settings -----------------------------------------------------------------------------


def refused(request: Request, role="mixed", error=PlanError) -> str:
    with pytest.raises(error) as caught:
        resolve(request, role)
    assert type(caught.value) is error
    return str(caught.value)


def test_a_site_may_not_set_what_the_plan_works_out():
    site = {"settings": flags(headless=True)}
    assert refused(asked(site=site), error=ParameterError) == (
        "site mine: the plan works out --headless; change nodes=, dp=, tp= or the site file."
    )


def test_what_the_version_of_the_engine_changes_is_noted():
    of = recipe(settings=schema.Settings(env={"VLLM_ASCEND_ENABLE_MLAPO": "1"}))
    one = resolve(
        asked(of=of, hardware=load.hardware("a3"), engine=catalog.engine("vllm-ascend", "0.23.0")),
        "mixed",
    )
    assert "VLLM_ASCEND_ENABLE_MLAPO" not in one.settings.env
    assert one.settings.flags["additional-config.enable_mlapo"].value is True
    assert one.notes == (
        "VLLM_ASCEND_ENABLE_MLAPO is written as --additional-config enable_mlapo in vllm-ascend "
        "0.23.0",
    )


KEY = "additional-config.enable_balance_scheduling"
VARIABLE = "VLLM_ASCEND_BALANCE_SCHEDULING"
UNDER = "additional-config.scheduler_config.enable_balance_scheduling"  # since v0.25


@pytest.mark.parametrize(
    ("version", "key", "pairs", "site", "value", "layer"),
    [
        ("0.22.1rc1", KEY, [], {}, True, "recipe"),
        ("0.22.1rc1", KEY, [f"{KEY}=false"], {}, False, "override"),
        ("0.22.1rc1", KEY, [], {"flags": {KEY: False}}, False, "site"),
        ("0.22.1rc1", KEY, [f"env.{VARIABLE}=0"], {"flags": {KEY: True}}, False, "override"),
        ("0.22.1rc1", KEY, [f"{KEY}=false"], {"env": {VARIABLE: "1"}}, False, "override"),
        ("0.25.1rc1", UNDER, [], {}, True, "recipe"),
        ("0.25.1rc1", UNDER, [f"{KEY}=false"], {}, False, "override"),
        ("0.25.1rc1", UNDER, [f"{UNDER}=false"], {}, False, "override"),
    ],
)
def test_of_a_key_and_the_variable_that_became_it_the_higher_layer_counts(
    version, key, pairs, site, value, layer
):
    of = recipe(settings=schema.Settings(env={VARIABLE: "1"}))
    engine = catalog.engine("vllm-ascend", version)
    there = {"settings": schema.Settings(**site)}
    one = asked(*pairs, of=of, site=there, hardware=load.hardware("a3"), engine=engine)
    found = resolve(one, "mixed")
    (only,) = [name for name in found.settings.flags if "balance" in name]
    assert (only, found.settings.flags[only].value) == (key, value)
    assert found.settings.flags[only].layer == layer
    assert VARIABLE not in found.settings.env


# Errata that are off ------------------------------------------------------------------------------

A3 = {"hardware": load.hardware("a3"), "engine": catalog.engine("vllm-ascend", "0.22.1rc1")}
_COMMANDS = [f"k2.5/a3/pd/{name}" for name in ("prefill0", "prefill1", "decode0", "decode1")]


def published(*off: str, pairs=(), role="prefill") -> RolePlan:
    """A role of a recipe of the document's commands with these of its errata off."""
    of = recipe(
        "pd",
        weights="w4a8",
        source=SOURCE.model_copy(update={"commands": tuple(_COMMANDS)}),
        settings=schema.Settings(env={"VLLM_ASCEND_ENABLE_MLAPO": "1"}),
        roles={"prefill": {"ports": {"kv": 36000}}, "decode": {"ports": {"kv": 36000}}},
    )
    ids = frozenset(f"k2.5-{name}" for name in off)
    return resolve(asked(*pairs, of=of, errata_off=ids, **A3), role)


def test_a_setting_as_it_was_published():
    said = Value("3600000", "recipe", "ascend-k2.5, as published (erratum k2.5-rpc-timeout is off)")
    for off in (["rpc-timeout"], ["host", "rpc-timeout"], ["rpc-timeout", "kv-port"]):
        assert published(*off).settings.env["VLLM_RPC_TIMEOUT"] == said
    assert "VLLM_RPC_TIMEOUT" not in published("host").settings.env


def test_an_engine_listens_where_the_document_says():
    assert published().host == ()
    assert published("rpc-timeout").host == ()
    assert published("host").host == "0.0.0.0"
    assert published("host", "rpc-timeout", "kv-port").host == "0.0.0.0"


def test_the_first_port_of_the_cache_is_that_of_the_document():
    assert published("kv-port").ports == PORTS | {"kv": 30000}
    assert published("host").ports == PORTS | {"kv": 36000}
    pairs = ["prefill.kv-port=37000", "prefill.port=8001"]
    assert published("kv-port", pairs=pairs).ports == PORTS | {"kv": 37000, "http": 8001}
    assert published("kv-port", pairs=["prefill.port=8001"]).ports["kv"] == 30000
    assert published("kv-port", pairs=pairs, role="decode").ports["kv"] == 30000


def test_what_the_user_has_changed_stays_as_it_is():
    pairs = ["additional-config.enable_mlapo=false"]
    of_document = published("moved-variables")
    assert of_document.settings.env["VLLM_ASCEND_ENABLE_MLAPO"].value == "1"
    assert "additional-config.enable_mlapo" not in of_document.settings.flags
    changed = published("moved-variables", pairs=pairs).settings
    assert changed.flags["additional-config.enable_mlapo"].value is False
    assert "VLLM_ASCEND_ENABLE_MLAPO" not in changed.env


def test_a_variable_that_stands_there_again_has_no_note():
    (note,) = published().notes
    assert note.startswith("VLLM_ASCEND_ENABLE_MLAPO is written as")
    assert published("moved-variables").notes == ()
    assert published("rpc-timeout").notes == (note,)


# Features -----------------------------------------------------------------------------------------


def test_the_features_that_are_on():
    of = recipe(
        features=("tool-parser", "prefix-caching"),
        roles={"mixed": {"features": ("chunked-prefill", "tool-parser")}},
    )
    on = ("tool-parser", "prefix-caching", "chunked-prefill")
    assert resolve(asked(of=of), "mixed").features == on
    row = scenario(features=("reasoning-parser",), without=("prefix-caching",))
    assert resolve(asked(of=of, row=row), "mixed").features == (
        *("tool-parser", "chunked-prefill", "reasoning-parser"),
    )
    one = asked(of=of, chosen=("thinking-off",), dropped=("tool-parser",))
    assert resolve(one, "mixed").features == (*on[1:], "thinking-off")
    # Asked for by name, a feature that the scenario takes away is on.
    back = asked(of=of, row=row, chosen=("prefix-caching",))
    assert resolve(back, "mixed").features[-1] == "prefix-caching"


def test_the_host_is_tuned_where_a_feature_does_it():
    a3 = load.hardware("a3")
    of = recipe(features=("jemalloc", "host-tuning"))
    engine = catalog.engine("vllm-ascend", "0.23.0")
    assert resolve(asked(of=of, hardware=a3, engine=engine), "mixed").host_tuning is True
    of = recipe(features=("jemalloc",))
    assert resolve(asked(of=of, hardware=a3, engine=engine), "mixed").host_tuning is False


@pytest.mark.parametrize("by", ["recipe", "scenario", "user"])
def test_a_draft_can_be_named_by_the_recipe_the_scenario_and_the_user(by):
    name = "eagle3-instant"
    one = asked(
        of=recipe(features=[name] * (by == "recipe")),
        row=scenario(features=[name]) if by == "scenario" else None,
        chosen=(name,) * (by == "user"),
    )
    found = resolve(one, "mixed").settings.flags["speculative-config.model"]
    assert found.value == "lightseekorg/kimi-k2.5-eagle3-mla"


def test_a_feature_can_set_a_variable():
    found = resolve(asked(chosen=("jemalloc",), **A3), "mixed").settings.env["LD_PRELOAD"]
    assert found.value.endswith("libjemalloc.so.2") and found.source == "--with jemalloc"


def test_an_override_of_a_role_is_one_of_that_role():
    one = asked("decode.seed=3", "max-num-seqs=8", of=recipe("pd"))
    assert value_of(one, "seed", "decode") == Value(3, "override", "--set decode.seed=3")
    assert value_of(one, "seed", "prefill") is None
    assert value_of(one, "max-num-seqs", "prefill").value == 8


def test_what_a_role_ignores_is_left_out_of_it():
    engine = catalog.engine("vllm-ascend", "0.23.0")
    of = recipe("pd", features=["recompute-scheduler"])
    one = asked(of=of, hardware=load.hardware("a3"), engine=engine)
    flag = "additional-config.recompute_scheduler_enable"
    assert value_of(one, flag, "prefill") is None
    assert value_of(one, flag, "decode").value is True


def test_a_draft_is_told_with_its_method_folder_and_options():
    draft = K25.drafts["eagle3-instant"]
    model = K25.model_copy(
        update={"drafts": {"eagle3-instant": draft.model_copy(update={"options": {"a": 1}})}}
    )
    one = asked(model=model, site=paths(models="/m"), chosen=("eagle3-instant",))
    found = resolve(one, "mixed").settings.flags
    config = {
        name.partition(".")[2]: it for name, it in found.items() if name.startswith("speculative")
    }
    assert {name: it.value for name, it in config.items()} == {
        "method": "eagle3",
        "model": "/m/kimi-k2.5-eagle3-mla",
        "num_speculative_tokens": 3,
        "a": 1,
    }
    assert {it.source for it in config.values()} == {"--with eagle3-instant"}


OLD = catalog.engine("vllm", "0.17.0")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"chosen": ("eplb",), "dropped": ("eplb",)},
            "--with eplb and --without eplb: say one of them.",
        ),
        (
            {"chosen": ("recompute-scheduler",), "of": recipe()},
            "feature recompute-scheduler is for ascend; h200 is nvidia.",
        ),
        (
            {"chosen": ("fp8-kv-cache",), "hardware": load.hardware("a3")},
            "feature fp8-kv-cache is for nvidia, amd; a3 is ascend.",
        ),
        (
            {"chosen": ("cpu-offload",), "of": recipe("pd")},
            "feature cpu-offload is for the layouts single, dp; this is pd. 256 GiB of host memory "
            "over 8 ranks and PCIe traffic; a fallback, not a speed-up.",
        ),
        (
            {"chosen": ("thinking-off",), "model": load.model("k2-thinking")},
            "feature thinking-off is for k2.5, k2.6, k3, tiny-k2.5, tiny-llama; this is k2-thinking.",
        ),
        (
            {"chosen": ("fp8-kv-cache",), "engine": catalog.engine("vllm", "0.16.0")},
            "feature fp8-kv-cache needs vLLM >=0.17.0; vllm 0.16.0 is vLLM 0.16.0. Take it away "
            "(--without fp8-kv-cache) or choose another --engine-version.",
        ),
        (
            {"chosen": ("eagle3-instant",), "engine": OLD},
            "feature eagle3-instant needs vLLM >=0.18.0; vllm 0.17.0 is vLLM 0.17.0. Take it away "
            "(--without eagle3-instant) or choose another --engine-version.",
        ),
        (
            {"chosen": ("eplb",)},
            "feature eplb requires expert-parallel: add --with expert-parallel.",
        ),
        (
            {"chosen": ("mm-processor-cache-off", "mm-processor-cache-shm")},
            "features mm-processor-cache-off and mm-processor-cache-shm exclude each other: add "
            "--without mm-processor-cache-shm (or --without mm-processor-cache-off).",
        ),
    ],
)
def test_features_that_are_refused(more, says):
    role = "prefill" if "of" in more and more["of"].layout == "pd" else "mixed"
    assert refused(asked(**more), role) == says


def test_a_draft_that_the_hardware_has_not():
    said = refused(asked(chosen=("eagle3",)))
    assert said.startswith("draft model of k2.5 on h200: 'eagle3' is not known; did you mean")
    assert said.endswith("Allowed: eagle3-instant, eagle3-thinking.")


def test_a_feature_of_no_role_of_the_layout(monkeypatch):
    of_prefill = load.features()["prefix-caching"].model_copy(
        update={"roles": ("prefill", "decode")}
    )
    features = load.features() | {"prefix-caching": of_prefill}
    monkeypatch.setattr(roles.load, "features", lambda: features)
    assert refused(asked(chosen=("prefix-caching",))) == (
        "--with prefix-caching: it belongs to the roles prefill, decode; layout single has mixed."
    )
    of_mixed = of_prefill.model_copy(update={"roles": ("mixed",)})
    features["prefix-caching"] = of_mixed
    assert refused(asked(of=recipe("pd"), chosen=("prefix-caching",)), "decode") == (
        "--with prefix-caching: it belongs to the roles mixed; layout pd has prefill, decode."
    )
    features["prefix-caching"] = of_prefill
    # Where the recipe names it, it is only off in the roles that it is not for.
    assert resolve(asked(of=recipe(features=("prefix-caching",))), "mixed").features == ()


@pytest.mark.parametrize("how", ["chosen", "dropped"])
def test_a_feature_that_nobody_knows(how):
    said = refused(asked(**{how: ("prefix-cachin",)}), error=ParameterError)
    assert said.startswith(
        "feature 'prefix-cachin' is not known; did you mean 'prefix-caching'? Allowed: balance-scheduling, "
    )
    of = recipe(roles={"mixed": {"when": {"nothing": flags(seed=1)}}})
    assert refused(asked(of=of), error=ParameterError).startswith("feature 'nothing' is not known")
