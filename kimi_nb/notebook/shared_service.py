"""Start one rehearsal for the notebooks of a run that ask the same service, and stop it with the run.

Example::

    with shared_service.kept(run):  # a Run with action rehearse; the start goes on beside the block
        execute(["06_verification", "07_accuracy", "08_performance"])

What cannot be planned or started is not told here: the first notebook that needs it tells it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kimi_nb.check import judge
from kimi_nb.core.errors import KimiError
from kimi_nb.notebook.subject import LARGEST
from kimi_nb.rehearse import rehearsal, sharing

if TYPE_CHECKING:
    from kimi_nb.notebook.run import Run


class _Ended(Exception):
    """The run has ended before the rehearsal was up."""


@contextlib.contextmanager
def kept(run: Run) -> Iterator[None]:
    """Offer a rehearsal of the largest layout in the run's folder until the block ends."""
    over = threading.Event()
    with sharing.offer(run.folder) as offer:
        holder = threading.Thread(target=_hold, args=(run, offer, over), name="shared rehearsal")
        holder.start()
        try:
            yield
        finally:
            over.set()
            holder.join()


def _hold(run: Run, offer: sharing.Offer, over: threading.Event) -> None:
    """Start the rehearsal, offer it until ``over`` is set, and stop it."""

    def look(_: object) -> None:
        if over.is_set():
            raise _Ended

    try:
        plan = run.choose(LARGEST).plan()
        judge.passed(judge.plan(plan))
        offer.start(plan)
        live = rehearsal.start(plan, run.folder / plan.name, progress=look)
    except (KimiError, _Ended):
        offer.withdraw()
        return
    with live:
        if live.result.ok:
            where = {"url": live.url, "logs": live.result.folder}
            run.record("share", plan=plan.name, mark=live.result.mark, **where)
            offer.give(plan, live)
        else:
            offer.withdraw()
        over.wait()
    run.record("stop", plan=plan.name, mark=live.result.mark)
