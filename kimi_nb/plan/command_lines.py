"""Build the command line and variables of each engine of a plan."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kimi_nb.params.settings import Value, nested
from kimi_nb.plan.placement import Place
from kimi_nb.plan.roles import Request, RolePlan, fill
from kimi_nb.plan.spec import EngineSpec

# These flags come first, in this order; the others follow in the order of the layers.
_FIRST = ("host", "port", "served-model-name")
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "mixed": "kv_both"}


def argv_of(model: str, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return ``vllm serve MODEL --flag value ...`` for flags with dotted names.

    A switch that is on has no value, one that is off becomes ``--no-...``; JSON is written without
    spaces.

    >>> argv_of("m", {"port": 8000, "enable-expert-parallel": True, "a.b": 1})
    ('vllm', 'serve', 'm', '--port', '8000', '--enable-expert-parallel', '--a', '{"b":1}')
    """
    words = ["vllm", "serve", model]
    whole = nested(flags)
    names = [name for name in _FIRST if name in whole]
    for name in [*names, *(name for name in whole if name not in _FIRST)]:
        value = whole[name]
        if value is True:
            words.append(f"--{name}")
        elif value is False:
            words.append(f"--no-{name}")
        else:
            words += [f"--{name}", text_of(value)]
    return tuple(words)


def text_of(value: Any) -> str:
    """Return a flag's value as one word of a command line."""
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"))
    return str(value)


def role_values(
    request: Request, role: RolePlan, roles: Mapping[str, RolePlan], nodes: int
) -> tuple[dict[str, Value], dict[str, Value]]:
    """Return the flags and variables that all engines of a role share, derived ones included.

    Variables can still contain ``{address}``, ``{nic}`` and ``{leader}``.
    """
    flags, env = dict(role.settings.flags), dict(role.settings.env)

    def add(table: dict[str, Value], name: str, value: Any, reason: str = "") -> None:
        table[name] = Value(value, "plan", "worked out", reason)

    add(flags, "tensor-parallel-size", role.tp, _rule(request, role, "tp"))
    if role.pp > 1:
        add(flags, "pipeline-parallel-size", role.pp)
    if role.dp > 1:
        add(flags, "data-parallel-size", role.dp, _rule(request, role, "dp"))
    if "kv-transfer-config.kv_connector" in flags:
        add(flags, "kv-transfer-config.kv_role", _KV_ROLES[role.role])
        if role.ports["kv"] is not None:
            for name, other in roles.items():
                base = f"kv-transfer-config.kv_connector_extra_config.{name}"
                add(flags, f"{base}.dp_size", other.dp)
                add(flags, f"{base}.tp_size", other.tp)
                if other.pp > 1:
                    add(flags, f"{base}.pp_size", other.pp)
    if nodes > 1:
        for name, text in request.hardware.network_env.items():
            env.setdefault(
                name,
                Value(text, "site", f"site {request.site.name}", "the plan has more than one node"),
            )
    if role.ports["side_channel"] is not None:
        add(
            env,
            "VLLM_NIXL_SIDE_CHANNEL_PORT",
            str(role.ports["side_channel"]),
            "the base: vLLM adds the data parallel rank itself",
        )
    return flags, env


def _rule(request: Request, role: RolePlan, size: str) -> str:
    """Return the rule that a size of a derived recipe is from; "" of any other."""
    marks = request.recipe.derivation
    spec = next(one for name, one in request.recipe.roles.items() if name == role.role)
    if marks is None or getattr(spec, size) != getattr(role, size):
        return ""
    return f"{marks}: {marks.rule(f'{role.role}.{size}')}"


def place_flags(request: Request, role: RolePlan, place: Place) -> dict[str, Any]:
    """Return the flags in which one engine differs from the others of its role."""
    group = place.group
    out: dict[str, Any] = {}
    if role.host != ():
        if role.host is not None:
            out["host"] = role.host
    # With several nodes the network of a container is the host's: `all` would be all of its own.
    elif (
        request.recipe.bind == "address"
        # SLURM chooses the nodes of jobs, so that their addresses are not known.
        or (len(group.nodes) > 1 and not request.recipe.jobs)
        or (request.recipe.install == "docker" and request.recipe.layout == "pd")
    ):
        out["host"] = place.node.address
    if role.ports["http"] is not None:
        out["port"] = place.http_port or role.ports["http"]
    if place.spans:
        out["master-addr"] = group.address
        if role.ports["master"] is not None:
            out["master-port"] = role.ports["master"]
        out["nnodes"] = len(group.nodes)
        out["node-rank"] = place.node_rank
    elif request.recipe.processes == "rank":
        if group.dp > 1:  # vLLM refuses a number for the only rank
            out["data-parallel-rank"] = place.rank
    elif len(group.nodes) > 1:
        out["data-parallel-size-local"] = place.ranks
        if place.rank:
            out["data-parallel-start-rank"] = place.rank
    if group.rpc_port is not None:
        out["data-parallel-address"] = group.address
        out["data-parallel-rpc-port"] = group.rpc_port
    if place.headless:
        out["headless"] = True
    if group.kv_port is not None:
        out["kv-transfer-config.kv_port"] = group.kv_port
        out["kv-transfer-config.engine_id"] = str(group.index)
    return out


def words_of(request: Request, place: Place) -> dict[str, str]:
    """Return the values of the placeholders that differ from engine to engine."""
    return {
        "address": place.node.address,
        "nic": place.node.nic or request.site.nic,
        "leader": place.group.address,
        "node_folder": f"{request.folder}/{place.node.name}",
    }


def group_engines(
    request: Request,
    role: RolePlan,
    places: Sequence[Place],
    flags: Mapping[str, Any],
    env: Mapping[str, str],
) -> Iterator[EngineSpec]:
    """Yield the engines of a group: the role's shared ``flags`` and ``env`` with each place's own.

    A group can have thousands of engines, whose command lines differ in a few plain values. The
    first command line is therefore built, and the others are copies with those values replaced.
    """
    model = request.located(request.weights)
    per_rank = request.recipe.processes == "rank"
    templated = [name for name, value in env.items() if "{" in value]
    built: tuple[str, ...] = ()
    shape: tuple[str, ...] | None = None
    at: dict[str, int] = {}
    for place in places:
        own = place_flags(request, role, place)
        if tuple(own) != shape:
            shape, built = tuple(own), argv_of(model, {**flags, **own})
            at = {
                name: built.index(f"--{name}") + 1
                for name, value in own.items()
                if "." not in name and value is not True
            }
        words = list(built)
        for name, index in at.items():
            words[index] = text_of(own[name])
        mine = dict(env)
        if templated:
            fills = words_of(request, place)
            mine |= {name: fill(env[name], fills) for name in templated}
        if per_rank:
            mine[request.hardware.devices.visible] = ",".join(map(str, place.devices))
        yield _engine(place, mine, tuple(words))


def _engine(place: Place, env: Mapping[str, str], argv: tuple[str, ...]) -> EngineSpec:
    group, node = place.group, place.node
    return EngineSpec(
        name=place.name,
        node=node.name,
        address=node.address,
        role=group.role,
        group=group.number,
        rank=place.rank,
        ranks=place.ranks,
        dp_size=group.dp,
        tp_size=group.tp,
        pp_size=group.pp,
        pcp_size=group.pcp,
        devices=place.devices,
        http_port=place.http_port,
        kv_port=place.kv_ports.start if place.kv_ports else None,
        rpc_port=group.rpc_port,
        side_channel_port=place.side_channel_ports.start if place.side_channel_ports else None,
        headless=place.headless,
        env=env,
        argv=argv,
    )
