"""Rules on devices, ranks and ports: what cannot be true of one node or one group."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import LOOPBACK, EngineView, Spot
from kimi_nb.plan import ports
from kimi_nb.show import spans


def together(d: Deployment) -> dict[str, list[EngineView]]:
    """Return the engines that are certain to run at the same time, by node.

    Engines whose node is not known are left out.
    """
    out: dict[str, list[EngineView]] = defaultdict(list)
    for server in d.servers:
        if server.certain and server.node:
            out[server.node].append(server)
    return out


@rule(
    "topology/devices",
    ERROR,
    "The ranks of a node need no more devices than the node has.",
    "Lower --data-parallel-size-local (or --dp-size-local), or the tensor parallel size.",
    "arithmetic: local ranks x tp x pp",
    needs=("devices",),
)
def devices_fit(d: Deployment) -> Iterator[Problem]:
    """Ranks on devices that do not exist die at once, after the others have waited for them for
    the rendezvous time-out."""
    have = d.devices_per_node or 0
    for one in d.launchers:
        if one.local and one.tp and one.local * one.tp > have:
            yield Problem(
                one.spot,
                f"{one.local} local ranks x tp {one.tp} = "
                f"{one.local * one.tp} devices, the node has {have}: devices "
                f"{spans(range(have, one.local * one.tp))} do not exist",
            )
    launched = {(one.node, one.spot.file) for one in d.launchers}
    for server in d.servers:
        if server.devices is not None:
            outside = [device for device in server.devices if device >= have]
            if outside and (server.node, server.spot.file) not in launched and not d.launchers:
                yield Problem(
                    server.spot,
                    f"devices {spans(outside)} do not exist: the node has {have} (0 to {have - 1})",
                )
        need = server.needs
        if need is None or _spread(server):
            continue
        limit = len(server.devices) if server.devices is not None else have
        if need > limit and not (d.launchers and server.single):
            what = (
                f"the {limit} devices it sees"
                if server.devices is not None
                else f"the {have} of the node"
            )
            yield Problem(
                server.of("tensor-parallel-size"),
                f"{server.ranks} rank{'s' * (server.ranks != 1)} x tp {server.tp}"
                + (f" x pp {server.pp}" if server.pp != 1 else "")
                + (f" x pcp {server.pcp}" if server.pcp != 1 else "")
                + (f" over {server.span} nodes" if server.span != 1 else "")
                + f" need {need} devices, more than {what}",
            )


def _spread(server: EngineView) -> bool:
    """Return whether Ray may put the ranks of an engine on several nodes."""
    return "ray" in (
        server.flags.get("distributed-executor-backend"),
        server.flags.get("data-parallel-backend"),
    )


@rule(
    "topology/node-shares",
    ERROR,
    "The nodes of --nnodes have equal shares of the ranks, or each rank equal shares of nodes.",
    "Choose --nnodes such that dp x tp x pp devices divide by it, and each rank lies on whole nodes.",
    "vLLM: EngineArgs.create_engine_config, ParallelConfig.nnodes_within_dp",
)
def nodes_share_evenly(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses devices that do not divide over the nodes; a rank that begins
    within a node of another one is given a number that is not its own."""
    for server in d.servers:
        nodes, world, dp = int(server.number("nnodes") or 1), server.world, server.dp
        if nodes < 2 or not world or not dp or server.single or _spread(server):
            continue
        flag, what = server.of("nnodes"), f"--nnodes {nodes}: dp {dp} x {world} devices"
        if dp * world % nodes:
            yield Problem(flag, f"{what} = {dp * world} do not divide by {nodes}")
        elif nodes % (share := max(dp // max(server.ranks or 1, 1), 1)):
            yield Problem(
                flag,
                f"{what}: {nodes} nodes do not divide by {share} nodes' worth of ranks"
                if (server.ranks or 1) > 1
                else f"{what}: neither {dp} ranks divide by {nodes} nodes, nor the nodes by them",
            )


@rule(
    "topology/visible-devices",
    ERROR,
    "A rank sees exactly as many devices as it needs.",
    "List ranks x tp x pp devices in the variable that makes devices visible.",
    "vLLM: world size against visible devices",
)
def devices_seen(d: Deployment) -> Iterator[Problem]:
    """An engine that sees fewer devices than its tensor parallel size stops with 'World size is
    larger than the number of available devices'."""
    if d.devices_per_node is not None:
        return  # topology/devices says it, with the node's own number
    ray = {one.spot.file for one in d.programs if os.path.basename(one.argv[0]) == "ray"}
    for server in d.servers:
        if server.spot.file in ray:
            continue  # other nodes of its cluster may have the rest
        need = server.needs
        if server.devices is None or need is None or _spread(server):
            continue
        if need > len(server.devices):
            yield Problem(
                server.of("tensor-parallel-size"),
                f"{need} devices are needed (ranks x tp x pp), {len(server.devices)} are "
                f"visible: {spans(server.devices)}",
                "",
                # Older versions turn to Ray by themselves, which may have other nodes.
                "" if d.engine_known else WARNING,
            )


@rule(
    "topology/device-owner",
    ERROR,
    "A device belongs to one engine.",
    "Give each engine of a node devices of its own.",
    "arithmetic",
)
def one_owner(d: Deployment) -> Iterator[Problem]:
    """Two engines on one device share its memory: the second fails the memory check, or both
    crawl."""
    for node, servers in together(d).items():
        owner: dict[int, EngineView] = {}
        for server in servers:
            for device in server.devices or ():
                other = owner.setdefault(device, server)
                if other is not server:
                    share = sum(
                        0.9 if (told := one.number("gpu-memory-utilization")) is None else told
                        for one in (server, other)
                    )
                    yield Problem(
                        server.spot,
                        f"device {device} of {node} also belongs to {other.spot.name}",
                        "",
                        WARNING if share <= 1 else "",
                    )
                    break


@rule(
    "topology/rank-range",
    ERROR,
    "Every data parallel rank lies in 0 to dp - 1.",
    "Start each node at the sum of the ranks before it, and count local ranks x nodes = dp.",
    "vLLM ParallelConfig: data_parallel_rank must be in [0, data_parallel_size)",
)
def rank_range(d: Deployment) -> Iterator[Problem]:
    """vLLM refuses a rank outside the group; its node never joins and the others wait until
    they time out."""
    for one in d.launchers:
        if (
            one.dp is not None
            and one.first is not None
            and one.local is not None
            and one.first + one.local > one.dp
        ):
            last = one.first + one.local - 1
            yield Problem(
                one.spot,
                f"ranks {max(one.first, one.dp)} to {last} do not exist: dp "
                f"{one.dp} has ranks 0 to {one.dp - 1}, this node starts {one.local} "
                f"from {one.first}",
            )
    for server in d.servers:
        if server.dp is not None and server.dp < 1:
            yield Problem(
                server.of("data-parallel-size"),
                f"--data-parallel-size {server.dp}: 1 or more is allowed",
            )
            continue
        if server.dp is None or server.rank is None or (d.launchers and server.single):
            continue
        last = server.rank + (server.ranks or 1) - 1
        if server.single and server.dp == 1:
            yield Problem(
                server.of("data-parallel-rank"),
                f"--data-parallel-rank {server.rank} of a group of one: the engine wants "
                "--data-parallel-size above 1 with it",
                "Give the size of the group, or take the rank out.",
            )
        elif last >= server.dp:
            yield Problem(
                server.of("data-parallel-rank" if server.single else "data-parallel-start-rank"),
                f"rank {last} does not exist: dp {server.dp} has ranks 0 to {server.dp - 1}",
            )


@rule(
    "topology/ranks",
    ERROR,
    "The nodes of a group cover each rank once.",
    "Let each node start where the one before ends; together they hold dp ranks.",
    "vLLM: the coordinator waits for data_parallel_size engines",
)
def ranks_once(d: Deployment) -> Iterator[Problem]:
    """A missing rank keeps the whole group waiting; a rank started twice is refused or breaks
    the rendezvous of the first."""
    for group in d.groups():
        yield from _node_ranks(group)
        first = group[0]
        if (
            first.dp is None
            or first.dp == 1
            or first.group is None
            or any(server.rank is None or server.ranks is None for server in group)
        ):
            continue
        seen: dict[int, EngineView] = {}
        for server in group:
            if server.part:
                continue  # the first node of a rank stands for it
            for rank in range(server.rank or 0, (server.rank or 0) + (server.ranks or 0)):
                other = seen.setdefault(rank, server)
                if other is not server and server.certain:
                    yield Problem(
                        server.spot,
                        f"rank {rank} of {first.dp} is started twice: also by {other.spot.name}",
                    )
                    break
        missing = [rank for rank in range(first.dp) if rank not in seen]
        if missing and (d.complete or len(group) > 1):
            yield Problem(
                first.spot,
                f"rank{'s' * (len(missing) > 1)} {spans(missing)} of "
                f"{first.dp} started by nobody here",
            )
        elif missing and all(server.certain for server in group):
            yield Problem(
                first.spot,
                f"ranks {spans(missing)} of {first.dp} are not among these files",
                "Name the files of the other nodes too, and they are checked against each other.",
                NOTE,
            )


def _node_ranks(group: tuple[EngineView, ...]) -> Iterator[Problem]:
    """Report node ranks that do not exist or are taken twice, among the nodes of one engine."""
    seen: dict[float, EngineView] = {}
    for server in group:
        nodes, rank = server.number("nnodes"), server.number("node-rank") or 0
        if (
            nodes is None
            or nodes < 2
            or ("node-rank" in server.flags and server.number("node-rank") is None)
        ):
            continue
        if rank >= nodes:
            yield Problem(
                server.of("node-rank"),
                f"--node-rank {rank:g} does not exist: --nnodes {nodes:g} has 0 to {nodes - 1:g}",
            )
        other = seen.setdefault(rank, server)
        if other is not server and server.certain:
            yield Problem(
                server.of("node-rank"), f"--node-rank {rank:g} is also that of {other.spot.name}"
            )


def _kv_first(server: EngineView) -> int | None:
    """Return the first port of the KV cache on this node; a rank's count over all of its nodes."""
    return server.kv_port and server.kv_port + server.part * (server.needs or 1)


@rule(
    "topology/ports",
    ERROR,
    "Each port of a node is listened at once.",
    "Give the second another port; ranks count up from the first, KV ports by tp each.",
    "vLLM, Mooncake and NIXL connectors: port + rank (x tp)",
)
def ports_once(d: Deployment) -> Iterator[Problem]:
    """The second listener ends with 'Address already in use', often minutes after its start."""
    homes: dict[str, str] = {}
    for server in d.servers:
        if server.node and server.address:
            homes.setdefault(server.address, server.node)
    by_node: dict[str, dict[int, tuple[str, str, object]]] = defaultdict(dict)

    def take(
        node: str, first: int | None, count: int, what: str, owner: str, spot: Spot, key: object
    ) -> Iterator[Problem]:
        if first is None:
            return
        taken = by_node[node]
        mine = (what, owner, key)
        for port in range(first, first + min(max(count, 1), ports.LAST)):
            other = taken.setdefault(port, mine)
            if other is not mine:
                yield Problem(
                    spot,
                    f"port {port} of {node} is taken twice: {what} of {owner}, "
                    f"and {other[0]} of {other[1]}",
                )
                return

    leaders: set[tuple[str, str]] = set()
    for node, servers in together(d).items():
        for server in servers:
            name, needs = server.spot.name, server.needs or 1
            yield from take(node, server.http_port, 1, "HTTP", name, server.spot, server)
            yield from take(
                node,
                _kv_first(server),
                needs,
                "KV cache",
                name,
                server.of("kv-transfer-config"),
                server,
            )
            yield from take(
                node,
                server.side_channel_port,
                server.ranks or 1,
                "side channel",
                name,
                server.spot,
                server,
            )
            # Followers only call there.
            if (server.number("nnodes") or 1) > 1 and not server.number("node-rank"):
                meet = int(server.number("master-port") or ports.MASTER)
                spot = server.of("master-port")
                yield from take(node, meet, 1, "node rendezvous", name, spot, server.group)
            address = server.text("data-parallel-address") or ""
            home = homes.get(address, node if address in LOOPBACK else "")
            if server.rpc_port is not None and home and (home, str(server.group)) not in leaders:
                leaders.add((home, str(server.group)))
                yield from take(
                    home,
                    server.rpc_port,
                    1,
                    "rank rendezvous",
                    f"the group of {name}",
                    server.of("data-parallel-rpc-port"),
                    server.group,
                )
    for proxy in d.proxies:
        node = proxy.node or homes.get(proxy.host, "")
        if node:
            yield from take(node, proxy.port, 1, "front door", proxy.spot.name, proxy.spot, proxy)


@rule(
    "topology/port-range",
    ERROR,
    "A port lies between 1 and 65535.",
    "Choose first ports low enough for all ranks to count up from.",
    "TCP",
)
def port_range(d: Deployment) -> Iterator[Problem]:
    """A port past 65535 cannot be opened: the last ranks of a node fail alone."""
    for server in d.servers:
        for what, port, count in (
            ("HTTP", server.http_port, 1),
            ("KV cache", _kv_first(server), server.needs or 1),
            ("rendezvous", server.rpc_port, 1),
            ("side channel", server.side_channel_port, server.ranks or 1),
        ):
            if what == "HTTP" and port == 0:
                yield Problem(
                    server.of("port"),
                    "HTTP port 0: the system gives any that is free, and nobody knows which",
                    "Choose a port.",
                    WARNING,
                )
            elif port is not None and not 1 <= port <= 65535 - count + 1:
                flag = {
                    "HTTP": "port",
                    "KV cache": "kv-transfer-config",
                    "rendezvous": "data-parallel-rpc-port",
                }.get(what, "")
                yield Problem(
                    server.of(flag),
                    f"{what} port {port}"
                    + (f" to {port + count - 1}" if count > 1 else "")
                    + " is outside 1 to 65535",
                )


@rule(
    "topology/random-ports",
    ERROR,
    "KV ports lie outside the range from which the Ascend transport takes random ones.",
    "Choose kv_port at or above 20000 + devices x 1000: 28000 with 8 NPUs, 36000 with 16.",
    "vllm-ascend issues 6455, 4725",
    needs=("ascend",),
)
def random_ports(d: Deployment) -> Iterator[Problem]:
    """AscendDirect listens at random ports in [20000, 20000 + NPUs x 1000): now and then one of
    them is the KV port, and the start fails with 'Address already in use'."""
    devices = d.devices_per_node or 16
    random = ports.ascend_random(devices)
    for server in (group[0] for group in d.groups()):
        kv = server.table("kv-transfer-config")
        if not str(kv.get("kv_connector", "")).startswith("Mooncake") or server.kv_port is None:
            continue
        wanted = ports.kv(server.kv_port, 0, server.world or 1, server.ranks or 1)
        if wanted.start < random.stop and wanted.stop > random.start:
            yield Problem(
                server.of("kv-transfer-config"),
                f"kv_port {kv.get('kv_port')} lies in {random.start} to {random.stop - 1}, where the "
                f"transport of {devices} NPUs takes random ports",
                "",
                "" if d.complete else WARNING,
            )
