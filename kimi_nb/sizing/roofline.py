"""The least that one step of an engine must move and compute on a device. Pure.

Usage::

    step = roofline.decode(shape, architecture, "W4A8", seqs=16, context=1536, tokens_each=4)
    step.memory, step.operations, step.node_link  # bytes, operations by kind, bytes

This is the roofline model (Williams, Waterman, Patterson, CACM 2009): a step takes at least its
bytes divided by the bandwidth, and at least its operations divided by the peak. Everything that may
overlap is assumed to overlap, and what only some engines do is left out, so that the times are
lower bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.plan.memory import (
    Shape,
    cache_bytes_per_token,
    cached_layers,
    parameters,
    state_bytes,
    weights_per_rank,
)

# The number formats in which (routed experts, other linear layers) are computed. Formats that
# compress only the weights are computed in 16 bits.
ARITHMETIC: Mapping[str, tuple[str, str]] = {
    "BF16": ("bf16", "bf16"),
    "FP8": ("fp8", "fp8"),
    "INT4": ("bf16", "bf16"),
    "W4A8": ("int8", "int8"),
    "W8A8": ("int8", "int8"),
    "NVFP4": ("fp4", "bf16"),
    "MXFP4": ("bf16", "bf16"),
}
FORMULAS: Mapping[str, tuple[str, str]] = {
    "bandwidth": (
        "weights that the step reads + cache of every sequence; of E experts a step of N "
        "tokens reads E (1 - (1 - k/E)^N), k of them chosen evenly",
        "roofline model, CACM 52(4), 2009; cache of latent attention: DeepSeek-V2 2.1",
    ),
    "arithmetic": (
        "2 operations for each active parameter and token, and attention over the context",
        "Kaplan et al. 2020, 2.1; attention: DeepSeek-V2 2.1",
    ),
    "links": (
        "all-reduce 2 (n-1)/n x tokens x hidden twice a layer over tp; with experts spread "
        "over dp, dispatch and combine of each token to the devices of its k experts",
        "nccl-tests PERFORMANCE.md; DeepSeek-V3 report 3.2.2",
    ),
    "transfer": (
        "prompt tokens x cache bytes of a token, from prefill to decode",
        "cache of latent attention: DeepSeek-V2 2.1",
    ),
}


@dataclass(frozen=True)
class Spread:
    """How a group is spread over nodes: devices in each node, nodes in the group."""

    devices: int
    nodes: int = 1


@dataclass(frozen=True)
class Sent:
    """Bytes that a device sends in a step: over the links inside a node, and over the network."""

    node: float = 0.0
    network: float = 0.0


@dataclass(frozen=True)
class Step:
    """The work of one step on one device.

    Attributes:
        tokens: Tokens of one data parallel rank.
        weights: Bytes of weights read from the device's memory.
        cache: Bytes of cache and states read, and written where they are states.
        linear: The number of operations of matrices by number format, without attention.
        attention: The number of 16-bit operations of attention over the context.
        reduced: What all-reduces over tp send.
        exchanged: What dispatch and combine of experts send.
    """

    tokens: int
    weights: float
    cache: float
    linear: Mapping[str, float]
    attention: float
    reduced: Sent
    exchanged: Sent

    @property
    def memory(self) -> float:
        """Bytes read from the device's memory."""
        return self.weights + self.cache

    @property
    def operations(self) -> dict[str, float]:
        """The number of operations by number format, those of attention among them."""
        return {**self.linear, "bf16": self.linear.get("bf16", 0.0) + self.attention}

    @property
    def node_link(self) -> float:
        """Bytes sent over the links inside a node."""
        return self.reduced.node + self.exchanged.node

    @property
    def network(self) -> float:
        """Bytes sent over the network."""
        return self.reduced.network + self.exchanged.network


def touched(experts: int, per_token: int, tokens: int) -> float:
    """Return the fraction of the experts that a step of ``tokens`` tokens uses, if chosen evenly.

    >>> [round(384 * touched(experts=384, per_token=8, tokens=many)) for many in (1, 64, 1024)]
    [8, 284, 384]
    """
    return 1 - (1 - per_token / experts) ** tokens


def decode(
    shape: Shape,
    arch: Mapping[str, int],
    precision: str,
    *,
    seqs: int,
    context: float,
    tokens_each: int = 1,
    group_seqs: int = 0,
    draft_parameters: int = 0,
    spread: Spread | None = None,
) -> Step:
    """Return the work of a decode step on the fullest data parallel rank.

    ``seqs`` is the number of its sequences, ``context`` the length of each in tokens.
    ``tokens_each`` is the number of tokens computed for each sequence, including the drafts to
    check. With prefill context parallelism each sequence is decoded by one of those ranks. ``group_seqs`` is the number of sequences of all ranks in the group (0: every rank is as
    full as this one).
    """
    whole = (group_seqs or seqs * shape.dp) * tokens_each
    seqs = math.ceil(seqs / shape.pcp)
    tokens = seqs * tokens_each
    kept = cache_bytes_per_token(arch, shape.cache_bytes) / shape.pp  # a stage has its layers
    cache = seqs * context * kept / shape.dcp
    cache += 2 * seqs * state_bytes(shape, arch)  # read and written
    # In latent form, a query is multiplied with kv_lora_rank + rope values a token, and the sum
    # is over kv_lora_rank values.
    attention = (
        2
        * cached_layers(arch)
        * arch["heads"]
        * (2 * arch["kv_lora_rank"] + arch["qk_rope_head_dim"])
        * context
    )
    head = arch["vocabulary"] * arch["hidden_size"]
    return Step(
        tokens,
        _weights(shape, arch, precision, whole, draft_parameters),
        cache,
        _linear(shape, arch, precision, tokens, whole, head),
        tokens * attention / shape.tp / shape.pp,
        *_links(shape, arch, precision, tokens, spread),
    )


