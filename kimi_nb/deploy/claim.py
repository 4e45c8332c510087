"""Who has a site: one run at a time, said in a file that everybody can read.

    claim.take(folder / "claim", "run-1", "k2.5-h200-single")      # True: taken now
    claim.release(folder / "claim", "run-1")

The file is made whole and at once (a link to a finished one), which also holds on NFS. It is not
bound to a process: a run goes on when the program that started it has ended.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """The run that has the site, who started it, since when, with which plan."""

    run_id: str
    who: str
    since: str
    plan: str

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.who} since {self.since} ({self.plan})"


def holder(path: Path) -> Holder | None:
    """Who holds it; None where nobody does."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    return Holder(*[*lines, "", "", "", ""][:4])


def take(path: Path, run_id: str, plan: str) -> Holder | None:
    """Take it; None when it is ours now, `holder` when it is somebody's (perhaps ours: then it
    was taken before). Raises OSError where the folder cannot be written."""
    text = (
        "\n".join(
            [
                run_id,
                f"{_user()}@{socket.gethostname()}",
                time.strftime("%Y-%m-%d %H:%M:%S %z"),
                plan,
            ]
        )
        + "\n"
    )
    handle, name = tempfile.mkstemp(prefix=".claim.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.chmod(0o644)
        while True:
            with contextlib.suppress(FileExistsError):
                os.link(fresh, path)
                return None
            # Over NFS an answer may be lost: the link was made if there are two.
            if fresh.stat().st_nlink == 2:
                return None
            found = holder(path)
            if found is not None:
                return found
    finally:
        fresh.unlink(missing_ok=True)


def release(path: Path, run_id: str) -> bool:
    """Let it go where it is this run's; whether it was."""
    found = holder(path)
    if found is None or found.run_id != run_id:
        return False
    path.unlink(missing_ok=True)
    return True


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())
