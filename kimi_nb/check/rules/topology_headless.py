"""Rules on who of a data parallel group answers requests: one head, or each node for itself."""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView

_BALANCED = ("data-parallel-hybrid-lb", "data-parallel-external-lb")


@rule(
    "topology/headless",
    ERROR,
    "Exactly the followers of a group are headless.",
    "Give --headless to every node but the one with rank 0 (unless each balances by itself).",
    "vLLM: multi-node data parallel with one API server; pull request 47692",
)
def followers_headless(d: Deployment) -> Iterator[Problem]:
    """A follower with an API server of its own is refused or answers for nobody; a headless head
    leaves the service without a door. A first rank without --headless means that each node
    balances by itself, and then the head refuses followers that are headless."""
    for group in d.groups():
        group = tuple(one for one in group if one.group is not None and not one.single)
        head = next((one for one in group if one.rank == 0 and not _node(one)), None)
        for server in group:
            if server.rank is None or _chosen(server):
                continue
            if server.rank > 0 or _node(server) > 0:
                yield from _follower(d, server, head)
            elif server.headless and d.engine_known and server.dp is not None:
                yield Problem(
                    server.of("headless"),
                    "holds rank 0 and is --headless: nobody would answer requests",
                )
        if head is not None and not head.headless:
            yield from _mixed(d, head, group)


@rule(
    "topology/hybrid-lb",
    ERROR,
    "A node that balances over its own ranks has an API and says how many ranks it has.",
    "Give every node --data-parallel-size-local, and none of them --headless or "
    "--data-parallel-rank; a router or the clients name all nodes.",
    "vLLM: EngineArgs.create_engine_config, serve.py",
)
def balances_alone(d: Deployment) -> Iterator[Problem]:
    """vLLM refuses the flag on a follower without an API, without the number of local ranks, and
    beside another way of balancing. On a group of one node it does nothing."""
    for server, _ in d.profiles():
        if server.flags.get(_BALANCED[0]) is not True:
            continue
        at = server.of(_BALANCED[0])
        if server.headless:
            yield Problem(at, f"--{_BALANCED[0]} is not applicable to an engine that is --headless")
        elif "data-parallel-rank" in server.flags or server.flags.get(_BALANCED[1]):
            other = _BALANCED[1] if server.flags.get(_BALANCED[1]) else "data-parallel-rank"
            yield Problem(at, f"--{_BALANCED[0]} and --{other} are two ways of balancing at once")
        elif "data-parallel-size-local" not in server.flags and _node_count(server) == 1:
            yield Problem(
                at, f"--{_BALANCED[0]} without --data-parallel-size-local: which ranks are here?"
            )
        elif server.dp is not None and server.ranks == server.dp:
            yield Problem(
                at,
                f"--{_BALANCED[0]} does nothing: all {server.dp} ranks are on this node",
                "Take it out, or give other nodes their share of the ranks.",
                WARNING,
            )
        elif server.span > 1:
            yield Problem(
                at,
                f"--{_BALANCED[0]} with ranks over {server.span} nodes: only the first node of each "
                "can answer",
                "Take it out; the first node of the group then answers for all.",
            )


def _node_count(server: EngineView) -> int:
    return int(server.number("nnodes") or 1)


def _node(server: EngineView) -> int:
    return int(server.number("node-rank") or 0)


def _chosen(server: EngineView) -> str:
    """Return the flag by which a node balances by itself, "" without one."""
    return next((flag for flag in _BALANCED if server.flags.get(flag)), "")


def _inferred(d: Deployment, server: EngineView) -> bool:
    """Return whether the engine balances by itself because it is told its first rank."""
    return server.told_its_first(d.engine.known)


def _follower(d: Deployment, server: EngineView, head: EngineView | None) -> Iterator[Problem]:
    if server.headless:
        return
    alone = _inferred(d, server)
    if alone and head is not None and (_chosen(head) or _inferred(d, head)):
        return
    rank = f"first rank {server.rank}" if server.rank else f"node rank {_node(server)}"
    yield Problem(
        server.spot,
        f"is a follower ({rank}) and lacks --headless",
        "",
        # The head is not in these files: it may balance by itself as well.
        WARNING if alone and head is None else "",
    )


def _mixed(d: Deployment, head: EngineView, group: tuple[EngineView, ...]) -> Iterator[Problem]:
    """Yield a head that balances by itself before followers that are headless."""
    headless = next((one for one in group if one.headless and one.rank and not _node(one)), None)
    flag = _chosen(head) or ("data-parallel-start-rank" if _inferred(d, head) else "")
    if headless is None or not flag:
        return
    yield Problem(
        head.of(flag),
        f"--{flag} makes the head balance by itself, and {headless.spot.name} is --headless: "
        "'Remote engine must not use --headless'",
        f"Take --{flag} out of the command of the head, whose rank is 0 without it.",
        "" if d.engine_known else WARNING,
    )


@rule(
    "topology/proxy-headless",
    WARNING,
    "A front door lists nodes that answer.",
    "List the node with rank 0 of each group.",
    "vLLM: --headless starts no API server",
)
def proxy_headless(d: Deployment) -> Iterator[Problem]:
    """'Connection refused' for each request that the proxy sends to a follower."""
    quiet = {_address(server) for server in d.servers if server.headless}
    answer = {_address(server) for server in d.servers if not server.headless}
    for proxy in d.proxies:
        for role, host, _ in proxy.workers:
            if host in quiet - answer - {""}:
                yield Problem(
                    proxy.spot, f"lists {host} for {role}: the engine there is --headless"
                )


@rule(
    "topology/proxy-left-out",
    WARNING,
    "A front door lists every node that answers in a role.",
    "Add the node to its hosts and ports.",
    "load_balance_proxy_server_example.py: requests go to the listed hosts alone",
)
def proxy_left_out(d: Deployment) -> Iterator[Problem]:
    """The node loads the model and gets no request."""
    if len(d.proxies) != 1:
        return
    proxy = d.proxies[0]
    for role in ("prefill", "decode"):
        listed = {host for kind, host, _ in proxy.workers if kind == role}
        there = {_address(one) for one in d.at_role(role) if not one.headless and one.group is None}
        if len(there & listed) > 0 and not any(map(fill_ins.holds, listed)):
            for host in sorted(there - listed - {""}):
                yield Problem(proxy.spot, f"the {role} engine at {host} is not listed")


def _address(server: EngineView) -> str:
    """Return the address of the node that an engine runs on, "" if nothing names it."""
    for text in (server.env.get("HCCL_IF_IP"), server.env.get("VLLM_HOST_IP"), server.address):
        if text and not fill_ins.holds(text) and text != "0.0.0.0":
            return text
    return ""
