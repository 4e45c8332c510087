"""Which versions of the engine still serve a deployment: known faults, changes, upstream's tests.

>>> found = of("k2.6", "a3", "pd")
>>> found.recipe, found.tested["versions"][-1]
('0.20.2rc1', '0.25.1rc1')
>>> next(row.serves for row in found.rows if row.version == "0.13.0")
'no: from 0.15.0rc1'

The plan is made anew for each version, so that a fault counts as met where the plan of that version
meets its condition.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import known_faults, model_versions
from kimi_nb.catalog.known_faults import SEVERITIES
from kimi_nb.check import fault_facts
from kimi_nb.core.errors import KimiError
from kimi_nb.params import load, recipes
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.show import Shown, Table

_UNLISTED = "its flags are not in the catalog"


@dataclass(frozen=True)
class FaultHere:
    """A known fault of a version; ``met`` is whether the plan of that version meets its condition."""

    id: str
    severity: str
    met: bool


@dataclass(frozen=True)
class VersionRow:
    """One version of the engine.

    Attributes:
        serves: Whether it serves the model, in words.
        faults: Those that concern the model and the hardware, errors first.
        gone: How many flags, variables and keys of the recipe's version its plan lacks.
        new: How many its plan has beside those.
        changed: How many flags and variables of the plan have other defaults, types or choices.
        refused: Why no plan can be made for it, or "".
        tested: Whether upstream tests the model on the hardware with it.
    """

    version: str
    serves: str
    faults: tuple[FaultHere, ...]
    gone: dict[str, int]
    new: dict[str, int]
    changed: int
    refused: str
    tested: bool

    @property
    def changes(self) -> str:
        """What its plan changes against that of the recipe's version, in words."""
        if self.refused:
            return self.refused
        parts = [f"{_counted(self.gone)} gone"] if self.gone else []
        parts += [f"{_counted(self.new)} new"] if self.new else []
        parts += [f"{self.changed} changed"] if self.changed else []
        return "; ".join(parts) or "none"


@dataclass(frozen=True, repr=False)
class EngineVersions(Shown):
    """Every version of an engine for one deployment; ``recipe`` is that of its recipe."""

    model: str
    hardware: str
    layout: str
    engine: str
    recipe: str
    tested: dict[str, Any] | None
    rows: tuple[VersionRow, ...]

    @property
    def last_tested(self) -> str:
        """The last version with which upstream tests it, in a sentence."""
        if self.tested is None:
            return f"No test of {self.model} on {self.hardware} by upstream is known."
        branches = self.tested.get("branches", ())
        return (
            f"Upstream tests {self.model} on {self.hardware} with {self.engine} "
            f"{self.tested['versions'][-1]} as the last release"
            + (f", and on the branches {', '.join(branches)}" if branches else "")
            + f" ({self.tested['source']})."
        )

    def table(self) -> Table:
        """Return a table with a row for each version."""
        rows = tuple(
            (
                f"{row.version} (recipe)" if row.version == self.recipe else row.version,
                row.serves,
                "\n".join(f"{one.severity} {one.id}" for one in row.faults if one.met),
                sum(not one.met for one in row.faults) or "",
                "" if row.version == self.recipe else row.changes,
                "yes" if row.tested else "",
            )
            for row in self.rows
        )
        title = f"{self.engine} for {self.model} on {self.hardware}, {self.layout}"
        headings = (
            "version",
            "serves",
            "known faults that this plan meets",
            "others",
            "changes against the recipe's",
            "tested by upstream",
        )
        return Table(title, headings, rows)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.last_tested}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        out = asdict(self)
        out["versions"] = out.pop("rows")
        return out


