"""How a plan is put together: names to files, title, notes, refusals, launcher, installation."""

from __future__ import annotations

import dataclasses

import pytest
import yaml

from kimi_nb import catalog
from kimi_nb.core.errors import NoRecipeError, ParameterError, PlanError
from kimi_nb.params import load, schema
from kimi_nb.params.settings import EMPTY, Value, lay
from kimi_nb.plan import build
from kimi_nb.plan.roles import HYBRID, Request, RolePlan
from kimi_nb.plan.spec import Plan

NO_PORTS = dict.fromkeys(("http", "rpc", "kv", "side_channel", "master"))


def role(name="mixed", flags=None, notes=(), features=(), host_tuning=False, **sizes) -> RolePlan:
    shape = dict.fromkeys(("groups", "nodes", "dp", "tp", "pp"), 1) | sizes
    return RolePlan(
        role=name,
        ports=NO_PORTS,
        settings=lay(EMPTY, {"flags": flags or {}}, "recipe", "a test"),
        features=features,
        host_tuning=host_tuning,
        notes=notes,
        **shape,
    )


def asked(*names: str, recipe=None, site=None, model=None, hardware=None, **more) -> Request:
    """The request for these names, with tables changed."""
    made = build.request(*(names or ("k2.5", "h200", "single")))
    changes = {"recipe": recipe, "site": site, "model": model, "hardware": hardware}
    tables = {
        name: getattr(made, name).model_copy(update=change)
        for name, change in changes.items()
        if change
    }
    return dataclasses.replace(made, **tables | more)


