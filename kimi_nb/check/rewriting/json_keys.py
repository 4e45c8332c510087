"""The JSON of an ``--additional-config``: dotted keys, and how it is written in a script.

>>> from kimi_nb.check.rewriting import json_keys
>>> table = {}
>>> json_keys.put(table, "ascend_compilation_config.fuse_norm_quant", True)
>>> json_keys.quoted(table)
'{"ascend_compilation_config": {"fuse_norm_quant": true}}'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def quoted(table: Mapping[str, Any]) -> str:
    """Return a table as JSON that can stand in single quotes."""
    return json.dumps(table, ensure_ascii=False).replace("'", "\\u0027")


def has(table: Any, path: str) -> bool:
    """Return whether a table has a dotted key."""
    for part in path.split("."):
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a table with one dotted key."""
    table: dict[str, Any] = {}
    put(table, path, value)
    return table


def put(table: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key."""
    *parents, last = path.split(".")
    for part in parents:
        table = table.setdefault(part, {})
    table[last] = value


def merge(table: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add the keys that a table lacks; a key that a script already sets keeps its value."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(table.setdefault(key, {}), dict):
            merge(table[key], value)
        else:
            table.setdefault(key, value)
