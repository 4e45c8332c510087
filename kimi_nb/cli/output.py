"""Print what several commands have in common: progress and failed steps."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kimi_nb.show import visible

if TYPE_CHECKING:
    from kimi_nb.deploy.steps import StepFailed


def progress(begun: float) -> Callable[[str], None]:
    """Return a function that prints to stderr, with the seconds since ``begun``."""

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.1f} s  {visible(text)}", file=sys.stderr, flush=True)

    return say


def failed(error: StepFailed, as_json: bool) -> int:
    """Print a failed step and the changes made before it; return the exit code."""
    if as_json:
        print(
            json.dumps(
                {
                    "changes": [vars(one) for one in error.outcome.changes],
                    "step": error.step,
                    "failed": [one.as_dict() for one in error.failed],
                },
                indent=2,
            )
        )
    print(f"kimi-nb: {visible(str(error))}", file=sys.stderr)
    return 1
