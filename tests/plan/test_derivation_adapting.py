"""Which weights, version, features and settings a derived recipe has, of models tests make."""

from __future__ import annotations

import dataclasses
import functools

import pytest
from plan.made_values import chip, recipe

from kimi_nb import catalog
from kimi_nb.params import load, schema
from kimi_nb.plan.derivation import adapting, bases
from kimi_nb.plan.derivation.adapting import Impossible, Subject
from kimi_nb.plan.derivation.bases import Base

K25 = load.model("k2.5").model_copy(
    update={"recipes": (), "drafts": {}, "settings": schema.Settings()}
)
ENGINE = catalog.engine("vllm", "0.25.1")
CHIPS = {
    one.name: one
    for one in (
        chip("one"),
        chip("clone"),
        chip("big", memory=256),
        chip("fast", fp8_tflops=1000),
        chip("twin", like="fast", bf16_tflops=None),
        chip("other", vendor="amd"),
        chip("npu", vendor="ascend").model_copy(update={"engine": "vllm-ascend"}),
    )
}


@pytest.fixture(autouse=True)
def ship(monkeypatch):
    """Ship the chips above and these models, at first none."""
    there: dict[str, schema.Model] = {}

    def ship(*models: schema.Model) -> None:
        there.clear()
        there.update({one.name: one for one in models})
        for kept in (adapting._served, adapting._floor, adapting._rules, adapting._rules_of):
            kept.cache_clear()

    for room in (adapting, bases):
        monkeypatch.setattr(room, "shipped_models", lambda: there)
        monkeypatch.setattr(room, "shipped_hardware", lambda: CHIPS)
    ship()
    yield ship
    ship()


def held(**given: str | tuple[str, int | None]) -> dict[str, schema.Weights]:
    """Weights by key: their format, and their size in GB."""
    pairs = {key: one if isinstance(one, tuple) else (one, 1) for key, one in given.items()}
    return {
        key: schema.Weights(
            id="a/b", precision=kind, directory=key, hub="huggingface", size_gb=size
        )
        for key, (kind, size) in pairs.items()
    }


def model(*recipes: schema.Recipe, **more) -> schema.Model:
    return K25.model_copy(update={"recipes": recipes, **more})


def subject(hardware="one", layout="single", of=K25, base=K25, of_base=None, key="int4") -> Subject:
    """The same model on other devices of the same kind, but for what is said."""
    of_base = of_base or recipe("clone")
    near = CHIPS[of_base.hardware]
    return Subject(of, CHIPS[hardware], layout, Base(base, near, of_base), key, ENGINE)


def refused(call, *args) -> str:
    with pytest.raises(Impossible) as caught:
        call(*args)
    return str(caught.value)


# Weights ----------------------------------------------------------------------------------------

FOUR = held(bf16=("BF16", 2000), fp8=("FP8", 900), mx=("MXFP4", 600), int4=("INT4", 500))


@pytest.mark.parametrize(
    ("hardware", "own", "others", "base", "order"),
    [
        # The format of the base, then the smallest.
        ("fast", [], [], "int4", "int4 mx fp8 bf16"),
        ("fast", [], [], "fp8", "fp8 int4 mx bf16"),
        # Before that what documents serve on devices of the vendor, and formats on this hardware.
        ("fast", [("one", "bf16", True)], [], "int4", "int4 bf16 mx fp8"),
        ("fast", [("one", "bf16", False), ("other", "fp8", True)], [], "int4", "int4 mx fp8 bf16"),
        ("fast", [("nobodys", "bf16", True)], [], "int4", "int4 mx fp8 bf16"),
        ("fast", [], [("fast", "fp8", True)], "int4", "int4 fp8 mx bf16"),
        ("twin", [], [("fast", "fp8", True)], "int4", "int4 fp8 mx bf16"),
        ("fast", [], [("fast", "fp8", False), ("one", "bf16", True)], "int4", "int4 mx fp8 bf16"),
        ("fast", [("one", "bf16", True)], [("fast", "fp8", True)], "int4", "int4 bf16 fp8 mx"),
        # What it does not compute is left out, unless a document serves it on such devices.
        ("one", [], [], "int4", "int4 mx bf16"),
        ("one", [("fast", "fp8", True)], [], "int4", "int4 mx bf16"),
        ("one", [("clone", "fp8", False), ("nobodys", "fp8", True)], [], "int4", "int4 mx bf16"),
        ("one", [("clone", "fp8", True)], [], "int4", "int4 fp8 mx bf16"),
    ],
)
def test_the_order_of_weights(ship, hardware, own, others, base, order):
    def made(rows):
        return [recipe(at, weights=key, documented=known) for at, key, known in rows]

    ship(model(*made(others), name="theirs", weights=FOUR))
    mine = model(*made(own), weights=FOUR)
    of_base = recipe("clone", weights=base)
    assert adapting.weights(subject(hardware, of=mine, base=mine, of_base=of_base)) == order.split()


