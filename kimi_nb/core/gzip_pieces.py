"""Unpack gzip piece by piece, up to where it was cut off or is damaged.

>>> import io
>>> b"".join(unpacked(io.BytesIO(gzip.compress(b"a log"))))
b'a log'
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import IO

MAGIC = b"\x1f\x8b"
_PIECE = 1 << 20  # bytes


def unpacked(reader: IO[bytes]) -> Iterator[bytes]:
    """Yield what a gzip file holds, a piece at a time.

    Raises:
        gzip.BadGzipFile: After the last good piece, if the file was cut off or is damaged.
    """
    machine, whole = zlib.decompressobj(zlib.MAX_WBITS | 16), False
    try:
        while piece := reader.read(_PIECE):
            while piece:
                whole = False
                yield machine.decompress(piece, _PIECE)
                piece = machine.unconsumed_tail
                if machine.eof:  # another may follow, or padding
                    piece = machine.unused_data.lstrip(b"\0")
                    machine, whole = zlib.decompressobj(zlib.MAX_WBITS | 16), True
    except zlib.error as error:
        raise gzip.BadGzipFile(f"it is damaged ({error})") from None
    if not whole:
        raise gzip.BadGzipFile("it was cut off before its end")
