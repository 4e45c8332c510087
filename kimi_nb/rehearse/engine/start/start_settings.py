"""Read the settings of a stand-in engine from its command line and environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog.arguments import OWN
from kimi_nb.catalog.group_settings import API_FLAGS, is_shared
from kimi_nb.check.view import engine_view
from kimi_nb.plan import ports
from kimi_nb.plan.store_settings import CONNECTOR
from kimi_nb.rehearse.host_programs.docker_run import DEVICES, PUBLISHED
from kimi_nb.rehearse.stand_in_call import Call

_EVERYWHERE = (None, "", "0.0.0.0", "::")
DEFAULT_SEQS = 256  # vLLM's own default
# Flags with which an external load balancer distributes requests over the ranks.
_BALANCED = ("data-parallel-hybrid-lb", "data-parallel-external-lb")
_PLACES = frozenset({"data-parallel-rpc-port", "master-addr", "master-port"})


@dataclass(frozen=True)
class Transfer:
    """A KV cache connector.

    Attributes:
        ports: The ports on which this process listens.
        declared: The (dp, tp) sizes that the command line declares, by role.
    """

    connector: str
    role: str
    engine_id: str
    host: str
    ports: range
    declared: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Settings:
    """The settings of one engine process.

    Attributes:
        drafts: How many tokens are drafted in a step; 0 without speculative decoding.
        names: The served model names.
        host: What --host says; ``address`` is where it listens.
        alone: Whether its API answers for its own ranks only.
        dp: The data parallel size of the group.
        tp: The tensor parallel size.
        world: The number of devices of each rank, on all of its nodes.
        span: The number of nodes of each rank.
        rank: The first rank of this process.
        ranks: How many ranks it has.
        devices: The devices of all its ranks.
        meets: The address and port where its group meets; None for a group of one process.
        shared: The settings that must be the same in all processes of a group.
        utilization: The share of the device memory that may be used.
        by_ray: Whether Ray starts its workers or its ranks.
        expert_parallel: Whether experts are spread over the ranks as wholes.
        spare_experts: Redundant experts, which are spread as well.
        other_dispatch: Whether vllm-ascend dispatches tokens with its fused operator, or by nodes.
        shared_store: Whether it is a client of a shared KV store.
        largest_step: The most tokens of a decode step that a graph is captured for.
    """

    model: str
    draft: str
    drafts: int
    names: tuple[str, ...]
    node: str
    host: str
    address: str
    port: int
    headless: bool
    alone: bool
    dp: int
    tp: int
    world: int
    span: int
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
    text_only: bool
    eager: bool
    by_ray: bool
    expert_parallel: bool
    spare_experts: int
    other_dispatch: bool
    shared_store: bool
    largest_step: int
    engine: catalog.Engine

    @property
    def here(self) -> range:
        """The ranks of this process."""
        return range(self.rank, self.rank + self.ranks)

    @property
    def spans(self) -> bool:
        """Whether this process is one of several nodes that meet at --master-addr."""
        return self.nodes > 1

    @property
    def place(self) -> int:
        """Its number in the group: its first rank, or that of its node where nodes meet."""
        return self.node_rank if self.spans else self.rank

    @property
    def size(self) -> int:
        """How many such numbers the group has."""
        return self.nodes if self.spans else self.dp

    @property
    def count(self) -> int:
        """How many of these numbers this process has."""
        return 1 if self.spans else self.ranks


def settings(call: Call, engine: catalog.Engine) -> Settings:
    """Return the settings of a command line that passed all checks."""
    site = call.site
    one = engine_view.of(
        engine, ["vllm", *call.words], call.env, engine_view.Spot(call.node), node=call.node
    )
    dp, rank, ranks = one.dp or 1, one.rank or 0, one.ranks or 1
    nodes = int(one.number("nnodes") or 1)
    seen = call.env.get(DEVICES)
    here = tuple(range(site.devices)) if seen is None else _numbers(seen)
    visible = (
        here if one.devices is None else tuple(device for device in one.devices if device in here)
    )
    host = one.text("host")
    address = call.address if host in _EVERYWHERE else call.at(str(host))
    port = 8000 if one.http_port is None else one.http_port
    if PUBLISHED in call.env:
        outer, port = _outside(call.env[PUBLISHED], port)
        address = call.at(outer) if outer else address
    return Settings(
        model=one.model,
        draft=str(one.table("speculative-config").get("model") or ""),
        drafts=int(one.table("speculative-config").get("num_speculative_tokens") or 0),
        names=one.names,
        node=call.node,
        host=str(host or ""),
        address=address,
        port=port,
        headless=one.headless,
        alone=one.single or _balances(one, engine),
        dp=dp,
        tp=one.tp or 1,
        world=one.world or 1,
        span=one.span,
        rank=rank,
        ranks=ranks,
        nodes=nodes,
        node_rank=int(one.number("node-rank") or 0),
        devices=visible[: one.needs or 1],
        meets=_meets(one, call, nodes, dp, ranks),
        transfer=_transfer(one, call, rank, ranks),
        shared=_shared(one),
        api_key=one.text("api-key") or call.env.get("VLLM_API_KEY", ""),
        max_model_len=_length(one, site.context_length),
        max_num_seqs=int(one.number("max-num-seqs") or DEFAULT_SEQS),
        utilization=float(one.number("gpu-memory-utilization") or 0.9),
        reasoning_parser=one.text("reasoning-parser") or "",
        tool_parser=one.text("tool-call-parser") or "",
        auto_tools=one.flags.get("enable-auto-tool-choice") is True,
        thinking=one.table("default-chat-template-kwargs").get("thinking") is not False,
        text_only=one.flags.get("language-model-only") is True,
        eager=one.flags.get("enforce-eager") is True,
        by_ray="ray"
        in (
            one.flags.get("distributed-executor-backend"),
            one.flags.get("data-parallel-backend"),
        ),
        expert_parallel=one.flags.get("enable-expert-parallel") is True,
        spare_experts=_spare(one),
        other_dispatch=_other_dispatch(one),
        shared_store=any(table.get("kv_connector") == CONNECTOR for table in one.transfers),
        largest_step=_largest_step(one),
        engine=engine,
    )


def _balances(one: engine_view.EngineView, engine: catalog.Engine) -> bool:
    """Return whether its API answers for its own ranks only, as create_engine_config decides.

    All ranks on one node are balanced by its API in any case.
    """
    if one.headless or one.ranks == one.dp:
        return False
    told = any(one.flags.get(flag) is True for flag in _BALANCED)
    return told or one.told_its_first(engine.known)


def _spare(one: engine_view.EngineView) -> int:
    own = one.table("eplb-config").get("num_redundant_experts")
    plugin = one.table("additional-config").get("eplb_config")
    if not own and isinstance(plugin, dict):
        own = plugin.get("num_redundant_experts")
    return own if isinstance(own, int) else 0


def _other_dispatch(one: engine_view.EngineView) -> bool:
    config = one.table("additional-config")
    return (
        one.env.get("VLLM_ASCEND_ENABLE_FUSED_MC2", "0") != "0"
        or config.get("enable_fused_mc2", 0) not in (0, False)
        or bool(config.get("enable_mc2_hierarchy_comm"))
    )


def _largest_step(one: engine_view.EngineView) -> int:
    """Return the tokens of the largest graph, or else of every sequence with its draft.

    Without graphs that are named, vllm-ascend takes at most 512 tokens (set_mc2_tokens_capacity).
    """
    batched = int(one.number("max-num-batched-tokens") or 8192)
    config = one.table("compilation-config")
    told = config.get("cudagraph_capture_sizes") or [config.get("max_cudagraph_capture_size")]
    sizes = [size for size in told if isinstance(size, int) and size <= batched]
    if sizes and one.flags.get("enforce-eager") is not True:
        return max(sizes)
    draft = int(one.table("speculative-config").get("num_speculative_tokens") or 0)
    return min(int(one.number("max-num-seqs") or DEFAULT_SEQS) * (draft + 1), 512, batched)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.isdecimal())


def _outside(published: str, port: int) -> tuple[str, int]:
    """Return the node's address and port that are published for a container's port.

    The address is "" for every one; the port is 0 if it is not published.
    """
    for item in published.split(","):
        *_, host, outer, inner = ["", "", *item.partition("/")[0].split(":")]
        if inner == str(port) and outer.isdecimal():
            return host if host not in _EVERYWHERE else "", int(outer)
    return "", 0


def _length(one: engine_view.EngineView, most: int) -> int:
    found = one.number("max-model-len")
    return int(found) if found else most


def _meets(
    one: engine_view.EngineView, call: Call, nodes: int, dp: int, ranks: int
) -> tuple[str, int] | None:
    """Return where the group meets; the default is the loopback address of the node."""
    if nodes > 1:
        address = one.text("master-addr")
        port = int(one.number("master-port") or ports.MASTER)
    elif dp > ranks:
        address = one.text("data-parallel-address")
        port = one.rpc_port or ports.RPC
    else:
        return None
    return call.at(address or "127.0.0.1"), port


def _shared(one: engine_view.EngineView) -> dict[str, Any]:
    """Return the settings that must be the same in all processes of a group."""
    flags = {
        f"--{name}": value
        for name, value in one.flags.items()
        if name not in OWN | API_FLAGS | _PLACES
    }
    env = {
        name: value
        for name, value in one.env.items()
        if is_shared(name) and name not in engine_view.OWN_ENV
    }
    return {"model": one.model.rstrip("/").rpartition("/")[2], **flags, **env}


def _transfer(one: engine_view.EngineView, call: Call, rank: int, ranks: int) -> Transfer | None:
    """Return the connector with the ports on which it listens, or None.

    `plan.ports` says where Mooncake and NIXL listen.
    """
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
    # Both take the address of the node if they are told none; NIXL takes "localhost".
    host, listens = call.env.get("VLLM_HOST_IP", "") or call.address, range(0)
    if one.kv_port is not None:
        needs = one.needs or 1
        listens = ports.kv(one.kv_port + one.part * needs, 0, needs // ranks, ranks)
    elif re.search("nixl", connector, re.IGNORECASE):
        host = call.env.get("VLLM_NIXL_SIDE_CHANNEL_HOST", "localhost")
        first = one.side_channel_port
        listens = (
            ports.side_channel(ports.SIDE_CHANNEL, rank, ranks)
            if first is None
            else ports.side_channel(first, 0, ranks)
        )
    return Transfer(
        connector,
        str(table.get("kv_role") or ""),
        str(table.get("engine_id") or f"{call.node}-{rank}"),
        host,
        listens,
        declared,
    )
