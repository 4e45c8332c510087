"""The sizes of a derived role, and what is lowered until it fits, by accounts that tests write.

A device sees 16 GiB, of which the engine may use half, but for what is said. A token of the model
takes 64 layers x (448 + 64) x 2 B = 64 KiB, so 1 GiB of cache holds 16384 of them.
"""

from __future__ import annotations

import dataclasses

import pytest
from plan.made_values import recipe

from kimi_nb import catalog
from kimi_nb.params import load, schema
from kimi_nb.plan import memory
from kimi_nb.plan.derivation import fitting
from kimi_nb.plan.derivation.adapting import Impossible, Subject
from kimi_nb.plan.derivation.bases import Base
from kimi_nb.plan.derivation.fitting import Sizes
from kimi_nb.plan.memory import GIB, Shape, Term

K25, H200, MI300X = load.model("k2.5"), load.hardware("h200"), load.hardware("mi300x")
ENGINE = catalog.engine("vllm", "0.25.1")
# Few experts, so that the checkpoint is smaller than any node here.
SIZES = K25.architecture | {"layers": 64, "kv_lora_rank": 448, "experts": 32}


def chip(count=8, gib=16.0) -> schema.Hardware:
    seen = schema.Usable(gib=gib, nominal_gb=1000, source="a test")
    devices = H200.devices.model_copy(update={"count": count, "memory_gb": 1000, "usable": seen})
    return H200.model_copy(update={"devices": devices})


def subject(layout="single", base="", count=8, before=8, sizes=SIZES, gib=16.0, **more) -> Subject:
    """A model on 8 devices, from a recipe for nodes of 8 in the same layout but for what is said."""
    model = K25.model_copy(update={"architecture": dict(sizes)})
    of = Base(model, chip(before), recipe(layout=base or layout, **more))
    return Subject(model, chip(count, gib), layout, of, "int4", ENGINE)


def given(role="mixed", **flags) -> fitting.Settings:
    flags = {name.replace("_", "-"): value for name, value in flags.items()}
    return fitting.Settings(role, {"gpu-memory-utilization": 0.5} | flags, {})


