"""What was done and seen, line by line: append-only JSON, on the disk before the next step."""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from kimi_nb.errors import WriteError

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
    entry = {"time": now(), "stage": stage, **facts}
    line = json.dumps(entry, ensure_ascii=False, default=str) + "\n"
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
        raise WriteError(f"{error.filename or path}: cannot be written: {error.strerror}. Choose "
                         "another run_dir or mend its permissions.") from None
    return entry


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
