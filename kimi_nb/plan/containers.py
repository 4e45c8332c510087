"""Build the ``docker run`` command of a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from kimi_nb import catalog
from kimi_nb.catalog import companions
from kimi_nb.core.errors import PlanError
from kimi_nb.core.shell import LISTS
from kimi_nb.params import schema
from kimi_nb.params.fields import Layout
from kimi_nb.plan.roles import fill
from kimi_nb.plan.spec import Container, EngineSpec, authority


def image(hardware: schema.Hardware, engine: catalog.Engine, registry: str | None = None) -> str:
    """Return the image's name with its tag; "" for a hardware without one.

    ``registry`` is a mirror that stands for the image's own registry.
    """
    if hardware.container is None:
        return ""
    words = {
        "version": engine.version,
        "vllm": engine.vllm,
        "cuda": companions.cuda_tag(engine),
    }
    name = fill(hardware.container.image, words)
    if registry is None:
        return name
    # As docker reads names: a first part without a dot or a colon is a folder of Docker Hub.
    host, _, path = name.partition("/")
    return f"{registry}/{path if {*'.:'} & {*host} else name}"


def container(
    hardware: schema.Hardware,
    site: schema.Site,
    node: schema.Node,
    engine: catalog.Engine,
    serves: EngineSpec | None = None,
    layout: Layout = "single",
    reached: bool = False,
    models: str = "",
) -> Container:
    """Return the container of a node of a plan with this layout.

    It runs a shell for the scripts or, where the image's entry point is ``vllm serve``, the engine
    itself (``serves``). An engine that engines of other nodes have to reach (``reached``), at ports
    that vLLM chooses, uses the network of the host instead of publishing a port. ``models`` is the
    folder from which the engine reads its weights, if any. Raises PlanError for a hardware without
    a container.
    """
    spec = hardware.container
    if spec is None:
        raise PlanError(
            f"{hardware.name} has no container: choose a recipe that is installed in "
            f"another way ({', '.join(hardware.installs)})."
        )
    port = serves.http_port if serves and serves.http_port else 8000
    words = {
        "container_name": site.container_name,
        "cache": site.paths.cache,
        "work": site.paths.work,
        "publish": authority(node.address, port),
        "shm_size": spec.shm_size.get(layout, "1g"),
    }
    argv = ["docker", "run"]
    options = list(spec.options)
    if reached:
        options = [one for one in options if not any("{publish}" in word for word in one)]
        if len(options) < len(spec.options):
            options += spec.several_nodes or (("--net=host",),)
    for option in options:
        if any("{device}" in word for word in option):
            for device in range(hardware.devices.count):
                argv += [fill(word, {"device": str(device)}) for word in option]
        else:
            argv += [fill(word, words) for word in option]
    name = image(hardware, engine, site.network.registry)
    runs_engine = spec.entrypoint == "vllm serve"
    if runs_engine and serves:
        argv += _variables(serves)
    mounts = [fill(mount, words) for mount in spec.mounts]
    if models and not any(_shows(mount, models) for mount in mounts):
        mounts.append(f"{models}:{models}")
    for mount in mounts:
        argv += ["-v", mount]
    if not runs_engine:
        argv += ["-it", name, "bash"]
        return Container(node.name, name, {"IMAGE": name}, tuple(argv), False)
    inside: Sequence[str] = serves.argv[2:] if serves else ()
    argv += [name, *(inside if reached else _inside(inside))]
    return Container(node.name, name, {}, tuple(argv), True)


def sides(mount: str) -> tuple[str, str]:
    """Return the folder of the host and that of the container of a mount, without its options.

    >>> sides("/data:/models:ro")
    ('/data', '/models')
    """
    source, _, rest = mount.partition(":")
    return source, rest.partition(":")[0]


def _shows(mount: str, folder: str) -> bool:
    """Return whether a mount shows a folder of the host inside the container under its own name."""
    source, target = sides(mount)
    return source == target and PurePosixPath(folder).is_relative_to(source)


def _variables(serves: EngineSpec) -> list[str]:
    return [
        word
        for name, value in serves.env.items()
        if name not in LISTS
        for word in ("-e", f"{name}={value}")
    ]


def _inside(words: Sequence[str]) -> list[str]:
    """Return an engine's arguments for a container with ports of its own.

    ``--port`` is left out: the port is published on the host, and does not apply inside.
    """
    out = list(words)
    if "--port" in out:
        at = out.index("--port")
        del out[at : at + 2]
    return out
