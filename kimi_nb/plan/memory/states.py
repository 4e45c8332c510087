"""The states of linear attention: what a sequence takes of the cache beside its tokens.

A layer of Kimi delta attention (KDA) keeps no row for each token, but a matrix for each head and the
last inputs of its convolutions, in the pages of the same pool. The numbers are those of Kimi-K3:

>>> k3 = {"layers": 93, "mla_layers": 24, "kda_layers": 69, "kda_heads": 96}
>>> k3 |= {"kda_head_dim": 128, "kda_conv_kernel": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
>>> state_bytes(Shape(), k3) / 1e6  # MB of one sequence, before tp and pages
449.37216
>>> page_tokens(Shape(tp=8, cache_bytes=1), k3), page_tokens(Shape(tp=8), k3)
(1536, 768)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kimi_nb.plan.memory.model_weights import cached_layers, row_bytes
from kimi_nb.plan.memory.shape import Shape

# Bytes of an element: the matrices are kept in 32 bits, the convolutions' inputs in 16 (vLLM 0.32.0,
# MambaStateDtypeCalculator.kda_state_dtype).
MATRIX, CONVOLUTION = 4, 2
# The tokens of a page are a multiple of this where attention is latent (Platform._align_hybrid_block_size).
ALIGNED = 128


def layer_bytes(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the bytes of one state in one layer on one device, without padding.

    Heads are divided by tp, not by decode context parallelism (MambaStateShapeCalculator and
    MambaSpec). Drafted tokens lengthen what the convolutions keep.
    """
    head = arch["kda_head_dim"]
    heads = arch["kda_heads"] // shape.tp
    rows = arch["kda_conv_kernel"] - 1 + shape.draft_tokens
    return heads * head * head * MATRIX + rows * 3 * heads * head * CONVOLUTION


def state_bytes(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the bytes of one state of a sequence on one device, without padding; 0 without KDA."""
    layers: int = arch.get("kda_layers", 0)
    return layers * layer_bytes(shape, arch) // shape.pp if layers else 0


def page_tokens(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the tokens of a page: enough for their cache in a layer to be as large as a state."""
    return ALIGNED * math.ceil(
        layer_bytes(shape, arch) / (ALIGNED * row_bytes(arch, shape.cache_bytes))
    )


def copies(shape: Shape) -> int:
    """Return how many states a sequence holds: one, one more to share prefixes, one for each draft.

    That is MambaSpec.max_memory_usage_bytes, with mamba_cache_mode none or align.
    """
    return (2 if shape.prefix_caching else 1) + shape.draft_tokens


def sequence_bytes(shape: Shape, arch: Mapping[str, int]) -> int:
    """Return the bytes of cache that a sequence takes on one device beside its tokens.

    The layers of KDA are put together in groups of as many layers as latent attention has, with
    those of a draft; each group takes a block, which has a page for every layer of a group
    (get_kv_cache_groups).
    """
    if not arch.get("kda_layers"):
        return 0
    layers = cached_layers(arch) + shape.draft_layers
    groups = math.ceil(arch["kda_layers"] / layers)
    page = page_tokens(shape, arch) * row_bytes(arch, shape.cache_bytes)
    return copies(shape) * groups * layers * page // shape.pp
