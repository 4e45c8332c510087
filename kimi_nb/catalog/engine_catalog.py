"""Look up what an engine version knows: its flags, their choices, and its variables.

>>> engine("vllm-ascend", "v0.22.1rc1").vllm  # the vLLM version underneath
'0.22.1'
>>> flag(engine("vllm", "0.19.1"), "max-model-len")["takes_value"]
True
>>> moved(engine("vllm-ascend", "v0.22.1rc1"), "VLLM_ASCEND_ENABLE_MLAPO")
'enable_mlapo'

The tables were read from the real parsers of 23 vLLM versions and from the source of 16 vllm-ascend
tags. A version between two listed ones is described by the earlier one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import ParameterError, PlanError, choice, short

# Sizes such as 32k or 1M, which the parser calls human readable integers.
_SIZES = {
    **{"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
}
_JSON = ("json", "loads", "union_dict_and_str")
_INTEGERS = ("int", "human_readable_int", "human_readable_int_or_auto")


@dataclass(frozen=True)
class Engine:
    """An engine package at a version.

    Attributes:
        package: ``vllm`` or ``vllm-ascend``.
        version: The version as released, without the v of its tag (0.22.1rc1).
        vllm: The version of the vLLM underneath (0.22.1).
        known: The version of vLLM in the catalog that describes it.
    """

    package: str
    version: str
    vllm: str
    known: str

    @property
    def tag(self) -> str:
        """The version with the leading v of its git tag and image."""
        return f"v{self.version}"

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@functools.cache
def tables(package: str) -> dict[str, Any]:
    """Return the raw catalog of ``vllm`` or ``vllm-ascend``."""
    path = paths.DATA / "catalog" / f"{package}.json"
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def versions(package: str) -> tuple[str, ...]:
    """Return the listed versions of a package, oldest first, without the leading v."""
    table = tables(package)
    return tuple(name.removeprefix("v") for name in table.get("tags") or table["versions"])


@functools.cache
def _order(version: str) -> Version:
    return Version(version)


def engine(package: str, version: object) -> Engine:
    """Return the engine of this package and version.

    Raises ParameterError for a version that was never released. Of vllm-ascend only listed tags are
    accepted; a vLLM version may lie between two listed ones.
    """
    text = str(version).strip().removeprefix("v")[:40]
    listed = versions(package)
    if package == "vllm-ascend":
        if text not in listed:
            raise ParameterError(choice(f"{package} version", text, listed))
        row = data_files.facts("catalog/versions")["vllm-ascend"].get(text, {})
        base = str(row.get("vllm", _order(text).base_version))
        return Engine(package, text, base, _row(base))
    # Only the forms in which versions are released, not all that a version parser understands.
    if not re.fullmatch(
        r"[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}(rc[0-9]{1,3}|\.post[0-9]{1,3})?", text
    ):
        raise ParameterError(choice(f"{package} version", text, listed))
    order = _order(text)
    # The last listed version also describes its later patch releases, but no later minor release.
    if not _order(listed[0]) <= order or order.release[:2] > _order(listed[-1]).release[:2]:
        raise ParameterError(choice(f"{package} version", text, listed))
    return Engine(package, text, text, _row(text))


def _row(vllm: str) -> str:
    return max(
        (name for name in versions("vllm") if _order(name) <= _order(vllm)),
        key=_order,
        default=versions("vllm")[0],
    )


def satisfies(engine: Engine, needed: str) -> bool:
    """Return whether the vLLM of an engine lies in a range such as ``>=0.18.0``."""
    from packaging.specifiers import SpecifierSet  # start-up: only for a range of versions

    return not needed or SpecifierSet(needed).contains(engine.vllm, prereleases=True)


def serves(engine: Engine, ranges: Mapping[str, str]) -> bool:
    """Return whether an engine lies in the range of its own versions, such as that of a model.

    >>> serves(Engine("vllm-ascend", "0.23.0", "0.23.0", "0.23.0"), {"vllm": ">=0.27.1"})
    True
    """
    from packaging.specifiers import SpecifierSet  # start-up: only for a range of versions

    return SpecifierSet(ranges.get(engine.package, "")).contains(engine.version, prereleases=True)


def active(runs: list[dict[str, Any]], version: str) -> dict[str, Any] | None:
    """Return the entry of a run-length list that applies to a version of the catalog, or None."""
    order = _order(version)
    for run in runs:
        if _order(run["first"]) <= order <= _order(run["last"]):
            return run
    return None


def flag(engine: Engine, name: str, command: str = "serve") -> dict[str, Any] | None:
    """Return what the parser knows of a flag (no dashes) at this version, or None."""
    return active(tables("vllm")[command].get(f"--{name}", []), engine.known)


def variable(engine: Engine, name: str) -> dict[str, Any] | None:
    """Return the entry of a variable that vLLM or the plugin reads at this version, or None."""
    found = active(tables("vllm")["env"].get(name, []), engine.known)
    if found is None and engine.package == "vllm-ascend":
        found = active(tables("vllm-ascend")["env"].get(name, []), engine.version)
    return found


def history(name: str, kind: str) -> list[dict[str, Any]]:
    """Return all version ranges that knew a flag (``kind`` serve) or a variable (``kind`` env)."""
    key = name if kind == "env" else f"--{name}"
    runs = tables("vllm")[kind].get(key)
    return runs or (tables("vllm-ascend")["env"].get(name, []) if kind == "env" else [])


def moved(engine: Engine, variable: str) -> str | None:
    """Return the dotted ``--additional-config`` key that replaces a variable at this version.

    The result is None if no key replaces it.
    """
    if engine.package != "vllm-ascend":
        return None
    for key, runs in tables("vllm-ascend")["additional_config"].items():
        run = active(runs, engine.version)
        if run and run.get("env") == variable:
            return additional_key(engine, key)
    return None


def takes_number(variable: str) -> bool:
    """Return whether a variable of the plugin is a number rather than a switch.

    Its default tells the two apart.
    """
    runs = tables("vllm-ascend")["env"].get(variable, [])
    return any(type(run.get("default")) is int for run in runs)


def additional_key(engine: Engine, key: str) -> str:
    """Return where an ``--additional-config`` key lives at this version.

    That is at the top level, or under a table that absorbed it (``scheduler_config`` since v0.25).
    """
    if engine.package == "vllm-ascend":
        run = active(tables("vllm-ascend")["additional_config"].get(key, []), engine.version)
        if run and "also_under" in run:
            return f"{run['also_under']}.{key}"
    return key


def ignored(role: str, key: str) -> str:
    """Return the version since which a role ignores an ``--additional-config`` key, or "".

    >>> ignored("prefill", "recompute_scheduler_enable"), ignored("decode", "enable_mlapo")
    ('0.23.0', '')
    """
    known = data_files.facts("catalog/versions")["ignored_by_role"].get(key)
    return str(known["since"]) if known and known["role"] == role else ""


def check_flag(engine: Engine, name: str, value: Any, where: str) -> None:
    """Refuse what the parser of this version would refuse for one flag.

    ``name`` may be dotted (a key of a JSON flag); then only the flag itself is looked up. Raises
    ParameterError or PlanError naming the flag, the value, the version and what is allowed.
    """
    top, _, rest = name.partition(".")
    found = flag(engine, top)
    if found is None:
        raise _absent(engine, top, where)
    if rest:
        return
    kind = type_of(found)
    if not found["takes_value"]:
        if not isinstance(value, bool):
            raise ParameterError(
                f"{where}: --{top} is a switch: true or false, found {short(repr(value))}."
            )
        if value is False and not found.get("negations"):
            raise ParameterError(
                f"{where}: --{top} has no --no- form in {engine}; leave it out "
                "instead of setting it to false."
            )
    elif isinstance(value, bool):
        raise ParameterError(f"{where}: --{top} takes a value, found {short(repr(value))}.")
    elif kind in _INTEGERS and not _is_integer(value, kind):
        several = isinstance(value, str) and re.search(r",[\w.-]+=", value)
        raise ParameterError(
            f"{where}: --{top} takes a whole number, found {short(repr(value))}."
            + (" Give each setting a --set of its own." if several else "")
        )
    elif kind == "float" and not isinstance(value, int | float):
        raise ParameterError(f"{where}: --{top} takes a number, found {short(repr(value))}.")
    elif kind == "union_dict_and_str" and isinstance(value, str):
        pass
    elif kind in _JSON and not isinstance(value, dict):
        raise ParameterError(f"{where}: --{top} takes a JSON object, found {short(repr(value))}.")
    elif kind not in _JSON and isinstance(value, dict | list):
        raise ParameterError(f"{where}: --{top} takes one value, found {short(repr(value))}.")
    elif found.get("choices") and str(value) not in map(str, found["choices"]):
        raise ParameterError(
            f"{where}: " + choice(f"--{top} value", value, map(str, found["choices"]))
        )
    least, most = data_files.facts("catalog/versions")["limits"].get(top, (None, None))
    if least is not None and not least <= _number(value) <= most:
        raise ParameterError(f"{where}: --{top} is {least} to {most}, found {short(repr(value))}.")


def type_of(row: Mapping[str, Any]) -> str:
    """Return the name of a flag's type, without what makes it optional."""
    return str(row.get("type", "")).rpartition("_optional_type(")[2].removesuffix(")")


