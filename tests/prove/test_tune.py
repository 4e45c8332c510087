"""Scenarios side by side, physical limits, the grammar of a sweep and its plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_nb.core.errors import KimiError, NoRecipeError, ParameterError, PlanError
from kimi_nb.notebook.subject import Subject
from kimi_nb.params import load, recipes
from kimi_nb.plan import build, memory
from kimi_nb.plan.memory import Shape
from kimi_nb.prove.tune import design, limits, scenarios, sweep_grammar
from kimi_nb.sizing import roofline

K25 = load.model("k2.5").architecture


# Limits -----------------------------------------------------------------------------------


def test_the_sums_of_one_step_by_hand():
    """One sequence of 1,000 tokens on tp 16, whole experts, 4-bit experts, 16-bit elsewhere."""
    shape = Shape(tp=16, expert_parallel=True)
    step = roofline.decode(shape, K25, "INT4", seqs=1, context=1000)
    parts = memory.weights_per_rank(shape, K25, "INT4")
    wanted = (
        parts["attention"]
        + parts["dense and shared"]
        + parts["router"]
        + parts["embeddings"] / 2
        + parts["routed experts"] * 8 / 384
        + 1000 * 70_272
    )
    assert step.memory == pytest.approx(wanted)
    # 61 layers, two all-reduces each, of one row of 7,168 numbers in 16 bits.
    assert step.node_link == pytest.approx(61 * 2 * 2 * 15 / 16 * 7168 * 2)
    assert step.network == 0
    active = 60 * 8 * 3 * 7168 * 2048 * 2 / 16
    assert step.operations["bf16"] > active and set(step.operations) == {"bf16"}


def test_experts_that_a_step_reads():
    assert roofline.touched(384, 8, 1) == pytest.approx(8 / 384)
    assert roofline.touched(384, 8, 10_000) == pytest.approx(1)
    assert 0 < roofline.touched(384, 8, 16) < 16 * 8 / 384


def test_experts_over_data_parallel_ranks_are_exchanged():
    one = Shape(tp=1, dp=32, expert_parallel=True)
    inside = roofline.decode(one, K25, "W4A8", seqs=4, context=1, spread=roofline.Spread(32, 1))
    across = roofline.decode(one, K25, "W4A8", seqs=4, context=1, spread=roofline.Spread(16, 2))
    copies = 32 * (1 - (31 / 32) ** 8)
    sent = 60 * 4 * 7168 * copies * 3  # 8 bits there, 16 bits back
    assert inside.network == 0 and inside.node_link == pytest.approx(sent * 31 / 32)
    assert across.network == pytest.approx(sent / 2)
    assert across.node_link + across.network == pytest.approx(sent * 31 / 32)


def test_an_engine_over_nodes_uses_the_network():
    found = limits.of_plan(build.plan("k2.5", "gb200", "dp"))
    peaks = [one for one in found.limits if one.phase == "decode" and one.resource == "links"]
    assert len(peaks) == 2 and all(one.step_ms for one in peaks)


def test_every_plan_has_limits_or_says_what_is_missing(each_plan):
    found = limits.of_plan(each_plan, concurrency=4)
    assert found.limits or found.notes
    for one in found.limits:
        assert one.figures == "estimated" and one.amount > 0 and one.formula and one.source
        assert (one.step_ms is None) == bool(one.missing)
    # test_peaks_have_sources holds that a hardware has all peaks that limits need, or none.
    if not any(vars(each_plan.request.hardware.peaks).values()):
        assert found.tpot_ms() is None and found.share(10.0) == "no limit is known"
        assert all(one.missing for one in found.limits)
    else:
        assert found.tpot_ms() > 0 and found.ttft_ms() > 0 and found.tokens_per_s("prefill") > 0
    assert "estimated" in str(found)


def test_what_nobody_published_is_left_out_and_named():
    found = limits.of_plan(build.plan("k2.5", "mi300x", "single"))
    assert found.tpot_ms() > 0
    plan = build.plan("k2.5", "a3", "single")
    bare = plan.request.hardware.model_copy(update={"peaks": load.hardware("cpu").peaks})
    none = limits.of_plan(replace(plan, request=replace(plan.request, hardware=bare)))
    assert none.tpot_ms() is None
    assert "not published: memory_gb_s of a3" in str(none)


@pytest.mark.parametrize("name", [name for name in load.names("hardware") if name != "cpu"])
def test_peaks_have_sources(name):
    peaks = load.hardware(name).peaks
    if not any(vars(peaks).values()):
        assert "not known" in load.hardware(name).title
        return
    assert peaks.memory_gb_s and peaks.bf16_tflops and peaks.node_link_gb_s
    for one in vars(peaks).values():
        assert one is None or (one.value > 0 and len(one.source) > 8)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4000))
def test_more_at_once_never_takes_less(fewer, more, context):
    shape = Shape(tp=8)
    few, many = (
        roofline.decode(shape, K25, "FP8", seqs=seqs, context=context)
        for seqs in sorted((fewer, more))
    )
    assert few.memory <= many.memory and few.node_link <= many.node_link
    assert sum(few.operations.values()) <= sum(many.operations.values())


def test_measured_acceptance_lowers_what_drafts_can_give():
    plan = build.plan("k2.5", "a3", "single")  # three drafts
    most, real = limits.of_plan(plan), limits.of_plan(plan, accepted=2.0)
    assert most.accepted == 4 and real.accepted == 2
    assert real.tokens_per_s() == pytest.approx(most.tokens_per_s() / 2)
    assert limits.of_plan(plan, accepted=9.0).accepted == 4


@pytest.mark.parametrize("wrong", [{"input_len": 0}, {"output_len": "8"}, {"concurrency": -1}])
def test_sizes_that_are_none(wrong):
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        limits.of_plan(build.plan("k2.5", "h200", "single"), **wrong)


# Scenarios --------------------------------------------------------------------------------


def test_scenarios_of_the_documents():
    table = scenarios.listing(load.model("k2.6"), load.hardware("a3"))
    named = {row[:3]: row for row in table.rows}
    listed = [
        (row["layout"], row["variant"], row["scenario"])
        for row in recipes.listing()
        if (row["model"], row["hardware"]) == ("k2.6", "a3")
    ]
    assert len(table) == len(named) and sorted(named) == sorted(listed)
    assert named["single", "docker", "long-context-cached"][5] == "03_single_node"
    assert named["pd", "docker", "multimodal"][4] == "published (ascend-k2.6 9.1)"
    # Of the document there are twelve; what others publish is told from them by its variant.
    written = [name for name, row in named.items() if "(ascend-k2.6 " in row[4]]
    assert len(written) == 12 and {variant for _, variant, _ in written} == {"docker"}
    of_pd = scenarios.listing(load.model("k2.6"), load.hardware("a3"), "pd").rows
    assert sum(name[0] == "pd" for name in written) == 6
    assert of_pd == tuple(row for row in table.rows if row[0] == "pd")
    with pytest.raises(NoRecipeError):
        scenarios.listing(load.model("k2.6"), load.hardware("a3"), "dp")


def test_side_by_side_shows_what_differs_only():
    plans = {
        name: build.plan("k2-thinking", "a3", "single", scenario=name)
        for name in ("default", "low-latency")
    }
    rows = {row[0]: row[1:] for row in scenarios.compare(plans).rows}
    assert rows["--max-num-seqs"] == (12, 8) and rows["--max-num-batched-tokens"] == (8192, 4096)
    assert "--gpu-memory-utilization" not in rows and rows["requests at once"] == (12, 8)
    assert rows["cache tokens of a rank"][0] < rows["cache tokens of a rank"][1]


def test_side_by_side_of_roles():
    plans = {
        name: build.plan("k2.6", "a3", "pd", scenario=name) for name in ("default", "multimodal")
    }
    rows = {row[0]: row[1:] for row in scenarios.compare(plans).rows}
    assert rows["decode: shape"] == ("dp8 tp4", "dp16 tp1") and rows["nodes"] == (4, 2)


def test_which_to_compare():
    assert scenarios.wanted((), ("a", "b")) == ("a", "b")
    with pytest.raises(NoRecipeError, match="Allowed: a, b"):
        scenarios.wanted(("c",), ("a", "b"))
    assert Subject.load("k2.5", "a3").layout("smallest") == "single"
    assert Subject.load("k2.5", "a2").layout("smallest") == "dp"
    assert Subject.load("k2.5", "a3").layout("largest") == "pd"


# Grammar ----------------------------------------------------------------------------------

VALUES = st.lists(st.integers(1, 10**6), min_size=1, max_size=4, unique=True)
AXES = st.dictionaries(
    st.sampled_from(
        [
            "max-num-seqs",
            "decode.max-num-seqs",
            "env.OMP_NUM_THREADS",
            "seed",
            "concurrency",
            "input-len",
            "mixed.dp",
        ]
    ),
    VALUES,
    max_size=3,
)


@given(AXES, st.sampled_from([";", "\n", " ; ", ";\n"]))
def test_axes_come_back_as_written(axes, between):
    found = sweep_grammar.parse(between.join(f"{key}: {list_}" for key, list_ in axes.items()))
    back = {
        **{key: list(map(int, values)) for key, values in found.serve.items()},
        **{key.replace("_", "-"): list(values) for key, values in found.load.items()},
    }
    assert back == axes
    settings, loads = list(found.settings()), list(found.loads())
    assert len(settings) * len(loads) == len(found)
    assert len(set(settings)) == len(settings)


@given(st.text(max_size=60) | st.text("ab:,;[]{}'\"&* \n-1", max_size=40))
def test_no_text_breaks_the_grammar(text):
    try:
        found = sweep_grammar.parse(text)
    except ParameterError as error:
        assert str(error).startswith("sweep: ")
    else:
        assert len(found) >= 1


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("max-num-seqs: []", "no value"),
        ("max-num-seqs", "name: [value, value]"),
        ("concurrency: [0]", "1 or more"),
        ("concurrency: x", "1 or more"),
        ("max-num-seqs: 8; max_num_seqs: 9", "given twice"),
        ("seed: [1, 1]", "twice"),
        ("seed: [1", "expected"),
        ("seed: [&x 1, *x]", "write values out"),
        ("seed: ' '", "empty value"),
        ("seed: " + str(list(range(300))), "more than 200"),
        ("-x: 1", "name of a flag"),
        (7, "text"),
    ],
)
def test_axes_that_are_none(text, wanted):
    with pytest.raises(ParameterError) as caught:
        sweep_grammar.parse(text)
    assert wanted in str(caught.value)


def test_values_reach_the_plan_as_written():
    found = sweep_grammar.parse(
        "compilation-config.cudagraph_capture_sizes: [[4, 8], [4]]; env.X: yes"
    )
    assert found.serve["compilation-config.cudagraph_capture_sizes"] == ("[4, 8]", "[4]")
    assert found.serve["env.X"] == ("yes",)


# The plans of a sweep -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan():
    return build.plan("k2.5", "a3", "single")


def test_a_design_has_a_plan_for_each_setting(plan):
    made = design.of(
        plan, "max-num-seqs: [8, 16]; concurrency: [1, 4]; output-len: 16", input_len=64
    )
    assert [group.title for group in made.groups] == ["max-num-seqs=8", "max-num-seqs=16"]
    assert [group.plan.flags["mixed"]["max-num-seqs"].value for group in made.groups] == [8, 16]
    assert len({group.flags for group in made.groups}) == 2 and len(made) == 4
    first = made.groups[0].loads.cells
    assert [(one.concurrency, one.input_len, one.output_len, one.prompts) for one in first] == [
        (1, 64, 16, 4),
        (4, 64, 16, 16),
    ]


def test_what_the_check_refuses_is_told_before_any_run(plan):
    made = design.of(plan, "max-model-len: [16384, 300000]; gpu-memory-utilization: [0.9, 0.5]")
    assert [group.title for group in made.groups] == [
        "max-model-len=16384, gpu-memory-utilization=0.9"
    ]
    reasons = {one.pairs: one.reason for one in made.refused}
    assert (
        "more than the 262144 tokens"
        in reasons["max-model-len=300000", "gpu-memory-utilization=0.9"]
    )
    assert "[capacity/memory]" in reasons["max-model-len=16384", "gpu-memory-utilization=0.5"]
    assert "refused" in str(made)


def test_the_same_setting_twice_is_measured_once(plan):
    made = design.of(plan, "gpu-memory-utilization: [0.9, 0.90]")
    assert len(made.groups) == 1 and "the same as" in made.refused[0].reason


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("max-num-seq: 8", "did you mean 'max-num-seqs'"),
        ("concurency: 8", "concurrency"),
        ("max-num-seqs: few", "whole number"),
        ("decode.seed: 1", "role"),
        ("data-parallel-rank: 1", "the plan works out"),
        ("env.HCCL_IF_IP: x", "for each rank"),
    ],
)
def test_axes_that_no_engine_takes_stop_at_once(plan, text, wanted):
    with pytest.raises(KimiError) as caught:
        design.of(plan, f"{text}; concurrency: [1, 2]")
    assert wanted in str(caught.value)


def test_nothing_left(plan):
    with pytest.raises(PlanError, match="nothing is left"):
        design.of(plan, "tensor-parallel-size: 3")
