"""Plan the KV store that the engines of a plan share: its master, its services, what each reads.

Every engine is a client of one master, on the first node. In mode distributed each device gives a
part of its host's memory to the store; in mode centralised a service on each node holds all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb import catalog
from kimi_nb.catalog import companions
from kimi_nb.core.errors import PlanError
from kimi_nb.params import schema
from kimi_nb.plan import ports
from kimi_nb.plan.roles import Request
from kimi_nb.plan.spec import EngineSpec, Store, authority
from kimi_nb.plan.store_settings import CONNECTOR

MASTER = "mooncake_master"
SERVICE = "mooncake.mooncake_store_service"  # a module, run by python -m
SERVICE_CONFIG = "mooncake_store.json"  # in each node's folder
MODES = {"distributed": "embedded", "centralised": "standalone-store"}  # Mooncake's own words

_OPEN = (
    "the engines share a KV store ({kind}, {mode}) with its master at {master}. It takes commands from "
    "anybody who reaches its ports, without a key: keep them inside the cluster's network."
)
_SEVERAL = (
    "vllm-router hands requests out in turn (round_robin): what one engine has computed another one "
    "loads from the store. Upstream's pages name cache_aware, which asks every engine to render each "
    "chat first."
)


def check(asked: Request) -> None:
    """Refuse a store where it cannot be installed or does not work. Raises PlanError."""
    store, recipe, hardware = asked.store, asked.recipe, asked.hardware
    if store is None:
        return
    steps = hardware.installs.get(recipe.install, ())
    if recipe.jobs or not any(step.store for step in steps):
        how = "SLURM jobs install it" if recipe.jobs else f"it is installed by {recipe.install}"
        able = [name for name, way in hardware.installs.items() if any(one.store for one in way)]
        raise PlanError(
            f"{recipe.variant}: a KV store needs {MASTER} and Mooncake's wheel beside the engine, and "
            f"here {how}, which brings neither. On {hardware.name} a store is planned where the engine "
            f"is installed by {' or '.join(able) or 'no way that is known'} (--variant)."
        )
    if recipe.layout == "pd":
        raise PlanError(
            "layout pd moves its cache by a connector of its own, and a store beside it is not planned "
            "here: choose layout single or dp with several groups."
        )
    wanted = companions.mooncake_store()["vllm"]
    if not catalog.satisfies(asked.engine, wanted):
        raise PlanError(
            f"{CONNECTOR} needs vLLM {wanted}; {asked.engine} is vLLM {asked.engine.vllm}. Choose "
            "another --engine-version."
        )


def store(asked: Request, engines: Sequence[EngineSpec]) -> Store | None:
    """Return the store of these engines, None without one; its master is on the first node."""
    found = asked.store
    if found is None:
        return None
    nodes = {engine.node: engine.address for engine in engines}
    first, address = next(iter(nodes.items()))
    at = listens(found)
    shared = {
        "mode": MODES[found.mode],
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": authority(address, at["rpc"]),
        "local_buffer_size": f"{found.buffer_gb}GB",
        "protocol": found.protocol,
        "device_name": "",  # Mooncake chooses the RDMA devices by their place beside the GPU
        "enable_offload": False,
    }
    part, central = f"{found.segment_gb}GB", found.mode == "centralised"
    return Store(
        kind=found.kind,
        mode=found.mode,
        node=first,
        address=address,
        port=at["rpc"],
        metrics_port=at["metrics"],
        service_port=at.get("service"),
        segment_gb=found.segment_gb,
        buffer_gb=found.buffer_gb,
        protocol=found.protocol,
        master=(
            MASTER,
            f"-rpc_port={at['rpc']}",
            f"-metrics_port={at['metrics']}",
            *companions.mooncake_store()["master"],
        ),
        service=(
            ("python", "-m", SERVICE, "--config", SERVICE_CONFIG, "--port", str(at["service"]))
            if central
            else ()
        ),
        config=shared | {"global_segment_size": 0 if central else part},
        # Without local_hostname the service of 0.3.13.post1 ends: "Missing required config field".
        services={
            node: shared | {"global_segment_size": part, "local_hostname": its}
            for node, its in nodes.items()
            if central
        },
    )


def listens(found: schema.Store) -> dict[str, int]:
    """Return the ports of a store by what listens there: rpc, metrics and, centralised, service."""
    own = found.ports
    central = {"service": own.service or ports.STORE_SERVICE}
    return {
        "rpc": own.rpc or ports.STORE_MASTER,
        "metrics": own.metrics or ports.STORE_METRICS,
        **(central if found.mode == "centralised" else {}),
    }


def claims(found: schema.Store | None, nodes: Sequence[str]) -> list[tuple[str, int, str]]:
    """Return (node, port, description) of every listener of a store on these nodes."""
    if found is None:
        return []
    at = listens(found)
    out = [
        (nodes[0], at["rpc"], "the store's master"),
        (nodes[0], at["metrics"], "the metrics of the store's master"),
    ]
    if "service" in at:
        out += [(node, at["service"], "the store's service") for node in nodes]
    return out


def notes(made: Store | None, routed: bool) -> tuple[str, ...]:
    """Return what a store does to its users, where they would not expect it."""
    if made is None:
        return ()
    master = authority(made.address, made.port)
    told = _OPEN.format(kind=made.kind, mode=made.mode, master=master)
    return (told, _SEVERAL) if routed else (told,)


def host_gib(made: Store, devices: int) -> float:
    """Return the GiB of host memory that a node with this many devices gives to the store."""
    segments = 1 if made.service else devices
    clients = devices + bool(made.service)
    return float(made.segment_gb * segments + made.buffer_gb * clients)
