"""Weights on a disk: complete, or what is missing of them.

    weights.faults(Path("/models/kimi-k2.5"))     # [] is good

Needs nothing but Python 3.9: a bundle carries this file as check_weights.py for its nodes, where it
is a command::

    python3 check_weights.py [--config-only] [--checksums] [--file NAME]... PLACE...
    python3 check_weights.py --where PLACE...     # the folder that is meant
    python3 check_weights.py --room GB PLACE...   # is there space for what is missing of GB?

Each PLACE is a pattern of folders, the first that is there counts. The exit code is 0 where all is
well, 1 for faults, and 3 where there is no such folder.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_INDEX = "model.safetensors.index.json"
_LARGEST_HEADER = 100 << 20  # the format's own limit, bytes
_NOWHERE = 3  # the exit code
# The file as it was before edit_quantization_target.py; its sum is the one that was published.
_BEFORE_EDIT = ".before-quantization-edit"
_SMALL = 64 << 20  # bytes up to which a file is always hashed where its sum is known


def find(places: Iterable[str]) -> Path | None:
    """The first folder that one of these patterns names, or None.

    Of several snapshots in a cache of huggingface_hub it is the one that the branch main means, as
    for an engine. ``~/.cache/huggingface`` is wherever HF_HOME says.
    """
    for place in places:
        found = sorted(Path(name) for name in glob.glob(_expanded(place)) if Path(name).is_dir())
        if found:
            main = found[0].parent.parent / "refs" / "main"
            named = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
            return next((path for path in found if path.name == named), found[-1])
    return None


def _expanded(place: str) -> str:
    home = os.environ.get("HF_HOME")
    if home and place.startswith("~/.cache/huggingface"):
        place = home + place[len("~/.cache/huggingface"):]
    return os.path.expanduser(place)


def room(places: Sequence[str]) -> tuple[int, int, str]:
    """Bytes that are there already, bytes that are free, and the folder that was looked at.

    What is there includes the parts of a download that was cut short.
    """
    bases = [Path(_expanded(place).split("/snapshots/")[0]) for place in places]
    there = 0
    for base in dict.fromkeys(bases):
        for parent, _, names in os.walk(base):
            there += sum(os.lstat(os.path.join(parent, name)).st_size for name in names)
    at = bases[0]
    while not at.is_dir():  # it may be made later
        at = at.parent
    return there, shutil.disk_usage(at).free, str(at)


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
        before = folder / (name + _BEFORE_EDIT)
        if before.is_file() and published(folder).get(name):
            path = before
        if path.is_file() and (every or _size(path) <= _SMALL):
            found = _sha256(path)
            if found != wanted:
                out.append(f"{name}: its SHA-256 is {found[:12]}..., the hub says "
                           f"{wanted[:12]}...")
    return out


def main(words: Sequence[str]) -> int:
    """The command; 0 where nothing is wrong."""
    words, needed = list(words), []
    while "--file" in words:
        at = words.index("--file")
        needed.append(words[at + 1])
        del words[at:at + 2]
    if "--room" in words:
        at = words.index("--room")
        return _room(int(words[at + 1] or 0), words[:at] + words[at + 2:])
    options = {word for word in words if word.startswith("--")}
    places = [word for word in words if word not in options]
    root = find(places)
    if root is None:
        print("not on this node, looked for " + " ".join(places))
        return _NOWHERE
    if "--where" in options:
        print(root)
        return 0
    if "--config-only" in options:
        wrong = [f"{name}: missing or empty" for name in ["config.json", *needed]
                 if not _size(root / name)]
    else:
        wrong = faults(root, needed)
    wrong = wrong or unequal(root, "--checksums" in options)
    if wrong:
        more = [f"and {len(wrong) - 5} more"] * (len(wrong) > 5)
        print(f"in {root}: " + "; ".join(wrong[:5] + more))
        return 1
    names = [path for path in root.glob("*") if path.is_file()]
    print(f"{len(names)} files in {root}, {sum(map(_size, names)):,} bytes, "
          f"{len(published(root))} checksums known"
          + (", all read" if "--checksums" in options else ""))
    return 0


def _room(gb: int, places: Sequence[str]) -> int:
    there, free, at = room(places)
    print(f"{gb} GB are wanted, {there / 1e9:.1f} GB are there, "
          f"{free / 1e9:.1f} GB are free in {at}")
    return int(there + free < gb * 1e9)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
