"""Read files that others wrote, up to a bound: what is larger, or no file, is an OSError.

The message says which it is, so that a caller tells it as any other file that cannot be read::

    try:
        raw = bounded_files.read(path, 1 << 20)
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}.") from None
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def read(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file that has at most ``most`` of them. Raises OSError."""
    # A pipe that nobody writes into would never be opened.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        raw = file.read(most + 1)
    if len(raw) > most:
        raise _too_large(path, f"larger than {most >> 20} MB")
    return raw


def lines(path: Path, most: int, longest: int = 1 << 20) -> Iterator[str]:
    """Yield the lines of a file or pipe with their ends, as UTF-8 (with or without its mark).

    Raises OSError for more than ``most`` bytes in all or ``longest`` in a line, and
    UnicodeDecodeError for what is no text.
    """
    left, mark = most, "utf-8-sig"
    with path.open("rb") as file:
        while line := file.readline(longest + 1):
            left -= len(line)
            if len(line) > longest:
                raise _too_large(path, f"a line is larger than {longest >> 10} KB")
            if left < 0:
                raise _too_large(path, f"larger than {most >> 20} MB")
            yield line.decode(mark)
            mark = "utf-8"


def _too_large(path: Path, why: str) -> OSError:
    return OSError(errno.EFBIG, why, str(path))
