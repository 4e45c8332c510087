"""Rules on how images are made, and on the device files that containers are given."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator

from kimi_nb.check.findings import WARNING
from kimi_nb.check.rules.registry import Problem, of_reading, rule
from kimi_nb.check.view.deployment import Deployment

_FILES = (
    "/dev/kfd",
    "/dev/dri",
    "/dev/davinci_manager",
    "/dev/devmm_svm",
    "/dev/hisi_hdc",
    "/dev/infiniband",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/shm",
)


@rule(
    "containers/device-path",
    WARNING,
    "A device file that a container is given has the name that its driver makes.",
    "Write the path as ls shows it on the host.",
    "amdgpu: /dev/kfd and /dev/dri/renderD128; Ascend's driver: /dev/davinci0, /dev/davinci_manager, "
    "/dev/devmm_svm, /dev/hisi_hdc",
)
def device_path(d: Deployment) -> Iterator[Problem]:
    """'error gathering device information: no such file or directory': the container is not made."""
    for box in d.boxes:
        for given in box.options.get("--device", ()):
            right = _device(given.partition(":")[0])
            if right:
                yield Problem(
                    box.spot, f"{given.partition(':')[0]} is no device", f"Did you mean {right}?"
                )


@functools.cache
def _device(path: str) -> str:
    """Return the device file that is meant by a path which is none, "" for any other path."""
    if re.fullmatch(r"/dev/(renderD\d+|card\d+)", path):
        return path.replace("/dev/", "/dev/dri/")
    if path in _FILES or not re.fullmatch(r"/dev/[a-z_-]+", path):
        return ""
    return next(iter(difflib.get_close_matches(path, _FILES, n=1, cutoff=0.85)), "")


@rule(
    "containers/too-few-devices",
    WARNING,
    "A container is given the devices of the engine that a document starts in it.",
    "Add --device for each device of the node, or take the size that fits.",
    "vllm serve: tensor parallel size x pipeline parallel size devices for each rank",
)
def too_few_devices(d: Deployment) -> Iterator[Problem]:
    """The engine counts the devices that it sees, and ends before it loads."""
    most: dict[str, int] = {}
    for box in d.boxes:
        if box.spot.file in d.documents and not box.runs_engine:
            whole = all(re.match(r"/dev/davinci\d+", one) for one in box.devices)
            count = len(box.devices) if whole else 0
            most[box.spot.file] = max(most.get(box.spot.file, 0), count or _UNKNOWN)
    for server in d.servers:
        given = most.get(server.spot.file, _UNKNOWN)
        spread = {"nnodes", "distributed-executor-backend", "master-addr"} & {*server.flags}
        if given < (server.world or 0) < _UNKNOWN and not spread:
            yield Problem(
                server.spot,
                f"{server.world} devices for a rank; the containers of this document get {given}",
            )


_UNKNOWN = 10_000  # devices: nothing says how many

for _identity, _says, _fix, _source, _why in (
    (
        "containers/dockerfile-variable",
        "A Dockerfile expands only variables that it has declared.",
        "Write the name that ARG or ENV has, or declare the other.",
        "Dockerfile reference: ARG, and its check UndefinedVar",
        "An empty text stands in its place, and what docker build --build-arg gave is lost.",
    ),
    (
        "containers/uv-system",
        "uv is told where to install in an image that has no virtual environment.",
        "Write uv pip install --system, or set UV_SYSTEM_PYTHON=1.",
        "uv 0.9: pip install looks for a virtual environment",
        "'No virtual environment found; run uv venv ... or pass --system': the image is not built.",
    ),
    (
        "containers/cuda-folder",
        "A Dockerfile names the folder of the CUDA that its image has.",
        "Write the version that the tag of FROM names.",
        "nvidia/cuda: one CUDA in /usr/local/cuda-MAJOR.MINOR",
        "ldconfig and the linker pass over a folder that is not there: the libraries are not found.",
    ),
):
    rule(_identity, WARNING, _says, _fix, _source, needs=("scripts",))(
        of_reading(_identity, _why, __name__)
    )