def _number(value: Any) -> int | float:
    """Return a size such as 32k as a number; ``auto`` counts as 1."""
    if isinstance(value, str):
        return float(value[:-1]) * _SIZES[value[-1]] if value[-1:] in _SIZES else 1
    return int(value) if isinstance(value, int) else float(value)


def _is_integer(value: Any, kind: str) -> bool:
    if isinstance(value, int):
        return True
    if kind == "int" or not isinstance(value, str):
        return False
    # A binary unit takes no decimals.
    return re.fullmatch(r"[0-9]{1,9}((\.[0-9]{1,6})?[kmgt]|[KMGT])", value) is not None or (
        value == "auto" and kind.endswith("auto")
    )


def _absent(engine: Engine, name: str, where: str) -> ParameterError | PlanError:
    runs = history(name, "serve")
    if not runs:
        instead = data_files.facts("catalog/versions")["instead"].get(name)
        hint = f"Use {instead}." if instead else ""
        known = [flag.removeprefix("--") for flag in tables("vllm")["serve"]]
        nearest = choice("flag", name, known)
        return ParameterError(
            f"{where}: no vLLM version has --{name}. {hint}"
            if hint
            else f"{where}: {nearest.split(' Allowed: ')[0]} "
            f"kimi_nb/data/catalog/vllm.json lists all {len(known)}."
        )
    first, last = runs[0]["first"], runs[-1]["last"]
    if _order(first) > _order(engine.known):
        return PlanError(
            f"{where}: --{name} needs vLLM {first} or newer; this plan is for "
            f"{engine}. Choose a newer one with --engine-version."
        )
    instead = data_files.facts("catalog/versions")["instead"].get(name)
    return PlanError(
        f"{where}: --{name} is gone: vLLM {last} was the last listed version with it, "
        f"this plan is for {engine}.{f' Use {instead}.' if instead else ''}"
    )


