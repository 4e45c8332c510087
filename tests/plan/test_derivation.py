"""Derived recipes: each cell of the table plans or is refused with its sum, and says where it is from."""

import json
import re
import zlib

import pytest
import yaml

from kimi_nb import catalog
from kimi_nb.catalog import companions, known_faults
from kimi_nb.check import judge
from kimi_nb.core.errors import NoRecipeError
from kimi_nb.params import load, schema
from kimi_nb.plan import build, derivation, tables
from kimi_nb.plan.derivation import adapting, bases

CELLS = derivation.cells()
DERIVED = [one for one in CELLS if one.word == "derived"]
IMPOSSIBLE = [one for one in CELLS if one.word == "impossible"]


def _name(one: derivation.Verdict) -> str:
    return f"{one.model}-{one.hardware}-{one.layout}"


# A twelfth of the cells, the same ones each time; all of them are `long`.
SAMPLE = [one for one in DERIVED if zlib.crc32(_name(one).encode()) % 12 == 0]


def _plans_and_fits(cell: derivation.Verdict) -> None:
    plan = build.plan(cell.model, cell.hardware, cell.layout, derive=True)
    assert plan.title.startswith("DERIVED from ") and plan.name.endswith("-derived")
    assert not plan.documented and cell.why == f"from {plan.derived['base']}"
    deployment = judge.of_plan(plan)
    found = judge.plan(plan)
    assert not found.errors, [one.message for one in found.errors]
    model = load.model(cell.model)
    bars = judge.memory_of(deployment)
    assert {bar.role for bar in bars} == set(plan.flags)
    for bar in bars:
        assert bar.fit.headroom > 0
        assert bar.fit.tokens >= (bar.fit.shape.model_len or model.context_length)
    heads = model.architecture["heads"]
    for engine in plan.engines:
        assert heads % engine.tp_size == 0
        assert len(engine.devices) <= load.hardware(cell.hardware).devices.count


@pytest.mark.parametrize("cell", SAMPLE, ids=_name)
def test_a_derived_cell_plans_checks_and_fits(cell):
    _plans_and_fits(cell)


@pytest.mark.long
@pytest.mark.parametrize("cell", DERIVED, ids=_name)
def test_every_derived_cell_plans_checks_and_fits(cell):
    _plans_and_fits(cell)


@pytest.mark.parametrize("cell", IMPOSSIBLE, ids=_name)
def test_an_impossible_cell_is_refused_with_its_reason(cell):
    with pytest.raises(NoRecipeError) as caught:
        build.plan(cell.model, cell.hardware, cell.layout, derive=True)
    said = str(caught.value)
    assert cell.why in said or load.hardware(cell.hardware).models
    if "GiB" in cell.why:  # a sum: what is needed on a device is more than there is
        device = re.search(r"there are ([0-9.]+) GiB \(([0-9.]+) x ([0-9.]+)\)", cell.why)
        needed = re.search(r"contexts ([0-9.]+) GiB", cell.why)
        assert device and needed and float(needed[1]) > float(device[1]) * 0.9
        assert float(device[1]) == pytest.approx(float(device[2]) * float(device[3]), abs=0.1)


def test_the_sum_is_that_of_the_sizes():
    """Held against arithmetic that is written apart from the account."""
    why = derivation.judge(load.model("k2.5"), load.hardware("a2"), "single").why
    weights = float(re.search(r"devices are ([0-9.]+) GiB", why)[1])
    routed = 60 * 384 * 3 * 7168 * 2048 * (0.5 + 8 / 256) / 8 / 2**30  # a device's share alone
    assert routed < weights < 1.15 * routed and routed > 0.9 * 60.96
    assert "560 GB of W4A8 weights over 8 devices" in why and "layout dp" in why.lower()


@pytest.fixture
def five(monkeypatch):
    """The models with what the first five documents describe, whatever else there is by now."""
    documents = ("ascend-k2.5", "ascend-k2.6", "ascend-k2-thinking", "usage-guide", "h200-slurm")
    models = {}
    for name in ("k2.5", "k2.6", "k2-thinking"):
        model = load.model(name)
        known = tuple(one for one in model.recipes if one.source.document in documents)
        models[name] = model.model_copy(update={"recipes": known})
    monkeypatch.setattr(bases, "shipped_models", lambda: models)
    bases._pairs.cache_clear()
    yield models
    bases._pairs.cache_clear()


def derive(model, chip, layout, variant=""):
    return derivation.find(model, load.hardware(chip), layout, variant, derive=True)