@pytest.fixture
def needs(monkeypatch):
    """Account with weights (by the tp of an engine) and activations of each request, in GiB.

    Returns the sizes that were asked for: nodes of 8 devices, or of ``count``, dp and tp.
    """
    asked: list[tuple[int, int, int]] = []

    def needs(weights, each=0.0, count=8):
        def fit(shape, architecture, precision, usable, draft):
            asked.append((shape.dp * shape.tp // count, shape.dp, shape.tp))
            size = weights[shape.tp] if isinstance(weights, dict) else weights
            parts = {"routed experts": size, "activations": each * shape.seqs}
            terms = [Term(name, it * GIB, 0, 0, "f", "s") for name, it in parts.items()]
            return memory.account(shape, dict(architecture), terms, usable)

        monkeypatch.setattr(fitting, "_fit", fit)
        return asked

    return needs


def found(of: Subject, settings: fitting.Settings, *least_tp: int, **spec) -> fitting.Fitted:
    return fitting.fitted(of, schema.RoleSpec(**spec), settings, *least_tp)


def refused(of: Subject, settings: fitting.Settings, *least_tp: int, **spec) -> str:
    with pytest.raises(Impossible) as caught:
        found(of, settings, *least_tp, **spec)
    return str(caught.value)


# Sizes ------------------------------------------------------------------------------------------

ONE_OF_8, TWO_OF_4, EIGHT = {"dp": 1, "tp": 8}, {"dp": 2, "tp": 4}, {"dp": 8, "tp": 1}
EACH = [(1, 8, 1), (1, 4, 2), (1, 2, 4)]  # of a node of 8, the largest left out


def divided(**sizes) -> dict:
    return SIZES | sizes


@pytest.mark.parametrize(
    ("of", "spec", "tried"),
    [
        # One node: one rank takes all devices, several grow from those of the base.
        ({}, ONE_OF_8, [(1, 1, 8)]),
        ({}, TWO_OF_4, [(1, 2, 4), (1, 1, 8)]),
        ({}, EIGHT, [*EACH, (1, 1, 8)]),
        ({"before": 16}, {"dp": 2, "tp": 16}, [(1, 1, 8)]),
        # What divides heads, matrices and devices.
        ({"sizes": divided(heads=4)}, EIGHT, EACH),
        ({"sizes": divided(intermediate_size=4)}, EIGHT, EACH),
        ({"sizes": divided(moe_intermediate_size=4)}, EIGHT, EACH),
        ({"count": 6, "sizes": divided(heads=48, moe_intermediate_size=1536)}, EIGHT | {"dp": 6},
         [(1, 6, 1), (1, 3, 2), (1, 2, 3), (1, 1, 6)]),
        # A rank of the base over its nodes of 4 takes all devices, also if there are more.
        ({"count": 16, "before": 4}, {"dp": 2, "tp": 8}, [(1, 1, 16)]),
        ({"count": 16}, {"dp": 2, "tp": 8}, [(1, 2, 8), (1, 1, 16)]),
        # Several nodes: from those of the base, by their devices, else from 2.
        ({"layout": "dp", "base": "single"}, ONE_OF_8, [(2, 2, 8), (3, 3, 8), (4, 4, 8)]),
        ({"layout": "dp", "base": "single"}, {"dp": 16, "tp": 4},
         [(2, 4, 4), (2, 2, 8), (3, 6, 4), (3, 3, 8), (4, 8, 4), (4, 4, 8)]),
        ({"layout": "dp"}, TWO_OF_4, [(2, 4, 4), (2, 2, 8), (3, 6, 4), (3, 3, 8), (4, 8, 4), (4, 4, 8)]),
        ({"layout": "dp"}, {"dp": 5, "tp": 4}, [(3, 6, 4), (3, 3, 8), (4, 8, 4), (4, 4, 8)]),
        ({"layout": "dp"}, {"dp": 2, "tp": 8, "pp": 2}, [(4, 4, 8)]),
        # One rank of a part stays one, over more nodes, where whole nodes divide the model.
        ({"layout": "pd"}, ONE_OF_8, [(1, 1, 8), (2, 1, 16), (2, 2, 8), (3, 3, 8), (4, 1, 32), (4, 4, 8)]),
        ({"layout": "pd"}, {"dp": 2, "tp": 8}, [(2, 2, 8), (3, 3, 8), (4, 4, 8)]),
        ({"layout": "pd", "processes": "rank"}, ONE_OF_8, [(1, 1, 8), (2, 2, 8), (3, 3, 8), (4, 4, 8)]),
        ({"layout": "pd", "sizes": divided(moe_intermediate_size=16)}, ONE_OF_8,
         [(1, 1, 8), (2, 1, 16), (2, 2, 8), (3, 3, 8), (4, 4, 8)]),
        # A rank over nodes of the same layout stays one.
        ({"layout": "dp", "count": 4, "before": 4}, ONE_OF_8, [(2, 1, 8), (4, 1, 16)]),
        ({"layout": "dp", "base": "single", "count": 4, "before": 4}, ONE_OF_8,
         [(2, 2, 4), (3, 3, 4), (4, 4, 4)]),
        ({"layout": "pd", "count": 16, "before": 4}, ONE_OF_8, [(1, 1, 16), (2, 1, 32), (4, 1, 64)]),
        ({"count": 16, "before": 4, "sizes": divided(heads=8)}, ONE_OF_8, [(1, 2, 8)]),
    ],
)  # fmt: skip
def test_the_sizes_that_are_tried(needs, monkeypatch, of, spec, tried):
    """The least of the base comes first, and more tensor parallelism before more nodes."""
    asked = needs(100, count=of.get("count", 8))
    monkeypatch.setattr(fitting, "facts", lambda: {"most_nodes": 4, "least_context": 8192})
    refused(subject(**of), given(), **spec)
    # The account of the last ones is asked for once more, for the sum.
    assert asked == [*tried, tried[-1]]


def test_the_least_tensor_parallelism(needs):
    asked = needs(100)
    refused(subject(), given(), 4, **EIGHT)
    assert asked[:-1] == [(1, 2, 4), (1, 1, 8)]
    asked.clear()
    refused(subject("pd"), given(), 16, **ONE_OF_8)
    assert asked[:-1] == [(2, 1, 16), (4, 1, 32), (8, 1, 64)]


def test_16_nodes_are_the_most(needs):
    asked = needs(100)
    said = refused(subject("dp"), given(), **ONE_OF_8)
    assert asked[:-1] == [(nodes, nodes, 8) for nodes in range(2, 17)]
    assert said.startswith("Kimi-K2.5 on 16 nodes of h200: ")


def test_each_rank_has_as_many_whole_experts_as_the_others(needs):
    asked = needs(100)
    whole = given(enable_expert_parallel=True)
    refused(subject("dp"), whole, **TWO_OF_4)
    assert asked[:-1] == [(2, 4, 4), (2, 2, 8), (4, 8, 4), (4, 4, 8)]  # 32 experts
    asked.clear()
    refused(subject("dp"), given(enable_expert_parallel=False), **ONE_OF_8)
    assert len(asked) == 15 + 1


def test_no_size_divides(needs):
    needs(0)
    says = (
        "no size of tensor parallelism divides the heads and matrices of Kimi-K2.5 and the devices "
        "of h200"
    )
    assert refused(subject(), given(), 9, **ONE_OF_8) == says
    many = subject(sizes=divided(experts=12))
    assert refused(many, given(enable_expert_parallel=True), **ONE_OF_8) == says


@pytest.mark.parametrize(
    ("gone", "precision", "why"),
    [
        (["experts"], "INT4", "the architecture of Kimi-K2.5 has no experts"),
        (["layers", "heads"], "INT4", "the architecture of Kimi-K2.5 has no layers, heads"),
        ([], "INT5", "what INT5 weights take of a device is not known"),
    ],
)
def test_without_its_figures_nothing_is_derived_of_a_model(gone, precision, why):
    """A file of the user's own need not have them."""
    of = subject(sizes={name: size for name, size in SIZES.items() if name not in gone})
    weights = of.model.weights["int4"].model_copy(update={"precision": precision})
    model = of.model.model_copy(update={"weights": {"int4": weights}})
    of = dataclasses.replace(of, model=model)
    assert refused(of, given(), **ONE_OF_8) == f"{why}, so that its memory cannot be worked out"


def test_a_checkpoint_of_all_bytes_of_the_nodes_is_not_accounted_for(needs):
    """The account of this test would let anything in."""
    needs(0)
    whole = memory.checkpoint_bytes(SIZES, "INT4") / GIB
    few = given(max_model_len=1)
    assert refused(subject(gib=whole / 8), few, **ONE_OF_8).startswith("Kimi-K2.5 on one node")
    assert found(subject(gib=whole / 7.9), few, **ONE_OF_8).sizes == Sizes(1, 1, 8)
    assert found(subject("pd", gib=whole / 32), few, **TWO_OF_4).sizes == Sizes(5, 10, 4)


# The first that fits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "tp", "length"),
    [
        # 1 GiB of cache holds the context; the first such sizes are taken.
        ({2: 7, 4: 7, 8: 1}, 2, None),
        ({2: 7.25, 4: 7, 8: 1}, 4, None),
        ({2: 8, 4: 9, 8: 7}, 8, None),
        # Else the longest one of the same nodes, the first of equals: 0.75 GiB are 12288 tokens.
        ({2: 7.375, 4: 7.25, 8: 7.375}, 4, 12288),
        ({2: 7.25, 4: 7.25, 8: 7.375}, 2, 12288),
        ({2: 8, 4: 7.375, 8: 7.25}, 8, 12288),
    ],
)
def test_the_first_that_fits_else_what_loses_the_least(needs, weights, tp, length):
    asked = needs(weights)
    of = subject("pd")
    one = found(of, given(max_model_len=16384, max_num_seqs=1), dp=4, tp=2)
    assert one.sizes == Sizes(1, 8 // tp, tp)
    assert (one.account.shape.tp, one.account.shape.dp) == (tp, 8 // tp)
    assert one.limits.get("max-model-len", (None,))[0] == length
    assert all(nodes == 1 for nodes, _, _ in asked[: 3 if length else None])


def test_more_nodes_are_not_taken_for_a_longer_context(needs, monkeypatch):
    """Nor looked at: the sizes of the first number of nodes that fits are the last."""
    asked = needs({8: 7.25, 16: 7.375, 32: 1})
    few = given(max_model_len=16384, max_num_seqs=1)
    one = found(subject("pd"), few, **ONE_OF_8)
    assert one.sizes == Sizes(1, 1, 8) and asked == [(1, 1, 8)]
    needs({8: 9, 16: 7.375, 32: 1})
    asked.clear()
    assert found(subject("pd"), few, **ONE_OF_8).sizes == Sizes(2, 1, 16)
    assert asked == [(1, 1, 8), (2, 1, 16), (2, 2, 8)]


# What is lowered --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "weights", "each", "seqs", "length", "leaves"),
    [
        # (8 - 4) / 32 GiB for each request leave no cache; 16 requests leave 2 GiB.
        ((64, 16384), 4, 1 / 8, 16, None, ("6.0", "2.0", 32768)),
        ((64, 65536), 4, 1 / 8, 16, 32768, ("6.0", "2.0", 32768)),
        ((5, 16384), 4, 1, 2, None, ("6.0", "2.0", 32768)),
        ((3, 16384), 4, 2, 1, None, ("6.0", "2.0", 32768)),
        # A context of 8192 is the shortest, if it was longer: 0.5 GiB.
        ((1, 16384), 7.5, 0, None, 8192, ("7.5", "0.5", 8192)),
        ((2, 16384), 7, 0.25 + 2**-15, 1, 11264, ("7.3", "0.7", 12287)),
        ((1, 4096), 7.75, 0, None, None, ()),
        # Without a setting it is the context of the model: 262144 tokens are 16 GiB.
        ((1, None), 6, 0, None, 32768, ("6.0", "2.0", 32768)),
        # The engine would take 1024 requests by itself.
        ((None, 16384), 4, 2**-8, 512, None, ("6.0", "2.0", 32768)),
    ],
)
def test_requests_and_then_the_context_are_fewer(needs, flags, weights, each, seqs, length, leaves):
    needs(weights, each)
    names = ("max_num_seqs", "max_model_len")
    asked = {name: it for name, it in zip(names, flags, strict=True) if it}
    one = found(subject(), given(**asked), **ONE_OF_8)
    left = "8.0 GiB - {} GiB leave {} GiB, {} tokens at 65536 B".format(*leaves or (0, 0, 0))
    wanted = {
        "max-num-seqs": (seqs, f"memory: with more requests {left}"),
        "max-model-len": (length, f"memory: {left}, {flags[1] or 262144} do not fit"),
    }
    assert one.limits == {name: it for name, it in wanted.items() if it[0]}


def test_a_context_below_a_step_is_no_multiple_of_it(needs, monkeypatch):
    monkeypatch.setattr(fitting, "facts", lambda: {"most_nodes": 1, "least_context": 100})
    for tokens, length in [(1023, 1023), (1024, 1024), (1025, 1024)]:
        needs(8 - tokens / 16384)
        one = found(subject(), given(max_num_seqs=1), **ONE_OF_8)
        assert one.limits["max-model-len"][0] == length


@pytest.mark.parametrize(
    ("length", "weights", "why"),
    [
        (4097, 7.75, "0.2 GiB are left for the cache, 4096 tokens"),
        (16384, 7.5 + 2**-14, "0.5 GiB are left for the cache, 8191 tokens"),
        (16384, 8, "0.0 GiB are missing"),
        (16384, 8 - 2**-30, "0.0 GiB are left for the cache, 0 tokens"),
        (16384, 9.5, "1.5 GiB are missing"),
    ],
)
def test_what_does_not_fit_with_one_request_is_refused_with_the_sum(needs, length, weights, why):
    needs(weights)
    said = refused(subject(), given(max_model_len=length, max_num_seqs=2), **ONE_OF_8)
    assert said == (
        "Kimi-K2.5 on one node of h200: 594 GB of INT4 weights over 8 devices are "
        f"{weights:.1f} GiB on the fullest, with activations, buffers and contexts {weights:.1f} GiB; "
        f"there are 8.0 GiB (16.00 x 0.5), so {why}"
    )


def test_the_sum_of_weights_whose_size_nobody_states(needs):
    """1,026 B parameters of K2.5 in INT4 are the 594 GB that are published, by the formula 595."""
    needs(9, each=0.25)
    of = subject("dp", sizes=K25.architecture, gib=100.0)
    bare = of.model.weights["int4"].model_copy(update={"size_gb": None})
    model = of.model.model_copy(update={"weights": {"int4": bare}})
    of = dataclasses.replace(of, model=model)
    said = refused(of, given(max_num_seqs=4, gpu_memory_utilization=0.0625), dp=3, tp=8)
    assert said == (
        "Kimi-K2.5 on 16 nodes of h200: 595 GB (derived) of INT4 weights over 128 devices are "
        "9.0 GiB on the fullest, with activations, buffers and contexts 10.0 GiB; there are 6.2 GiB "
        "(100.00 x 0.0625), so 3.8 GiB are missing"
    )


@pytest.mark.parametrize(
    ("batched", "seqs", "draft", "role", "need"),
    [
        (255, 64, ("eagle3", 3), "mixed", 256),
        (256, 64, ("eagle3", 3), "mixed", None),
        (255, 64, ("eagle3", 3), "prefill", None),
        (1, 64, None, "mixed", None),
        (None, 64, ("eagle3", 3), "mixed", None),
        (1, None, ("eagle3", 3), "mixed", None),
        # In 0.25.1 DFlash takes 14 more tokens for itself of each request.
        (239, 8, ("dflash", 15), "decode", 240),
    ],
)
def test_a_step_holds_every_request_and_its_drafts(needs, batched, seqs, draft, role, need):
    needs(1)
    table = draft and {"method": draft[0], "num_speculative_tokens": draft[1]}
    flags = {
        "max_model_len": 1,
        "max_num_batched_tokens": batched,
        "max_num_seqs": seqs,
        "speculative_config": table,
    }
    one = found(subject(), given(role, **flags), **ONE_OF_8)
    why = draft and f"{seqs} requests with {draft[1]} drafts each are {need} tokens of a step"
    assert one.limits == ({"max-num-batched-tokens": (need, why)} if need else {})


def test_fewer_requests_need_a_smaller_step(needs):
    needs(4, each=2**-8)
    table = {"method": "eagle3", "num_speculative_tokens": 3}
    one = found(
        subject(),
        given(max_model_len=1, max_num_batched_tokens=8, speculative_config=table),
        **ONE_OF_8,
    )
    assert one.limits["max-num-batched-tokens"] == (
        2048,
        "512 requests with 3 drafts each are 2048 tokens of a step",
    )


# The account ------------------------------------------------------------------------------------


def test_an_account_is_that_of_the_engine_on_the_hardware():
    """In vLLM 0.25.1 on AMD: 0.92 of the memory, 1024 requests, graphs before the cache."""
    of = Subject(K25, MI300X, "dp", Base(K25, MI300X, recipe("mi300x")), "int4", ENGINE)
    settings = fitting.Settings("mixed", {"max-model-len": 4096}, {}, 8_000_000)
    found = fitting.account(of, settings, Sizes(2, 4, 4))
    shape = Shape(
        tp=4,
        dp=4,
        seqs=1024,
        model_len=4096,
        utilization=0.92,
        graphs_inside=True,
        vendor="amd",
    )
    assert found == memory.fit(shape, K25.architecture, "INT4", 191.98, 8_000_000)
    assert found.parts["draft"] == 4_000_000  # 2 B each, over 4 devices


# Settings ---------------------------------------------------------------------------------------


def test_a_setting_is_read_by_its_kind():
    table = {"num_speculative_tokens": 3}
    one = fitting.Settings(
        "mixed", {"a": 1, "b": 0.5, "c": True, "d": "x", "speculative-config": table}, {}
    )
    names = ("a", "b", "c", "d", "speculative-config", "none")
    assert [one.number(name) for name in names] == [1, 0.5, None, None, None, None]
    assert [one.text(name) for name in names] == [None, None, None, "x", None, None]
    assert [one.table(name) for name in names] == [{}, {}, {}, {}, table, {}]
    assert one.draft == 3
    for other in (
        {},
        {"speculative-config": {}},
        {"speculative-config": {"num_speculative_tokens": None}},
    ):
        assert fitting.Settings("mixed", other, {}).draft == 0
    assert (one.draft_parameters, one.tp, one.dp, one.pp) == (0, 1, 1, 1)


def layered(*features: str, role="mixed", layers=(), drafts=None) -> fitting.Settings:
    """Hardware, model and weights of a test; each sets the flags of all that come before it."""
    below = [
        schema.Settings(flags=dict.fromkeys(names, of), env={"A": of})
        for of, names in (("hardware", "abcdef"), ("model", "bcdef"), ("weights", "cdef"))
    ]
    weights = K25.weights["int4"].model_copy(update={"settings": below[2]})
    model = K25.model_copy(
        update={
            "settings": below[1],
            "weights": {"int4": weights},
            "drafts": K25.drafts if drafts is None else drafts,
        }
    )
    hardware = H200.model_copy(update={"settings": below[0]})
    of = Subject(model, hardware, "single", Base(model, hardware, recipe()), "int4", ENGINE)
    return fitting.settings(of, role, list(features), list(layers))


def test_settings_are_laid_from_the_hardware_up():
    over = schema.Settings(
        flags={"d": {"value": 1, "reason": "why"}, "e": None, "f": {"value": 2, "more": 3}},
        env={"A": {"value": 5}, "B": 6, "C": None},
    )
    last = schema.Settings(flags={"d": {"value": 4}, "f": {"more": {"reason": "why"}}})
    assert layered(layers=[over]) == fitting.Settings(
        "mixed",
        {"a": "hardware", "b": "model", "c": "weights", "d": 1, "f": {"value": 2, "more": 3}},
        {"A": "5", "B": "6"},
    )
    found = layered(layers=[over, last])
    assert (found.flags["d"], found.flags["f"]) == (4, {"value": 2, "more": {"reason": "why"}})
    assert layered().env == {"A": "weights"}


def test_features_come_after_the_weights_and_only_in_their_roles():
    both = ("mlapo", "fp8-kv-cache")
    assert layered(*both).env == {"A": "weights", "VLLM_ASCEND_ENABLE_MLAPO": "1"}
    prefill = layered(*both, role="prefill")
    assert prefill.env == {"A": "weights"} and prefill.flags["kv-cache-dtype"] == "fp8"
    assert prefill.role == "prefill"
    over = schema.Settings(flags={"kv-cache-dtype": "auto"})
    assert layered(*both, layers=[over]).flags["kv-cache-dtype"] == "auto"


def test_a_draft_is_told_with_its_parameters():
    found = layered("eagle3-instant", "fp8-kv-cache")
    config = {"method": "eagle3", "num_speculative_tokens": 3}
    assert found.flags["speculative-config"] == config and found.flags["kv-cache-dtype"] == "fp8"
    assert found.draft_parameters == 1_900_000_000
    unknown = K25.drafts["eagle3-instant"].model_copy(update={"parameters_million": None})
    found = layered("eagle3-instant", drafts={"eagle3-instant": unknown})
    assert (found.draft, found.draft_parameters) == (3, 0)
