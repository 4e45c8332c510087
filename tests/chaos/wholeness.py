"""Whether the files that a command has written are whole.

wholeness.halves(folder)    # what is half-written under a name that does not say so
wholeness.scratch(folder)   # what has a name that says it: gone after the next run, hours later
wholeness.forget(folder)    # let those hours pass
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

# Names of files that are being written.
_SCRATCH = re.compile(r"\.(new|tmp|part)$|^\.(claim\.|.*\.old\.|.*\.[0-9a-f]{8}$)")
# Text that may end anywhere: logs grow.
_GROWING = (".log", ".out", ".err")


def scratch(folder: Path) -> list[str]:
    """Return what is left of files and folders that were being written."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if _SCRATCH.search(path.name) and not _below_scratch(path, folder)
    ]


def forget(folder: Path) -> None:
    """Let two hours pass for what was being written: a writer that may live is left alone."""
    for path in folder.rglob("*"):
        if _SCRATCH.search(path.name):
            os.utime(path, (path.lstat().st_mtime - 7200,) * 2, follow_symlinks=False)


def halves(folder: Path) -> list[str]:
    """Return the files that are not whole, each with what is wrong."""
    return [
        f"{path.relative_to(folder)}: {wrong}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _SCRATCH.search(path.name) and not _below_scratch(path, folder)
        for wrong in _wrong(path)
    ]


def _below_scratch(path: Path, folder: Path) -> bool:
    return any(_SCRATCH.search(name) for name in path.relative_to(folder).parts[:-1])


def _wrong(path: Path) -> Iterator[str]:
    if path.suffix in _GROWING:
        return
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".jsonl":
            for line in text.splitlines():
                json.loads(line)
        elif path.suffix == ".ipynb":
            _notebook(text)
        elif path.suffix in (".yaml", ".yml"):
            if yaml.safe_load(text) is None:
                yield "is empty"
        elif path.suffix == ".html" and not text.rstrip().endswith("</html>"):
            yield "does not end with </html>"
        elif path.suffix in (".sh", ".py", ".md", ".env", ".sbatch") and not text.endswith("\n"):
            yield "does not end with a line's end"
    except (ValueError, yaml.YAMLError) as error:
        yield f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _notebook(text: str) -> None:
    """Raise ValueError where a text is no notebook."""
    import nbformat  # takes longer than most disasters, and few leave a notebook

    try:
        nbformat.validate(nbformat.reads(text, as_version=4))
    except nbformat.ValidationError as error:
        raise ValueError(error.message) from None
