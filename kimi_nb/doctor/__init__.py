"""The doctor: logs of all ranks and nodes in, the first failure out.

    report = doctor.examine(["runs/x/logs"], plan="runs/x/k2.5-a3-pd")
    report.first, report.cascade, report.unknown      # report shows itself

Files of any size are read once, block by block, and nothing of them is kept but the few lines that
tell of a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kimi_nb import params
from kimi_nb.doctor import files, placed, reader, report
from kimi_nb.doctor.report import Finding, Report
from kimi_nb.plan import Plan

__all__ = ["SAMPLE", "Finding", "Report", "examine"]

# Logs of a rehearsal in which a rank runs out of memory.
SAMPLE = params.PACKAGE / "data" / "sample_logs"


def examine(paths: str | Path | Sequence[str | Path],
            plan: Plan | placed.Placed | str | Path | None = None) -> Report:
    """Read logs: files, folders of them, "-" for stdin, compressed ones too.

    With a ``plan`` (or the bundle, plan.json or run folder that holds one) the report names node
    and devices of a rank. Raises ParameterError for what is not there or cannot be read.
    """
    where = placed.of(plan)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    seen, size = [], 0
    for source in files.sources(given, where):
        sight, read = reader.read(source)
        seen.append((source, sight))
        size += read
    return report.of(seen, where, size)
