"""Rules on features in the role where they belong, and on the variables of networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import LOOPBACK, EngineView, Spot


def _told_at(server: EngineView, by: str) -> Spot:
    """Return the spot where a feature was switched on."""
    return server.of("additional-config") if by.startswith("--") else server.env_at(by)


def _switched(d: Deployment, server: EngineView, variable: str, key: str) -> str:
    """Return what switches a feature on: the key or the variable, "" if it is off."""
    table = server.table("additional-config")
    under = table.get("scheduler_config")
    for where in (table, under if isinstance(under, dict) else {}):
        if key in where:
            return f"--additional-config {key}" if where[key] is True else ""
    return variable if variable and server.env.get(variable) == "1" else ""


@rule(
    "variables/role-flashcomm",
    WARNING,
    "FlashComm runs on prefill, not on decode.",
    "Switch it off on decode.",
    "the documents; vllm-ascend issue 9679",
    needs=("ascend",),
)
def flashcomm_role(d: Deployment) -> Iterator[Problem]:
    """It trims the all-reduce of long prefills; on decode steps it adds work, and garbled output
    was reported."""
    for server in d.environments():
        by = _switched(d, server, "VLLM_ASCEND_ENABLE_FLASHCOMM1", "enable_flashcomm1")
        if by and server.role == "decode":
            yield Problem(_told_at(server, by), f"{by} on decode")


@rule(
    "variables/role-mlapo",
    NOTE,
    "MLAPO is switched on where it acts: on decode.",
    "Leave it to the decode engines.",
    "vllm-ascend's sources: on A2 and A3 it acts for kv_consumer only",
    needs=("ascend",),
)
def mlapo_role(d: Deployment) -> Iterator[Problem]:
    """On prefill it takes memory for the fused weights; on engines that do both it does
    nothing on A2 and A3."""
    for server in d.environments():
        by = _switched(d, server, "VLLM_ASCEND_ENABLE_MLAPO", "enable_mlapo")
        if by and server.role != "decode":
            yield Problem(
                _told_at(server, by),
                f"{by} on {server.role}: it acts for decode (kv_consumer) only",
                "",
                WARNING if server.role == "prefill" else "",
            )


@rule(
    "variables/role-balance",
    WARNING,
    "Balance scheduling is off where prefill and decode are apart.",
    "Leave it out under prefill-decode disaggregation.",
    "the documents",
    needs=("ascend",),
)
def balance_role(d: Deployment) -> Iterator[Problem]:
    """It weighs prefill against decode of one engine, of which there is only one kind here."""
    for server in d.environments():
        by = _switched(d, server, "VLLM_ASCEND_BALANCE_SCHEDULING", "enable_balance_scheduling")
        if by and server.role != "mixed":
            yield Problem(_told_at(server, by), f"{by} on {server.role}")


@rule(
    "variables/role-recompute",
    NOTE,
    "The recompute scheduler runs on decode.",
    "From 0.23.0 leave it out on prefill.",
    "vllm-ascend's sources",
    needs=("ascend",),
)
def recompute_role(d: Deployment) -> Iterator[Problem]:
    """From 0.23.0 prefill nodes ignore it with a warning; on engines that do both it has nobody
    to send a request back to."""
    for server in d.environments():
        by = _switched(d, server, "", "recompute_scheduler_enable")
        since = catalog.ignored(server.role, "recompute_scheduler_enable")
        if by and since:
            late = d.engine_known and not catalog.earlier(d.engine.vllm, since)
            yield Problem(
                server.of("additional-config"),
                f"recompute_scheduler_enable on {server.role} "
                + (
                    f"does nothing since {since}"
                    if late
                    else f"is ignored from {since} (this is {d.engine})"
                ),
                "",
                WARNING if late else "",
            )
        elif by and server.role == "mixed":
            yield Problem(
                server.of("additional-config"),
                "recompute_scheduler_enable without prefill-decode disaggregation",
                "Leave it out.",
            )


# Networks -----------------------------------------------------------------------------------


@rule(
    "variables/side-channel",
    ERROR,
    "The side channel's base port is one for all ranks.",
    "Export the same VLLM_NIXL_SIDE_CHANNEL_PORT on every rank of the group.",
    "vLLM NixlConnector: the data parallel index is added to the port",
)
def side_channel_base(d: Deployment) -> Iterator[Problem]:
    """vLLM adds the data parallel rank itself: a port that was counted up by hand is offset
    twice, and decode asks at a port where nobody is."""
    for group in d.groups():
        bases: dict[int, str] = {}
        for server in group:
            text = server.env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "")
            if server.single and server.rank is not None and text.isdecimal():
                bases[server.rank] = text
        first = group[0]
        if len(set(bases.values())) > 1:
            shown = ", ".join(f"rank {rank}: {port}" for rank, port in list(bases.items())[:3])
            yield Problem(
                first.env_at("VLLM_NIXL_SIDE_CHANNEL_PORT"),
                f"VLLM_NIXL_SIDE_CHANNEL_PORT differs by rank ({shown}): vLLM adds the "
                "rank to it again",
            )


@rule(
    "variables/side-channel-host",
    WARNING,
    "Engines that send cache to other nodes say at which address.",
    "Export VLLM_NIXL_SIDE_CHANNEL_HOST with the node's own address.",
    "vLLM NixlConnector; nixl issue 1614",
)
def side_channel_host(d: Deployment) -> Iterator[Problem]:
    """Its default is localhost: the other node asks itself, and gets NIXL_ERR_BACKEND."""
    addresses = {
        server.address
        for server in d.servers
        if server.role != "mixed" and server.address and not server.everywhere
    }
    if len(addresses - set(LOOPBACK)) < 2:
        yield from _pods_apart(d)
        return
    for server in d.environments():
        kv = server.table("kv-transfer-config")
        if kv.get("kv_connector") == "NixlConnector" and not server.env.get(
            "VLLM_NIXL_SIDE_CHANNEL_HOST"
        ):
            yield Problem(
                server.spot, "NixlConnector over several nodes without VLLM_NIXL_SIDE_CHANNEL_HOST"
            )


def _pods_apart(d: Deployment) -> Iterator[Problem]:
    """Yield engines in containers with networks of their own: to each localhost is itself."""
    boxes = {
        box.node: box for box in d.boxes if not box.host_network and "--env-file" not in box.options
    }
    lonely = {
        server.node: server
        for server in d.servers
        if server.node in boxes
        and server.table("kv-transfer-config").get("kv_connector") == "NixlConnector"
        and "VLLM_NIXL_SIDE_CHANNEL_HOST" not in (*server.env, *boxes[server.node].passes)
    }
    if len(lonely) > 1:
        for server in lonely.values():
            yield Problem(
                server.spot, "NixlConnector in several pods without VLLM_NIXL_SIDE_CHANNEL_HOST"
            )


@rule(
    "variables/allocator",
    WARNING,
    "The allocator's segments stay in place under NIXL.",
    "Take expandable_segments out.",
    "nixl issue 1614",
)
def allocator(d: Deployment) -> Iterator[Problem]:
    """NIXL registers memory by address; expandable segments move it, and transfers end with
    NIXL_ERR_BACKEND."""
    for server in d.environments():
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if (
                "expandable_segments:True" in server.env.get(name, "")
                and server.table("kv-transfer-config").get("kv_connector") == "NixlConnector"
            ):
                yield Problem(
                    server.env_at(name), f"{name} has expandable_segments with NixlConnector"
                )


@rule(
    "variables/interface",
    WARNING,
    "Several nodes say over which interface they talk.",
    "Export HCCL_IF_IP, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME and HCCL_SOCKET_IFNAME.",
    "vllm-ascend's multi-node documents; issues 486, 9447",
    needs=("ascend",),
)
def interface_named(d: Deployment) -> Iterator[Problem]:
    """Without them each library takes the first interface it finds, and the nodes wait for each
    other until 'Getting socket times out'."""
    by_group: dict[str, set[str]] = defaultdict(set)
    ranks: dict[str, int] = defaultdict(int)
    for server in d.servers:
        by_group[str(server.group)].add(server.node)
        ranks[str(server.group)] += server.ranks or 1
    for server in d.environments():
        several = (
            len(by_group[str(server.group)]) > 1 or (server.dp or 1) > ranks[str(server.group)]
        )
        if server.group is not None and several:
            missing = [
                name
                for name in (
                    "HCCL_IF_IP",
                    "GLOO_SOCKET_IFNAME",
                    "TP_SOCKET_IFNAME",
                    "HCCL_SOCKET_IFNAME",
                )
                if name not in server.env
            ]
            if missing:
                yield Problem(
                    server.spot, f"a group over several nodes without {', '.join(missing)}"
                )
