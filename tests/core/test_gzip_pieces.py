"""Gzip is unpacked piece by piece, and what can be read comes before the fault is told."""

from __future__ import annotations

import gzip
import io
import random

import pytest

from kimi_nb.core import gzip_pieces

MB = 1024 * 1024
# Random bytes stay as many when they are packed; zeros become a thousandth.
NOISE = random.Random(7).randbytes(MB + 100)
TWO = gzip.compress(b"one ", mtime=0) + gzip.compress(b"two", mtime=0)


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (gzip.compress(b"a log"), b"a log"),
        (gzip.compress(b""), b""),
        (TWO, b"one two"),
        (TWO + b"\0" * 512, b"one two"),
        (gzip.compress(b"one ", mtime=0) + b"\0\0" + gzip.compress(b"two"), b"one two"),
        (gzip.compress(bytes(3 * MB + 1)), bytes(3 * MB + 1)),
        (gzip.compress(NOISE, 1), NOISE),
    ],
    # Packed data tells the second of packing, and each worker collects in one of its own.
    ids=["one", "empty", "two", "two, zeros", "zeros between", "zeros packed", "noise"],
)
def test_what_was_packed(packed, plain):
    assert b"".join(gzip_pieces.unpacked(io.BytesIO(packed))) == plain


def test_no_piece_is_larger_than_one_megabyte():
    pieces = list(map(len, gzip_pieces.unpacked(io.BytesIO(gzip.compress(bytes(3 * MB + 1))))))
    assert max(pieces) == MB and sum(pieces) == 3 * MB + 1


def test_a_megabyte_is_read_at_a_time():
    asked = []

    class Reader(io.BytesIO):
        def read(self, size=-1):
            asked.append(size)
            return super().read(size)

    list(gzip_pieces.unpacked(Reader(gzip.compress(NOISE, 1))))
    assert asked == [MB, MB, MB]  # the third finds the end


def kept(packed: bytes) -> tuple[bytes, str]:
    """What comes before the fault, and what the fault says."""
    out = []
    with pytest.raises(gzip.BadGzipFile) as told:
        out.extend(gzip_pieces.unpacked(io.BytesIO(packed)))
    return b"".join(out), str(told.value)


CUT = "it was cut off before its end"


def test_what_was_cut_off_is_kept_and_told():
    whole = gzip.compress(NOISE, 0)
    plain, told = kept(whole[:-1])
    assert (plain, told) == (NOISE, CUT)
    assert kept(b"") == (b"", CUT)
    assert kept(TWO[:-8]) == (b"one two", CUT)
    assert kept(TWO + gzip_pieces.MAGIC) == (b"one two", CUT)


def test_what_is_damaged_is_told():
    plain, told = kept(TWO + b"no gzip")
    assert plain == b"one two" and told.startswith("it is damaged (Error -3 while decompressing")
    assert kept(b"plain text")[1].endswith("incorrect header check)")
