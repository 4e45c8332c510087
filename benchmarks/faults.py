"""Every fault of a rehearsal on Kimi-K2.5, prefill-decode, 36 engines: named rightly, and soon.

    python benchmarks/faults.py

Right is the kind of the fault and the node at which it was made. Exit code 1 when one of them is
named wrongly or takes longer than the bound.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from kimi_nb.bundle import scripts
from kimi_nb.plan import build
from kimi_nb.rehearse import faults
from kimi_nb.rehearse import rehearsal as rehearse
from kimi_nb.rehearse.simulated_site import World

SECONDS = 15.0  # from the call to the diagnosis, everything stopped


def main() -> int:
    """Print a row for each fault; 1 where one misses."""
    plan = build.plan("k2.5", "a3", "pd")
    missed = 0
    for name in faults.FAULTS:
        suited = faults.suited(name, plan)
        target = faults.apply(name, suited, World.of(suited), scripts.files(suited))[2]
        node = suited.router.node if name == "empty-200" else target.engine.node
        with tempfile.TemporaryDirectory() as folder:
            begun = time.monotonic()
            found = rehearse.rehearse(plan, Path(folder), fault=name).diagnosis
            took = time.monotonic() - begun
        right = found is not None and (found.kind, found.node) == (name, node)
        missed += not right or took > SECONDS
        print(
            f"{name:26} {took:5.1f} s  {'right' if right else 'WRONG'}  "
            f"{found.short if found else 'no diagnosis'}",
            flush=True,
        )
    print(
        f"{len(faults.FAULTS) - missed} of {len(faults.FAULTS)} named rightly within "
        f"{SECONDS:g} s" + (": MISSED" if missed else "")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
