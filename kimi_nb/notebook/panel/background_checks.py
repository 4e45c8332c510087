"""Verify a service in the background, without widgets.

Example::

    checks = Checks(run, changed=redraw)
    checks.start(service)  # returns at once
    checks.said  # "verifies: 12 of 40 checks, 1 failed"
    checks.end(2.0)  # the check that runs is completed; the others are not made
    checks.contract
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from kimi_nb.core.errors import KimiError
from kimi_nb.notebook import proving
from kimi_nb.service.handle import Service
from kimi_nb.service.session import Session

if TYPE_CHECKING:
    from kimi_nb.prove.verify.contract import Contract

_TOLD = re.compile(r"(\d+) of \d+  [\w./-]+: (\w+)")  # a line of the runner about a check


class _Ended(KimiError):
    """The verification was ended."""


class Checks:
    """One verification at a time. ``changed`` is called from its thread after each check.

    Attributes:
        done: How many checks have been made.
        failed: How many of them failed.
        total: How many checks there are.
        line: What was said of the last one.
        contract: The result; None before it is there, or where the verification was ended.
        error: Why there is no result.
    """

    def __init__(self, run: Session, changed: Callable[[], None]) -> None:
        self._run, self._changed = run, changed
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self.clear()

    def clear(self) -> None:
        """Forget what was found."""
        self.done = self.failed = self.total = 0
        self.line = ""
        self.contract: Contract | None = None
        self.error = ""

    @property
    def running(self) -> bool:
        """Whether checks are being made."""
        return self._thread is not None and self._thread.is_alive() and not self._end.is_set()

    @property
    def said(self) -> str:
        """The progress or the result on one line; "" before the first verification."""
        if self.error:
            return f"verification: {self.error}"
        if self.contract is not None:
            counts = self.contract.counts.items()
            return "verified: " + ", ".join(f"{number} {name}" for name, number in counts)
        if self.running:
            failed = f", {self.failed} failed" if self.failed else ""
            return f"verifies: {self.done} of {self.total} checks{failed}"
        return ""

    def start(self, service: Service) -> None:
        """Start the checks and return at once."""
        from kimi_nb.prove.verify import runner  # start-up: only when pressed

        self.clear()
        self._end.clear()
        self.total = len(runner.Checks().names)
        self._thread = threading.Thread(
            target=self._make, args=(service,), daemon=True, name="checks of the panel"
        )
        self._thread.start()

    def _make(self, service: Service) -> None:
        try:
            found = proving.verify(self._run, service, say=self._hear)
            if not self._end.is_set():
                self.contract = found
        except _Ended:
            self.error = f"ended after {self.done} of {self.total} checks"
        except KimiError as error:
            self.error = str(error)
        except Exception as error:  # an exception in a thread would be lost
            self.error = f"{type(error).__name__}: {error}"
        self._thread = None
        self._changed()

    def _hear(self, line: str) -> None:
        if self._end.is_set():
            raise _Ended("ended")
        self.line = line
        if told := _TOLD.search(line):
            self.done, self.failed = int(told[1]), self.failed + (told[2] == "fail")
        self._changed()

    def end(self, seconds: float | None = None) -> None:
        """Make no further checks; wait so long for the one that runs."""
        thread = self._thread
        self._end.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def wait(self, seconds: float) -> bool:
        """Wait until all checks are made; return False if some are still to be made."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return self._thread is None
