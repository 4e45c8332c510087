"""Read the logs of all ranks and nodes, and report the first failure.

>>> examine(SAMPLE).first.kind
'out-of-memory-under-load'

The report displays itself. Files of any size are read once, in blocks, and only the few lines that
indicate a failure are kept.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kimi_nb.core import paths
from kimi_nb.core.errors import ParameterError
from kimi_nb.diagnose import doctor_findings, log_reader, log_sources, memory_note, rank_places
from kimi_nb.diagnose.doctor_report import Finding, Report
from kimi_nb.plan.spec import Plan

__all__ = ["SAMPLE", "Finding", "Report", "examine"]

# The logs of a rehearsal in which a rank runs out of memory.
SAMPLE = paths.DATA / "diagnose" / "sample_logs"
_AT_ONCE = min(4, os.cpu_count() or 1)  # logs that are read at the same time
_KEPT = 4 << 20  # bytes; is never touched
_TOLD = 8  # names that are listed in a sentence


def examine(
    paths: str | Path | Sequence[str | Path],
    plan: Plan | rank_places.Placed | str | Path | None = None,
) -> Report:
    """Diagnose logs: files, folders of files, "-" for stdin; they may be compressed.

    With a ``plan`` (or the bundle, plan.json or run folder that holds one) the report names the
    node and the devices of a rank. Empty, binary and damaged files are listed in the notes. Raises
    ParameterError for a path that does not exist or cannot be read, and if no log is left to judge.
    """
    where = rank_places.of(plan)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    logs = log_sources.sources(given, where)
    # Memory of this size that was freed once makes glibc keep that of the blocks, instead of giving
    # each back to the system, which fills the next one with zeros.
    bytes(_KEPT)
    # Hyperscan releases the GIL, so that several logs can be searched in parallel.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        read = list(pool.map(log_reader.read, logs))
    judged = [one for one in read if not one.no_log]
    notes = [f"{one.source.name} {one.no_log or one.cut}" for one in read if one.no_log or one.cut]
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
    notes += memory_note.of([(one.source, one.memory) for one in judged])
    found = doctor_findings.of(
        [(one.source, one.sight) for one in judged],
        where,
        sum(one.size for one in judged),
        tuple(notes),
    )
    if found.ok and all(one.cut for one in judged):
        raise ParameterError(f"{'; '.join(notes[:_TOLD])}, and nothing wrong was found there.")
    return found
