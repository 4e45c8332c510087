"""Show a panel as a table and, where a person can use them, as widgets.

Example::

    panel.choose(hw="h200").table()
"""

from __future__ import annotations

from typing import Any

from kimi_nb import show
from kimi_nb.notebook.panel.state import State


class Panel(State):
    """A panel that `Run.panel` returns: choices, their consequences, and the work."""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Return the table and, in an interactive session, the widgets: JupyterLab prefers them."""
        plain = {"text/plain": str(self), "text/html": self._repr_html_()}
        if not show.interactive():
            return plain
        from kimi_nb.notebook.panel import widgets  # loads ipywidgets: only if interactive

        return plain | widgets.made(self)._repr_mimebundle_() | plain
