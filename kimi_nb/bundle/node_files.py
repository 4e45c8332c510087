"""Write node.env, which tells the script node.sh everything that is specific to a node.

node.env holds values only, quoted; the verbs are the same on every node (data/bundle/node.sh).
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from kimi_nb.core import paths
from kimi_nb.plan import checkpoints
from kimi_nb.plan.router import UPSTREAM, VLLM_ROUTER
from kimi_nb.plan.spec import Container, EngineSpec, Plan, Store
from kimi_nb.plan.store import SERVICE_CONFIG
from kimi_nb.plan.store_settings import CONFIG

# The scripts that edit weights, by the name used in model files.
EDITS = {"quantization-target": "edit_quantization_target.py"}
# What node.sh does for a KV store stands between these marks.
_STORE = r"^ *#store\{\n.*?^ *#\}store\n(?:(?<=^#\}store\n)\n)?"
_MARKS = r"^ *#(?:store\{|\}store)\n"
MASTER, SERVICE = "store-master", "store-service"  # the names of its programs, scripts and logs
_NEEDED_BYTES = 64 << 20  # bytes of free space for scripts and the first logs


def folder(plan: Plan, node: str) -> str:
    """Return the folder of a node's scripts, on the node; its container mounts it as well."""
    return f"{plan.request.site.paths.work}/{plan.name}/{node}"


def start(plan: Plan, node: str, container: Container | None) -> list[str]:
    """Return the command, run in a node's folder, that starts its engines."""
    inner = "launch.sh" if plan.launches else "serve.sh"
    if container is None:
        return ["bash", inner]
    if container.runs_engine:
        return ["bash", "docker_run.sh"]
    return ["bash", "docker_run.sh", "bash", f"{folder(plan, node)}/{inner}"]


@functools.cache
def static(stored: bool = False) -> dict[str, str]:
    """Return the files that are the same on every node, by name.

    ``stored`` is whether the plan has a KV store, of which the others know nothing.
    """
    text = (paths.DATA / "bundle" / "node.sh").read_text("utf-8")
    return {
        "node.sh": re.sub(_MARKS if stored else _STORE, "", text, flags=re.DOTALL | re.MULTILINE),
        "check_weights.py": (paths.PACKAGE / "service" / "weights.py").read_text("utf-8"),
    }


def environment(
    plan: Plan,
    engines: Sequence[EngineSpec],
    container: Container | None,
    weights: Sequence[str],
) -> str:
    """Return the text of node.env for the node that runs these engines; ``weights`` as below."""
    node, site, router = engines[0].node, plan.request.site, plan.router
    door = router is not None and router.node == node
    in_place = folder(plan, node)
    tuning = dict(plan.host_tuning)
    values: list[tuple[str, object]] = [
        ("NODE", node),
        ("ADDRESS", engines[0].address),
        ("WORK", site.paths.work),
        ("FOLDER", in_place),
        ("NEEDED_BYTES", _NEEDED_BYTES),
        ("IMAGE", container.image if container else ""),
        ("CONTAINER", _name_of(container)),
        ("VLLM", plan.vllm_version),
        ("ENGINE", plan.engine_folder),
        ("GOVERNOR", tuning.pop("governor", "")),
        ("JEMALLOC", _jemalloc(engines, container)),
        ("UPSTREAM", UPSTREAM if door and router and router.kind == "upstream" else ""),
        ("ROUTER", VLLM_ROUTER if door and router and router.kind == VLLM_ROUTER else ""),
        ("ROUTER_PATH", _bin(router.folder or plan.engine_folder) if door and router else ""),
        (
            "PORTS",
            "\n".join(f"{port} {what}" for port, what in _ports(engines))
            + (f"\n{router.port} the front door" if door and router else "")
            + "".join(f"\n{port} {what}" for port, what in _store_ports(plan.store, node)),
        ),
        ("SYSCTL", [f"{name}={value}" for name, value in tuning.items()]),
        ("HOST_FILES", _host_files(plan, container)),
        ("WEIGHTS", list(weights)),
        ("HUB_VARIABLES", _hub_variables(plan)),
        ("START", start(plan, node, container)),
        ("DOOR", ["bash", f"{in_place}/proxy.sh"] if door else []),
        (
            "SECRET_OPTIONS",
            [
                word
                for name in sorted({*plan.secrets, *plan.secrets.values()})
                for word in ("-e", name)
            ],
        ),
    ]
    if plan.store:
        values.append(("SHARED", _shared(plan.store, engines[0])))
    return (
        "\n".join(
            [
                "# What node.sh has to know of this node.",
                *(f"{name}={_text(value)}" for name, value in values),
            ]
        )
        + "\n"
    )