def refused(error, call, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is error
    return str(caught.value)


# From names to a request --------------------------------------------------------------------------


def test_a_plan_is_what_was_asked_for():
    plan = build.plan(
        "k2.5",
        "h200",
        "single",
        variant="slurm",
        scenario="optimised",
        site="h200-slurm",
        chosen=["thinking-off", "thinking-off"],
        dropped=["eplb", "ep-weight-filter", "eplb"],
        pairs=["max-num-seqs=7", "seed=3"],
        engine_version="0.25.1",
        erratum=["slurm-install=on"],
    )
    assert (plan.model, plan.hardware, plan.layout) == ("k2.5", "h200", "single")
    assert (plan.variant, plan.scenario, plan.site) == ("slurm", "optimised", "h200-slurm-example")
    assert plan.engine_version == "0.25.1"
    assert (plan.request.chosen, plan.request.dropped) == (
        *(("thinking-off",), ("eplb", "ep-weight-filter")),
    )
    assert plan.request.pairs == ("max-num-seqs=7", "seed=3")
    assert plan.request.errata == ("slurm-install=on",) and plan.request.derive is False
    assert plan.flags["mixed"]["seed"] == Value(3, "override", "--set seed=3")


def test_the_layout_and_the_engine_version_are_those_of_the_recipe():
    one = build.request("k2.5", "h200")
    assert one.recipe.layout == "single" and one.scenario is None
    assert (one.engine.package, one.engine.version) == ("vllm", "0.17.0")
    assert (one.named, one.errata_off, one.calibrations, one.stale) == ("", frozenset(), (), ())


@pytest.mark.parametrize(("layout", "stands"), [("pd", "tiny-k2.5"), ("dp", "tiny-llama")])
def test_a_model_without_room_is_stood_for(layout, stands):
    one = build.request("k2.5", "cpu", layout)
    assert (one.named, one.model.name) == ("k2.5", stands)


def test_the_transport_of_a_site_chooses_the_variant():
    assert build.request("k2.5", "h200", "single", site="h200-slurm").recipe.variant == "slurm"
    assert build.request("k2.5", "h200", "single", site="h200").recipe.variant == "docker"


@pytest.mark.parametrize(("scenario", "nodes"), [("", 5), ("8p1d-dep4-dep24-8k1k", 14)])
def test_the_example_site_has_room_for_the_scenario(scenario, nodes):
    one = build.request("k2.5", "gb300", "pd", variant="nvfp4-inferencex", scenario=scenario)
    assert build.recipes.nodes(one.recipe, one.scenario) == nodes <= len(one.site.nodes)
    assert (len(one.site.nodes) > 5) == bool(scenario)


def test_pods_run_in_the_image_of_the_engine():
    for variant in ("docker", "pip"):
        one = build.request("k2.5", "h200", "single", variant=variant, site="h200-kubernetes")
        assert (one.recipe.variant, one.recipe.install) == (variant, "docker")
    one = build.request("k2.5", "h200", "single", variant="pip")
    assert one.recipe.install == "pip"


def test_what_nobody_describes_is_derived_where_that_is_asked_for():
    with pytest.raises(NoRecipeError):
        build.plan("k2.6", "a2", "pd")
    plan = build.plan("k2.6", "a2", "pd", derive=True)
    assert plan.request.derive is True and plan.derived["steps"]
    assert (plan.layout, plan.variant) == ("pd", "docker")
    said = refused(NoRecipeError, build.plan, "k2.6", "a2", "pd", variant="other", derive=True)
    assert said.startswith("variant to derive pd from: 'other' is not known")
    assert plan.title.startswith(f"DERIVED from {plan.derived['base']}, published by nobody: ")
    steps = plan.request.recipe.derivation.steps
    assert plan.derived["steps"][0] == {
        "what": steps[0].what,
        "value": steps[0].value,
        "rule": steps[0].rule,
    }
    assert plan.notes[0] == (
        f"DERIVED: nobody has published or run this; {len(steps)} values differ from "
        f"{plan.derived['base']}, --explain says by which rule."
    )
    assert plan.source == f"derived from {plan.derived['base']}" and plan.documented is False


# Calibrations -------------------------------------------------------------------------------------


def measured(folder, name="layer", **more) -> str:
    said = {
        "kind": "memory-calibration",
        "engine": "vllm-ascend",
        "version": "0.22.1rc1",
        "model": "k2.5",
        "precision": "W4A8",
        "hardware": "a3",
        "role": "decode",
        "measured": {"date": "2026-11-01", "logs": ["a.log"]},
        "graphs_gib": 1.5,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(said | more))
    return str(path)


def calibrated(*paths: str) -> Request:
    return build.request("k2.5", "a3", "pd", calibrations=paths)


def test_calibrations_are_of_one_role_each(tmp_path):
    paths = [measured(tmp_path, role, role=role) for role in ("decode", "prefill")]
    assert [one.role for one in calibrated(*paths).calibrations] == ["decode", "prefill"]
    plan = build.plan("k2.5", "a3", "pd", calibrations=paths)
    assert [one.role for one in plan.request.calibrations] == ["decode", "prefill"]
    twice = [paths[0], measured(tmp_path, "again")]
    assert refused(ParameterError, calibrated, *twice) == (
        f"{twice[1]}: a second calibration of decode; give one."
    )
    other = measured(tmp_path, role="mixed")
    assert refused(ParameterError, calibrated, other).startswith(
        f"{other}: role 'mixed' is not known"
    )


@pytest.mark.parametrize(
    ("key", "there", "here"),
    [
        ("engine", "vllm", "vllm-ascend"),
        ("version", "0.23.0", "0.22.1rc1"),
        ("model", "k2.6", "k2.5"),
        ("precision", "INT4", "W4A8"),
        ("hardware", "a2", "a3"),
    ],
)
def test_a_calibration_of_something_else_is_refused(tmp_path, key, there, here):
    path = measured(tmp_path, **{key: there})
    said = refused(ParameterError, calibrated, path)
    assert said.startswith(
        f"{path}: measured with something else: {key} {there} there, {here} here."
    )


def test_a_calibration_of_a_larger_device_is_refused(tmp_path):
    path = measured(tmp_path, device_gib=90)
    assert refused(ParameterError, calibrated, path).startswith(f"{path}: device_gib: 90 GiB, more")


@pytest.fixture
def on_site(tmp_path):
    """A request on a site file with these calibrations beside it, and those of the command line."""

    def request(*names: str, given=()) -> Request:
        site = yaml.safe_load((load.paths.root() / "params/sites/a3.yaml").read_text())
        path = tmp_path / "site.yaml"
        path.write_text(yaml.safe_dump(site | {"calibration": list(names)}))
        return build.request("k2.5", "a3", "pd", site=str(path), calibrations=given)

    return request


def test_the_calibrations_of_a_site(on_site, tmp_path):
    for name, more in {
        "own": {},
        "prefill": {"role": "prefill"},
        "mixed": {"role": "mixed"},
        "model": {"model": "k2.6"},
        "old": {"version": "0.20.2rc1"},
        "old-prefill": {"version": "0.20.2rc1", "role": "prefill"},
        "older-model": {"version": "0.20.2rc1", "model": "k2.6"},
    }.items():
        measured(tmp_path, name, **more)
    one = on_site("mixed.yaml", "model.yaml", "older-model.yaml", "own.yaml", "old-prefill.yaml")
    assert [layer.role for layer in one.calibrations] == ["decode"]
    # At another version nobody may use it; where there is one of this version, it is not missed.
    assert [(it.role, it.version) for it in one.stale] == [("prefill", "0.20.2rc1")]
    one = on_site("old.yaml", "own.yaml", "prefill.yaml", "old-prefill.yaml")
    assert [layer.role for layer in one.calibrations] == ["decode", "prefill"] and one.stale == ()


def test_a_calibration_that_is_given_comes_before_that_of_the_site(on_site, tmp_path):
    measured(tmp_path, "own")
    given = measured(tmp_path, "given", graphs_gib=9)
    one = on_site("own.yaml", given=[given])
    assert [layer.graphs_gib for layer in one.calibrations] == [9]


def test_a_site_may_name_files_only(on_site, tmp_path):
    assert refused(ParameterError, on_site, "{x}.yaml") == (
        f"calibration {str(tmp_path / '{x}.yaml')[:80]!r}: a path is wanted, without braces."
    )


def test_a_site_has_one_calibration_for_a_role(on_site, tmp_path):
    measured(tmp_path, "own")
    again = measured(tmp_path, "again")
    said = refused(ParameterError, on_site, "own.yaml", "again.yaml")
    assert said == f"{again}: a second calibration of decode; name one."


# Errata -------------------------------------------------------------------------------------------


def test_errata_that_are_off():
    plan = build.plan("k2.5", "a3", "pd", erratum=["k2.5-host=off"])
    assert plan.errata_off == ("k2.5-host",) and not plan.as_documented
    ids = [entry["id"] for entry in plan.errata]
    assert "k2.5-host" not in ids and "k2.5-rpc-timeout" in ids
    usual = build.plan("k2.5", "a3", "pd")
    assert usual.errata_off == () and len(usual.errata) == len(ids) + 1
    # Those of the clients' commands belong to the plan too, and cannot be off.
    assert "k2.5-bench-target" in ids
    said = refused(
        ParameterError, build.plan, "k2.5", "a3", "pd", erratum=["k2.5-bench-target=off"]
    )
    assert said.startswith("--erratum k2.5-bench-target=off: this one cannot be off")
    assert "These can: k2.5-host, k2.5-local-weights, " in said
    whole = build.plan("k2.5", "a3", "pd", erratum=["all=off"])
    assert whole.as_documented and whole.name.endswith("-as-documented")


def test_the_errata_of_jobs_cannot_be_off():
    said = refused(
        ParameterError,
        build.plan,
        *("k2.5", "h200", "single"),
        variant="slurm",
        erratum=["slurm-removed-flags=off"],
    )
    assert said.endswith("These can: none.")


# Sites --------------------------------------------------------------------------------------------


def recipe_of(hardware: str, layout: str, variant: str = "") -> schema.Recipe:
    return build.request("k2.5", hardware, layout, variant=variant).recipe


@pytest.mark.parametrize(
    ("hardware", "more", "name"),
    [
        ("a3", {}, "a3-example"),
        ("a3", {"nodes": 4}, "a3-example"),
        ("a3", {"nodes": 5}, "a3-supernode"),
        ("h200", {"slurm": True}, "h200-slurm-example"),
        ("h200", {"nodes": 9}, "h200-example"),  # there is none with more
    ],
)
def test_the_example_site_of_a_hardware(hardware, more, name):
    assert build.example_site(load.hardware(hardware), **more).name == name


def test_the_example_site_of_jobs_and_of_hardware_that_is_like_another():
    h200 = load.hardware("h200")
    jobs = recipe_of("h200", "single", "slurm")
    assert build.example_site(h200, jobs).transport == "slurm"
    assert build.example_site(h200, recipe_of("h200", "single")).transport == "ssh"
    like = h200.model_copy(update={"name": "mine", "like": "h200"})
    assert build.example_site(like).name == "h200-example"
    alone = h200.model_copy(update={"name": "mine", "like": None})
    why = "{} write one and name it with --site (params/sites/a3.yaml is a start)."
    first = "There is no example site for mine{}:"
    assert refused(ParameterError, build.example_site, alone) == why.format(first.format(""))
    slurm = refused(ParameterError, build.example_site, alone, slurm=True)
    assert slurm == why.format(first.format(" under SLURM"))


def test_the_example_site_of_a_derived_recipe_has_the_nodes_that_it_needs():
    a3 = load.hardware("a3")
    marks = build.request("k2.6", "a2", "pd", derive=True).recipe.derivation
    roles = {
        "prefill": schema.RoleSpec(groups=3),
        "decode": schema.RoleSpec(groups=2, nodes=2),
    }
    recipe = recipe_of("a3", "pd").model_copy(update={"roles": roles, "derivation": marks})
    assert len(build.example_site(a3, recipe).nodes) == 7
    documented = recipe.model_copy(update={"derivation": None})
    assert len(build.example_site(a3, documented).nodes) == 4


def test_a_site_grows_after_its_last_address():
    nodes = (schema.Node(name="DGX09", address="192.0.2.254"),)
    site = load.site("h200").model_copy(update={"nodes": nodes})
    grown = build.grown(site, 3)
    assert [(node.name, node.address) for node in grown.nodes] == [
        ("DGX09", "192.0.2.254"),
        ("DGX1", "192.0.2.255"),
        ("DGX2", "192.0.3.0"),
    ]
    assert build.grown(site, 1).nodes == site.nodes == build.grown(site, 0).nodes


def test_a_site_of_other_hardware():
    a3, like = (
        load.hardware("a3"),
        load.hardware("a3").model_copy(update={"name": "x", "like": "a3"}),
    )
    assert build.check_hardware(load.site("a3"), a3) is None
    assert build.check_hardware(load.site("a3"), like) is None
    assert refused(PlanError, build.check_hardware, load.site("h200"), a3) == (
        "Site h200-example has hardware h200, the plan is for a3: choose --hw h200 or another --site."
    )
    assert refused(PlanError, build.plan, "k2.5", "a3", "single", site="h200").startswith(
        "Site h200"
    )


@pytest.mark.parametrize(
    ("variant", "of", "change", "says"),
    [
        (
            "slurm",
            "h200",
            {},
            "Variant slurm is made of SLURM jobs; site h200-example has transport ssh. Add the table "
            "'slurm' to the site file, or choose another --variant.",
        ),
        (
            "slurm",
            "h200-slurm",
            {"paths": schema.Paths(cache="/c")},
            "Variant slurm downloads the weights: site h200-slurm-example needs paths.models, the "
            "folder for them.",
        ),
        (
            "pip",
            "h200-kubernetes",
            {"paths": schema.Paths(cache="/c", engine="/e")},
            "Site h200-kubernetes-example: paths.engine is an environment on the nodes, and pods have "
            "that of their image. Take it out of the site file.",
        ),
        ("pip", "h200", {"paths": schema.Paths(cache="/c", engine="/e")}, ""),
        ("docker", "h200-kubernetes", {}, ""),
        ("slurm", "h200-slurm", {}, ""),
    ],
)
def test_a_site_that_cannot_do_it(variant, of, change, says):
    site = load.site(of).model_copy(update=change)
    recipe = recipe_of("h200", "single", variant)
    if not says:
        assert build._check_site(site, load.hardware("h200"), recipe) is None
    else:
        assert refused(PlanError, build._check_site, site, load.hardware("h200"), recipe) == says


def test_pods_need_an_image():
    site = load.site("h200-kubernetes")
    other = (
        " and the pods of site h200-kubernetes-example run in the image of the engine. Choose another "
        "--variant (kimi-nb list), or another --site."
    )
    jobs = recipe_of("h200", "single", "slurm")
    h200 = load.hardware("h200")
    assert refused(PlanError, build._check_pods, site, h200, jobs) == (
        f"Variant slurm is made of SLURM jobs,{other}"
    )
    bare = h200.model_copy(update={"container": None})
    assert refused(
        PlanError, build._check_pods, site, bare, recipe_of("h200", "single", "pip")
    ) == (f"Variant pip has no image on h200,{other}")


# The plan as a whole ------------------------------------------------------------------------------


def test_the_values_of_a_plan_in_figures():
    plan = build.plan("k2.5", "a3", "pd", scenario="")
    assert (plan.model, plan.hardware, plan.layout) == ("k2.5", "a3", "pd")
    assert (plan.scenario, plan.variant, plan.site) == ("default", "docker", "a3-example")
    assert plan.title == (
        "Four A3 nodes, two prefill groups and one decode group over Mooncake, prefill dp2 tp8, decode "
        "dp32 tp1"
    )
    assert (plan.documented, plan.source, plan.derived) == (True, "ascend-k2.5 5.3", {})
    assert (plan.engine, plan.engine_version, plan.vllm_version) == (
        *("vllm-ascend", "0.22.1rc1", "0.22.1"),
    )
    assert plan.image == "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"
    assert (plan.served_name, plan.weights) == ("kimi_k25", "Eco-Tech/Kimi-K2.5-W4A8")
    assert (plan.devices_per_node, plan.processes, plan.install) == (16, "rank", "docker")
    assert (plan.transport, plan.url) == ("ssh", "http://192.0.2.11:1999")
    assert plan.libraries == "/usr/local/lib" and plan.engine_folder == ""
    assert plan.features["decode"] == (
        *("host-tuning", "jemalloc", "expert-parallel", "eagle3", "recompute-scheduler", "mlapo"),
    )
    assert plan.host_tuning[:2] == (("governor", "performance"), ("vm.swappiness", "0"))
    assert (plan.secrets, plan.modules, plan.jobs, plan.edits) == ({}, (), (), ())
    assert [one.name for one in plan.clients] == ["bench"]
    assert any(note.startswith("the front door is vllm-ascend's") for note in plan.notes)
    assert set(plan.flags) == set(plan.env) == {"prefill", "decode"} and plan.store is None
    assert plan.request.site.name == "a3-example"


def test_the_mirror_of_a_site_is_that_of_the_plan(site_file):
    network = "network: {registry: mirror.example.org/q}\nnodes:"
    plan = build.plan("k2.5", "a3", "single", site=site_file(("nodes:", network)))
    assert plan.image.startswith("mirror.example.org/q/ascend/vllm-ascend:")
    assert plan.installs["docker"][0].argv[-1] == plan.image == plan.containers[0].image


def test_a_scenario_is_the_source_of_its_plan():
    plan = build.plan("k2.5", "a3", "single", scenario="throughput")
    assert (plan.scenario, plan.source) == ("throughput", "ascend-k2.5 9.1")


def test_a_key_is_named_by_its_variable(site_file):
    plan = build.plan("k2.5", "a3", "pd", site=site_file(("nodes:", "api_key_env: MINE\nnodes:")))
    assert plan.secrets == {"VLLM_API_KEY": "MINE"}
    assert plan.router.argv[1] == "keyed_door.py"


def test_without_a_name_a_model_is_served_under_its_path():
    plan = build.plan("k2.5", "h200", "single")
    assert plan.served_name == "moonshotai/Kimi-K2.5"
    named = build.plan("k2.5", "h200", "single", pairs=["served-model-name=k"])
    assert named.served_name == "k"
    both = build.plan("k2.5", "a3", "pd", pairs=["prefill.served-model-name=other"])
    assert both.served_name == "kimi_k25"  # who answers counts


def test_a_checkpoint_that_needs_an_edit():
    of = asked()
    weights = of.weights.model_copy(update={"edit": "quantization-target"})
    edited = asked(model={"weights": of.model.weights | {"int4": weights}})
    assert build.from_request(edited).edits == ("quantization-target",)


def test_documented_is_what_was_published_for_this_very_hardware():
    assert build.from_request(asked()).documented is True
    assert build.from_request(asked(recipe={"documented": False})).documented is False
    assert build.from_request(asked(recipe={"hardware": "h100"})).documented is False


# The front door -----------------------------------------------------------------------------------


def test_pods_have_a_deployment_for_their_front_door_and_a_service_for_clients():
    pd = build.plan("k2.5", "h200", "pd", site="h200-kubernetes")
    assert (pd.url, pd.router.node, pd.router.host) == (
        *("http://kimi.kimi:1999", "kimi-router", "kimi.kimi"),
    )
    assert pd.router.argv[:5] == ("vllm-router", "--host", "0.0.0.0", "--port", "1999")
    assert pd.nodes == ("kimi-prefill-0", "kimi-decode-0") and pd.containers == ()
    assert pd.request.site.nodes[0].name == "kimi-prefill-0"
    assert pd.router.folder == "/opt/kimi-nb/router"
    single = build.plan("k2.5", "h200", "single", site="h200-kubernetes")
    assert (single.url, single.router) == ("http://kimi.kimi:8000", None)


@pytest.mark.parametrize(
    ("own", "pairs", "port"), [(None, [], 1999), (30080, [], 30080), (30080, ["router.port=2"], 2)]
)
def test_the_port_of_the_router(own, pairs, port):
    one = dataclasses.replace(
        asked("k2.5", "a3", "pd", recipe={"router_port": own}),
        overrides=build.overrides.parse(pairs, ("prefill", "decode")),
    )
    plan = build.from_request(one)
    assert plan.router.port == port and plan.url == f"http://192.0.2.11:{port}"
    assert (plan.router.node, plan.router.argv[5]) == ("a3-0", "192.0.2.11")


def test_a_router_has_an_environment_of_its_own_where_the_engine_is_in_an_image():
    docker = build.plan("k2.5", "h200", "single", pairs=["groups=2", "router=vllm-router"])
    assert docker.router.folder == "/root/kimi/router"
    pip = build.plan(
        "k2.5", "h200", "single", variant="pip", pairs=["groups=2", "router=vllm-router"]
    )
    assert pip.router.folder == ""
    assert build.plan("k2.5", "a3", "pd").router.folder == ""


def test_a_router_and_an_engine_cannot_listen_at_one_port():
    said = refused(PlanError, build.plan, "k2.5", "a3", "pd", pairs=["router.port=7100"])
    assert "port 7100 is wanted twice: by HTTP of prefill0-rank0 and by the router" in said


def test_a_router_needs_something_behind_it():
    said = refused(
        ParameterError, build.plan, "k2.5", "h200", "single", pairs=["router=vllm-router"]
    )
    assert "has one group here" in said
    two = build.plan("k2.5", "h200", "single", pairs=["groups=2", "router=vllm-router"])
    assert len(two.router.workers) == 2
    port = refused(ParameterError, build.plan, "k2.5", "h200", "single", pairs=["router.port=7"])
    assert port.startswith("--set router.port=7: layout single")


# Title and notes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "shape"),
    [
        ([role(tp=8)], "tp8"),
        ([role(dp=2, tp=4, pp=2)], "dp2 tp4 pp2"),
        ([role(tp=4, flags={build._PCP: 2})], "tp4 pcp2"),
        ([role("prefill", tp=8), role("decode", dp=32)], "prefill tp8, decode dp32 tp1"),
    ],
)
def test_the_parallel_sizes_in_words(roles, shape):
    assert build._shape({one.role: one for one in roles}) == shape


