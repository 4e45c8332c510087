"""Make the links of a notebook lead somewhere from its page, which stands in the folder of a run.

Example::

    exporter.register_preprocessor(page_links.preprocess, enabled=True)
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from kimi_nb.core import evidence, paths

_LINK = re.compile(r"\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def preprocess(notebook: Any, resources: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Change the links of a notebook's texts, as a preprocessor of nbconvert."""
    folder = Path(resources.get("metadata", {}).get("path") or ".").resolve()
    begun = [one for one in evidence.read(folder) if one.get("stage") == "run"]
    names = begun[-1].get("notebooks") if begun else []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = on_page(cell.source, folder, names if isinstance(names, list) else [])
    return notebook, resources


def on_page(text: str, folder: Path, pages: Container[str]) -> str:
    """Return a text whose relative links are those of a page in ``folder``.

    Notebooks that have a page there are linked as pages; others, and documents, where they are.
    """

    def link(found: re.Match[str]) -> str:
        path, anchor = found["path"], found["anchor"] or ""
        name = path.removesuffix(".ipynb")
        if name != path and name in pages:
            return f"]({name}.html{anchor})"
        there = paths.root() / "notebooks" / path
        return (
            f"]({os.path.relpath(there.resolve(), folder)}{anchor})" if there.exists() else found[0]
        )

    return _LINK.sub(link, text)
