"""What a run came to, on one page that opens anywhere.

report.write(Path("runs/20260101T000000Z-k2.5-a3"))      # .../report.html
report.collect(folder).as_dict()                         # the same as plain values
"""

from __future__ import annotations

import os
from pathlib import Path

from kimi_nb.core import evidence
from kimi_nb.core import known_secrets as secrecy
from kimi_nb.report.collect import Report, collect

FILE = "report.html"

__all__ = ["FILE", "Report", "collect", "write"]


def write(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run's folder into it (or to ``out``) and return where it stands.
    Raises WriteError."""
    from kimi_nb.report import page  # jinja2 is loaded for a page only

    found = collect(folder)
    target = out or folder / FILE
    base = os.path.relpath(folder.resolve(), target.parent.resolve())
    evidence.write_text(target, secrecy.text(page.html(found, base)))
    return target
