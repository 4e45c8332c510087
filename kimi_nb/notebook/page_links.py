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
from kimi_nb.i18n import LANGUAGES

_LINK = re.compile(r"\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def preprocess(notebook: Any, resources: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Change the links of a notebook's texts, as a preprocessor of nbconvert."""
    folder = Path(resources.get("metadata", {}).get("path") or ".").resolve()
    begun = [one for one in evidence.read(folder) if one.get("stage") == "run"]
    names = begun[-1].get("notebooks") if begun else []
    home = notebooks(resources.get("language_code", ""))
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            pages = names if isinstance(names, list) else []
            cell.source = on_page(cell.source, folder, pages, home)
    return notebook, resources


def notebooks(language: str) -> Path:
    """Return the folder of the notebooks of a language; any but a translation is English.

    >>> notebooks("zh").name, notebooks("en").name
    ('zh', 'notebooks')
    """
    folder = paths.root() / "notebooks"
    return folder / language if language in LANGUAGES and language != "en" else folder


def on_page(text: str, folder: Path, pages: Container[str], home: Path) -> str:
    """Return a text of a notebook in ``home`` with relative links of a page in ``folder``.

    Notebooks that have a page there are linked as pages; others, and documents, where they are.
    """

    def link(found: re.Match[str]) -> str:
        path, anchor = found["path"], found["anchor"] or ""
        name = path.removesuffix(".ipynb")
        if name != path and name in pages:
            return f"]({name}.html{anchor})"
        there = home / path
        return (
            f"]({os.path.relpath(there.resolve(), folder)}{anchor})" if there.exists() else found[0]
        )

    return _LINK.sub(link, text)
