"""Look up what images and packages hold, from their build files (data/rehearse).

>>> facts = of("vllm/vllm-openai:v0.19.1", catalog.engine("vllm", "0.19.1"))
>>> facts.entrypoint, "python" in facts.programs, "nixl" in facts.packages
(('vllm', 'serve'), False, True)

Nothing here is known to the planner: a plan that thinks otherwise of an image fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.core import data_files


@dataclass(frozen=True)
class Library:
    """A package that can only be imported with a folder on LD_LIBRARY_PATH."""

    package: str
    folder: str
    error: str


@dataclass(frozen=True)
class ImageFacts:
    """What an image holds.

    Attributes:
        entrypoint: What runs before a command of ``docker run``; empty if it only prepares.
        workdir: The folder in which a container begins.
        folders: The folders of the image itself, below which a path need not be mounted.
        env: Its variables.
        interactive: What a shell with a terminal adds to them.
        programs: The programs on its PATH, of those that scripts of ours call.
        absent: Those of them that it does not have.
        packages: The Python packages that matter to an engine or a proxy.
    """

    name: str
    entrypoint: tuple[str, ...]
    workdir: str
    folders: tuple[str, ...]
    env: dict[str, str]
    interactive: dict[str, str]
    programs: frozenset[str]
    absent: frozenset[str]
    packages: frozenset[str]
    libraries: tuple[Library, ...]


def of(image: str, engine: catalog.Engine) -> ImageFacts | None:
    """Return the facts of an image that holds ``engine``; None for an image that is not known."""
    table = data_files.facts("rehearse/images")
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    family = table["families"].get(name)
    if family is None:
        return None
    programs = frozenset(_holds(family["programs"], engine))
    return ImageFacts(
        name=name,
        entrypoint=tuple(family["entrypoint"]),
        workdir=family["workdir"],
        folders=tuple(family["folders"]),
        env=family["env"],
        interactive=family.get("interactive", {}),
        programs=programs,
        absent=frozenset(table["known"]) - programs,
        packages=frozenset(_holds(family["packages"], engine)),
        libraries=tuple(
            Library(one["package"], one["folder"], one["error"])
            for one in family.get("libraries", ())
            if catalog.satisfies(engine, one["vllm"])
        ),
    )


def _holds(rows: Iterable[Mapping[str, Any]], engine: catalog.Engine) -> list[str]:
    return [
        name
        for row in rows
        if catalog.satisfies(engine, row.get("vllm", ""))
        for name in row["names"]
    ]


def brings(package: str, engine: catalog.Engine) -> set[str]:
    """Return a package and those that come with it, by the names of pip.

    >>> "ray" in brings("vllm", catalog.engine("vllm", "0.19.1"))
    False
    """
    table = data_files.facts("rehearse/packages")["requires"]
    found, waiting = set[str](), [package]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _holds(table.get(name, ()), engine)
    return found


def scripts(packages: Iterable[str]) -> list[str]:
    """Return the console scripts of packages."""
    table = data_files.facts("rehearse/packages")["programs"]
    return [name for package in packages for name in table.get(package, ())]


def connector(name: str) -> tuple[str, str] | None:
    """Return the package behind a KV connector and what vLLM says without it; None if unknown.

    >>> connector("NixlConnector")[0]
    'nixl'
    """
    for row in data_files.facts("rehearse/packages")["connectors"]:
        if row["part"] in name.lower():
            return row["package"], row["error"]
    return None


def hubs(checkpoint: str) -> tuple[str, ...]:
    """Return the hubs that have a checkpoint; empty if that is not known."""
    return tuple(data_files.facts("rehearse/packages")["hubs"].get(checkpoint, ()))
