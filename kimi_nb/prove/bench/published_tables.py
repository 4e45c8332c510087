"""The performance tables that documents have published, with the setting of each.

for table in published.tables("k2-thinking", "a3"): table.rows
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.params import load as params
from kimi_nb.show import values as show


@dataclass(frozen=True, repr=False)
class Published(show.Shown):
    """One table: ``rows`` are measurements by name, ``conditions`` what they were measured on."""

    name: str
    title: str
    source: str
    conditions: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    def table(self) -> show.Table:
        """The table as published."""
        names = tuple(self.rows[0])
        return show.Table(
            f"{self.title} (published, {self.source})",
            names,
            tuple(tuple(row[name] for name in names) for row in self.rows),
        )


def tables(model: str = "", hardware: str = "") -> tuple[Published, ...]:
    """Those of a model and hardware; of all without."""
    out = []
    for name, entry in params.data("performance").items():
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
