"""A run's folder as one value: what its notebooks, plans and services came to.

    found = collect(Path("runs/20260101T000000Z-k2.5-a3"))
    found.verdict.status, found.verdict.text        # "failed", "05_pd failed: ..."

Whatever is missing, cut off or damaged there is said, and nothing is filled in for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kimi_nb.core import evidence, known_secrets
from kimi_nb.core.errors import ParameterError
from kimi_nb.report import plan_section, verdicts
from kimi_nb.report.plan_section import Planned
from kimi_nb.report.run_files import Gaps, lines
from kimi_nb.report.verdicts import Notebook, Verdict

_ABOUT = ("package", "commit", "python", "host", "platform", "catalogs")
_INSIDE = (
    "bundle",
    "rehearsals",
    "deployments",
    "findings.json",
    "verify.jsonl",
    "bench",
    "accuracy",
)  # of which a plan's folder has one at least


@dataclass(frozen=True)
class Report:
    """What the report of a run shows.

    Attributes:
        about: The fingerprint of the run, as (what, value).
        gaps: Sentences on what could not be read.
    """

    folder: str
    title: str
    written: str
    verdict: Verdict
    notebooks: tuple[Notebook, ...]
    plans: tuple[Planned, ...]
    about: tuple[tuple[str, str], ...]
    events: int
    gaps: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain values, without secrets."""
        return known_secrets.value(asdict(self))


def collect(folder: Path) -> Report:
    """Read a run's folder. Raises ParameterError where it is none."""
    folder = folder.absolute()
    if not is_run(folder):
        raise ParameterError(
            f"{folder}: is no run's folder: it holds no {evidence.FILE}, and no "
            "bundle, rehearsal or deployment. kimi-nb run makes one."
        )
    gaps = Gaps()
    entries = lines(folder / evidence.FILE, gaps, folder)
    if not entries:
        gaps.say(
            f"{evidence.FILE}: is missing or empty: what was done in this run, and when, is "
            "not known."
        )
    current = _last_run(entries)
    made = tuple(
        plan_section.of(
            path, [one for one in entries if one.get("plan") == path.name], gaps, folder
        )
        for path in _plan_folders(folder)
    )
    notebooks = verdicts.notebooks(folder, current)
    begun = next((one for one in current if one.get("stage") in ("run", "start")), {})
    about: Mapping[str, Any] = next((one for one in reversed(current) if one.get("package")), {})
    absent = [key for key in _ABOUT if key not in about]
    if absent:
        gaps.say(f"The fingerprint lacks {', '.join(absent)}: it was not recorded.")
    what = [str(begun[key]) for key in ("model", "hardware") if begun.get(key)]
    return Report(
        str(folder),
        " on ".join(what) or folder.name,
        evidence.now(),
        verdicts.of(current, notebooks, made),
        notebooks,
        made,
        tuple((key, str(about.get(key) or "none: no checkout")) for key in _ABOUT if key in about),
        len(entries),
        tuple(gaps),
    )


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run: kimi-nb run's, a notebook's, or a command's."""
    return (folder / evidence.FILE).is_file() or bool(_plan_folders(folder))


def run_of(folder: Path) -> Path:
    """Return the run that a folder inside of it belongs to, and any other folder as it is.

    Commands on deployments take the folder of a plan or of a deployment as well.
    """
    for up in (folder, *folder.parents[:3]):
        if up.name in ("deployments", "rehearsals"):
            return up.parent.parent
    inside = any((folder / name).is_dir() for name in ("deployments", "rehearsals"))
    return folder.parent if inside else folder


def newest(runs: Path) -> Path:
    """Return the run below a folder that was written to last; raise ParameterError without one."""
    found = (
        [path for path in runs.glob("*") if path.is_dir() and is_run(path)] if runs.is_dir() else []
    )
    if not found:
        raise ParameterError(
            f"{runs}: holds no run yet. kimi-nb run makes one, or name the folder of a run."
        )
    return max(found, key=_touched)


def _touched(folder: Path) -> float:
    marks = [
        folder / evidence.FILE,
        *folder.glob("*/rehearsals/*"),
        *folder.glob(f"*/deployments/*/{evidence.FILE}"),
        *folder.glob("*/bundle/plan.json"),
    ]
    return max((path.stat().st_mtime for path in marks if path.exists()), default=0.0)


def _plan_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and any((path / name).exists() for name in _INSIDE)
    )


def _last_run(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the entries since the last `kimi-nb run` in this folder; all where there was none."""
    begun = [at for at, one in enumerate(entries) if one.get("stage") == "run"]
    return list(entries[begun[-1] :] if begun else entries)
