"""The time of one step of an engine, as a sum of named terms.

>>> from kimi_nb.params import load
>>> from kimi_nb.plan.memory import Shape
>>> chip, arch = load.hardware("h200"), load.model("k2.5").architecture
>>> kind = Kind(Shape(tp=8), arch, "INT4", chip)
>>> found = decode(kind, factors.of("nvidia"), seqs=16, context=8192)
>>> found.largest.name, found.low < found.seconds < found.high
('weights read', True)

Each term is the work of `roofline` over a peak of the device's data sheet, times an efficiency
factor (`factors`). Matrices take the longer of reading their weights and of arithmetic, attention
the longer of reading the cache and of arithmetic: the shorter one is hidden, and not counted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kimi_nb.core.errors import NoFigureError, NoLinkFigureError
from kimi_nb.params import schema
from kimi_nb.plan.memory import Shape, weights_per_rank
from kimi_nb.sizing import factors, roofline
from kimi_nb.sizing.factors import Factor, Factors
from kimi_nb.sizing.roofline import Sent, Spread, Step

# Drafts that propose one token after the other; the others propose all of them at once.
_SERIAL = ("eagle", "eagle3", "mtp", "deepseek_mtp")


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a time, in seconds, with the least and the most that it may come to.

    Attributes:
        mark: The mark of its efficiency factor: estimated, published, calibrated or measured.
        source: Where peak and factor are from.
        hidden: Whether a longer term hides it, so that it is not counted.
    """

    name: str
    seconds: float
    low: float
    high: float
    mark: str
    source: str
    hidden: bool = False

    def times(self, count: float) -> Term:
        """Return the term ``count`` times over."""
        return replace(
            self,
            seconds=self.seconds * count,
            low=self.low * count,
            high=self.high * count,
        )


@dataclass(frozen=True)
class Time:
    """A time as the sum of its terms that are not hidden, in seconds."""

    terms: tuple[Term, ...]

    @functools.cached_property
    def seconds(self) -> float:
        """The expected time."""
        return sum(one.seconds for one in self.terms if not one.hidden)

    @functools.cached_property
    def low(self) -> float:
        """The least time: every factor errs to the same side."""
        return sum(one.low for one in self.terms if not one.hidden)

    @functools.cached_property
    def high(self) -> float:
        """The most time."""
        return sum(one.high for one in self.terms if not one.hidden)

    @property
    def largest(self) -> Term:
        """The term that takes longest."""
        return max(self.terms, key=lambda one: one.seconds)

    @property
    def mark(self) -> str:
        """The weakest mark of the terms that count."""
        return min((one.mark for one in self.terms if not one.hidden), key=factors.MARKS.index)


@dataclass(frozen=True)
class Kind:
    """A kind of engine: its shape, what it serves, on which devices.

    Attributes:
        drafts: Tokens that a draft proposes in a step, 0 without one.
        method: The method of the draft.
        spread: How a group is spread over nodes.
    """

    shape: Shape
    arch: Mapping[str, int]
    precision: str
    hardware: schema.Hardware
    draft_parameters: int = 0
    drafts: int = 0
    method: str = ""
    spread: Spread = field(default_factory=lambda: Spread(8))


def decode(kind: Kind, table: Factors, *, seqs: int, context: float) -> Time:
    """Return the time of a decode step with ``seqs`` sequences of ``context`` tokens on each rank.

    The stages of a pipeline have a batch each, which all take their turn in a step.
    """
    step = roofline.decode(
        kind.shape,
        kind.arch,
        kind.precision,
        seqs=math.ceil(seqs / kind.shape.pp),
        context=context,
        tokens_each=1 + kind.drafts,
        draft_parameters=kind.draft_parameters,
        spread=kind.spread,
    )
    terms = _terms(kind, table, step, graphs=kind.shape.graphs)
    terms.append(_fixed("sequences", step.tokens / (1 + kind.drafts), table["sequence_s"]))
    if kind.drafts:
        terms.append(_drafts(kind, table))
    return _in_turn(kind, table, terms)


def prefill(kind: Kind, table: Factors, *, tokens: int, prompt: int, ranks: int) -> Time:
    """Return the time of a step in which each of ``ranks`` ranks reads ``tokens`` tokens of prompts.

    Each stage of a pipeline reads so many.
    """
    step = roofline.prefill(
        kind.shape,
        kind.arch,
        kind.precision,
        tokens=tokens,
        prompt=prompt,
        ranks=ranks,
        draft_parameters=kind.draft_parameters,
        spread=kind.spread,
    )
    return _in_turn(kind, table, _terms(kind, table, step, graphs=False))


def _in_turn(kind: Kind, table: Factors, terms: list[Term]) -> Time:
    """Return the time in which every stage of a pipeline has done its work on every batch."""
    stages = kind.shape.pp
    if stages == 1:
        return Time(tuple(terms))
    wait = table["network_collective_s" if kind.spread.nodes > 1 else "collective_s"]
    return Time((*(one.times(stages) for one in terms), _fixed("pipeline", stages, wait)))


def beside(step: Time) -> float:
    """Return the seconds that a decode step adds to a prefill step in which it takes part.

    Weights are read, kernels launched and the scheduler asked once for both.
    """
    own = ("cache read", "attention", "sequences")
    return sum(one.seconds for one in step.terms if one.name in own and not one.hidden)


