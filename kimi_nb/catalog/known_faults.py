"""Look up the known faults of an engine version, and match them with a deployment.

>>> from kimi_nb import catalog
>>> [one.id for one in affecting(catalog.engine("vllm", "0.22.1")) if one.id.startswith("v-dcp")]
['v-dcp-gibberish']

A fault has a range of versions, models, hardware and a condition, all in
``data/catalog/known_faults.yaml``. The condition is matched with a `Situation`: one engine of a
deployment in plain values, which `kimi_nb.check.fault_facts` makes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import InvalidVersion, Version

from kimi_nb.catalog.arguments import Unread
from kimi_nb.catalog.engine_catalog import Engine, versions
from kimi_nb.core import data_files

_OFF = ("", "0", "false", "off", "none")
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Situation:
    """One engine of a deployment, and what surrounds it.

    Attributes:
        facts: What else is known by name: ``layout``, ``role``, ``tp``, ``draft``, ... A fact that
            is not known is missing.
        flags: The values of its flags, those of JSON as mappings.
        env: Its variables.
        whole: Whether a flag or variable that is not here is known to be absent.
    """

    facts: Mapping[str, Any]
    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True)
class KnownFault:
    """A fault of a range of engine versions.

    Attributes:
        engine: ``vllm`` or ``vllm-ascend``. A fault of vLLM is one of the vllm-ascend above it too.
        first: The first version that has it, None if that is not known.
        first_is: ``stated`` by the source, ``seen`` (the first report), ``unknown`` or a sentence.
        fixed: The first version without it, None if none is known.
        fixed_is: How ``fixed`` is known, where the source does not state it.
        fixed_elsewhere: A fix that is not a version of the engine.
        state: ``open`` or ``closed``, of the thread; "" if nobody looked.
        kind: What it does to the service, one of ``kinds`` in the data.
        when: The condition on an engine; empty for every engine.
        needs: What else must be so, which no plan and no script tells.
    """

    id: str
    engine: str
    kind: str
    symptom: str
    source: str
    evidence: str
    first: str | None = None
    first_is: str = "stated"
    fixed: str | None = None
    fixed_is: str = ""
    fixed_elsewhere: str = ""
    state: str = ""
    models: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""
    way_out: str = ""
    note: str = ""

    @property
    def severity(self) -> str:
        """How it is told: by its kind, and less where it is not sure that this version has it."""
        told: str = _data()["kinds"][self.kind]
        if self.needs or (self.first is None and self.fixed is None and self.state == "closed"):
            return "note"
        # An error refuses a plan, so the range must be known to begin at or before its version.
        return "warning" if told == "error" and self.first is None else told

    @property
    def range(self) -> str:
        """The versions that have it, in words."""
        first = f"from {self.first}" if self.first else ""
        if self.first and self.first_is == "seen":
            first += " (first report)"
        elif self.first_is not in ("stated", "seen", "unknown"):
            first = f"{first} ({self.first_is})" if first else self.first_is
        fixed = f"fixed in {self.fixed}" if self.fixed else ""
        fixed += f" ({self.fixed_is})" if fixed and self.fixed_is else ""
        end = fixed or (
            f"fixed in {self.fixed_elsewhere}" if self.fixed_elsewhere else "no fix known"
        )
        return f"{self.engine} {first or 'first version not known'}, {end}"

    def affects(self, version: str) -> bool:
        """Return whether a version of its engine is in its range."""
        this = order(version, self.engine)
        if this is None:
            return False
        first = order(self.first, self.engine) if self.first else None
        fixed = order(self.fixed, self.engine) if self.fixed else None
        return not (first and this < first) and not (fixed and this >= fixed)

    def concerns(self, model: str | None, hardware: Iterable[str]) -> bool:
        """Return whether it is one of a model and a hardware, each by any of its names.

        What is not known is not concerned by a fault of some models or hardware only.
        """
        if self.models and model not in self.models:
            return False
        return not self.hardware or bool(set(self.hardware) & set(hardware))

    def met(self, situation: Situation) -> bool:
        """Return whether an engine meets its condition."""
        return _holds(self.when, situation)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "id": self.id,
            "severity": self.severity,
            "kind": self.kind,
            "range": self.range,
            "symptom": self.symptom,
            "needs": self.needs,
            "way_out": self.way_out,
            "source": self.source,
            "evidence": self.evidence,
            "note": self.note,
        }


def _data() -> Any:
    """Return the tables of the data."""
    return data_files.facts("catalog/known_faults")


@functools.cache
def every() -> tuple[KnownFault, ...]:
    """Return all known faults, in the order of the data."""
    return tuple(_fault(identity, entry) for identity, entry in _data()["faults"].items())


def _fault(identity: str, entry: Mapping[str, Any]) -> KnownFault:
    values: dict[str, Any] = {
        key: tuple(map(str, value)) if isinstance(value, list) else value
        for key, value in entry.items()
    }
    return KnownFault(identity, **values)


@functools.cache
def unlisted(package: str) -> tuple[str, ...]:
    """Return the versions that faults of a package name and its catalog has no tables of.

    They are in order. Of development versions and of the release candidates of a branch none is
    returned: nobody can name them as a version to run.
    """
    named = {one.first for one in every() if one.engine == package}
    named |= {one.fixed for one in every() if one.engine == package}
    first = order(versions(package)[0])
    out = []
    for name in named - {None} - set(versions(package)):
        its = order(str(name))
        if its and first and its > first and not its.is_devrelease and its.pre != ("rc", 0):
            out.append((its, str(name)))
    return tuple(name for _, name in sorted(out))


def affecting(
    engine: Engine, stated: str = "", faults: Iterable[KnownFault] | None = None
) -> list[KnownFault]:
    """Return the faults whose range holds an engine's version, of ``faults`` or of all.

    The faults of vLLM are asked of the vLLM beneath vllm-ascend. ``stated`` is the version that was
    named, where the catalog does not list it and another one speaks for it; of vllm-ascend, its
    vLLM is then that of the same number.
    """
    # Of vLLM, its own version takes the place of the one beneath.
    run = {"vllm": _base(stated, engine.vllm), engine.package: stated or engine.version}
    known = every() if faults is None else faults
    return [one for one in known if one.engine in run and one.affects(run[one.engine])]


def of(
    engine: Engine,
    situations: Iterable[Situation],
    model: str | None,
    hardware: Iterable[str],
    stated: str = "",
) -> list[tuple[KnownFault, list[int]]]:
    """Return the faults that a deployment meets, each with the numbers of its engines that do."""
    engines, names = list(situations), tuple(hardware)
    out = []
    concerning = [one for one in every() if one.concerns(model, names)]
    for fault in affecting(engine, stated, concerning):
        met = [number for number, one in enumerate(engines) if fault.met(one)]
        if met:
            out.append((fault, met))
    return out


@functools.cache
def order(version: str, package: str = "vllm") -> Version | None:
    """Return the order of a version, also of one with the build of an image, None for no version.

    >>> order("v0.20.0-cu130") == order("0.20.0+cu130") == order("0.20.0")
    True
    >>> str(order("kimi-k3"))
    '0.23.1rc1.dev1042'
    """
    text = version.strip()
    named = _data()["images"][package].get(text)
    text = str(named["version"]) if named else text.removeprefix("v")
    try:
        return Version(re.split(r"[+]|-(?![0-9])", text)[0])
    except InvalidVersion:
        return None


def is_image(package: str, tag: str) -> bool:
    """Return whether the tag of an image is a name whose version is known."""
    return tag in _data()["images"][package]


def _base(version: str, otherwise: str) -> str:
    this = order(version, "vllm-ascend")
    return this.base_version if this else otherwise


# Conditions ----------------------------------------------------------------------------------


def _holds(when: Mapping[str, Any], situation: Situation) -> bool:
    return all(
        any(_holds(one, situation) for one in test)
        if name == "any"
        else _passes(test, _value(name, situation), situation)
        for name, test in when.items()
    )


def _value(name: str, situation: Situation) -> Any:
    """Return what a name of a condition stands for in a situation, None for nothing."""
    if not name.startswith("--"):
        return (situation.env if name.isupper() else situation.facts).get(name)
    value: Any = situation.flags
    for part in name.removeprefix("--").split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _passes(test: Any, found: Any, situation: Situation) -> bool:
    if test == "absent":
        return found is None and situation.whole
    if found is None:
        return False
    if isinstance(found, Unread):  # there, and its value is not known
        return bool(test == "given")
    if isinstance(found, tuple | list) and test not in ("given", "enabled"):
        return any(_passes(test, one, situation) for one in found)
    if test == "given":
        return True
    if test == "enabled":
        return _plain(found) not in _OFF
    if isinstance(test, tuple | list):
        return any(_passes(one, found, situation) for one in test)
    if isinstance(test, Mapping):
        return all(_compares(how, bound, found, situation) for how, bound in test.items())
    return _plain(found) == _plain(test)


def _plain(value: Any) -> str:
    """Return a value as text: 1 and "1" are one value, True and "true" another."""
    return str(value).casefold()


def _compares(how: str, bound: Any, found: Any, situation: Situation) -> bool:
    if how == "like":
        return re.fullmatch(bound, str(found)) is not None
    if how == "below":
        one, other = order(str(found)), order(str(bound))
        return one is not None and other is not None and one < other
    number = _number(found)
    if isinstance(bound, str):  # the name of a fact
        bound = situation.facts.get(bound)
    if number is None or not isinstance(bound, int | float):
        return False
    if how == "min":
        return number >= bound
    assert how == "not_multiple_of", how
    return number % bound != 0


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
