"""Find the images of a node by name."""

from __future__ import annotations

from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.stand_in_call import Call


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
