"""Rules on the engines of one group: one rendezvous, equal settings, one head."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.catalog.arguments import Unread
from kimi_nb.catalog.group_settings import API_FLAGS, is_shared
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import OWN, OWN_ENV, EngineView, Spot


@rule(
    "topology/meeting-point",
    ERROR,
    "All nodes of a group name one address, one rendezvous port and one size.",
    "Give every node the address of the node with rank 0, the same port and the same sizes.",
    "vLLM: --data-parallel-address and --data-parallel-rpc-port of the head",
)
def one_meeting_point(d: Deployment) -> Iterator[Problem]:
    """A node with another address or port waits for a head that nobody is; the head waits for
    it. Both time out without naming each other."""
    for group in d.groups():
        first = group[0]
        for server in group[1:]:
            for flag in (
                "data-parallel-address",
                "data-parallel-rpc-port",
                "data-parallel-size",
                "tensor-parallel-size",
                "master-addr",
                "master-port",
                "nnodes",
            ):
                mine, theirs = server.flags.get(flag), first.flags.get(flag)
                if mine != theirs and not _hidden(mine, theirs):
                    yield Problem(
                        server.of(flag),
                        f"--{flag} is {_said(mine)}, and "
                        f"{_said(theirs)} for {first.spot.name} of the same group",
                    )
    yield from _split_groups(d)


def _split_groups(d: Deployment) -> Iterator[Problem]:
    """Report nodes that would form one group but name different rendezvous."""
    groups = [
        (group[0], _ranks(group))
        for group in d.groups()
        if group[0].group is not None
        and (group[0].dp or 1) > 1
        and all(
            server.certain and server.rank is not None and server.ranks is not None
            for server in group
        )
    ]
    for i, (one, mine) in enumerate(groups):
        for two, theirs in groups[i + 1 :]:
            if (
                one.node == two.node
                or one.role != two.role
                or one.model != two.model
                or mine & theirs
            ):
                continue
            same = _meets(one) == _meets(two)
            if one.dp == two.dp and len(mine | theirs) == one.dp and not same:
                flag = (
                    "address"
                    if one.text("data-parallel-address") != two.text("data-parallel-address")
                    else "rpc-port"
                )
                yield Problem(
                    two.of(f"data-parallel-{flag}"),
                    f"meets at {_meets(two)}, while {one.spot.name}, which holds the "
                    f"other ranks of dp {one.dp}, meets at {_meets(one)}",
                )
            elif one.dp != two.dp and same:
                yield Problem(
                    two.of("data-parallel-size"),
                    f"--data-parallel-size is {two.dp}, "
                    f"and {one.dp} for {one.spot.name}, which meets at the same address",
                )
    yield from _split_engines(d)


def _split_engines(d: Deployment) -> Iterator[Problem]:
    """Report nodes that would form one engine or group but do not name the same rendezvous."""
    heads = [server for server in d.servers if server.certain and server.number("nnodes")]
    parts: dict[object, set[float | None]] = {}
    for one in heads:
        parts.setdefault(one.group, set()).add(one.number("node-rank"))
    for i, one in enumerate(heads):
        for two in heads[i + 1 :]:
            # Two that both have a part of the same rank are two engines, such as replicas.
            if (
                one.group != two.group
                and not parts[one.group] & parts[two.group]
                and one.node != two.node
                and one.model == two.model
                and one.number("nnodes") == two.number("nnodes")
                and one.number("node-rank") != two.number("node-rank")
                and not _hidden(one.group, two.group)
            ):
                yield Problem(
                    two.of("master-addr"),
                    f"meets at {two.text('master-addr')}, "
                    f"{one.spot.name} of the same engine at {one.text('master-addr')}",
                )
    for server in d.servers:
        if (
            server.group is None
            and server.certain
            and server.dp
            and server.dp > 1
            and "data-parallel-start-rank" in server.flags
            and server.headless
            and "data-parallel-address" not in server.flags
        ):
            head = next(
                (
                    one
                    for one in d.servers
                    if one.dp == server.dp and one.text("data-parallel-address")
                ),
                None,
            )
            where = f"; {head.spot.name} of dp {head.dp} meets at {_meets(head)}" if head else ""
            yield Problem(
                server.spot,
                f"is a follower and says no --data-parallel-address: it waits at its own{where}",
            )


def _hidden(*values: Any) -> bool:
    """Return whether a shell variable hides one of the values."""
    return any(isinstance(value, Unread) or fill_ins.holds(value) for value in values)


def _ranks(group: tuple[EngineView, ...]) -> set[int]:
    return {
        rank
        for server in group
        for rank in range(server.rank or 0, (server.rank or 0) + (server.ranks or 0))
    }


def _meets(server: EngineView) -> str:
    port = server.rpc_port if server.rpc_port is not None else "no port given"
    return f"{server.text('data-parallel-address')}:{port}"


def _said(value: Any) -> str:
    return "not given" if value is None else str(value)


@rule(
    "topology/network",
    WARNING,
    "The nodes of a deployment have addresses of one network.",
    "Write the address that this node has in the network of the others.",
    "arithmetic: the first two numbers of IPv4 addresses (a /16)",
)
def one_network(d: Deployment) -> Iterator[Problem]:
    """An address that is off in one number is often a slip: nobody answers there, and the nodes
    wait for each other until they time out."""
    named: dict[str, Spot] = {}
    for launch in d.launchers:
        named.setdefault(launch.address, launch.spot)
    for server in d.servers:
        for address, spot in (
            (server.address, server.of("host")),
            (server.text("data-parallel-address") or "", server.of("data-parallel-address")),
        ):
            named.setdefault(address, spot)
    for proxy in d.proxies:
        for _, host, _ in proxy.workers:
            named.setdefault(host, proxy.spot)
    networks: dict[str, list[str]] = {}
    for address in named:
        match = re.fullmatch(r"(\d{1,3}\.\d{1,3})\.\d{1,3}\.\d{1,3}", address)
        if match and not address.startswith(("127.", "0.")):
            networks.setdefault(match[1], []).append(address)
    if len(networks) < 2:
        return
    most = max(networks.values(), key=len)
    for addresses in networks.values():
        # One against many is a slip; two networks of some size are two networks.
        if len(addresses) == 1 and len(most) > 2:
            yield Problem(
                named[addresses[0]],
                f"{addresses[0]} is of another network than {', '.join(most[:4])}",
            )


@rule(
    "topology/group-settings",
    ERROR,
    "The engines of a group are set alike.",
    "Use one value on every node of the group.",
    "vLLM: ranks of a data parallel group run the same steps",
)
def settings_alike(d: Deployment) -> Iterator[Problem]:
    """Ranks of a group exchange tokens at every step: different sizes end in a hang, in a wrong
    buffer size, or in the slower value for all."""
    for group in d.groups():
        if group[0].group is None:
            continue
        first = group[0]
        for server in _different(group):
            for flag in sorted({*server.flags, *first.flags} - OWN):
                mine, theirs = server.flags.get(flag), first.flags.get(flag)
                if _hidden(mine, theirs) or (
                    flag in API_FLAGS and (server.headless or first.headless)
                ):
                    continue
                if mine != theirs and flag not in (
                    "data-parallel-rpc-port",
                    "master-addr",
                    "data-parallel-size",
                    "tensor-parallel-size",
                    "master-port",
                    "nnodes",
                ):
                    yield Problem(
                        server.of(flag),
                        f"--{flag} is {_said(mine)}, and "
                        f"{_said(theirs)} for {first.spot.name} of the same group",
                    )
            if server.model.rstrip("/").rpartition("/")[2] != first.model.rstrip("/").rpartition(
                "/"
            )[2] and not _hidden(server.model, first.model):
                yield Problem(
                    server.spot,
                    f"serves {server.model}, and {first.spot.name} of the same group {first.model}",
                )


def _different(group: tuple[EngineView, ...]) -> Iterator[EngineView]:
    """Yield the engines of a group whose flags or model differ from those of the first."""
    first = group[0]
    for server in group[1:]:
        if server.flags != first.flags or server.model != first.model:
            yield server


@rule(
    "topology/group-env",
    ERROR,
    "The engines of a group have the same variables.",
    "Export the same value on every node of the group.",
    "vLLM and HCCL: collective operations need equal settings on all ranks",
)
def env_alike(d: Deployment) -> Iterator[Problem]:
    """A variable that sizes a buffer or chooses a kernel must be equal on all ranks: otherwise
    the collective hangs, or one node is slower than the other without a message."""
    for group in d.groups():
        if group[0].group is None:
            continue
        first = group[0]
        base = {name: text for name, text in first.env.items() if name not in OWN_ENV}
        for server in group[1:]:
            if server.env is first.env or (
                all(server.env.get(name) == text for name, text in base.items())
                and len(server.env) == len(first.env)
            ):
                continue
            for name in sorted({*server.env, *first.env} - OWN_ENV):
                mine, theirs = server.env.get(name), first.env.get(name)
                if mine != theirs and is_shared(name) and not _hidden(mine, theirs):
                    yield Problem(
                        server.env_at(name),
                        f"{name} is {_said(mine)}, and "
                        f"{_said(theirs)} for {first.spot.name} of the same group",
                    )


_MOST_DEVICES = 8  # of a node with GPUs, but for a few kinds


@rule(
    "topology/ray-backend",
    WARNING,
    "An engine that is larger than a node is told to use Ray.",
    "Add --distributed-executor-backend ray.",
    "vllm/config/parallel.py at 0.11.2 and later: Ray is no longer taken by itself",
)
def ray_backend(d: Deployment) -> Iterator[Problem]:
    """'World size ... is larger than the number of available GPUs': nothing loads, although all nodes
    have joined the Ray cluster."""
    stated = d.engine_stated
    if d.ascend or (re.match(r"\d", stated) and catalog.earlier(stated, "0.11.2")):
        return
    joined = {one.spot.file for one in d.programs if _joins_ray(one.argv)}
    most = d.devices_per_node or _MOST_DEVICES
    for server in d.servers:
        size = server.world or 1
        apart = {"distributed-executor-backend", "data-parallel-backend", "nnodes"} & {
            *server.flags
        }
        if server.spot.file in joined and size > most and not apart:
            yield Problem(
                server.spot,
                f"{size} devices of a Ray cluster, and no --distributed-executor-backend",
            )


def _joins_ray(argv: Sequence[str]) -> bool:
    """Return whether a command makes a node a part of a Ray cluster."""
    text = " ".join(argv[:6])
    return re.search(r"\bray start\b|run_cluster\.sh\b|multi-node-serving\.sh\b", text) is not None
