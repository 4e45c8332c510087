"""Search the deployments that keep a promise, ranked by tokens per second and device.

>>> from kimi_nb.sizing import request_load
>>> from kimi_nb.sizing.points import Bounds
>>> found = answer("k2.5", "h200", 1, request_load.fixed(1000, 200), Bounds(2.0, 0.05))
>>> best = found.candidates[0]
>>> best.tpot.value <= 0.05 and best.tokens.low <= best.tokens.value <= best.tokens.high
True
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from kimi_nb.check import judge
from kimi_nb.core.errors import NoFigureError, ParameterError, PlanError
from kimi_nb.params import load as params
from kimi_nb.sizing import (
    as_plan,
    base_recipes,
    factors,
    percentiles,
    points,
    prefix_cache,
    shortage,
    units,
)
from kimi_nb.sizing.base_recipes import Base
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.points import Bounds, Evaluator, Point
from kimi_nb.sizing.prefix_cache import Size
from kimi_nb.sizing.request_load import BLOCK, Workload
from kimi_nb.sizing.sizing_answer import Answer, Candidate, Interval
from kimi_nb.sizing.units import Unit

_BEST, _FRONT = 10, 8  # candidates, and points of the front, that are checked and shown
_SIMULATED = 3  # candidates whose queues are simulated
_OF_SHAPE = 3  # points of the same sizes that are tried
_OF_DEPTH = 3  # points with pipeline stages or prefill context parallelism, all of them refused
_TRIED = 60  # points that the rules look at for one list
MOST_NODES = 4096  # of one search


@dataclass
class _Search:
    """One search: what it is for, and what it has seen."""

    found: list[Base]
    load: Workload
    bounds: Bounds
    table: Factors | None
    site: str
    refused: Counter[str]
    pool: dict[tuple[int, str], list[Unit]] = field(default_factory=dict)
    judged: dict[str, bool] = field(default_factory=dict)
    tried: Counter[tuple[object, ...]] = field(default_factory=Counter)  # refused of a kind
    seen: dict[Bounds, Evaluator] = field(default_factory=dict)  # what units give, of any nodes

    def points(self, nodes: int, bounds: Bounds | None = None) -> list[Point]:
        """Return every point on so many nodes."""
        wanted = bounds or self.bounds
        evaluator = self.seen.setdefault(wanted, Evaluator(self.load, wanted))
        return [
            point
            for base in self.found
            for point in points.of(
                base, nodes, self.load, self.table_of(base), evaluator, self.pool, self.refused
            )
        ]

    def table_of(self, base: Base) -> Factors:
        """Return the efficiency factors: those that were given, or the vendor's."""
        return self.table or factors.of(base.hardware.vendor, base.precision)

    def keeping(self, every: Iterable[Point]) -> list[Point]:
        """Return the points that keep the bounds and carry the rate, best first."""
        kept = [
            one
            for one in every
            if self.bounds.keeps(one.ttft, one.tpot) and one.rate >= self.load.rate
        ]
        return sorted(kept, key=lambda one: (-one.rate, one.nodes, one.ttft, one.tpot))

    def passing(self, ranked: Iterable[Point], most: int) -> Iterator[Point]:
        """Yield the first points of different sizes whose plans the rules pass."""
        asked: Counter[tuple[object, ...]] = Counter()
        done: set[tuple[object, ...]] = set()
        tried = 0
        for point in ranked:
            kind, depth = (point.shape, point.depth), point.depth
            if point.shape in done or asked[kind] == _OF_SHAPE or self.tried[depth] >= _OF_DEPTH:
                continue
            tried += 1
            if tried > _TRIED or len(done) == most:
                return
            asked[kind] += 1
            passes = self.passes(point)
            if passes or any(depth[1:]):
                # Where one passes, the rules know of nothing against its kind.
                self.tried[depth] = -_TRIED if passes else self.tried[depth] + 1
            if passes:
                done.add(point.shape)
                yield point

    def passes(self, point: Point) -> bool:
        """Return whether the rules find no error in the plan of a point; count what refuses it."""
        key = as_plan.command(point, self.site)
        if key not in self.judged:
            try:
                errors = judge.plan(as_plan.plan(point, self.site)).errors
            except PlanError as error:
                reason = str(error).partition(":")[2].strip() or str(error)
                self.refused[f"plan: {reason[:60]}"] += 1
                self.judged[key] = False
                return False
            for rule in {one.rule for one in errors}:
                self.refused[rule] += 1
            self.judged[key] = not errors
        return self.judged[key]

    def candidate(self, point: Point, devices: int) -> Candidate:
        """Return a point with the interval of its figures."""
        # The bound of TTFT decides how busy prefill may be; of the interval's ends it is not asked.
        # Latencies are those at the expected rate, throughput is what each end can do.
        seen = [Evaluator(self.load, Bounds(), side) for side in (0, 1, 2)]
        expected, quick, slow = (one.again(point, point.rate) for one in seen)
        most, least = (one.again(point).rate for one in seen[1:])
        share = self.load.output_len / devices
        time = point.groups[-1].unit.step(point.groups[-1].seqs)
        name, grown = as_plan.site_of(point, self.site)
        return Candidate(
            point,
            _interval(point.rate * share, least * share, most * share),
            _interval(expected.ttft, quick.ttft, slow.ttft),
            _interval(expected.tpot, quick.tpot, slow.tpot),
            time.mark,
            tuple(
                {
                    "name": term.name,
                    "ms": round(term.seconds * 1e3, 4),
                    "low_ms": round(term.low * 1e3, 4),
                    "high_ms": round(term.high * 1e3, 4),
                    "mark": term.mark,
                    "hidden": term.hidden,
                    "source": term.source,
                    "public": factors.UNPUBLISHED not in term.source,
                }
                for term in time.terms
            ),
            name,
            grown is not None,
            point.nodes,
        )


