"""What `Run.panel` returns: the choices, what they lead to, the work; widgets where they can be.

panel.choose(hw="h200").table()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_nb.notebook.panel import choices
from kimi_nb.notebook.panel.work import Work
from kimi_nb.show import values as show

if TYPE_CHECKING:
    from kimi_nb.notebook.run import Run


class Panel(show.Shown):
    """See the module. ``notes`` are what the last choice made follow."""

    def __init__(self, run: Run, given: choices.Choices) -> None:
        self.run, self.choices = run, given
        self.look = choices.look(given)
        self.notes: tuple[str, ...] = ()
        self.work = Work(run)

    def choose(self, **changes: str) -> Panel:
        """Change choices, and plan again. Raises KimiErrors; nothing is changed then."""
        self.choices, self.notes = choices.choose(self.choices, **changes)
        self.look = choices.look(self.choices)
        return self

    def stop(self) -> None:
        """End what the panel rehearses; what it has deployed stays up."""
        self.work.close()

    def table(self) -> show.Table:
        """The plain twin."""
        return self.look.table()

    __repr__ = show.Shown.__str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The table; in front of a person the widgets as well, which JupyterLab prefers."""
        plain = {"text/plain": str(self), "text/html": self._repr_html_()}
        if not show.interactive():
            return plain
        from kimi_nb.notebook.panel import widgets

        return plain | widgets.made(self)._repr_mimebundle_() | plain
