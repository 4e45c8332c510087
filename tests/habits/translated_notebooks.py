"""The notebooks in other languages: the English code cells, with translated text around them.

Of the code one line differs: the parameter ``language`` is that of the notebook.

`notebooks/LANGUAGE.po` has a message for each markdown cell; a notebook is made as soon as its first
cell is translated. What has no translation yet stays English. catalogues.py (make i18n) writes them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
# The relative links of a cell: where to, and the heading there.
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
_PARAMETER = 'language: str = ""'
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def english() -> list[Path]:
    """The notebooks that people write."""
    return sorted(FOLDER.glob("*.ipynb"))


def texts(path: Path) -> Iterator[str]:
    """The text of each markdown cell."""
    for cell in _read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])


def template(header: str) -> Catalog:
    """Every text of a markdown cell, each with the notebooks that have it."""
    out = Catalog(project="kimi_nb", header_comment=header)
    places: dict[str, list[tuple[str, int]]] = {}
    for path in english():
        for text in texts(path):
            places.setdefault(text, []).append((f"notebooks/{path.name}", 0))
    for text, where in places.items():
        out.add(text, locations=list(dict.fromkeys(where)))
    return out


def made(language: str, told: dict[str, str]) -> list[tuple[Path, str]]:
    """Each notebook of a language whose first cell is translated: its path, and its JSON."""
    paths = [path for path in english() if next(texts(path), None) in told]
    anchors = {path.name: _anchors(path, told) for path in paths}
    out = []
    for path in paths:
        notebook = _read(path)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = "".join(cell["source"])
                moved = functools.partial(_moved, name=path.name, anchors=anchors)
                text = _LINK.sub(moved, told.get(text, text))
                cell["source"] = text.splitlines(keepends=True)
            elif "parameters" in cell["metadata"].get("tags", []):
                cell["source"] = [in_language(line, language) for line in cell["source"]]
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        out.append((FOLDER / language / path.name, text))
    return out


def in_language(line: str, language: str) -> str:
    """A line of the parameters' cell as it is in a translated notebook."""
    return line.replace(_PARAMETER, f'language: str = "{language}"')


def _anchors(path: Path, told: dict[str, str]) -> dict[str, str]:
    """Each heading of a notebook as Jupyter addresses it: English, and as translated."""
    return {
        old.replace(" ", "-"): new.replace(" ", "-")
        for text in texts(path)
        for old, new in zip(
            _HEADING.findall(text), _HEADING.findall(told.get(text, text)), strict=True
        )
    }


def _moved(link: re.Match[str], name: str, anchors: dict[str, dict[str, str]]) -> str:
    """A link as it has to be one folder further down, beside the translated notebooks."""
    target, anchor = link.groups()
    if (target or name) in anchors:
        anchor = anchors[target or name].get(anchor, anchor)
    else:
        target = f"../{target}"
    return f"]({target}{f'#{anchor}' if anchor else ''})"


def stale(language: str, kept: list[Path]) -> list[Path]:
    """Notebooks of a language of which there is no English one, or no translation, any more."""
    return sorted(set((FOLDER / language).glob("*.ipynb")) - set(kept))


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