def older(version: str, engine: Engine) -> bool:
    """Return whether a version of the catalog is older than the engine's."""
    return _order(version) < _order(engine.known)


def earlier(one: str, other: str) -> bool:
    """Return whether a version of a package is older than another one of the same package.

    >>> earlier("v0.9.2", "v0.18.0")
    True
    """
    return _order(one) < _order(other)


@functools.cache
def ever_read() -> dict[str, tuple[str, str]]:
    """Return every variable that any listed version reads, with the first and the last of them."""
    out: dict[str, tuple[str, str]] = {}
    plugin = tables("vllm-ascend")
    for table in (tables("vllm")["env"], plugin["env"], plugin["env_read_elsewhere"]):
        for name, runs in table.items():
            out.setdefault(
                name, (runs[0]["first"].removeprefix("v"), runs[-1]["last"].removeprefix("v"))
            )
    return out


def listed(name: str) -> tuple[str, str] | None:
    """Return the first and the last listed vLLM version that has a flag, None if no version has it.

    Other names of a flag (aliases) count as the flag.
    """
    for long, runs in tables("vllm")["serve"].items():
        if long == f"--{name}" or any(f"--{name}" in run.get("aliases", ()) for run in runs):
            return runs[0]["first"], runs[-1]["last"]
    return None
