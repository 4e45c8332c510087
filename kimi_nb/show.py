"""Values that show themselves: a table in a notebook, the same table as text elsewhere."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.plan import Engine, Plan


@dataclass(frozen=True)
class Table:
    """Rows under headings. In a notebook it is an HTML table, printed it is text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        from tabulate import tabulate

        # Short texts stay on a line; a sentence is folded so that a row fits a screen.
        widths = [60 if any(len(str(row[i])) > 60 for row in self.rows) else None
                  for i in range(len(self.headings))]
        text = tabulate([[_plain(cell) for cell in row] for row in self.rows],
                        headers=self.headings, disable_numparse=True,
                        maxcolwidths=widths if self.rows else None)
        return f"{self.title}\n{text}" if self.title else text

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from tabulate import tabulate

        text = tabulate([[_plain(cell) for cell in row] for row in self.rows],
                        headers=self.headings, tablefmt="html", disable_numparse=True)
        style = ("<style scoped>.kimi td,.kimi th{text-align:left !important;"
                 "vertical-align:top}</style>")
        caption = f"<b>{html.escape(self.title)}</b>" if self.title else ""
        return f'{style}<div class="kimi">{caption}{text}</div>'


@dataclass(frozen=True)
class Text:
    """A script or another text of fixed width, with a title."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"--- {self.title}\n{self.text}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return (f"<b>{html.escape(self.title)}</b><pre style='overflow-x:auto'>"
                f"{html.escape(self.text)}</pre>")


def _plain(cell: Any) -> str:
    if cell is None or cell == "":
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, list | tuple | dict):
        return json.dumps(cell)
    return str(cell)


def show(value: Any) -> None:
    """Display in a notebook, print elsewhere."""
    if in_notebook():
        from IPython.display import display

        display(value)
    else:
        print(value)


def in_notebook() -> bool:
    """Whether an IPython kernel runs this."""
    import sys

    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module else None
    return bool(shell and hasattr(shell, "kernel"))


def spans(numbers: Sequence[int]) -> str:
    """Whole numbers as ranges: 0-3, 8."""
    out: list[list[int]] = []
    for number in numbers:
        if out and number == out[-1][1] + 1:
            out[-1][1] = number
        else:
            out.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def topology(plan: Plan) -> Table:
    """Every engine: where it runs, which ranks and devices it has, where it listens. Ranks of
    one node that differ only by counting up share a row."""
    rows = []
    for engines in _runs(plan.engines):
        first, last = engines[0], engines[-1]
        ranks = spans(range(first.rank, last.rank + last.ranks))
        devices = spans(sorted({device for engine in engines for device in engine.devices}))
        rows.append((first.node, first.address, first.role, first.group,
                     f"{ranks} of {first.dp_size}", first.tp_size, devices,
                     _span(first, last, lambda engine: engine.http_port),
                     _kv(first, last),
                     first.rpc_port, len(engines)))
    return Table(f"{plan.name}: {len(plan.engines)} engines on {len(plan.nodes)} nodes",
                 ("node", "address", "role", "group", "ranks", "tp", "devices", "HTTP", "kv",
                  "rpc", "engines"), tuple(rows))


def _runs(engines: Sequence[Engine]) -> list[list[Engine]]:
    out: list[list[Engine]] = []
    for engine in engines:
        if out and (out[-1][0].node, out[-1][0].role) == (engine.node, engine.role):
            out[-1].append(engine)
        else:
            out.append([engine])
    return out


def _span(first: Engine, last: Engine, get: Callable[[Engine], int | None]) -> str | None:
    a, b = get(first), get(last)
    return None if a is None else str(a) if a == b else f"{a}-{b}"


def _kv(first: Engine, last: Engine) -> str | None:
    if first.kv_port is None or last.kv_port is None:
        return None
    return f"{first.kv_port}-{last.kv_port + last.ranks * last.tp_size - 1}"


def settings(plan: Plan, role: str | None = None) -> Table:
    """Every flag and variable with its value, layer, source and meaning."""
    rows = tuple((row.role, ("--" if row.kind == "flag" else "") + row.name, row.value, row.layer,
                  row.source, row.reason) for row in plan.explain() if role in (None, row.role))
    return Table("Settings", ("role", "name", "value", "layer", "source", "meaning"), rows)


def errata(plan: Plan) -> Table:
    """What the plan does differently from its documents, and why."""
    return Table("Differences from the documents",
                 ("erratum", "the document says", "we use", "why", "evidence"),
                 tuple((entry["id"], entry["says"], entry["uses"], entry["why"],
                        entry["evidence"]) for entry in plan.errata))


def recipes(rows: Sequence[dict[str, Any]]) -> Table:
    """Every deployment that can be planned."""
    keys = ("model", "hardware", "layout", "variant", "scenario", "documented", "source", "title")
    return Table("Deployments", keys, tuple(tuple(row[key] for key in keys) for row in rows))


def matrix(rows: Sequence[dict[str, Any]], missing: Sequence[dict[str, str]],
           container_only: Sequence[tuple[str, str]]) -> Table:
    """Model by hardware by layout: documented, or that no document describes it."""
    there = {(row["model"], row["hardware"], row["layout"]): row["documented"] for row in rows}
    named = [*rows, *missing]
    models = list(dict.fromkeys(row["model"] for row in named))
    chips = list(dict.fromkeys(row["hardware"] for row in named))
    layouts = ("single", "dp", "pd")

    def cell(model: str, chip: str, layout: str) -> str:
        known = there.get((model, chip, layout))
        if known is None:
            return "container only" if (model, chip) in container_only else "does not exist"
        return "documented" if known else "undocumented"

    return Table("Which exist", ("model", "hardware", *layouts),
                 tuple((model, chip, *(cell(model, chip, layout) for layout in layouts))
                       for model in models for chip in chips))