def test_the_nearest_is_of_the_same_layout_then_model_then_hardware(five):
    def base(model, chip, layout):
        found = derivation.judge(five[model], load.hardware(chip), layout)
        return found.why.removeprefix("from ").partition(" (")[0]

    assert base("k2.5", "h200", "dp") == "k2.5 gb200 dp tensor-parallel"
    assert base("k2.5", "a3", "dp") == "k2.5 a2 dp docker"
    assert base("k2.6", "a2", "pd") == "k2.6 a3 pd docker"  # the same model, other hardware
    assert base("k2.6", "a2", "dp") == "k2.5 a2 dp docker"  # the same layout is worth more
    assert base("k2-thinking", "h200", "single") == "k2.5 h200 single docker"
    assert base("k2-thinking", "mi300x", "dp") == "k2.5 mi300x single docker"


def test_another_architecture_is_farther_than_other_hardware(five):
    """The layers of another model take other settings; those of the same one, other links."""
    sizes = {**five["k2.5"].architecture, "layers": 99}
    five["k2.5"] = five["k2.5"].model_copy(update={"architecture": sizes})
    bases._pairs.cache_clear()
    near = bases.nearest(five["k2-thinking"], load.hardware("a2"), "single")
    assert (near.model.name, near.recipe.hardware) == ("k2-thinking", "a3")
    near = bases.nearest(five["k2.6"], load.hardware("a2"), "dp")
    assert near.model.name == "k2.5"  # the only one of that layout


def test_parsers_are_those_of_the_model(five):
    base = bases.nearest(five["k2-thinking"], load.hardware("h200"), "single")
    parsers = schema.Parsers(tool="mine", reasoning="kimi_k2")
    model = five["k2-thinking"].model_copy(update={"parsers": parsers})
    subject = adapting.Subject(model, load.hardware("h200"), "single", base)
    flags = {"tool-call-parser": "kimi_k2", "reasoning-parser": "kimi_k2", "seed": 1}
    steps = {}
    made = adapting.of_the_model(subject, schema.Settings(flags=flags), steps)
    assert made.flags == {**flags, "tool-call-parser": "mine"}
    assert set(steps) == {"tool-call-parser"}


@pytest.mark.parametrize(
    "kind, refused", [("no-start", True), ("wrong-answers", True), ("slow", False)]
)
def test_what_is_known_not_to_work_is_not_derived(five, monkeypatch, kind, refused):
    fault = known_faults.KnownFault(
        "t-1", "vllm", kind, "it stops", "https://example.org", "a test", first="0.1.0",
        models=("k2-thinking",), when={"layout": "single", "tp": {"min": 4}}, way_out="take dp",
    )  # fmt: skip
    monkeypatch.setattr(known_faults, "every", lambda: (fault,))
    found = derivation.judge(five["k2-thinking"], load.hardware("h200"), "single")
    assert (found.word == "impossible") == refused
    if refused:
        assert "known fault t-1: it stops" in found.why and "take dp" in found.why
    assert derivation.judge(five["k2-thinking"], load.hardware("h200"), "dp").word == "derived"


def test_ranks_of_prefill_on_several_nodes_answer_for_themselves(five, tmp_path):
    """One process a node would answer for ranks elsewhere, whose caches are not there."""
    recipe = next(
        one for one in five["k2.5"].recipes if one.layout == "pd" and one.router == "vllm-router"
    )
    env = {name: value for name, value in recipe.settings.env.items() if "NIXL" not in name}
    settings = schema.Settings(flags=recipe.settings.flags, env=env)
    roles = {
        name: role.model_copy(update={"nodes": 1, "dp": 4, "tp": 1})
        for name, role in recipe.roles.items()
    }
    changes = {"settings": settings, "processes": "node", "install": "docker", "roles": roles}
    model = five["k2.5"].model_copy(update={"recipes": (recipe.model_copy(update=changes),)})
    five["k2.5"] = model
    bases._pairs.cache_clear()
    path = tmp_path / "small.yaml"
    devices = {"count": 4, "memory_gb": 96}
    path.write_text(
        yaml.safe_dump({"extends": "gb200", "name": "small", "like": None, "devices": devices})
    )
    made = derive(model, str(path), "pd")
    assert made.roles["prefill"].nodes > 1 and made.roles["prefill"].dp > 1
    assert (made.processes, made.install) == ("rank", "pip")
    assert all(role.ports.http for role in made.roles.values())
    assert made.settings.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "{address}"
    said = {step.what for step in made.derivation.steps}
    assert {"processes", "install", "VLLM_NIXL_SIDE_CHANNEL_HOST"} <= said


def test_a_page_that_nobody_has_run_is_no_base():
    for cell in DERIVED:
        chip = load.hardware(cell.hardware)
        base = bases.nearest(load.model(cell.model), chip, cell.layout)
        assert base.recipe.documented and base.recipe.tried and not base.recipe.jobs


