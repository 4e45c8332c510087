"""The weights of a device, by part, and the cache of a token, from the sizes of a model.

>>> from kimi_nb.params import load
>>> round(checkpoint_bytes(load.model("k2.5").architecture, "INT4") / 1e9)  # published: 594
595

Every figure is estimated from the architecture's sizes; each function states its formula and
source. The parts of a real checkpoint differ by a few per cent (norms, padding, scales).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from kimi_nb.plan.memory import stages
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
    of query and cache, up projections of both, output, and a gate of the output where the model
    has one. Layers of Kimi delta attention have query, key, value, gate and output over all heads,
    a decay through one head's width, and convolutions of the first three. An expert is three
    matrices hidden x moe_intermediate (gate, up, down); with latent experts the routed ones work in
    a smaller width, between two projections of each layer. The first layers are dense.
    """
    hidden, heads, layers = arch["hidden_size"], arch["heads"], arch["layers"]
    sparse = layers - arch["dense_layers"]
    nope, rope, value = arch["qk_nope_head_dim"], arch["qk_rope_head_dim"], arch["v_head_dim"]
    latent = arch.get("latent_moe_size", 0)
    down = hidden * (arch["q_lora_rank"] + arch["kv_lora_rank"] + rope)
    up = (
        arch["q_lora_rank"] * heads * (nope + rope)
        + arch["kv_lora_rank"] * heads * (nope + value)
        + heads * value * hidden
        + hidden * heads * arch.get("mla_gate_dim", 0)
    )
    linear = arch.get("kda_layers", 0)
    narrow, wide = _delta(arch) if linear else (0, 0)
    width = arch["moe_intermediate_size"]
    counts = {
        "attention, replicated": cached_layers(arch) * down + linear * narrow,
        "attention": cached_layers(arch) * up + linear * wide,
        "dense": arch["dense_layers"] * 3 * hidden * arch["intermediate_size"],
        "shared experts": sparse * arch["shared_experts"] * 3 * hidden * width,
        "routed experts": sparse * arch["experts"] * 3 * (latent or hidden) * width,
        "router": sparse * hidden * arch["experts"],
        "embeddings": 2 * arch["vocabulary"] * hidden,
        "vision": arch.get("vision_parameters", 0),
    }
    if latent:
        counts["latent projections"] = sparse * 2 * hidden * latent
    return counts


def _delta(arch: Mapping[str, int]) -> tuple[int, int]:
    """Return the parameters of a layer of Kimi delta attention: (replicated, divided by tp)."""
    hidden, head = arch["hidden_size"], arch["kda_head_dim"]
    width = arch["kda_heads"] * head
    convolutions = 3 * width * arch["kda_conv_kernel"]
    return hidden * head, 5 * hidden * width + head * width + hidden * arch[
        "kda_heads"
    ] + convolutions


def cached_layers(arch: Mapping[str, int]) -> int:
    """Return the layers that keep a cache for each token: all, or those of latent attention."""
    return arch.get("mla_layers", arch["layers"])


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

    Heads, dense and shared layers and the vocabulary are divided by tp; the down projections, those
    to and from latent experts, the router and (with mm-encoder-tp-mode data) the vision tower are
    whole on every device, and with language-model-only there is no vision tower; routed experts are
    divided by dp x tp x pcp. A draft model has 16 bits and is divided by tp. Of a pipeline the heaviest stage counts: each has
    its layers, the first the embeddings, the vision tower and the dense layers, the last the output
    layer and the draft.
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
        "latent projections": count.get("latent projections", 0) * linear,
        "vision": count["vision"] * 2.0 / (1 if shape.whole_vision else shape.tp)
        if shape.vision
        else 0.0,
        "draft": draft_parameters * 2.0 / shape.tp,
    }
    if shape.pp > 1:
        dense = count["dense"] * linear / shape.tp
        part = max(_stages(shape, arch, part, dense), key=lambda one: sum(one.values()))
    return {name: size for name, size in part.items() if size}


def _stages(
    shape: Shape, arch: Mapping[str, int], whole: Mapping[str, float], dense: float
) -> Iterator[dict[str, float]]:
    """Yield the parts of each stage of a pipeline; ``dense`` are the bytes of all dense layers."""
    layers, first, at = arch["layers"], arch["dense_layers"], 0
    sparse = max(layers - first, 1)
    for stage, mine in enumerate(stages.layers_of(layers, shape.pp)):
        leading = min(max(first - at, 0), mine)  # the dense layers of this stage
        at += mine
        begins, ends = stage == 0, stage == shape.pp - 1
        share = (mine - leading) / sparse
        shared = whole["dense and shared"] - dense
        yield {
            **whole,
            "attention": whole["attention"] * mine / layers,
            "dense and shared": shared * share + dense * (leading / first if first else 0.0),
            "routed experts": whole["routed experts"] * share,
            "router": whole["router"] * share,
            "latent projections": whole["latent projections"] * share,
            "embeddings": whole["embeddings"] / 2 * (begins + ends),
            "vision": whole["vision"] * begins,
            "draft": whole["draft"] * ends,
        }


def cache_bytes_per_token(arch: Mapping[str, int], bytes_each: int = 2) -> int:
    """Return the bytes of cache that one token takes on one device.

    That is layers x (kv_lora_rank + qk_rope_head_dim) x bytes. Multi-head latent attention keeps
    one compressed row for all heads, so every tensor parallel rank holds the same: 61 x (512 + 64)
    x 2 = 70,272 B for Kimi-K2. Of hybrid attention only the layers of latent attention count.

    >>> kimi = {"layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    >>> cache_bytes_per_token(kimi, 2)
    70272
    """
    return cached_layers(arch) * row_bytes(arch, bytes_each)


def row_bytes(arch: Mapping[str, int], bytes_each: int = 2) -> int:
    """Return the bytes of cache of one token in one layer of latent attention."""
    return (arch["kv_lora_rank"] + arch["qk_rope_head_dim"]) * bytes_each


def cache_bytes(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the bytes of cache of one token on one device, with the layers of a draft.

    Of a pipeline the stage with the most cached layers counts. Of a model with linear attention that
    is one more than an equal share at the most, since its last layers are of the cached kind.
    """
    cached = cached_layers(arch)
    uneven = shape.pp > 1 and cached < arch["layers"]
    layers = max(stages.layers_of(cached, shape.pp)) + uneven + shape.draft_layers
    return layers * row_bytes(arch, shape.cache_bytes)


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
