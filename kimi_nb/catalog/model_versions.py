"""Look up which engine versions know a model, and which upstream tests it with.

>>> served("vllm", "k3")["floor"]
'0.27.1'
>>> tested("vllm-ascend", "k2.7-code", ("a3",))["versions"][-1]
'0.23.0'

The rows are in ``data/catalog/model_versions.yaml``, each with its source.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kimi_nb.catalog.known_faults import order
from kimi_nb.core import data_files


def _facts() -> Any:
    return data_files.facts("catalog/model_versions")


def served(package: str, model: str) -> dict[str, Any] | None:
    """Return the first version that knows a model and the least that is asked for, or None."""
    found: dict[str, Any] | None = _facts()["served"][package].get(model)
    return found


def tested(package: str, model: str, hardware: Iterable[str]) -> dict[str, Any] | None:
    """Return upstream's tests of a model on a hardware, or None if none is known."""
    names = set(hardware)
    for row in _facts()["tested"]:
        if (row["engine"], row["model"]) == (package, model) and names & set(row["hardware"]):
            return dict(row)
    return None


def serves(package: str, model: str, version: str) -> str:
    """Return whether a version serves a model, in words.

    >>> serves("vllm", "k3", "0.25.1")
    'no: from 0.27.0'
    >>> serves("vllm", "k2.5", "0.16.0"), serves("vllm", "k2.5", "0.19.1")
    ('below 0.19.1, the least that is asked for', 'yes')
    """
    row, this = served(package, model), order(version)
    if row is None or this is None:
        return "not known"
    first, floor = str(row["first"]), str(row.get("floor", row["first"]))
    if this < (order(first) or this):
        return f"no: from {first}"
    if this < (order(floor) or this):
        return f"below {floor}, the least that is asked for"
    return "yes"