def test_a_size_that_nobody_states_is_that_of_a_million_million_parameters():
    """INT4 has 4.5 bits each with its scales, 562.5 GB; an unknown format comes after all others."""
    sizes = held(
        more=("NF9", 9001), unknown=("NF9", None), less=("FP8", 8999), bf16=("BF16", None),
        larger=("FP8", 563), int4=("INT4", None), smaller=("FP8", 562),
    )  # fmt: skip
    mine = model(*(recipe("clone", weights=key) for key in sizes), weights=sizes)
    base = model(weights=held(int4="W4A8"))
    found = adapting.weights(subject(of=mine, base=base))
    assert found == ["smaller", "int4", "larger", "bf16", "less", "unknown", "more"]


def test_weights_that_are_not_computed_are_refused_each_with_its_reason():
    mine = model(weights=held(a="FP8", b="NVFP4", c="FP8"))
    assert refused(adapting.weights, subject(of=mine)) == (
        "one computes no weights of Kimi-K2.5: FP8 needs devices that compute it: Hopper, MI300 or "
        "newer; NVFP4 needs devices that compute FP4: Blackwell"
    )
    none = refused(adapting.weights, subject(of=model(weights={})))
    assert none == "one computes no weights of Kimi-K2.5: none are known"


@pytest.mark.parametrize(
    ("hardware", "precision", "why"),
    [
        ({}, "BF16", ""),
        ({}, "NF9", "what computes NF9 is not known"),
        ({"vendor": "ascend"}, "INT4", "INT4 of compressed-tensors has 16-bit activations: vLLM's "
         "kernels for NVIDIA and AMD unpack it"),
        # As fast as BF16 at least, where that is published.
        ({"fp8_tflops": 1000}, "FP8", ""),
        ({"fp8_tflops": 999}, "FP8", "FP8 needs devices that compute it: Hopper, MI300 or newer"),
        ({"fp8_tflops": 1, "bf16_tflops": None}, "FP8", ""),
        ({"bf16_tflops": None}, "FP8", "FP8 needs devices that compute it: Hopper, MI300 or newer; "
         "what it computes is not published"),
        ({"vendor": "npu", "bf16_tflops": None}, "FP8",
         "FP8 needs devices that compute it: Hopper, MI300 or newer"),
        # That of the hardware that it is like.
        ({"like": "fast", "bf16_tflops": None}, "FP8", ""),
        # Each vendor in its own way.
        ({}, "MXFP4", ""),
        ({"vendor": "amd"}, "MXFP4", "MXFP4 on AMD needs devices that compute FP4: MI350X, MI355X"),
        ({"vendor": "amd", "fp4_tflops": 4000}, "MXFP4", ""),
        ({"vendor": "ascend"}, "MXFP4", "MXFP4 has kernels for NVIDIA and AMD only"),
    ],
)  # fmt: skip
def test_what_is_computed(hardware, precision, why):
    assert adapting.not_computed(chip("mine", **hardware), precision) == why


# Version ----------------------------------------------------------------------------------------


def at(version: str, hardware="clone", **more) -> schema.Recipe:
    return recipe(hardware, engine_version=version, **more)


NEAR, NEWEST = "that of the nearest recipe", "the newest that a document serves Kimi-K2.5 with"


