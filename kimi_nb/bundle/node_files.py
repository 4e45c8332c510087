"""Write node.env, which tells the script node.sh everything that is specific to a node.

node.env holds values only, quoted; the verbs are the same on every node (data/bundle/node.sh).
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from kimi_nb.core import paths
from kimi_nb.plan import checkpoints
from kimi_nb.plan.router import UPSTREAM, VLLM_ROUTER
from kimi_nb.plan.spec import Container, EngineSpec, Plan

# The scripts that edit weights, by the name used in model files.
EDITS = {"quantization-target": "edit_quantization_target.py"}
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
def static() -> dict[str, str]:
    """Return the files that are the same on every node, by name."""
    return {
        "node.sh": (paths.DATA / "bundle" / "node.sh").read_text("utf-8"),
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
            + (f"\n{router.port} the front door" if door and router else ""),
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
    return (
        "\n".join(
            [
                "# What node.sh has to know of this node.",
                *(f"{name}={_text(value)}" for name, value in values),
            ]
        )
        + "\n"
    )


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
