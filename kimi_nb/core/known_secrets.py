"""Redact the secrets that this process knows: the values of its secret environment variables.

A variable is secret if its name says so (``..._TOKEN``, ``..._API_KEY``) or if a site file names
it. Everything that the package writes into the folder of a run goes through this module::

    known_secrets.name(plan.secrets.values())  # names of environment variables
    known_secrets.text("... the value ...")  # "... [redacted] ..."
    known_secrets.folder(Path("runs/..."))  # redacts the files of a folder in place
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kimi_nb.core import redaction

_SAYS_SO = re.compile(
    r"(?i)(?:^|_)(?:token|api_?key|access_?key|secret|password|passwd|"
    r"credentials?)$|secret_access_key$"
)
_LARGEST = 64 << 20  # bytes; larger files are not searched
_names: set[str] = set()


def name(names: Iterable[str]) -> None:
    """Register environment variables as secret, by name."""
    _names.update(filter(None, names))


def values() -> tuple[str, ...]:
    """Return the values of all variables that are known to be secret."""
    return tuple(
        sorted(
            {
                value
                for key, value in os.environ.items()
                if value.strip() and (key in _names or _SAYS_SO.search(key))
            }
        )
    )


def text(given: str) -> str:
    """Return a text with secrets redacted."""
    return redaction.text(given, values())


def value(given: Any) -> Any:
    """Return plain values with secrets redacted."""
    return redaction.value(given, values())


def data(given: bytes) -> bytes:
    """Return bytes with secrets redacted."""
    return redaction.data(given, values())


def file(path: Path, begin: int = 0) -> bool:
    """Redact a file in place, from byte ``begin`` on, and return whether anything was redacted.

    The length of the file stays the same, so that a log can be redacted while another process
    appends to it. (Only gzip files, which are rewritten, may change their length.)
    """
    try:
        # Never follow a link or open a socket or a pipe.
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_size - begin > _LARGEST:
            return False
        with path.open("rb") as reader:
            reader.seek(begin)
            before = reader.read()
        after = data(before)
        if after == before:
            return False
        with path.open("r+b") as writer:
            writer.seek(begin)
            writer.write(after)
            if len(after) != len(before):  # only gzip changes the length
                writer.truncate()
    except OSError:
        return False
    return True


def folder(root: Path, *, skip: Iterable[str] = ()) -> int:
    """Redact every file below a folder in place and return how many files contained secrets.

    Subfolders whose name is in ``skip`` are left alone.
    """
    left_out, found = set(skip), 0
    for place, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one not in left_out]
        found += sum(file(Path(place, one)) for one in files)
    return found
