"""From a plan, a document or scripts to findings.

    check.plan(plan)                                   # Findings of our own plan
    check.files(["run.sh", "proxy.sh"], engine="vllm-ascend", version="0.18.0")
    check.documents("k2.6", "a3", "pd")                # the commands as they were published
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kimi_nb import catalog, commands, params, rules, schema
from kimi_nb.deployment import Batch, Deployment, Program, Spot, server
from kimi_nb.errors import ParameterError, choice
from kimi_nb.findings import Findings
from kimi_nb.plan import Plan

PACKAGES = ("vllm", "vllm-ascend")


def plan(plan: Plan) -> Findings:
    """Every rule asked of a plan."""
    return rules.check(of_plan(plan))


def of_plan(plan: Plan) -> Deployment:
    """A plan as the rules see it: from the command lines that would be executed."""
    engine = catalog.engine(plan.engine, plan.engine_version)
    servers = tuple(server(
        engine, one.argv, one.env, Spot(one.name), one.node, group=(one.role, one.group),
        role=one.role, address=one.address, devices=one.devices) for one in plan.engines)
    proxies = () if plan.router is None else (
        commands.proxy(plan.router.argv, Spot("router"), plan.router.node),)
    clients = [commands.client(engine, one.argv, Spot(f"client {one.name}"))
               for one in plan.clients]
    jobs, programs = _jobs(plan)
    model, hardware, weights, site = _facts(plan)
    return Deployment(
        title=plan.name, engine=engine, engine_known=True,
        servers=servers, proxies=proxies,
        clients=tuple(one for one in clients if one is not None),
        boxes=tuple(commands.box(one.argv, one.env, Spot(f"container on {one.node}"), one.node)
                    for one in plan.containers),
        launchers=tuple(commands.launcher(one.argv, Spot(f"launcher on {one.node}"), one.node)
                        for one in plan.launches),
        batches=jobs, programs=programs, model=model, weights=weights, hardware=hardware,
        site=site, devices_per_node=plan.devices_per_node, complete=True, plan=plan)


def _facts(plan: Plan) -> tuple[schema.Model | None, schema.Hardware | None,
                                schema.Weights | None, schema.Site | None]:
    asked = plan.request
    if asked is None:
        return None, None, None, None
    return asked.model, asked.hardware, asked.weights, asked.site


def _jobs(plan: Plan) -> tuple[tuple[Batch, ...], tuple[Program, ...]]:
    batches, programs = [], []
    for job in plan.jobs:
        spot = Spot(job.name, f"jobs/{job.file}")
        batches.append(commands.batch(job.options, [job.argv[0]], spot))
        programs.append(Program(spot, job.argv, job.env))
    return tuple(batches), tuple(programs)


def files(paths: Sequence[Path | str], *, engine: str = "", version: str = "",
          hardware: str = "") -> Findings:
    """Every rule asked of scripts: files are nodes, a folder is one deployment.

    ``engine`` is vllm or vllm-ascend, ``version`` its version; without them an image's tag
    tells. ``hardware`` is a name or file of ours. Raises ParameterErrors.
    """
    from kimi_nb import reading

    if engine and engine not in PACKAGES:
        raise ParameterError(choice("engine", engine, PACKAGES))
    chip = params.hardware(hardware) if hardware else None
    found = reading.read(paths, engine or (chip.engine if chip and version else ""), version, chip)
    return rules.check(found)
