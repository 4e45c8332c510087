"""Rehearse the commands that the vendors' documents publish.

    deployment, plan = documented.find("k2.6", "a3", "pd")
    rehearsal.start(plan, folder, make=documented.maker(deployment))

The commands keep every flag and variable. Only the addresses, which are placeholders in the
documents, are replaced by those of the rehearsal. The ranks are started the way the documents'
launcher starts them: all at once, and none is stopped when another one fails.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb.check import documents
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.core import shell
from kimi_nb.params.settings import Value
from kimi_nb.plan import build, ports
from kimi_nb.plan.router import router
from kimi_nb.plan.spec import EngineSpec, Plan, Router
from kimi_nb.rehearse.loopback import Block


def find(
    model: str, hardware: str, layout: str = "", variant: str = "", version: str = ""
) -> tuple[Deployment, Plan]:
    """Return the published deployment and our own plan for the same recipe.

    Raises:
        NoRecipeError: No document publishes commands for these parameters.
    """
    deployment = next(
        found for found, _ in documents.deployments(model, hardware, layout, variant, version)
    )
    return deployment, build.plan(
        model, hardware, layout or None, variant=variant, engine_version=deployment.engine.version
    )


def maker(deployment: Deployment) -> Callable[[Plan, Path, Block], tuple[Plan, dict[str, str]]]:
    """Return a function that makes the published engines a plan, with the scripts to start them."""
    return lambda own, work, block: _made(deployment, own, block)


def _made(deployment: Deployment, own: Plan, block: Block) -> tuple[Plan, dict[str, str]]:
    # Where the document offers alternatives to choose from, try all of them, each on its own node.
    servers = [server for server in deployment.servers if server.certain] or list(
        deployment.servers
    )
    nodes = list(dict.fromkeys(server.node for server in servers))
    there = {name: block.address(index) for index, name in enumerate(nodes)}
    where = _addresses(servers, deployment, there)
    engines = tuple(_engine(server, servers, there, where) for server in servers)
    fronted = _router(deployment, engines, nodes)
    first = next(engine for engine in engines if engine.url)
    plan = replace(
        named(own),
        title=deployment.title,
        engines=engines,
        router=fronted,
        launches=(),
        containers=(),
        jobs=(),
        host_tuning=(),
        secrets={},
        url=fronted.url if fronted else first.url or "",
        served_name=servers[0].names[0],
        flags=_flags(servers),
    )
    return plan, _files(plan)


def named(own: Plan) -> Plan:
    """Return our plan under the name of the published one."""
    return replace(own, scenario="as-documented")


def _addresses(
    servers: Sequence[EngineView], deployment: Deployment, there: Mapping[str, str]
) -> dict[str, str]:
    """Map each address in the commands to an address of the rehearsal."""
    found: dict[str, str] = {}
    for server in servers:
        own = server.env.get("HCCL_IF_IP") or server.env.get("VLLM_HOST_IP")
        if own:
            found.setdefault(own, there[server.node])
    for server in servers:  # an address that no node claims: the first to name it
        for flag in ("data-parallel-address", "master-addr"):
            text = server.text(flag)
            if text and text not in found:
                found[text] = there[server.node]
    for proxy in deployment.proxies:
        if proxy.host and proxy.host not in found:
            found[proxy.host] = next(iter(there.values()))
    return {
        text: loopback
        for text, loopback in found.items()
        if text not in ("0.0.0.0", "127.0.0.1", "localhost")
    }


def _engine(
    server: EngineView,
    servers: Sequence[EngineView],
    there: Mapping[str, str],
    where: Mapping[str, str],
) -> EngineSpec:
    def local(text: str) -> str:
        for theirs, ours in where.items():
            text = text.replace(theirs, ours)
        return text

    group = [one for one in servers if (one.role, one.group) == (server.role, server.group)]
    groups = list(dict.fromkeys(one.group for one in servers if one.role == server.role))
    number = groups.index(server.group) if server.group is not None else 0
    alone = server.group is None
    rank = server.rank or 0
    return EngineSpec(
        name=f"{server.role}{number}-rank{rank}"
        if len(group) == 1 or not alone
        else f"{server.role}{group.index(server)}-rank{rank}",
        node=server.node,
        address=there[server.node],
        role=server.role,
        group=number,
        rank=rank,
        ranks=server.ranks or 1,
        dp_size=server.dp or 1,
        tp_size=server.tp or 1,
        pp_size=server.pp or 1,
        devices=server.devices or (),
        http_port=None if server.headless else server.http_port or ports.HTTP,
        kv_port=server.kv_port,
        rpc_port=server.rpc_port,
        side_channel_port=server.side_channel_port,
        headless=server.headless,
        env={name: local(value) for name, value in server.env.items()},
        argv=tuple(local(word) for word in server.argv),
    )


def _router(
    deployment: Deployment, engines: Sequence[EngineSpec], nodes: Sequence[str]
) -> Router | None:
    """Return the published proxy on its own port, in front of the engines that it lists."""
    if not deployment.proxies or not any(engine.role == "prefill" for engine in engines):
        return None
    proxy = deployment.proxies[0]
    listed = {(role, port) for role, _, port in proxy.workers}
    behind = [engine for engine in engines if (engine.role, engine.http_port) in listed]
    kind = "upstream" if proxy.kind == "upstream" else "vllm-router"
    return router(kind, proxy.port or 8000, behind)


def _flags(servers: Sequence[EngineView]) -> dict[str, dict[str, Value]]:
    """Return the flags of each role, as set on its first engine."""
    out: dict[str, dict[str, Value]] = {}
    for server in servers:
        out.setdefault(
            server.role,
            {
                name: Value(value, "document", server.spot.name)
                for name, value in server.flags.items()
            },
        )
    return out


def _files(plan: Plan) -> dict[str, str]:
    """Return the scripts: one for each engine, and for each node one that starts its engines."""
    out: dict[str, str] = {}
    by_node: dict[str, list[EngineSpec]] = {}
    for engine in plan.engines:
        by_node.setdefault(engine.node, []).append(engine)
        exports = [_export(name, value) for name, value in engine.env.items()]
        out[f"{engine.node}/rank_{engine.rank}.sh"] = shell.script(
            [f"{plan.title}: {engine.name}."],
            [*exports, "", *shell.command(["exec", *engine.argv])],
        )
    for node, engines in by_node.items():
        lines = ['cd "$(dirname "$0")"', "mkdir -p logs"]
        lines += [
            f"bash rank_{engine.rank}.sh > logs/rank_{engine.rank}.log 2>&1 &" for engine in engines
        ]
        out[f"{node}/serve.sh"] = shell.script([f"{plan.title}: {node}."], [*lines, "wait"])
    if plan.router is not None:
        out[f"{plan.router.node}/proxy.sh"] = shell.script(
            [f"{plan.title}: the front door."], [f"exec {shlex.join(plan.router.argv)}"]
        )
    return out


def _export(name: str, value: str) -> str:
    """Return a line that exports a variable, without references of its value to the variable.

    LD_PRELOAD is exported only if its file exists.
    """
    if f"${{{name}}}" in value or f"${name}" in value:
        value = value.replace(f":${{{name}}}", "").replace(f":${name}", "")
    if name == "LD_PRELOAD":
        return f"[ -e {shell.quote(value)} ] && export {name}={shell.quote(value)} || true"
    return shell.export(name, value)
