"""Keep what follows from the project's own files alone, until one of them changes.

    rows = kept_results.of("combinations", make)  # calls make() once for each state of the project

A file has changed if its size or its time has, as Python judges the source of its bytecode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from kimi_nb import __version__
from kimi_nb.core import compiled_copies, paths

_T = TypeVar("_T")  # plain values: what marshal knows


def of(name: str, make: Callable[[], _T]) -> _T:
    """Return what ``make`` returns for the project as it is."""
    try:
        path, state = paths.PACKAGE / name, _state()
    except OSError:  # a file goes or comes at this moment
        return make()
    kept: list[_T] | None = compiled_copies.read(path, state)
    if kept is not None:
        return kept[0]
    made = make()
    compiled_copies.keep(path, state, [made])
    return made


def _state() -> list[tuple[str, int, int]]:
    """Return size and time of each file of the package and of ``params/``; a millisecond or three."""
    folders = (str(paths.PACKAGE), str(paths.root() / "params"))
    return [(__version__, 0, 0), *(one for folder in folders for one in _files(folder))]


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda one: one.name)
    for entry in found:
        if not entry.is_dir(follow_symlinks=False):
            seen = entry.stat()
            yield entry.path, seen.st_size, seen.st_mtime_ns
        elif entry.name != "__pycache__":
            yield from _files(entry.path)
