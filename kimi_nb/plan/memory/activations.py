"""The peak of the profile run: a step of max-num-batched-tokens, and the sampler's logits.

The engine runs a dummy step of the largest size before it sizes its cache, then the sampler with
max-num-seqs rows (GPUModelRunner.profile_run and _dummy_sampler_run). The cache gets what the
higher of the two peaks leaves.

>>> from kimi_nb.params import load
>>> kimi = load.model("k2-thinking").architecture
>>> [
...     round(size / 2**30, 1)
...     for size in (
...         step_bytes(Shape(tp=8, seqs=1024), kimi),
...         sampler_bytes(Shape(tp=8, seqs=1024), kimi),
...     )
... ]
[1.7, 6.2]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import Term, figure

# The tokens whose experts are computed at once (VLLM_FUSED_MOE_CHUNK_SIZE), and those of a chunk of
# context whose keys and values are unfolded (MLACommonMetadataBuilder, workspace of 64 x 1024).
EXPERT_CHUNK = 32 * 1024
CONTEXT_CHUNK = 64 * 1024
# Bytes of an element that is handed to the experts, where it is not 16 bits.
HANDED: Mapping[str, float] = {"FP8": 1.0, "W4A8": 1.0, "W8A8": 1.0, "NVFP4": 0.5}
# Rows of the hidden size that a layer holds for each token beside its experts.
ROWS = 4


def step_bytes(shape: Shape, arch: Mapping[str, int], precision: str = "BF16") -> float:
    """Return the bytes of activations in 16 bits of the largest step.

    Working rows of each token; the copies that go to its k experts with their intermediate rows;
    where the experts are spread over data parallel ranks the tokens of all of them, gathered and
    returned; and the keys and values of a chunk of context, unfolded for the heads of this device.
    What the experts take in has the width of the formats activations, what they give has 16 bits.
    Latent experts take and give rows of their own width. With attention residuals the output of each
    block of layers is kept beside the working rows.
    """
    hidden, tokens = arch["hidden_size"], shape.batched_tokens
    gathered = tokens * shape.dp
    inner = arch["moe_intermediate_size"] / (1 if shape.expert_parallel else shape.tp)
    experts = min(gathered, max(EXPERT_CHUNK, tokens))
    heads = -(-arch["heads"] // shape.tp)
    wide = heads * (arch["qk_nope_head_dim"] + arch["v_head_dim"])
    latent = arch["kv_lora_rank"] + arch["qk_rope_head_dim"]
    expert = arch.get("latent_moe_size", hidden)
    kept = math.ceil(arch["layers"] / arch["residual_block"]) if "residual_block" in arch else 0
    rows = (ROWS + kept) * tokens * hidden + (2 * gathered * expert if shape.dp > 1 else 0)
    routed = experts * arch["experts_per_token"] * (expert + 3 * inner)
    width = (HANDED.get(precision, 2.0) + 2.0) / 2
    attention = max(_chunk(shape) * (wide + latent), tokens * _delta_row(shape, arch))
    return 2.0 * (rows + attention) + width * routed


def _delta_row(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the elements of a token in a layer of Kimi delta attention: q, k, v, gate, decay, out."""
    return 6 * arch.get("kda_heads", 0) * arch.get("kda_head_dim", 0) // shape.tp


def _chunk(shape: Shape) -> int:
    longest = shape.model_len or CONTEXT_CHUNK
    return min(max(8 * longest, 4 * shape.seqs * 64), CONTEXT_CHUNK)


def sampler_bytes(shape: Shape, arch: Mapping[str, int]) -> float:
    """Return the bytes of the sampler's peak: rows of 32-bit logits over the whole vocabulary."""
    return figure("sampler").value * shape.seqs * arch["vocabulary"] * 4


def encoder_bytes(shape: Shape, arch: Mapping[str, int]) -> float:
    """Return the bytes of the encoder's outputs that are kept during the profile run.

    The budget is at least a step's tokens, each a row of the hidden size in 16 bits
    (compute_mm_encoder_budget); none with --language-model-only.
    """
    if not shape.vision or not arch.get("vision_parameters"):
        return 0.0
    return shape.batched_tokens * arch["hidden_size"] * 2.0


def terms(shape: Shape, arch: Mapping[str, int], precision: str) -> list[Term]:
    """Return the terms of the profile run; the sampler's is what it takes beyond the step's.

    The CPU build reserves nothing for them: it takes what the worker holds after the run
    (CPUWorker.determine_available_memory).
    """
    step = figure("activations").term(
        "activations",
        step_bytes(shape, arch, precision),
        "rows of hidden size, copies for the experts, unfolded context of the largest step",
    )
    peak = figure("sampler").term(
        "sampler", shape.seqs * arch["vocabulary"] * 4, "max-num-seqs x vocabulary x 4 B x copies"
    )
    over = Term(
        "sampler",
        max(peak.bytes - step.bytes, 0.0),
        max(peak.low - step.bytes, 0.0),
        max(peak.high - step.bytes, 0.0),
        f"{peak.formula}, beyond the activations",
        peak.source,
    )
    rows = encoder_bytes(shape, arch)
    encoder = Term(
        "encoder cache",
        rows,
        0.0,
        3 * rows,
        "max-num-batched-tokens x hidden size x 2 B",
        "vllm/v1/core/encoder_cache_manager.py",
    )
    inside = shape.vendor != "cpu"
    return [replace(one, inside=inside) for one in (step, over, encoder) if one.high]