@pytest.mark.parametrize(
    ("names", "more", "title"),
    [
        (("k2.5", "h200", "single"), {}, "One DGX H200, the release image, tp8"),
        (("k2.5", "h200", "single"), {"pairs": ["tp=4"]}, "One DGX H200, the release image, tp4"),
        (
            ("k2.5", "h200", "single"),
            {"pairs": ["groups=2"]},
            "Kimi-K2.5 on 2 nodes of h200, 2 groups, tp8",
        ),
        (
            ("k2.5", "h200", "single"),
            {"chosen": ["eagle3-instant"], "engine_version": "0.25.1"},
            "Kimi-K2.5 on 1 node of h200, 1 group, tp8",
        ),
        (
            ("k2.5", "h200", "single"),
            {"chosen": ["thinking-off"]},
            "One DGX H200, the release image, tp8",
        ),
        (
            ("k2.5", "a3", "pd"),
            {"dropped": ["eagle3"]},
            "Kimi-K2.5 on 4 nodes of a3, 2 prefill groups and 1 decode group, prefill dp2 tp8, decode "
            "dp32 tp1",
        ),
        (
            ("k2.5", "a3", "pd"),
            {"pairs": ["prefill.groups=1"]},
            "Kimi-K2.5 on 3 nodes of a3, 1 prefill group and 1 decode group, prefill dp2 tp8, decode "
            "dp32 tp1",
        ),
        (
            ("k2.6", "a3", "single"),
            {"scenario": "long-context"},
            "One A3 node, prefill and decode together, DFlash drafts, tp16",
        ),
    ],
)
def test_the_title_of_a_plan(names, more, title):
    plan = build.plan(*names, **more)
    assert plan.title == title


