"""The plan: a recipe bound to a site, every placeholder filled. Values only; `build` makes it.

plan = build.plan("k2.5", "a3", "pd")
plan.engines[0].argv          # what is executed, as a list
plan.explain()                # every flag and variable: value, layer, reason, source
plan.check()                  # what the rules say of it
plan.as_json()                # the same bytes for the same inputs
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from kimi_nb.params import load as params
from kimi_nb.params.settings import Value

if TYPE_CHECKING:  # what checks a plan is loaded when one is checked
    from kimi_nb.check.findings import Findings
    from kimi_nb.show.picture import Picture


def authority(address: str, port: int) -> str:
    """host:port as it stands in a URL: an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def url_of(address: str, port: int) -> str:
    """The URL of a server, without a path."""
    return f"http://{authority(address, port)}"


@dataclass(frozen=True, slots=True)
class Engine:
    """One ``vllm serve`` process.

    ``rank`` is its first data parallel rank and ``ranks`` how many it runs; ``devices`` are the
    node's own numbers; a headless engine has no ``http_port``; ``kv_port`` is the first port at
    which its KV cache connector listens. ``env`` holds what is exported, ``argv`` what runs.
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

    @property
    def url(self) -> str | None:
        """Where its API answers, without a path; None for a headless engine."""
        return None if self.http_port is None else url_of(self.address, self.http_port)


@dataclass(frozen=True)
class Router:
    """The front door of a prefill-decode plan. ``workers`` are (role, url, engine name)."""

    kind: str
    node: str
    host: str
    port: int
    workers: tuple[tuple[str, str, str], ...]
    argv: tuple[str, ...]

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)


@dataclass(frozen=True)
class Container:
    """The ``docker run`` of one node: ``env`` is what its script exports first."""

    node: str
    image: str
    env: Mapping[str, str]
    argv: tuple[str, ...]
    runs_engine: bool


@dataclass(frozen=True)
class Launch:
    """How the ranks of one node are started: a call of launch_online_dp.py."""

    node: str
    argv: tuple[str, ...]


@dataclass(frozen=True)
class InstallStep:
    """One command of an installation: what it does, where it runs, what it exports."""

    says: str
    argv: tuple[str, ...]
    directory: str
    env: Mapping[str, str]


@dataclass(frozen=True)
class Job:
    """One sbatch job. ``argv`` is its main command; ``body`` the lines of its script."""

    name: str
    file: str
    after: str
    options: tuple[str, ...]
    env: Mapping[str, str]
    argv: tuple[str, ...]
    body: tuple[str, ...]


@dataclass(frozen=True)
class ClientCommand:
    """A command that talks to the service; with a ``sweep`` one run for each concurrency."""

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


@dataclass(frozen=True)
class Plan:
    """See the module. ``flags`` and ``env`` are by role, with their layers; ``request`` is the
    `roles.Request` that it was made from."""

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
    engines: tuple[Engine, ...]
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
    modules: tuple[str, ...]
    errata: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    edits: tuple[str, ...]
    flags: Mapping[str, Mapping[str, Value]] = field(default_factory=dict, repr=False)
    env: Mapping[str, Mapping[str, Value]] = field(default_factory=dict, repr=False)
    request: Any = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """A word for folders: model, hardware, layout, and what is not the default."""
        extra = [
            part
            for part in (
                self.variant if self.variant != "docker" else "",
                self.scenario if self.scenario != "default" else "",
            )
            if part
        ]
        return "-".join([self.model, self.hardware, self.layout, *extra])

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in use, in the site's order."""
        return tuple(dict.fromkeys(engine.node for engine in self.engines))

    def first(self, role: str) -> Engine:
        """The first engine of a role; KeyError where the plan has no such role."""
        for engine in self.engines:
            if engine.role == role:
                return engine
        raise KeyError(role)

    def check(self) -> Findings:
        """Every rule asked of this plan. Raises CheckError with the errors; returns the findings
        where there is none."""
        from kimi_nb.check import judge as check

        return check.passed(self.findings)

    @functools.cached_property
    def findings(self) -> Findings:
        """Every rule asked of this plan."""
        from kimi_nb.check import judge as check

        return check.plan(self)

    def picture(self) -> Picture:
        """Where every engine stands, as a picture."""
        from kimi_nb.notebook.pictures import topology_picture as topology

        return topology.picture(self)

    def of(self, node: str) -> tuple[Engine, ...]:
        """The engines of one node."""
        return tuple(engine for engine in self.engines if engine.node == node)

    def explain(self) -> list[Setting]:
        """Every flag and variable of every role with value, layer, reason and source."""
        words = params.data("glossary")
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
        """The plan as plain values; ``files`` are those of its bundle: their relative paths, or
        path and text of each."""
        out = {"name": self.name} | {
            key: value
            for key, value in _shallow(self).items()
            if key not in ("flags", "env", "request")
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
        for key in ("launches", "containers", "jobs", "clients"):
            out[key] = [_shallow(item) for item in out[key]]
        out["installs"] = {
            name: [_shallow(step) for step in steps] for name, steps in self.installs.items()
        }
        out["settings"] = [_shallow(row) for row in self.explain()]
        return out | {"files": dict(files) if isinstance(files, Mapping) else list(files)}

    def as_json(self, files: Mapping[str, str] | Sequence[str] = ()) -> str:
        """`as_dict` as one JSON document, a line for each key and each item of a list. (The
        encoder's own indentation is some ten times slower, which a thousand nodes feel.)"""
        lines = []
        for key, value in self.as_dict(files).items():
            if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
                rows = ",\n    ".join(map(_dumps, value))
                lines.append(f"  {_dumps(key)}: [\n    {rows}\n  ]")
            else:
                lines.append(f"  {_dumps(key)}: {_dumps(value)}")
        return "{\n" + ",\n".join(lines) + "\n}"


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _shallow(value: Any) -> dict[str, Any]:
    """The fields of one of these classes, without copying what they hold."""
    return {part.name: getattr(value, part.name) for part in fields(value)}
