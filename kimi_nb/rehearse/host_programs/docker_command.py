"""Find the command and folder of a container on this machine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from kimi_nb.check.view.commands import base
from kimi_nb.check.view.deployment import Box
from kimi_nb.rehearse.host_programs import docker_images
from kimi_nb.rehearse.host_programs.docker_options import OCI, daemon, last
from kimi_nb.rehearse.stand_in_call import Call, Refused


def program(call: Call, box: Box, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command of a container with the paths of this machine.

    Raises:
        Refused: The container would not find the program or the script.
    """
    argv = list(_command(call, box))
    if "/" in argv[0]:
        found = _place(call, box, argv[0])
        if found is None:
            raise _not_run(argv[0], f"stat {argv[0]}: no such file or directory", 127)
        if os.path.exists(found) and not os.access(found, os.X_OK):
            raise _not_run(argv[0], "permission denied", 126)
        argv[0] = found
    elif _lacks(call, box, argv[0]) or shutil.which(argv[0], path=env["PATH"]) is None:
        raise _not_run(argv[0], "executable file not found in $PATH", 127)
    at = _script_at(argv)
    if at is not None:
        found = _place(call, box, argv[at])
        if found is None:
            raise Refused(f"{base(argv[0])}: {argv[at]}: No such file or directory", 127)
        argv[at] = found
    return tuple(argv)


def _not_run(name: str, why: str, code: int) -> Refused:
    return daemon(f'{OCI}exec: "{name}": {why}', code)


def _lacks(call: Call, box: Box, name: str) -> bool:
    facts = docker_images.facts(call, box.image)
    return facts is not None and name in facts.absent


def _command(call: Call, box: Box) -> tuple[str, ...]:
    facts = docker_images.facts(call, box.image)
    if "--entrypoint" in box.options:
        entry = tuple(filter(None, [last(box, "--entrypoint")]))
    else:
        entry = facts.entrypoint if facts else ()
    return (*entry, *box.argv) or ("bash",)


def _script_at(argv: Sequence[str]) -> int | None:
    """Return the index of a shell's script in ``argv``; None with -c, or if it is no shell."""
    if base(argv[0]) not in ("bash", "sh"):
        return None
    for at, word in enumerate(argv[1:], start=1):
        if re.fullmatch(r"-[a-zA-Z]*[cs][a-zA-Z]*", word):
            return None
        if not word.startswith(("-", "+")):
            return at
    return None


def _place(call: Call, box: Box, path: str) -> str | None:
    """Return this machine's path for a file inside the container.

    None means that the file is on the host only. A path that may belong to the image is returned
    unchanged.
    """
    folder = last(box, "-w", "--workdir")
    inside = os.path.normpath(os.path.join(folder or "/", path))
    found = _mounted(box, inside) if folder or path.startswith("/") else None
    if found is not None:
        return found
    on_host = Path(os.path.normpath(call.folder / path))
    if on_host.is_relative_to(call.root) and (path.startswith("/") or on_host.exists()):
        return None
    return path


def _mounted(box: Box, inside: str) -> str | None:
    """Return this machine's path for what is mounted at a path of the container, or None."""
    best = ("", "")
    for mount in box.mounts:
        source, _, rest = mount.partition(":")
        target = rest.partition(":")[0].rstrip("/") or "/"
        under = inside == target or inside.startswith(target.rstrip("/") + "/")
        if source.startswith("/") and rest and under and len(target) > len(best[1]):
            best = (source, target)
    return best[0].rstrip("/") + inside[len(best[1].rstrip("/")) :] if best[0] else None


def folder_of(call: Call, box: Box) -> str:
    """Return this machine's path for the folder in which a container begins.

    That is ``--workdir``, which docker makes if it is missing, or else the image's WORKDIR. It is
    never the caller's folder.
    """
    told = os.path.normpath(last(box, "-w", "--workdir") or docker_images.workdir(call, box.image))
    found = _mounted(box, told)
    return found if found and os.path.isdir(found) else docker_images.folder(call, told)
