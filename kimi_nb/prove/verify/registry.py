"""The checks by name: each is a function in the module of its family.

Usage::

    @check("api/chat", needs=("engines/completion",))
    def chat(ask: Ask) -> str: ...  # returns what came back; raises Failed or Skip

Title and trouble of each check are in `kimi_nb/data/prove/checks.yaml`, its remedy in
`kimi_nb/data/diagnose/remedies.yaml`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.diagnose import remedies

if TYPE_CHECKING:
    from kimi_nb.prove.verify.asking import Ask

Run = Callable[["Ask"], str]
_CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        needs: Other checks. This one is not made if any of them has failed.
        run: The function that makes it.
    """

    name: str
    needs: tuple[str, ...]
    run: Run

    @property
    def title(self) -> str:
        """What must hold."""
        return data_files.facts("prove/checks")["checks"][self.name]["title"]

    @property
    def help(self) -> str:
        """What to do about a failure, with the id of its entry in the troubles."""
        return _help(self.name, data_files.facts("prove/checks")["checks"][self.name])


def check(name: str, needs: tuple[str, ...] = ()) -> Callable[[Run], Run]:
    """Register a function as a check."""
    assert name not in _CHECKS, name

    def register(run: Run) -> Run:
        _CHECKS[name] = Check(name, needs, run)
        return run

    return register


@functools.cache
def all_checks() -> dict[str, Check]:
    """Return every check, in the order of checks.yaml, in which they are made."""
    names = list(data_files.facts("prove/checks")["checks"])
    for family in dict.fromkeys(name.partition("/")[0].replace("-", "_") for name in names):
        importlib.import_module(f"kimi_nb.prove.verify.{family}")
    return {name: _CHECKS[name] for name in names}


def chosen(only: Iterable[str]) -> dict[str, Check]:
    """Return the checks of some names or families, or all if none is given.

    Raises:
        ParameterError: If a check or family does not exist.

    >>> list(chosen(["canary", "api/chat"]))
    ['api/chat', 'canary/words', 'canary/contexts']
    """
    known, out = all_checks(), {}
    families = dict.fromkeys(name.partition("/")[0] for name in known)
    wanted = [word.strip() for word in only if word.strip()]
    for word in wanted:
        if word not in known and word not in families:
            raise ParameterError(choice("check", word, [*families, *known]))
    for name, one in known.items():
        if not wanted or name in wanted or name.partition("/")[0] in wanted:
            out[name] = one
    return out


def cause_help(cause: str) -> str:
    """Return what to do about a cause that is not specific to a check; "" for none."""
    return (
        _help(f"answer/{cause}", data_files.facts("prove/checks")["causes"][cause]) if cause else ""
    )


def _help(cause: str, entry: Mapping[str, str]) -> str:
    remedy, trouble = remedies.of(cause), entry.get("trouble")
    return f"{remedy} (trouble {trouble})" if trouble else remedy
