"""Serve Moonshot Kimi with vLLM: one plan from three parameter files, checked and written out.

    import kimi_nb
    run = kimi_nb.start(hw="a3", model="k2.5")
    plan = run.plan("pd")

Names are loaded when they are first used, so that ``import kimi_nb`` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes most of the time that an import of this has
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
_PUBLIC = {
    "start": "notebook.start",
    "Run": "notebook.run",
    "KimiError": "core.errors",
    "Plan": "plan.spec",
}
__all__ = ["KimiError", "Plan", "Run", "__version__", "start"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        from kimi_nb.core import extras, lean_imports

        with extras.imports(f"kimi_nb.{name}", "notebook"), lean_imports.uncollected():
            return getattr(import_module(f"kimi_nb.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'kimi_nb' has no attribute '{name}'")
