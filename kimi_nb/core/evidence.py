"""What was done and seen, line by line: append-only JSON, on the disk before the next step, and
without secrets."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from kimi_nb.core import known_secrets as secrecy
from kimi_nb.core.errors import WriteError

FILE = "evidence.jsonl"


def now() -> str:
    """UTC to the second, as it stands in evidence and in the names of runs."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")


def record(folder: Path, stage: str, *, file: str = FILE, **facts: Any) -> dict[str, Any]:
    """Append one line to the folder's evidence (or another ``file`` of lines in it) and force it
    to the disk.

    One write of a whole line in append mode: several notebooks may share a file. Raises
    WriteError where the folder cannot be written.
    """
    plain = json.loads(json.dumps(facts, ensure_ascii=False, default=str))
    entry = {"time": now(), "stage": stage, **secrecy.value(plain)}
    line = json.dumps(entry, ensure_ascii=False) + "\n"
    path = folder / file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise WriteError(
            f"{error.filename or path}: cannot be written: {error.strerror}. Choose "
            "another run_dir or mend its permissions."
        ) from None
    return entry


def write_json(path: Path, facts: Any) -> None:
    """Put plain values without secrets into a file, whole or not at all. Raises WriteError."""
    plain = secrecy.value(json.loads(json.dumps(facts, default=str)))
    write_text(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Put a text into a file, whole or not at all. Raises WriteError."""
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8", errors="surrogateescape")
        new.replace(path)
    except OSError as error:
        raise WriteError(
            f"{path}: cannot be written: {error.strerror}. Choose another run_dir or "
            "mend its permissions."
        ) from None


def read(folder: Path, file: str = FILE) -> list[dict[str, Any]]:
    """All entries of a folder, oldest first; a line cut off by a crash is left out."""
    entries = []
    try:
        text = (folder / file).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    for line in text.splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries
