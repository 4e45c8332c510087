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
from kimi_nb.plan import ports
from kimi_nb.plan.roles import RolePlan


@dataclass(frozen=True, slots=True)
class Group:
    """One data parallel group; ``rpc_port`` is where ranks of several processes meet."""

    index: int
    role: str
    number: int
    dp: int
    tp: int
    nodes: tuple[schema.Node, ...]
    rpc_port: int | None
    kv_port: int | None
    side_channel_port: int | None
    master_port: int | None = None

    @property
    def address(self) -> str:
        """The address of the first node, where the ranks meet."""
        return self.nodes[0].address


@dataclass(frozen=True, slots=True)
class Place:
    """One engine process.

    ``rank`` is its first data parallel rank and ``ranks`` how many it runs; ``node_rank`` is its
    part of a tensor parallel group that spans nodes, otherwise 0.
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
        return self.group.tp > len(self.devices)

    @property
    def kv_ports(self) -> range:
        """The ports on which the KV cache connector listens."""
        base = self.group.kv_port
        return range(0) if base is None else ports.kv(base, self.rank, self.group.tp, self.ranks)

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
        _check_shape(role, hardware, per_rank, heads)
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
            kind, connector(role), per_rank, role.nodes, role.tp > hardware.devices.count
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
        nodes=nodes,
        rpc_port=(role.ports["rpc"] or ports.RPC) if meets else None,
        kv_port=None if kv is None else ports.kv_base(kv, index),
        side_channel_port=role.ports["side_channel"],
        master_port=role.ports["master"],
    )


def _some(nodes: tuple[schema.Node, ...]) -> str:
    names = [node.name for node in nodes[:8]]
    return ", ".join(names) + (", ..." if len(nodes) > 8 else "")


def _check_shape(role: RolePlan, hardware: schema.Hardware, per_rank: bool, heads: int) -> None:
    there, title = hardware.devices.count, hardware.title
    if heads % role.tp:
        raise PlanError(
            f"{role.role}: tp {role.tp} does not divide the {heads} attention heads "
            f"({heads} / {role.tp} = {heads / role.tp:.2f}); "
            f"allowed: {_divisors(heads)}."
        )
    split = role.settings.flags.get("decode-context-parallel-size")
    if split and role.tp % split.value:
        raise PlanError(
            f"{role.role}: decode-context-parallel-size {split.value} does not divide "
            f"tp {role.tp} ({split.source}): it splits the ranks of one tensor "
            "parallel group."
        )
    if role.tp > there:
        if per_rank:
            raise _spans_nodes(role, hardware, heads)
        if role.dp != 1 or role.tp != role.nodes * there:
            raise PlanError(
                f"{role.role}: tp {role.tp} is more than the {there} devices of one {title}. Over "
                f"nodes it works without data parallel only: dp 1 and tp = nodes x {there} = "
                f"{role.nodes} x {there} = {role.nodes * there}; found dp {role.dp}."
            )
        return
    if role.dp % role.nodes:
        raise PlanError(
            f"{role.role}: dp {role.dp} over {role.nodes} nodes is "
            f"{role.dp / role.nodes:.2f} ranks a node; dp must be a multiple of "
            f"{role.nodes}."
        )
    local = role.dp // role.nodes
    if local * role.tp > there:
        raise PlanError(
            f"{role.role}: dp {role.dp} over {role.nodes} node{'s' * (role.nodes > 1)} "
            f"is {local} ranks a node; {local} ranks x tp {role.tp} = "
            f"{local * role.tp} devices, one {title} has {there}."
        )


def _spans_nodes(role: RolePlan, hardware: schema.Hardware, heads: int) -> PlanError:
    """Return the refusal of a rank over several nodes where each rank is a process."""
    there = hardware.devices.count
    allowed = [n for n in range(1, there + 1) if heads % n == 0]
    return PlanError(
        f"{role.role}: tp {role.tp} is more than the {there} devices of one {hardware.title}, and "
        "here each rank is one process on one node, which launch_online_dp.py starts; "
        f"allowed: {', '.join(map(str, allowed))}. Lower {role.role}.tp, and raise "
        f"{role.role}.dp to use more nodes."
    )


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


def places(group: Group, role: RolePlan, devices: int, per_rank: bool) -> Iterator[Place]:
    """Yield the engine processes of a group in the order of nodes and ranks.

    With ``per_rank`` there is one process for each rank, otherwise one for each node.
    """
    http = role.ports["http"]
    if group.tp > devices:
        for number, node in enumerate(group.nodes):
            yield Place(
                group,
                node,
                0,
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
                mine = tuple(range(i * group.tp, (i + 1) * group.tp))
                yield Place(group, node, first + i, 1, 0, mine, (http or ports.HTTP) + i, False)
        else:
            yield Place(
                group,
                node,
                first,
                local,
                0,
                tuple(range(local * group.tp)),
                None if number else http or ports.HTTP,
                bool(number),
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
