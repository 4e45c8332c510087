"""All benchmarks, or those that are named; fails at the end where one has not kept its bounds.

    python benchmarks                  # make bench
    python benchmarks startup check

Exit code 1 where one failed. What could not be measured on this machine is told, and fails nothing.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from judging import INTERRUPTED, KEPT, NOT_KEPT, NOT_MEASURED

HERE = Path(__file__).resolve().parent
NAMES = sorted({path.stem for path in HERE.glob("*.py")} - {"__main__", "judging"})


def main(names: list[str]) -> int:
    """Run one after the other, whatever becomes of each."""
    if unknown := sorted(set(names) - set(NAMES)):
        print(f"{', '.join(unknown)}: no such benchmark; there are: {', '.join(NAMES)}")
        return 2
    ended: dict[str, int] = {}
    for name in names or NAMES:
        print(f"== {name}", flush=True)
        ended[name] = run(HERE / f"{name}.py")
        print(flush=True)
        if ended[name] == INTERRUPTED or ended[name] < 0:
            return INTERRUPTED
    failed = [name for name, code in ended.items() if code not in (KEPT, NOT_MEASURED)]
    partly = [name for name, code in ended.items() if code == NOT_MEASURED]
    kept = [name for name, code in ended.items() if code == KEPT]
    for title, found in (("kept", kept), ("not all measured", partly), ("not kept", failed)):
        if found:
            print(f"{title}: {', '.join(found)}")
    return NOT_KEPT if failed else KEPT


def run(path: Path) -> int:
    """The exit code of a benchmark, which ends by itself when it is told to."""
    with subprocess.Popen([sys.executable, str(path)]) as process:
        # A terminal tells the benchmark itself of Ctrl-C; it stops what it has started.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
