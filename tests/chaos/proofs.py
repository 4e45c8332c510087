"""What notebooks 08 and 09 do, as a program: python proofs.py bench|sweep FOLDER."""

from __future__ import annotations

import os
import sys

import kimi_nb
from kimi_nb.core.errors import KimiError


def main(what: str, folder: str) -> None:
    """Measure a rehearsed service, or sweep one setting of it."""
    run = kimi_nb.start(hw="a3", model="k2.5", action="rehearse", run_dir=folder)
    plan = run.plan(run.choose("single"))
    sizes = {"input_len": 16, "output_len": 16}
    if what == "bench":
        loads = run.load(plan, "1,2", prompts=24, repetitions=4, **sizes)
        print(run.bench(run.serve(plan), loads))
    else:
        print(run.sweep(run.design(plan, "max-num-seqs: [8, 16]", **sizes), repetitions=1))
    run.close()


def _nobody_reads() -> bool:
    """Whether what is printed cannot be written, which is no fault of what printed it."""
    try:
        os.write(sys.stdout.fileno(), b"\n")  # print may have dropped what it could not write
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return True
    return False


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KimiError as error:
        sys.exit(f"{error}")  # as a cell of a notebook shows it
    except OSError as error:
        if not _nobody_reads():
            raise
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit("interrupted")
