"""Find the images of a node by name."""

from __future__ import annotations

import os

from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.stand_in_call import Call

# WORKDIR by the name of an image, from the build files of vllm-ascend 0.17.0rc1 to 0.22.1rc1 and
# of vLLM 0.11.2 to 0.32.0.
_WORKDIRS = {
    "vllm-ascend": "/workspace",
    "vllm-openai": "/vllm-workspace",
    "vllm-openai-rocm": "/app",
}


def workdir(image: str) -> str:
    """Return the folder in which what an image starts begins (WORKDIR)."""
    name = familiar(image).partition("@")[0].rpartition("/")[2].partition(":")[0]
    return _WORKDIRS.get(name, "/")


def folder(call: Call, inside: str) -> str:
    """Return the empty folder that stands for a folder of an image, and make it."""
    path = call.root / "nodes" / (call.node or "none") / "images" / inside.lstrip("/")
    os.makedirs(path, exist_ok=True)
    return str(path)


def familiar(image: str) -> str:
    """Return the name of an image as docker shows it."""
    return image.removeprefix("docker.io/").removeprefix("library/")


def tagged(image: str) -> str:
    """Return the name of an image with its tag, which is "latest" if left out."""
    name = familiar(image)
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def is_there(call: Call, image: str) -> bool:
    """Return whether a node has an image."""
    return not call.site.fault(FaultName.WRONG_IMAGE_TAG, call.node) and tagged(image) in map(
        tagged, call.site.images
    )
