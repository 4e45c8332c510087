"""Write and read copies of plain values where Python keeps bytecode: in ``__pycache__``.

Whoever may write there may also write the modules that are imported. Nothing depends on a copy: one
that is missing, torn, or of another Python is made again, and a folder that cannot be written has
none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import sys
from pathlib import Path
from typing import Any

from kimi_nb.core import scratch


def read(path: Path, source: object) -> Any:
    """Return what was made for a path of ``source``; None if that is not what is kept."""
    try:
        kept, data = marshal.loads(_copy(path).read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        return None
    return data if kept == source else None


def keep(path: Path, source: Any, data: Any) -> None:
    """Keep ``data`` and the source of which it was made, unless Python is to write no copies."""
    if sys.dont_write_bytecode:
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


def _copy(path: Path) -> Path:
    """Return where the copy for a path lies: where the bytecode of a module beside it would lie."""
    module = importlib.util.cache_from_source(str(path.with_suffix(".py")))
    return Path(module).with_name(f"{path.name}.{sys.implementation.cache_tag}")
