"""The weights of a device and the cache of a token, of models small enough to be counted by hand.

A layer of latent attention of DENSE has 8 x (6 + 5 + 2) = 104 replicated parameters and 6 x 4 x 5 +
5 x 4 x 10 + 4 x 7 x 8 = 544 others; HYBRID adds a gate of 8 x 4 x 9 = 288. A layer of Kimi delta
attention of HYBRID has 8 x 5 = 40 replicated ones and, with a width of 3 x 5 = 15, 5 x 8 x 15 +
5 x 15 + 8 x 3 + 3 x 15 x 4 = 879 others.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from kimi_nb.plan.memory import Shape, model_weights
from kimi_nb.plan.memory.terms import Term

DENSE = {
    "layers": 5,
    "dense_layers": 2,
    "hidden_size": 8,
    "heads": 4,
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_rope_head_dim": 2,
    "qk_nope_head_dim": 3,
    "v_head_dim": 7,
    "intermediate_size": 20,
    "experts": 10,
    "experts_per_token": 2,
    "shared_experts": 3,
    "moe_intermediate_size": 4,
    "vocabulary": 50,
}
SEEING = DENSE | {"vision_parameters": 1000}
HYBRID = DENSE | {
    "mla_gate_dim": 9,
    "mla_layers": 2,
    "kda_layers": 3,
    "kda_heads": 3,
    "kda_head_dim": 5,
    "kda_conv_kernel": 4,
    "latent_moe_size": 6,
}


def weights(precision="W4A8", arch=SEEING, draft=0, **sizes) -> dict[str, float]:
    return model_weights.weights_per_rank(Shape(**sizes), arch, precision, draft)


# The whole model --------------------------------------------------------------------------------


def test_the_parameters_of_a_model():
    assert model_weights.parameters(SEEING) == {
        "attention, replicated": 5 * 104,
        "attention": 5 * 544,
        "dense": 2 * 3 * 8 * 20,
        "shared experts": 3 * 3 * 3 * 8 * 4,
        "routed experts": 3 * 10 * 3 * 8 * 4,
        "router": 3 * 8 * 10,
        "embeddings": 2 * 50 * 8,
        "vision": 1000,
    }
    assert model_weights.parameters(DENSE)["vision"] == 0


def test_the_parameters_of_hybrid_attention_and_latent_experts():
    found = model_weights.parameters(HYBRID)
    assert found["attention, replicated"] == 2 * 104 + 3 * 40
    assert found["attention"] == 2 * (544 + 288) + 3 * 879
    assert found["routed experts"] == 3 * 10 * 3 * 6 * 4
    assert found["shared experts"] == 3 * 3 * 3 * 8 * 4
    assert found["latent projections"] == 3 * 2 * 8 * 6


@pytest.mark.parametrize(
    ("precision", "routed", "linear"),
    [("BF16", 2, 2), ("FP8", 1, 1), ("INT4", 0.5625, 2), ("W4A8", 0.53125, 1)],
)
def test_a_checkpoint_has_16_bits_where_nothing_is_quantised(precision, routed, linear):
    """Of 520 + 2720 + 960 + 864 linear, 2880 routed, and 240 + 800 + 1000 other parameters."""
    size = model_weights.checkpoint_bytes(SEEING, precision)
    assert size == 5064 * linear + 2880 * routed + 2040 * 2


# One device -------------------------------------------------------------------------------------


def test_a_device_of_tensor_and_data_parallel_ranks():
    assert weights(tp=2, dp=3, draft=600) == {
        "attention": 520 + 2720 / 2,
        "dense and shared": (960 + 864) / 2,
        "routed experts": pytest.approx(2880 * 0.53125 / 6),
        "embeddings": 800 * 2 / 2,
        "router": 240 * 2,
        "vision": 1000 * 2 / 2,
        "draft": 600 * 2 / 2,
    }


def test_layers_have_the_bytes_of_their_format():
    found = weights("INT4", tp=2)
    assert found["attention"] == 2 * (520 + 2720 / 2)
    assert found["dense and shared"] == 2 * (960 + 864) / 2
    assert weights("INT4", HYBRID, tp=2)["latent projections"] == 2 * 288


def test_whole_experts_are_rounded_up_with_the_spare_ones():
    spread = {"tp": 2, "dp": 3, "expert_parallel": True}
    # ceil(10 / 6) = 2, ceil(13 / 6) = 3 of 10 experts.
    assert weights(**spread)["routed experts"] == pytest.approx(2880 * 0.53125 * 0.2)
    assert weights(**spread, spare_experts=3)["routed experts"] == pytest.approx(
        2880 * 0.53125 * 0.3
    )


def test_a_vision_tower_is_divided_whole_or_left_out():
    assert weights(tp=4)["vision"] == 500
    assert weights(tp=4, whole_vision=True)["vision"] == 2000
    assert "vision" not in weights(tp=4, vision=False)


def test_what_a_model_has_not_is_no_part():
    found = weights(arch=DENSE)
    assert not {"vision", "draft", "latent projections"} & set(found)
    assert "draft" not in model_weights.weights_per_rank(Shape(), DENSE, "FP8")


# Stages -----------------------------------------------------------------------------------------


def test_each_stage_of_a_pipeline_has_its_layers():
    """Five layers in three stages are 2, 2 and 1; of three dense ones the second stage has one."""
    whole = {
        "attention": 500.0,
        "dense and shared": 90.0 + 20.0,
        "routed experts": 200.0,
        "router": 40.0,
        "latent projections": 60.0,
        "embeddings": 80.0,
        "vision": 7.0,
        "draft": 9.0,
    }
    arch = {"layers": 5, "dense_layers": 3}
    assert list(model_weights._stages(Shape(pp=3), arch, whole, 90.0)) == [
        {
            "attention": 200.0,
            "dense and shared": 60.0,
            "routed experts": 0.0,
            "router": 0.0,
            "latent projections": 0.0,
            "embeddings": 40.0,
            "vision": 7.0,
            "draft": 0.0,
        },
        {
            "attention": 200.0,
            "dense and shared": 30.0 + 10.0,
            "routed experts": 100.0,
            "router": 20.0,
            "latent projections": 30.0,
            "embeddings": 0.0,
            "vision": 0.0,
            "draft": 0.0,
        },
        {
            "attention": 100.0,
            "dense and shared": 10.0,
            "routed experts": 100.0,
            "router": 20.0,
            "latent projections": 30.0,
            "embeddings": 40.0,
            "vision": 0.0,
            "draft": 9.0,
        },
    ]


@pytest.mark.parametrize(("dense", "shared"), [(0, [15.0, 15.0]), (4, [45.0, 45.0])])
def test_a_model_may_have_no_dense_layer_or_no_other(dense, shared):
    whole = dict.fromkeys(
        ("attention", "routed experts", "router", "latent projections", "embeddings"), 0.0
    )
    whole |= {"dense and shared": 30.0 if not dense else 90.0, "vision": 0.0, "draft": 0.0}
    arch = {"layers": 4, "dense_layers": dense}
    found = model_weights._stages(Shape(pp=2), arch, whole, 90.0 if dense else 0.0)
    assert [one["dense and shared"] for one in found] == shared


def test_a_single_layer_with_experts_is_one():
    whole = dict.fromkeys(
        ("attention", "dense and shared", "router", "latent projections", "embeddings"), 0.0
    )
    whole |= {"routed experts": 8.0, "vision": 0.0, "draft": 0.0}
    arch = {"layers": 2, "dense_layers": 1}
    found = model_weights._stages(Shape(pp=2), arch, whole, 0.0)
    assert [one["routed experts"] for one in found] == [0.0, 8.0]


def test_the_heaviest_stage_counts():
    """Stages of 3 and 2 layers: the first has the dense ones and 1 of 3 others, the second 2.

    First 3 / 5 x 3240 + 960 + 288 + 510 + 160 + 800 + 2000, second 2 / 5 x 3240 + 576 + 1020 +
    320 + 800 and the draft.
    """
    first = {
        "attention": pytest.approx(3240 * 3 / 5),
        "dense and shared": pytest.approx(960 + 864 / 3),
        "routed experts": pytest.approx(2880 * 0.53125 / 3),
        "embeddings": 800,
        "router": pytest.approx(160),
        "vision": 2000,
    }
    assert weights(pp=2) == first
    assert weights(pp=2, draft=100) == first
    second = weights(pp=2, draft=2000)
    assert second["draft"] == 4000 and "vision" not in second
    assert second["dense and shared"] == pytest.approx(864 * 2 / 3)
    halved = weights("INT4", pp=2, tp=2)
    assert halved["dense and shared"] == pytest.approx(2 * (960 + 864 / 3) / 2)


# The cache of a token ---------------------------------------------------------------------------


def test_a_token_takes_a_row_of_each_cached_layer():
    assert model_weights.row_bytes(DENSE) == 14 and model_weights.row_bytes(DENSE, 1) == 7
    assert model_weights.cache_bytes_per_token(DENSE) == 70
    assert model_weights.cache_bytes_per_token(DENSE, 3) == 105
    assert model_weights.cached_layers(DENSE) == 5 and model_weights.cached_layers(HYBRID) == 2


@pytest.mark.parametrize(
    ("arch", "sizes", "layers"),
    [
        (DENSE, {}, 5),
        (DENSE, {"draft_layers": 1}, 6),
        (DENSE, {"pp": 2}, 3),
        (HYBRID, {}, 2),
        (HYBRID, {"pp": 2}, 1 + 1),
        (HYBRID, {"pp": 2, "draft_layers": 1}, 1 + 1 + 1),
    ],
)
def test_the_stage_with_the_most_cached_layers_counts(arch, sizes, layers):
    assert model_weights.cache_bytes(Shape(**sizes), arch) == 14 * layers
    assert model_weights.cache_bytes(Shape(**sizes, cache_bytes=1), arch) == 7 * layers


# Terms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "scales", "low", "high"),
    [
        # 2 / 32 of 0.5625 B, 8 / 256 of 0.53125 B, 1 / 16 of 0.5625 B, 1 / 32 of 0.53125 B.
        ("INT4", 1 / 9, 0.993, 1.01),
        ("W4A8", 1 / 17, 0.96, 1.05),
        ("NVFP4", 1 / 9, 0.96, 1.05),
        ("MXFP4", 1 / 17, 0.96, 1.05),
    ],
)
def test_scales_are_taken_out_of_the_routed_experts(precision, scales, low, high):
    found = model_weights.terms({"attention": 100.0, "routed experts": 1000.0}, precision)
    assert [one.name for one in found] == ["attention", "routed experts", "quantisation scales"]
    assert [one.bytes for one in found] == pytest.approx([100, 1000 * (1 - scales), 1000 * scales])
    for one in found:
        assert (one.low, one.high) == pytest.approx((one.bytes * low, one.bytes * high))


def test_a_format_without_scales_has_none():
    assert [
        replace(one, source="")
        for one in model_weights.terms({"routed experts": 1000.0, "router": 8.0}, "FP8")
    ] == [
        Term(name, size, pytest.approx(0.96 * size), pytest.approx(1.05 * size), said, "")
        for name, size, said in (
            ("routed experts", 1000.0, "parameters x bytes, by the shape of the engine"),
            ("router", 8.0, "parameters x bytes, by the shape of the engine"),
        )
    ]