def store_files(plan: Plan, node: str) -> dict[str, str]:
    """Return what the clients of a KV store read on a node, by name: plain settings, no secret."""
    store = plan.store
    if store is None:
        return {}
    read = {CONFIG: store.config}
    if node in store.services:
        read[SERVICE_CONFIG] = store.services[node]
    return {name: json.dumps(dict(given), indent=1) + "\n" for name, given in read.items()}


def _store_ports(store: Store | None, node: str) -> list[tuple[int, str]]:
    """Return the ports of a KV store on a node, each with the program that listens there."""
    if store is None:
        return []
    out = []
    if store.node == node:
        out = [(store.port, MASTER), (store.metrics_port, f"{MASTER}, its metrics")]
    return out + ([(store.service_port, SERVICE)] if store.service_port else [])


def _shared(store: Store, first: EngineSpec) -> list[str]:
    """Return the parts of a KV store that come before a node's engines: name, address, port."""
    parts = [f"{MASTER} {store.address} {store.port}"]
    return parts + [f"{SERVICE} {first.address} {port}" for port in [store.service_port] if port]


def _bin(folder: str) -> str:
    """Return where a virtual environment has its programs, "" where there is none."""
    return f"{folder}/bin" if folder else ""


def _text(value: object) -> str:
    if isinstance(value, list):
        return f"({' '.join(map(shlex.quote, value))})"
    return shlex.quote(str(value))


def _name_of(container: Container | None) -> str:
    """Return the container's name, as its command line gives it."""
    words: Sequence[str] = container.argv if container else ()
    return words[words.index("--name") + 1] if "--name" in words else ""


def _jemalloc(engines: Sequence[EngineSpec], container: Container | None) -> str:
    """Return the library to preload, if it is the host's and not the image's."""
    return "" if container else next(iter(engines[0].env.get("LD_PRELOAD", "").split(":")), "")


def _ports(engines: Iterable[EngineSpec]) -> list[tuple[int, str]]:
    """Return the ports on which a node's engines will listen, each with its purpose."""
    out = []
    for engine in engines:
        if engine.http_port is not None:
            out.append((engine.http_port, f"HTTP of {engine.name}"))
        if engine.rpc_port is not None and engine.rank == 0:
            out.append((engine.rpc_port, f"the rpc port of {engine.name}"))
        out += [(port, f"the KV cache of {engine.name}") for port in engine.kv_ports]
        out += [
            (port, f"the NIXL side channel of {engine.name}") for port in engine.side_channel_ports
        ]
        if engine.master_port is not None:
            out.append((engine.master_port, f"the master port of {engine.name}"))
    return out


def _host_files(plan: Plan, container: Container | None) -> list[str]:
    """Return the paths of the host that the container mounts, except for the site's own folders."""
    if container is None:
        return []
    paths = plan.request.site.paths
    own = (paths.cache, paths.work, plan.request.models)
    mounts = [
        word.partition(":")[0]
        for at, word in enumerate(container.argv)
        if container.argv[at - 1] == "-v"
    ]
    return [str(PurePosixPath(path)) for path in mounts if path not in own]


def weights(plan: Plan) -> list[str]:
    """Return what `weights` in node.sh has to know of each checkpoint, as one text each.

    It is the id; the folders where the engine finds it, and those where a hub's program may have
    left it; the options of check_weights.py; the folder that a download fills, its size in GB and
    its command; and the script that edits its config.json. The parts are separated by | and their
    items by tabs, neither of which a path contains.
    """
    out = []
    for one in checkpoints.of(plan):
        options = [word for name in one.files for word in ("--file", name)]
        options += ["--config-only"] * one.config_only
        parts = [
            one.id,
            "\t".join(one.places),
            "\t".join(one.elsewhere),
            "\t".join(options),
            one.into,
            str(one.size_gb or ""),
            shlex.join(one.command),
            EDITS.get(one.edit, ""),
        ]
        out.append("|".join(parts))
    return out


def _hub_variables(plan: Plan) -> list[str]:
    """Return the variables of a download as NAME=VALUE."""
    request, env = plan.request, plan.engines[0].env
    home = checkpoints.hub_home(request.hardware, request.site, plan.install, env)
    return [
        f"{name}={value}"
        for name, value in checkpoints.hub_variables(env, home, request.site.network).items()
    ]
