"""Write the folder that comes first on PATH in a rehearsal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

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
)


def write(root: Path) -> None:
    """Write ``root/bin``, with a stand-in for each program and with the Python interpreter."""
    folder = root / "bin"
    folder.mkdir()
    python = shlex.quote(sys.executable)
    for name in NAMES:
        _script(folder / name, f'exec {python} -I -S {shlex.quote(str(_CLIENT))} "$0" "$@"')
    for name in ("python", "python3"):
        _script(folder / name, f'exec {python} "$@"')


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