def test_a_title_says_what_a_scenario_switches():
    row = schema.Scenario(title="x", source={"document": "d"}, without=["eagle3"])
    head = "Kimi-K2.5 on 1 node of a3, 1 group, "
    assert build.from_request(asked("k2.5", "a3", "single", scenario=row)).title.startswith(head)
    more = schema.Scenario(title="x", source={"document": "d"}, features=["eagle3"])
    assert build.from_request(asked("k2.5", "a3", "single", scenario=more)).title.startswith(head)
    same = schema.Scenario(title="x", source={"document": "d"}, without=["jemalloc"])
    gone = asked("k2.5", "a3", "single", scenario=same, dropped=("eagle3",))
    assert build.from_request(gone).title.startswith(head)
    title = build.from_request(asked("k2.5", "a3", "single", scenario=same)).title
    assert title.startswith("One A3 node, prefill and decode together, ")


def notes(of: Request, *roles: RolePlan, fronted=None) -> tuple[str, ...]:
    return build._notes(of, {one.role: one for one in roles}, fronted)


def test_a_model_that_stands_for_another_is_told():
    assert notes(asked(named="k3"), role()) == (
        "k2.5 stands for k3: random weights, h200 has no room for the real ones.",
    )


def test_what_is_documented_needs_no_derivation():
    one = asked(derive=True, recipe={"source": schema.Source(document="guide", section="5.1")})
    assert notes(one, role()) == ("--derive changes nothing: this is documented (guide 5.1).",)
    assert notes(asked(), role()) == ()


