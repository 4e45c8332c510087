"""Print what several commands have in common: progress, failed steps, errors of a plan."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kimi_nb.core.errors import CheckError
from kimi_nb.i18n import translate
from kimi_nb.show import visible

if TYPE_CHECKING:
    from kimi_nb.deploy.steps import StepFailed
    from kimi_nb.plan.spec import Plan


def progress(begun: float) -> Callable[[str], None]:
    """Return a function that prints to stderr, with the seconds since ``begun``."""

    def say(text: str) -> None:
        print(
            f"{time.monotonic() - begun:5.1f} s  {visible(translate(text))}",
            file=sys.stderr,
            flush=True,
        )

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
    print(f"kimi-nb: {visible(translate(str(error)))}", file=sys.stderr)
    return 1


def allowed(plan: Plan, force: bool, done: str) -> bool:
    """Print the errors that the rules find in a plan; return whether to go on.

    ``done`` is what happens to the plan then, such as "written".
    """
    from kimi_nb.check import judge  # start-up: only where the rules are asked

    try:
        judge.passed(judge.plan(plan))
    except CheckError as error:
        if force:
            head, end = "warning: ", f"--force: it is {done} all the same."
        else:
            head, end = "", f"So it is not {done}. Change the plan, or go on all the same: --force."
        print(f"kimi-nb: {visible(f'{head}{error}')}\n{end}", file=sys.stderr)
        return force
    return True
