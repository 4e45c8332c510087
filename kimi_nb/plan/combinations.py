"""Tell what there is of each model on each hardware, as plain values and as tables.

`kimi_nb.params.recipes` and `kimi_nb.plan.derivation` find it out. This module imports
neither, so that a list which was made before (`known_combinations`) is shown without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_nb.show import Quote, Table

if TYPE_CHECKING:
    from kimi_nb.params.fields import Layout


@dataclass(frozen=True)
class Verdict:
    """What there is of a model on a hardware in a layout, and why: source, base, or the sum."""

    model: str
    hardware: str
    layout: Layout
    word: str
    why: str


def recipes(rows: Sequence[dict[str, Any]], of: tuple[str, str] | None = None) -> Table:
    """Return every deployment that can be planned; "untried" is published, but not said to be run.

    Those ``of`` one model and hardware have these in the title, and not in each row.
    """
    every = ("model", "hardware", "layout", "variant", "scenario", "documented", "source", "title")
    keys = every[2 if of else 0 :]
    said = [
        {
            **row,
            "scenario": Quote(row["scenario"]),  # as it has to be given
            "documented": "untried"
            if row["documented"] and not row["tried"]
            else row["documented"],
        }
        for row in rows
    ]
    title = "Deployments"
    if of:
        model, hardware = of
        title = f"Deployments of {model} on {hardware}"
    return Table(title, keys, tuple(tuple(row[key] for key in keys) for row in said))


def matrix(cells: Sequence[Verdict]) -> Table:
    """Return for each model, hardware and layout whether it is documented, derived or impossible."""
    words = {(one.model, one.hardware, one.layout): one.word for one in cells}
    pairs = dict.fromkeys((one.model, one.hardware) for one in cells)
    layouts = tuple(dict.fromkeys(one.layout for one in cells))
    return Table(
        "What there is: documented, derived (--derive) or impossible (kimi-nb list --why)",
        ("model", "hardware", *layouts),
        tuple((*pair, *(words[*pair, layout] for layout in layouts)) for pair in pairs),
    )


def reasons(cells: Sequence[Verdict]) -> Table:
    """Return the same with the source, the base or the sum of each."""
    return Table(
        "Why",
        ("model", "hardware", "layout", "is", "why"),
        tuple((one.model, one.hardware, one.layout, one.word, one.why) for one in cells),
    )
