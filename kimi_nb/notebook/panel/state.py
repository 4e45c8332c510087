"""Hold the state of a panel: the choices, their consequences, and the work in the background."""

from __future__ import annotations

from typing import Self

from kimi_nb import show
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices, mistakes
from kimi_nb.notebook.panel.mistakes import Mistake
from kimi_nb.notebook.panel.work import Work
from kimi_nb.service.session import Session


class State(show.Shown):
    """The state of a panel, without widgets.

    ``notes`` say what else the last choice changed, ``mistakes`` why it cannot be planned.
    """

    def __init__(self, run: Session, given: Choice) -> None:
        self.run, self.choices = run, given
        self.notes: tuple[str, ...] = ()
        self._look()
        self.work = Work(run)

    def choose(self, **changes: str) -> Self:
        """Change choices and plan again. Raises KimiErrors, and then changes nothing."""
        self.choices, self.notes = choices.choose(self.choices, **changes)
        self._look()
        return self

    def _look(self) -> None:
        self.look = choices.look(self.choices)
        self.mistakes: tuple[Mistake, ...] = (
            mistakes.find(self.choices) if self.look.plan is None else ()
        )

    def stop(self) -> None:
        """Stop the panel's rehearsal; a deployment stays up."""
        self.work.close()

    def table(self) -> show.Table:
        """Return the facts that the widgets show, as a table."""
        return self.look.table()

    __repr__ = show.Shown.__str__
