"""Whether a measurement can be compared with a published one, and if not, what differs.

Usage::

    compare.differences(about, conditions, row)  # () or ("hardware: h200, published a3",)
    compare.with_published(result)  # a table, or the reasons
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.plan import build
from kimi_nb.prove.bench import identity, published_tables
from kimi_nb.prove.bench.results import BenchResult

# The columns that describe the load; the others are figures.
_LOAD = ("concurrency", "input_len", "output_len", "prompts", "rate")
_FIGURES = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")


@dataclass(frozen=True, repr=False)
class Comparison(show.Shown):
    """Measurements next to published ones.

    Attributes:
        pairs: (measured row, published row, source) for each pair that can be compared.
        reasons: (published table, what differs) for each table that cannot.
    """

    mark: str
    pairs: tuple[tuple[Mapping[str, Any], Mapping[str, Any], str], ...]
    reasons: tuple[tuple[str, str], ...]

    def table(self) -> show.Table:
        """Return measured next to published figures, or the reasons if there are none."""
        if not self.pairs:
            return show.Table(
                "Not comparable with what is published",
                ("published", "because"),
                self.reasons
                or (("nothing", "no document has figures of this model on this hardware"),),
            )
        rows = [
            (
                mine["concurrency"],
                name,
                f"{mine[name]:.2f}",
                theirs[name],
                f"{mine[name] / theirs[name]:.2f}",
                source,
            )
            for mine, theirs, source in self.pairs
            for name in _FIGURES
        ]
        return show.Table(
            "Measured beside published",
            ("concurrency", "figure", "measured", "published", "ratio", "source"),
            tuple(rows),
        )


def differences(
    about: Mapping[str, Any], conditions: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return what differs between a measurement and a published row, by name; () if nothing does.

    Conditions that the document does not state are not compared.
    """
    out = [f"it is a {about['mark']}"] if about.get("mark") else []
    if about.get("attached"):
        out.append("the service was there already: its flags are not known")
    wanted = {**conditions, **{name: row[name] for name in _LOAD if name in row}}
    for name, there in wanted.items():
        here = about.get(name)
        if there is not None and str(here) != str(there):
            out.append(f"{name}: {_said(here)}, published {_said(there)}")
    return tuple(out)


def with_published(result: BenchResult) -> Comparison:
    """Compare every measured load with every published row.

    The flags must be exactly those of the plan, which are those of the document's command.
    """
    cells = result.summary().to_dict("records") if result.files else []
    pairs: list[Any] = []
    reasons: dict[str, str] = {}
    for table in published_tables.tables():
        # The load with the fewest differences says best what would have to change.
        found: list[tuple[str, ...]] = []
        own = build.plan(*(table.conditions[name] for name in ("model", "hardware", "layout")))
        conditions = {**table.conditions, "flags": identity.flags_hash(own)}
        for row in table.rows:
            for cell in cells:
                differ = differences(_plain(cell), conditions, row)
                found.append(differ)
                if not differ:
                    pairs.append((cell, row, table.source))
        if found and all(found):
            nearest = sorted(found, key=len)[0]
            reasons[f"{table.title} ({table.source})"] = "; ".join(nearest)
    return Comparison(result.mark, tuple(pairs), tuple(reasons.items()))


def _plain(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Convert whole floats to integers: pandas has made floats of them, an identity has none."""
    return {
        name: int(value)
        if isinstance(value, float) and value.is_integer() and name != "rate"
        else value
        for name, value in cell.items()
    }


def _said(value: Any) -> str:
    return "not said" if value in (None, "") else str(value)
