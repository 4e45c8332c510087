"""Check a plan, scripts or published documents, and return the findings.

>>> from kimi_nb.check import judge
>>> from kimi_nb.plan import build
>>> judge.plan(build.plan("k2.5", "a3", "pd")).ok
True

Scripts and published documents are checked the same way::

    judge.files(["run.sh", "proxy.sh"], engine="vllm-ascend", version="0.18.0")
    judge.documents("k2.6", "a3", "pd")
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR, SEVERITIES, WARNING, Bar, Finding, Findings
from kimi_nb.check.rules import capacity, registry
from kimi_nb.check.view import clients, commands, container_start, engine_view
from kimi_nb.check.view.deployment import Batch, Deployment, Program, StoreFile
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.core.errors import CheckError, ParameterError, choice
from kimi_nb.params import load, schema
from kimi_nb.plan import build, pod_names, store, store_settings
from kimi_nb.plan.spec import Plan

PACKAGES = ("vllm", "vllm-ascend")


def plan(plan: Plan) -> Findings:
    """Check a plan against every rule.

    Errors that come of errata which the user has switched off are warnings: the documents' own
    settings were asked for, and their authors have run them.
    """
    found = _checked(of_plan(plan))
    if found.ok or not plan.errata_off:
        return found
    usual = build.from_request(replace(plan.request, errata=(), errata_off=frozenset()))
    errors = {(one.rule, one.where) for one in _checked(of_plan(usual)).errors}
    return replace(
        found,
        findings=by_severity(
            [
                one
                if one.severity != ERROR or (one.rule, one.where) in errors
                else replace(
                    one, severity=WARNING, message=f"{one.message} (as published, on purpose)"
                )
                for one in found.findings
            ]
        ),
    )


def _checked(deployment: Deployment) -> Findings:
    return replace(registry.check(deployment), memory=memory_of(deployment))


def passed(found: Findings) -> Findings:
    """Return the findings if none of them is an error.

    Raises CheckError otherwise. Its message holds the verdict and the first eight errors, so that
    it fits on one screen.
    """
    if found.ok:
        return found
    shown = [f"{one.where}: {one.message}. {one.fix} [{one.rule}]" for one in found.errors[:8]]
    more = [f"... and {len(found.errors) - 8} more"] if len(found.errors) > 8 else []
    raise CheckError("\n".join([found.verdict, *shown, *more]))


def memory_of(deployment: Deployment) -> tuple[Bar, ...]:
    """Estimate the device memory of each kind of engine.

    Engines are left out if facts for the estimate are missing, or if an engine of the same role
    needs the same.
    """
    out: list[Bar] = []
    for one, _ in deployment.profiles():
        fit = capacity.fit_of(deployment, one)
        if fit is not None and not any(
            bar.fit.parts == fit.parts and bar.role == one.role for bar in out
        ):
            out.append(Bar(one.role, one.spot.name, fit))
    return tuple(out)


def of_plan(plan: Plan) -> Deployment:
    """Convert a plan to the deployment that the rules check.

    It is read from nothing but the command lines that would be executed: what else a plan knows
    (which engines are meant to form a group, in which role, on which devices) would hide a command
    line that does not say it.
    """
    engine = catalog.engine(plan.engine, plan.engine_version)
    servers: list[EngineView] = []
    for one in plan.engines:
        servers.append(
            engine_view.of(
                engine,
                one.argv,
                one.env,
                Spot(one.name),
                one.node,
                address=one.address,
                like=servers[-1] if servers else None,
            )
        )
    proxies = (
        ()
        if plan.router is None
        else (commands.proxy(plan.router.argv, Spot("router"), plan.router.node),)
    )
    callings = [
        clients.client(engine, one.argv, Spot(f"client {one.name}")) for one in plan.clients
    ]
    jobs, programs = _jobs(plan)
    model, hardware, weights = _facts(plan)
    return Deployment(
        title=plan.name,
        engine=engine,
        engine_known=True,
        servers=tuple(servers),
        proxies=proxies,
        clients=tuple(one for one in callings if one is not None),
        boxes=tuple(
            container_start.box(one.argv, one.env, Spot(f"container on {one.node}"), one.node)
            for one in plan.containers
        ),
        launchers=tuple(
            commands.launcher(one.argv, Spot(f"launcher on {one.node}"), one.node)
            for one in plan.launches
        ),
        batches=jobs,
        programs=programs,
        model=model,
        weights=weights,
        hardware=hardware,
        devices_per_node=plan.devices_per_node,
        stores=_stores(plan),
        services=_services(plan),
        complete=True,
        plan=plan,
    )


def _facts(plan: Plan) -> tuple[schema.Model | None, schema.Hardware | None, schema.Weights | None]:
    asked = plan.request
    return (asked.model, asked.hardware, asked.weights) if asked else (None, None, None)


def _services(plan: Plan) -> frozenset[str]:
    cluster = plan.request.site.kubernetes if plan.request else None
    return frozenset([pod_names.door_host(cluster)] if cluster else [])


def _stores(plan: Plan) -> tuple[StoreFile, ...]:
    if plan.store is None:
        return ()
    read = [(node, store_settings.CONFIG, plan.store.config) for node in plan.nodes]
    read += [(node, store.SERVICE_CONFIG, held) for node, held in plan.store.services.items()]
    return tuple(StoreFile(Spot(f"{node}/{name}"), node, given) for node, name, given in read)


def _jobs(plan: Plan) -> tuple[tuple[Batch, ...], tuple[Program, ...]]:
    batches, programs = [], []
    for job in plan.jobs:
        spot = Spot(job.name, f"jobs/{job.file}")
        batches.append(commands.batch(job.options, [job.argv[0]], spot))
        programs.append(Program(spot, job.argv, job.env))
    return tuple(batches), tuple(programs)


def files(
    paths: Sequence[Path | str], *, engine: str = "", version: str = "", hardware: str = ""
) -> Findings:
    """Check scripts against every rule.

    Each file counts as a node, and a folder is read as one deployment.

    ``engine`` is ``vllm`` or ``vllm-ascend``, and ``version`` its version; if they are left out, an
    image's tag or a pinned install tells. A version that is not listed is judged by those before and
    after it: what is an error in one of them only is a warning. ``hardware`` is the name or the file of a hardware
    description. Raises ParameterError for a value that does not exist and a path that cannot be
    read.
    """
    from kimi_nb.check import reading  # start-up: a plan needs no grammar of bash

    if engine and engine not in PACKAGES:
        raise ParameterError(choice("engine", engine, PACKAGES))
    chip = load.hardware(hardware) if hardware else None
    package = engine or (chip.engine if chip and version else "")
    with _without_collector():
        return between([_checked(one) for one in reading.read_all(paths, package, version, chip)])


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Pause the search for cycles of objects.

    What is read is kept until the end of the check: to look through all of it again and again takes
    40 % of the time of a thousand scripts, and frees nothing.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def between(every: Sequence[Findings]) -> Findings:
    """Merge what two versions say of the same files: an error of one of them is a warning."""
    if len(every) == 1:
        return every[0]
    first, other = every

    def errors(found: Findings) -> set[tuple[str, str, int]]:
        return {(one.rule, one.file, one.line) for one in found.errors}

    def halved(found: Findings, beside: Findings) -> list[Finding]:
        both = errors(beside)
        return [
            one
            if one.severity != ERROR or (one.rule, one.file, one.line) in both
            else replace(
                one,
                severity=WARNING,
                message=f"{one.message} (not so in {beside.engine})",
            )
            for one in found.findings
        ]

    own = errors(first)
    more = [
        one
        for one, old in zip(halved(other, first), other.findings, strict=True)
        if old.severity == ERROR and (one.rule, one.file, one.line) not in own
    ]
    return replace(
        first,
        engine=f"{first.engine} and {other.engine}",
        findings=by_severity([*halved(first, other), *more]),
    )


def documents(
    model: str = "", hardware: str = "", layout: str = "", variant: str = "", version: str = ""
) -> Findings:
    """Check the commands of the documents as they were published.

    An empty name matches everything. Each deployment is checked at the version that its commands
    name. At the other versions that the document names, only further errors of the command line and
    the configuration (rules ``engine/`` and ``json/``) are added. ``version`` replaces them all.
    Raises NoRecipeError if no document matches.
    """
    from kimi_nb.check import documents as source  # start-up: only for documents

    every: list[Findings] = []
    for deployment, first in source.deployments(model, hardware, layout, variant, version):
        found = _checked(deployment)
        if not first:
            told = {(one.rule, one.where) for one in every[-1].errors}
            kept = tuple(
                replace(one, message=f"{one.message} (the document names {deployment.engine.tag})")
                for one in found.errors
                if one.rule.startswith(("engine/", "json/")) and (one.rule, one.where) not in told
            )
            every[-1] = replace(every[-1], findings=(*every[-1].findings, *kept))
            continue
        every.append(found)
    return join(every)


def join(every: Sequence[Findings]) -> Findings:
    """Merge several checks into one, with each finding once, in the order of severity.

    A rule counts as skipped if every check skipped it.
    """
    if len(every) == 1:
        first = every[0]
        return replace(first, findings=by_severity(first.findings))
    found = tuple(dict.fromkeys(one for findings in every for one in findings.findings))
    skipped = {
        name: why
        for name, why in every[0].skipped.items()
        if all(name in findings.skipped for findings in every)
    }
    return Findings(
        f"{len(every)} deployments",
        ", ".join(dict.fromkeys(findings.engine for findings in every)),
        by_severity(found),
        every[0].rules,
        skipped,
        memory=tuple(bar for findings in every for bar in findings.memory),
    )


def by_severity(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings by severity, errors first, and keep the order within each severity."""
    return tuple(sorted(findings, key=lambda one: SEVERITIES.index(one.severity)))
