"""Hold the state of a panel: the choices, their consequences, and the work in the background."""

from __future__ import annotations

from typing import Self

from kimi_nb import show
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices
from kimi_nb.notebook.panel.work import Work
from kimi_nb.service.session import Session


class State(show.Shown):
    """The state of a panel, without widgets; ``notes`` say what else the last choice changed."""

    def __init__(self, run: Session, given: Choice) -> None:
        self.run, self.choices = run, given
        self.look = choices.look(given)
        self.notes: tuple[str, ...] = ()
        self.work = Work(run)

    def choose(self, **changes: str) -> Self:
        """Change choices and plan again. Raises KimiErrors, and then changes nothing."""
        self.choices, self.notes = choices.choose(self.choices, **changes)
        self.look = choices.look(self.choices)
        return self

    def stop(self) -> None:
        """Stop the panel's rehearsal; a deployment stays up."""
        self.work.close()

    def table(self) -> show.Table:
        """Return the facts that the widgets show, as a table."""
        return self.look.table()

    __repr__ = show.Shown.__str__
