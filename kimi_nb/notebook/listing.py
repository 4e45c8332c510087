"""List topics for `Run.list`, with one function for each."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.bundle import scripts
from kimi_nb.check import engine_versions
from kimi_nb.core import data_files, evidence, fingerprint
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.subject import Subject
from kimi_nb.params import recipes
from kimi_nb.plan import build, combinations, known_combinations, tables

_LINES, _NAMED = 12, 6  # of evidence that are shown, and the most names of a list in one


def table(topic: str, subject: Subject, given: Choice) -> show.Table:
    """Return the table of a topic; raise ParameterError with all topics for an unknown one."""
    if topic not in TOPICS:
        raise ParameterError(choice("list", topic, TOPICS))
    return TOPICS[topic](subject, given)


def _recipes(subject: Subject, given: Choice) -> show.Table:
    keys = {
        (
            recipes.served(subject.named, subject.hardware, recipe.layout).name,
            recipe.hardware,
            recipe.layout,
        )
        for recipe in subject.recipes
        if not recipe.derivation
    }
    mine = [
        row
        for row in known_combinations.everything()["recipes"]
        if (row["model"], row["hardware"], row["layout"]) in keys
    ]
    models = sorted({model for model, _, _ in keys})
    return combinations.recipes(
        mine, (models[0], subject.hardware.name) if len(models) == 1 else None
    )


def _matrix(subject: Subject, given: Choice) -> show.Table:
    return combinations.matrix(known_combinations.verdicts())


def _why(subject: Subject, given: Choice) -> show.Table:
    mine = (subject.named.name, subject.hardware.name)
    return combinations.reasons(
        [one for one in known_combinations.verdicts() if (one.model, one.hardware) == mine]
    )


def _notes(subject: Subject, given: Choice) -> show.Table:
    notes = (*subject.hardware.notes, *subject.model.notes)
    return show.Table("Notes", ("note",), tuple((note,) for note in notes))


def _notebooks(subject: Subject, given: Choice) -> show.Table:
    layouts = [recipe.layout for recipe in subject.recipes]
    return tables.notebooks(data_files.facts("notebook/notebooks"), layouts)


def _edits(subject: Subject, given: Choice) -> show.Table:
    names = [scripts.EDITS[item.edit] for item in subject.model.weights.values() if item.edit]
    title = f"{len(names)} scripts that edit the weights before they can be served"
    return show.Table(title, ("script",), tuple((name,) for name in names))


def _jobs(subject: Subject, given: Choice) -> show.Table:
    with_jobs = [recipe for recipe in subject.recipes if recipe.jobs]
    if not with_jobs:
        return show.Table("0 jobs", ("file", "after", "command"), ())
    mine = given.site if given.site and subject.site().slurm else ""
    recipe = with_jobs[0]
    return tables.jobs(
        build.plan(given.model, given.hw, recipe.layout, variant=recipe.variant, site=mine)
    )


def _scores(subject: Subject, given: Choice) -> show.Table:
    from kimi_nb.prove.accuracy import published_scores  # loads scipy: only for scores

    return published_scores.table(published_scores.of(subject.named.name))


def _engine_versions(subject: Subject, given: Choice) -> show.Table:
    if not subject.recipes:
        return show.Table("No recipe, so no plan to compare versions with", ("version",), ())
    found = engine_versions.of(given.model, given.hw, given.layout, given.variant)
    return replace(found.table(), title=found.last_tested)


def _known_faults(subject: Subject, given: Choice) -> show.Table:
    if not subject.recipes:
        return show.Table("No recipe, so no plan that could meet a known fault", ("id",), ())
    found = engine_versions.of(given.model, given.hw, given.layout, given.variant)
    return engine_versions.faults_table(found)


TOPICS: Mapping[str, Callable[[Subject, Choice], show.Table]] = {
    "matrix": _matrix,
    "why": _why,
    "recipes": _recipes,
    "features": lambda subject, given: tables.features(subject.model, subject.hardware),
    "weights": lambda subject, given: tables.weights(subject.model),
    "nodes": lambda subject, given: tables.site(subject.site()),
    "notebooks": _notebooks,
    "notes": _notes,
    "versions": lambda subject, given: tables.versions(subject.engine(given.engine_version)),
    "engine-versions": _engine_versions,
    "known-faults": _known_faults,
    "edits": _edits,
    "jobs": _jobs,
    "scores": _scores,
}


def last_evidence(folder: Path, lines: Sequence[Mapping[str, Any]]) -> show.Table:
    """Return the last lines that a notebook has added to its run's evidence.

    A long list of names is shown by its length; what identifies the program is in the file.
    """
    rows = tuple(
        (_clock(line["time"]), line["stage"], ", ".join(_facts(line))) for line in lines[-_LINES:]
    )
    return show.Table(f"Evidence: {folder / evidence.FILE}", ("time (UTC)", "stage", "facts"), rows)


def _clock(time: str) -> str:
    """Return the time of day of a line.

    >>> _clock("20261125T102947Z")
    '10:29:47'
    """
    return f"{datetime.datetime.strptime(time, evidence.FORM):%H:%M:%S}"


def _facts(line: Mapping[str, Any]) -> Iterator[str]:
    for key, value in line.items():
        if key in ("time", "stage", *fingerprint.OF_PROGRAM) or value in ("", None, [], {}):
            continue
        if isinstance(value, list):
            value = len(value) if len(value) > _NAMED else " ".join(map(str, value))
        said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{key.replace('_', ' ')} {said}"
