"""Compare two versions of an engine: flags, variables, keys of JSON values.

>>> changes = difference("vllm", "0.17.0", "0.18.0")
>>> sorted(one.where for one in changes if one.label == "--swap-space")
['bench latency', 'bench throughput', 'serve']
>>> notes("vllm-ascend", "v0.18.0", "v0.22.1rc1")  # doctest: +ELLIPSIS
['The vLLM beneath changed too, from 0.18.0 to 0.22.1: ...']
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog, show
from kimi_nb.core import data_files
from kimi_nb.core.errors import ParameterError, choice

PACKAGES = ("vllm", "vllm-ascend")
COMMANDS = {
    "serve": "serve",
    "bench_serve": "bench serve",
    "bench_latency": "bench latency",
    "bench_throughput": "bench throughput",
}
# The parser's converter functions, in words for the user.
_TYPES = {
    "loads": "json",
    "<lambda>": "text that the parser reads itself",
    "union_dict_and_str": "json or str",
    "human_readable_int": "int (or 32k)",
    "human_readable_int_or_auto": "int (or 32k, or auto)",
}
_OPTIONAL = re.compile(r"optional_type\.<locals>\._optional_type\((.+)\)")
# The default of --request-id-prefix is random at every start of vLLM.
_RANDOM = re.compile(r"-[0-9a-f]{8}-$")

Place = tuple[str, str, str]
Entries = dict[Place, dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        kind: flag, variable or key.
        where: A command, a config class, additional_config or env.
        name: The name of the flag, variable or key.
        what: added, removed or changed.
        details: What changed, in words.
    """

    kind: str
    where: str
    name: str
    what: str
    details: str = ""

    @property
    def label(self) -> str:
        """The name as users write it."""
        return f"--{self.name}" if self.kind == "flag" else self.name

    def __str__(self) -> str:
        return f"{self.where}: {self.label} {self.what}" + (self.details and f", {self.details}")


def difference(package: str, old: object, new: object) -> list[Change]:
    """Return what changes from ``old`` to ``new``, sorted by place and name.

    A vLLM version between two listed ones counts as the earlier one. Raises ParameterError for an
    unknown package or version.
    """
    was, now = at(_engine(package, old)), at(_engine(package, new))
    changes = []
    for place in sorted(was.keys() | now.keys(), key=lambda place: (place[1:], place[0])):
        what = "added" if place not in was else "removed" if place not in now else "changed"
        details = {"added": _added, "removed": _removed, "changed": _changed}[what](place, was, now)
        # "*" is no key: its class refuses the keys that it does not know.
        if place[2] != "*" and (what != "changed" or details):
            changes.append(Change(*place, what, details))
    return changes


def table(changes: Sequence[Change]) -> show.Table:
    """Return a table with a row for each change, titled with the number of each kind."""
    counts = {
        what: sum(one.what == what for one in changes) for what in ("added", "removed", "changed")
    }
    title = ", ".join(f"{count} {what}" for what, count in counts.items())
    return show.Table(
        title if changes else "No difference",
        ("where", "name", "what", "details"),
        tuple((one.where, one.label, one.what, one.details) for one in changes),
    )


def notes(package: str, old: object, new: object) -> list[str]:
    """Return what a difference does not show: a changed vLLM underneath, and unlisted versions."""
    engines = [_engine(package, version) for version in (old, new)]
    out = []
    if package == "vllm-ascend" and engines[0].vllm != engines[1].vllm:
        out.append(
            f"The vLLM beneath changed too, from {engines[0].vllm} to {engines[1].vllm}: "
            "its difference is that of the package vllm."
        )
    for engine in dict.fromkeys(engines):
        if package == "vllm" and engine.known != engine.version:
            out.append(f"{engine} is not listed: {engine.known} speaks for it.")
    return out


def at(engine: catalog.Engine) -> Entries:
    """Return everything that the catalog of an engine's package knows at its version."""
    package = engine.package
    return entries(
        catalog.tables(package),
        catalog.versions(package),
        engine.version if package == "vllm-ascend" else engine.known,
    )


def entries(table: Mapping[str, Any], listed: Sequence[str], version: str) -> Entries:
    """Return the entries of one version by (kind, place, name).

    An example of an entry is ``{("flag", "serve", "swap-space"): {"takes_value": True, ...}}``.
    """
    order = {name: number for number, name in enumerate(listed)}
    found = {}
    for kind, where, named in _sections(table):
        for name, runs in named.items():
            for run in runs:
                first, last = (order[run[end].removeprefix("v")] for end in ("first", "last"))
                if first <= order[version] <= last:
                    found[kind, where, name.removeprefix("--")] = {
                        key: _settled(value)
                        for key, value in run.items()
                        if key not in ("first", "last")
                    }
    return found