def test_a_page_that_nobody_has_run_is_told():
    source = schema.Source(document="pages")
    one = asked(recipe={"tried": False, "source": source, "hardware": "h100"})
    assert notes(one, role()) == (
        "pages renders this for h100; nobody says there that it was run.",
    )


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        ([role()], ""),
        ([role(groups=2)], "2 groups serve on their own, without a router"),
        ([role(groups=3, nodes=2)], "3 groups serve on their own"),
        ([role(groups=2, nodes=3, dp=3, flags={HYBRID: True})], "6 nodes answer on their own"),
        ([role("prefill"), role("decode")], "2 groups serve on their own"),
    ],
)
def test_what_answers_alone_is_told(roles, says):
    found = notes(asked(), *roles)
    assert len(found) == bool(says)
    if says:
        assert found[0].startswith(says) and found[0].endswith(
            ": clients of the service's URL reach the first only. --set router=vllm-router puts one in "
            "front of all."
        )
    routed = asked(overrides=build.overrides.parse(["router=vllm-router"], ("mixed",)))
    assert notes(routed, *roles) == ()


def test_notes_are_told_once_and_in_their_order():
    first, second = role("prefill", notes=("b", "a")), role("decode", notes=("a", "c"))
    fronted = build.plan("k2.5", "a3", "pd").router
    found = notes(asked("k2.5", "a3", "pd", named="k3"), first, second, fronted=fronted)
    assert found[0].startswith("k2.5 stands for k3") and found[1].startswith("the front door is")
    assert found[2:] == ("b", "a", "c")


def test_the_notes_of_a_store_are_those_of_its_plan(stored_model):
    plan = build.plan(stored_model(), "h200", "single", variant="pip")
    bare = build._notes(plan.request, {"mixed": role(groups=2)}, plan.router)
    assert plan.store.kind == "mooncake" and len(plan.notes) >= len(bare)
    assert plan.notes[-1] == build.store.notes(plan.store, True)[-1]


# Refusals of a whole plan -------------------------------------------------------------------------


def valued(**flags) -> dict:
    return {name.replace("_", "-"): Value(it, "override", "--set x") for name, it in flags.items()}


def test_a_context_longer_than_that_of_the_model():
    most = 262144
    assert build._check_context(asked(), {"mixed": valued(max_model_len=most)}) is None
    assert build._check_context(asked(), {"mixed": valued(max_model_len="auto")}) is None
    assert build._check_context(asked(), {"mixed": {}}) is None
    long = {"mixed": valued(max_model_len=most + 1)}
    assert refused(PlanError, build._check_context, asked(), long) == (
        "mixed: max-model-len 262145 (--set x) is more than the 262144 tokens of Kimi-K2.5."
    )


def test_roles_apart_need_a_connector():
    there = {"kv-transfer-config.kv_connector": Value("C", "recipe", "a")}
    assert build._check_context(asked(), {"prefill": there, "decode": there}) is None
    said = refused(PlanError, build._check_context, asked(), {"prefill": there, "decode": {}})
    assert said == (
        "decode: without kv-transfer-config.kv_connector no cache travels from prefill to decode; "
        "layout pd needs it."
    )
    pairs = ["decode.kv-transfer-config=null"]
    assert "no cache travels" in refused(PlanError, build.plan, "k2.5", "a3", "pd", pairs=pairs)


def context_parallel(version: str, one: RolePlan, **values) -> str:
    given = {name.replace("_", "-"): it for name, it in values.items()}
    engine = catalog.engine("vllm-ascend", version)
    of = dataclasses.replace(asked("k2.5", "a3", "pd"), engine=engine)
    try:
        build._check_context_parallel(of, one, given)
    except PlanError as error:
        return str(error)
    return ""


DRAFT = {"speculative-config.method": "eagle3", "decode-context-parallel-size": 2}


def test_context_parallelism_beside_a_draft():
    one = role("decode", features=("jemalloc", "eagle3"))
    said = context_parallel("0.22.1rc1", one, **DRAFT)
    assert said.startswith(
        "decode: decode-context-parallel-size 2 in vllm-ascend 0.22.1rc1: the conf"
    )
    assert said.endswith(
        "). Take the draft away (--without eagle3) or context parallelism (--without "
        "decode-context-parallel)."
    )
    bare = context_parallel("0.22.1rc1", role("decode", features=("jemalloc",)), **DRAFT)
    assert "Take the draft away (--without its feature) or" in bare
    mla = DRAFT | {"speculative-config.model": "a/K2-MLA"}
    assert context_parallel("0.22.1rc1", one, **mla) == ""  # a warning of the rules, and no more
    # Decode context parallelism of 1, or one that is no number, is none.
    assert context_parallel("0.22.1rc1", one, **DRAFT | {"decode-context-parallel-size": 1}) == ""
    assert context_parallel("0.22.1rc1", one, **DRAFT | {"decode-context-parallel-size": "2"}) == ""
    assert context_parallel("0.22.1rc1", one, **{"speculative-config.method": "eagle3"}) == ""
    assert context_parallel("0.22.1rc1", one, **{"decode-context-parallel-size": 2}) == ""


