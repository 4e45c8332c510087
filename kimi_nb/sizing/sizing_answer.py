"""What a search found: candidates, the front, what was refused, what limits, what a node would buy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb import show
from kimi_nb.sizing import as_plan
from kimi_nb.sizing.percentiles import Percentiles
from kimi_nb.sizing.points import Bounds, Point
from kimi_nb.sizing.prefix_cache import Size
from kimi_nb.sizing.request_load import Workload

_ROWS = 10  # of a table on one screen


def _short(value: float) -> str:
    """Return a figure with three digits, or whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class Interval:
    """An expected value, the least and the most."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """Return it in another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        return f"{_short(self.value)} ({_short(self.low)} to {_short(self.high)})"


@dataclass(frozen=True)
class Candidate:
    """A point whose plan the rules pass, with the interval of each figure.

    Attributes:
        tokens: Output tokens a second and device, over all devices that were asked for.
        ttft: Seconds to the first token, on average.
        tpot: Seconds for each further token, on average.
        mark: How the figures are known: the weakest mark of their factors.
        terms: The terms of a decode step, in seconds: name, expected, least, most, mark, source.
        site: The site to name with --site; "" where none is needed.
        needs_site: Whether no example site has the nodes, so that the user has to name one.
        nodes: The nodes that it takes.
        percentiles: Of its latencies, where its queues were simulated.
    """

    point: Point
    tokens: Interval
    ttft: Interval
    tpot: Interval
    mark: str
    terms: tuple[Mapping[str, Any], ...]
    site: str
    needs_site: bool
    nodes: int
    percentiles: Percentiles | None = None

    @property
    def known(self) -> str:
        """The weakest mark, and of how much of a decode step the others are.

        Such as "estimated; calibrated 71 %".
        """
        shares: dict[str, float] = {}
        counted = [one for one in self.terms if not one["hidden"]]
        whole = sum(one["ms"] for one in counted) or 1.0
        for one in counted:
            shares[one["mark"]] = shares.get(one["mark"], 0.0) + one["ms"] / whole
        better = [f"{mark} {part:.0%}" for mark, part in shares.items() if mark != self.mark]
        return "; ".join([self.mark, *better])

    @property
    def unpublished(self) -> list[str]:
        """The terms of a decode step whose factor no public figure tells."""
        return [one["name"] for one in self.terms if not one["hidden"] and not one["public"]]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: what to give to ``plan``, and every figure with its interval."""
        base = self.point.base
        return {
            "layout": base.layout,
            "model": base.model,
            "hardware": base.chip,
            "set": as_plan.pairs(self.point),
            "site": self.site,
            "needs_site": self.needs_site,
            "derive": base.derive,
            "command": as_plan.command(self.point, self.site),
            "described": as_plan.described(self.point),
            "nodes": self.nodes,
            "tokens_per_s_device": round(self.tokens.value, 2),
            "ttft_ms": round(self.ttft.value * 1e3, 2),
            "tpot_ms": round(self.tpot.value * 1e3, 3),
            "limited_by": self.point.limit,
            "mark": self.mark,
            "low": round(self.tokens.low, 2),
            "high": round(self.tokens.high, 2),
            "ttft_ms_low": round(self.ttft.low * 1e3, 2),
            "ttft_ms_high": round(self.ttft.high * 1e3, 2),
            "tpot_ms_low": round(self.tpot.low * 1e3, 3),
            "tpot_ms_high": round(self.tpot.high * 1e3, 3),
            "requests_per_s": round(self.point.rate, 4),
            "percentiles_ms": self._percentiles(),
            "terms": [dict(one) for one in self.terms],
        }

    def _percentiles(self) -> dict[str, float]:
        if self.percentiles is None:
            return {}
        found = {name: round(one * 1e3, 2) for name, one in self.percentiles.values.items()}
        return {"requests_per_s": round(self.percentiles.rate, 4), **found}


@dataclass(frozen=True, repr=False)
class Answer(show.Shown):
    """What a search found.

    Attributes:
        candidates: Those that keep the bounds, best first, each checked.
        front: Candidates of which none gives more to a device and to a user at once.
        considered: How many points were looked at.
        refused: How many were refused, by rule.
        nodes: The nodes that were asked for; ``devices`` those on them.
        smallest: The fewest nodes that keep the promise; None if none of them does.
        more: The best of one node more; None if there is none.
        cache: The hit rate of a trace by the size of the cache, that of the devices first.
        misses: Where nothing keeps the bounds: the nearest miss, and the best without each bound.
    """

    candidates: tuple[Candidate, ...]
    front: tuple[Candidate, ...]
    considered: int
    refused: Mapping[str, int]
    bounds: Bounds
    load: Workload
    nodes: int
    devices: int
    smallest: int | None = None
    more: Candidate | None = None
    misses: Mapping[str, Candidate | None] = field(default_factory=dict)
    cache: tuple[Size, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "candidates": [one.as_dict() for one in self.candidates],
            "considered": self.considered,
            "refused": dict(self.refused),
            "says": f"best of {self.considered} considered under this model",
            "front": [one.as_dict() for one in self.front],
            "nodes": self.nodes,
            "devices": self.devices,
            "workload": self.load.as_dict(),
            "bounds": {
                "ttft_ms": self.bounds.ttft and self.bounds.ttft * 1e3,
                "tpot_ms": self.bounds.tpot and self.bounds.tpot * 1e3,
            },
            "smallest_nodes": self.smallest,
            "one_more_node": self.more.as_dict() if self.more else None,
            "prefix_cache": [
                {"tokens": one.tokens, "gb": round(one.bytes / 1e9, 1), "hit": round(one.hit, 4)}
                for one in self.cache
            ],
            "misses": {name: one and one.as_dict() for name, one in self.misses.items()},
        }

    def table(self) -> show.Table:
        """Return the candidates as a table of at most ten rows."""
        rows = self.candidates[:_ROWS]
        return show.Table(
            f"best of {self.considered} considered under this model: {self.asked}"
            if rows
            else f"none of {self.considered} considered keeps the promise: {self.asked}",
            (
                "layout", "groups", "tokens/s/device", "mean TTFT ms", "mean TPOT ms", "limited by",
                "mark",
            ),
            tuple(
                (
                    one.point.base.layout + (" DERIVED" if one.point.base.derive else ""),
                    as_plan.described(one.point),
                    str(one.tokens),
                    str(one.ttft.times(1e3)),
                    str(one.tpot.times(1e3)),
                    one.point.limit,
                    one.known,
                )
                for one in rows
            ),
        )  # fmt: skip

    @property
    def asked(self) -> str:
        """The request in few words."""
        load = self.load
        parts = [
            f"{load.input_len} tokens in, {load.output_len} out, {self.devices} devices "
            f"on {self.nodes} node{'s' * (self.nodes > 1)}"
        ]
        if load.hit:
            parts.append(f"{load.hit:.0%} of prompts from the cache")
        if load.rate:
            parts.append(f"{load.rate:g} requests/s")
        if self.bounds.ttft is not None:
            parts.append(f"TTFT {self.bounds.ttft * 1e3:g} ms")
        if self.bounds.tpot is not None:
            parts.append(f"TPOT {self.bounds.tpot * 1e3:g} ms")
        return ", ".join(parts)

    def sentences(self) -> list[str]:
        """Return what to say below the table, a sentence each."""
        out = []
        if self.candidates:
            best = self.candidates[0]
            out.append(f"limited by: {best.point.limit} ({best.known}).")
            if unknown := best.unpublished:
                names = "; ".join(unknown)
                out.append(f"no public figure, so that the interval is wide: {names}.")
            out += _simulated(best, traced=self.load.arrivals)
            if self.smallest is not None:
                nodes = f"{self.smallest} node{'s' * (self.smallest > 1)}"
                out.append(f"the fewest nodes that keep the promise: {nodes}.")
            out += self._next_node(best)
            out.append(f"plan it: {as_plan.command(best.point, best.site)}")
            if best.needs_site:
                out.append(
                    f"it takes {best.nodes} nodes, more than an example site has: write one with "
                    "kimi-nb site new, and give it with --site."
                )
        out += [_missed(name, one) for name, one in self.misses.items()]
        if self.cache:
            own, *more = self.cache
            larger = ", ".join(f"{one.bytes / 1e9:,.0f} GB {one.hit:.0%}" for one in more)
            out.append(
                f"prefix cache (simulated): {own.hit:.0%} of prompts from the devices' "
                f"{own.bytes / 1e9:,.0f} GB" + (f"; offloaded, {larger}." if larger else ".")
            )
        refused = ", ".join(f"{rule} {count}" for rule, count in self.refused.items())
        out.append(f"refused: {refused or 'none'}.")
        out.append(
            "A figure is its expected value and the interval that its factors leave open; "
            "measure the best before you rely on it (notebooks 08 and 09)."
        )
        return out

    def _next_node(self, best: Candidate) -> list[str]:
        if self.more is None:
            return []
        now, then = best.point.rate, self.more.point.rate
        return [
            f"one more node: {then * self.load.output_len:,.0f} in place of "
            f"{now * self.load.output_len:,.0f} output tokens/s "
            f"({then / now - 1:+.0%}; {as_plan.described(self.more.point)})."
        ]


def _simulated(best: Candidate, *, traced: bool) -> list[str]:
    """Return the percentiles, and why they differ from the means of the table."""
    found = best.percentiles
    if found is None:
        return []
    shown = {
        name: "/".join(_short(found.values[f"{name}_p{share}"] * 1e3) for share in (50, 90, 99))
        for name in ("ttft", "tpot")
    }
    arrivals = "the trace's arrivals" if traced else "random arrivals"
    return [
        f"the table has means at the most that each one carries; the first: {best.point.rate:.3g} "
        "requests/s.",
        f"simulated with {arrivals}, {found.rate:.3g} requests/s (estimated): TTFT p50/p90/p99 "
        f"{shown['ttft']} ms, TPOT {shown['tpot']} ms.",
    ]


def _missed(name: str, one: Candidate | None) -> str:
    if one is None:
        return f"{name}: nothing either."
    return (
        f"{name}: {one.tokens} tokens/s/device, TTFT {one.ttft.times(1e3)} ms, TPOT "
        f"{one.tpot.times(1e3)} ms, {one.point.rate:.3g} requests/s ({one.mark}), by "
        f"{one.point.base.layout}: {as_plan.described(one.point)}."
    )
