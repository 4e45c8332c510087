"""Tell what runs in a container, with which variables, and which devices it sees.

For example::

    box, command = container_commands.of_manifest(container, source)
    found.servers[:] = container_commands.seen(box, found.servers, before=0)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.check.reading import compose
from kimi_nb.check.reading.script import Command, Word
from kimi_nb.check.reading.sources import Source
from kimi_nb.check.view import container_start
from kimi_nb.check.view.deployment import Box
from kimi_nb.check.view.engine_view import EngineView, Spot


def of_docker(command: Command, spot: Spot, home: str, at: int, number: int) -> Box | None:
    """Return the container that docker, podman or nerdctl starts, None for that of a tool.

    ``at`` is where the options begin, and ``number`` tells containers of the same line apart.
    """
    box = container_start.box(command.argv, command.env, spot, home, at)
    if container_start.runs_a_tool(box):
        return None
    if not box.host_network:
        # A network, and so ports, of its own; each turn of a loop starts another.
        box = replace(box, node=f"{spot.name} ({number})")
    return box


def inside_docker(command: Command, box: Box) -> Command:
    """Return what runs in a container that a command starts."""
    entry = box.options.get("--entrypoint", ())[-1:]
    words = (
        *(Word(text, command.line) for text in entry),
        *command.words[len(command.words) - len(box.argv) :],
    )
    lines = dict.fromkeys(box.env, command.line)
    return replace(command, words=words, env=box.env, env_lines=lines)


def inside_image(command: Command, run: tuple[int, str, dict[str, str], bool]) -> Command | None:
    """Return what apptainer or enroot runs inside an image: on the network of the host.

    ``run`` is what `container_start.image_run` returns. Return None if nothing runs.
    """
    at, image, env, own = run
    words = command.words[at:]
    argv = tuple(word.text for word in words)
    if own and container_start.serves_by_itself(image) and not container_start.serves(argv):
        words = (Word("vllm", command.line), Word("serve", command.line), *words)
    if not words:
        return None
    lines = {**command.env_lines, **dict.fromkeys(env, command.line)}
    return replace(command, words=words, env={**command.env, **env}, env_lines=lines)


def of_manifest(one: compose.Container, source: Source) -> tuple[Box, Command | None]:
    """Return a container of a compose or Kubernetes file, and what runs in it."""
    shift = source.line - 1
    line = one.line + shift
    spot = Spot(f"{source.file}:{line}", source.file, line)
    # Fences of a document are alternatives, each on a node of its own.
    host = source.file if source.line == 1 else f"{source.file}:{source.line}"
    argv = tuple(word for word, _ in (*one.entrypoint, *one.command))
    box = Box(
        spot,
        host if one.host_network else f"{spot.name} ({one.name})",
        one.image,
        one.name,
        argv,
        tuple(one.mounts),
        (*container_start.accelerators(one.devices), *container_start.gpus(one.gpus)),
        () if one.host_network else tuple(one.ports),
        one.env,
        _options(one),
        _runs_engine(one, argv),
        tuple(one.passes),
        one.kubernetes and not one.env_files,
    )
    words = tuple(Word(word, at + shift) for word, at in (*one.entrypoint, *one.command))
    env_lines = {name: at + shift for name, at in one.env_lines.items()}
    command = Command(words, one.env, env_lines, line, one.certain, True)
    return box, command if words else None


def _options(one: compose.Container) -> dict[str, tuple[str, ...]]:
    """Return what a file says of a container as the options that docker would take."""
    given = {
        "--privileged": ("true",) if one.privileged else (),
        "--network": ("host",) if one.host_network else (),
        "--env-file": tuple(one.env_files),
        "--memory": (one.memory,) if one.memory else (),
        "--entrypoint": tuple(word for word, _ in one.entrypoint),
    }
    return {name: values for name, values in given.items() if values}


def _runs_engine(one: compose.Container, argv: tuple[str, ...]) -> bool:
    return container_start.serves(argv) or (
        not one.entrypoint
        and bool(argv)
        and (
            container_start.serves_by_itself(one.image)
            or container_start.serves_by_words(argv, one.image)
        )
    )


def seen(box: Box, servers: Sequence[EngineView], before: int) -> list[EngineView]:
    """Return the engines with the devices that those inside a container get, as the node counts.

    ``before`` is the number of engines found before the container.
    """
    numbers = container_start.device_numbers(box.devices)
    return [
        one if index < before or numbers is None else _seeing(one, numbers)
        for index, one in enumerate(servers)
    ]


def _seeing(one: EngineView, numbers: Sequence[int]) -> EngineView:
    backends = one.text("distributed-executor-backend"), one.text("data-parallel-backend")
    if "ray" in backends:  # ray may place ranks on other nodes
        return one
    inside = one.devices
    if inside is None and not any(
        re.fullmatch("(CUDA|ASCEND_RT|HIP|ROCR)_VISIBLE_DEVICES", name) for name in one.env
    ):
        inside = tuple(range(len(numbers)))
    if inside is None or any(device >= len(numbers) for device in inside):
        return one
    return replace(one, devices=tuple(numbers[device] for device in inside))
