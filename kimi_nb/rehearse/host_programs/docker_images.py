"""Find the images of a node by name."""

from __future__ import annotations

import contextlib
import os
import re

from kimi_nb import catalog
from kimi_nb.core.errors import KimiError
from kimi_nb.rehearse import image_facts
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import path_folder
from kimi_nb.rehearse.image_facts import ImageFacts
from kimi_nb.rehearse.stand_in_call import Call


def facts(call: Call, image: str) -> ImageFacts | None:
    """Return what an image holds; None for one that is not known."""
    tag = re.match(r"v?([0-9]+\.[0-9]+\.[0-9]+(rc[0-9]+)?)", familiar(image).rpartition(":")[2])
    version = tag[1] if tag else call.site.engine_version
    try:
        engine = catalog.engine(call.site.engine, version)
    except KimiError:  # another engine's version
        engine = catalog.engine(call.site.engine, call.site.engine_version)
    return image_facts.of(image, engine)


def workdir(call: Call, image: str) -> str:
    """Return the folder in which what an image starts begins (WORKDIR)."""
    found = facts(call, image)
    return found.workdir if found else "/"


def programs(call: Call, image: str) -> str:
    """Return the folder with the programs of an image, and make it.

    A program that the image does not have fails there as one that is not found, because this
    machine may have it.
    """
    found = facts(call, image)
    if found is None:
        return str(call.root / "stubs")
    folder = call.root / "images" / familiar(image).replace("/", "_").replace(":", "_")
    if not folder.is_dir():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        path_folder.pick(call.root, new, found.programs, found.absent)
        with contextlib.suppress(OSError):  # made by another container meanwhile
            new.rename(folder)
    return str(folder)


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
