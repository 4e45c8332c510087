"""Search sizes in the background, without widgets.

Example::

    sizes = SizeSearch(run, changed=redraw)
    sizes.start(choice, size_request.read(texts, choice, nodes))  # returns at once
    sizes.said  # "searches sizes of k2.5 on a3, 4 nodes: 2.1 s"
    sizes.found.answer.candidates
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kimi_nb.core.errors import KimiError
from kimi_nb.notebook import size_proposal
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel.size_request import SizeRequest
from kimi_nb.notebook.size_proposal import Calibrated, Proposed
from kimi_nb.service.session import Session

_TICK = 0.5  # seconds between two calls of `changed` while it searches


class SizeSearch:
    """One search at a time; a new one replaces that which runs.

    ``changed`` is called from another thread. ``running`` is whether it searches, ``found`` the
    last result, ``factors`` say what calibrated its figures, ``error`` why there is no result.
    """

    def __init__(self, run: Session, changed: Callable[[], None] = lambda: None) -> None:
        self._run, self.changed = run, changed
        self._thread: threading.Thread | None = None
        self._about, self._begun, self._number = "", 0.0, 0
        self.running = False
        self.found: Proposed | None = None
        self.factors: Calibrated | None = None
        self.error = ""

    @property
    def said(self) -> str:
        """What is searched and for how long, or why there is no result; "" if there is one."""
        if self.running:
            return f"{self._about}: {time.monotonic() - self._begun:.1f} s"
        return self.error

    def start(self, given: Choice, asked: SizeRequest) -> None:
        """Search every layout of a choice's model and hardware, and return at once."""
        nodes = f"{asked.nodes} node{'s' * (asked.nodes > 1)}"
        self._about = f"searches sizes of {given.model} on {given.hw}, {nodes}"
        self._begun, self.error, self.running = time.monotonic(), "", True
        self._number += 1
        self._thread = threading.Thread(
            target=self._search,
            args=(self._number, given, asked),
            daemon=True,
            name="sizes of the panel",
        )
        self._thread.start()
        threading.Thread(
            target=self._tick, args=(self._number,), daemon=True, name="clock of the sizes"
        ).start()

    def _tick(self, number: int) -> None:
        while self.running and self._number == number:
            self.changed()
            time.sleep(_TICK)

    def _search(self, number: int, given: Choice, asked: SizeRequest) -> None:
        found = factors = None
        error = ""
        try:
            factors = _calibrated(self._run, given)
            found = size_proposal.propose(
                self._run,
                given,
                factors,
                **asked.workload,
                ttft_ms=asked.ttft_ms,
                tpot_ms=asked.tpot_ms,
                nodes=asked.nodes,
            )
        except KimiError as caught:
            error = str(caught)
        except Exception as caught:  # an exception in a thread would be lost
            error = f"{type(caught).__name__}: {caught}"
        if self._number != number:
            return  # a newer search has replaced it
        self.found, self.factors, self.error = found, factors, error
        self.running = False
        self.changed()

    def wait(self, seconds: float) -> bool:
        """Wait until there is a result; return False if it still searches."""
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.running


def _calibrated(run: Session, given: Choice) -> Calibrated | None:
    """Return the factors that results of this run calibrate; None where nothing can be planned."""
    try:
        return size_proposal.calibrate(run, given)
    except KimiError:
        return None
