"""Every error a person can cause, in one file.

    KimiError
    ├── ParameterError     a parameter, file, key or value that is not allowed
    ├── PlanError          parameters that are fine alone and do not fit together
    │   ├── NoRecipeError  nothing is known for this model, hardware and layout
    │   └── CheckError     a rule found what would stop the deployment
    ├── BenchError         a benchmark that measured nothing, or that could not go on
    ├── AccuracyError      an evaluation that has no score: what is wrong, and what is kept
    ├── InstallError       the engine's own environment could not be made
    └── WriteError         a place that cannot be written

A ``KimiError`` is a message for a person: one screen, no traceback. The command
line prints it and exits with 2; a notebook shows it in red without the stack.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KimiError(Exception):
    """The base of all errors that are a person's to mend."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a stack (its own hook, by this name)."""
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {self}"]


class ParameterError(KimiError):
    """A parameter, file, key or value that is not allowed."""


class PlanError(KimiError):
    """Parameters that are fine alone and do not fit together."""


class NoRecipeError(PlanError):
    """Nothing is known for this model, hardware, layout, variant or scenario."""


class CheckError(PlanError):
    """A rule found what would stop the deployment."""


class ServiceError(KimiError):
    """A deployment that was started and is not as it has to be: the diagnosis."""


class BenchError(KimiError):
    """A benchmark that measured nothing, or that could not go on; what was measured is kept."""


class AccuracyError(KimiError):
    """An evaluation that came to no score; answers that are there are kept."""


class InstallError(KimiError):
    """The engine's own environment could not be made; says what to do next."""


class WriteError(KimiError):
    """A place that cannot be written."""


def choice(kind: str, found: object, allowed: Iterable[str], hint: str = "") -> str:
    """The sentence for a name that is not one of the allowed ones.

    >>> choice("hardware", "a33", ["a2", "a3"])
    "hardware 'a33' is not known; did you mean 'a3'? Allowed: a2, a3."
    """
    names = list(dict.fromkeys(allowed))
    near = difflib.get_close_matches(str(found), names, n=1)
    guess = f"; did you mean '{near[0]}'?" if near else "."
    shown = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    text = f"{kind} '{found}' is not known{guess} Allowed: {shown or 'none'}."
    return f"{text} {hint}" if hint else text
