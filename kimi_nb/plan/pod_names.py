"""Name the pods of a plan on Kubernetes as the LeaderWorkerSet controller names them.

Each group of a role is one replica of the role's LeaderWorkerSet, each node of it one pod, so that
the nodes of such a plan are pods: the leader ``kimi-decode-0``, its first worker
``kimi-decode-0-1``. Their addresses are those of the set's headless service.

Source: leaderworkerset_types.go of LeaderWorkerSet v1 (SubdomainShared, LWS_LEADER_ADDRESS).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kimi_nb.params import schema
from kimi_nb.params.kubernetes_site import Kubernetes
from kimi_nb.plan.roles import RolePlan
from kimi_nb.plan.spec import Plan


@dataclass(frozen=True)
class PodSet:
    """The pods of one role: ``pods`` has the names of each group, the leader first."""

    name: str
    role: str
    pods: tuple[tuple[str, ...], ...]

    @property
    def size(self) -> int:
        """How many pods a group has."""
        return len(self.pods[0])


def set_name(cluster: Kubernetes, role: str) -> str:
    """Return the name of a role's LeaderWorkerSet.

    >>> set_name(Kubernetes.model_construct(name="kimi"), "decode")
    'kimi-decode'
    """
    return f"{cluster.name}-{role}"


def site_of_pods(site: schema.Site, roles: Mapping[str, RolePlan]) -> schema.Site:
    """Return the site with pods in the place of as many of its nodes as the roles take."""
    cluster = site.kubernetes
    assert cluster is not None
    pods: list[schema.Node] = []
    for role in roles.values():
        owner = set_name(cluster, role.role)
        for group in range(role.groups):
            for worker in range(role.nodes):
                name = f"{owner}-{group}-{worker}" if worker else f"{owner}-{group}"
                address = f"{name}.{owner}.{cluster.namespace}"
                pods.append(schema.Node(name=name, address=address))
    taken = min(len(pods), len(site.nodes))
    return site.model_copy(update={"nodes": (*pods[:taken], *site.nodes[taken:])})


def door_node(cluster: Kubernetes) -> str:
    """Return the name of the router's Deployment, which stands for its node."""
    return f"{cluster.name}-router"


def door_host(cluster: Kubernetes) -> str:
    """Return the host of the service's URL: that of the Service in front of everything."""
    return f"{cluster.name}.{cluster.namespace}"


def sets(plan: Plan) -> tuple[PodSet, ...]:
    """Return the pods of a plan, role by role."""
    cluster = plan.request.site.kubernetes
    found: dict[str, dict[int, dict[str, None]]] = {}
    for engine in plan.engines:
        found.setdefault(engine.role, {}).setdefault(engine.group, {})[engine.node] = None
    return tuple(
        PodSet(set_name(cluster, role), role, tuple(tuple(pods) for pods in groups.values()))
        for role, groups in found.items()
    )
