"""Assign nodes, ranks, devices and ports to the engines of a plan.

A *group* is a set of data parallel ranks that meet at one address and RPC port. A *place* is one
``vllm serve`` process of a group: on one node, with its devices and ports. Nodes are used in the
order of the site, role after role. What does not fit is refused with the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kimi_nb.core.errors import ParameterError, PlanError
from kimi_nb.params import schema
from kimi_nb.plan import ports, sizes
from kimi_nb.plan.roles import RolePlan


@dataclass(frozen=True, slots=True)
class Group:
    """One data parallel group; ``rpc_port`` is where ranks of several processes meet.

    A rank has ``world`` devices: tp x pp x pcp. With ``hybrid`` each node answers for its own ranks.
    """

    index: int
    role: str
    number: int
    dp: int
    tp: int
    pp: int
    pcp: int
    hybrid: bool
    nodes: tuple[schema.Node, ...]
    rpc_port: int | None
    kv_port: int | None
    side_channel_port: int | None
    master_port: int | None = None

    @property
    def address(self) -> str:
        """The address of the first node, where the ranks meet."""
        return self.nodes[0].address

    @property
    def world(self) -> int:
        """The devices of one data parallel rank."""
        return self.tp * self.pp * self.pcp


@dataclass(frozen=True, slots=True)
class Place:
    """One engine process.

    ``rank`` is its first data parallel rank and ``ranks`` how many it runs; ``node_rank`` is the
    number of its node in a group whose ranks span nodes, otherwise 0.
    """

    group: Group
    node: schema.Node
    rank: int
    ranks: int
    node_rank: int
    devices: tuple[int, ...]
    http_port: int | None
    headless: bool

    @property
    def name(self) -> str:
        """The name of the engine, such as prefill0-rank3, or mixed0-node1 for a part of a rank."""
        suffix = f"node{self.node_rank}" if self.spans else f"rank{self.rank}"
        return f"{self.group.role}{self.group.number}-{suffix}"

    @property
    def spans(self) -> bool:
        """Whether one rank needs more than this node."""
        return self.group.world > len(self.devices)

    @property
    def kv_ports(self) -> range:
        """The ports on which the KV cache connector listens."""
        base = self.group.kv_port
        if base is None:
            return range(0)
        if self.spans:  # one for each device here: those of the rank count over its nodes
            return ports.kv(base, self.node_rank, len(self.devices))
        return ports.kv(base, self.rank, self.group.world, self.ranks)

    @property
    def side_channel_ports(self) -> range:
        """The ports of NIXL's handshake, one for each rank."""
        base = self.group.side_channel_port
        return range(0) if base is None else ports.side_channel(base, self.rank, self.ranks)


def layout(
    roles: Mapping[str, RolePlan],
    hardware: schema.Hardware,
    site: schema.Site,
    per_rank: bool,
    heads: int,
) -> list[Group]:
    """Return the groups of a plan on the nodes of a site.

    Raises PlanError with the arithmetic where dp, tp, nodes and devices do not fit.
    """
    for role in roles.values():
        sizes.check(role, hardware, per_rank, heads)
    if (
        "prefill" in roles
        and roles["prefill"].tp < roles["decode"].tp
        and str(connector(roles["prefill"])).startswith("Mooncake")
    ):
        raise PlanError(
            f"prefill tp {roles['prefill'].tp} is less than decode tp "
            f"{roles['decode'].tp}: Mooncake hands each prefill rank's cache to "
            "as many decode ranks or fewer. Raise prefill.tp or lower decode.tp."
        )
    needed = sum(role.groups * role.nodes for role in roles.values())
    if needed > len(site.nodes):
        working = " + ".join(f"{role.role} {role.groups} x {role.nodes}" for role in roles.values())
        raise PlanError(
            f"This plan needs {needed} nodes ({working}: groups x nodes), the site "
            f"{site.name} has {len(site.nodes)}: {_some(site.nodes)}. Add nodes to "
            "the site file (--site) or plan smaller (--set)."
        )
    groups: list[Group] = []
    nodes = iter(site.nodes)
    for role in roles.values():
        for number in range(role.groups):
            mine = tuple(next(nodes) for _ in range(role.nodes))
            groups.append(_group(role, number, len(groups), mine, per_rank))
    return groups


