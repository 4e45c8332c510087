"""What the rules look at: engines, front door, containers, jobs and clients, from anywhere.

    check.of_plan(plan)                      # our own plan
    reading.read([Path("run.sh")], ...)      # scripts of other people, as far as they can be read

A plan and a stranger's scripts become the same values, so that a rule is written once. What is
not known is None (or absent), and a rule that needs it says nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check.view.engine_view import OWN_ENV, Server, Spot
from kimi_nb.params import schema
from kimi_nb.plan.spec import Plan


@dataclass(frozen=True)
class Proxy:
    """A front door. ``workers`` are (role, host, port); ``lists`` the options as written."""

    spot: Spot
    kind: str
    node: str
    host: str
    port: int | None
    workers: tuple[tuple[str, str, int | None], ...]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Client:
    """A command that talks to the service: curl, vllm bench serve, lm_eval. ``names`` is the
    model it asks for, ``tokenizer`` what it loads; ``trusts`` is whether it may run code of the
    checkpoint; None is what cannot be known."""

    spot: Spot
    kind: str
    host: str | None
    port: int | None
    path: str
    names: str | None
    tokenizer: str | None
    trusts: bool | None
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Box:
    """A container as it is started. ``devices`` are accelerators handed in."""

    spot: Spot
    node: str
    image: str
    name: str
    argv: tuple[str, ...]
    mounts: tuple[str, ...]
    devices: tuple[str, ...]
    published: tuple[str, ...]
    env: Mapping[str, str]
    options: Mapping[str, tuple[str, ...]]
    runs_engine: bool
    passes: tuple[str, ...] = ()

    @property
    def host_network(self) -> bool:
        """Whether it has the host's own network, and so its ports."""
        return "host" in (*self.options.get("--net", ()), *self.options.get("--network", ()))


@dataclass(frozen=True)
class Launcher:
    """A call of launch_online_dp.py; None where a value is not given or cannot be read."""

    spot: Spot
    node: str
    dp: int | None
    tp: int | None
    local: int | None
    first: int | None
    address: str
    rpc_port: int | None
    http_port: int | None


@dataclass(frozen=True)
class Batch:
    """A SLURM job: its options (``mem``, ``gpus-per-node``, ...) and the programs it runs."""

    spot: Spot
    options: Mapping[str, str]
    programs: tuple[str, ...]
    lines: Mapping[str, int] = field(default_factory=dict)

    def of(self, option: str) -> Spot:
        """The spot of an option; that of the job where it is not known."""
        return Spot(self.spot.name, self.spot.file, self.lines.get(option, self.spot.line))


@dataclass(frozen=True)
class Program:
    """Any other command of a script: its words, the line, what was exported by then."""

    spot: Spot
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Fault:
    """What the reader itself saw in a text, by the rule that tells it."""

    rule: str
    spot: Spot
    message: str
    severity: str = ""


@dataclass(frozen=True)
class Deployment:
    """See the module. ``complete`` is whether every engine of it is here, ``together`` whether
    its engines are one deployment (a document may show alternatives)."""

    title: str
    engine: catalog.Engine
    engine_known: bool
    servers: tuple[Server, ...] = ()
    proxies: tuple[Proxy, ...] = ()
    clients: tuple[Client, ...] = ()
    boxes: tuple[Box, ...] = ()
    launchers: tuple[Launcher, ...] = ()
    batches: tuple[Batch, ...] = ()
    programs: tuple[Program, ...] = ()
    faults: tuple[Fault, ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()
    model: schema.Model | None = None
    weights: schema.Weights | None = None
    hardware: schema.Hardware | None = None
    devices_per_node: int | None = None
    complete: bool = False
    plan: Plan | None = None
    unread: tuple[tuple[Spot, str], ...] = ()
    documents: frozenset[str] = frozenset()

    @property
    def ascend(self) -> bool:
        """Whether the engine is the one for Ascend."""
        return self.engine.package == "vllm-ascend"

    def groups(self) -> list[tuple[Server, ...]]:
        """The engines by data parallel group, in order; those of no known group alone."""
        return self._groups

    @functools.cached_property
    def _groups(self) -> list[tuple[Server, ...]]:
        out: dict[Any, list[Server]] = {}
        turn: dict[Any, int] = {}
        taken: dict[Any, set[int | None]] = {}
        for index, server in enumerate(self.servers):
            if server.group is None:
                out["alone", index] = [server]
                continue
            key = (server.group, turn.setdefault(server.group, 0))
            if not server.certain and server.rank in taken.get(key, ()):
                # The same rank again in a document: another variant of the deployment.
                turn[server.group] += 1
                key = (server.group, turn[server.group])
            taken.setdefault(key, set()).add(server.rank)
            out.setdefault(key, []).append(server)
        return [tuple(group) for group in out.values()]

    def at_role(self, role: str) -> tuple[Server, ...]:
        """The engines of a role."""
        return tuple(server for server in self.servers if server.role == role)

    def environments(self) -> list[Server]:
        """One engine for each set of variables and role, the ranks' own left out."""
        return self._environments

    @functools.cached_property
    def _environments(self) -> list[Server]:
        first: dict[Any, Server] = {}
        for server in self.servers:
            key = (
                server.role,
                server.spot.file,
                tuple(pair for pair in server.env.items() if pair[0] not in OWN_ENV),
            )
            first.setdefault(key, server)
        return list(first.values())

    def profiles(self) -> list[tuple[Server, int]]:
        """One engine for each kind of setting, and how many are like it: what differs between
        ranks (ports, ranks, addresses) is left out of the comparison."""
        return self._profiles

    @functools.cached_property
    def _profiles(self) -> list[tuple[Server, int]]:
        first: dict[Any, Server] = {}
        count: dict[Any, int] = {}
        key: Any = None
        before: Server | None = None
        for server in self.servers:
            # Ranks that were read alike share this object, and need no comparison.
            if (
                before is None
                or server.shared is not before.shared
                or server.role != before.role
                or server.spot.file != before.spot.file
            ):
                key = (server.role, server.spot.file, server.shared, server.model)
            before = server
            first.setdefault(key, server)
            count[key] = count.get(key, 0) + 1
        return [(server, count[key]) for key, server in first.items()]