def test_context_parallelism_depends_on_the_role_and_on_a_draft():
    mtp = DRAFT | {"speculative-config.method": "deepseek_mtp"}
    said = context_parallel("0.23.0", role("mixed"), **mtp)
    assert "drafts go with context parallelism in prefill-decode disaggregation only" in said
    assert context_parallel("0.23.0", role("decode"), **mtp) == ""
    without = {"decode-context-parallel-size": 2}
    assert context_parallel("0.17.0rc1", role("mixed"), **without) == ""
    assert "the first request with a draft" in context_parallel("0.17.0rc1", role(), **DRAFT)


def test_two_drafts_are_both_named():
    one = role("decode", features=("eagle3", "dflash"))
    said = context_parallel("0.22.1rc1", one, **DRAFT)
    assert "(--without eagle3, dflash)" in said


@pytest.mark.parametrize(("name", "where"), [("mixed", ""), ("prefill", "prefill.")])
def test_prefill_context_parallelism_that_a_version_refuses(name, where):
    one = role(name, flags={build._PCP: 2}, dp=2)
    said = context_parallel("0.22.1rc1", one)
    assert said.startswith(
        f"{name}: prefill-context-parallel-size 2 in vllm-ascend 0.22.1rc1: prefill context parallelism"
    )
    assert said.endswith(f"). Take it away (--set {where}prefill-context-parallel-size=null).")
    assert context_parallel("0.22.1rc1", role(name, flags={build._PCP: 2})) == ""


NIXL = {"kv-transfer-config": {"kv_connector": "NixlConnector"}}
DCP = "decode-context-parallel-size"


@pytest.mark.parametrize(
    ("name", "flags", "sizes", "says"),
    [
        ("decode", NIXL, {}, ""),
        ("prefill", NIXL, {"pp": 2}, ""),
        (
            "decode",
            NIXL,
            {"pp": 2},
            "decode: pp 2 with NixlConnector: vLLM refuses pipeline parallelism in an engine that takes "
            "the cache from others. Set decode.pp=1, and raise decode.tp or decode.dp instead.",
        ),
        ("decode", {"kv-transfer-config": {"kv_connector": "Mooncake"}}, {"pp": 2}, ""),
        ("decode", {}, {"pp": 2}, ""),
        ("prefill", NIXL | {DCP: 4}, {"tp": 4}, ""),
        (
            "prefill",
            NIXL | {DCP: 2},
            {"tp": 4},
            "prefill: decode-context-parallel-size 2 with NixlConnector: the cache that travels is "
            "whole on every device or split over all of them; allowed: 1, 4.",
        ),
        ("prefill", NIXL | {DCP: 8, build._PCP: 8}, {"tp": 4}, ""),
    ],
)
def test_sizes_that_nixl_refuses(name, flags, sizes, says):
    one = role(name, flags, **sizes)
    if says:
        assert refused(PlanError, build._check_transfer, one) == says
    else:
        assert build._check_transfer(one) is None


def test_a_placeholder_that_nobody_knows():
    good = [("a", ["{address} {nic} {leader} {node_folder}", "{A} {a-b} {}"])]
    assert build._check_filled(good) is None
    said = refused(ParameterError, build._check_filled, [*good, ("b", ["x", "{nic}/{foo}/{bar}"])])
    assert said == (
        "b: the placeholder {foo} in '{nic}/{foo}/{bar}' is not known; known are {address}, {leader}, "
        "{nic}, {node_folder}."
    )
    long = refused(ParameterError, build._check_filled, [("b", ["{foo}" + "x" * 200])])
    assert f"in '{{foo}}{'x' * 75}' is" in long


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("decode", {"settings": {"env": {"A": "{foo}"}}}),
        ("decode", {"settings": {"flags": {"revision": "{foo}"}}}),
    ],
)
def test_a_placeholder_of_any_role_is_looked_at(where, change):
    of = asked("k2.5", "a3", "pd")
    spec = of.recipe.roles[where].model_copy(
        update={"settings": schema.Settings(**change["settings"])}
    )
    flags = dict(of.recipe.roles[where].settings.flags)
    settings = schema.Settings(
        flags=flags | change["settings"].get("flags", {}), env=change["settings"].get("env", {})
    )
    spec = of.recipe.roles[where].model_copy(update={"settings": settings})
    one = asked("k2.5", "a3", "pd", recipe={"roles": of.recipe.roles | {where: spec}})
    said = refused(ParameterError, build.from_request, one)
    assert said.startswith(f"{where}: the placeholder {{foo}} in '{{foo}}' is not known")


def test_placeholders_of_clients_and_containers_are_looked_at():
    of = asked()
    client = schema.Client(title="x", argv=("a", "{foo}"), source={"document": "d"})
    named = {"clients": of.model.clients | dict.fromkeys(of.recipe.clients, client)}
    said = refused(ParameterError, build.from_request, asked(model=named))
    assert said.startswith(f"{of.recipe.clients[0]}: the placeholder {{foo}}")
    in_env = client.model_copy(update={"argv": (), "env": {"A": "{foo}"}})
    named = {"clients": of.model.clients | dict.fromkeys(of.recipe.clients, in_env)}
    assert "{foo}" in refused(ParameterError, build.from_request, asked(model=named))
    container = of.hardware.container.model_copy(update={"mounts": ("{foo}:/x",)})
    said = refused(ParameterError, build.from_request, asked(hardware={"container": container}))
    assert said.startswith("dgx-0: the placeholder {foo} in '{foo}:/x'")


def test_what_a_step_cannot_hold_is_told_with_the_role():
    pairs = ["decode.max-num-batched-tokens=10", "decode.enable-chunked-prefill=false"]
    said = refused(PlanError, build.plan, "k2.5", "a3", "pd", pairs=pairs)
    assert said.startswith("decode: ") and "--set decode.max-num-batched-tokens=" in said
    alone = [one.removeprefix("decode.") for one in pairs]
    said = refused(PlanError, build.plan, "k2.5", "a3", "single", pairs=alone)
    assert said.startswith("mixed: ") and "--set max-num-batched-tokens=" in said


# Engines and their shared values ------------------------------------------------------------------


def test_the_flags_of_a_role_have_those_of_its_first_engine():
    plan = build.plan("k2.5", "a3", "pd")
    first = "first engine; each has its own"
    decode = plan.flags["decode"]
    assert decode["port"] == Value(7100, "plan", first)
    assert decode["host"] == Value("192.0.2.13", "plan", first)
    assert decode["data-parallel-rank"] == Value(0, "plan", first)
    assert decode["kv-transfer-config.engine_id"] == Value("2", "plan", first)
    assert plan.flags["prefill"]["host"].value == "192.0.2.11"
    env = plan.env["decode"]["HCCL_IF_IP"]
    assert env == Value("192.0.2.13", "site", "site a3-example", first)
    assert plan.env["prefill"]["HCCL_IF_IP"].value == "192.0.2.11"
    assert plan.env["decode"]["OMP_NUM_THREADS"].reason != first


