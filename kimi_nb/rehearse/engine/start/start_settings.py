"""What a stand-in engine was started with, from its command line and variables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.catalog.arguments import OWN
from kimi_nb.check.rules.topology_groups import API_FLAGS, is_shared
from kimi_nb.check.view import engine_view as servers
from kimi_nb.rehearse.host_programs.docker_run import DEVICES, PUBLISHED
from kimi_nb.rehearse.stand_in_call import Call

_EVERYWHERE = (None, "", "0.0.0.0", "::")
DEFAULT_RPC, DEFAULT_MASTER = 29550, 29501
DEFAULT_SEQS = 256  # where the command line does not say: vLLM's own default
# Somebody outside balances over the ranks.
_BALANCED = ("data-parallel-hybrid-lb", "data-parallel-external-lb")
_PLACES = frozenset({"data-parallel-rpc-port", "master-addr", "master-port"})


@dataclass(frozen=True)
class Transfer:
    """A KV cache connector: ``ports`` are bound here; ``declared`` says what the command line
    tells of both sides, role -> (dp, tp)."""

    connector: str
    role: str
    engine_id: str
    host: str
    ports: range
    declared: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Settings:
    """One engine process: ranks ``rank`` to ``rank + ranks - 1`` of ``dp``, each on ``tp``
    devices; ``alone`` is whether its API answers for its own ranks only; ``meets`` is (address,
    port) of its group, None for a group of one process."""

    model: str
    draft: str
    names: tuple[str, ...]
    node: str
    address: str
    port: int
    headless: bool
    alone: bool
    dp: int
    tp: int
    rank: int
    ranks: int
    nodes: int
    node_rank: int
    devices: tuple[int, ...]
    meets: tuple[str, int] | None
    transfer: Transfer | None
    shared: dict[str, Any]
    api_key: str
    max_model_len: int
    max_num_seqs: int
    utilization: float
    reasoning_parser: str
    tool_parser: str
    auto_tools: bool
    thinking: bool
    eager: bool
    engine: catalog.Engine

    @property
    def here(self) -> range:
        """Its own ranks."""
        return range(self.rank, self.rank + self.ranks)

    @property
    def spans(self) -> bool:
        """Whether this process is one of several nodes of one tensor parallel engine."""
        return self.nodes > 1

    @property
    def place(self) -> int:
        """Its number in the group: the first rank, or the node of a tensor parallel engine."""
        return self.node_rank if self.spans else self.rank

    @property
    def size(self) -> int:
        """How many such numbers the group has."""
        return self.nodes if self.spans else self.dp

    @property
    def count(self) -> int:
        """How many of them this process is."""
        return 1 if self.spans else self.ranks


def settings(call: Call, engine: catalog.Engine) -> Settings:
    """The settings of a command line that nothing refuses any more."""
    world = call.world
    one = servers.server(
        engine, ["vllm", *call.words], call.env, servers.Spot(call.node), node=call.node
    )
    dp, rank, ranks = one.dp or 1, one.rank or 0, one.ranks or 1
    nodes = int(one.number("nnodes") or 1)
    tp = one.tp or 1
    local = tp // nodes if nodes > 1 else tp
    here = _numbers(call.env.get(DEVICES)) or tuple(range(world.devices))
    visible = (
        here if one.devices is None else tuple(device for device in one.devices if device in here)
    )
    host = one.text("host")
    address = call.address if host in _EVERYWHERE else str(host)
    port = one.http_port or 8000
    if PUBLISHED in call.env:
        port = _outside(call.env[PUBLISHED], port)
    return Settings(
        model=one.model,
        draft=str(one.table("speculative-config").get("model") or ""),
        names=one.names,
        node=call.node,
        address=address,
        port=port,
        headless=one.headless,
        alone=one.single or any(one.flags.get(flag) is True for flag in _BALANCED),
        dp=dp,
        tp=tp,
        rank=rank,
        ranks=ranks,
        nodes=nodes,
        node_rank=int(one.number("node-rank") or 0),
        devices=visible[: local * ranks],
        meets=_meets(one, nodes, dp, ranks),
        transfer=_transfer(one, call, rank, ranks, tp),
        shared=_shared(one),
        api_key=one.text("api-key") or call.env.get("VLLM_API_KEY", ""),
        max_model_len=_length(one, world.context_length),
        max_num_seqs=int(one.number("max-num-seqs") or DEFAULT_SEQS),
        utilization=float(one.number("gpu-memory-utilization") or 0.9),
        reasoning_parser=one.text("reasoning-parser") or "",
        tool_parser=one.text("tool-call-parser") or "",
        auto_tools=one.flags.get("enable-auto-tool-choice") is True,
        thinking=one.table("default-chat-template-kwargs").get("thinking") is not False,
        eager=one.flags.get("enforce-eager") is True,
        engine=engine,
    )


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(",") if part.isdecimal())


def _outside(published: str, port: int) -> int:
    """The node's port behind which a container's port is; 0, which nobody knows, for a port that
    is not published."""
    for item in published.split(","):
        *_, outer, inner = ["", *item.partition("/")[0].split(":")]
        if inner == str(port) and outer.isdecimal():
            return int(outer)
    return 0


def _length(one: servers.Server, most: int) -> int:
    found = one.number("max-model-len")
    return int(found) if found else most


def _meets(one: servers.Server, nodes: int, dp: int, ranks: int) -> tuple[str, int] | None:
    if nodes > 1:
        return (
            one.text("master-addr") or "127.0.0.1",
            int(one.number("master-port") or DEFAULT_MASTER),
        )
    if dp > ranks:
        return (one.text("data-parallel-address") or "127.0.0.1", one.rpc_port or DEFAULT_RPC)
    return None


def _shared(one: servers.Server) -> dict[str, Any]:
    """What all processes of a group must have alike."""
    flags = {
        f"--{name}": value
        for name, value in one.flags.items()
        if name not in OWN | API_FLAGS | _PLACES
    }
    env = {
        name: value
        for name, value in one.env.items()
        if is_shared(name) and name not in servers.OWN_ENV
    }
    return {"model": one.model.rstrip("/").rpartition("/")[2], **flags, **env}


def _transfer(one: servers.Server, call: Call, rank: int, ranks: int, tp: int) -> Transfer | None:
    """The connector, with the ports at which it listens: Mooncake's at kv_port + rank x tp, one
    for each tensor parallel rank; NIXL's side channel at its base + rank."""
    table = one.table("kv-transfer-config")
    connector = str(table.get("kv_connector") or "")
    if not connector:
        return None
    extra = table.get("kv_connector_extra_config") or {}
    declared = {
        role: (int(sizes.get("dp_size", 1)), int(sizes.get("tp_size", 1)))
        for role, sizes in extra.items()
        if role in ("prefill", "decode") and isinstance(sizes, dict)
    }
    host, ports = call.address, range(0)
    if one.kv_port is not None:
        ports = range(one.kv_port, one.kv_port + ranks * tp)
    elif re.search("nixl", connector, re.IGNORECASE):
        host = call.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
        first = one.side_channel_port if one.side_channel_port is not None else 5600 + rank
        ports = range(first, first + ranks)
    return Transfer(
        connector,
        str(table.get("kv_role") or ""),
        str(table.get("engine_id") or f"{call.node}-{rank}"),
        host,
        ports,
        declared,
    )
