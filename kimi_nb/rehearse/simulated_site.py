"""What a rehearsal pretends there is: nodes, accelerators, images, weights, and what is wrong.

    world = World.of(plan, folder)          # pure
    world.write(folder / "world.json")      # every stand-in reads it there

A rehearsal's nodes are addresses of this machine's loopback, one for each node of the plan, so
that every port stays the planned one. `rebound` gives the same plan on those addresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse.loopback import Block

NODE = "KIMI_NB_REHEARSAL_NODE"  # names the node to the stand-ins that run on it
FOLDER = "KIMI_NB_REHEARSAL"  # names the rehearsal's folder to them
MARK = "REHEARSAL"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: which, on which node, and at which rank (None: not a rank's)."""

    name: str
    node: str
    rank: int | None = None


@dataclass(frozen=True)
class World:
    """See the module. ``nodes`` are addresses by name; ``devices`` is how many accelerators each
    has, ``memory_gb`` GB of one; ``weights`` are the checkpoints and drafts that are there, named
    as the command lines name them; ``seconds_*`` how long a stand-in takes for loading and for
    one token."""

    plan: str
    engine: str
    engine_version: str
    vendor: str
    accelerator: str
    devices: int
    memory_gb: int
    visible: str
    context_length: int
    heads: int
    nodes: Mapping[str, str]
    images: tuple[str, ...]
    weights: tuple[str, ...]
    layers: int
    seconds_to_load: float = 0.0
    seconds_per_token: float = 0.0
    faults: tuple[Fault, ...] = field(default=())

    @classmethod
    def of(cls, plan: Plan) -> World:
        """The world in which everything that the plan needs is there."""
        request, hardware = plan.request, plan.request.hardware
        there = [
            request.located(item)
            for item in (*request.model.weights.values(), *request.model.drafts.values())
        ]
        there += [engine.argv[2] for engine in plan.engines]  # a document's own path
        return cls(
            plan=plan.name,
            engine=plan.engine,
            engine_version=plan.engine_version,
            vendor=hardware.vendor,
            accelerator=hardware.title,
            devices=hardware.devices.count,
            memory_gb=int(hardware.devices.memory_gb),
            visible=hardware.devices.visible,
            context_length=request.model.context_length,
            heads=int(request.model.architecture["heads"]),
            layers=int(request.model.architecture["layers"]),
            nodes={engine.node: engine.address for engine in plan.engines},
            images=tuple(
                dict.fromkeys(filter(None, [plan.image, *(box.image for box in plan.containers)]))
            ),
            weights=tuple(dict.fromkeys(there)),
        )

    @classmethod
    def read(cls, path: Path) -> World:
        """The world that `write` wrote."""
        table = json.loads(path.read_text(encoding="utf-8"))
        table["faults"] = tuple(Fault(**item) for item in table["faults"])
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        return cls(**facts)

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all: the stand-ins wait for it."""
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        new.replace(path)

    def fault(self, name: str, node: str, rank: int | None = None) -> bool:
        """Whether a fault is there: at a node, and where it is a rank's, at that rank."""
        return any(
            one.name == name and one.node == node and one.rank in (None, rank)
            for one in self.faults
        )

    def has(self, checkpoint: str, node: str) -> bool:
        """Whether a checkpoint is on a node."""
        return checkpoint in self.weights and not self.missing(checkpoint, node)

    def missing(self, checkpoint: str, node: str) -> bool:
        """Whether a fault took it from the node."""
        return any(one.node == node and one.name == f"missing:{checkpoint}" for one in self.faults)


def rebound(plan: Plan, work: Path, block: Block) -> Plan:
    """The same plan on loopback addresses, with ``work`` as the folder in which its scripts and
    projects are. Ports, ranks, devices, flags and images are those of the plan."""
    site = plan.request.site
    nodes = tuple(
        node.model_copy(update={"address": block.address(index), "nic": "lo"})
        for index, node in enumerate(site.nodes)
    )
    # Of an engine of one's own nothing is used: a script must find the stand-ins.
    paths: dict[str, Any] = {"work": str(work), "engine": None}
    if site.paths.project is not None:
        paths["project"] = str(work / "project")
    if plan.jobs:  # which write into their folders
        paths["cache"] = str(work / "project" / "cache")
        if site.paths.models is not None:
            paths["models"] = str(work / "project" / "models")
    local = site.model_copy(
        update={"nodes": nodes, "nic": "lo", "paths": site.paths.model_copy(update=paths)}
    )
    return build.from_request(replace(plan.request, site=local))
