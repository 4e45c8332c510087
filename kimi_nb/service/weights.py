"""Weights on a disk: complete, or what is missing of them.

    weights.faults(Path("/models/kimi-k2.5"))     # [] is good

Needs nothing but Python 3.9: a bundle carries this file as check_weights.py for its nodes, where it
is a command: ``python3 check_weights.py [--config-only] [--checksums] FOLDER [FILE...]``.
"""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_INDEX = "model.safetensors.index.json"
_LARGEST_HEADER = 100 << 20  # the format's own limit, bytes
_SMALL = 64 << 20  # bytes up to which a file is always hashed where its sum is known


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


def published(folder: Path) -> dict[str, str]:
    """The SHA-256 sums that the hub gave with the files, by name; where it gave none, none.

    In the cache of huggingface_hub each file is a link to a blob that is named by its sum; beside
    a folder of ``hf download --local-dir`` the sum stands in .cache/huggingface/download.
    """
    sums = {}
    for path in folder.iterdir():
        if path.is_symlink():
            sums[path.name] = path.readlink().name
    for path in (folder / ".cache" / "huggingface" / "download").glob("*.metadata"):
        lines = path.read_text(encoding="utf-8", errors="replace").split()
        sums[path.name.removesuffix(".metadata")] = lines[1] if len(lines) > 1 else ""
    return {name: sum_ for name, sum_ in sums.items() if re.fullmatch("[0-9a-f]{64}", sum_)}


def _sha256(path: Path) -> str:
    import hashlib  # here: most calls hash nothing, and every node would wait for it

    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):  # file_digest is newer than what nodes have
            found.update(piece)
    return found.hexdigest()


def unequal(folder: Path, every: bool = False) -> list[str]:
    """Files whose content is not what the hub published, a sentence each. ``every``: the large
    ones too, which takes as long as reading them."""
    out = []
    for name, wanted in sorted(published(folder).items()):
        path = folder / name
        if path.is_file() and (every or _size(path) <= _SMALL):
            found = _sha256(path)
            if found != wanted:
                out.append(f"{name}: its SHA-256 is {found[:12]}..., the hub says "
                           f"{wanted[:12]}...")
    return out


def main(words: Sequence[str]) -> int:
    """The command; 0 where nothing is wrong."""
    options = {word for word in words if word.startswith("--")}
    folder, *needed = (word for word in words if word not in options)
    root = Path(folder)
    if "--config-only" in options:
        wrong = [f"{name}: missing or empty" for name in ["config.json", *needed]
                 if not _size(root / name)]
    else:
        wrong = faults(root, needed)
    wrong = wrong or unequal(root, "--checksums" in options)
    if wrong:
        print("; ".join(wrong[:5] + [f"and {len(wrong) - 5} more"] * (len(wrong) > 5)))
        return 1
    names = [path for path in root.glob("*") if path.is_file()]
    print(f"{len(names)} files, {sum(map(_size, names)):,} bytes, "
          f"{len(published(root))} checksums known"
          + (", all read" if "--checksums" in options else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
