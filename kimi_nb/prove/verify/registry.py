"""The checks by name: a function in the module of its family, what it is about in a data file.

    @check("api/chat", needs=("engines/completion",))
    def chat(ask: Ask) -> str: ...      # what came back; raises Failed or Skip

Title, way out and trouble of each stand in data/checks.yaml.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.params import load as params

if TYPE_CHECKING:
    from kimi_nb.prove.verify.asking import Ask

FAMILIES = (
    "api",
    "engines",
    "canary",
    "streaming",
    "reasoning",
    "tool_calls",
    "content",
    "errors",
    "load",
    "disaggregation",
)
Run = Callable[["Ask"], str]
_CHECKS: dict[str, Check] = {}


@dataclass(frozen=True)
class Check:
    """A check: it is not asked where one that it ``needs`` has failed."""

    name: str
    needs: tuple[str, ...]
    run: Run

    @property
    def title(self) -> str:
        """What must hold."""
        return params.data("checks")["checks"][self.name]["title"]

    @property
    def help(self) -> str:
        """The way out, with the trouble's id."""
        return _help(params.data("checks")["checks"][self.name])


def check(name: str, needs: tuple[str, ...] = ()) -> Callable[[Run], Run]:
    """Make a function a check."""
    assert name not in _CHECKS, name

    def register(run: Run) -> Run:
        _CHECKS[name] = Check(name, needs, run)
        return run

    return register


@functools.cache
def all_checks() -> dict[str, Check]:
    """Every check, in the order of data/checks.yaml, which is that in which they are made."""
    for family in FAMILIES:
        importlib.import_module(f"kimi_nb.prove.verify.{family}")
    return {name: _CHECKS[name] for name in params.data("checks")["checks"]}


def chosen(only: Iterable[str]) -> dict[str, Check]:
    """The checks of some names or families; all without a name. Raises ParameterError."""
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
    """The way out for a reason that is no check's own; "" for none."""
    return _help(params.data("checks")["causes"][cause]) if cause else ""


def _help(entry: dict[str, str]) -> str:
    trouble = entry.get("trouble")
    return f"{entry['help']} (trouble {trouble})" if trouble else entry["help"]
