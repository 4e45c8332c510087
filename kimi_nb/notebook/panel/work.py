"""Run a rehearsal or a deployment in the background, without widgets.

Example::

    work = Work(run, changed=redraw)
    work.rehearse(plan)  # returns at once
    work.said  # "k2.5-a3-pd: REHEARSAL: 12 of 36 engines ready, 4.1 s"
    work.verify()  # in the background as well
    work.stop()
    work.deploy(plan, confirm="my-cluster")  # starting and stopping need the site's name
    work.stop(confirm="my-cluster")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kimi_nb import show
from kimi_nb.core.errors import KimiError, ServiceError
from kimi_nb.core.marks import MARK
from kimi_nb.notebook.panel.background_checks import Checks
from kimi_nb.plan.spec import Plan
from kimi_nb.service.handle import Service
from kimi_nb.service.readiness import Progress
from kimi_nb.service.session import Session

if TYPE_CHECKING:
    from kimi_nb.deploy.lifecycle import Deployed, Up
    from kimi_nb.rehearse.rehearsal import Live, Rehearsal

IDLE, STARTING, UP, FAILED, STOPPED = "idle", "starting", "up", "failed", "stopped"
_EVERY = 0.25  # least seconds between two calls of `changed`
_TICK = 0.5  # seconds between two calls where nothing is new but the time
_GRACE = 2.0  # seconds that the check gets which runs when Stop is pressed


class _Ended(KimiError):
    """Stop was pressed during the start."""


class Work:
    """One rehearsal or deployment at a time, with its files below the folder of a run.

    ``changed`` is called from another thread whenever there is something new to show, a few times a
    second at most. ``line`` is the last line of output of a deployment, ``checks`` are those of the
    service that is up.
    """

    def __init__(self, run: Session, changed: Callable[[], None] = lambda: None) -> None:
        self._run, self.changed = run, changed
        self.state, self.error, self.line = IDLE, "", ""
        self.checks = Checks(run, lambda: self.changed())
        self.plan: Plan | None = None
        self.progress: Progress | None = None
        self.result: Rehearsal | Deployed | None = None
        self.deployed = False
        self._live: Live | Up | None = None
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._told = 0.0
        self._stopping: threading.Thread | None = None
        self._begun = self._ended = 0.0

    @property
    def busy(self) -> bool:
        """Whether anything starts, runs or is being stopped."""
        return self.state in (STARTING, UP) or self.stopping

    @property
    def stopping(self) -> bool:
        """Whether something is being stopped."""
        return self._stopping is not None

    @property
    def stoppable(self) -> bool:
        """Whether there is anything to stop, including what a failed deployment left behind."""
        return not self.stopping and (self.busy or (self.deployed and self._live is not None))

    @property
    def verifiable(self) -> bool:
        """Whether a service is up that is not being verified."""
        return self.state == UP and not self.stopping and not self.checks.running

    @property
    def seconds(self) -> float:
        """Seconds since the start was asked for, up to its end."""
        return (self._ended or time.monotonic()) - self._begun if self._begun else 0.0

    @property
    def said(self) -> str:
        """The plan and its state or progress, on one line."""
        return f"{self.plan.name}: {self._said}" if self.plan is not None else "nothing runs"

    @property
    def _said(self) -> str:
        seen, found = self.progress, self.result
        if self.stopping:
            return f"{self._title}is being stopped"
        if self.state == STARTING:
            if seen is None:
                return f"{self._title}{self.line or 'writes the scripts and starts them'}"
            return (
                f"{self._title}{seen.ready} of {seen.engines} engines ready, "
                f"{seen.seconds:.1f} s, {seen.doing}"
            )
        if self.error:
            return f"{self._title}{self.state}: {self.error}"
        if found is None:
            return f"{self._title}{self.state}"
        ready = f"{found.ready} of {found.engines} engines ready"
        if found.diagnosis is not None:
            return f"{self._title}failed, {ready}: {found.diagnosis.short}"
        checked = f"; {self.checks.said}" if self.checks.said else ""
        return f"{self._title}{self.state}, {ready} after {show.seconds(found.ready_s)}{checked}"

    @property
    def _title(self) -> str:
        """What its figures are of: "" for those of engines."""
        found = self.result
        mark = found.mark if found is not None else "" if self.deployed else MARK
        return f"{MARK}: " if mark == MARK else ""

    def rehearse(self, plan: Plan, fault: str = "") -> None:
        """Start a rehearsal and return at once; a running one is stopped first."""
        from kimi_nb.rehearse import rehearsal  # start-up: only when pressed

        self._begin(
            plan,
            False,
            lambda: rehearsal.start(
                plan, self._run.folder / "panel" / plan.name, fault=fault, progress=self._look
            ),
        )

    def deploy(self, plan: Plan, confirm: str) -> None:
        """Run the plan's scripts on its site; return at once.

        Raises ParameterError where ``confirm`` is not the site's name, or its addresses are those
        of an example.
        """
        from kimi_nb.deploy import lifecycle  # start-up: only when pressed

        lifecycle.check_addresses(plan)
        lifecycle.check_confirmed(plan, confirm)
        self._begin(
            plan,
            True,
            lambda: lifecycle.up(
                plan, self._run.folder / plan.name, confirm=confirm, say=self._hear
            ),
        )

    def _begin(self, plan: Plan, deployed: bool, start: Callable[[], Live | Up]) -> None:
        if self.deployed and self.state == UP:
            raise ServiceError(f"{self._site} serves: stop it first, with its name.")
        self.close()
        self.checks.clear()
        self.state, self.error, self.line, self.plan = STARTING, "", "", plan
        self._begun, self._ended = time.monotonic(), 0.0
        self.progress, self.result, self.deployed = None, None, deployed
        self._end.clear()
        self._thread = threading.Thread(
            target=self._start, args=(start,), daemon=True, name="work of the panel"
        )
        self._thread.start()
        threading.Thread(target=self._tick, daemon=True, name="clock of the panel").start()

    def _tick(self) -> None:
        """Tell of the time while something starts: also before it has anything to say."""
        while self.state == STARTING:
            self.changed()
            time.sleep(_TICK)

    def _start(self, start: Callable[[], Live | Up]) -> None:
        try:
            live = start()
            self._live, self.result = live, live.result
            self.state = UP if live.up else FAILED
            self._run.record(
                "panel",
                did="deploy" if self.deployed else "rehearse",
                mark=live.result.mark,
                plan=live.result.plan,
                ok=live.result.ok,
                engines=live.result.engines,
                ready=live.result.ready,
                logs=live.result.folder,
            )
        except _Ended:
            self.state = STOPPED
        except KimiError as error:
            self.state, self.error = FAILED, str(error)
        except Exception as error:  # an exception in a thread would be lost
            self.state, self.error = FAILED, f"{type(error).__name__}: {error}"
        self._ended = time.monotonic()
        self.changed()

    def _look(self, seen: Progress) -> None:
        if self._end.is_set():
            raise _Ended("stopped")
        self.progress = seen
        if time.monotonic() - self._told > _EVERY:
            self._told = time.monotonic()
            self.changed()

    def _hear(self, line: str) -> None:
        """Show a line of a deployment.

        Unlike a rehearsal it is not stopped here: what was begun on a node is completed.
        """
        self.line = line
        self.changed()

    def wait(self, seconds: float) -> bool:
        """Wait until the start has succeeded or failed; return False if it still goes on."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.state != STARTING

    @property
    def _site(self) -> str:
        return self.plan.site if self.plan is not None else ""

    def stop(self, confirm: str = "", *, wait: bool = True) -> None:
        """Stop what runs, or a rehearsal that is starting; a second call changes nothing.

        Checks that are being made are ended. Without ``wait`` it returns at once. Raises
        ParameterError for a deployment where ``confirm`` is not the site's name, and ServiceError
        while one is starting.
        """
        if self.deployed and self.state == STARTING:
            raise ServiceError(
                f"{self._site} is being changed; Stop can be pressed when that is "
                "done. In a terminal Ctrl-C ends kimi-nb up, and kimi-nb down what "
                "it has started."
            )
        if self.deployed and self.plan is not None and self._live is not None:
            from kimi_nb.deploy import lifecycle  # start-up: only when pressed

            lifecycle.check_confirmed(self.plan, confirm)
        if not self.stopping and (self._thread is not None or self._live is not None):
            self._stopping = threading.Thread(
                target=self._halt, daemon=True, name="stop of the panel"
            )
            self._stopping.start()
            self.changed()
        stopping = self._stopping
        if wait and stopping is not None:
            stopping.join()

    def _halt(self) -> None:
        try:
            self._join()
            self.checks.end(_GRACE)
            if self._live is not None:
                self.result = self._live.stop()
                self._live = None
                if self.state == UP:
                    self.state = STOPPED
            self.checks.end()
        except KimiError as error:
            self.error = str(error)
        except Exception as error:  # an exception in a thread would be lost
            self.error = f"{type(error).__name__}: {error}"
        self._stopping = None
        self.changed()

    def close(self) -> None:
        """Stop a rehearsal; a deployment goes on, to be stopped with kimi-nb down."""
        if self.deployed:
            if self._thread is not None:
                self._thread.join()
            self.checks.end(_GRACE)
            self._thread = self._live = None
            self.deployed = False
            return
        self.stop()

    def _join(self) -> None:
        """Make the start end, and wait for its thread."""
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            self._thread = None

    def verify(self) -> None:
        """Check in the background whether the service keeps its contract; `checks` has the result.

        Raises ServiceError where none is up, or it is being verified already.
        """
        live = self._live
        if live is None or self.state != UP or self.stopping:
            raise ServiceError("nothing is up: press Rehearse or Deploy first.")
        if self.checks.running:
            raise ServiceError(f"{live.plan.name} is being verified; wait, or press Stop.")
        self.checks.start(Service(self._run, live.plan, live))
        self.changed()
