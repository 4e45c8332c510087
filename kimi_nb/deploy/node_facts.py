"""Read what a node tells of itself: lines of a small grammar, and nothing else.

>>> program("ended 137, and left processes behind")
Program(runs=False, code=137)
>>> log("../.bashrc 0 aGk=")
Traceback (most recent call last):
  ...
ValueError: a log is wanted as NAME.log BYTES BASE64

What comes from a node is written by a stranger: it may name files of this machine, and never end.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass

PIECE = 262144  # bytes of a log, or of a script, in one line (as in node.sh)
LOGS = 512  # logs of one node: more than any has ranks
_LOG = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.log) (?P<begin>[0-9]{1,15}) (?P<data>\S*)", re.ASCII
)
_FILE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{0,99}) (?P<data>\S*)", re.ASCII)
_PROGRAM = re.compile(r"runs|ended (?P<code>[0-9]{1,3})(?:, .*)?", re.ASCII)
_LOOK = re.compile(r"(?P<code>[0-9]{1,3}) (?P<data>\S*)", re.ASCII)
_KB = re.compile(r"[0-9]{1,12}", re.ASCII)


@dataclass(frozen=True)
class Program:
    """What a node runs: whether it still does, and its exit code if not."""

    runs: bool
    code: int = 0


@dataclass(frozen=True)
class Piece:
    """A piece of a log: its name, without a folder; where it begins, in bytes; its bytes."""

    name: str
    begin: int
    data: bytes


def log(text: str) -> Piece:
    """Return a piece of a log. Raises ValueError for anything else."""
    found = _LOG.fullmatch(text)
    if found is None:
        raise ValueError("a log is wanted as NAME.log BYTES BASE64")
    return Piece(found["name"], int(found["begin"]), _bytes(found["data"]))


def file(text: str) -> tuple[str, bytes]:
    """Return the name, without a folder, and the bytes of a script. Raises ValueError."""
    found = _FILE.fullmatch(text)
    if found is None:
        raise ValueError("a file is wanted as NAME BASE64")
    return found["name"], _bytes(found["data"])


def program(text: str) -> Program:
    """Return the state of the engines or of the router. Raises ValueError."""
    found = _PROGRAM.fullmatch(text)
    if found is None or int(found["code"] or 0) > 255:
        raise ValueError("a state is wanted as runs, or ended CODE")
    return Program(found["code"] is None, int(found["code"] or 0))


def look(text: str) -> tuple[int, bytes]:
    """Return the exit code and the output of a look. Raises ValueError."""
    found = _LOOK.fullmatch(text)
    if found is None:
        raise ValueError("a look is wanted as CODE BASE64")
    return int(found["code"]), _bytes(found["data"])


def kilobytes(text: str) -> int:
    """Return a size of memory in KB. Raises ValueError."""
    if not _KB.fullmatch(text):
        raise ValueError("a number of KB is wanted")
    return int(text)


def _bytes(text: str) -> bytes:
    if len(text) > (PIECE + 2) // 3 * 4:
        raise ValueError(f"at most {PIECE} bytes are wanted")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("base64 is wanted") from None
