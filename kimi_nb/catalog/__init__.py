"""Describe what each engine version knows: flags, variables, JSON keys, and how they changed.

Everything here is pure; the tables are in ``data/catalog/``. Other packages call
`catalog.engine("vllm-ascend", "0.18.0")`, `arguments.parse`, and the modules `language`,
`differences`, `known_faults` and `model_versions`.
"""

from kimi_nb.catalog.engine_catalog import (
    Engine,
    active,
    additional_key,
    check_flag,
    earlier,
    engine,
    ever_read,
    flag,
    history,
    ignored,
    listed,
    moved,
    older,
    satisfies,
    serves,
    tables,
    takes_number,
    type_of,
    variable,
    versions,
)

__all__ = [
    "Engine",
    "active",
    "additional_key",
    "check_flag",
    "earlier",
    "engine",
    "ever_read",
    "flag",
    "history",
    "ignored",
    "listed",
    "moved",
    "older",
    "satisfies",
    "serves",
    "tables",
    "takes_number",
    "type_of",
    "variable",
    "versions",
]