def _interval(value: float, low: float, high: float) -> Interval:
    return Interval(value, min(low, value), max(high, value))


def answer(
    model: str,
    hardware: str,
    nodes: int,
    load: Workload,
    bounds: Bounds,
    *,
    layout: str = "",
    derive: bool = False,
    site: str = "",
    table: Factors | None = None,
) -> Answer:
    """Return what keeps ``bounds`` for ``load`` on ``nodes`` nodes of a hardware.

    ``table`` are efficiency factors in place of the vendor's. Where nothing keeps the bounds there
    are no candidates, and `Answer.misses` has the nearest miss.

    Raises:
        ParameterError: If the load is longer than the model's context, or a size is not allowed.
        PlanError: If the weights fit on no such cluster, with the sum.
    """
    chip, named = params.hardware(hardware), params.model(model)
    if not 1 <= nodes <= MOST_NODES:
        raise ParameterError(f"--nodes: 1 to {MOST_NODES} nodes are wanted, found {nodes}.")
    if load.longest > named.context_length:
        raise ParameterError(
            f"The longest request has {load.longest} tokens in and out; the context of "
            f"{named.title} is {named.context_length}. Shorten --input or --output by "
            f"{load.longest - named.context_length}, or choose another --model."
        )
    found, refused = base_recipes.of(model, hardware, derive=derive, layout=layout)
    if not found:
        raise PlanError("\n".join([f"No recipe of {named.title} on {chip.name} to start from:",
                                   *refused]))  # fmt: skip
    load, cache = _cached(found[0], load, nodes)
    search = _Search(found, load, bounds, table, site, refused)
    after = [] if site else search.points(nodes + 1)  # first, so that the pool has its units
    refused = Counter(search.refused)
    every = search.points(nodes)
    search.refused = refused
    if not every and search.refused[units.NO_LINK]:
        raise NoFigureError(shortage.of_links(chip.name))
    if not every:
        raise PlanError(shortage.said(found, load, search.table_of(found[0]), nodes))
    devices = nodes * chip.devices.count
    kept = search.keeping(every)
    best = [search.candidate(one, devices) for one in search.passing(kept, _BEST)]
    best[:_SIMULATED] = [
        replace(one, percentiles=percentiles.of(one.point, load)) for one in best[:_SIMULATED]
    ]
    told = Answer(
        tuple(best),
        tuple(search.candidate(one, devices) for one in _front(search, every)),
        len(every),
        dict(search.refused),
        bounds,
        load,
        nodes,
        devices,
        cache=cache,
    )
    if not best:
        return replace(told, misses=_misses(search, every, nodes, devices))
    more = next(search.passing(search.keeping(after), 1), None)
    return replace(
        told,
        refused=dict(refused),
        smallest=_smallest(search, nodes),
        more=search.candidate(more, devices + chip.devices.count) if more else None,
    )


