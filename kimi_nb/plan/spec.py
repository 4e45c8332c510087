"""Define the plan: a recipe bound to a site, with every placeholder filled in; `build` makes it.

Example::

    plan = build.plan("k2.5", "a3", "pd")
    plan.engines[0].argv  # what is executed, as a list
    plan.explain()  # every flag and variable: value, layer, reason, source
    plan.as_json()  # the same bytes for the same inputs
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.params.settings import Value
from kimi_nb.plan import ports


def authority(address: str, port: int) -> str:
    """Return host:port as written in a URL, with an IPv6 address in brackets.

    >>> authority("fd00::1", 8000)
    '[fd00::1]:8000'
    """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def url_of(address: str, port: int) -> str:
    """Return the URL of a server, without a path."""
    return f"http://{authority(address, port)}"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One ``vllm serve`` process.

    ``rank`` is its first data parallel rank and ``ranks`` how many it runs; ``devices`` are the
    node's own numbers; a headless engine has no ``http_port``; ``kv_port`` is the first port at
    which its KV cache connector listens. ``env`` has the variables to export, ``argv`` the command.
    ``pp_size`` and ``pcp_size`` are the sizes of pipeline and prefill context parallelism.
    """

    name: str
    node: str
    address: str
    role: str
    group: int
    rank: int
    ranks: int
    dp_size: int
    tp_size: int
    devices: tuple[int, ...]
    http_port: int | None
    kv_port: int | None
    rpc_port: int | None
    side_channel_port: int | None
    headless: bool
    env: Mapping[str, str]
    argv: tuple[str, ...]
    pp_size: int = 1
    pcp_size: int = 1

    @property
    def world(self) -> int:
        """The devices of one data parallel rank, over all nodes that it has."""
        return self.tp_size * self.pp_size * self.pcp_size

    @property
    def spans(self) -> bool:
        """Whether its rank has devices on other nodes as well."""
        return self.ranks == 1 and 0 < len(self.devices) < self.world

    @property
    def part(self) -> int:
        """Which node of its rank it is; 0 for the first, which answers for the others."""
        if not self.spans or "--node-rank" not in self.argv:
            return 0
        node = int(self.argv[self.argv.index("--node-rank") + 1])
        return node % (self.world // len(self.devices))

    @property
    def stages(self) -> tuple[int, ...]:
        """The pipeline stage of each of its devices: vLLM counts ranks of tp first, then stages."""
        before = self.part * len(self.devices)
        return tuple(
            (before + at) % self.world // (self.tp_size * self.pcp_size)
            for at in range(len(self.devices))
        )

    @property
    def sizes(self) -> str:
        """The devices of a rank as factors, such as "8" for tp alone, or "8 x pp 2"."""
        more = (("pp", self.pp_size), ("pcp", self.pcp_size))
        return " x ".join(
            [str(self.tp_size), *(f"{name} {size}" for name, size in more if size > 1)]
        )

    @property
    def kv_width(self) -> int:
        """How many ports the KV cache connector has for each rank: one for each device here."""
        return len(self.devices) if self.spans else self.world

    @property
    def kv_ports(self) -> range:
        """Every port on which the KV cache connector listens; empty without one."""
        first = self.kv_port
        return range(0) if first is None else ports.kv(first, 0, self.kv_width, self.ranks)

    @property
    def side_channel_ports(self) -> range:
        """Every port of the NIXL side channel; empty without one."""
        first = self.side_channel_port
        return range(0) if first is None else ports.side_channel(first, 0, self.ranks)

    @property
    def master_port(self) -> int | None:
        """Where the nodes of a group meet; None on followers, and where each rank has one node."""
        if self.headless or "--nnodes" not in self.argv:
            return None
        if "--master-port" not in self.argv:
            return ports.MASTER
        return int(self.argv[self.argv.index("--master-port") + 1])

    @property
    def url(self) -> str | None:
        """The URL of the API, without a path; None for a headless engine."""
        return None if self.http_port is None else url_of(self.address, self.http_port)


@dataclass(frozen=True)
class Router:
    """The front door of several groups.

    ``workers`` are (role, URL, engine name). ``folder`` is the virtual environment that has the
    router where the engine is in an image; "" where it is in the engine's.
    """

    kind: str
    node: str
    host: str
    port: int
    workers: tuple[tuple[str, str, str], ...]
    argv: tuple[str, ...]
    folder: str = ""

    @property
    def url(self) -> str:
        """The URL of the front door, without a path."""
        return url_of(self.host, self.port)


@dataclass(frozen=True)
class Store:
    """The KV store that the engines share; `plan.store` makes it.

    ``node`` and ``address`` are those of its master, which listens at ``port`` and, with its metrics,
    at ``metrics_port``. ``service`` is the command of the service on each node, which listens at
    ``service_port``; () and None where the engines hold the memory. Sizes are in GB of 2**30 bytes:
    ``segment_gb`` of each device or service, ``buffer_gb`` of each client. ``config`` is what each
    engine reads, ``services`` what each service does, by node.
    """

    kind: str
    mode: str
    node: str
    address: str
    port: int
    metrics_port: int
    service_port: int | None
    segment_gb: int
    buffer_gb: int
    protocol: str
    master: tuple[str, ...]
    service: tuple[str, ...]
    config: Mapping[str, Any]
    services: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Container:
    """The ``docker run`` of one node; ``env`` are the variables that its script exports first."""

    node: str
    image: str
    env: Mapping[str, str]
    argv: tuple[str, ...]
    runs_engine: bool


@dataclass(frozen=True)
class Launch:
    """The call of launch_online_dp.py that starts the ranks of one node."""

    node: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class InstallStep:
    """One command of an installation: its purpose, directory and exported variables."""

    says: str
    argv: tuple[str, ...]
    directory: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class Job:
    """One sbatch job; ``argv`` is its main command, ``body`` the lines of its script.

    ``products`` are the files and folders that it leaves behind, as the login node sees them.
    """

    name: str
    file: str
    after: str
    options: tuple[str, ...]
    env: Mapping[str, str]
    argv: tuple[str, ...]
    body: tuple[str, ...]
    products: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClientCommand:
    """A command that sends requests to the service, once for each concurrency of a ``sweep``."""

    name: str
    title: str
    env: Mapping[str, str]
    argv: tuple[str, ...]
    sweep: tuple[int, ...]
    source: str


@dataclass(frozen=True)
class Setting:
    """One row of `Plan.explain`."""

    role: str
    kind: str
    name: str
    value: Any
    layer: str
    source: str
    reason: str


def name_of(
    model: str,
    hardware: str,
    layout: str,
    variant: str,
    scenario: str,
    as_documented: bool,
    derived: bool,
) -> str:
    """Return the name of a plan's folder: model, hardware, layout, and what is not the default."""
    extra = [
        part
        for part in (
            variant if variant != "docker" else "",
            scenario if scenario != "default" else "",
            "as-documented" if as_documented else "",
            "derived" if derived else "",
        )
        if part
    ]
    return "-".join([model, hardware, layout, *extra])


@dataclass(frozen=True)
class Plan:
    """Everything about a deployment, as values; the module shows its use.

    ``engine_folder`` is the virtual environment that the scripts enter, and ``libraries`` the folder
    that they append to LD_LIBRARY_PATH; "" is none. ``flags`` and ``env`` are by role, with their
    layers; ``derived`` is what a derived recipe is from and the rule of each difference, else empty;
    ``request`` is the `roles.Request` that the plan was made from.
    """

    model: str
    hardware: str
    layout: str
    scenario: str
    variant: str
    site: str
    title: str
    documented: bool
    source: str
    engine: str
    engine_version: str
    vllm_version: str
    image: str
    served_name: str
    weights: str
    devices_per_node: int
    processes: str
    install: str
    transport: str
    url: str
    engines: tuple[EngineSpec, ...]
    router: Router | None
    launches: tuple[Launch, ...]
    containers: tuple[Container, ...]
    installs: Mapping[str, tuple[InstallStep, ...]]
    jobs: tuple[Job, ...]
    clients: tuple[ClientCommand, ...]
    features: Mapping[str, tuple[str, ...]]
    host_tuning: tuple[tuple[str, str], ...]
    secrets: Mapping[str, str]
    engine_folder: str
    libraries: str
    modules: tuple[str, ...]
    errata: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    edits: tuple[str, ...]
    flags: Mapping[str, Mapping[str, Value]] = field(default_factory=dict, repr=False)
    env: Mapping[str, Mapping[str, Value]] = field(default_factory=dict, repr=False)
    errata_off: tuple[str, ...] = ()
    as_documented: bool = False
    derived: Mapping[str, Any] = field(default_factory=dict)
    request: Any = field(default=None, repr=False, compare=False)
    store: Store | None = None

    @property
    def name(self) -> str:
        """The name of the plan's folder: model, hardware, layout, and what is not the default."""
        return name_of(
            self.model,
            self.hardware,
            self.layout,
            self.variant,
            self.scenario,
            self.as_documented,
            bool(self.derived),
        )

    @property
    def heading(self) -> str:
        """Its name as a heading, which says of a derived plan that it is one."""
        return f"DERIVED {self.name}" if self.derived else self.name

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in use, in the site's order."""
        return tuple(dict.fromkeys(engine.node for engine in self.engines))

    @property
    def random_weights(self) -> bool:
        """Whether its engines make up their weights, so that answers mean nothing."""
        formats = (flags.get("load-format") for flags in self.flags.values())
        return any(one is not None and str(one.value) == "dummy" for one in formats)

    @property
    def takes_pictures(self) -> bool:
        """Whether its model has eyes, and every engine was left to use them."""
        blind = any("language-model-only" in flags for flags in self.flags.values())
        return "vision_parameters" in self.request.model.architecture and not blind

    def first(self, role: str) -> EngineSpec:
        """Return the first engine of a role; raise KeyError where the plan has no such role."""
        for engine in self.engines:
            if engine.role == role:
                return engine
        raise KeyError(role)

    def of(self, node: str) -> tuple[EngineSpec, ...]:
        """Return the engines of one node."""
        return tuple(engine for engine in self.engines if engine.node == node)

    def explain(self) -> list[Setting]:
        """List every flag and variable of every role with value, layer, reason and source."""
        words = data_files.facts("plan/glossary")
        rows = []
        for kind, table, meaning in (
            ("flag", self.flags, words["flags"]),
            ("variable", self.env, words["env"]),
        ):
            for role, values in table.items():
                for name, value in values.items():
                    text = value.reason or meaning.get(name) or meaning.get(name.split(".")[0], "")
                    rows.append(
                        Setting(role, kind, name, value.value, value.layer, value.source, text)
                    )
        return rows

    def as_dict(self, files: Mapping[str, str] | Sequence[str] = ()) -> dict[str, Any]:
        """Return the plan as plain values.

        ``files`` are those of its bundle: their relative paths, or the text of each by its path.
        """
        out = {"name": self.name} | {
            key: value
            for key, value in _shallow(self).items()
            if key not in ("flags", "env", "request", "store")
        }
        out["engines"] = [_shallow(engine) | {"url": engine.url} for engine in self.engines]
        if self.router:
            out["router"] = _shallow(self.router) | {
                "url": self.router.url,
                "workers": [
                    {"role": role, "url": url, "engine": name}
                    for role, url, name in self.router.workers
                ],
            }
        if self.store:
            out["store"] = _shallow(self.store)
        for key in ("launches", "containers", "jobs", "clients"):
            out[key] = [_shallow(item) for item in out[key]]
        out["installs"] = {
            name: [_shallow(step) for step in steps] for name, steps in self.installs.items()
        }
        out["settings"] = [_shallow(row) for row in self.explain()]
        return out | {"files": dict(files) if isinstance(files, Mapping) else list(files)}

    def as_json(
        self,
        files: Mapping[str, str] | Sequence[str] = (),
        **more: Sequence[Mapping[str, Any]],
    ) -> str:
        """Return `as_dict` as a JSON document with a line for each key and each item of a list.

        ``more`` are lists that were asked for beside the plan: the account of each kind of
        engine's memory, and the known faults that it meets.

        The encoder's own indentation is about ten times slower, which matters with a thousand
        nodes.
        """
        lines = []
        known = self.as_dict(files) | {key: list(value) for key, value in more.items()}
        for key, value in known.items():
            if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
                rows = ",\n    ".join(map(_dumps, value))
                lines.append(f"  {_dumps(key)}: [\n    {rows}\n  ]")
            else:
                lines.append(f"  {_dumps(key)}: {_dumps(value)}")
        return "{\n" + ",\n".join(lines) + "\n}"


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _shallow(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without copying their values."""
    return {part.name: getattr(value, part.name) for part in fields(value)}
