"""Files that may be missing, cut off, or another's: read as far as they go, and say what not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "report.html"  # the page, in a run's folder; the executed notebook stands beside it
NOTEBOOK = "11_report"
LIMITS = "limits.json"  # the limits under the measurements of a plan, in its folder
_LARGEST = 64 << 20  # bytes of a file that is read


class Gaps(list[str]):
    """Sentences on what could not be read."""

    def say(self, text: str) -> None:
        """Once for each."""
        if text not in self:
            self.append(text)


def is_file(path: Path) -> bool:
    """Whether there is such a file; none where no file can have the name."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def text(path: Path, gaps: Gaps, root: Path) -> str:
    """Return the text of a file that is there; "" where it cannot be read."""
    name = path.relative_to(root)
    try:
        if path.stat().st_size > _LARGEST:
            gaps.say(f"{name}: is larger than {_LARGEST >> 20} MB and was not read.")
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        gaps.say(f"{name}: could not be read ({error.strerror}).")
        return ""


def table(path: Path, gaps: Gaps, root: Path) -> dict[str, Any]:
    """Return the JSON object of a file that is there; {} where it holds none."""
    given = text(path, gaps, root)
    if not given:
        return {}
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        gaps.say(f"{path.relative_to(root)}: is damaged or cut off, and was left out.")
        return {}
    return found


def lines(path: Path, gaps: Gaps, root: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of lines; [] where there is no such file."""
    if not path.is_file():
        return []
    out, broken = [], 0
    for line in text(path, gaps, root).splitlines():
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            out.append(found)
        else:
            broken += bool(line.strip())
    if broken:
        gaps.say(
            f"{path.relative_to(root)}: {broken} line{'s' * (broken > 1)} damaged or cut "
            "off, left out."
        )
    return out


def mapping(given: Any) -> Mapping[str, Any]:
    """Return a mapping, whatever stood there."""
    return given if isinstance(given, dict) else {}


def rows(given: Any) -> list[Mapping[str, Any]]:
    """Return the mappings of a list, whatever stood there."""
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


def items(given: Any) -> list[Any]:
    """Return a list, whatever stood there."""
    return given if isinstance(given, list) else []


def number(given: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    return float(given) if given == given and abs(given) < 1e300 else None
