"""Redact the secrets that this process knows: the values of its secret environment variables.

A variable is secret if its name says so (``..._TOKEN``, ``..._API_KEY``) or if a site file names
it. Everything that the package writes into the folder of a run goes through this module::

    known_secrets.name(plan.secrets.values())  # names of environment variables
    known_secrets.text("... the value ...")  # "... [redacted] ..."
    known_secrets.folder(Path("runs/..."))  # redacts the files of a folder in place
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kimi_nb.core import redacted_files, redaction, secret_forms

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
                if value.strip() and (key in _names or secret_forms.is_secret_variable(key))
            }
        )
    )


def text(given: str) -> str:
    """Return a text with secrets redacted."""
    return redaction.text(given, values())


def value(given: Any) -> Any:
    """Return plain values with secrets redacted."""
    return redaction.value(given, values())


def file(path: Path, begin: int = 0) -> bool:
    """Redact a file of any size in place, from byte ``begin`` on; return whether it was changed.

    The length of the file stays the same, so that a log can be redacted while another process
    appends to it. (Only gzip files, which are rewritten, may change their length.)
    """
    return redacted_files.redact(path, values(), begin)


def folder(root: Path, *, skip: Iterable[str] = ()) -> int:
    """Redact every file below a folder in place and return how many files contained secrets.

    Subfolders whose name is in ``skip`` are left alone.
    """
    left_out, found = set(skip), 0
    for place, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one not in left_out]
        found += sum(file(Path(place, one)) for one in files)
    return found
