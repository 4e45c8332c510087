"""Sum the terms of a device: what the engine takes, and the tokens of cache that are left.

Example::

    found = memory.fit(memory.Shape.of(server, engine), architecture, "W4A8", device_gib=60.96)
    found.tokens, found.low, found.high  # tokens of cache on one data parallel rank
    print(found)  # a bar with the share of each part
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.plan.memory import activations, buffers, graphs, model_weights, states
from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import GIB, MIB, Term, spread

# What is no weight, in the order in which it is drawn.
OTHERS = (
    "activations",
    "sampler",
    "encoder cache",
    "graphs",
    "buffers",
    "connector",
    "contexts",
)
_LETTERS = {
    "attention": "A",
    "dense and shared": "d",
    "routed experts": "R",
    "quantisation scales": "q",
    "embeddings": "E",
    "router": "r",
    "latent projections": "l",
    "vision": "v",
    "draft": "m",
    "activations": "a",
    "sampler": "s",
    "encoder cache": "e",
    "graphs": "g",
    "buffers": "b",
    "connector": "k",
    "contexts": "c",
    "sequence states": "S",
    "cache": "#",
    "not used": ".",
}


@dataclass(frozen=True)
class Fit:
    """The division of one device's memory, in bytes.

    Attributes:
        device: The memory that torch sees.
        terms: What takes memory, inside the engine's share and outside of it.
        per_token: Bytes of cache of a token.
        per_sequence: Bytes of cache of a sequence beside its tokens: the states of linear attention.
        tokens: The cache tokens of one data parallel rank beside one sequence's states, with the
            cache divided by decode context parallelism; ``low`` and ``high`` are the least and the
            most of them.
        mark: How the figures are known: estimated, or measured with where and when.
    """

    device: float
    budget: float
    terms: tuple[Term, ...]
    per_token: int
    tokens: int
    low: int
    high: int
    shape: Shape
    mark: str = "estimated"
    per_sequence: int = 0

    @property
    def parts(self) -> Mapping[str, float]:
        """The bytes of each term inside the engine's share, by name."""
        return {one.name: one.bytes for one in self.terms if one.inside and one.bytes}

    @property
    def weights(self) -> float:
        """Bytes of all weights."""
        return sum(size for name, size in self.parts.items() if name not in OTHERS)

    @property
    def used(self) -> float:
        """Bytes of weights, activations and buffers inside the engine's share."""
        return sum(self.parts.values())

    @property
    def outside(self) -> float:
        """Bytes that come after the cache, from what the engine's share leaves."""
        return sum(one.bytes for one in self.terms if not one.inside)

    @property
    def headroom(self) -> float:
        """Bytes left for the cache; negative where the rest does not fit."""
        return self.budget - self.used

    @property
    def longest(self) -> int:
        """Tokens of context that each of max-num-seqs requests can have at the same time."""
        seqs = max(self.shape.seqs, 1)
        return self.beside(seqs) // seqs

    def beside(self, seqs: int) -> int:
        """Return the tokens of cache beside the states of ``seqs`` sequences."""
        taken = (seqs - 1) * self.per_sequence
        return max(self.tokens - -(-taken * self.shape.dcp // self.per_token), 0)

    def requests(self, length: int) -> int:
        """Return how many requests of ``length`` tokens, with their states, the cache holds."""
        room = self.tokens * self.per_token + self.per_sequence * self.shape.dcp
        each = length * self.per_token + self.per_sequence * self.shape.dcp
        return room // each

    def __str__(self) -> str:
        return bar(self)

    def memory(self) -> dict[str, Any]:
        """Return the account as plain values: terms in GiB, tokens, the least and the most."""
        return {
            "device_gib": round(self.device / GIB, 2),
            "budget_gib": round(self.budget / GIB, 2),
            "terms": [one.as_dict() for one in self.terms],
            "cache_gib": round(self.headroom / GIB, 3),
            "tokens": self.tokens,
            "low": self.low,
            "high": self.high,
            "mark": self.mark,
            "state_gib_per_sequence": round(self.per_sequence / GIB, 4),
        }


def fit(
    shape: Shape,
    arch: Mapping[str, int],
    precision: str,
    device_gib: float | Term,
    draft_parameters: int = 0,
) -> Fit:
    """Return the memory that an engine of this shape needs on one device.

    ``device_gib`` is the memory that torch sees, in GiB or with its range. Raises KeyError for an
    unknown precision.
    """
    return account(shape, arch, expected(shape, arch, precision, draft_parameters), device_gib)


def expected(
    shape: Shape, arch: Mapping[str, int], precision: str, draft_parameters: int = 0
) -> list[Term]:
    """Return every term of an engine as the formulas give it."""
    parts = model_weights.weights_per_rank(shape, arch, precision, draft_parameters)
    return [
        *model_weights.terms(parts, precision),
        *activations.terms(shape, arch, precision),
        *graphs.terms(shape),
        *buffers.terms(shape, precision),
    ]


def account(
    shape: Shape,
    arch: Mapping[str, int],
    terms: list[Term],
    device: float | Term,
    mark: str = "estimated",
) -> Fit:
    """Sum terms: the budget is the device's memory times --gpu-memory-utilization."""
    if not isinstance(device, Term):
        size = device * GIB
        device = Term("device", size, size, size, "given", "given")
    used = sum(one.bytes for one in terms if one.inside)
    budget = device.bytes * shape.utilization
    less, more = spread([one for one in terms if one.inside])
    short = (device.bytes - device.low) * shape.utilization
    long = (device.high - device.bytes) * shape.utilization
    if shape.fixed_cache is not None:
        # The engine takes this cache, or stops because it is not there.
        over = max(used + shape.fixed_cache - device.bytes, 0)
        budget = used + (-over if over else shape.fixed_cache)
        less = more = short = long = 0.0
    per_token = model_weights.cache_bytes(shape, arch)
    state = states.sequence_bytes(shape, arch)
    left = budget - used
    tokens, low, high = (
        int(max(size - state, 0) // per_token) * shape.dcp
        for size in (left, left - math.hypot(more, short), left + math.hypot(less, long))
    )
    return Fit(device.bytes, budget, tuple(terms), per_token, tokens, low, high, shape, mark, state)


def shares_of(found: Fit) -> list[tuple[str, float]]:
    """Return every part of a device with its bytes, the cache and unused memory last."""
    cache = max(found.headroom, 0)
    states_ = min(cache, found.per_sequence * max(found.shape.seqs, 1))
    return [
        *found.parts.items(),
        ("sequence states", states_),
        ("cache", cache - states_),
        ("not used", max(found.device - found.budget, 0)),
    ]


def bar(found: Fit, width: int = 60) -> str:
    """Return the device as one line of characters, with a legend in GiB."""
    shares = shares_of(found)
    line, whole, drawn = "", 0.0, 0
    for name, size in shares:
        whole += size
        upto = min(round(whole / found.device * width), width)
        line += _LETTERS[name] * (upto - drawn)
        drawn = max(upto, drawn)
    rows = [
        f"  {_LETTERS[name]} {name:<19}{size / GIB:7.1f} GiB" for name, size in shares if size > 0
    ]
    return "\n".join([f"[{line}] {found.device / GIB:.1f} GiB", *rows, f"  {sentence(found)}"])


def sentence(found: Fit) -> str:
    """Return how many tokens the cache has, how sure that is, and for how many requests."""
    if found.headroom < 0:
        return f"over the budget by {-found.headroom / GIB:.1f} GiB"
    length = found.shape.model_len
    whole = (
        f"{found.requests(length)} requests of --max-model-len {length} at once, or "
        if length
        else ""
    )
    sure = f" ({found.low} to {found.high}, {found.mark})" if found.low != found.high else ""
    states_ = (
        f" beside {found.per_sequence / MIB:.1f} MiB of states for each sequence"
        if found.per_sequence
        else ""
    )
    return (
        f"{found.tokens} tokens of cache{sure} at {found.per_token} B{states_}: {whole}"
        f"{found.longest} tokens for each of {found.shape.seqs}"
    )
