"""Import a package without what it would also import and nobody needs here."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_GRAMMAR = "rfc3987_syntax"


def quickly(*names: str) -> tuple[ModuleType, ...]:
    """The modules of these names.

    Where JupyterLab is installed, jsonschema also imports rfc3987_syntax, which takes a second
    or more to build a grammar for the format "iri"; no schema here has that format. jsonschema
    takes its absence as a matter of course.
    """
    if _GRAMMAR in sys.modules:
        return tuple(map(importlib.import_module, names))
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]
    try:
        return tuple(map(importlib.import_module, names))
    finally:
        del sys.modules[_GRAMMAR]
