"""Tell where the checkpoints of a plan lie on its nodes, and which command fetches each.

Example::

    for one in checkpoints.of(plan):
        one.places  # patterns of folders: where the engine finds it
        one.command  # ("hf", "download", "moonshotai/Kimi-K2.5", "--max-workers", "8")

A checkpoint is read from a folder of its own (`Request.models`), or by its hub id from the cache of
huggingface_hub.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kimi_nb.params.schema import Draft, Hardware, Network, Site, Weights
from kimi_nb.plan.containers import sides
from kimi_nb.plan.network import variables
from kimi_nb.plan.roles import fill
from kimi_nb.plan.spec import Plan

_DRAFT = "speculative-config.model"
WORKERS = 8  # files at the same time: the default of hf
_HOME = "~/.cache/huggingface"  # of huggingface_hub, where HF_HOME is not set
_HOME_INSIDE = "/root/.cache/huggingface"
_LINKS = {"huggingface": "https://huggingface.co", "modelscope": "https://modelscope.cn/models"}
# Variables of the hubs' programs that a site may set for its engines, and a download heeds too.
_HUB_PREFIXES = ("HF_", "MODELSCOPE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on the nodes of a plan.

    Attributes:
        into: The folder that its download fills: its own, or the home of the hub's cache.
        places: Where the engine finds it, as patterns of folders; the first that is there counts.
        elsewhere: Where the hubs' programs may have left it, and the engine does not look.
        files: Files that it must have besides its shards and its config.json.
        size_gb: Its size on disk, or None if nobody states it and it cannot be estimated.
        edit: The edit that its config.json needs, or "".
        command: The command that downloads it; empty where it comes with the project.
    """

    id: str
    hub: str
    into: str
    places: tuple[str, ...]
    elsewhere: tuple[str, ...]
    files: tuple[str, ...]
    config_only: bool
    size_gb: int | None
    edit: str
    command: tuple[str, ...]


def of(plan: Plan) -> tuple[Checkpoint, ...]:
    """Return the weights that a plan serves, and the draft models that its engines name."""
    request = plan.request
    named = {flags[_DRAFT].value for flags in plan.flags.values() if _DRAFT in flags}
    drafts = (draft for draft in request.model.drafts.values() if request.located(draft) in named)
    home = hub_home(request.hardware, request.site, plan.install, plan.engines[0].env)
    return tuple(
        checkpoint(request.site, item, request.models, home, plan.random_weights)
        for item in (request.weights, *drafts)
    )


def checkpoint(
    site: Site, item: Weights | Draft, models: str, home: str, config_only: bool = False
) -> Checkpoint:
    """Return where a checkpoint lies: below the folder ``models``, or else in the cache ``home``."""
    folder = f"{models}/{item.directory}" if models else ""
    snapshots = f"{home}/hub/models--{item.id.replace('/', '--')}/snapshots/*"
    return Checkpoint(
        id=item.id,
        hub=item.hub,
        into=folder or home,
        places=(folder,) if folder else (snapshots,),
        elsewhere=(f"{models}/{item.id}", snapshots, *cached(site.paths.cache, item.id))
        if folder
        else (),
        files=item.files if isinstance(item, Weights) else (),
        config_only=config_only,
        size_gb=size_gb(item),
        edit=item.edit if isinstance(item, Weights) else "",
        command=download(item, folder) if item.hub != "none" else (),
    )


def download(item: Weights | Draft, folder: str) -> tuple[str, ...]:
    """Return the command that downloads a checkpoint, or goes on with it.

    Without a folder it goes into the cache. ModelScope's program takes these options before 1.38,
    and since.
    """
    many = ("--max-workers", str(WORKERS))
    if item.hub == "modelscope":
        return ("modelscope", "download", "--model", item.id, "--local_dir", folder, *many)
    return ("hf", "download", item.id, *(("--local-dir", folder) if folder else ()), *many)


def size_gb(item: Weights | Draft) -> int | None:
    """Return the size of a checkpoint in GB; that of a draft is estimated, 2 bytes a parameter."""
    if isinstance(item, Weights):
        return item.size_gb
    return math.ceil(item.parameters_million * 2 / 1000) if item.parameters_million else None


def link(item: Weights | Draft) -> str:
    """Return the page of a checkpoint on its hub; "" where it comes with the project.

    >>> link(Draft(id="a/b", method="eagle3", tokens=3, directory="b", vendors=("amd",)))
    'https://huggingface.co/a/b'
    """
    return f"{_LINKS[item.hub]}/{item.id}" if item.hub in _LINKS else ""


def hub_home(hardware: Hardware, site: Site, install: str, env: Mapping[str, str]) -> str:
    """Return the folder on the node that the engine sees as its HF_HOME.

    In a container it is the mount of the site's cache; else what the engine's variables ``env``
    say, or the home folder of the user who starts it (``~``).
    """
    if install == "docker" and hardware.container:
        for mount in hardware.container.mounts:
            source, target = sides(fill(mount, {"cache": site.paths.cache}))
            if target == _HOME_INSIDE or _HOME_INSIDE.startswith(f"{target}/"):
                return source + _HOME_INSIDE.removeprefix(target)
    return env.get("HF_HOME", _HOME)


def hub_variables(env: Mapping[str, str], home: str, network: Network) -> dict[str, str]:
    """Return the variables of a download: the site's ``network``, the engine's ``env``, the cache.

    Of the engine's variables those count that say something of hubs and proxies.
    """
    found = variables(network)
    found |= {name: value for name, value in env.items() if name.upper().startswith(_HUB_PREFIXES)}
    return found | ({} if home == _HOME else {"HF_HOME": home})


def cached(cache: str, id_: str) -> Iterator[str]:
    """Yield patterns of the folders of a checkpoint in the caches of both hubs, below ``cache``.

    ModelScope's program lays it out as models/OWNER/NAME before 1.38, with a dot in the name
    replaced by three underscores, and since as models/OWNER--NAME/snapshots/REVISION.
    """
    dashed = id_.replace("/", "--")
    yield f"{cache}/hub/models--{dashed}/snapshots/*"
    yield f"{cache}/huggingface/hub/models--{dashed}/snapshots/*"
    for base in (f"{cache}/modelscope", cache):
        yield f"{base}/models/{dashed}/snapshots/*"
        for name in dict.fromkeys([id_.replace(".", "___"), id_]):
            for inner in ("hub/models", "models", "hub"):
                yield f"{base}/{inner}/{name}"
