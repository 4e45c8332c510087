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

from kimi_nb import params
from kimi_nb.doctor import files, placed, reader, report
from kimi_nb.doctor.report import Finding, Report
from kimi_nb.plan import Plan

__all__ = ["SAMPLE", "Finding", "Report", "examine"]

# Logs of a rehearsal in which a rank runs out of memory.
SAMPLE = params.PACKAGE / "data" / "sample_logs"
_AT_ONCE = min(4, os.cpu_count() or 1)  # logs


def examine(paths: str | Path | Sequence[str | Path],
            plan: Plan | placed.Placed | str | Path | None = None) -> Report:
    """Read logs: files, folders of them, "-" for stdin, compressed ones too.

    With a ``plan`` (or the bundle, plan.json or run folder that holds one) the report names node
    and devices of a rank. Raises ParameterError for what is not there or cannot be read.
    """
    where = placed.of(plan)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    logs = files.sources(given, where)
    # The search does not hold the interpreter: a second log is read meanwhile.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = list(pool.map(reader.read, logs))
    return report.of([(log, sight) for log, (sight, _) in zip(logs, read, strict=True)], where,
                     sum(size for _, size in read))