@pytest.mark.parametrize(
    ("own", "others", "version", "rule"),
    [
        ([], [], "0.25.1", NEAR),
        ([at("0.27.1"), at("0.28.0", "fast"), at("0.26.0")], [], "0.28.0", NEWEST),
        ([at("0.19.1")], [], "0.19.1", NEWEST),
        ([at("0.28.0", documented=False), at("0.25.1rc1", "npu")], [], "0.25.1", NEAR),
        ([at("0.28.0", "nobodys"), at("0.26.0")], [], "0.26.0", NEWEST),
        # Not older than the oldest on this hardware, or on what it is like.
        ([], [at("0.27.1", "fast"), at("0.26.0", "fast"), at("0.28.0", "fast")], "0.26.0",
         "the oldest that a document serves twin with"),
        ([], [at("0.25.1", "fast"), at("0.28.0")], "0.25.1", NEAR),
        ([], [at("0.24.0", "fast")], "0.25.1", NEAR),
        ([], [at("0.26.0", "fast", documented=False)], "0.25.1", NEAR),
    ],
)  # fmt: skip
def test_the_version(ship, own, others, version, rule):
    ship(model(*others, name="theirs"))
    assert adapting.version(subject("twin", of=model(*own))) == (version, rule)


@pytest.mark.parametrize(
    ("needs", "cuda", "base", "install", "version", "why"),
    [
        ({"vllm": ">=0.25.1"}, None, "0.25.1", "pip", "0.25.1", ""),
        ({"vllm-ascend": ">=0.27.0"}, None, "0.25.1", "pip", "0.25.1", ""),
        ({"vllm": ">=0.27.0"}, None, "0.25.1", "pip", "0.27.1", "Kimi-K2.5 needs vllm >=0.27.0"),
        ({"vllm": "!=0.25.1"}, None, "0.25.1", "pip", "0.26.0", "Kimi-K2.5 needs vllm !=0.25.1"),
        # The wheel is built for CUDA 13 from 0.20.2 on; of 0.19.1 there is an image for it.
        ({}, 13, "0.19.1", "pip", "0.20.2", "one needs a build for CUDA 13"),
        ({}, 13, "0.19.1", "docker", "0.19.1", ""),
        ({}, 12, "0.19.1", "pip", "0.19.1", ""),
    ],
)
def test_a_version_that_is_too_old(needs, cuda, base, install, version, why):
    asked = subject(of=model(engines=needs), of_base=at(base, install=install))
    hardware = asked.hardware.model_copy(update={"least_cuda": cuda})
    rule = f"the oldest from {base} on that is enough: {why}" if why else NEAR
    assert adapting.version(dataclasses.replace(asked, hardware=hardware)) == (version, rule)


@pytest.mark.parametrize("needs", [">=9", "<0.25.0"])
def test_no_version_is_enough(needs):
    """An older one is none: documents serve the hardware, or the base, with newer ones."""
    said = refused(adapting.version, subject(of=model(engines={"vllm": needs})))
    assert said == f"Kimi-K2.5 needs vllm {needs}; no listed version of vllm is"


# Features ---------------------------------------------------------------------------------------


def flags(**values) -> schema.Settings:
    return schema.Settings(flags={name.replace("_", "-"): it for name, it in values.items()})


def feature(on=None, **more) -> schema.Feature:
    return schema.Feature(title="t", reason="r", price="p", on=on or flags(seed=1), **more)


NOT_ON, OTHERS = schema.Settings(env={"MM": "1"}), ("theirs",)
KNOWN = {
    "plain": feature(),
    "host": feature(schema.Settings()),
    "mine": feature(flags(a=1), models=("k2.5",)),
    "mine-too": feature(flags(a=2), models=("k2.5",)),
    "theirs": feature(flags(a=3), models=OTHERS),
    "all": feature(flags(a=4)),
    "theirs-alone": feature(flags(a=1, b=1), models=OTHERS),
    "of-env": feature(schema.Settings(env={"A": "1"}), models=OTHERS),
    "of-my-env": feature(schema.Settings(env={"B": "1"}), models=("k2.5",)),
    "own": feature(flags(trust_remote_code=1)),
    "own-and-more": feature(flags(trust_remote_code=1, more=1)),
    "pd": feature(layouts=("pd",)),
    "new": feature(vllm=">=0.26.0"),
    "old": feature(vllm="<=0.25.1"),
    "barred": feature(flags(nnodes=2)),
    "partly": feature(flags(nnodes=2, seed=1)),
    "wholly": feature(schema.Settings(flags={"nnodes": 2}, env={"HCCL_INTRA_PCIE_ENABLE": "1"})),
    "env-barred": feature(schema.Settings(env={"HCCL_INTRA_PCIE_ENABLE": "1"})),
    "needs-plain": feature(requires=("plain",)),
    "needs-two": feature(requires=("pd", "host", "plain")),
}  # fmt: skip
GROUP = "is for a group of several nodes"