def _cached(base: Base, load: Workload, nodes: int) -> tuple[Workload, tuple[Size, ...]]:
    """Return a traced load with the hit rate that the devices' cache gives it, and that of more."""
    if load.hit or not any(one.blocks for one in load.requests):
        return load, ()
    part = next(iter(base.parts.values()))
    found = units.account(base, part, part.shape)
    groups = max(nodes // part.nodes, 1)
    tokens = found.tokens * part.shape.dp * groups
    sizes = tuple(prefix_cache.curve(load.requests, tokens, found.per_token))
    there = prefix_cache.cached(load.requests, sizes[0].tokens // BLOCK)
    requests = tuple(
        replace(one, cached=more) for one, more in zip(load.requests, there, strict=True)
    )
    return replace(load, hit=sizes[0].hit, requests=requests), sizes


def _front(search: _Search, every: list[Point]) -> list[Point]:
    """Return points of the Pareto front of tokens/s/device and tokens/s/user, within the bound of TTFT."""
    able = [one for one in every if Bounds(search.bounds.ttft).keeps(one.ttft, one.tpot)]
    front: list[Point] = []
    for point in sorted(able, key=lambda one: (one.tpot, -one.rate)):
        if not front or point.rate > front[-1].rate:
            front.append(point)
    if len(front) > _FRONT:
        front = [front[round(at * (len(front) - 1) / (_FRONT - 1))] for at in range(_FRONT)]
    return [one for one in front if search.passes(one)]


def _smallest(search: _Search, nodes: int) -> int:
    """Return the fewest nodes that keep the promise, by halving; ``nodes`` of them do."""
    counted = Counter(search.refused)
    low, high = 0, nodes
    while high - low > 1:
        middle = (low + high) // 2
        kept = search.keeping(search.points(middle))
        if next(search.passing(kept, 1), None) is not None:
            high = middle
        else:
            low = middle
    search.refused = counted
    return high


def _misses(
    search: _Search, every: list[Point], nodes: int, devices: int
) -> dict[str, Candidate | None]:
    """Return the nearest miss, and the best without each of the promises; None: nothing either."""
    bounds, rate = search.bounds, search.load.rate

    def missed(one: Point) -> float:
        return max(bounds.excess(one.ttft, one.tpot), rate / one.rate if one.rate else math.inf)

    def best(able: Iterable[Point], kept: Bounds, least: float) -> Candidate | None:
        ranked = sorted(
            (one for one in able if kept.keeps(one.ttft, one.tpot) and one.rate >= least),
            key=lambda one: -one.rate,
        )
        point = next(search.passing(ranked, 1), None)
        return search.candidate(point, devices) if point else None

    nearest = next(search.passing(sorted(every, key=missed), 1), None)
    out: dict[str, Candidate | None] = {}
    out["nearest miss"] = search.candidate(nearest, devices) if nearest else None
    if bounds.ttft is not None:
        loosened = Bounds(None, bounds.tpot)
        out["without the bound of TTFT"] = best(search.points(nodes, loosened), loosened, rate)
    if bounds.tpot is not None:
        out["without the bound of TPOT"] = best(every, Bounds(bounds.ttft, None), rate)
    if rate:
        out["without the rate"] = best(every, bounds, 0.0)
    if len(out) > 2 and not any(list(out.values())[1:]):
        out["without any of them"] = best(search.points(nodes, Bounds()), Bounds(), 0.0)
    return out
