"""Merge a notebook that somebody works in with a newer original, cell by cell.

Three notebooks are compared: the original that the copy was made from (``base``), the copy
(``mine``) and the original of today (``ours``). Cells are the same where their ids are. Nothing that
a person has written is lost: where both have changed a cell, the person's stays and ours stands
below it, in a cell that does not run.

>>> cell = {"id": "a", "cell_type": "code", "source": "1", "metadata": {}, "outputs": []}
>>> old, mine, new = ({"cells": [{**cell, "source": text}]} for text in ("1", "my 1", "2"))
>>> [one["source"].splitlines()[-1] for one in merge(old, mine, new).notebook["cells"]]
['my 1', '2']
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Notebook = dict[str, Any]
Cell = dict[str, Any]
# What the id of a cell that stands beside a person's ends with.
BESIDE = "-new"
_SAYS = (
    "The cell above is yours. The original now has this one; take what you need and delete this."
)
_LONGEST = 64 - len(BESIDE) - 3  # an id has 64 characters at most


@dataclass(frozen=True)
class Merged:
    """A merged notebook, and the ids of the person's cells that have one of ours beside them."""

    notebook: Notebook
    conflicts: tuple[str, ...]


def merge(base: Notebook, mine: Notebook, ours: Notebook) -> Merged:
    """Return a person's notebook with what has changed in the original since.

    Cells that the person has not touched become those of the original, or go where the original has
    them no more; cells that the person has added, changed or deleted stay so. Outputs stay with an
    unchanged source.
    """
    old, copy, new = (_by_id(one["cells"]) for one in (base, mine, ours))
    kept = {name: cell for name in copy if (cell := _chosen(name, old, copy, new)) is not None}
    added = {name: cell for name, cell in new.items() if name not in copy and name not in old}
    cells = kept | added
    disputed = [name for name in copy if _disputed(name, old, copy, new)]
    besides = _besides(disputed, old, copy, new)
    stale = {cell["id"] for cell in besides.values()}
    merged = [
        cell
        for name in _ordered([*old], [*copy], [*new], cells)
        if name not in stale
        for cell in (cells[name], besides.get(name))
        if cell is not None
    ]
    rest = mine if _rest(mine) != _rest(base) else ours
    return Merged({**_rest(rest), "cells": merged}, tuple(disputed))


def _rest(notebook: Notebook) -> Notebook:
    return {key: value for key, value in notebook.items() if key != "cells"}


def _by_id(cells: Sequence[Cell]) -> dict[str, Cell]:
    """Return cells by id; one without an id, or with that of another, gets one of its own."""
    found: dict[str, Cell] = {}
    for number, cell in enumerate(cells):
        name = cell.get("id") or f"cell-{number}"
        while name in found:
            name = f"{name[:_LONGEST]}-{number}"
        found[name] = cell if cell.get("id") == name else {**cell, "id": name}
    return found


def content(cell: Mapping[str, Any]) -> tuple[str, str]:
    """Return what makes a cell the same: its kind and its source."""
    source = cell["source"]
    return cell["cell_type"], source if isinstance(source, str) else "".join(source)


def _chosen(
    name: str, old: Mapping[str, Cell], copy: Mapping[str, Cell], new: Mapping[str, Cell]
) -> Cell | None:
    """Return the cell that a cell of the copy becomes; None for one that the original has dropped."""
    mine, base, ours = copy[name], old.get(name), new.get(name)
    if base is None or content(mine) != content(base):
        return mine  # added or changed by the person
    if ours is None or content(ours) != content(mine):
        return ours
    return mine | {"metadata": {**mine.get("metadata", {}), **ours.get("metadata", {})}}


def _disputed(
    name: str, old: Mapping[str, Cell], copy: Mapping[str, Cell], new: Mapping[str, Cell]
) -> bool:
    """Return whether both have changed a cell since, each in another way."""
    if name not in copy or name not in new:
        return False
    mine, ours = content(copy[name]), content(new[name])
    base = content(old[name]) if name in old else None
    return mine != ours and base not in (mine, ours)


def _besides(
    disputed: Iterable[str],
    old: Mapping[str, Cell],
    copy: Mapping[str, Cell],
    new: Mapping[str, Cell],
) -> dict[str, Cell]:
    """Return our cells that stand below the person's, by the ids of the latter.

    Each takes the place of an earlier one that the person has left as it was.
    """
    found: dict[str, Cell] = {}
    taken = {*old, *new}
    for name in disputed:
        before = _told(old[name]) if name in old else None
        at = 1
        while True:
            wanted = f"{name[:_LONGEST]}{BESIDE}{f'-{at}' if at > 1 else ''}"
            there = copy.get(wanted)
            if wanted not in taken and (there is None or content(there) == before):
                break
            at += 1
        taken.add(wanted)
        kind, source = _told(new[name])
        found[name] = {"id": wanted, "cell_type": kind, "metadata": {}, "source": source}
    return found


def _told(cell: Cell) -> tuple[str, str]:
    """Return kind and source with which a cell of ours stands beside the person's: it does not run."""
    kind, source = content(cell)
    if kind == "markdown":
        return kind, f"*{_SAYS}*\n\n{source}"
    return "raw", f"# {_SAYS}\n{source}"


def _ordered(
    old: Sequence[str], copy: Sequence[str], new: Sequence[str], kept: Mapping[str, Cell]
) -> list[str]:
    """Return the ids in the original's order, or in the person's where that was changed."""
    both = set(old) & set(copy)
    moved = [name for name in copy if name in both] != [name for name in old if name in both]
    first, second = (copy, new) if moved else (new, copy)
    order = [name for name in first if name in kept]
    for before, name in _with_predecessors(name for name in second if name in kept):
        if name not in order:
            order.insert(order.index(before) + 1 if before else 0, name)
    return order


def _with_predecessors(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    return itertools.pairwise(itertools.chain([""], names))
