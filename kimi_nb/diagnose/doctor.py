"""The doctor: logs of all ranks and nodes in, the first failure out.

    report = doctor.examine(["runs/x/logs"], plan="runs/x/k2.5-a3-pd")
    report.first, report.cascade, report.unknown      # report shows itself

Files of any size are read once, block by block, and nothing of them is kept but the few lines that
tell of a failure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kimi_nb.core.errors import ParameterError
from kimi_nb.diagnose import doctor_report as report
from kimi_nb.diagnose import log_reader as reader
from kimi_nb.diagnose import log_sources as files
from kimi_nb.diagnose import rank_places as placed
from kimi_nb.diagnose.doctor_report import Finding, Report
from kimi_nb.params import load as params
from kimi_nb.plan.spec import Plan

__all__ = ["SAMPLE", "Finding", "Report", "examine"]

# Logs of a rehearsal in which a rank runs out of memory.
SAMPLE = params.PACKAGE / "data" / "sample_logs"
_AT_ONCE = min(4, os.cpu_count() or 1)  # logs
_TOLD = 8  # names in a sentence


def examine(
    paths: str | Path | Sequence[str | Path], plan: Plan | placed.Placed | str | Path | None = None
) -> Report:
    """Read logs: files, folders of them, "-" for stdin, compressed ones too.

    With a ``plan`` (or the bundle, plan.json or run folder that holds one) the report names node
    and devices of a rank. What is empty or binary is told in the notes. Raises ParameterError for
    what is not there or cannot be read, and where nothing is left to judge.
    """
    where = placed.of(plan)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    logs = files.sources(given, where)
    # The search does not hold the interpreter: a second log is read meanwhile.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = list(pool.map(reader.read, logs))
    judged = [one for one in read if not one.no_log]
    notes = [f"{one.source.name} {one.no_log}" for one in read if one.no_log]
    if not judged:
        more = f"; and {len(notes) - _TOLD} more" if len(notes) > _TOLD else ""
        raise ParameterError(
            f"{'; '.join(notes[:_TOLD])}{more}. Name the logs of engines, "
            "launchers and front doors."
        )
    if where.engines and not any(one.source.node in (*where.nodes, where.door) for one in judged):
        more = ", ..." if len(where.nodes) > _TOLD else ""
        notes.append(
            f"no log is of a node of the plan ({', '.join(where.nodes[:_TOLD])}{more}), "
            "so the plan tells nothing of them. Is it theirs? A node's name stands in the "
            "path of its logs."
        )
    return report.of(
        [(one.source, one.sight) for one in judged],
        where,
        sum(one.size for one in judged),
        tuple(notes),
    )
