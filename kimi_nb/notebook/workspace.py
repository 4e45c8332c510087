"""Copy the notebooks to a folder that git ignores, and keep the copies up to date.

    python -m kimi_nb.notebook.workspace     # what `make lab` runs first

The folder is ``workspace/`` in the root of the checkout, so that links lead where they do from
``notebooks/``. What a copy was made from stays in ``workspace/.originals``, for the next merge.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kimi_nb.core import evidence, paths
from kimi_nb.core.errors import KimiError
from kimi_nb.notebook import cell_merge

FOLDER = "workspace"
_ORIGINALS = ".originals"


def update(originals: Path, folder: Path) -> list[str]:
    """Bring the copies in a folder up to date; return a line for each thing that a person should know.

    A copy that is missing is made anew. One that cannot be read is left alone. Raises WriteError.
    """
    said = []
    names = sorted(path.relative_to(originals) for path in _notebooks(originals))
    for name in names:
        said += _update(originals / name, folder / name, folder / _ORIGINALS / name)
    for path in sorted(_notebooks(folder / _ORIGINALS)):
        name = path.relative_to(folder / _ORIGINALS)
        if name not in names:
            said += _retire(folder / name, path)
    return said


def _notebooks(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*.ipynb"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _update(original: Path, copy: Path, before: Path) -> list[str]:
    """Bring one copy up to date; ``before`` is what it was made from."""
    text = original.read_text(encoding="utf-8")
    said = []
    if not copy.exists():
        _write(copy, text)
    elif not before.exists() or before.read_text(encoding="utf-8") != text:
        ours = json.loads(text)
        base, mine = _read(before), _read(copy)
        if mine is None:
            return [f"{copy}: cannot be read, and is left as it is. Remove it for a fresh copy."]
        merged = cell_merge.merge(base or {"cells": []}, mine, ours)
        if merged.notebook != mine:
            _write(copy, json.dumps(merged.notebook, indent=1, ensure_ascii=False) + "\n")
        if count := len(merged.conflicts):
            cells = f"{count} cell{'s' * (count > 1)}"
            said.append(f"{copy}: {cells} of yours changed in the original, too: see below yours.")
    _write(before, text)
    return said


def _retire(copy: Path, before: Path) -> list[str]:
    """Remove a copy whose original is no more, unless somebody has worked in it."""
    mine, base = _read(copy), _read(before)
    before.unlink()
    if not copy.exists():
        return []
    if mine and base and _contents(mine) == _contents(base):
        copy.unlink()
        return []
    return [f"{copy}: the original is no more; your copy stays."]


def _contents(notebook: dict[str, Any]) -> list[tuple[str, str]]:
    return [cell_merge.content(cell) for cell in notebook["cells"]]


def _read(path: Path) -> dict[str, Any] | None:
    """Return a notebook with cells, None for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if _contents(found) is not None else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_bytes() == text.encode():
        return
    evidence.write_text(path, text)


def main() -> int:
    """Update the workspace of this checkout; return 2 where it cannot be written."""
    folder = paths.root() / FOLDER
    try:
        said = update(paths.root() / "notebooks", folder)
    except KimiError as error:
        print(f"make lab: {error}", file=sys.stderr)
        return 2
    for line in said:
        print(line, file=sys.stderr)
    print(f"The notebooks are in {folder}: copies, which are yours to change.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
