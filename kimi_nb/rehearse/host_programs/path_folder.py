"""Write the folders of a rehearsal that come first on PATH.

``stubs`` holds a stand-in for every program and is on no PATH. ``bin`` is the PATH of the nodes,
and each image and each environment has a folder of its own: a script finds there what it would
find on a real node, and not what this machine has.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from kimi_nb.core.marks import MARK

_CLIENT = Path(__file__).with_name("path_stub.py")
# The names of `programs_by_name.TOOLS`, repeated because that imports the whole engine.
NAMES = (
    "vllm",
    "docker",
    "npu-smi",
    "hccn_tool",
    "nvidia-smi",
    "rocm-smi",
    "sysctl",
    "tee",
    "hostname",
    "df",
    "ls",
    "ping",
    "module",
    "conda",
    "pip",
    "uv",
    "git",
    "hf",
    "apptainer",
    "enroot",
    "srun",
    "scontrol",
    "getent",
    "ssh",
    "vllm-router",
    "mooncake_master",
)
PYTHONS = ("python", "python3")
# What no host has by itself: an installation brings it, or the image has it.
INSTALLED = ("vllm", "vllm-router", "mooncake_master", "hf", "pip", "python")


def write(root: Path) -> None:
    """Write ``root/stubs`` with a stand-in for each program, and ``root/bin`` for the nodes."""
    folder = root / "stubs"
    folder.mkdir()
    python = shlex.quote(sys.executable)
    for name in NAMES:
        script(folder / name, f'exec {python} -I -S {shlex.quote(str(_CLIENT))} "$0" "$@"')
    for name in PYTHONS:
        script(folder / name, f'exec {python} "$@"')
    there = {*NAMES, *PYTHONS} - {*INSTALLED}
    pick(root, root / "bin", there, INSTALLED)


def pick(root: Path, folder: Path, names: Iterable[str], absent: Iterable[str]) -> None:
    """Write a folder with the stand-ins ``names``; a program that is ``absent`` is not found."""
    folder.mkdir(parents=True)
    for name in names:
        if name in NAMES or name in PYTHONS:
            os.symlink(root / "stubs" / name, folder / name)
    for name in absent:
        script(folder / name, f"echo 'bash: line 1: {name}: command not found' >&2\nexit 127")


def caller(what: str) -> str:
    """Return the text of a Python program that calls the stand-in of its own name.

    ``what`` says for what it stands.
    """
    argv = [sys.executable, "-I", "-S", str(_CLIENT)]
    return (
        f'"""{MARK}: stands for {what}."""\n'
        "import os, sys\n"
        f"argv = {argv!r}\n"
        "os.execv(argv[0], [*argv, *sys.argv])\n"
    )


def script(path: Path, lines: str) -> None:
    """Write a shell script in the place of what is there, as executable as the umask lets it be."""
    new = path.with_name(f".{path.name}.{os.urandom(6).hex()}")  # other nodes may write it as well
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\n{lines}\n")
    os.replace(new, path)
