"""What made a result: versions, commit, host, tables of the engines; hashes of plan and bundle.

fingerprint.of_program()       # {"package": "0.1.0", "commit": "be72d58...", "host": ...}
fingerprint.of_texts({"a.sh": "..."})      # twelve hex digits
"""

from __future__ import annotations

import functools
import hashlib
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kimi_nb import __version__
from kimi_nb.params import load as params

_SECONDS = 5.0  # for git


@functools.cache
def of_program() -> dict[str, str]:
    """This program on this machine. ``commit`` is "" where this is no checkout, and ends with
    "+" where files that git knows were changed; ``catalogs`` is a hash of the engines' tables."""
    tables = [
        (path.name, path.read_bytes())
        for path in sorted((params.PACKAGE / "data").glob("catalog-*.json"))
    ]
    return {
        "package": __version__,
        "commit": _commit(params.PACKAGE.parent),
        "python": sys.version.split()[0],
        "host": socket.gethostname(),
        "platform": platform.platform(terse=True),
        "catalogs": _digest(dict(tables)),
    }


def of_texts(texts: Mapping[str, str]) -> str:
    """Twelve hex digits that stand for files and what they hold."""
    return _digest({name: text.encode() for name, text in texts.items()})


def _digest(parts: Mapping[str, bytes]) -> str:
    total = hashlib.sha256()
    for name, data in sorted(parts.items()):
        total.update(f"{name} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()[:12]


def _commit(checkout: Path) -> str:
    if not (checkout / ".git").exists():
        return ""
    try:
        # Never waits for another git, and writes nothing.
        commit, changed = (
            subprocess.run(
                ["git", "--no-optional-locks", "-C", str(checkout), *words],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):
        return ""  # no git, or a checkout of somebody else
    return commit + ("+" if changed else "")
