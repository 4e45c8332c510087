"""Keep what the project's own YAML files say beside them, as Python keeps bytecode.

Parsing YAML takes a tenth of a short command. A copy lies in ``__pycache__`` next to its file and
holds the source as well: it counts only where the source is the same, byte for byte. Whoever may
write there may also write the modules that are imported. Nothing depends on a copy: one that is
missing, torn, or of another Python is made again, and a folder that cannot be written has none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import sys
from pathlib import Path
from typing import Any

from kimi_nb.core import paths, scratch


def read(path: Path, source: bytes) -> Any:
    """Return what a file says whose bytes are ``source``; None if no copy of it is kept."""
    if not _ours(path):
        return None
    try:
        kept, data = marshal.loads(_copy(path).read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return data if kept == source else None


def keep(path: Path, source: bytes, data: Any) -> None:
    """Keep what a file says, unless it is not the project's own or Python is to write no copies."""
    if sys.dont_write_bytecode or not _ours(path):
        return
    with contextlib.suppress(OSError, ValueError):  # ValueError: a value that marshal does not know
        content = marshal.dumps((source, data))
        copy = _copy(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        new = scratch.beside(copy)
        try:
            with scratch.opened(new) as file:
                file.write(content)
            new.replace(copy)
        finally:
            scratch.remove(new)


def _ours(path: Path) -> bool:
    return path.is_relative_to(paths.DATA) or path.is_relative_to(paths.root() / "params")


def _copy(path: Path) -> Path:
    """Return where the copy of a file lies: where the bytecode of a module beside it would lie."""
    module = importlib.util.cache_from_source(str(path.with_suffix(".py")))
    return Path(module).with_name(f"{path.name}.{sys.implementation.cache_tag}")
