"""Hold what engines told of memory as they started against the plan's estimate."""

from __future__ import annotations

import datetime
from pathlib import Path

from kimi_nb import show
from kimi_nb.check import memory_account
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose.first_failure import Log
from kimi_nb.diagnose.log_files import Logs
from kimi_nb.plan.memory import engine_report
from kimi_nb.plan.spec import Plan

_REHEARSED = f"{MARK}, estimates only (stand-ins take no device memory)"


def table(plan: Plan, folder: Path | None, mark: str = "") -> show.Table:
    """Return the terms of each role; ``folder`` holds the logs of a start, None without one.

    What stand-ins print is never taken for an engine's word.
    """
    told: dict[str, dict[str, list[str]]] = {}
    if folder is not None and mark != MARK:
        logs = Logs(plan, folder)
        logs.read()
        for log in logs.all():
            if (role := _role(plan, log)) and (lines := _statements(log)):
                told.setdefault(role, {})[log.file] = lines
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return memory_account.beside(plan, told, today, _REHEARSED if mark == MARK else "")


def _role(plan: Plan, log: Log) -> str:
    """Return the role whose engines wrote a log, "" if there are several on its node."""
    on_node = plan.of(log.node)
    mine = [one for one in on_node if log.rank is not None and 0 <= log.rank - one.rank < one.ranks]
    roles = {one.role for one in mine or on_node}
    return roles.pop() if len(roles) == 1 else ""


def _statements(log: Log) -> list[str]:
    block = "\n".join(line for line in log.lines if MARK not in line)
    return engine_report.lines_of(block.encode("utf-8", "replace"))
