"""Find out which field of the panel a mistake is in.

>>> [one.field for one in find(Choice("k2.5", "a3", "pd", overrides="decode.tp=3; max-num-seq=9"))]
['overrides', 'decode.tp']
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kimi_nb.core.errors import KimiError
from kimi_nb.notebook import inputs
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import role_sizes

_FIELDS = ("site", "engine_version", "variant", "scenario", "features", "without", "errata")
_MOST = 4  # mistakes that are told at once: each costs a few plans


@dataclass(frozen=True)
class Mistake:
    """A mistake in a choice.

    ``field`` is a field of `Choice`, a size such as ``decode.dp``, or "" where no single field is
    at fault. ``fields`` are all that take part, such as dp and tp of a role.
    """

    field: str
    message: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """What may be at fault, and the choice without it."""

    fields: tuple[str, ...]
    rest: Choice
    pairs: tuple[str, ...] = ()


def find(given: Choice) -> tuple[Mistake, ...]:
    """Return every mistake that keeps a choice from being planned, the first one first; () if none.

    The part at fault is the one without which this error is gone.
    """
    out: list[Mistake] = []
    while (error := _error(given)) and len(out) < _MOST:
        part = _at_fault(given, error)
        if part is None:
            return (*out, Mistake("", error))
        out.append(Mistake(part.fields[0], error.removeprefix("--set "), part.fields))
        given = part.rest
    return tuple(out)


def _error(given: Choice) -> str:
    try:
        given.plan()
    except KimiError as error:
        return str(error)
    return ""


def _at_fault(given: Choice, error: str) -> _Part | None:
    parts = _parts(given)
    named = [part for part in parts if _names(part, error)]
    return next((part for part in named or parts if named or _error(part.rest) != error), None)


def _names(part: _Part, error: str) -> bool:
    """Return whether an error quotes an override."""
    return any(error.startswith(f"--set {pair[:80]}: ") for pair in part.pairs)


def _parts(given: Choice) -> Sequence[_Part]:
    """Return what may be at fault; the sizes of one role belong together."""
    roles = tuple(role_sizes.of_recipe(given))
    groups: dict[tuple[str, ...], list[str]] = {}
    for pair in inputs.words(given.overrides, ";"):
        place = role_sizes.of_pair(pair, roles)
        groups.setdefault(("size", place[0]) if place else ("pair", pair), []).append(pair)
    return [
        *(
            _Part((name,), dataclasses.replace(given, **{name: ""}))
            for name in _FIELDS
            if getattr(given, name)
        ),
        *(_without(given, pairs, roles) for pairs in groups.values()),
    ]


def _without(given: Choice, pairs: Sequence[str], roles: tuple[str, ...]) -> _Part:
    places = [role_sizes.of_pair(pair, roles) for pair in pairs]
    fields = tuple(dict.fromkeys(".".join(place) if place else "overrides" for place in places))
    rest = [pair for pair in inputs.words(given.overrides, ";") if pair not in pairs]
    return _Part(fields, dataclasses.replace(given, overrides="; ".join(rest)), tuple(pairs))
