"""Define every error that a user can cause.

The hierarchy::

    KimiError
    ├── ParameterError     a parameter, file, key or value that is not allowed
    ├── PlanError          parameters that are valid alone but do not fit together
    │   ├── NoRecipeError  nothing is known for this model, hardware and layout
    │   └── CheckError     a rule found something that would stop the deployment
    ├── ServiceError       a deployment that was started but does not work
    ├── BenchError         a benchmark that measured nothing or could not continue
    ├── AccuracyError      an evaluation without a score
    ├── InstallError       the engine's own environment could not be created
    └── WriteError         a path that cannot be written

The text of a ``KimiError`` is a message for a person: at most one screen, no traceback. The command
line prints it and exits with code 2; a notebook shows it in red without the stack.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class KimiError(Exception):
    """Base class of all errors that the user can fix."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython (whose hook this is) shows instead of a stack trace."""
        from kimi_nb.core import known_secrets  # start-up: only in a notebook
        from kimi_nb.i18n import translate  # start-up: as above

        told = known_secrets.text(translate(str(self)))
        return [f"\x1b[31m{type(self).__name__}\x1b[0m: {told}"]


class ParameterError(KimiError):
    """A parameter, file, key or value is not allowed."""


class NoFigureError(ParameterError):
    """A figure that is needed is not published for this model or hardware."""


class NoLinkFigureError(NoFigureError):
    """The speed of a link between devices is not published; what needs no link can be estimated."""


class PlanError(KimiError):
    """Parameters that are valid alone do not fit together."""


class NoRecipeError(PlanError):
    """Nothing is known for this model, hardware, layout, variant or scenario."""


class CheckError(PlanError):
    """A rule found something that would stop the deployment."""


class ServiceError(KimiError):
    """A deployment was started but does not work; the message is the diagnosis."""


class BenchError(KimiError):
    """A benchmark measured nothing or could not continue; what it had measured is kept."""


class AccuracyError(KimiError):
    """An evaluation produced no score; the answers it had collected are kept."""


class InstallError(KimiError):
    """The engine's own environment could not be created; the message says what to do next."""


class WriteError(KimiError):
    """A path cannot be written."""


def short(found: object, most: int = 200, lines: int = 8) -> str:
    r"""Return the beginning of what was found, for a message; "..." stands for what is left out.

    ``most`` is a number of characters.

    >>> short("a33"), short("a" * 5000, 3), short("{\n}\n}", lines=1)
    ('a33', 'aaa...', '{...')
    """
    text = str(found)
    if len(text) > most:
        from kimi_nb.core import known_secrets  # start-up: only where something is left out

        text = known_secrets.text(text)  # of half a secret nobody could tell any more what it is
    kept = "\n".join(text.split("\n", lines)[:lines])[:most]
    return kept if kept == text else f"{kept}..."


def choice(
    kind: str,
    found: object,
    allowed: Iterable[str],
    hint: str = "",
    spellings: Mapping[str, str] | None = None,
) -> str:
    """Return the error sentence for a name that is not one of the allowed ones.

    ``spellings`` maps what a name may also be called, in lower case, to the name.

    >>> choice("hardware", "a33", ["a2", "a3"])
    "hardware 'a33' is not known; did you mean 'a3'? Allowed: a2, a3."
    """
    names = list(dict.fromkeys(allowed))
    known = {**(spellings or {}), **{name.casefold(): name for name in names}}
    word = short(found).casefold()  # perhaps with a folder or an organisation before it
    near = difflib.get_close_matches(word, known, n=1) or difflib.get_close_matches(
        word.rpartition("/")[2], known, n=1
    )
    guess = f"; did you mean '{known[near[0]]}'?" if near else "."
    shown = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
    text = f"{kind} '{short(found)}' is not known{guess} Allowed: {shown or 'none'}."
    return f"{text} {hint}" if hint else text
