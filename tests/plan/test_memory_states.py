"""The states of linear attention, of a model small enough to be counted by hand.

With tp 2 a device has 3 of 6 heads. A state of a layer is 3 heads x 5 x 5 x 4 B = 300 B of matrices,
and 3 inputs of the convolutions x 3 x 3 heads x 5 x 2 B = 270 B. A token of latent attention has
(2 + 1) x 2 B = 6 B in a layer, and 128 of them 768 B.
"""

from __future__ import annotations

from dataclasses import replace

from kimi_nb.plan.memory import Shape, states

ARCH = {
    "layers": 10,
    "mla_layers": 3,
    "kda_layers": 7,
    "kda_heads": 6,
    "kda_head_dim": 5,
    "kda_conv_kernel": 4,
    "kv_lora_rank": 2,
    "qk_rope_head_dim": 1,
}
TWO = Shape(tp=2, prefix_caching=False)
DENSE = {"layers": 10, "kv_lora_rank": 2, "qk_rope_head_dim": 1}


def test_a_state_has_a_matrix_for_each_head_and_the_last_inputs():
    assert states.layer_bytes(TWO, ARCH) == 300 + 270
    # Two drafted tokens make five inputs; with tp 4 one head is whole on each device.
    assert states.layer_bytes(replace(TWO, draft_tokens=2), ARCH) == 300 + 450
    assert states.layer_bytes(replace(TWO, tp=4), ARCH) == 100 + 90


def test_a_sequence_has_a_state_in_each_layer_of_its_stage():
    assert states.state_bytes(TWO, ARCH) == 7 * 570
    assert states.state_bytes(replace(TWO, pp=4), ARCH) == 997  # 3990 / 4
    assert states.state_bytes(TWO, DENSE) == states.state_bytes(TWO, ARCH | {"kda_layers": 0}) == 0


def test_a_page_has_128_tokens_or_as_many_as_a_state_needs():
    assert states.page_tokens(TWO, ARCH) == 128
    assert states.page_tokens(replace(TWO, cache_bytes=1), ARCH) == 256  # 384 B are less than 570
    exact = ARCH | {"kda_head_dim": 8, "kda_conv_kernel": 1}  # 3 heads x 8 x 8 x 4 B = 768 B
    assert states.page_tokens(TWO, exact) == 128


def test_a_sequence_keeps_one_state_and_one_more_for_prefixes_and_each_draft():
    assert states.copies(TWO) == 1
    assert states.copies(replace(TWO, prefix_caching=True)) == 2
    assert states.copies(replace(TWO, draft_tokens=3)) == 4


def test_layers_share_a_block_in_groups_of_those_of_latent_attention():
    """7 layers are 3 groups of 3, or with two of a draft 2 of 5; each layer has a page of 768 B."""
    assert states.sequence_bytes(TWO, ARCH) == 3 * 3 * 768
    assert states.sequence_bytes(replace(TWO, draft_layers=2), ARCH) == 2 * 5 * 768
    assert states.sequence_bytes(replace(TWO, prefix_caching=True), ARCH) == 2 * 3 * 3 * 768
    # Two pages of 384 B, and in a pipeline the part of one stage: 6912 / 5.
    assert states.sequence_bytes(replace(TWO, cache_bytes=1), ARCH) == 3 * 3 * 256 * 3
    assert states.sequence_bytes(replace(TWO, pp=5), ARCH) == 1382
    assert states.sequence_bytes(TWO, DENSE) == 0
    assert states.sequence_bytes(TWO, ARCH | {"kda_layers": 0}) == 0