def _sections(table: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for command, where in COMMANDS.items():
        yield "flag", where, table.get(command, {})
    for name, fields in {**table.get("configs", {}), **table.get("nested", {})}.items():
        yield "key", name.removeprefix("enum:"), fields
    yield "key", "additional_config", table.get("additional_config", {})
    # A variable in both tables is declared and also read elsewhere; the declaration wins.
    yield "variable", "env", table.get("env_read_elsewhere", {})
    yield "variable", "env", table.get("env", {})


def _settled(value: Any) -> Any:
    return _RANDOM.sub("-(random)-", value) if isinstance(value, str) else value


def _engine(package: str, version: object) -> catalog.Engine:
    if package not in PACKAGES:
        raise ParameterError(choice("package", package, PACKAGES))
    return catalog.engine(package, version)


# Details of a change -------------------------------------------------------------------------


def _added(place: Place, was: Entries, now: Entries) -> str:
    kind, where, name = place
    found = now[place]
    parts = []
    if other := _alias_of(was, where, name):
        parts.append(f"was a name of --{other}")
    if kind == "flag":
        parts.append(_type(found))
        if found.get("choices"):
            parts.append(f"choices {', '.join(map(str, found['choices']))}")
    if "default" in found and not (kind == "key" and "env" in found):
        parts.append(f"default {_value(found['default'])}")
    if found.get("deprecated"):
        parts.append("deprecated")
    if "env" in found:
        parts.append(f"in place of {found['env']}")
    if "also_under" in found:
        parts.append(f"under {found['also_under']}")
    return "; ".join(parts)


def _removed(place: Place, was: Entries, now: Entries) -> str:
    kind, where, name = place
    if kind == "variable":
        return _moved(name, was, now)
    if kind != "flag":
        return ""
    if other := _alias_of(now, where, name):
        return f"now a name of --{other}"
    instead = data_files.facts("catalog/versions")["instead"].get(name)
    return f"use {instead}" if instead else ""


def _changed(place: Place, was: Entries, now: Entries) -> str:
    kind, _, name = place
    old, new = was[place], now[place]
    parts = []
    if kind == "flag" and _type(old) != _type(new):
        parts.append(f"type {_type(old)} -> {_type(new)}")
    # A flag without a default has None; of other kinds the default is then unknown.
    told = kind == "flag" or ("default" in old and "default" in new)
    if told and old.get("default") != new.get("default"):
        parts.append(f"default {_value(old.get('default'))} -> {_value(new.get('default'))}")
    parts.append(_choices(old.get("choices"), new.get("choices")))
    parts.append(_sets("names", old.get("aliases", ()), new.get("aliases", ())))
    if old.get("nargs") != new.get("nargs"):
        parts.append(f"values {old.get('nargs', 'one')} -> {new.get('nargs', 'one')}")
    for key in ("deprecated", "required"):
        if old.get(key) != new.get(key):
            parts.append(key if new.get(key) else f"no longer {key}")
    if old.get("env") != new.get("env"):
        parts.append(
            f"in place of {new['env']}" if new.get("env") else f"no longer in place of {old['env']}"
        )
    if old.get("also_under") != new.get("also_under"):
        parts.append(
            f"moved to {new['also_under']}.{name}"
            if new.get("also_under")
            else f"moved out of {old['also_under']}"
        )
    if kind == "variable":
        parts.append(_moved(name, was, now))
    return "; ".join(part for part in parts if part)


def _moved(variable: str, was: Entries, now: Entries) -> str:
    before, after = _key_for(was, variable), _key_for(now, variable)
    if before == after:
        return ""
    return f"moved to additional_config {after}" if after else f"additional_config {before} is gone"


def _key_for(found: Entries, variable: str) -> str | None:
    for (_, where, name), entry in found.items():
        if where == "additional_config" and entry.get("env") == variable:
            return f"{entry['also_under']}.{name}" if "also_under" in entry else name
    return None


def _alias_of(found: Entries, command: str, name: str) -> str | None:
    for (kind, where, other), entry in found.items():
        if (kind, where) == ("flag", command) and f"--{name}" in entry.get("aliases", ()):
            return other
    return None


def _type(found: Mapping[str, Any]) -> str:
    if not found["takes_value"]:
        return "switch"
    name = found.get("type", "str")
    optional = _OPTIONAL.fullmatch(name)
    name = (optional[1] if optional else name).rpartition("<locals>.")[2]
    name = _TYPES.get(name, name)
    # null is valid JSON, so an optional JSON value is parsed no differently.
    return f"{name} or None" if optional and name != "json" else name


def _choices(old: Sequence[Any] | None, new: Sequence[Any] | None) -> str:
    if old and new:
        return _sets("choices", old, new)
    if new:
        return f"choices now {', '.join(map(str, new))}"
    return f"no choices any more, before {', '.join(map(str, old))}" if old else ""


def _sets(title: str, old: Sequence[Any], new: Sequence[Any]) -> str:
    a, b = list(map(str, old)), list(map(str, new))
    marks = [
        f"{sign} {', '.join(names)}"
        for sign, names in (
            ("+", [name for name in b if name not in a]),
            ("-", [name for name in a if name not in b]),
        )
        if names
    ]
    return f"{title} {', '.join(marks)}" if marks else ""


def _value(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"__class__"}:
        return f"{value['__class__']}()"
    return json.dumps(value)
