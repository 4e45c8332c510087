"""Keep what the project's own YAML files say beside them, as Python keeps bytecode.

Parsing YAML takes a tenth of a short command. A copy lies in ``__pycache__`` next to its file and
holds the source as well: it counts only where the source is the same, byte for byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kimi_nb.core import compiled_copies, paths


def read(path: Path, source: bytes) -> Any:
    """Return what a file says whose bytes are ``source``; None if no copy of it is kept."""
    return compiled_copies.read(path, source) if _ours(path) else None


def keep(path: Path, source: bytes, data: Any) -> None:
    """Keep what a file says, if it is the project's own."""
    if _ours(path):
        compiled_copies.keep(path, source, data)


def _ours(path: Path) -> bool:
    return path.is_relative_to(paths.DATA) or path.is_relative_to(paths.root() / "params")
