"""Measurements next to the physical limits: the share of its limit that each load reaches.

Usage::

    shares.of(plan, cells, kind="measured", drafts=3)  # a table, a row for each load
"""

from __future__ import annotations

from collections.abc import Iterable

from kimi_nb import show
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.tune import limits
from kimi_nb.prove.tune.advice_registry import Cell


def of(plan: Plan, cells: Iterable[Cell], *, kind: str, drafts: int) -> show.Table:
    """Return a table of every load next to its estimated limit.

    ``drafts`` is the number of draft tokens of a decode step. A rehearsal's figures are left out,
    because no device produced them.
    """
    headings = ("concurrency", "tokens/s", "at most", "TPOT ms", "at least", "share")
    real = kind in ("measured", "published")
    rows = []
    for cell in cells:
        given = None if cell.acceptance is None else 1 + drafts * cell.acceptance
        found = limits.of_plan(
            plan,
            input_len=cell.input_len,
            output_len=cell.output_len,
            concurrency=cell.concurrency,
            accepted=given,
        )
        most, least = found.tokens_per_s(), found.tpot_ms()
        rows.append(
            (
                cell.concurrency,
                f"{cell.throughput:.1f}" if real else "-",
                f"{most:,.0f}" if most else "not known",
                f"{cell.tpot_ms:.2f}" if real else "-",
                f"{least:.2f}" if least else "not known",
                found.share(cell.throughput) if real else "none: a stand-in is no device",
            )
        )
    title = f"{plan.name}, {kind}, under its limits ({limits.ASSUMED})"
    return show.Table(title, headings, tuple(rows))
