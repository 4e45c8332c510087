"""What the figures of a log come to in the account, beside a fit that is made by hand.

The device has 100 GiB, of which the engine may use half. It takes 20 GiB of weights, 6 at the peak,
2 of graphs, 2 of buffers and 3 of contexts, so that 17 are left for the cache. A token takes
64 layers x (2000 + 48) x 2 B = 256 KiB: a GiB holds 4096 of them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load, schema
from kimi_nb.plan import memory
from kimi_nb.plan.memory import calibration
from kimi_nb.plan.memory.calibration import Compared
from kimi_nb.plan.memory.engine_report import Log
from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import GIB, Term

ARCH = {"layers": 64, "kv_lora_rank": 2000, "qk_rope_head_dim": 48}
SHAPE = Shape(tp=8, dp=2, seqs=4, batched_tokens=1024, utilization=0.5, graphs_inside=True)
SIZES = {
    "attention": 12,
    "routed experts": 8,
    "activations": 4,
    "sampler": 1,
    "encoder cache": 1,
    "graphs": 2,
    "buffers": 1.5,
    "connector": 0.5,
    "contexts": 3,
}
TERMS = [
    Term(name, size * GIB, size / 2 * GIB, size * 2 * GIB, "f", "s") for name, size in SIZES.items()
]
MARK = "measured on your node, 2026-11-25, vllm 0.32.0"


def fit(terms=TERMS, **shape) -> memory.Fit:
    return memory.account(replace(SHAPE, **shape), ARCH, list(terms), 100)


def layer(**figures) -> schema.Calibration:
    return schema.Calibration(
        kind="memory-calibration",
        engine="vllm",
        version="0.32.0",
        model="mine",
        precision="INT4",
        hardware="h200",
        role="mixed",
        measured=schema.Measured(date="2026-11-25", logs=("run.log",)),
        **figures,
    )


FACTS = {
    "engine": "vllm",
    "version": "0.32.0",
    "vllm": "0.32.0",
    "model": "mine",
    "precision": "INT4",
    "hardware": "h200",
    "role": "mixed",
    "measured": {"date": "2026-11-25", "logs": ["run.log"]},
    "served": ("/models/of/mine-int4", "org/Kimi-Mine", "Kimi-Mine"),
}
LOG = Log(
    "run.log",
    "0.32.0",
    "/models/of/mine-int4",
    weights=22,
    activations=3,
    graphs=2.5,
    graphs_estimated=3,
    cache=15,
    device=96,
    budget=48,
)


def learn(found: memory.Fit | None = None, facts=FACTS, **log) -> calibration.Learnt:
    return calibration.learn(found or fit(), replace(LOG, **log), facts)


def refused(call, *args, **more) -> str:
    with pytest.raises(ParameterError) as caught:
        call(*args, **more)
    return str(caught.value)


# Account ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "measured"),
    [
        ({}, {}),
        ({"graphs_gib": 4}, {"graphs": (4, 3, 5)}),
        ({"graphs_gib": 0}, {"graphs": (0, 0, 0)}),
        ({"weights": 1.5}, {"attention": (18, 17.91, 18.09), "routed experts": (12, 11.94, 12.06)}),
        (
            {"activations": 2},
            {"activations": (8, 7.2, 8.8), "sampler": (2, 1.8, 2.2), "encoder cache": (2, 1.8, 2.2)},
        ),
        ({"activations": 0}, dict.fromkeys(calibration.PEAK, (0, 0, 0))),
        ({"contexts_gib": 2}, {"contexts": (2, 1.85, 2.15)}),
        ({"contexts_gib": 0.1}, {"contexts": (0.1, 0, 0.25)}),
        ({"contexts_gib": 0}, {"contexts": (0, 0, 0.15)}),
    ],
)  # fmt: skip
def test_what_was_measured_takes_the_place_of_estimates(figures, measured):
    found = calibration.account(fit(), ARCH, layer(**figures))
    # What the formulas of buffers have wrong is in the contexts of the same log.
    sure = ("buffers", "connector") if figures.get("contexts_gib") else ()
    for before, after in zip(TERMS, found.terms, strict=True):
        size = SIZES[before.name]
        spread = (size, size, size) if before.name in sure else (size, size / 2, size * 2)
        wanted = measured.get(before.name, spread)
        sizes = (after.bytes / GIB, after.low / GIB, after.high / GIB)
        assert sizes == pytest.approx(wanted, rel=1e-9), before.name
        mark = MARK if before.name in measured else "estimated"
        assert replace(after, bytes=0, low=0, high=0) == replace(
            before, bytes=0, low=0, high=0, mark=mark
        )
    assert (found.mark, found.shape, found.device) == (MARK, SHAPE, 100 * GIB)


def test_the_cache_is_what_the_measured_device_leaves():
    found = calibration.account(fit(), ARCH, layer(device_gib=90, contexts_gib=2))
    assert (found.device, found.budget) == (90 * GIB, 45 * GIB)
    assert found.per_token == 2**18 and found.tokens == 13 * 4096


# Learn ------------------------------------------------------------------------------------------


def test_a_log_is_held_against_the_estimate():
    """48 GiB - 15 of cache - 22 - 3 - 3 of graphs, as the engine took them to be - 2 leave 3."""
    found = learn()
    assert found.layer == layer(
        device_gib=96, weights=1.1, activations=0.5, graphs_gib=2.5, contexts_gib=3
    )
    assert found.terms == (
        Compared("device", 100, 96),
        Compared("weights", 20, 22),
        Compared("activations", 6, 3),
        Compared("graphs", 2, 2.5),
        Compared("contexts and the rest", 3, 3),
        Compared("cache", 17, 15),
    )


def test_afterwards_the_account_is_that_of_the_log():
    for log in ({}, {"activations": 0}, {"weights": None}):
        said = learn(graphs_estimated=None, **log).layer
        assert calibration.account(fit(), ARCH, said).headroom / GIB == pytest.approx(15), log


def test_figures_are_rounded():
    found = learn(weights=20.12345, activations=2, cache=17.12345).layer
    assert (found.weights, found.activations) == (1.0062, 0.333)
    assert found.contexts_gib == 3.753  # 48 - 17.12345 - 20.12345 - 2 - 3 - 2 = 3.7531


@pytest.mark.parametrize(
    ("log", "shape", "figures"),
    [
        # weights, activations, graphs and contexts: what the log leaves out is as estimated.
        ({"weights": None}, {}, (None, 0.5, 2.5, 5)),
        ({"activations": None}, {}, (1.1, None, 2.5, 0)),
        ({"activations": 0}, {}, (1.1, 0, 2.5, 6)),
        ({"activations": -0.03}, {}, (1.1, 0, 2.5, 6)),
        ({"graphs_estimated": None}, {}, (1.1, 0.5, 2.5, 3.5)),
        ({"graphs_estimated": 0}, {}, (1.1, 0.5, 2.5, 6)),
        ({"graphs_estimated": None, "graphs": None}, {}, (1.1, 0.5, None, 4)),
        ({"graphs": -0.01}, {}, (1.1, 0.5, 0, 3)),
        ({}, {"graphs_inside": False}, (1.1, 0.5, 2.5, 6)),
        ({"graphs_estimated": None}, {"graphs_inside": False}, (1.1, 0.5, 2.5, 6)),
        ({"activations": None}, {"vendor": "cpu"}, (1.1, None, 2.5, 6)),
        ({}, {"vendor": "cpu"}, (1.1, None, 2.5, 3)),
        ({"budget": None}, {}, (1.1, 0.5, 2.5, 3)),
        ({"budget": None}, {"utilization": 0.625}, (1.1, 0.5, 2.5, 15)),
        ({"budget": None, "device": None}, {}, (1.1, 0.5, 2.5, 5)),
        ({"cache": None}, {}, (1.1, 0.5, 2.5, None)),
        ({"cache": None, "tokens": 14 * 4096}, {}, (1.1, 0.5, 2.5, 4)),
        ({}, {"fixed_cache": GIB}, (1.1, 0.5, 2.5, None)),
        ({"cache": 70, "budget": None}, {"fixed_cache": GIB}, (1.1, 0.5, 2.5, None)),
        # One figure is enough.
        ({"weights": None, "activations": None, "graphs": None}, {}, (None, None, None, 2)),
        ({"activations": None, "graphs": None, "cache": None}, {}, (1.1, None, None, None)),
        ({"weights": None, "graphs": None, "cache": None}, {}, (None, 0.5, None, None)),
        ({"weights": None, "activations": None, "cache": None}, {}, (None, None, 2.5, None)),
    ],
)
def test_what_is_to_be_learnt(log, shape, figures):
    made, of = learn(fit(**shape), **log).layer, {**vars(LOG), **log}
    assert (made.weights, made.activations, made.graphs_gib, made.contexts_gib) == figures
    assert made.device_gib == of["device"]


def test_of_a_named_cache_there_is_nothing_to_learn():
    bare = dict.fromkeys(("weights", "activations", "graphs", "graphs_estimated"))
    assert refused(learn, fit(fixed_cache=GIB), **bare) == (
        "run.log: nothing to learn: the cache was named by a setting (--kv-cache-memory-bytes or "
        "VLLM_CPU_KVCACHE_SPACE), so that the engine measured nothing. Give the log of a start "
        "without it."
    )


# How far the sum of the figures may be over the share: by 0.3 of the buffers, by half of a peak
# that was not logged, and by what rounding makes.
NO_BUFFERS = [one for one in TERMS if one.name not in calibration.BESIDE]


@pytest.mark.parametrize(
    ("terms", "activations", "fits", "cache", "rest"),
    [
        (TERMS, 3, 18.59, 18.61, -0.61),
        (TERMS, None, 18, 18.01, -3.01),
        (NO_BUFFERS, 3, 20.02, 20.04, -0.04),
    ],
)
def test_figures_that_contradict_each_other(terms, activations, fits, cache, rest):
    assert learn(fit(terms), activations=activations, cache=fits).layer.contexts_gib == 0
    assert refused(learn, fit(terms), activations=activations, cache=cache) == (
        "run.log: the figures contradict each other: of 48.00 GiB, weights 22.00, activations "
        f"{activations or 6:.2f}, graphs 3.00 and cache {cache:.2f} leave {rest:.2f} GiB for the "
        "rest. Is it the log of this plan?"
    )


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ({"weights": 5}, "weights 0.25"),
        ({"activations": -0.3}, "activations -0.05"),
        ({"weights": 45, "activations": 120, "cache": None}, "weights 2.25; activations 20.0"),
        ({"device": 200_000, "graphs": 150_000}, "device_gib 200000; graphs_gib 150000"),
    ],
)
def test_figures_far_from_the_plan(log, said):
    """Such as those of weights in another format."""
    assert refused(learn, **log) == (
        "run.log: no engine of this plan has these figures, of which weights and activations are "
        f"factors of the estimate and the others GiB: {said}. Is it the log of this plan, whole "
        "and unchanged?"
    )


@pytest.mark.parametrize(
    ("figures", "cache", "weights", "what"),
    [
        ({"cache": 26.04}, "26.04", "22.00", "the engine's share has (48.00 GiB)"),
        ({"cache": None, "weights": 48.04}, "0.00", "48.04", "the engine's share has (48.00 GiB)"),
        ({"cache": 48.04, "weights": None}, "48.04", "0.00", "the engine's share has (48.00 GiB)"),
        ({"cache": 75, "budget": 99}, "75.00", "22.00", "the device has (96.00 GiB)"),
        (
            {"cache": 79, "budget": 102, "device": None},
            *("79.00", "22.00", "the device has (100.00 GiB)"),
        ),
    ],
)
def test_figures_that_no_device_has(figures, cache, weights, what):
    assert refused(learn, **figures) == (
        f"run.log: {cache} GiB of cache and {weights} GiB of weights are more than {what}. Is it "
        "the log of this plan, whole and unchanged?"
    )


def test_the_last_figure_that_a_device_has():
    """Rounded, the sum may be 0.03 GiB more than there is."""
    log = replace(LOG, weights=48 + 0.03)
    assert calibration._possible(log, None, 48, 48) is None
    assert calibration._possible(replace(LOG, weights=None), 48, 48, 48) is None
    assert "the device has (47.99 GiB)" in refused(calibration._possible, log, None, 48, 47.99)


def test_beside_a_named_cache_the_share_is_the_whole_device():
    said = refused(learn, fit(fixed_cache=GIB), cache=75, budget=None)
    assert "are more than the engine's share has (96.00 GiB)" in said


def test_without_a_log_the_estimates_stand_alone():
    assert calibration.compare(fit(), Log("")) == (
        Compared("device", 100, None),
        Compared("weights", 20, None),
        Compared("activations", 6, None),
        Compared("graphs", 2, None),
        Compared("contexts and the rest", 3, None),
        Compared("cache", 17, None),
    )
    assert calibration.compare(fit(vendor="cpu"), Log(""))[2] == Compared("activations", None, None)


# The engine of the log --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "log"),
    [
        ({}, {"version": "0.32.0+cu129"}),
        ({"engine": "vllm-ascend", "version": "0.32.0rc1"}, {}),
        ({"vllm": "0.31.0"}, {}),
        ({}, {"model": "org/Kimi-Mine"}),
        ({}, {"model": "/elsewhere/Kimi-Mine//"}),
        ({"served": ("/models/of/MineX",)}, {"model": "/elsewhere/MineX/"}),
        ({}, {"settings": {"kv_cache_dtype": "fp8", "max_num_seqs": 4}}),
    ],
)
def test_the_same_engine_by_another_name(facts, log):
    assert learn(facts=FACTS | facts, **log).layer.weights == 1.1


OF_VERSION = (
    "run.log: the log is of vLLM {}, the plan is for {}. "
    "Plan with --engine-version, or give a log of this version."
)


@pytest.mark.parametrize(
    ("facts", "log", "said"),
    [
        (
            {},
            {"version": ""},
            "run.log: the line 'Initializing a V1 LLM engine (v...)' is missing: version and model "
            "cannot be told. Give the log from the engine's start on.",
        ),
        ({}, {"version": "0.31.0+cu129"}, OF_VERSION.format("0.31.0+cu129", "0.32.0")),
        ({"version": "0.33.0"}, {}, OF_VERSION.format("0.32.0", "0.33.0")),
        (
            {"engine": "vllm-ascend", "vllm": "0.33.0"},
            {},
            OF_VERSION.format("0.32.0", "0.33.0"),
        ),
        (
            {},
            {"model": "/models/of/mine"},
            "run.log: the log is of /models/of/mine, the plan serves /models/of/mine-int4. Name "
            "the model of the log with --model.",
        ),
    ],
)
def test_another_engine_is_refused(facts, log, said):
    assert refused(learn, facts=FACTS | facts, **log) == said


SETTINGS = {
    "tensor_parallel_size": (8.0, 4.0, "--tensor-parallel-size 4 there, 8 here"),
    "data_parallel_size": (2.0, 1.0, "--data-parallel-size 1 there, 2 here"),
    "pipeline_parallel_size": (1.0, 2.0, "--pipeline-parallel-size 2 there, 1 here"),
    "decode_context_parallel_size": (1.0, 8.0, "--decode-context-parallel-size 8 there, 1 here"),
    "gpu_memory_utilization": (0.5000001, 0.51, "--gpu-memory-utilization 0.51 there, 0.5 here"),
    "max_num_seqs": (4.0, 3.0, "--max-num-seqs 3 there, 4 here"),
    "max_num_batched_tokens": (1024.0, 2048.0, "--max-num-batched-tokens 2048 there, 1024 here"),
    "max_model_len": (1048576.0, 1048575.0, "--max-model-len 1048575 there, 1048576 here"),
    "enable_expert_parallel": (True, False, "--enable-expert-parallel 0 there, 1 here"),
}


def test_another_shape_is_refused():
    found = fit(model_len=1_048_576, expert_parallel=True)
    same = {name: value for name, (value, _, _) in SETTINGS.items()}
    assert learn(found, settings=same).layer.weights == 1.1
    assert learn(found, settings=dict.fromkeys(SETTINGS)).layer.weights == 1.1
    head = "run.log: the log is of an engine with other settings: "
    tail = ". Give the plan the same with --set; what is learnt holds for other shapes as well."
    for name, (_, value, said) in SETTINGS.items():
        assert refused(learn, found, settings=same | {name: value}) == f"{head}{said}{tail}"
    others = {name: value for name, (_, value, _) in SETTINGS.items()}
    every = "; ".join(said for _, _, said in SETTINGS.values())
    assert refused(learn, found, settings=others) == f"{head}{every}{tail}"
    # Settings are the same up to 1e-6, and a plan may leave the length to the model.
    last = {"gpu_memory_utilization": 2e-6}
    assert learn(fit(utilization=1e-6), settings=last).layer.weights == 1.1
    assert learn(fit(expert_parallel=True), settings=same).layer.weights == 1.1


# The cache of the log ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "cache", "dcp", "states", "size"),
    [
        (None, 5, 1, 0, 5),
        (None, None, 1, 0, None),
        (4096, None, 1, 0, 1),
        (4096, None, 2, 0, 0.5),
        (8192, 1, 2, 0, 1),
        # 4 % and 0.03 GiB more or less: 10.43 GiB are 42721.3 tokens, 1.07 4382.7 and 0.93 3809.3;
        # 25.25 are all that 24.25 may be.
        (103_424, 24.25, 1, 0, 24.25),
        (42_721, 10, 1, 0, 10),
        (4382, 1, 1, 0, 1),
        (3810, 1, 1, 0, 1),
        # The pages of a model with states are not those of tokens.
        (4096, None, 1, 1, None),
        (4096, 9, 1, 1, 9),
    ],
)
def test_the_cache_by_its_size_or_its_tokens(tokens, cache, dcp, states, size):
    found = replace(fit(dcp=dcp), per_sequence=states)
    (*_, one) = calibration.compare(found, Log("run.log", cache=cache, tokens=tokens))
    assert one == Compared("cache", 17, size)


@pytest.mark.parametrize(
    ("tokens", "cache", "dcp", "each"),
    [
        (42_722, 10, 1, 251_332),
        (4383, 1, 1, 244_979),
        (3809, 1, 1, 281_896),
        (8192, 10, 2, 2_621_440),
    ],
)
def test_tokens_of_another_size_are_refused(tokens, cache, dcp, each):
    log = Log("run.log", cache=cache, tokens=tokens)
    assert refused(calibration.compare, fit(dcp=dcp), log) == (
        f"run.log: {tokens} tokens of cache in {cache} GiB are {each} B a token, this plan's model "
        "has 262144: it is the log of another model, cache format or context parallelism."
    )


# A layer of something else ----------------------------------------------------------------------


def test_a_layer_is_of_the_engine_of_the_plan():
    plan = {key: FACTS[key] for key in ("engine", "version", "model", "precision", "hardware")}
    assert calibration.refuse_other(layer(), plan, "mine.yaml") is None
    said = refused(
        calibration.refuse_other, layer(), plan | {"model": "k3", "hardware": "a2"}, "mine.yaml"
    )
    assert said == (
        "mine.yaml: measured with something else: model mine there, k3 here; hardware h200 there, "
        "a2 here. Calibrate again: kimi-nb calibrate LOG, with a log of this engine."
    )


def test_a_layer_has_no_more_than_its_device():
    h200, cpu = load.hardware("h200"), load.hardware("cpu")
    for chip, gib in ((h200, None), (h200, 141), (cpu, 9999)):
        assert calibration.refuse_impossible(layer(device_gib=gib), chip, "mine.yaml") is None
    assert refused(calibration.refuse_impossible, layer(device_gib=141.5), h200, "mine.yaml") == (
        "mine.yaml: device_gib: 141.5 GiB, more than a device of h200 has (141 GB): it was "
        "measured on other hardware, or changed. Calibrate again: kimi-nb calibrate LOG."
    )
