"""List where the upstream documents are wrong or silent, and what the plan does instead.

Each of these corrections is on by default. `switched_off` reads which ones the user wants off, and
`published` returns what the document has in the place of one:

>>> ids = ["k2.5-host", "k2.5-rpc-timeout", "k2.5-mounts"]
>>> sorted(switched_off(["all=off", "k2.5-host=on"], ids[:2], ids))
['k2.5-rpc-timeout']
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, choice

ALL = "all"
# The names of the documents' commands that start an engine; the last part says its role.
_ENGINE = re.compile(r"(?:.*/)?(single|eagle3|node\d+|prefill[^/]*|decode[^/]*)")
_PLACE = re.compile(r"\{[a-z_]+\}")  # filled for each engine
_DERIVED = {"host": "host", "kv-transfer-config.kv_port": "kv_port"}


@dataclass
class Published:
    """What a document has for the engines of one role where an erratum is off.

    Attributes:
        flags: Values by dotted name, None for a flag that the document has not.
        env: Variables, likewise.
        host: The address at which every engine listens, None without one; () if unchanged.
        kv_port: The first port of the KV cache, or None if unchanged.
    """

    flags: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    host: str | tuple[()] | None = ()
    kv_port: int | None = None


def entries() -> list[dict[str, Any]]:
    """Return all errata in the order of the file (kimi_nb/data/params/errata.yaml)."""
    return data_files.facts("params/errata")["errata"]


def touching(commands: Iterable[str]) -> tuple[Mapping[str, Any], ...]:
    """Return the errata that concern any of these commands of the documents."""
    wanted = set(commands)
    return tuple(entry for entry in entries() if wanted & set(entry["commands"]))


def role_of(command: str) -> str:
    """Return the role of the engine that a command starts, or "" if it starts none.

    >>> role_of("k2.5/a3/pd/prefill0"), role_of("k2.5/a3/single"), role_of("k2.5/a3/docker")
    ('prefill', 'mixed', '')
    """
    found = _ENGINE.fullmatch(command)
    if found is None:
        return ""
    return next((role for role in ("prefill", "decode") if found[1].startswith(role)), "mixed")


def switchable(entry: Mapping[str, Any], commands: Sequence[str]) -> bool:
    """Return whether a plan of these commands can do as the document says in place of an erratum.

    It can where the erratum changes flags and variables of whole roles. It cannot where it says
    something of prose, of one engine of a group (whose engines share their settings), or of what
    the scripts need in order to run: containers, launchers, clients, jobs.
    """
    mine = set(entry["commands"])
    roles = {role_of(name) for name in mine}
    whole = all(
        name in mine for name in commands if role_of(name) in roles and mine & set(commands)
    )
    return bool(entry.get("changes")) and "" not in roles and whole


def renaming(commands: Iterable[str]) -> frozenset[str]:
    """Return the ids of the errata that give the model of these commands another name or folder."""
    return frozenset(
        entry["id"]
        for entry in touching(commands)
        if any(change["name"] == "model" for change in entry.get("changes", ()))
    )


def switched_off(pairs: Iterable[str], ids: Sequence[str], every: Sequence[str]) -> frozenset[str]:
    """Return the errata that are off, from ``ID=on``, ``ID=off`` and ``all=off``, in this order.

    ``ids`` are those that can be off in the plan, ``every`` those that concern it. Raises
    ParameterError for another one.
    """
    off: set[str] = set()
    for pair in pairs:
        name, sign, state = (part.strip() for part in pair.partition("="))
        where = f"--erratum {pair[:80]}"
        if not sign or state not in ("on", "off"):
            raise ParameterError(f"{where}: ID=on or ID=off is wanted, such as k2.5-host=off.")
        if name != ALL and name not in every:
            raise ParameterError(f"{where}: " + choice("erratum of this plan", name, [ALL, *every]))
        if name != ALL and name not in ids and state == "off":
            raise ParameterError(
                f"{where}: this one cannot be off: it changes no setting that the engines of a "
                f"role share. These can: {', '.join(ids) or 'none'}."
            )
        named = ids if name == ALL else [name]
        off = off | set(named) if state == "off" else off - set(named)
    return frozenset(off)


def published(
    entry: Mapping[str, Any], role: str, has: Mapping[str, Mapping[str, Any]]
) -> Published:
    """Return what the document has for a role in the place of an erratum.

    ``has`` are the values of the plan, by "argv" or "env" and by name. Where they are not those of
    the erratum, because a feature, a scenario or the user has changed them, they stay.
    """
    out = Published()
    if role not in {role_of(name) for name in entry["commands"]}:
        return out
    for change in _that_hold(entry["changes"], has):
        name, says = change["name"], _first(change.get("says"))
        if name == "host":
            out.host = says
        elif name == "kv-transfer-config.kv_port":
            out.kv_port = min(out.kv_port or says, says)
        else:
            table = out.flags if change["where"] == "argv" else out.env
            table[name] = says if change["where"] == "argv" or says is None else str(says)
    return out


def _that_hold(
    changes: Sequence[Mapping[str, Any]], has: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for at, change in enumerate(changes):
        after = changes[at + 1] if at + 1 < len(changes) else {}
        # A setting that moved stands as two changes: gone from here, and there instead.
        if _gone(change) and _come(after):
            holds = _holds(after, has)
        else:
            holds = change["name"] in _DERIVED or _holds(change, has)
        if holds:
            yield change


def _gone(change: Mapping[str, Any]) -> bool:
    return bool(change) and change.get("uses") is None


def _come(change: Mapping[str, Any]) -> bool:
    return bool(change) and change.get("says") is None and change.get("uses") is not None


def _holds(change: Mapping[str, Any], has: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the plan has what the erratum uses."""
    found = has[change["where"]].get(change["name"])
    uses = change.get("uses")
    wanted = [_value(one) for one in (uses if isinstance(uses, list) else [uses])]
    return any(found is one or str(found) == str(one) for one in wanted)


def _first(says: Any) -> Any:
    """Return the document's value; the one that is there, of several."""
    every = says if isinstance(says, list) else [says]
    return _value(next((one for one in every if one is not None), None))


def _value(text: Any) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if not isinstance(text, str) or text[:1] not in ("[", "{") or _PLACE.fullmatch(text):
        return text
    return json.loads(text)
