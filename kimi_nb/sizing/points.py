"""Deployments as points: how many groups of which units, what they give, and how to plan them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kimi_nb.sizing import factors, steady_state, units
from kimi_nb.sizing.base_recipes import Base
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload
from kimi_nb.sizing.step_time import Time, router
from kimi_nb.sizing.units import Unit


@dataclass(frozen=True)
class Bounds:
    """What is promised, in seconds; None: no bound."""

    ttft: float | None = None
    tpot: float | None = None

    def keeps(self, ttft: float, tpot: float) -> bool:
        """Return whether these latencies keep the promise."""
        return (self.ttft is None or ttft <= self.ttft) and (self.tpot is None or tpot <= self.tpot)

    def excess(self, ttft: float, tpot: float) -> float:
        """Return by which factor the worse of them misses its bound; 1 or less if both are kept."""
        return max(
            ttft / self.ttft if self.ttft else 0.0,
            tpot / self.tpot if self.tpot else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """So many groups of one unit, each rank with at most ``seqs`` sequences."""

    unit: Unit
    count: int
    seqs: int


@dataclass(frozen=True, slots=True)
class Point:
    """A deployment and what it gives: requests a second of all, seconds.

    Attributes:
        groups: One entry for each role: mixed, or prefill and decode.
        limit: What limits it: the term of time that takes longest.
    """

    base: Base
    groups: tuple[Group, ...]
    rate: float
    ttft: float
    tpot: float
    limit: str

    @property
    def nodes(self) -> int:
        """The nodes that it takes."""
        return sum(one.count * one.unit.nodes for one in self.groups)

    @property
    def depth(self) -> tuple[Any, ...]:
        """The layout, and whether any role has pipeline stages or prefill context parallelism."""
        shapes = [one.unit.kind.shape for one in self.groups]
        return (
            self.base.layout,
            any(one.pp > 1 for one in shapes),
            any(one.pcp > 1 for one in shapes),
        )

    @property
    def shape(self) -> tuple[Any, ...]:
        """What tells a deployment from others for a reader.

        Limits of batches aside, and the nodes of prefill groups: more groups are worth the same;
        and how the devices of a rank share its work.
        """
        *reading, writing = self.groups
        kind = writing.unit.kind
        return (
            self.base.layout,
            *(math.prod(_split(one.unit)) for one in reading),
            writing.unit.nodes,
            math.prod(_split(writing.unit)),
            kind.shape.dcp,
            kind.drafts,
            writing.unit.cache,
        )


def _split(unit: Unit) -> tuple[int, int, int]:
    """Return what one rank is split over: tp, pp and pcp."""
    shape = unit.kind.shape
    return shape.tp, shape.pp, shape.pcp


# Which side of every interval is taken: the expected time, the least, the most.
SIDES: tuple[Callable[[Time], float], ...] = (
    lambda time: time.seconds,
    lambda time: time.low,
    lambda time: time.high,
)
_ACCEPTED = (0, 2, 1)  # with the least time, the most accepted tokens


class Evaluator:
    """What points give under a load and bounds, for one side of every interval."""

    def __init__(self, load: Workload, bounds: Bounds, side: int = 0) -> None:
        self.load, self.bounds = load, bounds
        self.pick, self.taken = SIDES[side], _ACCEPTED[side]
        self._prefill: dict[tuple[int, int], tuple[steady_state.Side, float]] = {}
        self._decode: dict[tuple[int, int], steady_state.Side] = {}
        self._mixed: dict[tuple[int, int], steady_state.Steady] = {}

    def mixed(self, base: Base, group: Group) -> Point:
        """Return the point of groups that prefill and decode."""
        unit, key = group.unit, (id(group.unit), group.seqs)
        if key not in self._mixed:
            self._mixed[key] = steady_state.mixed(
                self.load,
                unit.table,
                group.seqs,
                unit.step(group.seqs),
                unit.prompt,
                unit.kind.shape.dp,
                unit.accepted[self.taken],
                self.pick,
            )
        found = self._mixed[key]
        return Point(base, (group,), found.rate * group.count, found.ttft, found.tpot, found.limit)

    def apart(self, base: Base, prefill: Group, decode: Group, asked: float = 0.0) -> Point:
        """Return the point of prefill groups and decode groups; ``asked`` limits its rate.

        Its TTFT is that at the asked rate, as far as prefill carries it, also where decode does not:
        a decode side that is slower than expected makes no first token earlier.
        """
        decoding = self.decoding(decode)
        reading, busy = self.reading(prefill, decoding.extra)
        able = reading.rate * prefill.count * busy
        wanted = decoding.rate * decode.count
        rate = min(able, wanted, asked or math.inf)
        met = min(able, asked) if asked else rate
        used = min(met / (reading.rate * prefill.count), 0.999)
        read = steady_state.read_in(reading, prefill.count, used, self.load.spread)
        ttft = read + decoding.extra + self.pick(router(prefill.unit.table))
        limit = reading.limit if able < wanted else decoding.limit
        return Point(base, (prefill, decode), rate, ttft, decoding.seconds, limit)

    def again(self, point: Point, asked: float = 0.0) -> Point:
        """Return a point as this evaluator sees it; ``asked`` limits the rate of separate roles."""
        if len(point.groups) == 1:
            return self.mixed(point.base, point.groups[0])
        prefill, decode = point.groups
        return self.apart(point.base, prefill, decode, asked)

    def decoding(self, group: Group) -> steady_state.Side:
        """Return the decode side of one group."""
        unit, key = group.unit, (id(group.unit), group.seqs)
        if key not in self._decode:
            self._decode[key] = steady_state.decode_side(
                unit.kind,
                unit.table,
                self.load,
                group.seqs,
                unit.step(group.seqs),
                unit.accepted[self.taken],
                self.pick,
            )
        return self._decode[key]

    def reading(self, group: Group, extra: float) -> tuple[steady_state.Side, float]:
        """Return the prefill side, and how busy it may be so that the bound of TTFT is kept."""
        key = (id(group.unit), group.count)
        if key not in self._prefill:
            unit = group.unit
            side = steady_state.prefill_side(unit.prompt, unit.kind.shape.dp, self.pick)
            most = factors.facts()["most_busy"]
            busy = most
            if self.bounds.ttft is not None:
                left = self.bounds.ttft - extra - self.pick(router(unit.table))
                busy = steady_state.busiest(left, side, group.count, self.load.spread, most)
            # A bound that even an empty queue breaks is broken by little load, too.
            self._prefill[key] = (side, busy or most)
        return self._prefill[key]


def of(
    base: Base,
    nodes: int,
    load: Workload,
    table: Factors,
    evaluator: Evaluator,
    pool: dict[tuple[int, str], list[Unit]],
    refused: Counter[str],
) -> Iterator[Point]:
    """Yield every point of a base on at most ``nodes`` nodes; ``pool`` keeps its units."""

    def within(role: str) -> list[Unit]:
        key = (id(base), role)
        if key not in pool:
            pool[key] = list(units.of(base, role, nodes, load, table, refused))
        return [one for one in pool[key] if one.nodes <= nodes]

    if base.layout != "pd":
        for unit in within("mixed"):
            for seqs in unit.seqs:
                yield evaluator.mixed(base, Group(unit, nodes // unit.nodes, seqs))
        return
    for prefill in _readers(within("prefill")):
        for decode in within("decode"):
            if prefill.cache != decode.cache or not _hands_over(base, prefill, decode, refused):
                continue
            for seqs in decode.seqs:
                for count, others in _splits(prefill, decode, seqs, nodes, evaluator):
                    yield evaluator.apart(
                        base,
                        Group(prefill, count, prefill.seqs[-1]),
                        Group(decode, others, seqs),
                    )


def _readers(found: list[Unit]) -> list[Unit]:
    """Return the prefill units that read fastest, one for each size; the others only differ in steps."""
    best: dict[tuple[Any, ...], Unit] = {}
    for one in found:
        key = (one.nodes, _split(one), one.cache)
        if key not in best or _spent(one) < _spent(best[key]):
            best[key] = one
    # Stages and context parallelism may be refused by the rules: what has none of them is kept.
    plain = [one for one in best.values() if _split(one)[1:] == (1, 1)]
    return [one for one in best.values() if not any(_reads_better(other, one) for other in plain)]


def _spent(unit: Unit) -> tuple[float, float]:
    """Return the seconds that a unit reads a prompt alone, and each of many."""
    return unit.prompt.all_ranks.seconds * unit.prompt.chunks, unit.prompt.each


def _reads_better(one: Unit, other: Unit) -> bool:
    """Return whether nothing speaks for the other unit: nodes, latency, rate of a node, its tp."""
    gains = []
    for unit in (one, other):
        alone, each = _spent(unit)
        shape = unit.kind.shape
        gains.append((-unit.nodes, -alone, shape.dp / each / unit.nodes, shape.tp))
    pairs = list(zip(*gains, strict=True))
    return one.cache == other.cache and all(a >= b for a, b in pairs) and gains[0] != gains[1]


def _hands_over(base: Base, prefill: Unit, decode: Unit, refused: Counter[str]) -> bool:
    """Return whether the cache can be handed over: Mooncake wants no more decode ranks than prefill."""
    if base.connector.startswith("Mooncake") and prefill.kind.shape.tp < decode.kind.shape.tp:
        refused["prefill tp less than decode tp (Mooncake)"] += 1
        return False
    return True


def _splits(
    prefill: Unit, decode: Unit, seqs: int, nodes: int, evaluator: Evaluator
) -> Iterator[tuple[int, int]]:
    """Yield (prefill groups, decode groups) around the split where neither side waits."""
    most = (nodes - prefill.nodes) // decode.nodes
    if most < 1:
        return
    reading = evaluator.reading(Group(prefill, 1, 1), 0.0)[0].rate
    writing = evaluator.decoding(Group(decode, 1, seqs)).rate
    balance = nodes / (decode.nodes + prefill.nodes * writing / reading)
    middle = min(max(round(balance), 1), most)
    for others in range(max(middle - 2, 1), min(middle + 2, most) + 1):
        count = (nodes - others * decode.nodes) // prefill.nodes
        if count:
            yield count, others
