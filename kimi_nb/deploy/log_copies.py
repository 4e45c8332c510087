"""Keep the copy of a log that begins anew beside the new one.

    if not log_copies.set_aside(path):  # NAME.log becomes NAME.1.before
        ...  # there are `MOST` of them already

A log begins anew where a program, a node or a pod was started again, or where a stranger says so.
"""

from __future__ import annotations

from pathlib import Path

MOST = 100  # copies of one log that are kept


def set_aside(path: Path) -> bool:
    """Rename the copy of an earlier log; return whether there was room for one more."""
    names = (path.with_name(f"{path.stem}.{at}.before") for at in range(1, MOST + 1))
    kept = next((name for name in names if not name.exists()), None)
    if kept is not None:
        path.rename(kept)
    return kept is not None