def prefill(
    shape: Shape,
    arch: Mapping[str, int],
    precision: str,
    *,
    tokens: int,
    prompt: int,
    ranks: int = 0,
    draft_parameters: int = 0,
    spread: Spread | None = None,
) -> Step:
    """Return the work of a prefill step.

    Each of ``ranks`` data parallel ranks (0: all) processes ``tokens`` tokens of prompts that have
    ``prompt`` tokens each. Prefill context parallelism shares the tokens out, and every one of
    those ranks gets the cache of all.
    """
    whole = tokens * (ranks or shape.dp)
    gathered = tokens * cache_bytes_per_token(arch, shape.cache_bytes) / shape.pp
    tokens = math.ceil(tokens / shape.pcp)
    attention = (
        2
        * cached_layers(arch)
        * arch["heads"]
        * (arch["qk_nope_head_dim"] + arch["qk_rope_head_dim"] + arch["v_head_dim"])
        * prompt
        / 2
    )
    reduced, exchanged = _links(shape, arch, precision, tokens, spread)
    return Step(
        tokens,
        _weights(shape, arch, precision, whole, draft_parameters),
        0.0,
        _linear(shape, arch, precision, tokens, whole, 0),
        tokens * attention / shape.tp / shape.pp,
        Sent(reduced.node + gathered * (1 - 1 / shape.pcp), reduced.network),
        exchanged,
    )


def _weights(
    shape: Shape, arch: Mapping[str, int], precision: str, whole: int, draft_parameters: int
) -> float:
    """Return the bytes of weights that a step with ``whole`` tokens in the group reads."""
    parts = weights_per_rank(shape, arch, precision, draft_parameters)
    share = touched(arch["experts"], arch["experts_per_token"], whole)
    # Only the output half of the embeddings is read entirely. A text step does not use vision.
    return sum(
        size * {"routed experts": share, "embeddings": 0.5, "vision": 0.0}.get(name, 1.0)
        for name, size in parts.items()
    )


def _linear(
    shape: Shape,
    arch: Mapping[str, int],
    precision: str,
    tokens: int,
    whole: int,
    head: float,
) -> dict[str, float]:
    count = parameters(arch)
    routed, linear = ARITHMETIC[precision]
    active = count["routed experts"] * arch["experts_per_token"] / arch["experts"]
    plain = sum(
        count.get(name, 0)
        for name in (
            "attention, replicated",
            "attention",
            "dense",
            "shared experts",
            "router",
            "latent projections",
        )
    )
    out: dict[str, float] = {}
    for kind, amount in (
        (routed, whole * 2 * active / shape.expert_ranks),
        (linear, tokens * 2 * plain / shape.tp),
        ("bf16", tokens * 2 * head / shape.tp),
    ):
        out[kind] = out.get(kind, 0.0) + amount / shape.pp
    return out


def _links(
    shape: Shape, arch: Mapping[str, int], precision: str, tokens: int, spread: Spread | None
) -> tuple[Sent, Sent]:
    """Return what all-reduces send of a device, and what the exchange with experts sends."""
    spread = spread or Spread(shape.tp * shape.pcp * shape.dp)
    row = tokens * arch["hidden_size"] * 2.0 / shape.pp  # a stage has its layers
    sparse = arch["layers"] - arch["dense_layers"]
    exchanged = shape.expert_parallel and shape.dp * shape.pcp > 1
    reduces = arch["layers"] + (arch["dense_layers"] if exchanged else arch["layers"])
    across = max(shape.tp // spread.devices, 1)  # nodes spanned by one tensor parallel group
    inside = min(shape.tp, spread.devices)
    reduced = Sent(
        reduces * 2 * (inside - 1) / inside * row,
        reduces * 2 * (across - 1) / across * row / inside,
    )
    if not exchanged:
        return reduced, Sent()
    ranks, chosen = shape.expert_ranks, arch["experts_per_token"]
    copies = ranks * (1 - (1 - 1 / ranks) ** chosen)  # devices that hold any of its experts
    each = (1.0 if "8" in ARITHMETIC[precision][0] else 2.0) + 2.0  # dispatch + 16-bit combine
    width = arch.get("latent_moe_size", arch["hidden_size"])
    sent = sparse / shape.pp * tokens / shape.tp * width * copies * each
    away = (spread.nodes - 1) / spread.nodes
    return reduced, Sent(sent * max(1 - away - 1 / ranks, 0.0), sent * away)


def transfer_bytes(shape: Shape, arch: Mapping[str, int], prompt: int) -> float:
    """Return the bytes of a prompt's cache, with its states, that one decode device receives."""
    return float(prompt * cache_bytes_per_token(arch, shape.cache_bytes) + state_bytes(shape, arch))


def named(precision: Any, arch: Mapping[str, int]) -> str:
    """Return why the work cannot be computed for a model, or "" if it can."""
    if precision not in ARITHMETIC:
        return f"the arithmetic of {precision} is not known"
    missing = [name for name in ("experts", "kv_lora_rank", "layers") if name not in arch]
    return f"the model has no {', '.join(missing)}" if missing else ""
