"""Describe what a rehearsal simulates: nodes, accelerators, images, weights, and faults.

    site = SimulatedSite.of(plan)          # pure
    site.write(folder / "world.json")      # where every stand-in reads it

The nodes of a rehearsal are loopback addresses of this machine, one for each node of the plan, so
that every port can stay the planned one. `rebound` moves a plan to these addresses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from kimi_nb.params import schema
from kimi_nb.params.vendor import Vendor
from kimi_nb.plan import build
from kimi_nb.plan.memory import device
from kimi_nb.plan.memory.terms import GIB
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import fault_names
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.loopback import Addresses

NODE = "KIMI_NB_REHEARSAL_NODE"  # tells a stand-in on which node it runs
FOLDER = "KIMI_NB_REHEARSAL"  # tells a stand-in the folder of its rehearsal


@dataclass(frozen=True)
class Fault:
    """One fault: its name, its node, and its rank (None if it concerns the node as a whole)."""

    name: str
    node: str
    rank: int | None = None


@dataclass(frozen=True)
class SimulatedSite:
    """The simulated nodes and what is on them.

    Attributes:
        nodes: The address of each node, by name.
        devices: Accelerators of each node.
        device: The name that the vendor's tool prints of an accelerator; `target` is what the
            compiler calls it, and `per_card` how many are on one card.
        memory_mib: Memory of one accelerator as the vendor's tool prints it, in MiB.
        memory_gib: The same as torch sees it, in GiB.
        dispatch: The form of the operators that dispatch tokens to experts; "" if not known.
        visible: The variable that selects the visible devices.
        weights: The checkpoints and draft models that exist, as the command lines name them.
        seconds_to_load: How long a stand-in engine takes to load.
        seconds_per_token: How long a stand-in engine takes for one token.
    """

    plan: str
    engine: str
    engine_version: str
    vendor: Vendor
    accelerator: str
    device: str
    devices: int
    memory_mib: int
    memory_gib: float
    visible: str
    context_length: int
    heads: int
    nodes: Mapping[str, str]
    images: tuple[str, ...]
    weights: tuple[str, ...]
    layers: int
    target: str = ""
    per_card: int = 1
    dispatch: str = ""
    seconds_to_load: float = 0.0
    seconds_per_token: float = 0.0
    faults: tuple[Fault, ...] = field(default=())

    @classmethod
    def of(cls, plan: Plan) -> SimulatedSite:
        """Return the site on which everything that the plan needs exists."""
        request, hardware = plan.request, plan.request.hardware
        there = [
            request.located(item)
            for item in (*request.model.weights.values(), *request.model.drafts.values())
        ]
        # What a document publishes: a path, and a draft model by its id.
        there += [engine.argv[2] for engine in plan.engines]
        there += [draft.id for draft in request.model.drafts.values()]
        return cls(
            plan=plan.name,
            engine=plan.engine,
            engine_version=plan.engine_version,
            vendor=hardware.vendor,
            accelerator=hardware.title,
            device=hardware.devices.model or hardware.title.partition(" (")[0],
            devices=hardware.devices.count,
            memory_mib=_tool_mib(hardware.devices),
            memory_gib=round(device.usable(hardware).bytes / GIB, 2),
            visible=hardware.devices.visible,
            target=hardware.devices.target or "",
            per_card=hardware.devices.per_card,
            dispatch=hardware.dispatch or "",
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
    def read(cls, path: Path) -> SimulatedSite:
        """Read a site that `write` wrote."""
        table = json.loads(path.read_text(encoding="utf-8"))
        table["faults"] = tuple(Fault(**item) for item in table["faults"])
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        return cls(**facts)

    def write(self, path: Path) -> None:
        """Write the site as JSON, atomically: the stand-ins wait for the file to appear."""
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        new.replace(path)

    def fault(self, name: FaultName, node: str, rank: int | None = None) -> bool:
        """Return whether a node has a fault; a fault of one rank counts for that rank only."""
        return any(
            one.name == name and one.node == node and one.rank in (None, rank)
            for one in self.faults
        )

    def has(self, checkpoint: str, node: str) -> bool:
        """Return whether a checkpoint is on a node."""
        return checkpoint in self.weights and not self.missing(checkpoint, node)

    def missing(self, checkpoint: str, node: str) -> bool:
        """Return whether a fault removed the checkpoint from the node."""
        return any(
            one.node == node and one.name == fault_names.missing(checkpoint) for one in self.faults
        )


def _tool_mib(devices: schema.Devices) -> int:
    """Return what the vendor's tool prints of a device's memory; where unknown, the nominal GiB."""
    seen = devices.usable
    if seen and seen.tool_mib and seen.nominal_gb == devices.memory_gb:
        return seen.tool_mib
    return devices.memory_gb * 1024


def rebound(plan: Plan, work: Path, block: Addresses) -> Plan:
    """Return the same plan on loopback addresses, with its scripts and projects below ``work``.

    Ports, ranks, devices, flags and images stay those of the plan.
    """
    site = plan.request.site
    nodes = tuple(
        node.model_copy(update={"address": block.address(index), "nic": "lo"})
        for index, node in enumerate(site.nodes)
    )
    # The user's own engine is left out: a script must find the stand-ins.
    paths: dict[str, Any] = {"work": str(work), "engine": None}
    if site.paths.project is not None:
        paths["project"] = str(work / "project")
    if plan.jobs:  # jobs write into these folders
        paths["cache"] = str(work / "project" / "cache")
        if site.paths.models is not None:
            paths["models"] = str(work / "project" / "models")
    slurm = site.slurm
    if slurm and slurm.container and (slurm.container.image or "").startswith("/"):
        file = str(work / "project" / PurePosixPath(slurm.container.image or "").name)
        container = slurm.container.model_copy(update={"image": file})
        slurm = slurm.model_copy(update={"container": container})
    local = site.model_copy(
        update={
            "nodes": nodes,
            "nic": "lo",
            "slurm": slurm,
            # Pods run as containers on nodes of their names.
            **({"transport": "ssh", "kubernetes": None} if site.kubernetes else {}),
            "paths": site.paths.model_copy(update=paths),
        }
    )
    return build.from_request(replace(plan.request, site=local))
