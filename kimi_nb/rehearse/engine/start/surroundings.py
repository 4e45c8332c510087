"""Look at what an engine finds around it: packages, libraries, folders and hubs.

An engine in a container sees what its image holds and what is mounted; one in an environment sees
what was installed there. Where neither is known, as for a document's commands, nothing is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.rehearse import image_facts, wheels
from kimi_nb.rehearse.engine.engine_log import StartError
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.host_programs import docker_images, docker_run, installed_packages
from kimi_nb.rehearse.stand_in_call import Call

_RAY = "Failed to import Ray: No module named 'ray'. Please install Ray with `pip install ray`."


def check(call: Call, mine: Settings) -> None:
    """Refuse a start that would lack a package, a library or a checkpoint.

    Raises:
        StartError: In the words of the engine.
    """
    for error in _faults(call, mine):
        name, _, text = error.partition(": ")
        raise StartError(name, text)


def _faults(call: Call, mine: Settings) -> Iterator[str]:
    facts = docker_images.facts(call, call.env[docker_run.IMAGE]) if _contained(call) else None
    found = installed_packages.importable(call)
    there = None if found is None else frozenset(found)
    if there is not None:
        wanted = image_facts.connector(mine.transfer.connector) if mine.transfer else None
        if wanted and wanted[0] not in there:
            yield wanted[1]
        if wanted and facts:
            for library in facts.libraries:
                path = call.env.get("LD_LIBRARY_PATH", "").split(":")
                if library.package == wanted[0] and library.folder not in path:
                    yield library.error
        if mine.by_ray and "ray" not in there:
            yield f"ValueError: {_RAY}"
    if found is not None and not facts:
        # An image that was published was built for one CUDA; only an installation can mix two.
        error = wheels.unfit(found.get("vllm", ""), found.get("torch", ""), call.site.vendor)
        if error:
            yield error
    if call.env.get(docker_run.BRIDGED) and not mine.headless:
        # The node's address is not one of a container with a network of its own.
        for address in filter(None, (mine.host, mine.meets and mine.meets[0])):
            if address == call.address:
                yield f"OSError: [Errno 99] Cannot assign requested address: '{address}'"
    for checkpoint in filter(None, (mine.model, mine.draft)):
        draft = " [draft model]" if checkpoint == mine.draft else ""
        if checkpoint.startswith("/"):
            if _contained(call) and not _seen(call, checkpoint, facts):
                yield _unknown(mine, checkpoint) + draft
        elif there is None:
            continue
        elif (hubs := image_facts.hubs(checkpoint)) and _hub(call, mine) not in hubs:
            yield _unknown(mine, checkpoint) + draft


def _contained(call: Call) -> bool:
    return bool(call.env.get(docker_run.IMAGE))


def _seen(call: Call, path: str, facts: image_facts.ImageFacts | None) -> bool:
    folders = [*call.env.get(docker_run.MOUNTS, "").split("\n"), *(facts.folders if facts else ())]
    return any(path == one or path.startswith(f"{one.rstrip('/')}/") for one in folders if one)


def _hub(call: Call, mine: Settings) -> str:
    """Return the hub that all names of the process are asked at.

    The variable means yes in any spelling of "true"; "1" also does from vLLM 0.32.0 on.
    """
    told = call.env.get("VLLM_USE_MODELSCOPE", "").lower()
    yes = told == "true" or (told == "1" and catalog.satisfies(mine.engine, ">=0.32.0"))
    return "modelscope" if yes else "huggingface"


def _unknown(mine: Settings, checkpoint: str) -> str:
    if catalog.satisfies(mine.engine, ">=0.22.0"):
        return (
            f"ValueError: Invalid repository ID or local directory specified: '{checkpoint}'. Please "
            "verify the following requirements: a local folder with config.json, or the id of a "
            "repository of the hub."
        )
    return (
        f"OSError: {checkpoint} is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'. (Couldn't find a config.json there.)"
    )
