"""The weights of a device, by part, and the cache of a token, from the sizes of a model.

>>> from kimi_nb.params import load
>>> round(checkpoint_bytes(load.model("k2.5").architecture, "INT4") / 1e9)  # published: 594
595

Every figure is estimated from the architecture's sizes; each function states its formula and
source. The parts of a real checkpoint differ by a few per cent (norms, padding, scales).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import Term, facts, figure

# The numbers that a model file must have for an estimate.
NEEDED = (
    "layers",
    "dense_layers",
    "hidden_size",
    "heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "experts",
    "experts_per_token",
    "shared_experts",
    "moe_intermediate_size",
    "vocabulary",
)

# Bytes of one parameter: (routed experts, other linear layers). Embeddings, router and vision
# tower have 16 bits. The figures include the scales of a quantised format:
#   INT4   4 bits and a 16-bit scale for each 32 (compressed-tensors of the published checkpoints;
#          gives 594 GB for 1,026 B parameters, which is what is published)
#   W4A8   4 bits and two 32-bit numbers for each 256, other layers 8 bits (estimated)
#   NVFP4  4 bits and an 8-bit scale for each 16 (NVIDIA's description of the format)
#   MXFP4  4 bits and an 8-bit scale for each 32 (OCP Microscaling specification)
PRECISIONS: Mapping[str, tuple[float, float]] = {
    "BF16": (2.0, 2.0),
    "FP8": (1.0, 1.0),
    "INT4": (0.5 + 2 / 32, 2.0),
    "W4A8": (0.5 + 8 / 256, 1.0),
    "W8A8": (1.0, 1.0),
    "NVFP4": (0.5 + 1 / 16, 2.0),
    "MXFP4": (0.5 + 1 / 32, 2.0),
}
# Of a routed parameter the bytes that are scales.
SCALES: Mapping[str, float] = {
    "INT4": 2 / 32,
    "W4A8": 8 / 256,
    "NVFP4": 1 / 16,
    "MXFP4": 1 / 32,
}


def parameters(arch: Mapping[str, int]) -> dict[str, int]:
    """Return the parameters of the whole model, by part.

    Attention of one layer (multi-head latent attention, DeepSeek-V2 report 2.1): down projections
    of query and cache, up projections of both, output. An expert is three matrices hidden x
    moe_intermediate (gate, up, down). The first layers are dense.
    """
    hidden, heads, layers = arch["hidden_size"], arch["heads"], arch["layers"]
    sparse = layers - arch["dense_layers"]
    nope, rope, value = arch["qk_nope_head_dim"], arch["qk_rope_head_dim"], arch["v_head_dim"]
    down = hidden * (arch["q_lora_rank"] + arch["kv_lora_rank"] + rope)
    up = (
        arch["q_lora_rank"] * heads * (nope + rope)
        + arch["kv_lora_rank"] * heads * (nope + value)
        + heads * value * hidden
    )
    expert = 3 * hidden * arch["moe_intermediate_size"]
    return {
        "attention, replicated": layers * down,
        "attention": layers * up,
        "dense": arch["dense_layers"] * 3 * hidden * arch["intermediate_size"],
        "shared experts": sparse * arch["shared_experts"] * expert,
        "routed experts": sparse * arch["experts"] * expert,
        "router": sparse * hidden * arch["experts"],
        "embeddings": 2 * arch["vocabulary"] * hidden,
        "vision": arch.get("vision_parameters", 0),
    }


def checkpoint_bytes(arch: Mapping[str, int], precision: str) -> float:
    """Return the size of a checkpoint in bytes."""
    routed, linear = PRECISIONS[precision]
    return sum(count * _bytes_of(part, routed, linear) for part, count in parameters(arch).items())


def _bytes_of(part: str, routed: float, linear: float) -> float:
    if part == "routed experts":
        return routed
    return 2.0 if part in ("router", "embeddings", "vision") else linear


def weights_per_rank(
    shape: Shape, arch: Mapping[str, int], precision: str, draft_parameters: int = 0
) -> dict[str, float]:
    """Return the bytes of weights on the fullest device, by part.

    Heads, dense and shared layers and the vocabulary are divided by tp; the down projections, the
    router and (with mm-encoder-tp-mode data) the vision tower are whole on every device, and with
    language-model-only there is no vision tower; routed experts are divided by dp x tp. A pipeline stage holds its share of the layers. A draft model
    has 16 bits and is divided by tp.
    """
    routed, linear = PRECISIONS[precision]
    count = parameters(arch)
    ranks = shape.expert_ranks
    if shape.expert_parallel:
        local = math.ceil((arch["experts"] + shape.spare_experts) / ranks)
        share = local / arch["experts"]
    else:
        share = 1 / ranks
    part = {
        "attention": count["attention, replicated"] * linear
        + count["attention"] * linear / shape.tp,
        "dense and shared": (count["dense"] + count["shared experts"]) * linear / shape.tp,
        "routed experts": count["routed experts"] * routed * share,
        "embeddings": count["embeddings"] * 2.0 / shape.tp,
        "router": count["router"] * 2.0,
        "vision": count["vision"] * 2.0 / (1 if shape.whole_vision else shape.tp)
        if shape.vision
        else 0.0,
        "draft": draft_parameters * 2.0 / shape.tp,
    }
    layered = ("attention", "dense and shared", "routed experts", "router")
    return {
        name: size / shape.pp if name in layered else size for name, size in part.items() if size
    }


def cache_bytes_per_token(arch: Mapping[str, int], bytes_each: int = 2) -> int:
    """Return the bytes of cache that one token takes on one device.

    That is layers x (kv_lora_rank + qk_rope_head_dim) x bytes. Multi-head latent attention keeps
    one compressed row for all heads, so every tensor parallel rank holds the same: 61 x (512 + 64)
    x 2 = 70,272 B for Kimi.

    >>> kimi = {"layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    >>> cache_bytes_per_token(kimi, 2)
    70272
    """
    return arch["layers"] * (arch["kv_lora_rank"] + arch["qk_rope_head_dim"]) * bytes_each


def cache_bytes(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the bytes of cache of one token on one device, with the layers of a draft."""
    layers = arch["layers"] + shape.draft_layers
    return cache_bytes_per_token({**arch, "layers": layers}, shape.cache_bytes)


def terms(parts: Mapping[str, float], precision: str) -> list[Term]:
    """Return a term for each part of the weights; scales of a quantised format are one of their own.

    How far the loaded weights may differ depends on whether the format was held against a log.
    """
    known = precision in facts()["measured_formats"]
    error = figure("weights", "measured" if known else "estimated")
    out = []
    for name, size in parts.items():
        scales = SCALES.get(precision, 0.0) / PRECISIONS[precision][0]
        pieces = {name: size}
        if name == "routed experts" and scales:
            pieces = {name: size * (1 - scales), "quantisation scales": size * scales}
        out += [
            error.term(part, bytes_, "parameters x bytes, by the shape of the engine")
            for part, bytes_ in pieces.items()
        ]
    return out
