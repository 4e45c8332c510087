"""What the rules look at: engines, proxies, containers, jobs and clients, from any source.

>>> from kimi_nb.check import judge
>>> from kimi_nb.plan import build
>>> judge.of_plan(build.plan("k2.5", "a3", "pd")).complete
True

Other people's scripts become the same values, as far as they can be read::

    reading.read([Path("run.sh")], "vllm-ascend", "0.18.0")

That way each rule is written once. What is not known is None or absent, and a rule that needs it
reports nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb import catalog
from kimi_nb.check.view.engine_view import OWN_ENV, EngineView, Spot
from kimi_nb.params import schema
from kimi_nb.plan.spec import Plan


@dataclass(frozen=True)
class Proxy:
    """The front door of a service: a proxy or router.

    ``workers`` are (role, host, port); ``lists`` are the options as written, and ``asks`` is whether
    callers are asked for the key. ``layerwise`` is whether it serves layer-wise connectors.
    """

    spot: Spot
    kind: str
    node: str
    host: str
    port: int | None
    workers: tuple[tuple[str, str, int | None], ...]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    asks: bool = False
    layerwise: bool = False


@dataclass(frozen=True)
class Client:
    """What talks to the service: curl, ``vllm bench serve``, lm_eval, or Python (openai, requests).

    ``names`` is the model that it requests, ``tokenizer`` the one that it loads, and ``trusts``
    whether it may run code of the checkpoint. None means that a value cannot be known.
    """

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
    """A container as it is started.

    ``argv`` is what runs inside, ``env`` the environment inside. ``devices`` are the accelerators
    that it gets, ``passes`` the variables that are handed in by name, without a value. ``pod`` is
    whether a kubelet starts it, and all of its variables are known by name.
    """

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
    pod: bool = False

    @property
    def host_network(self) -> bool:
        """Whether it uses the network, and so the ports, of the host."""
        return "host" in (*self.options.get("--net", ()), *self.options.get("--network", ()))


@dataclass(frozen=True)
class Launcher:
    """A call of launch_online_dp.py; None where a value is not given or cannot be read.

    ``local`` is the number of ranks that it starts, ``first`` the first of them.
    """

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
    """A SLURM job: its options (``mem``, ``gpus-per-node``, ...) and the programs that it runs.

    ``lines`` maps options to their lines.
    """

    spot: Spot
    options: Mapping[str, str]
    programs: tuple[str, ...]
    lines: Mapping[str, int] = field(default_factory=dict)

    def of(self, option: str) -> Spot:
        """Return the spot of an option, or that of the job if the line is not known."""
        return Spot(self.spot.name, self.spot.file, self.lines.get(option, self.spot.line))


@dataclass(frozen=True)
class Program:
    """Any other command of a script: its words, its place, and the environment that it sees."""

    spot: Spot
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class StoreFile:
    """What a client of a shared KV store reads: an engine, or a service that holds memory.

    ``settings`` are those of Mooncake's JSON file.
    """

    spot: Spot
    node: str
    settings: Mapping[str, Any]

    @property
    def of_service(self) -> bool:
        """Whether a store service reads it, which has to name its own host."""
        return "local_hostname" in self.settings


@dataclass(frozen=True)
class Fault:
    """A problem that the reader saw in the text itself, and the id of the rule that reports it.

    ``severity`` replaces that of the rule if it is given.
    """

    rule: str
    spot: Spot
    message: str
    severity: str = ""


@dataclass(frozen=True)
class Ignore:
    """A comment that ignores some rules on some lines of its file, and why.

    It names no rule if it is not written as it must be. ``used`` are the rules of which it ignored
    a finding.
    """

    spot: Spot
    rules: tuple[str, ...]
    reason: str
    lines: tuple[range, ...]
    used: frozenset[str] = frozenset()

    def covers(self, rule: str, file: str, line: int) -> bool:
        """Return whether a finding is to be ignored."""
        return (
            bool(self.reason)
            and rule in self.rules
            and file == self.spot.file
            and any(line in span for span in self.lines)
        )


@dataclass(frozen=True)
class Deployment:
    """Everything that the rules look at.

    ``fragments`` are options of engines of which nothing else is known, such as those of a values
    file: each option is judged, and nothing that they lack. ``prose`` are those that a document names
    inside its sentences, perhaps to warn of them.
    ``exports`` are the variables of a script that starts no engine itself, such as a fence that is
    pasted before another. ``engine_known`` is whether something names the engine's version; otherwise it is assumed.
    ``metrics`` are the metrics of vLLM that the files name, and ``stores`` the settings of a shared
    KV store.
    ``complete`` is whether every engine of the deployment is here. ``faults`` is what the reader
    saw in the text itself, ``claims`` what a document states in prose, and ``unread`` what was not
    read and why. ``documents`` are the files whose commands may be alternatives.
    ``services`` are the hosts of services of Kubernetes, which stand before servers and proxies.
    ``ignores`` are the comments that ignore a rule. ``paths`` maps the names of files to where they lie.
    ``read`` counts the commands that were judged, those that were not understood although they name
    vLLM, and the fill-ins; it is None for what was not read from files. ``between`` is the other listed version beside an engine whose own is not listed;
    ``outside`` is whether its own lies before or after all listed ones, so that only one is known, and
    ``engine_stated`` is its own as it was named; "" where it is listed.
    """

    title: str
    engine: catalog.Engine
    engine_known: bool
    servers: tuple[EngineView, ...] = ()
    fragments: tuple[EngineView, ...] = ()
    prose: tuple[EngineView, ...] = ()
    proxies: tuple[Proxy, ...] = ()
    clients: tuple[Client, ...] = ()
    boxes: tuple[Box, ...] = ()
    launchers: tuple[Launcher, ...] = ()
    batches: tuple[Batch, ...] = ()
    programs: tuple[Program, ...] = ()
    exports: tuple[Program, ...] = ()
    metrics: tuple[tuple[Spot, str], ...] = ()
    stores: tuple[StoreFile, ...] = ()
    services: frozenset[str] = frozenset()
    faults: tuple[Fault, ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()
    model: schema.Model | None = None
    weights: schema.Weights | None = None
    hardware: schema.Hardware | None = None
    devices_per_node: int | None = None
    complete: bool = False
    plan: Plan | None = None
    unread: tuple[tuple[Spot, str], ...] = ()
    between: tuple[catalog.Engine, ...] = ()
    outside: bool = False
    engine_stated: str = ""
    read: Mapping[str, int] | None = None
    documents: frozenset[str] = frozenset()
    paths: Mapping[str, str] = field(default_factory=dict)
    ignores: tuple[Ignore, ...] = ()

    @property
    def ascend(self) -> bool:
        """Whether the engine is vllm-ascend."""
        return self.engine.package == "vllm-ascend"

    def groups(self) -> list[tuple[EngineView, ...]]:
        """Return the engines by data parallel group, in order.

        An engine of no known group is alone.
        """
        return self._groups

    @functools.cached_property
    def _groups(self) -> list[tuple[EngineView, ...]]:
        out: dict[Any, list[EngineView]] = {}
        turn: dict[Any, int] = {}
        taken: dict[Any, set[tuple[int | None, int]]] = {}
        for index, server in enumerate(self.servers):
            if server.group is None:
                out["alone", index] = [server]
                continue
            key = (server.group, turn.setdefault(server.group, 0))
            place = server.rank, server.part
            if not server.certain and place in taken.get(key, ()):
                # The same rank again in a document: another variant of the deployment.
                turn[server.group] += 1
                key = (server.group, turn[server.group])
            taken.setdefault(key, set()).add(place)
            out.setdefault(key, []).append(server)
        return [tuple(group) for group in out.values()]

    def at_role(self, role: str) -> tuple[EngineView, ...]:
        """Return the engines of a role."""
        return tuple(server for server in self.servers if server.role == role)

    def commands(self) -> list[tuple[Spot, tuple[str, ...]]]:
        """Return the place and the words of each client and of every other command."""
        return [
            *((one.spot, one.argv) for one in self.clients),
            *((one.spot, one.argv) for one in self.programs),
        ]

    def options(self) -> list[EngineView]:
        """Return what holds options of an engine: one engine for each profile, and the fragments."""
        return [*(server for server, _ in self.profiles()), *self.fragments]

    def environments(self) -> list[EngineView]:
        """Return one engine for each role, file and set of variables.

        Variables that each rank has of its own (`engine_view.OWN_ENV`) are not compared.
        """
        return self._environments

    @functools.cached_property
    def _environments(self) -> list[EngineView]:
        first: dict[Any, EngineView] = {}
        for server in self.servers:
            if server.assumed:
                continue
            key = (
                server.role,
                server.spot.file,
                tuple(pair for pair in server.env.items() if pair[0] not in OWN_ENV),
                tuple(server.env_lines.items()),  # each place is told
            )
            first.setdefault(key, server)
        return list(first.values())

    def profiles(self) -> list[tuple[EngineView, int]]:
        """Return one engine for each distinct configuration, and how many engines share it.

        What differs from rank to rank (ports, ranks, addresses) is not compared.
        """
        return self._profiles

    @functools.cached_property
    def _profiles(self) -> list[tuple[EngineView, int]]:
        first: dict[Any, EngineView] = {}
        count: dict[Any, int] = {}
        key: Any = None
        before: EngineView | None = None
        for server in self.servers:
            if server.assumed:
                continue
            # Ranks that were read alike share this object, and need no comparison.
            if (
                before is None
                or server.shared is not before.shared
                or server.role != before.role
                or server.spot.file != before.spot.file
                or server.spot.line != before.spot.line
            ):
                place = server.spot.file, server.spot.line  # each place is told
                key = (server.role, place, server.shared, server.model)
            before = server
            first.setdefault(key, server)
            count[key] = count.get(key, 0) + 1
        return [(server, count[key]) for key, server in first.items()]
