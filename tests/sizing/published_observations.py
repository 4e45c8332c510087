"""Published figures as observations: which are fitted to, which are held out, which are left aside.

``python tests/sizing/published_observations.py`` prints each with what the model says of it.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from kimi_nb.check import public_engines
from kimi_nb.check.rules import capacity
from kimi_nb.plan.memory import Shape
from kimi_nb.prove.bench import published_figures
from kimi_nb.prove.bench.published_figures import Figure
from kimi_nb.sizing import factor_fit, factors, request_load, roofline, steady_state, step_time
from kimi_nb.sizing.factor_fit import Observation
from kimi_nb.sizing.roofline import Spread
from kimi_nb.sizing.step_time import Kind


@dataclass(frozen=True)
class Row:
    """A published figure, and the engine that it is of; ``apart`` where prefill has its own nodes."""

    figure: Figure
    kind: Kind
    load: request_load.Workload
    groups: int
    apart: bool

    @property
    def held_out(self) -> bool:
        """Whether no factor is fitted to it: by the hash of its series, so a series is never split."""
        return hashlib.sha256(self.figure.id.encode()).digest()[0] % 2 == 0

    @property
    def ours(self) -> bool:
        """Whether it is of an engine that we plan, not of another one."""
        return "name" not in self.figure.entry["engine"]

    @property
    def observed(self) -> Observation | None:
        """It as an observation of one engine; None if it is of another kind."""
        many = self.figure.load.get("concurrency")
        if self.apart or not many or self.figure.name not in factor_fit.FIGURES:
            return None
        return Observation(
            self.kind, self.load, many, self.figure.name, self.figure.value, self.groups
        )


def rows() -> Iterator[Row]:
    """Yield the figures whose lengths and concurrency (or rate of a user) are said."""
    for figure in published_figures.figures():
        entry = figure.entry
        if not entry or entry.get("no_limit") or not figure.load.get("input_len"):
            continue
        if not (figure.load.get("concurrency") or figure.load.get("per_user")):
            continue
        deployment = public_engines.of(entry)
        server = deployment.servers[0]
        shape = capacity.shape_of(deployment, server)
        why = roofline.named(deployment.weights.precision, deployment.model.architecture)
        if why or shape is None or shape.pp > 1 or figure.name == "load_s":
            continue
        chip = deployment.hardware
        if chip.peaks.memory_gb_s is None:
            continue
        kind = Kind(
            shape,
            deployment.model.architecture,
            deployment.weights.precision,
            chip,
            capacity.draft_parameters(deployment, server),
            server.draft,
            str(server.table("speculative-config").get("method", "")),
            Spread(chip.devices.count, math.ceil(shape.devices / chip.devices.count)),
        )
        mean = entry["mean"]
        note = figure.note
        hit = 0.9375 if "93.75 %" in note else 0.9 if "90 %" in note else 0.0
        hit = 0.99 if "99 %" in note else hit
        load = request_load.fixed(int(mean["input_len"]), int(mean["output_len"]), hit=hit)
        groups = entry.get("groups", 1)
        yield Row(figure, kind, load, groups, shape.devices * groups < figure.devices)


def said(row: Row, table: factors.Factors) -> float | None:
    """Return what the model says of a row; None where it says nothing."""
    if row.observed:
        return factor_fit.predicted(row.observed, table)
    figure, load = row.figure, row.load
    if row.apart and figure.name == "output_throughput":
        return _apart(row, table)
    if figure.name == "total_per_device" and not row.apart:
        wanted = 1 / figure.load["per_user"]
        able = [
            found.rate * row.groups
            for seqs in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)
            if (found := factor_fit.steady(row.kind, load, table, seqs)).tpot <= wanted
        ]
        if not able:
            return None
        return max(able) * (load.input_len + load.output_len) / figure.devices
    return None


def _apart(row: Row, table: factors.Factors) -> float:
    """Return the output tokens a second of a deployment whose other devices prefill with tp 8."""
    load, many = row.load, row.figure.load["concurrency"]
    others = max((row.figure.devices - row.kind.shape.devices * row.groups) // 8, 1)
    shape = Shape(tp=8, dp=others, expert_parallel=True, batched_tokens=16384)
    reading = steady_state.prompt(
        Kind(shape, row.kind.arch, row.kind.precision, row.kind.hardware, spread=row.kind.spread),
        table,
        load,
    )
    side = steady_state.prefill_side(reading, others, lambda time: time.seconds)
    ranks = row.kind.shape.dp * row.groups
    step = step_time.decode(
        row.kind, table, seqs=math.ceil(many / ranks), context=load.input_len + load.output_len / 2
    )
    each = step.seconds / step_time.accepted(row.kind, table)[0] * load.output_len
    closed = many / (each + side.seconds)
    return min(closed, 0.95 * side.rate, row.figure.load.get("rate") or math.inf) * load.output_len


def summary(found: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Return of (said, published): the median of the ratio's size, the 90th percentile, Spearman."""
    sizes = sorted(math.exp(abs(math.log(said / value))) for said, value in found)
    ranks = [_ranks([pair[side] for pair in found]) for side in (0, 1)]
    return statistics.median(sizes), sizes[len(sizes) * 9 // 10], statistics.correlation(*ranks)


def _ranks(values: list[float]) -> list[float]:
    order = sorted(values)
    return [order.index(one) + (order.count(one) - 1) / 2 for one in values]


def compared(held_out: bool) -> dict[str, list[tuple[float, float, Row]]]:
    """Return (said, published, row) of one part, those of throughput and those of time apart."""
    out: dict[str, list[tuple[float, float, Row]]] = {"throughput": [], "time": [], "another": []}
    for row in rows():
        if row.held_out is not held_out:
            continue
        one = said(row, factors.of(row.kind.hardware.vendor, row.kind.precision))
        if one is None:
            continue
        kind = "time" if row.figure.unit == "ms" else "throughput"
        out[kind if row.ours else "another"].append((one, row.figure.value, row))
    return out


def main() -> None:
    """Print every row, and the summary of both parts by unit."""
    for held_out in (False, True):
        for name, found in compared(held_out).items():
            for one, value, row in found:
                print(
                    f"{one / value:6.2f} {one:10.1f} {value:10.1f} {row.figure.name} "
                    f"{row.figure.id} {row.figure.load.get('concurrency')} {row.figure.hardware}"
                )
            if len(found) > 1:
                part = "held out" if held_out else "fitted"
                print(part, name, len(found), summary([pair[:2] for pair in found]))


if __name__ == "__main__":
    main()