def of(model: str, hardware: str, layout: str = "", variant: str = "") -> EngineVersions:
    """Return every version of the engine for a deployment, oldest first.

    Without a layout it is that of the first recipe. Raises what `build.plan` raises for a model, a
    hardware or a layout that does not exist.
    """
    there = recipes.of(load.model(model), load.hardware(hardware))
    layout = layout or (there[0].layout if there else "")
    plan = build.plan(model, hardware, layout or None, variant=variant)
    tested = model_versions.tested(plan.engine, plan.model, (plan.request.hardware.recipes_of,))
    versions = catalog.versions(plan.engine)
    later = [
        name for name in known_faults.unlisted(plan.engine) if catalog.earlier(versions[-1], name)
    ]
    rows = []
    for version in (*versions, *later):
        rows.append(
            _row(plan, version, version in later, tested, (model, hardware, layout, variant))
        )
    return EngineVersions(
        plan.model,
        plan.hardware,
        plan.layout,
        plan.engine,
        plan.engine_version,
        tested,
        tuple(rows),
    )


def faults_table(found: EngineVersions) -> Table:
    """Return a table with the text of each fault that a version of the deployment has."""
    here = {one.id: one.met for row in found.rows for one in row.faults}
    for row in found.rows:
        for one in row.faults:
            here[one.id] |= one.met
    rows = tuple(
        (
            one.id,
            one.severity,
            "yes" if here[one.id] else "",
            one.range,
            one.symptom,
            one.needs,
            one.way_out,
            one.source,
            "; ".join(part for part in (one.evidence, one.note) if part),
        )
        for one in known_faults.every()
        if one.id in here
    )
    headings = (
        "known fault",
        "severity",
        "met",
        "versions",
        "what is seen",
        "with",
        "way out",
        "source",
        "how it is known",
    )
    return Table(f"{len(rows)} known faults", headings, rows)


def _row(
    plan: Plan,
    version: str,
    unlisted: bool,
    tested: dict[str, Any] | None,
    asked: tuple[str, str, str, str],
) -> VersionRow:
    refused, there = _UNLISTED if unlisted else "", plan
    if not unlisted and version != plan.engine_version:
        model, hardware, layout, variant = asked
        try:
            there = build.plan(model, hardware, layout, variant=variant, engine_version=version)
        except KimiError as error:
            refused = str(error).split("\n")[0].split(". ")[0]
    base, names = _names(plan), _names(there)
    return VersionRow(
        version,
        model_versions.serves(plan.engine, plan.model, version),
        _faults(there, version, unlisted or bool(refused)),
        _count(base - names),
        _count(names - base),
        0 if refused else _changed(plan, there),
        refused,
        bool(tested) and version in map(str, (tested or {})["versions"]),
    )


def _faults(plan: Plan, version: str, stated: bool) -> tuple[FaultHere, ...]:
    """Return the faults of a version that concern a plan.

    ``stated`` is whether the plan is that of another version, as there is none of this one.
    """
    named = version if stated else ""
    engine = catalog.engine(plan.engine, plan.engine_version)
    hardware = plan.request.hardware
    met = {fault.id for fault, _ in fault_facts.of_plan(plan, named)}
    found = [
        FaultHere(one.id, one.severity, one.id in met)
        for one in known_faults.affecting(engine, named)
        if one.concerns(recipes.known_as(plan.request.model), (hardware.name, hardware.recipes_of))
    ]
    return tuple(sorted(found, key=lambda one: (not one.met, SEVERITIES.index(one.severity))))


def _names(plan: Plan) -> set[tuple[str, str]]:
    """Return (kind, name) of everything that a plan sets."""
    flags = {name for role in plan.flags.values() for name in role}
    env = {name for role in plan.env.values() for name in role}
    return {("key" if "." in name else "flag", name) for name in flags} | {
        ("variable", name) for name in env
    }


def _count(names: set[tuple[str, str]]) -> dict[str, int]:
    return dict(sorted(Counter(kind for kind, _ in names).items()))


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}{'s' * (count != 1)}" for kind, count in counts.items())


def _changed(plan: Plan, there: Plan) -> int:
    """Return how many flags and variables that both plans set are described otherwise."""
    one = catalog.engine(plan.engine, plan.engine_version)
    other = catalog.engine(there.engine, there.engine_version)
    count = 0
    for kind, name in _names(plan) & _names(there):
        look = catalog.variable if kind == "variable" else catalog.flag
        top = name.partition(".")[0]
        if kind != "key" and _described(look(one, top)) != _described(look(other, top)):
            count += 1
    return count


def _described(entry: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (entry or {}).items() if key not in ("first", "last")}
