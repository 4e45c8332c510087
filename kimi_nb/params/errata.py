"""Where the documents are wrong or silent, and what the plan does instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kimi_nb.params import load as params


def entries() -> list[dict[str, Any]]:
    """All errata, in the order of the file (kimi_nb/data/errata.yaml)."""
    return params.data("errata")["errata"]


def touching(commands: Iterable[str]) -> tuple[Mapping[str, Any], ...]:
    """The errata of any of these commands of the documents."""
    wanted = set(commands)
    return tuple(entry for entry in entries() if wanted & set(entry["commands"]))
