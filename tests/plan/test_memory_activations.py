"""The peak of the profile run, of a model small enough to be counted by hand.

Per device of two: 3 of 5 heads x (3 + 7) + (5 + 2) = 37 elements of a token of context, of which a
chunk has 4 x 64 = 256, and 100 tokens that go to 2 experts with 8 + 3 x 6 / 2 = 17 elements each.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_nb.plan.memory import Shape, activations

ARCH = {
    "layers": 5,
    "hidden_size": 8,
    "moe_intermediate_size": 6,
    "heads": 5,
    "qk_nope_head_dim": 3,
    "v_head_dim": 7,
    "kv_lora_rank": 5,
    "qk_rope_head_dim": 2,
    "experts_per_token": 2,
    "vocabulary": 50_000,
    "vision_parameters": 1,
}
TWO = Shape(tp=2, batched_tokens=100, model_len=10, seqs=1)
CONTEXT = 256 * 37
ROWS = 4 * 100 * 8


def step(precision="BF16", arch=(), **sizes) -> float:
    return activations.step_bytes(replace(TWO, **sizes), ARCH | dict(arch), precision)


@pytest.mark.parametrize(
    ("precision", "width"),
    [("BF16", 2), ("INT4", 2), ("FP8", 1.5), ("W4A8", 1.5), ("W8A8", 1.5), ("NVFP4", 1.25)],
)
def test_what_goes_to_an_expert_has_the_width_of_its_format(precision, width):
    assert step(precision) == 2 * (ROWS + CONTEXT) + width * 100 * 2 * 17


def test_a_step_has_16_bits_where_nothing_is_said():
    assert activations.step_bytes(TWO, ARCH) == 2 * (ROWS + CONTEXT + 3400)


def test_whole_experts_have_whole_intermediate_rows():
    assert step(expert_parallel=True) == 2 * (ROWS + CONTEXT + 100 * 2 * (8 + 3 * 6))


@pytest.mark.parametrize("dp", [2, 3])
def test_data_parallel_ranks_gather_the_tokens_of_all(dp):
    gathered = 100 * dp
    assert step(dp=dp) == 2 * (ROWS + 2 * gathered * 8 + CONTEXT + gathered * 2 * 17)


@pytest.mark.parametrize(("tokens", "at_once"), [(20_000, 32_768), (40_000, 40_000)])
def test_experts_are_computed_in_chunks_of_a_step_at_least(tokens, at_once):
    rows = (4 * tokens + 2 * 2 * tokens) * 8
    assert step(dp=2, batched_tokens=tokens) == 2 * (rows + CONTEXT + at_once * 2 * 17)


def test_latent_experts_have_rows_of_their_own_width():
    latent = {"latent_moe_size": 4}
    assert step(arch=latent) == 2 * (ROWS + CONTEXT + 100 * 2 * (4 + 9))
    assert step(arch=latent, dp=2) == 2 * (ROWS + 2 * 200 * 4 + CONTEXT + 200 * 2 * (4 + 9))


def test_the_output_of_each_block_of_layers_is_kept():
    """Five layers in blocks of two are three."""
    assert step(arch={"residual_block": 2}) == 2 * ((4 + 3) * 100 * 8 + CONTEXT + 3400)


def test_a_layer_of_delta_attention_may_take_more_than_the_context():
    """Of 1000 tokens 6 x 9 x 2 / 4 = 27 elements; the context has 2 of 5 heads: 256 x 27."""
    linear = {"kda_heads": 9, "kda_head_dim": 2}
    more = 4 * 1000 * 8 + 1000 * 2 * (8 + 3 * 6 / 4)
    assert step(arch=linear, tp=4, batched_tokens=1000) == 2 * (more + 27 * 1000)
    odd = {"kda_heads": 5, "kda_head_dim": 1}  # 30 / 4, rounded down
    assert step(arch=odd, tp=4, batched_tokens=1000) == 2 * (more + 7 * 1000)
    few = 4 * 10 * 8 + 10 * 2 * (8 + 3 * 6 / 4)
    assert step(arch=linear, tp=4, batched_tokens=10) == 2 * (few + 256 * 27)


@pytest.mark.parametrize("given", [{"kda_heads": 10_000}, {"kda_head_dim": 10_000}])
def test_half_a_description_of_delta_attention_is_none(given):
    assert step(arch=given) == step()


@pytest.mark.parametrize(
    ("length", "seqs", "chunk"),
    [
        (10, 1, 256),
        (10, 7, 1792),
        (100, 1, 800),
        (8192, 1, 65_536),
        (10_000, 1, 65_536),
        (10, 1000, 65_536),
        (None, 1, 65_536),
    ],
)
def test_a_chunk_of_context_has_its_bounds(length, seqs, chunk):
    assert step(model_len=length, seqs=seqs) == 2 * (ROWS + chunk * 37 + 3400)


def test_the_sampler_holds_ten_rows_of_logits():
    assert activations.sampler_bytes(replace(TWO, seqs=3), ARCH) == 10 * 3 * 50_000 * 4


def test_the_encoder_keeps_a_row_for_each_token_of_a_step():
    assert activations.encoder_bytes(TWO, ARCH) == 100 * 8 * 2
    assert activations.encoder_bytes(replace(TWO, vision=False), ARCH) == 0
    blind = {name: value for name, value in ARCH.items() if name != "vision_parameters"}
    assert activations.encoder_bytes(TWO, blind) == 0
    assert activations.encoder_bytes(TWO, ARCH | {"vision_parameters": 0}) == 0


# Terms ------------------------------------------------------------------------------------------


def sizes(one) -> tuple[float, ...]:
    return one.bytes, one.low, one.high


def test_the_sampler_takes_what_it_has_beyond_the_step():
    first, over, encoder = activations.terms(TWO, ARCH, "FP8")
    size = 2 * (ROWS + CONTEXT) + 1.5 * 3400
    assert [first.name, over.name, encoder.name] == ["activations", "sampler", "encoder cache"]
    assert sizes(first) == pytest.approx((size, 0.7 * size, 1.3 * size))
    assert sizes(over) == (2_000_000 - size, 1_400_000 - size, 2_300_000 - size)
    assert sizes(encoder) == (1600, 0, 4800)
    assert first.inside and over.inside and encoder.inside
    assert first.formula == (
        "rows of hidden size, copies for the experts, unfolded context of the largest step"
    )
    assert over.formula == "max-num-seqs x vocabulary x 4 B x copies, beyond the activations"
    assert encoder.formula == "max-num-batched-tokens x hidden size x 2 B"
    assert "H200" in first.source and "sampler.py" in over.source
    assert encoder.source == "vllm/v1/core/encoder_cache_manager.py"


def test_a_sampler_may_take_more_only_at_the_most():
    """10 x 800 x 4 B are less than 32144, 11.5 x 800 x 4 B are more."""
    over = activations.terms(TWO, ARCH | {"vocabulary": 800}, "BF16")[1]
    assert sizes(over) == (0, 0, 36_800 - 32_144)


def test_what_takes_nothing_is_no_term():
    small = ARCH | {"vocabulary": 50, "vision_parameters": 0}
    assert [one.name for one in activations.terms(TWO, small, "BF16")] == ["activations"]


def test_a_cpu_reserves_nothing_for_the_profile_run():
    found = activations.terms(replace(TWO, vendor="cpu"), ARCH, "BF16")
    assert [one.inside for one in found] == [False, False, False]
