"""Measurements under the line of what is possible: each load's share of its own limit.

    shares.of(plan, result)      # concurrency, tokens/s, at most, share, which resource
"""

from __future__ import annotations

from kimi_nb import show
from kimi_nb.bench.published import Published
from kimi_nb.bench.results import BenchResult
from kimi_nb.plan import Plan
from kimi_nb.tune import advice, limits


def of(plan: Plan, results: BenchResult | Published) -> show.Table:
    """Every load beside what its batch could give at the most, estimated. A rehearsal's figures
    are not compared: no device made them. Raises ParameterError where the results are of other
    settings."""
    headings = ("concurrency", "tokens/s", "at most", "TPOT ms", "at least", "share")
    cells, kind = advice.cells_of(plan, results)
    if kind not in ("measured", "published"):
        return show.Table(f"{kind}: stand-ins have no share of a device's limits", headings, ())
    drafts = advice.facts(plan).drafts
    rows = []
    for cell in cells:
        given = None if cell.acceptance is None else 1 + drafts * cell.acceptance
        found = limits.of_plan(plan, input_len=cell.input_len, output_len=cell.output_len,
                               concurrency=cell.concurrency, accepted=given)
        most, least = found.tokens_per_s(), found.tpot_ms()
        rows.append((cell.concurrency, f"{cell.throughput:.1f}",
                     f"{most:,.0f}" if most else "not known", f"{cell.tpot_ms:.2f}",
                     f"{least:.2f}" if least else "not known", found.share(cell.throughput)))
    return show.Table(f"{plan.name}, {kind}, under its limits (estimated)", headings, tuple(rows))
