"""Redact files of any size in place: a window at a time, in bounded memory and linear time.

Example::

    redacted_files.redact(Path("rank0.log"), ["the key"])  # True: something was redacted

A file keeps its length. UTF-16 is read by its byte order mark, and gzip is unpacked and packed
again.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from kimi_nb.core import gzip_pieces, redaction, scratch, secret_forms

BLOCK = 1 << 20  # characters of a window whose secrets are replaced
_AFTER = 4 * secret_forms.LONGEST  # characters behind it, in which they may end
_BEFORE = 1024  # characters before it, where the name of a value may stand
_GOES_ON = re.compile(secret_forms.VALUE + rb"*")
_OTHER = 0xFF  # stands for each character of UTF-16 that is not in Latin-1


def redact(path: Path, values: Sequence[str], begin: int = 0) -> bool:
    """Redact a file from byte ``begin`` on, and return whether anything was redacted.

    What is no regular file, or cannot be written, is left as it is.
    """
    try:
        # Never follow a link or open a socket or a pipe.
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        with path.open("rb") as reader:
            head = reader.read(1024)
        if head[:2] == gzip_pieces.MAGIC:
            return _packed(path, values)
        with path.open("r+b") as file:
            return _Windows(file, values, _order(head)).redact(begin)
    except OSError:
        return False


def _order(head: bytes) -> str:
    """Return the byte order of UTF-16, by its mark and its many zeros; "" for other files."""
    order = {b"\xff\xfe": "little", b"\xfe\xff": "big"}.get(head[:2], "")
    return order if head.count(0) * 8 > len(head) else ""


class _Windows:
    """A file, seen as characters of one or two bytes."""

    def __init__(self, file: BinaryIO, values: Sequence[str], order: str) -> None:
        self._file, self._order, self._unit = file, order, 2 if order else 1
        self._values = tuple(map(_narrow, values)) if order else tuple(values)

    def redact(self, begin: int) -> bool:
        """Redact from byte ``begin`` on."""
        at, changed = begin // self._unit, False
        while True:
            lead = min(_BEFORE, at)
            window = self._read(at - lead, lead + BLOCK + _AFTER)
            whole = len(window) < lead + BLOCK + _AFTER
            for first, end in redaction.spans(window, self._values):
                # What begins later is left to the next window, which sees where it ends.
                if lead <= first < lead + BLOCK or (whole and first >= lead):
                    self._write(at - lead + first, redaction.filling(end - first))
                    changed = True
                    if end == len(window) and not whole:
                        self._go_on(at - lead + end)
            if whole:
                return changed
            at += BLOCK

    def _go_on(self, at: int) -> None:
        """Fill the rest of a value that is longer than a window."""
        while window := self._read(at, BLOCK):
            found = _GOES_ON.match(window)
            length = found.end() if found else 0
            self._write(at, b"*" * length)
            at += length
            if length < len(window):
                return

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(at * self._unit)
        raw = self._file.read(length * self._unit)
        if not self._order:
            return raw
        low, high = (raw[0::2], raw[1::2]) if self._order == "little" else (raw[1::2], raw[0::2])
        return _one_byte_each(low, high)

    def _write(self, at: int, data: bytes) -> None:
        self._file.seek(at * self._unit)
        if self._order:
            data = data.decode("ascii").encode(
                "utf-16-le" if self._order == "little" else "utf-16-be"
            )
        self._file.write(data)


def _narrow(value: str) -> str:
    """Return a value as its characters are seen in UTF-16; what is no UTF-8 is escaped."""
    raw = value.encode("utf-16-le", "surrogatepass")
    return _one_byte_each(raw[0::2], raw[1::2]).decode("utf-8", "surrogateescape")


def _one_byte_each(low: bytes, high: bytes) -> bytes:
    if not any(high):
        return low
    return bytes(_OTHER if more else one for one, more in zip(low, high, strict=False))


def _packed(path: Path, values: Sequence[str]) -> bool:
    """Redact a gzip file; of one that was cut off, what can be read is kept."""
    with tempfile.TemporaryFile(dir=path.parent) as plain:
        with path.open("rb") as reader, contextlib.suppress(gzip.BadGzipFile):
            plain.writelines(gzip_pieces.unpacked(reader))
        plain.seek(0)
        if not _Windows(plain, values, _order(plain.read(1024))).redact(0):
            return False
        plain.seek(0)
        mode = stat.S_IMODE(path.stat().st_mode)
        fresh = scratch.beside(path)
        try:
            with (
                scratch.opened(fresh) as packed,
                gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as writer,
            ):
                shutil.copyfileobj(plain, writer, BLOCK)
            fresh.chmod(mode)
            fresh.replace(path)
        finally:
            scratch.remove(fresh)
    return True
