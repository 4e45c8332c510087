"""Count the groups, nodes and ranks of what is published.

A publisher gives commands; how many nodes a group has follows from the ranks and the devices of a
node, and how many groups there are from the number of commands for a role:

    counted(one, devices=16).roles[0].groups
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kimi_nb.catalog import fill_ins
from kimi_nb.core import numbers
from kimi_nb.upstream import published
from kimi_nb.upstream.counted import Deployment, Role

_PORTS = {
    "--port": "http",
    "--data-parallel-rpc-port": "rpc",
    "--master-port": "master",
}
_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"
_FIRST_PORT = re.compile(r"first port (\d{1,5})\b")
# Variables of an engine, which stay although the command line names one of them.
_ENGINES = ("VLLM", "HCCL", "LD_")


def counted(one: published.Deployment, devices: int) -> Deployment:
    """Return a published deployment with its shape, on nodes of so many devices."""
    by_role: dict[str, list[published.Role]] = {}
    for role in one.roles:
        by_role.setdefault(_name(role.name), []).append(role)
    roles = []
    for name, mine in by_role.items():
        first = mine[0]
        shape = {key: getattr(first.layout, key) or 1 for key in ("tp", "dp", "pp")}
        nodes = max(1, -(-shape["tp"] * shape["dp"] * shape["pp"] // devices))
        if first.layout.dp_local:
            nodes = max(1, shape["dp"] // first.layout.dp_local)
        apart = "decode" in by_role or "prefill" in by_role
        rendered = one.id.startswith("recipes:")
        if rendered and apart:
            nodes = first.nodes
        elif not apart:
            nodes = max(nodes, one.nodes)
        groups = one.instances if not apart else 1 if rendered else max(1, len(mine) // nodes)
        ports = _ports(first, one.notes)
        roles.append(_role(first, name, ports, nodes=nodes, groups=groups, **shape))
        if not apart:
            roles += [
                _role(role, f"worker{at}", ports, nodes=nodes, **shape)
                for at, role in enumerate(mine[1:], 1)
            ]
    return Deployment(
        id=one.id,
        model=one.model,
        hardware=one.hardware,
        version=one.version,
        verified=not rendered or one.status == "verified",
        roles=tuple(roles),
    )


def _name(role: str) -> str:
    return role if role in ("prefill", "decode") else "mixed"


def _role(role: published.Role, name: str, ports: Mapping[str, int], **shape: int) -> Role:
    return Role(
        name=name,
        argv=role.argv,
        env=_engine_variables(role),
        ports=ports,
        per_rank="--data-parallel-rank" in role.flags,
        **shape,
    )


def _engine_variables(role: published.Role) -> dict[str, str]:
    """Return the variables of a role without those that its own script alone reads."""
    values = [*(value for _, value in role.argv), *role.env.values()]
    out = {}
    for name, text in role.env.items():
        used = re.compile(rf"\$\{{?{re.escape(name)}\b")
        if not name.startswith(_ENGINES) and any(
            used.search(str(value)) for value in values if value != text
        ):
            continue
        for appended in (":$LD_PRELOAD", ":$LD_LIBRARY_PATH"):
            text = text.replace(appended, "")
        out[name] = text
    return out


def _ports(role: published.Role, notes: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, Any] = {kind: role.flags.get(flag) for flag, kind in _PORTS.items()}
    transfer = role.flags.get("--kv-transfer-config")
    if isinstance(transfer, dict):
        found["kv"] = transfer.get("kv_port")
    found["side_channel"] = role.env.get(_SIDE_CHANNEL)
    if found["http"] is None or fill_ins.holds(str(found["http"])):
        said = next((match[1] for note in notes if (match := _FIRST_PORT.search(note))), None)
        found["http"] = said or role.env.get("SERVER_PORT")
    there = {kind: numbers.whole(str(port)) for kind, port in found.items()}
    return {kind: port for kind, port in there.items() if port is not None}