def test_a_port_at_which_nothing_listens_is_refused():
    plan = build.plan("k2.5", "a3", "pd", pairs=["prefill.rpc-port=12345"])
    assert {engine.rpc_port for engine in plan.engines} == {12345, 12321}
    said = refused(ParameterError, build.plan, "k2.5", "h200", "single", pairs=["kv-port=36000"])
    assert said.startswith("--set mixed.kv-port=36000 would change nothing")
    said = refused(
        ParameterError, build.plan, "k2.5", "a3", "pd", pairs=["decode.side-channel-port=5"]
    )
    assert said.startswith("--set decode.side-channel-port=5 would change nothing")


def test_the_ports_of_a_store_are_claimed_too(stored_model):
    model = stored_model()
    plan = build.plan(model, "h200", "single", variant="pip")
    pairs = [f"port={plan.store.port}"]
    said = refused(PlanError, build.plan, model, "h200", "single", variant="pip", pairs=pairs)
    assert f"port {plan.store.port} is wanted twice" in said


# The launcher -------------------------------------------------------------------------------------


def test_the_launcher_is_called_on_each_node():
    launches = build.plan("k2.5", "a3", "pd").launches
    assert [one.node for one in launches] == ["a3-0", "a3-1", "a3-2", "a3-3"]
    prefill = (
        "python launch_online_dp.py --dp-size 2 --tp-size 8 --dp-size-local 2 --dp-rank-start 0"
    )
    ports = "--dp-rpc-port 12321 --vllm-start-port 7100 --devices 16"
    assert [" ".join(one.argv) for one in launches[:2]] == [
        f"{prefill} --dp-address 192.0.2.11 {ports}",
        f"{prefill} --dp-address 192.0.2.12 {ports}",
    ]
    decode = (
        "python launch_online_dp.py --dp-size 32 --tp-size 1 --dp-size-local 16 --dp-rank-start"
    )
    assert [" ".join(one.argv) for one in launches[2:]] == [
        f"{decode} 0 --dp-address 192.0.2.13 {ports}",
        f"{decode} 16 --dp-address 192.0.2.13 {ports}",
    ]
    alone = build.plan("k2.5", "a3", "pd", pairs=["prefill.dp=1", "prefill.tp=16"]).launches[0]
    assert "--dp-rpc-port" not in alone.argv and alone.argv[-4] == "--vllm-start-port"
    assert build.plan("k2.5", "h200", "single").launches == ()


# Installation -------------------------------------------------------------------------------------


def steps(**more) -> list[str]:
    given = {
        "hardware": load.hardware("h200"),
        "site": load.site("h200"),
        "engine": catalog.engine("vllm", "0.25.1"),
        "method": "pip",
        "layout": "single",
        "routed": False,
    }
    return [" ".join(one.argv) for one in build.install_steps(**given | more)]


def test_the_commands_of_an_installation():
    venv = "uv venv --python 3.12 --allow-existing /root/kimi/engine"
    pip = "uv pip install --python /root/kimi/engine"
    plain = steps()
    assert plain[0] == venv and plain[1].startswith(f"{pip} vllm==0.25.1 --torch-backend ")
    assert len(plain) == 3
    assert f"{pip} vllm-router==0.1.17" in steps(routed=True)
    assert any(one.startswith(f"{pip} nixl==") for one in steps(layout="pd"))
    stored = [one for one in steps(stored=True) if one not in plain]
    assert len(stored) == 1 and stored[0].startswith(f"{pip} mooncake-transfer-engine-cuda13==")
    amd = steps(hardware=load.hardware("mi300x"), stored=True)
    assert any(one.startswith(f"{pip} mooncake-transfer-engine-non-cuda==") for one in amd)
    site = load.site("h200").model_copy(update={"paths": schema.Paths(cache="/c", engine="/opt/e")})
    assert steps(site=site)[0].endswith(" /opt/e")
    docker = steps(method="docker", routed=True)
    assert docker[0] == "docker pull vllm/vllm-openai:v0.25.1"
    assert docker[2].endswith("/root/kimi/router")


def test_each_word_of_a_step_is_filled():
    words = "{version} {vllm} {image} {work} {engine} {router} {router_folder} {nixl} {torch} {x}"
    step = schema.Step(says="s", argv=words.split(), directory="{work}/d", env={"A": "{work}"})
    made = load.hardware("a3").model_copy(update={"installs": {"own": (step,)}})
    engine = catalog.engine("vllm-ascend", "0.22.1rc1")
    (found,) = build.install_steps(made, load.site("a3"), engine, "own", "single", False)
    assert (found.says, found.directory, found.env) == ("s", "/root/kimi/d", {"A": "{work}"})
    companions = build.companions
    assert found.argv == (
        *("0.22.1rc1", "0.22.1", "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3", "/root/kimi"),
        *("/root/kimi/engine", companions.router(), "/root/kimi/router"),
        *(companions.nixl(engine), companions.torch_build(engine), "{x}"),
    )


def test_the_steps_of_another_layout_are_left_out():
    step = {"says": "s", "argv": ["a"]}
    both = (schema.Step(**step), schema.Step(**step | {"layouts": ["pd"], "argv": ["b"]}))
    made = load.hardware("h200").model_copy(update={"installs": {"own": both}})
    assert steps(hardware=made, method="own") == ["a"]
    assert steps(hardware=made, method="own", layout="pd") == ["a", "b"]


def test_a_way_to_install_that_the_hardware_has_not():
    said = refused(ParameterError, steps, method="conda")
    assert said == "way to install on h200: 'conda' is not known. Allowed: docker, pip."


def installed(plan: Plan) -> dict[str, str]:
    return {
        name: " ".join(word for it in ways for word in it.argv)
        for name, ways in plan.installs.items()
    }


def test_a_plan_has_each_way_to_install(stored_model):
    plain = installed(build.plan("k2.5", "h200", "single"))
    assert list(plain) == ["docker", "pip"] and "router" not in plain["pip"]
    assert "nixl" not in plain["pip"]
    pd = installed(build.plan("k2.5", "h200", "pd"))
    assert "vllm-router==" in pd["pip"] and "nixl==" in pd["pip"] and "mooncake" not in pd["pip"]
    stored = build.plan(stored_model(), "h200", "single", variant="pip")
    assert "mooncake" in installed(stored)["pip"]
    assert build.plan("k2.5", "h200", "single", variant="slurm").installs == {}


