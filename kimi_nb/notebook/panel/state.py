"""Hold the state of a panel: the choices, their consequences, and the work in the background."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Self

from kimi_nb import show
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import choices, mistakes
from kimi_nb.notebook.panel.mistakes import Mistake
from kimi_nb.service.session import Session

if TYPE_CHECKING:
    from kimi_nb.notebook.panel.size_search import SizeSearch
    from kimi_nb.notebook.panel.work import Work
    from kimi_nb.notebook.size_proposal import Proposed
    from kimi_nb.sizing.sizing_answer import Candidate


class State(show.Shown):
    """The state of a panel, without widgets.

    ``notes`` say what else the last choice changed, ``mistakes`` why it cannot be planned.
    """

    def __init__(self, run: Session, given: Choice) -> None:
        self.run, self.choices = run, given
        self.notes: tuple[str, ...] = ()
        self._look()

    @functools.cached_property
    def work(self) -> Work:
        """What runs in the background."""
        from kimi_nb.notebook.panel.work import Work  # loads the doctor: only if interactive

        return Work(self.run)

    @functools.cached_property
    def sizes(self) -> SizeSearch:
        """The search for sizes."""
        from kimi_nb.notebook.panel.size_search import SizeSearch  # start-up: only if interactive

        return SizeSearch(self.run)

    def choose(self, **changes: str) -> Self:
        """Change choices and plan again. Raises KimiErrors, and then changes nothing."""
        self.choices, self.notes = choices.choose(self.choices, **changes)
        self._look()
        return self

    def adopt(self, found: Proposed, candidate: Candidate) -> Self:
        """Choose the settings of a candidate; own choices that it does not have are left out."""
        from kimi_nb.notebook.size_proposal import OWN, proposed  # start-up: only after a search
        from kimi_nb.sizing import as_plan

        bare = dataclasses.replace(found.choice, **dict.fromkeys(OWN, ""))
        given = proposed(bare, candidate)
        left = [
            name
            for name in OWN
            if name != "overrides" and getattr(self.choices, name) != getattr(given, name)
        ]
        self.choices = given
        self.notes = (f"the sizes are those of {as_plan.described(candidate.point)}",)
        if left:
            self.notes += (f"left out, as the search knew nothing of it: {', '.join(left)}",)
        self._look()
        return self

    def _look(self) -> None:
        self.look = choices.look(self.choices)
        self.mistakes: tuple[Mistake, ...] = (
            mistakes.find(self.choices) if self.look.plan is None else ()
        )

    def stop(self) -> None:
        """Stop the panel's rehearsal; a deployment stays up."""
        if "work" in vars(self):  # a table has started nothing
            self.work.close()

    def table(self) -> show.Table:
        """Return the facts that the widgets show, as a table."""
        return self.look.table()

    __repr__ = show.Shown.__str__
