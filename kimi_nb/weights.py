"""Weights on a disk: complete, or what is missing of them.

    weights.faults(Path("/models/kimi-k2.5"))     # [] is good
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path

_INDEX = "model.safetensors.index.json"
_LARGEST_HEADER = 100 << 20  # the format's own limit, bytes


def faults(folder: Path, needed: Iterable[str] = ()) -> list[str]:
    """What is wrong with a checkpoint, a sentence each: files that are missing or empty, and
    shards that are cut short (each file's header says how long it must be).

    ``needed`` are further files by name. Reads headers only, never tensors.
    """
    if not folder.is_dir():
        return [f"{folder}: no such folder"]
    out = [f"{name}: missing or empty" for name in dict.fromkeys(["config.json", *needed])
           if not _size(folder / name)]
    index = folder / _INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(weight_map.values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return [*out, f"{_INDEX}: not readable as an index ({error})"]
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
        if not names:
            return [*out, f"{_INDEX}: missing, and there is no *.safetensors file"]
    return out + [fault for name in names if (fault := _shard(folder / name))]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _shard(path: Path) -> str:
    """The fault of one safetensors file, or "". The format: 8 bytes of header length, the
    header as JSON with the offsets of every tensor, the tensors."""
    size = _size(path)
    if not size:
        return f"{path.name}: missing or empty"
    try:
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            if not 2 <= length <= min(_LARGEST_HEADER, size):
                return f"{path.name}: its header is damaged"
            header = json.loads(file.read(length))
    except (OSError, ValueError, struct.error):
        return f"{path.name}: its header is damaged"
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    wanted = 8 + length + max(ends, default=0)
    return "" if size == wanted else f"{path.name}: {size:,} bytes, {wanted:,} are wanted"