@pytest.mark.parametrize(
    ("names", "kept", "steps"),
    [
        ("host plain old partly own-and-more", "host plain old partly own-and-more", {}),
        ("mine-too of-my-env", "mine-too of-my-env", {}),
        ("theirs plain", "mine plain", {"theirs": ("mine", "that of Kimi-K2.5")}),
        ("theirs mine all", "mine", {"theirs": ("mine", "that of Kimi-K2.5"),
                                     "all": ("mine", "that of Kimi-K2.5")}),
        ("theirs-alone of-env", "", {"theirs-alone": ("left out", "it is not for Kimi-K2.5"),
                                     "of-env": ("left out", "it is not for Kimi-K2.5")}),
        ("own plain", "plain", {"own": ("left out", "Kimi-K2.5 has its own settings for it")}),
        ("pd plain", "plain", {"pd": ("left out", "it is not for layout single")}),
        ("new", "", {"new": ("left out", "it needs vLLM >=0.26.0")}),
        ("barred wholly env-barred", "",
         {"barred": ("left out", GROUP), "wholly": ("left out", GROUP),
          "env-barred": ("left out", "chosen for the links inside one kind of node")}),
        ("needs-plain plain", "needs-plain plain", {}),
        ("needs-plain needs-two host", "host",
         {"needs-plain": ("left out", "it requires plain"),
          "needs-two": ("left out", "it requires pd, plain")}),
    ],
)  # fmt: skip
def test_the_features_that_are_kept(monkeypatch, names, kept, steps):
    monkeypatch.setattr(load, "features", lambda: KNOWN)
    mine = model(settings=flags(trust_remote_code=True))
    said = {}
    assert adapting.features(subject(of=mine), names.split(), said) == kept.split()
    assert said == {f"feature {name}": step for name, step in steps.items()}


def draft(method="eagle3", vendors=("nvidia",), vllm="") -> schema.Draft:
    return schema.Draft(
        id="a/b", method=method, tokens=3, directory="d", vendors=vendors, vllm=vllm
    )


@pytest.mark.parametrize(
    ("drafts", "features", "taken"),
    [
        ({"e": draft()}, {}, "e"),
        ({"f": draft(), "e": draft()}, {"f": {}}, "e"),
        # Another one by the same method, the first that fits.
        ({"f": draft(), "g": draft()}, {"f": {}, "g": {}}, "f"),
        ({"e": draft(vendors=("amd",)), "f": draft()}, {"f": {}}, "f"),
        ({"f": draft("dflash"), "g": draft()}, {"f": {}, "g": {}}, "g"),
        ({"f": draft("dflash")}, {"f": {}}, ""),
        ({"f": draft(vendors=("amd",))}, {"f": {}}, ""),
        ({"f": draft(vllm=">=0.26.0")}, {"f": {}}, ""),
        ({"f": draft(vllm=">=0.25.1")}, {"f": {}}, "f"),
        ({"f": draft()}, {"f": {"vendors": ("amd",)}}, ""),
        ({"f": draft()}, {"f": {"layouts": ("dp", "pd")}}, ""),
        ({"f": draft()}, {"f": {"models": OTHERS}}, ""),
        ({"f": draft()}, {"f": {"models": ("k2.5",)}}, "f"),
        ({"f": draft()}, {}, ""),
    ],
)
def test_a_draft_is_one_of_the_model_itself(monkeypatch, drafts, features, taken):
    known = {"plain": feature(), "e": feature(draft="e")}
    known |= {name: feature(draft=name, **more) for name, more in features.items()}
    monkeypatch.setattr(load, "features", lambda: known)
    base = model(drafts={"e": draft()})
    said = {}
    found = adapting.features(subject(of=model(drafts=drafts), base=base), ["e"], said)
    assert found == ([taken] if taken else [])
    step = (taken, "the draft of Kimi-K2.5 by the same method")
    if not taken:
        step = ("left out", "Kimi-K2.5 has no eagle3 draft for nvidia at this version")
    assert said == ({} if taken == "e" else {"feature e": step})


