"""Turn executed notebooks into the ones that the pages show."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

Notebook = dict[str, Any]
# Outputs that a page shows; a widget would ask for a kernel.
_SHOWN = ("text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")
_HIDDEN = "injected-parameters"  # what papermill adds


def page(executed: Notebook, paths: Mapping[str, str]) -> Notebook:
    """Return the notebook of a page: without the runner's cells, machine's paths and widgets.

    Args:
        executed: A notebook of format 4.
        paths: What stands in the place of folders of this machine, the longest ones first.
    """
    cells = [
        _cell(cell, paths)
        for cell in executed["cells"]
        if _HIDDEN not in cell["metadata"].get("tags", ())
    ]
    kept = {
        key: executed["metadata"][key]
        for key in ("kernelspec", "language_info")
        if key in executed["metadata"]
    }
    return executed | {"cells": cells, "metadata": kept}


def grafted(written: Notebook, executed: Notebook) -> Notebook:
    """Return a translated notebook with the outputs of the executed one, matched by cell id."""
    outputs = {cell.get("id"): cell for cell in executed["cells"] if cell["cell_type"] == "code"}
    cells = []
    for cell in written["cells"]:
        if cell["cell_type"] == "code" and (same := outputs.get(cell.get("id"))):
            cell = cell | {key: same[key] for key in ("outputs", "execution_count")}
        cells.append(cell)
    return written | {"cells": cells, "metadata": executed["metadata"]}


def _cell(cell: Notebook, paths: Mapping[str, str]) -> Notebook:
    source = _joined(cell["source"])
    if cell["cell_type"] != "code":
        return cell | {"source": _links(source), "metadata": {}}
    outputs = [_output(one, paths) for one in cell.get("outputs", ())]
    return cell | {"source": source, "outputs": outputs, "metadata": {}}


def _output(output: Notebook, paths: Mapping[str, str]) -> Notebook:
    if "text" in output:
        return output | {"text": _replaced(_joined(output["text"]), paths)}
    if "data" in output:
        data = {kind: output["data"][kind] for kind in _SHOWN if kind in output["data"]}
        clean = {kind: _replaced(_joined(value), paths) for kind, value in data.items()}
        return output | {"data": clean, "metadata": {}}
    if "traceback" in output:
        return output | {"traceback": [_replaced(line, paths) for line in output["traceback"]]}
    return output


def _links(source: str) -> str:
    """Return Markdown whose links name a heading of a notebook as the pages do, not as Jupyter does."""
    return re.sub(
        r"(?<=\]\()((?:[\w./-]+\.ipynb)?)#([^)\s]+)(?=\))",
        lambda found: f"{found[1]}#{slug(found[2])}",
        source,
    )


def slug(heading: str) -> str:
    """Return the anchor of a heading: that of GitHub.

    >>> slug("What-is-checked,-and-when")
    'what-is-checked-and-when'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _joined(words: str | list[str]) -> str:
    return words if isinstance(words, str) else "".join(words)


def _replaced(words: str, paths: Mapping[str, str]) -> str:
    """Return a text with other paths in the place of some, also of those that HTML lets break.

    >>> _replaced("/tmp/<wbr>my/<wbr>plan", {"/tmp/my": "run"})
    'run/<wbr>plan'
    """
    for path, instead in paths.items():
        words = words.replace(path, instead)
        if "<wbr" in words:
            words = _breaking(path).sub(functools.partial(_balanced, instead), words)
    return words


@functools.cache
def _breaking(path: str) -> re.Pattern[str]:
    tags = r"(?:<wbr[^>]*>|</?span[^>]*>)*"
    return re.compile(tags.join(map(re.escape, path)))


def _balanced(instead: str, found: re.Match[str]) -> str:
    """Return what replaces a path, with the elements that begin or end inside of it."""
    opened, closed = found[0].count("<span"), found[0].count("</span>")
    return "</span>" * (closed - opened) + instead + "<span>" * (opened - closed)