def connector(role: RolePlan) -> str | None:
    """Return the KV cache connector of a role, None if it has none."""
    found = role.settings.flags.get("kv-transfer-config.kv_connector")
    return None if found is None else str(found.value)


def check_set_ports(
    role: RolePlan, given: Mapping[str, int], hardware: schema.Hardware, per_rank: bool
) -> None:
    """Refuse a port that the user sets (``given``, by kind) where nothing would listen at it."""
    for kind, port in given.items():
        why = ports.idle(
            kind,
            connector(role),
            per_rank,
            role.nodes,
            role.world > hardware.devices.count,
            role.dp == 1,
        )
        if why:
            name = f"{kind.replace('_', '-')}-port={port}"
            raise ParameterError(f"--set {role.role}.{name} would change nothing: {why}.")


def _group(
    role: RolePlan, number: int, index: int, nodes: tuple[schema.Node, ...], per_rank: bool
) -> Group:
    kv = role.ports["kv"]
    meets = role.dp > 1 and (per_rank or len(nodes) > 1)
    return Group(
        index=index,
        role=role.role,
        number=number,
        dp=role.dp,
        tp=role.tp,
        pp=role.pp,
        pcp=role.pcp,
        hybrid=role.hybrid,
        nodes=nodes,
        rpc_port=(role.ports["rpc"] or ports.RPC) if meets else None,
        kv_port=None if kv is None else ports.kv_base(kv, index),
        side_channel_port=role.ports["side_channel"],
        master_port=role.ports["master"],
    )


def _some(nodes: tuple[schema.Node, ...]) -> str:
    names = [node.name for node in nodes[:8]]
    return ", ".join(names) + (", ..." if len(nodes) > 8 else "")


def places(group: Group, role: RolePlan, devices: int, per_rank: bool) -> Iterator[Place]:
    """Yield the engine processes of a group in the order of nodes and ranks.

    With ``per_rank`` there is one process for each rank, otherwise one for each node.
    """
    http = role.ports["http"]
    if group.world > devices:
        each = group.world // devices  # the nodes of one rank
        for number, node in enumerate(group.nodes):
            yield Place(
                group,
                node,
                number // each,
                1,
                number,
                tuple(range(devices)),
                None if number else http or ports.HTTP,
                bool(number),
            )
        return
    local = group.dp // len(group.nodes)
    for number, node in enumerate(group.nodes):
        first = number * local
        if per_rank:
            for i in range(local):
                mine = tuple(range(i * group.world, (i + 1) * group.world))
                yield Place(group, node, first + i, 1, 0, mine, (http or ports.HTTP) + i, False)
        else:
            follows = bool(number) and not group.hybrid
            yield Place(
                group,
                node,
                first,
                local,
                0,
                tuple(range(local * group.world)),
                None if follows else http or ports.HTTP,
                follows,
            )


def check_ports(places: list[Place], extra: list[tuple[str, int, str]]) -> None:
    """Refuse a port that two listeners of one node share, or that is above 65535.

    ``extra`` has (node name, port, description) of other listeners, such as the router.
    """
    used: dict[str, dict[int, str]] = {}

    def claim(node: str, port: int, what: str) -> None:
        if port > ports.LAST:
            raise PlanError(
                f"{node}: {what} would listen at port {port}; the last one is 65535. "
                "Lower the first port."
            )
        taken = used.setdefault(node, {})
        if port in taken:
            raise PlanError(
                f"{node}: port {port} is wanted twice: by {taken[port]} and by "
                f"{what}. Move one of them (--set port=, kv-port=, rpc-port=, "
                "master-port=, router.port=)."
            )
        taken[port] = what

    for place in places:
        node = place.node.name
        if place.http_port is not None:
            claim(node, place.http_port, f"HTTP of {place.name}")
        for port in place.kv_ports:
            claim(node, port, f"the KV cache of {place.name}")
        for port in place.side_channel_ports:
            claim(node, port, f"the NIXL side channel of {place.name}")
        group = place.group
        if group.rpc_port is not None and place.rank == 0 and node == group.nodes[0].name:
            claim(node, group.rpc_port, f"the rpc port of {group.role} group {group.number}")
        if place.spans and place.node_rank == 0:
            claim(node, group.master_port or ports.MASTER, f"the master port of {place.name}")
    for node, port, what in extra:
        claim(node, port, what)
