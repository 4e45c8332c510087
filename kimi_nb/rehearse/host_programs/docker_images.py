"""The images of a node's docker, by name."""

from __future__ import annotations

from kimi_nb.rehearse.stand_in_call import Call


def familiar(image: str) -> str:
    """An image as docker shows it."""
    return image.removeprefix("docker.io/").removeprefix("library/")


def tagged(image: str) -> str:
    """An image with its tag, which may be left out."""
    name = familiar(image)
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def is_there(call: Call, image: str) -> bool:
    """Whether a node has an image."""
    return not call.world.fault("wrong-image-tag", call.node) and tagged(image) in map(
        tagged, call.world.images
    )
