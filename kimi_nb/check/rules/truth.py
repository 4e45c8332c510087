"""Rules on documents and versions: known differences, untested pairs, known faults."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.check.findings import NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files
from kimi_nb.params import fields


@rule(
    "truth/errata",
    NOTE,
    "A value that differs from the document says so.",
    "Read the reason; kimi-nb plan --explain shows all of them.",
    "kimi_nb/data/params/errata.yaml",
    needs=("plan",),
)
def errata(d: Deployment) -> Iterator[Problem]:
    """Who compares the plan with the document finds these differences, and no others."""
    assert d.plan is not None
    for entry in d.plan.errata:
        yield Problem(
            Spot(str(entry["document"])),
            f"{entry['id']}: the document says {entry['says']}; used is {entry['uses']}",
            str(entry["why"]),
        )


@rule(
    "truth/untested-version",
    WARNING,
    "The version is the one that the recipe was written for.",
    "Leave --engine-version out, or rehearse and verify with care.",
    "the version that the recipe names",
    needs=("plan",),
)
def untested(d: Deployment) -> Iterator[Problem]:
    """Nobody published this pair: flags are checked, behaviour is not."""
    assert d.plan is not None
    recipe = getattr(d.plan.request, "recipe", None)
    if recipe is not None:
        named = str(recipe.engine_version).removeprefix("v")
        if named != d.engine.version:
            yield Problem(Spot(d.title), f"{d.engine} is not the version of the recipe ({named})")


@rule(
    "truth/known-fault",
    WARNING,
    "The version has no known fault with this deployment.",
    "Take a version outside the range.",
    "public issues",
    needs=("version",),
)
def known_fault(d: Deployment) -> Iterator[Problem]:
    """Others lost their hour to it already."""
    roles = {server.role for server in d.servers}
    for entry in data_files.facts("catalog/versions")["faults"]:
        last = str(entry["last"])
        if (
            entry["package"] != d.engine.package
            or catalog.earlier(d.engine.version, str(entry["first"]))
            or catalog.earlier(last, d.engine.version)
        ):
            continue
        if entry.get("models") and (d.model is None or d.model.name not in entry["models"]):
            continue
        if entry.get("hardware") and (
            d.hardware is None or d.hardware.recipes_of not in entry["hardware"]
        ):
            continue
        if entry.get("precision") and (
            d.weights is None or d.weights.precision != entry["precision"]
        ):
            continue
        if entry.get("role") and entry["role"] not in roles:
            continue
        versions = last if str(entry["first"]) == last else f"{entry['first']} to {last}"
        yield Problem(
            Spot(str(d.engine)), f"{entry['says']} ({versions})", str(entry.get("fix", ""))
        )


@rule(
    "truth/example-address",
    NOTE,
    "No address is one of the examples.",
    "Write your own site file (start from params/sites) and name it with --site.",
    "RFC 5737: addresses for documentation",
)
def example_address(d: Deployment) -> Iterator[Problem]:
    """Addresses for documentation lead nowhere: the scripts are right but for them."""
    published = {text.rsplit(":", 2)[0] for box in d.boxes for text in box.published}
    given = {server.address for server in d.servers} | published
    found = sorted(address for address in given if fields.is_example(address))
    if found:
        yield Problem(
            Spot(d.title),
            f"{', '.join(found[:4])}"
            f"{' and more' if len(found) > 4 else ''} are addresses of the example site",
        )


@rule(
    "truth/unknown-version",
    WARNING,
    "The engine's version is one that is listed.",
    "Name the version with --engine-version.",
    "the flag catalogs",
)
def version_listed(d: Deployment) -> Iterator[Problem]:
    """What another version refuses or ignores may differ from what is said here."""
    for fault in d.faults:
        if fault.rule == "truth/unknown-version":
            yield Problem(fault.spot, fault.message)


@rule(
    "truth/several-versions",
    WARNING,
    "The files of a deployment name one version.",
    "Check each on its own, or name the version with --engine-version.",
    "the images' tags",
)
def one_version(d: Deployment) -> Iterator[Problem]:
    """Two versions in one group refuse each other; of two deployments only one is checked as what
    it is."""
    for fault in d.faults:
        if fault.rule == "truth/several-versions":
            yield Problem(fault.spot, fault.message)
