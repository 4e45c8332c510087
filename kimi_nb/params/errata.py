"""List where the upstream documents are wrong or silent, and what the plan does instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kimi_nb.core import data_files


def entries() -> list[dict[str, Any]]:
    """Return all errata in the order of the file (kimi_nb/data/params/errata.yaml)."""
    return data_files.facts("params/errata")["errata"]


def touching(commands: Iterable[str]) -> tuple[Mapping[str, Any], ...]:
    """Return the errata that concern any of these commands of the documents."""
    wanted = set(commands)
    return tuple(entry for entry in entries() if wanted & set(entry["commands"]))
