"""The performance tables that the documents publish, with the conditions of each.

>>> [table.name for table in tables("k2-thinking", "a3")]
['k2-thinking-sizes', 'k2-thinking-sweep']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.core import data_files


@dataclass(frozen=True, repr=False)
class Published(show.Shown):
    """One published table.

    Attributes:
        conditions: What the figures were measured on, under the names that `identity` uses.
        rows: The measurements, as values by name.
    """

    name: str
    title: str
    source: str
    conditions: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    def table(self) -> show.Table:
        """Return the table as published."""
        names = tuple(self.rows[0])
        return show.Table(
            f"{self.title} (published, {self.source})",
            names,
            tuple(tuple(row[name] for name in names) for row in self.rows),
        )


def tables(model: str = "", hardware: str = "") -> tuple[Published, ...]:
    """Return the published tables of a model and hardware, or all of them."""
    out = []
    for name, entry in data_files.facts("prove/performance").items():
        one = Published(
            name,
            entry["title"],
            entry["source"],
            entry["conditions"],
            tuple(
                {**entry["of"], **dict(zip(entry["columns"], row, strict=True))}
                for row in entry["rows"]
            ),
        )
        if model in ("", one.conditions["model"]) and hardware in ("", one.conditions["hardware"]):
            out.append(one)
    return tuple(out)