def test_a_draft_that_the_base_itself_has_not(monkeypatch):
    known = {"e": feature(draft="e"), "f": feature(draft="f")}
    monkeypatch.setattr(load, "features", lambda: known)
    said = {}
    assert adapting.features(subject(of=model(drafts={"f": draft()})), ["e"], said) == []
    why = "Kimi-K2.5 has no such draft for nvidia at this version"
    assert said == {"feature e": ("left out", why)}


def test_a_draft_is_no_other_way_to_the_same_flags(monkeypatch):
    known = {
        "theirs": feature(flags(a=1), models=OTHERS),
        "drafted": feature(flags(a=1), models=("k2.5",), draft="e"),
    }
    monkeypatch.setattr(load, "features", lambda: known)
    said = {}
    assert adapting.features(subject(), ["theirs"], said) == []
    assert said == {"feature theirs": ("left out", "it is not for Kimi-K2.5")}


# Settings ---------------------------------------------------------------------------------------


def test_parsers_are_those_of_the_model_where_others_are_named():
    mine = model(parsers=schema.Parsers(tool="my_tool", reasoning="my_mind"))
    tool, mind = "tool-call-parser", "reasoning-parser"
    of_model = functools.partial(adapting.of_the_model, subject(of=mine))
    for given, wanted in [
        ({tool: "x", mind: "y", "seed": 1}, {tool: "my_tool", mind: "my_mind", "seed": 1}),
        ({tool: "my_tool", mind: "x"}, {tool: "my_tool", mind: "my_mind"}),
        ({tool: "x", mind: None}, {tool: "my_tool", mind: None}),
        ({"seed": 1}, {"seed": 1}),
    ]:
        said = {}
        settings = schema.Settings(flags=given, env={"A": "1"})
        assert of_model(settings, said) == schema.Settings(flags=wanted, env={"A": "1"})
        changed = {name: it for name, it in wanted.items() if it != given[name]}
        assert said == {name: (it, "that of Kimi-K2.5") for name, it in changed.items()}


BLIND = {name: it for name, it in K25.architecture.items() if name != "vision_parameters"}
SMALL = K25.architecture | {"layers": 1}
LINKED = {"node_link_gb_s": 450}


@pytest.mark.parametrize(
    ("name", "good", "bad", "why"),
    [
        ("mm-encoder-tp-mode", {}, {"of": model(architecture=BLIND)}, "the model takes no pictures"),
        ("HCCL_INTRA_PCIE_ENABLE", {"hardware": "clone"}, {},
         "chosen for the links inside one kind of node"),
        ("HCCL_INTRA_ROCE_ENABLE", {"hardware": "twin", "of_base": recipe("fast")},
         {"hardware": "fast", "of_base": recipe("twin")},
         "chosen for the links inside one kind of node"),
        ("gpu-memory-utilization", {}, {"hardware": "big"}, "tuned for devices of another size"),
        ("attention-backend", {}, {"hardware": "fast"},
         "chooses kernels of one generation of devices"),
        ("quantization", {"of": model(weights=held(int4="FP8", fp8="INT4")), "key": "fp8"},
         {"of": model(weights=held(int4="FP8"))}, "belongs to the format of the weights"),
        # Of two rules the first that does not hold is told.
        ("VLLM_USE_FLASHINFER_MOE_FP4", {}, {"of": model(weights=held(int4="FP8"))},
         "belongs to the format of the weights"),
        ("mamba-block-size", {"of": model(architecture=BLIND)}, {"of": model(architecture=SMALL)},
         "belongs to another architecture"),
        ("nnodes", {"layout": "dp"}, {"layout": "single"}, GROUP),
        ("data-parallel-hybrid-lb", {"layout": "pd"}, {}, GROUP),
    ],
)  # fmt: skip
def test_what_a_setting_needs(name, good, bad, why):
    assert adapting.barred(subject(**good), name) == ""
    assert adapting.barred(subject(**bad), name) == why


