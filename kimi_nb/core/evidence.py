"""Record what was done and observed as append-only JSON lines.

Each line is on disk before the next step begins and contains no secrets.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
from pathlib import Path
from typing import Any

from kimi_nb.core import known_secrets, scratch
from kimi_nb.core.errors import WriteError

FILE = "evidence.jsonl"
FORM = "%Y%m%dT%H%M%SZ"  # of a time


def now() -> str:
    """Return the UTC time to the second, as used in evidence and in the names of runs."""
    return datetime.datetime.now(datetime.UTC).strftime(FORM)


def record(folder: Path, stage: str, *, file: str = FILE, **facts: Any) -> dict[str, Any]:
    """Append one line to the evidence of a folder, flush it to disk and return it as a dict.

    ``file`` is the name of the file of JSON lines in the folder. The line is written with a single
    call in append mode, because several notebooks may share the file. Raises WriteError if the
    folder cannot be written.
    """
    plain = json.loads(json.dumps(facts, ensure_ascii=False, default=str))
    entry = {"time": now(), "stage": stage, **known_secrets.value(plain)}
    line = _encoded(entry)
    path = folder / file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Through a link, the line would go into a file that somebody else has chosen.
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            size = os.fstat(handle).st_size
            # A line that a crash has cut off must not swallow this one.
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            _append(handle, (b"\n" if torn else b"") + line)
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise WriteError(
                f"{path}: is a symbolic link, through which no evidence is written. Remove it, or "
                "choose another run_dir."
            ) from None
        raise WriteError(
            f"{error.filename or path}: cannot be written: {error.strerror}. Choose "
            "another run_dir or mend its permissions."
        ) from None
    return entry


def _encoded(facts: Any, indent: int | None = None) -> bytes:
    """Return values as JSON, with half a surrogate pair escaped, which UTF-8 cannot hold."""
    text = json.dumps(facts, indent=indent, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def _append(handle: int, data: bytes) -> None:
    """Append all of the bytes, or none of them where the disk is full. Raises OSError."""
    written = os.write(handle, data)
    try:
        # A disk that fills up takes a part, and says so only when it is asked to take the rest.
        while written < len(data):
            written += os.write(handle, data[written:])
    except OSError:
        end = os.lseek(handle, 0, os.SEEK_CUR)
        if os.fstat(handle).st_size == end:  # nobody has appended to it since
            os.ftruncate(handle, end - written)
        raise


def write_json(path: Path, facts: Any) -> None:
    """Write plain values to a JSON file atomically, with secrets redacted. Raises WriteError."""
    plain = known_secrets.value(json.loads(json.dumps(facts, default=str)))
    write_text(path, _encoded(plain, 1).decode())


def write_text(path: Path, text: str) -> None:
    """Write text to a file atomically. Raises WriteError."""
    new = scratch.beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write(new, text, "surrogateescape")
        new.replace(path)
    except OSError as error:
        raise WriteError(
            f"{path}: cannot be written: {error.strerror}. Choose another run_dir or "
            "mend its permissions."
        ) from None
    finally:
        # Gone once it has its name; a disk that is read-only has none of it.
        with contextlib.suppress(OSError):
            new.unlink()


def read(folder: Path, file: str = FILE) -> list[dict[str, Any]]:
    """Return all entries of a folder, oldest first.

    A line that is no entry, as one that a crash cut off, is skipped.
    """
    entries = []
    try:
        text = (folder / file).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
