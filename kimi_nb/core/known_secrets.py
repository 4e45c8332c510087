"""What this process must not write down: the values behind the names of secrets.

    secrecy.name(plan.secrets.values())     # names of environment variables
    secrecy.text("... the value ...")       # "... [redacted] ..."
    secrecy.folder(Path("runs/..."))        # the files of a folder, in place

Secrets are known by the names of their variables: those that a site names, and those whose names
say it. Whatever this package writes into the folder of a run goes through here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kimi_nb.core import redaction as redact

_SAYS_SO = re.compile(
    r"(?i)(?:^|_)(?:token|api_?key|access_?key|secret|password|passwd|"
    r"credentials?)$|secret_access_key$"
)
_LARGEST = 64 << 20  # bytes of a file that is looked through
_names: set[str] = set()


def name(names: Iterable[str]) -> None:
    """Keep in mind that these variables of the environment hold secrets."""
    _names.update(filter(None, names))


def values() -> tuple[str, ...]:
    """The values that are known now."""
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
    """A text that may be written down."""
    return redact.text(given, values())


def value(given: Any) -> Any:
    """Plain values that may be written down."""
    return redact.value(given, values())


def data(given: bytes) -> bytes:
    """Bytes that may be written down."""
    return redact.data(given, values())


def file(path: Path, begin: int = 0) -> bool:
    """Redact a file in place, from a byte on; whether there was something. Its length stays, so
    that also a log can be redacted that somebody goes on writing."""
    try:
        # Never through a link, and never a socket or a pipe.
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
            if len(after) != len(before):  # gzip
                writer.truncate()
    except OSError:
        return False
    return True


def folder(root: Path, *, skip: Iterable[str] = ()) -> int:
    """Redact every file below a folder in place, but not below sub-folders of the names to
    ``skip``; how many held something."""
    left_out, found = set(skip), 0
    for place, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one not in left_out]
        found += sum(file(Path(place, one)) for one in files)
    return found
