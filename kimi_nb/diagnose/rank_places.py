"""Tell on which node and devices each rank of a plan runs, also from a saved plan.

Example::

    placed = rank_places.of("bundle/")  # or plan.json, a run's folder, a Plan, None
    placed.devices("a3-0", rank=3, worker=1)  # (13,)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kimi_nb.core import bounded_files
from kimi_nb.core.errors import ParameterError, short
from kimi_nb.plan.spec import EngineSpec, Plan

_LARGEST = 256 << 20  # bytes of a saved plan
_MOST = 10**6  # ranks, devices and ports


@dataclass(frozen=True)
class Placed:
    """The engines of a plan, () without a plan; ``door`` is the node of its router."""

    engines: tuple[EngineSpec, ...] = ()
    door: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes, in the plan's order."""
        return tuple(dict.fromkeys(engine.node for engine in self.engines))

    def engine(self, node: str, rank: int | None) -> EngineSpec | None:
        """Return the engine that runs a rank on a node, or None if that is not known."""
        return next(
            (
                one
                for one in self.engines
                if one.node == node and rank is not None and one.rank <= rank < one.rank + one.ranks
            ),
            None,
        )

    def devices(self, node: str, rank: int | None, worker: int | None) -> tuple[int, ...]:
        """Return the devices of a rank on its node, or the one device of a tensor parallel worker.

        The result is () if they are not known.
        """
        engine = self.engine(node, rank)
        if engine is None or rank is None:
            return ()
        wide = max(1, len(engine.devices) // max(1, engine.ranks))
        mine = engine.devices[(rank - engine.rank) * wide :][:wide]
        return (mine[worker],) if worker is not None and worker < len(mine) else tuple(mine)


def of(given: Plan | Placed | str | Path | None) -> Placed:
    """Return the places of a plan, or of what holds one.

    Raises ParameterError for a path without a plan.
    """
    if given is None or given == "":
        return Placed()
    if isinstance(given, Placed):
        return given
    if isinstance(given, Plan):
        return Placed(given.engines, given.router.node if given.router else "")
    path = _file(Path(os.path.expanduser(given)), str(given))
    try:
        table = json.loads(bounded_files.read(path, _LARGEST))
        engines = tuple(map(_engine, table["engines"]))
        router = table.get("router") or {}
        return Placed(engines, str(router.get("node", "")))
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParameterError(
            f"{path}: is no plan ({type(error).__name__}: {short(error)}); kimi-nb plan "
            "--out DIR writes one."
        ) from None


def _engine(row: Mapping[str, Any]) -> EngineSpec:
    """Return an engine of a saved plan. Raises ValueError, KeyError or TypeError."""
    known = {part.name: str(part.type) for part in fields(EngineSpec)}
    # What a plan of before does not have keeps its default.
    found = {name: _tupled(row[name]) for name in known if name in row}
    for name, value in found.items():
        if not _KINDS.get(known[name], _variables)(value):
            raise ValueError(f"{name}: {short(value, 60)!r}")
    return EngineSpec(**found)


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _texts(values: Iterable[Any]) -> bool:
    return all(isinstance(one, str) for one in values)


def _variables(value: Any) -> bool:
    return isinstance(value, dict) and _texts(value.values())


# Whether a value is of a type, by the name with which `EngineSpec` declares it; the others are variables.
_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": _count,
    "int | None": lambda value: value is None or _count(value),
    "tuple[int, ...]": lambda value: isinstance(value, tuple) and all(map(_count, value)),
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and _texts(value),
}


def _file(path: Path, given: str) -> Path:
    """Return the plan.json in a bundle, or in a run's folder if that holds only one."""
    if not path.is_dir():
        return path
    for pattern in ("plan.json", "bundle/plan.json", "*/bundle/plan.json"):
        found = sorted(path.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise ParameterError(
                f"{given}: holds several plans; name one of: {', '.join(map(str, found[:8]))}."
            )
    raise ParameterError(f"{given}: no plan.json in it, nor in its bundle.")