@pytest.mark.parametrize(
    ("install", "paths", "jobs", "folder"),
    [
        ("pip", {}, False, "/w/engine"),
        ("docker", {}, False, ""),
        ("nothing", {}, False, ""),
        ("docker", {"engine": "/opt/e"}, False, "/opt/e"),
        ("pip", {"engine": "/opt/e"}, False, "/opt/e"),
        ("pip", {}, True, ""),
    ],
)
def test_the_environment_that_the_scripts_enter(install, paths, jobs, folder):
    one = asked(
        recipe={"install": install, "jobs": jobs},
        site={"paths": schema.Paths(cache="/c", work="/w", **paths)},
    )
    assert build._engine_folder(one) == folder


# Containers ---------------------------------------------------------------------------------------


def reaches(plan: Plan) -> list[bool]:
    return ["--net=host" in one.argv for one in plan.containers]


def test_a_container_for_each_node_in_use():
    plan = build.plan("k2.5", "a3", "pd")
    assert [one.node for one in plan.containers] == ["a3-0", "a3-1", "a3-2", "a3-3"]
    assert "--shm-size=512g" in plan.containers[0].argv
    single = build.plan("k2.5", "a3", "single")
    assert [one.node for one in single.containers] == ["a3-0"]
    assert "--shm-size=1g" in single.containers[0].argv
    assert "/root/kimi:/root/kimi" in single.containers[0].argv
    assert build.plan("k2.5", "h200", "single", variant="pip").containers == ()
    plan = build.plan("k2.5", "h200", "single", pairs=["port=8011"])
    assert plan.url == "http://198.51.100.11:8011"
    assert "198.51.100.11:8011:8000" in plan.containers[0].argv
    assert plan.containers[0].argv[-2:] == plan.engines[0].argv[-2:]


def test_engines_that_have_to_reach_each_other_use_the_network_of_the_host():
    assert reaches(build.plan("k2.5", "h200", "single")) == [False]
    assert reaches(build.plan("k2.5", "h200", "single", pairs=["groups=2"])) == [False, False]
    over = ["nodes=2", "dp=2"]
    assert reaches(build.plan("k2.5", "h200", "single", pairs=over)) == [True, True]
    pd = build.plan("k2.5", "h200", "pd")
    assert reaches(pd) == [True] * len(pd.nodes) and len(pd.nodes) > 1


def test_the_weights_of_a_folder_are_shown_to_the_container():
    one = asked(site={"paths": schema.Paths(cache="/c", work="/w", models="/data/m")})
    assert "/data/m:/data/m" in build.from_request(one).containers[0].argv


# Jobs ---------------------------------------------------------------------------------------------


def jobs(*pairs: str, site="h200-slurm", **more) -> dict:
    plan = build.plan("k2.5", "h200", "single", variant="slurm", site=site, pairs=pairs, **more)
    return {job.name: job for job in plan.jobs}


def test_both_serving_jobs_are_planned():
    for scenario in ("", "optimised"):
        found = jobs(scenario=scenario)
        assert "--enable-eplb" in found["optimised"].argv
        assert "--enable-eplb" not in found["baseline"].argv
    assert jobs()["benchmark"].argv[:3] == ("vllm", "bench", "serve")


def test_a_choice_replaces_what_it_excludes_in_the_other_job():
    found = jobs(chosen=["eagle3-thinking"], engine_version="0.25.1")
    for name in ("baseline", "optimised"):
        (config,) = [word for word in found[name].argv if '"method"' in word]
        assert "thinking-eagle3" in config.lower(), name
    kept = jobs(dropped=["thinking-off"], engine_version="0.25.1")
    (config,) = [word for word in kept["optimised"].argv if '"method"' in word]
    assert "eagle3-mla" in config


def test_replicas_have_a_router_where_several_answer(two_dgx):
    found = jobs(site=two_dgx, scenario="replicas")
    assert any("vllm-router" in line for line in found["optimised"].body)
    assert not any("vllm-router" in line for line in found["baseline"].body)
    alone = jobs("groups=2", site=two_dgx)
    assert not any("vllm-router" in line for job in alone.values() for line in job.body)
    keyless = jobs("router=vllm-router", site=two_dgx, scenario="replicas")["baseline"]
    assert not any("vllm-router" in line for line in keyless.body)
    port = jobs("router.port=1998", site=two_dgx, scenario="replicas")["optimised"]
    assert any("--port 1998" in line for line in port.body)
    assert any("keyed_door" in line for line in port.body) is False


def test_a_key_asks_for_a_door(nodes_file, tmp_path):
    path = tmp_path / "keyed.yaml"
    with open(nodes_file("h200-slurm", 2), encoding="utf-8") as file:
        path.write_text(file.read() + "api_key_env: KEY\n", encoding="utf-8")
    found = jobs("router=vllm-router", site=str(path), scenario="replicas")
    assert any("keyed_door" in line for line in found["optimised"].body)
    # The baseline is one engine, in front of which no door asks for anything.
    assert not any("OPENAI_API_KEY" in line for line in found["baseline"].body)


def test_a_plan_without_jobs_has_none():
    assert build.plan("k2.5", "h200", "single").jobs == ()
    modules = build.plan("k2.5", "h200", "single", variant="slurm").modules
    assert modules == ("anaconda3",)


# Other values -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connectors", "libraries"),
    [
        ([None], ""),
        (["NixlConnector"], ""),
        (["NixlConnector", "MooncakeConnectorV1"], "/usr/local/lib"),
        ([None, "MooncakeConnectorV1"], "/usr/local/lib"),
    ],
)
def test_the_libraries_of_mooncake(connectors, libraries):
    name = "kv-transfer-config.kv_connector"
    flags = {
        str(at): {name: Value(it, "recipe", "a")} if it else {} for at, it in enumerate(connectors)
    }
    assert build._libraries(asked("k2.5", "a3", "pd"), flags) == libraries


def test_the_settings_of_the_host():
    tuning = schema.HostTuning(governor="performance", sysctl={"vm.swappiness": 0})
    one = asked(hardware={"host_tuning": tuning})
    tuned = role(host_tuning=True)
    assert build._host_tuning(one, tuned) == (("governor", "performance"), ("vm.swappiness", "0"))
    assert build._host_tuning(one, role()) == ()
    bare = asked(hardware={"host_tuning": schema.HostTuning(sysctl={"a.b": 1})})
    assert build._host_tuning(bare, tuned) == (("a.b", "1"),)
