"""Hybrid attention: Kimi-K3's weights, states and cache, against arithmetic of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kimi_nb.check import public_engines
from kimi_nb.check.rules import capacity
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load
from kimi_nb.plan import memory
from kimi_nb.plan.memory import Shape, states

K3 = load.model("k3").architecture
GB = 10**9

# The sizes of its config.json, written apart from the parameter file.
HIDDEN, VOCABULARY, HEADS, HEAD = 7168, 163840, 96, 128
MLA, KDA, SPARSE = 24, 69, 92
EXPERT = 3 * 3584 * 3072  # in the latent width
SHARED = 3 * 7168 * (2 * 3072)
# q and kv down, q and kv up, output, output gate
MLA_DOWN = HIDDEN * (1536 + 512 + 64)
MLA_UP = 1536 * HEADS * 192 + 512 * HEADS * 256 + 2 * HIDDEN * HEADS * 128
# q, k, v, gate and output; the decay through 128; beta; three convolutions of 4
KDA_SPLIT = 5 * HIDDEN * HEADS * HEAD + HEAD * HEADS * HEAD + HIDDEN * HEADS + 3 * 4 * HEADS * HEAD
KDA_WHOLE = HIDDEN * HEAD


def fit(shape: Shape, precision: str = "MXFP4", device: float = 139.8) -> memory.Fit:
    return memory.fit(shape, K3, precision, device)


def test_the_parameters_are_those_of_its_name():
    """2.8T by name, 2.75T to 2.78T by those who counted."""
    count = memory.parameters(K3)
    assert count["routed experts"] == SPARSE * 896 * EXPERT
    assert count["shared experts"] == SPARSE * SHARED
    assert count["attention"] == MLA * MLA_UP + KDA * KDA_SPLIT
    assert count["attention, replicated"] == MLA * MLA_DOWN + KDA * KDA_WHOLE
    assert count["latent projections"] == SPARSE * 2 * HIDDEN * 3584
    assert count["dense"] == 3 * HIDDEN * 33792
    total = sum(count.values())
    assert 2.75e12 <= total <= 2.79e12
    assert load.model("k3").parameters_billion == round((total - count["vision"]) / 1e9)


@pytest.mark.parametrize(
    ("precision", "bits"), [("MXFP4", 4 + 8 / 32), ("NVFP4", 4 + 8 / 16), ("BF16", 16)]
)
def test_only_routed_experts_are_quantised(precision, bits):
    count = memory.parameters(K3)
    routed = SPARSE * 896 * EXPERT
    rest = sum(count.values()) - routed
    assert memory.checkpoint_bytes(K3, precision) == pytest.approx(routed * bits / 8 + rest * 2)


@pytest.mark.parametrize(("cache", "each"), [(2, 27_648), (1, 13_824)])
def test_a_token_takes_the_same_of_every_tensor_parallel_rank(cache, each):
    for tp in (1, 8, 16):
        assert fit(Shape(tp=tp, cache_bytes=cache)).per_token == each
    draft = Shape(tp=8, cache_bytes=cache, draft_layers=5)
    assert fit(draft).per_token == each + 5 * 576 * cache


def test_a_state_is_divided_by_tp_and_not_by_dcp():
    whole = KDA * HEADS * HEAD * HEAD * 4 + KDA * 3 * 3 * HEADS * HEAD * 2
    assert whole == pytest.approx(449.4e6, rel=1e-3)
    for tp in (1, 8, 16):
        assert memory.state_bytes(Shape(tp=tp, dcp=min(tp, 8)), K3) == whole // tp


@pytest.mark.parametrize(
    ("tp", "cache", "tokens"),
    [(8, 1, 1536), (8, 2, 768), (16, 1, 768), (16, 2, 384), (1, 1, 11392)],
)
def test_a_page_of_cache_holds_a_state(tp, cache, tokens):
    """128 tokens at a time: 814,080 B with tp 8 are 1413.3 tokens of 576 B, which makes 1536."""
    shape = Shape(tp=tp, cache_bytes=cache)
    state = HEADS // tp * (HEAD * HEAD * 4 + 3 * 3 * HEAD * 2)
    assert states.page_tokens(shape, K3) == tokens
    assert tokens * 576 * cache >= state > (tokens - 128) * 576 * cache


@pytest.mark.parametrize(
    ("caching", "drafted", "copies"), [(False, 0, 1), (True, 0, 2), (False, 7, 8), (True, 7, 9)]
)
def test_prefixes_and_drafts_take_states_of_their_own(caching, drafted, copies):
    shape = Shape(tp=8, cache_bytes=1, prefix_caching=caching, draft_tokens=drafted)
    state = 12 * (128 * 128 * 4 + (3 + drafted) * 3 * 128 * 2)
    page = 128 * math.ceil(state / (128 * 576)) * 576
    assert fit(shape).per_sequence == copies * 3 * 24 * page  # 69 layers are 3 groups of 24


def test_more_sequences_leave_less_for_tokens():
    found = fit(Shape(tp=16, cache_bytes=1, seqs=64, model_len=32768), device=160)
    assert found.headroom > 0
    room = found.headroom - found.per_sequence
    assert found.tokens == int(room // 13_824)
    assert found.beside(1) == found.tokens > found.beside(64) > 0
    assert found.longest == found.beside(64) // 64
    many = found.requests(32768)
    each = 32768 * 13_824 + found.per_sequence
    assert many * each <= found.headroom < (many + 1) * each + 13_824
    assert fit(Shape(tp=16)).requests(10**9) == 0


def test_requests_without_states_are_as_before():
    kimi = load.model("k2.5").architecture
    found = memory.fit(Shape(tp=8, dcp=8), kimi, "INT4", 139.8)
    assert found.per_sequence == 0
    assert found.requests(1000) == found.tokens // 1000 and found.beside(99) == found.tokens


def test_projections_to_the_latent_width_are_whole_on_every_device():
    eight, sixteen = (fit(Shape(tp=tp, seqs=1)).parts for tp in (8, 16))
    assert (
        eight["latent projections"] == sixteen["latent projections"] == SPARSE * 4 * HIDDEN * 3584
    )
    assert eight["attention"] > sixteen["attention"]


def test_mxfp4_experts_take_their_workspace_outside_of_the_share():
    def workspaces(shape: Shape, precision: str) -> list[memory.Term]:
        return [one for one in fit(shape, precision).terms if one.name == "expert workspace"]

    (found,) = workspaces(Shape(tp=16), "MXFP4")
    assert found.gib == pytest.approx(1.6) and not found.inside and found.source
    assert not workspaces(Shape(tp=16), "NVFP4")
    assert not workspaces(Shape(tp=16, vendor="amd"), "MXFP4")


def test_a_stage_has_its_share_of_layers():
    one, four = (fit(Shape(tp=8, pp=pp, seqs=1)) for pp in (1, 4))
    for part in ("routed experts", "latent projections"):  # of 23 or 24 layers
        assert four.parts[part] == pytest.approx(one.parts[part] / 4, rel=0.06)
    assert four.per_sequence * 4 == pytest.approx(one.per_sequence, rel=0.06)


def test_a_known_draft_brings_its_layers_of_cache():
    entry = {
        "id": "x",
        "model": "k3",
        "precision": "MXFP4",
        "hardware": "h200",
        "engine": {"package": "vllm", "version": "0.27.1"},
        "words": ["-tp", "16", "--no-enable-prefix-caching"],
    }
    draft = '{"model": "Inferact/Kimi-K3-DSpark", "method": "dspark", "num_speculative_tokens": 7}'
    with_one = entry | {"words": [*entry["words"], "--speculative-config", draft]}
    for given, layers, tokens in ((entry, 0, 0), (with_one, 5, 7)):
        deployment = public_engines.of(given)
        shape = capacity.shape_of(deployment, deployment.servers[0])
        assert (shape.draft_layers, shape.draft_tokens) == (layers, tokens)
        assert not shape.prefix_caching
    words = [*with_one["words"], "--use-replayssm"]
    deployment = public_engines.of(with_one | {"words": words})
    assert capacity.shape_of(deployment, deployment.servers[0]) == replace(shape, draft_tokens=0)


def test_the_layers_of_a_draft_widen_the_groups():
    """69 layers are 3 groups of 24, and with 5 more of a draft 3 groups of 29."""
    plain, wider = (
        states.sequence_bytes(Shape(tp=8, draft_layers=more, prefix_caching=False), K3)
        for more in (0, 5)
    )
    page = states.page_tokens(Shape(tp=8), K3) * 576 * 2
    assert (plain, wider) == (3 * 24 * page, 3 * 29 * page)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  kda_heads: 96\n", "", "architecture.kda_heads: is missing"),
        (
            "  mla_layers: 24\n",
            "  mla_layers: 23\n",
            "23 mla_layers and 69 kda_layers are 92 layers",
        ),
    ],
)
def test_hybrid_attention_is_described_as_a_whole(tmp_path, old, new, says):
    from kimi_nb.core import paths

    text = (paths.root() / "params" / "models" / "k3.yaml").read_text()
    path = tmp_path / "mine.yaml"
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ParameterError, match=says):
        load.model(str(path))


# Deployments that their authors ran (upstream's word for it is verified), and shapes of rendered pages
# that cannot hold the weights: name, precision, GiB that torch sees, shape.
RAN = [
    ("h100", "MXFP4", 79.11, Shape(tp=8, pp=4, seqs=5, model_len=32768)),
    ("h200", "MXFP4", 139.8, Shape(tp=8, dp=2, seqs=5, model_len=32768, utilization=0.97)),
    ("b300", "MXFP4", 267.69, Shape(tp=8, model_len=2**20, cache_bytes=1, utilization=0.95)),
    (
        "a3",
        "W4A8",
        60.96,
        Shape(
            tp=16,
            dp=4,
            expert_parallel=True,
            seqs=16,
            batched_tokens=24576,
            model_len=131072,
            vendor="ascend",
            buffer_mib=800,
        ),
    ),
    (
        "a2",
        "W4A8",
        60.96,
        Shape(
            tp=8,
            dp=8,
            expert_parallel=True,
            vision=False,
            model_len=262144,
            vendor="ascend",
            buffer_mib=256,
        ),
    ),
]
TOO_LARGE = [
    ("h200-one-node", 139.8, Shape(tp=8, utilization=0.97)),
    ("gb200-two-trays", 184.31, Shape(tp=8, utilization=0.95)),
    ("b200-dep16", 178.35, Shape(dp=16, expert_parallel=True, utilization=0.95)),
]


@pytest.mark.parametrize(("name", "precision", "device", "shape"), RAN, ids=[one[0] for one in RAN])
def test_what_was_run_fits_by_the_account(name, precision, device, shape):
    assert fit(shape, precision, device).requests(shape.model_len) >= 1


@pytest.mark.parametrize(("name", "device", "shape"), TOO_LARGE, ids=[one[0] for one in TOO_LARGE])
def test_what_cannot_hold_the_weights_does_not_fit(name, device, shape):
    found = fit(shape, device=device)
    assert found.headroom < 0 and found.tokens == 0
    assert found.weights > 0.95 * device * memory.GIB
