r"""Read values of the API server's JSON, of whatever form they are. Pure.

What a cluster says is data of strangers: what has another form than expected counts as not said.

>>> table(["x"]), tables({"kind": "List"}), text("a\n\x1b[31m b"), count(-1)
({}, [], 'a \\x1b[31m b', 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kimi_nb.core.errors import short
from kimi_nb.show import visible

NAME, TEXT = 253, 600  # characters of a name and of a message


def table(value: Any) -> Mapping[str, Any]:
    """Return an object; {} for anything else."""
    return value if isinstance(value, dict) else {}


def tables(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; [] for anything else."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(value: Any, most: int = TEXT) -> str:
    """Return a text on one line, without what a terminal would obey."""
    return visible(short(" ".join(value.split()), most)) if isinstance(value, str) else ""


def count(value: Any) -> int:
    """Return a number that is not negative; 0 for anything else."""
    return max(value, 0) if isinstance(value, int) else 0
