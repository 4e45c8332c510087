"""Name the scratch file that is written before it takes the place of another.

A writer that is killed leaves its scratch file; the next one of the same file removes it::

    new = scratch.beside(path)  # .NAME.PID.new
    try:
        scratch.write(new, text)
        new.replace(path)
    finally:
        scratch.remove(new)
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import BinaryIO

# Seconds: the process that writes on another machine of a shared disk is none of this one.
_FRESH = 60.0
_FORGOTTEN = 3600.0  # whoever writes, writes more often than that
_NAME = 240  # bytes of a name, which can have 255; the rest is what is put around it


def beside(path: Path) -> Path:
    """Return this process's scratch file for a path, once those of dead writers are removed."""
    mine = os.fsdecode(os.fsencode(path.name)[:_NAME])
    kept = re.compile(rf"\.{re.escape(mine)}\.([1-9][0-9]{{0,8}})\.new")
    with contextlib.suppress(OSError):  # no folder yet, or one that cannot be read or written
        for name in os.listdir(path.parent):
            found = kept.fullmatch(name)
            if found and _abandoned(path.with_name(name), int(found[1])):
                path.with_name(name).unlink()
    return path.with_name(f".{mine}.{os.getpid()}.new")


def opened(new: Path, mode: int = 0o600) -> BinaryIO:
    """Create a scratch file in the place of what is there; only this user can read it.

    With another ``mode`` it has what the umask leaves of that. Raises OSError. What is written goes
    through no link that another user laid there.
    """
    new.unlink(missing_ok=True)
    return os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")


def write(new: Path, text: str, errors: str = "strict", *, sync: bool = False) -> None:
    """Write a text to a scratch file, with the mode that the umask leaves. Raises OSError.

    ``errors`` says what is done with what UTF-8 does not hold. With ``sync`` it is on the disk, also
    where the machine stops.
    """
    with opened(new, 0o666) as file:
        file.write(text.encode("utf-8", errors))
        if sync:
            file.flush()
            os.fsync(file.fileno())


def remove(new: Path) -> None:
    """Remove a scratch file that is still there, if the disk still takes changes."""
    with contextlib.suppress(OSError):
        new.unlink(missing_ok=True)


def _abandoned(path: Path, pid: int) -> bool:
    """Return whether the process that wrote a scratch file has ended, some time ago.

    In a container, its number may be that of another process by now.
    """
    age = time.time() - path.lstat().st_mtime
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return age > _FRESH
    except OSError:
        pass  # it is somebody else's
    return age > _FORGOTTEN
