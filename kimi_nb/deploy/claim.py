"""Claim a site for one run at a time, with a file that others can read, as far as the umask lets them.

Example::

    claim.take(folder / "claim", "run-1", "k2.5-h200-single")  # None: the claim is ours now
    claim.release(folder / "claim", "run-1")  # True: it was ours

The file is created atomically, as a hard link to a complete one, which also works on NFS. It is not
tied to a process, because a run continues after the program that started it has ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.core import fingerprint
from kimi_nb.core.errors import short


@dataclass(frozen=True)
class Holder:
    """The run that holds the site, who started it and when, and its plan."""

    run_id: str
    who: str
    since: str
    plan: str

    def __str__(self) -> str:
        run_id, who, since, plan = (
            short(one, 100) or "?" for one in (self.run_id, self.who, self.since, self.plan)
        )
        return f"run {run_id} of {who} since {since} ({plan})"


def holder(path: Path) -> Holder | None:
    """Return who holds the claim, or None."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    except PermissionError:
        return Holder("of somebody else", "another user, who lets nobody read it", "?", str(path))
    return Holder(*[*lines, "", "", "", ""][:4])


def take(path: Path, run_id: str, plan: str) -> Holder | None:
    """Take the claim; return None if it is ours now, else its holder.

    The holder may be the same run, if it took the claim earlier. Raises OSError if the folder
    cannot be written.
    """
    text = (
        "\n".join(
            [
                run_id,
                f"{fingerprint.user()}@{socket.gethostname()}",
                time.strftime("%Y-%m-%d %H:%M:%S %z"),
                plan,
            ]
        )
        + "\n"
    )
    fresh = path.parent / f".claim.{secrets.token_hex(8)}"
    # Who may read it is for the umask to say. O_EXCL goes through no link.
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        while True:
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
                return None
            # NFS may lose the answer: with a second link the call has succeeded.
            if fresh.stat().st_nlink == 2:
                return None
            found = holder(path)
            if found is not None:
                return found
    finally:
        fresh.unlink(missing_ok=True)


def release(path: Path, run_id: str) -> bool:
    """Release the claim if this run holds it, and return whether it did."""
    found = holder(path)
    if found is None or found.run_id != run_id:
        return False
    path.unlink(missing_ok=True)
    return True
