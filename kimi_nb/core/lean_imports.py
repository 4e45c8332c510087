"""Import packages without their slow optional dependencies, and without the collector's work."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

_GRAMMAR = "rfc3987_syntax"
_PLUGINS = "pydantic.plugin._loader"


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


def without_plugins() -> None:
    """Let pydantic be imported without its search for plugins, once and for all in this process.

    Even where plugins are disabled, the module that searches imports importlib.metadata, and so
    the parser of e-mail: a tenth of a short command. A pydantic without this module ignores it.
    """
    none = ModuleType(_PLUGINS)
    none.get_plugins = tuple  # type: ignore[attr-defined]
    sys.modules.setdefault(_PLUGINS, none)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from what is imported, for as long as the process lives.

    Modules and classes stay until the end, so walking them frees nothing; it would take a tenth of
    a second of a short notebook, most of it when the kernel ends.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
