"""Rules on a KV store that several engines share (Mooncake): master, settings, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import companions, fill_ins
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment, StoreFile
from kimi_nb.check.view.engine_view import LOOPBACK, EngineView
from kimi_nb.plan.memory import host
from kimi_nb.plan.store_settings import CONNECTOR, PATH_VARIABLE, SEED_VARIABLE

_PAGES = "vllm-project/recipes at 8959cf6, kv_store/*.yaml"
_READ = "vLLM 0.32.0, distributed/mooncake_store.py"
# From here on a hash that cannot collide has a fixed seed of its own; read in 0.32.0, perhaps earlier.
_SEEDED = ">=0.32.0"
_SHARED = ("master_server_address", "metadata_server", "protocol", "tenant_id")
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(kb|mb|gb|b)?\s*")
_UNITS = {"b": 2.0**-30, "kb": 2.0**-20, "mb": 2.0**-10, "gb": 1.0}


def _clients(d: Deployment) -> Iterator[EngineView]:
    """Yield the engines that use the store, one for each set of variables."""
    for server in d.environments():
        if any(one.get("kv_connector") == CONNECTOR for one in server.transfers):
            yield server


def _elsewhere(d: Deployment, name: str) -> bool:
    """Return whether a variable is set where no engine starts, or handed into a container."""
    return any(name in one.env for one in d.exports) or any(name in box.passes for box in d.boxes)


@rule(
    "store/version",
    ERROR,
    "The engine is new enough for the shared KV store.",
    "Take vLLM 0.21.0 or newer.",
    _PAGES,
    needs=("version",),
)
def new_enough(d: Deployment) -> Iterator[Problem]:
    """The engine ends at its start: the connector is unknown, or cannot read its file."""
    wanted = companions.mooncake_store()["vllm"]
    if d.ascend or catalog.satisfies(d.engine, wanted):
        return
    for server in _clients(d):
        yield Problem(
            server.of("kv-transfer-config"), f"{CONNECTOR} needs vLLM {wanted}, this is {d.engine}"
        )


@rule(
    "store/config-path",
    ERROR,
    "Every engine of a shared KV store is told where its settings are.",
    f"Set {PATH_VARIABLE} to the JSON file on each node.",
    _READ,
)
def has_path(d: Deployment) -> Iterator[Problem]:
    """The engine ends with "The environment variable 'MOONCAKE_CONFIG_PATH' is not set" after it has
    loaded the weights."""
    for server in _clients(d):
        if not server.env.get(PATH_VARIABLE) and not _elsewhere(d, PATH_VARIABLE):
            yield Problem(
                server.of("kv-transfer-config"),
                f"{CONNECTOR} without {PATH_VARIABLE}",
                "",
                "" if d.complete else WARNING,
            )


@rule(
    "store/hash-seed",
    WARNING,
    "The engines of a shared KV store hash alike.",
    f"Set {SEED_VARIABLE}=0 for every engine.",
    f"{_PAGES}; vLLM 0.32.0, v1/core/kv_cache_utils.py",
)
def one_seed(d: Deployment) -> Iterator[Problem]:
    """Each engine calls the same prompt by another name: what one has stored no other ever finds, and
    nobody says so."""
    seeds: dict[str, EngineView] = {}
    for server in _clients(d):
        seed = server.env.get(SEED_VARIABLE, "")
        if not seed and _elsewhere(d, SEED_VARIABLE):
            continue
        own = catalog.satisfies(d.engine, _SEEDED) and not str(
            server.flags.get("prefix-caching-hash-algo", "")
        ).startswith("xxhash")
        if not seed and not (own and d.engine_known):
            yield Problem(
                server.of("kv-transfer-config"),
                f"{CONNECTOR} without {SEED_VARIABLE}: each process chooses a seed of its own",
            )
        elif seed == "random":
            yield Problem(server.env_at(SEED_VARIABLE), f"{SEED_VARIABLE}=random differs each time")
        elif seed and not fill_ins.holds(seed):
            seeds.setdefault(seed, server)
    if len(seeds) > 1:
        said = " and ".join(f"{seed} ({server.spot.name})" for seed, server in seeds.items())
        yield Problem(next(reversed(seeds.values())).env_at(SEED_VARIABLE), f"the seeds are {said}")


@rule(
    "store/mode",
    ERROR,
    "A client of the store holds memory as its mode says.",
    "embedded: a global_segment_size above 0; standalone-store: 0, and services that hold the memory.",
    _READ,
)
def mode_fits(d: Deployment) -> Iterator[Problem]:
    """The engine refuses the file after it has loaded the weights."""
    for one in d.stores:
        mode, size = one.settings.get("mode", "embedded"), gib(one, "global_segment_size", 4.0)
        if one.of_service or not isinstance(mode, str) or fill_ins.holds(mode) or size is None:
            continue
        if mode not in ("embedded", "standalone-store"):
            yield Problem(one.spot, f"mode {mode} is neither embedded nor standalone-store")
        elif (mode == "embedded") == (size == 0):
            yield Problem(one.spot, f"mode {mode} with a global_segment_size of {size:g} GB")


@rule(
    "store/settings",
    ERROR,
    "All clients of a store name one master and speak one protocol.",
    "Give every node the same file; only a service's own host and sizes may differ.",
    _PAGES,
)
def one_store(d: Deployment) -> Iterator[Problem]:
    """The engines are clients of two stores, or cannot copy from each other: nothing is found in the
    cache of the others."""
    for key in _SHARED:
        seen: dict[str, StoreFile] = {}
        for one in d.stores:
            value = one.settings.get(key)
            if isinstance(value, str) and value and "$" not in value and not fill_ins.holds(value):
                seen.setdefault(value, one)
        if len(seen) > 1:
            first, other = list(seen.items())[:2]
            yield Problem(
                other[1].spot,
                f"{key} is {other[0]}, and {first[0]} in {first[1].spot.name}",
                "",
                "" if d.complete else WARNING,
            )


@rule(
    "store/master-address",
    ERROR,
    "The store's master is at an address that every node reaches.",
    "Name the address of the node on which mooncake_master runs.",
    "arithmetic: a loopback address is each node's own",
)
def reachable(d: Deployment) -> Iterator[Problem]:
    """The engines of the other nodes look for the master on their own node and end, after a minute and
    a half, with "Initialize MooncakeDistributedStore failed"."""
    nodes = {one.node for one in d.stores} | {server.node for server in d.servers}
    if len(nodes) < 2:
        return
    for one in d.stores:
        address = str(one.settings.get("master_server_address", ""))
        if address.rpartition(":")[0] in LOOPBACK:
            yield Problem(
                one.spot,
                f"the master is said to be at {address}, and there are {len(nodes)} nodes",
                "",
                "" if d.complete else WARNING,
            )


@rule(
    "store/alone",
    NOTE,
    "A store apart from the engines serves several of them.",
    "Plan several groups, or mode distributed.",
    _PAGES,
)
def several(d: Deployment) -> Iterator[Problem]:
    """One engine copies its cache to a service and back, where the memory of its own host would do:
    the store pays where several engines share it, or where it is to outlive a restart."""
    services = [one for one in d.stores if one.of_service]
    if services and not d.proxies and len(d.groups()) == 1:
        yield Problem(services[0].spot, "a service holds the store of one group of engines")


@rule(
    "store/memory",
    ERROR,
    "The host memory of a node holds what it gives to the store.",
    "Lower global_segment_size: it is that of each device where the engines hold the store.",
    "arithmetic: a segment and a buffer of each device or service, 8 GiB for each rank's process "
    "(estimated: 3 to 16)",
    needs=("hardware", "devices"),
)
def fits(d: Deployment) -> Iterator[Problem]:
    """The kernel ends an engine while it registers the memory, or the node begins to swap."""
    there = d.hardware.host_memory_gb if d.hardware else None
    if there is None:
        return
    have = there * 1e9 / 2**30
    for node in dict.fromkeys(one.node for one in d.stores):
        devices = sum(_devices(server, d) for server in d.servers if server.node == node)
        mine = [one for one in d.stores if one.node == node]
        store = sum(
            (1 if one.of_service else devices)
            * ((gib(one, "global_segment_size", 0) or 0) + (gib(one, "local_buffer_size", 0) or 0))
            for one in mine
        )
        need = host.need_gib(devices, store)
        if devices and store and need > have:
            yield Problem(
                mine[0].spot,
                f"{store:.0f} GiB for the store and {host.process().value:g} for each of {devices} "
                f"ranks are {need:.0f} GiB of host memory, the node has {have:.0f}",
                "",
                "" if host.least_gib(devices, store) > have else WARNING,
            )


def _devices(server: EngineView, d: Deployment) -> int:
    """Return how many devices an engine has on its node."""
    return min((server.tp or 1) * (server.ranks or 1), d.devices_per_node or 1)


def gib(one: StoreFile, key: str, missing: float) -> float | None:
    """Return a size of a store's file in GiB; None where it cannot be read."""
    return size_gib(one.settings, key, missing)


def size_gib(settings: Mapping[str, Any], key: str, missing: float) -> float | None:
    """Return a size as Mooncake and vLLM read it, in GiB; ``missing`` where the key is not there.

    >>> size_gib({"a": "100GB", "b": 1073741824}, "a", 0), size_gib({"b": 1073741824}, "b", 0)
    (100.0, 1.0)
    """
    value = settings.get(key, missing * 2**30)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return value / 2**30
    match = _SIZE.fullmatch(value.lower())
    return float(match[1]) * _UNITS[match[2] or "b"] if match and len(value) < 40 else None
