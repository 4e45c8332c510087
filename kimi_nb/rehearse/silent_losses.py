"""Find in the logs what a service loses without an error (data/rehearse/silent_losses.yaml).

The doctor leaves these lines alone: on a real site some of them are as they shall be. A bundle that
tunes kernels, or passes the network devices on, means them to be used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kimi_nb.core import data_files
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis, Log


def of(logs: Iterable[Log]) -> list[Diagnosis]:
    """Return the losses, each once for a node, in the order of the table."""
    table = data_files.facts("rehearse/silent_losses")
    found: dict[tuple[str, str], Diagnosis] = {}
    logs = list(logs)
    for name, row in table.items():
        pattern = re.compile(row["pattern"])
        for log in logs:
            for line in log.lines:
                hit = pattern.search(line)
                if hit is None or (name, log.node) in found:
                    continue
                found[name, log.node] = Diagnosis(
                    name,
                    log.node,
                    log.rank,
                    row["cause"].replace("{key}", hit["key"]),
                    f"{log.file}: {line}",
                    remedies.of(f"loss/{name}"),
                )
    return list(found.values())