def test_a_version_is_new_enough_for_model_and_devices():
    for cell in DERIVED:
        model, chip = load.model(cell.model), load.hardware(cell.hardware)
        made = derivation.find(model, chip, cell.layout, derive=True)
        engine = catalog.engine(chip.engine, made.engine_version)
        assert catalog.serves(engine, {**model.engines})
        if chip.least_cuda:
            image = made.install == "docker"
            assert companions.cuda_major(engine, image) >= chip.least_cuda


def test_never_across_vendors(five):
    found = derivation.judge(five["k2.5"], load.hardware("mi300x"), "pd")
    assert found.word == "impossible" and "disaggregation of Kimi on AMD" in found.why
    for cell in DERIVED:
        chip = cell.why.split()[2]
        assert load.hardware(chip).vendor == load.hardware(cell.hardware).vendor


def test_without_derive_the_offer_names_the_nearest(five):
    with pytest.raises(NoRecipeError) as caught:
        derivation.find(five["k2.5"], load.hardware("h200"), "dp")
    said = str(caught.value)
    assert said.startswith("No document describes Kimi-K2.5 on h200 with layout dp")
    assert "--derive makes one from k2.5 gb200 dp tensor-parallel (usage-guide" in said
    with pytest.raises(NoRecipeError, match="--derive cannot make one: .*on AMD"):
        derivation.find(five["k2.5"], load.hardware("mi300x"), "pd")


def test_what_is_documented_is_not_derived():
    plain, asked = build.plan("k2.5", "a3", "pd"), build.plan("k2.5", "a3", "pd", derive=True)
    assert asked.engines == plain.engines and asked.documented and not asked.derived
    assert any(note.startswith("--derive changes nothing: this is") for note in asked.notes)


def test_the_nearest_of_a_documented_cell_is_itself():
    for cell in CELLS:
        if cell.word != "documented" or load.hardware(cell.hardware).like:
            continue
        chip, model = load.hardware(cell.hardware), load.model(cell.model)
        near = bases.nearest(model, chip, cell.layout)
        own = [
            one
            for one in model.recipes
            if (one.hardware, one.layout) == (chip.name, cell.layout) and one.tried and not one.jobs
        ]
        if own:
            assert near is not None and near.recipe is own[0]
            assert derivation.find(model, chip, cell.layout, derive=True).documented


def test_what_one_kind_of_node_needs_is_not_taken_to_another(five):
    made = derive(five["k2.5"], "a3", "dp")
    steps = {step.what: step for step in made.derivation.steps}
    assert "HCCL_INTRA_PCIE_ENABLE" not in made.settings.env
    assert steps["HCCL_INTRA_PCIE_ENABLE"].rule == "chosen for the links inside one kind of node"
    assert "HCCL_BUFFSIZE" in made.settings.env and "HCCL_BUFFSIZE" not in steps
    pd = derive(five["k2.5"], "h200", "pd")
    assert pd.weights == "int4"  # NVFP4 is not computed there
    assert not {"VLLM_USE_FLASHINFER_MOE_FP4", "NCCL_MNNVL_ENABLE"} & set(pd.settings.env)
    assert pd.settings.flags["served-model-name"] == "moonshotai/Kimi-K2.5"
    assert pd.settings.flags["kv-transfer-config"]["kv_connector"] == "NixlConnector"


def test_what_belongs_to_the_model_is_the_model_s(five):
    made = derive(five["k2-thinking"], "a3", "pd")
    assert "eagle3" not in made.features and "served-model-name" not in made.settings.flags
    assert not any("speculative-config" in role.settings.flags for role in made.roles.values())
    assert made.roles["prefill"].tp >= made.roles["decode"].tp
    other = derive(five["k2.6"], "a2", "dp")
    assert "eagle3" in other.features and other.weights == "w4a8"
    assert other.engine_version == "v0.22.1rc1" or other.engine_version == "v0.20.2rc1"
    assert "mm-encoder-data" not in derive(five["k2-thinking"], "h200", "single").features


def test_each_value_says_recipe_and_rule():
    cell = next(one for one in DERIVED if one.layout == "dp" and one.hardware == "a3")
    plan = build.plan(cell.model, cell.hardware, cell.layout, derive=True)
    of = f"derived {cell.why}"
    rows = {(row.kind, row.name): row for row in plan.explain()}
    for row in rows.values():
        if row.layer == "recipe":
            assert row.source.endswith(of) and row.reason
    steps = {step["what"]: step["rule"] for step in plan.derived["steps"]}
    for size, flag in (("tp", "tensor-parallel-size"), ("dp", "data-parallel-size")):
        if ("flag", flag) in rows:
            rule = steps.get(f"mixed.{size}", plan.derived["kept"])
            assert rows["flag", flag].reason == f"{of}: {rule}"
    assert plan.request.recipe.source.document in str(tables.sources(plan))


