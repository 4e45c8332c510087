"""Identify what produced a result: versions, commit, host, and hashes of catalogs and files.

>>> of_texts({"a.sh": "echo"})  # twelve hexadecimal digits
'b45ae67b2078'
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from kimi_nb import __version__
from kimi_nb.core import paths

_SECONDS = 5.0  # for git
# The keys of `of_program`.
OF_PROGRAM = ("package", "commit", "python", "host", "platform", "catalogs")


@functools.cache
def of_program() -> dict[str, str]:
    """Return what identifies this program on this machine.

    ``commit`` is "" outside of a git checkout and ends with "+" if tracked files were changed;
    ``catalogs`` is a hash of the engines' flag tables.
    """
    tables = [
        (path.name, path.read_bytes()) for path in sorted((paths.DATA / "catalog").glob("*.json"))
    ]
    return {
        "package": __version__,
        "commit": _commit(paths.PACKAGE.parent),
        "python": sys.version.split()[0],
        "host": socket.gethostname(),
        "platform": platform.platform(terse=True),
        "catalogs": _digest(dict(tables)),
    }


def user() -> str:
    """Return the name of who runs this process, or the number of a user without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # as in some containers
        return str(os.getuid())


def of_texts(texts: Mapping[str, str]) -> str:
    """Return twelve hexadecimal digits that identify files by their names and contents."""
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
        # Without optional locks git neither waits for another git nor writes to the checkout.
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
        return ""  # no git, or a checkout that another user owns
    return commit + ("+" if changed else "")
