"""Estimate what one device holds: weights by part, buffers, and the tokens of KV cache that fit.

Example::

    fit = memory.fit(memory.Shape.of(server), architecture, "W4A8", device_gib=64)
    fit.tokens  # tokens of KV cache that fit on one data parallel rank
    print(fit)  # a bar with the share of each part

Every figure is estimated from the architecture's sizes; each function states its formula and
source. The parts of a real checkpoint differ by a few per cent (norms, padding, scales).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30
MIB = 2**20
# HCCL buffer of a communicator for which vllm-ascend does not use HCCL_BUFFSIZE.
OTHER_BUFFER_MIB = 200
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


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallelism of an engine and the sizes that decide its memory.

    ``tp``, ``dp``, ``pp`` and ``dcp`` are the sizes of tensor, data, pipeline and decode context
    parallelism. With ``expert_parallel`` each rank holds whole experts; ``spare_experts`` are
    redundant ones. ``whole_vision`` keeps the vision tower whole on every device, ``cache_bytes``
    are the bytes of a cache element, ``utilization`` is the share of memory that the engine may
    use, ``buffer_mib`` is HCCL_BUFFSIZE (0 where there is no HCCL), and the other fields limit
    requests, tokens and context.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    dcp: int = 1
    expert_parallel: bool = False
    spare_experts: int = 0
    whole_vision: bool = False
    cache_bytes: int = 2
    seqs: int = 256
    batched_tokens: int = 8192
    model_len: int | None = None
    utilization: float = 0.9
    buffer_mib: int = 0

    @property
    def expert_ranks(self) -> int:
        """The number of ranks that share the routed experts: dp x tp.

        With expert parallelism each holds whole experts, otherwise a slice of each (vLLM,
        FusedMoEParallelConfig).
        """
        return self.dp * self.tp

    @classmethod
    def of(
        cls, server: Any, ascend: bool = False, defaults: Mapping[str, float] | None = None
    ) -> Shape | None:
        """Return the shape of an `EngineView`; None where a size cannot be read.

        ``defaults`` are the engine's values for flags that are not given.
        """
        known = defaults or {}
        if None in (server.tp, server.dp, server.pp):
            return None

        def number(flag: str, default: float) -> float:
            found = server.number(flag)
            return known.get(flag, default) if found is None else found

        table = server.table("additional-config").get("eplb_config") if ascend else None
        table = table if isinstance(table, dict) else server.table("eplb-config")
        spare = table.get("num_redundant_experts", 0)
        buffer = server.env.get("HCCL_BUFFSIZE", "200")
        kind = server.text("kv-cache-dtype") or "auto"
        length = server.number("max-model-len")
        return cls(
            tp=server.tp,
            dp=server.dp,
            pp=server.pp,
            dcp=int(number("decode-context-parallel-size", 1)),
            expert_parallel=server.flags.get("enable-expert-parallel") is True,
            spare_experts=spare if isinstance(spare, int) else 0,
            whole_vision=server.flags.get("mm-encoder-tp-mode") == "data",
            cache_bytes=1 if kind.startswith("fp8") else 2,
            seqs=int(number("max-num-seqs", 256)),
            batched_tokens=int(number("max-num-batched-tokens", 8192)),
            model_len=int(length) if length is not None else None,
            utilization=float(number("gpu-memory-utilization", 0.9)),
            buffer_mib=int(buffer) if ascend and buffer.isdecimal() else 0,
        )


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
    router and (with mm-encoder-tp-mode data) the vision tower are whole on every device; routed
    experts are divided by dp x tp. A pipeline stage holds its share of the layers. A draft model
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
        "vision": count["vision"] * 2.0 / (1 if shape.whole_vision else shape.tp),
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


def activation_bytes(shape: Shape, arch: Mapping[str, int]) -> float:
    """Return the peak of a step's activations in bytes, estimated.

    Each token has the residual, the routed copies and four working rows of the hidden size in 16
    bits; each sequence has a row of 32-bit logits. The engine itself measures this when it starts.
    """
    rows = shape.batched_tokens * (arch["experts_per_token"] + 5) * arch["hidden_size"] * 2
    return rows + shape.seqs * arch["vocabulary"] * 4 / shape.tp


def buffer_bytes(shape: Shape) -> float:
    """Return the size of the HCCL buffers in bytes.

    A communicator takes twice the size of its buffer, for sending and for receiving (CANN,
    environment variable reference). vllm-ascend leaves HCCL_BUFFSIZE to the communicator that
    dispatches tokens to experts, and gives 200 MB to the others, of which those of tensor and of
    expert parallelism are counted (0.18.0 to 0.22.1, get_hccl_config_for_pg_options).

    >>> buffer_bytes(Shape(expert_parallel=True, buffer_mib=2200)) / MIB
    5200.0
    """
    dispatch = shape.buffer_mib if shape.expert_parallel else 0
    return 2 * (dispatch + 2 * OTHER_BUFFER_MIB) * MIB


@dataclass(frozen=True)
class Fit:
    """The division of one device's memory, in bytes.

    ``tokens`` is the number of cache tokens of one data parallel rank, with the cache divided by
    decode context parallelism.
    """

    device: float
    budget: float
    parts: Mapping[str, float]
    per_token: int
    tokens: int
    shape: Shape

    @property
    def weights(self) -> float:
        """Bytes of all weights."""
        return sum(
            size for name, size in self.parts.items() if name not in ("activations", "buffers")
        )

    @property
    def used(self) -> float:
        """Bytes of weights, activations and buffers."""
        return sum(self.parts.values())

    @property
    def headroom(self) -> float:
        """Bytes left for the cache; negative where the rest does not fit."""
        return self.budget - self.used

    @property
    def longest(self) -> int:
        """Tokens of context that each of max-num-seqs requests can have at the same time."""
        return self.tokens // max(self.shape.seqs, 1)

    def __str__(self) -> str:
        return bar(self)


def fit(
    shape: Shape,
    arch: Mapping[str, int],
    precision: str,
    device_gib: float,
    draft_parameters: int = 0,
) -> Fit:
    """Return the memory that an engine of this shape needs on one device.

    Raises KeyError for an unknown precision.
    """
    parts = weights_per_rank(shape, arch, precision, draft_parameters)
    parts["activations"] = activation_bytes(shape, arch)
    if shape.buffer_mib:
        parts["buffers"] = buffer_bytes(shape)
    budget = device_gib * GIB * shape.utilization
    per_token = cache_bytes_per_token(arch, shape.cache_bytes)
    left = max(budget - sum(parts.values()), 0)
    return Fit(
        device_gib * GIB, budget, parts, per_token, int(left // per_token) * shape.dcp, shape
    )


def shares_of(found: Fit) -> list[tuple[str, float]]:
    """Return every part of a device with its bytes, the cache and unused memory last."""
    return [
        *found.parts.items(),
        ("cache", max(found.headroom, 0)),
        ("not used", found.device - found.budget),
    ]


def bar(found: Fit, width: int = 60) -> str:
    """Return the device as one line of characters, with a legend in GiB."""
    shares = shares_of(found)
    signs = "AdRErvmab"  # a letter for each of ``names``
    names = [
        "attention",
        "dense and shared",
        "routed experts",
        "embeddings",
        "router",
        "vision",
        "draft",
        "activations",
        "buffers",
    ]
    letters = dict(zip(names, signs, strict=True)) | {"cache": "#", "not used": "."}
    line, whole, drawn = "", 0.0, 0
    for name, size in shares:
        whole += size
        upto = min(round(whole / found.device * width), width)
        line += letters[name] * (upto - drawn)
        drawn = max(upto, drawn)
    rows = [
        f"  {letters[name]} {name:<17}{size / GIB:7.1f} GiB" for name, size in shares if size > 0
    ]
    return "\n".join([f"[{line}] {found.device / GIB:.0f} GiB", *rows, f"  {sentence(found)}"])


def sentence(found: Fit) -> str:
    """Return how many tokens the cache has, and for how many requests they are enough."""
    if found.headroom < 0:
        return f"over the budget by {-found.headroom / GIB:.1f} GiB"
    length = found.shape.model_len
    whole = (
        f"{found.tokens // length} requests of --max-model-len {length} at once, or "
        if length
        else ""
    )
    return (
        f"{found.tokens} tokens of cache at {found.per_token} B: {whole}{found.longest} tokens "
        f"for each of {found.shape.seqs}"
    )


# HCCL_BUFFSIZE ------------------------------------------------------------------------------
#
# The operators that dispatch tokens to experts (MC2) write what they exchange into the buffer of
# their communicator, and refuse a step for which it is too small. `tokens` is the largest step of
# one rank.


def up(value: int, to: int) -> int:
    """Return ``value`` rounded up to a multiple of ``to``.

    >>> up(13, 8)
    16
    """
    return -(-value // to) * to


def buffer_need_a3(
    tokens: int, hidden: int, expert_ranks: int, local_experts: int, experts_per_token: int
) -> tuple[int, str]:
    """Return (MiB needed in HCCL_BUFFSIZE, the arithmetic) for dispatch and combine on Atlas A3.

    The need is ((tokens x dispatch x expert ranks x local experts) + (tokens x combine x k)) x 2,
    with dispatch = hidden x 2 B rounded to 32, + 44, rounded to 512, and combine = hidden x 2 B
    rounded to 512. That is how MoeDistributeDispatchV2 checks its window (CheckWinSize, equal in
    CANN ops-transformer 8.5.0, 9.0.0 and 9.1.0-beta.3). It counts 2 B for each element although
    dispatch may send 1 B, and the window is HCCL_BUFFSIZE, not twice that. vllm-ascend keeps
    shared experts out of the operator, which then counts none.

    A public log of that check names 294 MB (vllm-ascend issue 4051), and vllm-ascend's own tests
    of dp32 tp1 with 160 tokens set 1200 for DeepSeek-V3.1 and 1800 for Kimi-K2.5:

    >>> buffer_need_a3(64, 2048, 4, 128, 10)[0]
    294
    >>> buffer_need_a3(160, 7168, 32, 8, 8)[0], buffer_need_a3(160, 7168, 32, 12, 8)[0]
    (1196, 1776)
    """
    dispatch = up(up(hidden * 2, 32) + 44, 512)
    combine = up(hidden * 2, 512)
    received = tokens * dispatch * expert_ranks * local_experts
    need = (received + tokens * combine * experts_per_token) * 2 // MIB + 1
    return need, (
        f"({tokens} tokens x {dispatch} B x {expert_ranks} ranks x {local_experts} "
        f"experts + {tokens} x {combine} B x {experts_per_token}) x 2 = {need} MB"
    )


def buffer_need_hierarchy(
    tokens: int, hidden: int, experts: int, experts_per_token: int
) -> tuple[int, str]:
    """Return (MiB, the arithmetic) for the same on Atlas A3 with enable_mc2_hierarchy_comm.

    experts x tokens x (hidden x 2 B + 4 x (3 x (k + 7) rounded down to 8) + 64) + 404 MB
    (CheckActualWinSize of ops-transformer 9.0.0; no public log or test of it is known).

    >>> buffer_need_hierarchy(32, 7168, 384, 8)[0]
    575
    """
    row = hidden * 2 + 4 * (3 * (experts_per_token + 7) // 8 * 8) + 64
    need = experts * tokens * row // MIB + 404 + 1
    return need, f"{experts} experts x {tokens} tokens x {row} B + 404 MB = {need} MB"


def buffer_need_a2(
    tokens: int, hidden: int, experts: int, experts_per_token: int
) -> tuple[int, str]:
    """Return (MiB, the arithmetic) for dispatch and combine between nodes on Atlas A2.

    experts x tokens x (hidden x 2 B + 16 x k rounded to 8) + 104 MB (documentation of
    aclnnMoeDistributeDispatchV2, CANN 8.5.0, hierarchy; that of 9.0.0 asks for 96 MB less).

    >>> buffer_need_a2(16, 7168, 384, 8)[0]
    189
    """
    row = hidden * 2 + 16 * up(experts_per_token, 8)
    need = -(-experts * tokens * row // MIB) + 104
    return need, f"{experts} experts x {tokens} tokens x {row} B + 104 MB = {need} MB"