def transfer(kind: Kind, table: Factors, prompt: int) -> Time:
    """Return the time that the cache of a prompt takes from prefill to one decode device."""
    size = roofline.transfer_bytes(kind.shape, kind.arch, prompt)
    return Time((_share("cache transfer", size, kind, "network_gb_s", table["transfer"]),))


def router(table: Factors) -> Time:
    """Return the time of a request outside of engines: router and HTTP, and the tokenizer."""
    return Time(
        (_fixed("router", 1.0, table["request_s"]), _fixed("tokenizer", 1.0, table["tokenize_s"]))
    )


def accepted(kind: Kind, table: Factors) -> tuple[float, float, float]:
    """Return the tokens that a step gives each sequence: expected, least, most."""
    rate = table["accepted"]
    expected, least, most = (
        sum(each**count for count in range(kind.drafts + 1))
        for each in (rate.value, rate.low, rate.high)
    )
    return expected, least, most


def _terms(kind: Kind, table: Factors, step: Step, *, graphs: bool) -> list[Term]:
    layers = kind.arch["layers"] / kind.shape.pp
    reads = _share("weights read", step.weights, kind, "memory_gb_s", table["weights"])
    out = [*_longer(reads, _arithmetic(kind, table, step))]
    works = _share("attention", step.attention / 1e3, kind, "bf16_tflops", table["attention"])
    if step.cache:
        cache = _share("cache read", step.cache, kind, "memory_gb_s", table["cache"])
        out += _longer(cache, works)
    else:
        out.append(works)
    for name, sent in (("all-reduce", step.reduced), ("all-to-all", step.exchanged)):
        out += _collective(name, sent, kind, table, 2 * layers)
    if max(kind.shape.dcp, kind.shape.pcp) > 1:
        out.append(_fixed("context exchange", 2 * layers, table["collective_s"]))
    launch = table["layer_s" if graphs else "eager_layer_s"]
    out.append(_fixed("launch, graphs" if graphs else "launch, eager", layers, launch))
    out.append(_fixed("scheduler", 1.0, table["step_s"]))
    return out


def _longer(one: Term, other: Term) -> tuple[Term, Term]:
    if one.seconds >= other.seconds:
        return one, replace(other, hidden=True)
    return replace(one, hidden=True), other


def _peak(kind: Kind, name: str) -> schema.Peak:
    found: schema.Peak | None = getattr(kind.hardware.peaks, name)
    if found is None:
        raise (NoLinkFigureError if "link" in name or "network" in name else NoFigureError)(
            f"{kind.hardware.name}: nobody has published its {name}, so that no time can be "
            "estimated. Put the figure, with its source, below `peaks:` in a hardware file of your "
            "own and name the file with --hw, or choose another --hw."
        )
    return found


def _share(name: str, amount: float, kind: Kind, peak: str, factor: Factor) -> Term:
    """Return a term of ``amount`` bytes, or thousands of operations, at a share of a peak."""
    given = _peak(kind, peak)
    ideal = amount / (given.value * 1e9)
    source = f"{given.source}; share: {factor.source}"
    return Term(
        name,
        ideal / factor.value,
        ideal / factor.high,
        ideal / factor.low,
        factor.mark,
        source,
    )


def _fixed(name: str, count: float, factor: Factor) -> Term:
    return Term(
        name,
        count * factor.value,
        count * factor.low,
        count * factor.high,
        factor.mark,
        factor.source,
    )


def _sum(name: str, parts: list[Term]) -> Term:
    return Term(
        name,
        sum(one.seconds for one in parts),
        sum(one.low for one in parts),
        sum(one.high for one in parts),
        parts[0].mark,
        "; ".join(dict.fromkeys(one.source for one in parts)),
    )


def _arithmetic(kind: Kind, table: Factors, step: Step) -> Term:
    """Return the time of the matrices; formats follow each other on the same units."""
    parts = []
    for form, count in step.linear.items():
        peak = f"{form}_tops" if form == "int8" else f"{form}_tflops"
        parts.append(_share("arithmetic", count / 1e3, kind, peak, table["linear"]))
    return _sum("arithmetic", parts)


def _collective(name: str, sent: Sent, kind: Kind, table: Factors, count: float) -> list[Term]:
    parts = []
    if sent.node:
        parts.append(_share(name, sent.node, kind, "node_link_gb_s", table["links"]))
    if sent.network:
        parts.append(_share(name, sent.network, kind, "network_gb_s", table["links"]))
    if not parts:
        return []
    wait = table["network_collective_s" if sent.network else "collective_s"]
    return [_sum(name, [*parts, _fixed(name, count, wait)])]


def _drafts(kind: Kind, table: Factors) -> Term:
    """Return the time of proposing drafts: each pass reads the draft and launches its layer."""
    passes = kind.drafts if kind.method in _SERIAL else 1
    size = weights_per_rank(kind.shape, kind.arch, kind.precision, kind.draft_parameters)
    read = size.get("draft", 0.0) * (passes - 1)  # the first one is among the weights read
    return _sum(
        "drafts",
        [
            _share("drafts", read, kind, "memory_gb_s", table["weights"]),
            _fixed("drafts", passes, table["eager_layer_s"]),
        ],
    )
