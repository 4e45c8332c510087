"""The deployments of `kimi-nb list` that tests walk through."""

from __future__ import annotations

import functools

from kimi_nb.params import load, recipes

Row = tuple[str, str, str, str, str]


def own() -> list[Row]:
    """Return (model, hardware, layout, variant, scenario) of what we wrote."""
    return [_key(row) for row in recipes.listing() if not row["deployment"]]


@functools.cache  # conftest.py is read again for each mutant, in a process that has this module
def rows() -> list[Row]:
    """Return `own`, and of what is imported one for each vendor, layout and publisher.

    The others differ from it in settings alone, which tests/upstream compares one by one.
    """
    kinds = {}
    for row in recipes.listing():
        if row["deployment"]:
            vendor = load.hardware(row["hardware"]).vendor
            kind = (vendor, row["layout"], row["deployment"].partition(":")[0])
            kinds.setdefault(kind, _key(row))
    return [*own(), *kinds.values()]


def _key(row: dict) -> Row:
    return (row["model"], row["hardware"], row["layout"], row["variant"], row["scenario"])