def test_without_a_layout_it_is_the_smallest_that_fits(five):
    assert derive(five["k2-thinking"], "h200", None).layout == "single"
    assert derive(five["k2-thinking"], "a2", None).layout == "dp"
    with pytest.raises(NoRecipeError, match="say which one you mean"):
        derive(five["k2.5"], "a3", None)


def test_a_variant_is_that_of_the_base_or_its_install(five):
    model = five["k2-thinking"]
    first, other = derive(model, "h200", "single"), derive(model, "h200", "single", "pip")
    assert (first.variant, other.variant) == ("docker", "pip")
    assert other.derivation.base.startswith("k2.5 h200 single pip")
    assert derive(model, "h200", "single", first.variant) == first
    with pytest.raises(NoRecipeError, match="variant to derive single from: 'fp64'"):
        derive(model, "h200", "single", "fp64")


@pytest.fixture
def mine(tmp_path):
    """A hardware file of one's own: h200 with another number of devices and their memory."""

    def make(count: int, memory_gb: int) -> str:
        path = tmp_path / "mine.yaml"
        devices = {"count": count, "memory_gb": memory_gb}
        data = {"extends": "h200", "name": "mine", "like": None, "devices": devices}
        path.write_text(yaml.safe_dump(data))
        return str(path)

    return make


def test_a_context_is_shortened_only_as_far_as_memory_asks(mine, five):
    recipe = derive(five["k2-thinking"], mine(8, 104), "single")
    length = recipe.roles["mixed"].settings.flags["max-model-len"]
    assert 8192 <= length["value"] < 262144 and length["value"] % 1024 == 0
    assert "tokens at 70272 B, 262144 do not fit" in length["reason"]
    tokens = int(re.search(r"([0-9]+) tokens", length["reason"])[1])
    assert 0 <= tokens - length["value"] < 1024


def test_too_small_a_node_is_told_how_many_it_takes(mine, five):
    small = mine(8, 64)
    with pytest.raises(NoRecipeError, match=r"It takes [2-9] nodes: --layout dp --derive plans"):
        derive(five["k2-thinking"], small, "single")
    recipe = derive(five["k2-thinking"], small, None)
    assert recipe.layout == "dp" and recipe.roles["mixed"].nodes > 1


@pytest.mark.parametrize("count, heads", [(4, 64), (8, 64), (8, 96), (16, 64)])
def test_tp_divides_heads_and_devices(mine, five, count, heads):
    model = five["k2-thinking"]
    model = model.model_copy(update={"architecture": {**model.architecture, "heads": heads}})
    for layout in ("single", "dp"):
        role = derive(model, mine(count, 256), layout).roles["mixed"]
        assert heads % role.tp == 0 and role.dp * role.tp == role.nodes * count
    with pytest.raises(NoRecipeError, match="no size of tensor parallelism divides"):
        derive(model, mine(5, 256), "dp")


@pytest.mark.parametrize(
    "chip, precision, able",
    [
        ("a3", "W4A8", True), ("a3", "NVFP4", False), ("a3", "FP8", False),
        ("h200", "W4A8", False), ("h200", "NVFP4", False), ("h200", "FP8", True), ("h200", "INT4", True),
        ("h200", "MXFP4", True), ("gb200", "NVFP4", True), ("gb200", "MXFP4", True),
        ("mi300x", "NVFP4", False), ("mi300x", "MXFP4", False), ("mi300x", "FP8", True),
        ("h200", "W8A8", True), ("h200", "NF9", False),
    ],
)  # fmt: skip
def test_which_weights_a_device_computes(chip, precision, able):
    assert (adapting.not_computed(load.hardware(chip), precision) == "") == able


def test_no_integers_no_w8a8(tmp_path):
    """Blackwell Ultra has hardly any INT8: weights that are computed in it have no place there."""
    peaks = {"int8_tops": {"value": 153.5, "source": "a figure of this test"}}
    path = tmp_path / "ultra.yaml"
    path.write_text(yaml.safe_dump({"extends": "gb200", "name": "ultra", "peaks": peaks}))
    chip = load.hardware(str(path))
    assert adapting.not_computed(chip, "W8A8") and not adapting.not_computed(chip, "INT4")


def test_json_names_the_base_and_the_rules():
    cell = DERIVED[0]
    plan = build.plan(cell.model, cell.hardware, cell.layout, derive=True)
    made = json.loads(plan.as_json())["derived"]
    assert f"from {made['base']}" == cell.why
    assert {"what", "value", "rule"} == set(made["steps"][0])
    assert json.loads(build.plan("k2.5", "h200", "single").as_json())["derived"] == {}
