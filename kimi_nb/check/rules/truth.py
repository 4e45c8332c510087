"""Rules on documents and versions: known differences, untested pairs, known faults."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb.catalog.known_faults import KnownFault
from kimi_nb.check import fault_facts
from kimi_nb.check.findings import NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView, Spot
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
    "truth/derived",
    NOTE,
    "A document describes the deployment.",
    "Rehearse it, start it small, and verify it before it serves anybody; kimi-nb plan --explain shows "
    "each rule.",
    "kimi_nb/data/plan/derivation.yaml",
    needs=("plan",),
)
def derived(d: Deployment) -> Iterator[Problem]:
    """Nobody has published or run this combination: rules have made it from the nearest one."""
    assert d.plan is not None
    if d.plan.derived:
        steps = d.plan.derived["steps"]
        yield Problem(
            Spot(d.title),
            f"DERIVED from {d.plan.derived['base']}: {len(steps)} values differ from it, by rules",
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
    "kimi_nb/data/catalog/known_faults.yaml, each with its public source",
    needs=("named version",),
)
def known_fault(d: Deployment) -> Iterator[Problem]:
    """Others lost their hour to it already. What does not start, or answers wrongly, is an error;
    what happens under some load, or to some requests, a warning; what depends on something that no
    script tells, a note."""
    for fault, servers in fault_facts.of(d):
        needs = f"; with {fault.needs}" if fault.needs else ""
        way_out = f"{fault.way_out[:1].upper()}{fault.way_out[1:]}." if fault.way_out else ""
        for spot in _places(d, fault, servers):
            yield Problem(
                spot,
                f"known fault {fault.id}: {fault.symptom}{needs} ({fault.range})",
                f"{way_out or 'No way out is known.'} {fault.source}",
                fault.severity,
            )


def _places(d: Deployment, fault: KnownFault, servers: list[EngineView]) -> list[Spot]:
    """Return where a fault is told: at what its condition names, or at the engine's version."""
    if not fault.when:
        return [Spot(str(d.engine))]
    if "proxy" in fault.when:
        return [proxy.spot for proxy in d.proxies[:1]]
    return [_place(fault, server) for server in servers]


def _place(fault: KnownFault, server: EngineView) -> Spot:
    """Return the spot of the first option or variable that a fault's condition names."""
    for name in fault.when:
        flag = name.removeprefix("--").partition(".")[0]
        if name.startswith("--") and flag in server.flags:
            return server.of(flag)
        if name in server.env:
            return server.env_at(name)
    return server.spot


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