@pytest.mark.parametrize(
    ("peaks", "is_rack"),
    [
        (LINKED | {"network_gb_s": 450}, True),
        (LINKED | {"network_gb_s": 449}, False),
        (LINKED, False),
        ({"network_gb_s": 450}, False),
    ],
)
def test_a_rack_has_links_between_nodes_as_fast_as_inside(peaks, is_rack):
    asked = dataclasses.replace(subject(), hardware=chip("rack", **peaks))
    why = adapting.barred(asked, "NCCL_MNNVL_ENABLE")
    assert why == ("" if is_rack else "is for nodes of one NVLink domain")


def test_settings_that_do_not_hold_are_left_out_and_told():
    """One by one, also in an object, which goes with the last of its keys."""
    kernels, size = (
        "chooses kernels of one generation of devices",
        "tuned for devices of another size",
    )
    given = schema.Settings(
        flags={
            "gpu-memory-utilization": {"value": 0.9, "reason": "why"},
            "compilation-config": {
                "pass_config": {"a": 1},
                "mode": 3,
                "custom_ops": {"value": ["b"], "reason": "why"},
            },
            "empty": {},
            "object": {"value": {"c": 1}},
            "reasoned": {"value": 1, "reason": "why"},
            "only-reason": {"reason": "why"},
            "no-reason": {"value": 1, "more": {"d": None}},
            "attention-backend": "E",
        },
        env={"AITER_F": "1", "G": "2"},
    )
    barred = {
        "gpu-memory-utilization": size,
        "compilation-config.pass_config": kernels,
        "compilation-config.custom_ops": kernels,
        "attention-backend": kernels,
        "AITER_F": kernels,
    }
    far = dataclasses.replace(subject(), hardware=chip("far", memory=64, fp8_tflops=2000))
    said = {}
    assert adapting.kept(far, given, said) == schema.Settings(
        flags={
            "compilation-config": {"mode": 3},
            "empty": {},
            "object": {"value": {"c": 1}},
            "reasoned": {"value": 1, "reason": "why"},
            "only-reason": {"reason": "why"},
            "no-reason": {"value": 1, "more": {"d": None}},
        },
        env={"G": "2"},
    )
    assert said == {name: ("left out", why) for name, why in barred.items()}
    alone = schema.Settings(flags={"compilation-config": {"pass_config": {"a": 1}}})
    assert adapting.kept(far, alone, {}).flags == {}
    near = {}
    assert adapting.kept(subject(), given, near) == given and near == {}


def test_a_value_with_its_reason_is_one_setting(ship, monkeypatch):
    """A rule for keys of those names is for those of an object."""
    inside = {"names": ".*[.](value|reason)", "needs": "several-nodes", "why": "inside"}
    monkeypatch.setattr(adapting, "facts", lambda: {"settings": [inside]})
    ship()
    reasoned = {"a": {"value": 1, "reason": "why"}, "b": {"value": 2}}
    others = {"c": {"value": 3, "more": 4}, "d": {"reason": "why"}, "e": {"reason": 5, "more": 6}}
    said = {}
    found = adapting.kept(subject(), schema.Settings(flags=reasoned | others), said)
    assert found.flags == reasoned | {"c": {"more": 4}, "e": {"more": 6}}
    assert set(said) == {"c.value", "d.reason", "e.reason"}


def test_the_format_of_weights_is_that_of_the_checkpoints():
    of, base = model(weights=held(fp8="FP8", x="BF16")), model(weights=held(x="MXFP4", y="INT4"))
    asked = subject(of=of, base=base, of_base=recipe(hardware="clone", weights="y"), key="fp8")
    assert (asked.precision, asked.base_precision) == ("FP8", "INT4")
