"""Import packages without their slow optional dependencies."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_GRAMMAR = "rfc3987_syntax"


def quickly(*names: str) -> tuple[ModuleType, ...]:
    """Return the modules of these names, imported without rfc3987_syntax.

    Where JupyterLab is installed, jsonschema also imports rfc3987_syntax, which takes a second or
    more to build a grammar for the format "iri". No schema here uses that format, and jsonschema
    works without the package.
    """
    if _GRAMMAR in sys.modules:
        return tuple(map(importlib.import_module, names))
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]
    try:
        return tuple(map(importlib.import_module, names))
    finally:
        del sys.modules[_GRAMMAR]
