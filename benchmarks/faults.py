"""Every fault of scripts rehearsed on Kimi-K2.5, prefill-decode, 36 engines: named rightly, and soon.

    python benchmarks/faults.py

Right is the kind of the fault and the node at which it was made. Seconds are from the call to the
diagnosis, everything stopped; the floor is a rehearsal in which nothing goes wrong.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import judging

from kimi_nb.bundle import scripts
from kimi_nb.plan import build
from kimi_nb.rehearse import faults, rehearsal, simulated_cluster
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.simulated_site import SimulatedSite

SECONDS = 15.0


def main(judge: judging.Judge) -> None:
    plan = build.plan("k2.5", "a3", "pd")
    right, seconds = 0, {}
    found, without = rehearsed(plan, "")
    if found is not None:
        sys.exit(f"a rehearsal without a fault failed: {found.short}")
    names = [name for name in faults.FAULTS if name not in simulated_cluster.FAULTS]
    for name in names:
        suited = faults.suited(name, plan)
        target = faults.apply(name, suited, SimulatedSite.of(suited), scripts.files(suited))[2]
        node = suited.router.node if name == FaultName.EMPTY_200 else target.engine.node
        found, seconds[name] = rehearsed(plan, name)
        named = found is not None and (found.kind, found.node) == (name, node)
        right += named
        print(
            f"{name:26} {seconds[name]:5.1f} s  {'right' if named else 'WRONG'}  "
            f"{found.short if found else 'no diagnosis'}",
            flush=True,
        )
    judge.figure("faults named rightly", [right], "faults", least=len(names))
    slowest = max(seconds, key=seconds.__getitem__)
    judge.figure(
        f"the slowest ({slowest})",
        [seconds[slowest]],
        "s",
        most=SECONDS,
        peer=("no fault", [without]),
    )


def rehearsed(plan, fault: str):
    """(the diagnosis, seconds)"""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        seconds = judging.wall(
            lambda: found.append(rehearsal.rehearse(plan, Path(folder), fault=fault).diagnosis)
        )
    return found[0], seconds


if __name__ == "__main__":
    sys.exit(judging.judged(main))
