"""Results of a site that later ones are held against, so that a slower upgrade is seen the same day.

Usage::

    path = baseline.place("may", "h200", "/home/me/h200.yaml")  # /home/me/baselines/h200/may.json
    baseline.keep(result, path)
    found = baseline.against(result, path)  # a table; found.regressions names what is slower

Each figure of a load is compared by the confidence interval of its ratio to the baseline (Welch's
interval of the difference of the logarithms, over the repetitions).
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.core import bounded_files, evidence
from kimi_nb.core.errors import BenchError, ParameterError
from kimi_nb.prove.bench.results import BenchResult

KIND = "benchmark-baseline"
CONFIDENCE = 0.95
# A loss that matters; what is less may be another day's.
MARGIN = 0.05
# A loss that has to be ruled out before a figure is called the same.
RULED_OUT = 0.15
FIGURES = ("output_throughput", "median_ttft_ms", "median_tpot_ms")
_LARGEST = 64 << 20  # bytes of a baseline
# What makes two measurements comparable: the service and the load. Versions and flags are what an
# upgrade changes, and are named with the result.
_SAME = ("model", "weights", "hardware", "nodes", "devices", "layout", "mark", "attached", "tool")
_LOAD = ("concurrency", "input_len", "output_len", "prompts", "rate", "dataset", "path")
_CHANGED = ("engine_version", "vllm_version", "tool_version", "flags", "scenario", "variant")
REGRESSION, BETTER, SAME, UNSURE = "regression", "better", "same", "cannot tell"


@dataclass(frozen=True)
class Change:
    """One figure of a load against the baseline.

    Attributes:
        change: The relative change of the geometric mean; a throughput falls and a time rises where
            it is worse.
        low: The least that the change may be, and ``high`` the most; None for one repetition.
        word: regression, better, same or cannot tell.
    """

    load: str
    figure: str
    before: float
    now: float
    change: float
    low: float | None
    high: float | None
    word: str


@dataclass(frozen=True, repr=False)
class Against(show.Shown):
    """A result against a baseline.

    Attributes:
        baseline: The file of the baseline.
        changed: What differs in versions and settings, as sentences.
        missing: Loads of the result that the baseline does not have.
    """

    baseline: Path
    changes: tuple[Change, ...]
    changed: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def regressions(self) -> tuple[str, ...]:
        """A sentence for each figure that is worse."""
        return tuple(_sentence(one) for one in self.changes if one.word == REGRESSION)

    def table(self) -> show.Table:
        """Return a row for each figure of each load."""
        words = [one.word for one in self.changes]
        count = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        about = "; ".join(self.changed) or "same versions and settings"
        if self.missing:
            about += f"; not in the baseline: {'; '.join(self.missing)}"
        return show.Table(
            f"Against {self.baseline.name}: {count} ({about})",
            ("load", "figure", "before", "now", "change", f"{CONFIDENCE:.0%} interval", "verdict"),
            tuple(
                (
                    one.load,
                    one.figure,
                    f"{one.before:.2f}",
                    f"{one.now:.2f}",
                    f"{one.change:+.1%}",
                    "one repetition has none" if one.low is None else _interval(one),
                    one.word,
                )
                for one in self.changes
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {
            "baseline": str(self.baseline),
            "regressions": list(self.regressions),
        }


def place(name: str, site: str, site_file: str, runs: Path) -> Path:
    """Return the file of a baseline: beside the site's own file, or else below ``runs``.

    Raises ParameterError for a name that is no plain word.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise ParameterError(
            f"baseline: a name of letters, digits, '.', '-' and '_' is wanted, found {name!r}."
        )
    own = Path(site_file)
    base = own.parent if site_file and own.is_file() else runs
    return base / "baselines" / site / f"{name.removesuffix('.json')}.json"


def keep(result: BenchResult, path: Path) -> Path:
    """Write a result as a baseline, completely or not at all.

    Raises BenchError for a rehearsal, for failed requests, and where there is one of that name.
    """
    if not result.files:
        raise BenchError(f"{result.folder}: no measurement is there to keep as a baseline.")
    if result.mark:
        raise BenchError(
            f"{result.folder}: a {result.mark} measures no hardware and is no baseline. Keep what "
            "was measured on the site."
        )
    if result.failed:
        raise BenchError(
            f"{result.folder}: {result.failed} requests failed ({result.errors}); a baseline has to "
            "be whole. Measure again."
        )
    if path.exists():
        raise BenchError(f"{path}: there is a baseline of that name. Choose another name.")
    rows = [
        {
            "identity": one["kimi_nb"]["identity"],
            "time": one["kimi_nb"]["time"],
            "figures": {name: one[name] for name in FIGURES},
        }
        for one in result.measurements
    ]
    evidence.write_json(path, {"kind": KIND, "measurements": rows})
    return path


def against(result: BenchResult, path: Path) -> Against:
    """Compare a result with the baseline in a file.

    Raises BenchError if no load can be compared, with what differs, and for a file that is none.
    """
    if not result.files:
        raise BenchError(f"{result.folder}: no measurement is there to compare.")
    if result.mark:
        raise BenchError(
            f"{result.folder}: a {result.mark} measures no hardware and is compared with no baseline. "
            "Compare what was measured on the site."
        )
    before = _read(path)
    now = [
        {"identity": one["kimi_nb"]["identity"], "figures": {name: one[name] for name in FIGURES}}
        for one in result.measurements
    ]
    loads: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for one in now:
        loads.setdefault(_key(one["identity"], _LOAD), []).append(one)
    changes: list[Change] = []
    changed: dict[str, None] = {}
    missing: list[str] = []
    for mine in loads.values():
        about = mine[0]["identity"]
        differ = [_differences(about, one["identity"], (*_SAME, *_LOAD)) for one in before]
        theirs = [one for one, names in zip(before, differ, strict=True) if not names]
        if not theirs:
            nearest = min(differ, key=len)
            missing.append("; ".join(nearest))
            continue
        changed |= dict.fromkeys(_differences(about, theirs[0]["identity"], _CHANGED))
        for name in FIGURES:
            changes.append(
                _change(
                    about,
                    name,
                    [float(one["figures"][name]) for one in theirs],
                    [float(one["figures"][name]) for one in mine],
                )
            )
    if not changes:
        raise BenchError(
            f"{path}: nothing can be compared: {missing[0]}. Measure the same load on the same "
            "hardware, or keep a baseline of this one."
        )
    return Against(path, tuple(changes), tuple(changed), tuple(missing))


def held(result: BenchResult, path: Path | None) -> show.Table:
    """Return a result against a baseline, or the table of why there is none; keep the first one.

    ``path`` is None where no baseline was named. Raises BenchError for what cannot be compared.
    """
    if path is None or not result.files or result.mark:
        why = (
            "none was named"
            if path is None
            else f"a {result.mark} measures no hardware"
            if result.mark
            else "nothing was measured"
        )
        return show.Table("No baseline", ("because",), ((why,),))
    if not path.exists():
        return show.Table("A new baseline", ("kept as",), ((str(keep(result, path)),),))
    return against(result, path).table()


def _read(path: Path) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(bounded_files.read(path, _LARGEST))
        if found["kind"] != KIND or not found["measurements"]:
            raise ValueError(f"kind {found['kind']!r}")
        for one in found["measurements"]:
            if not isinstance(one["identity"], dict):
                raise TypeError("identity")
            for name in FIGURES:
                float(one["figures"][name])
    except FileNotFoundError:
        there = sorted(one.stem for one in path.parent.glob("*.json"))
        raise BenchError(
            f"{path}: there is no such baseline"
            + (f"; there are {', '.join(there)}." if there else ". Keep one: kimi-nb bench --keep.")
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path} is no baseline of ours ({type(error).__name__}: {error}). Name one that "
            "kimi-nb bench --keep has written."
        ) from None
    rows: list[Mapping[str, Any]] = found["measurements"]
    return rows


def _key(about: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(about.get(name, "")) for name in names)


def _differences(
    here: Mapping[str, Any], there: Mapping[str, Any], names: Sequence[str]
) -> tuple[str, ...]:
    return tuple(
        f"{name}: {here.get(name, '') or 'none'}, baseline {there.get(name, '') or 'none'}"
        for name in names
        if str(here.get(name, "")) != str(there.get(name, ""))
    )


def _change(
    about: Mapping[str, Any], figure: str, before: Sequence[float], now: Sequence[float]
) -> Change:
    load = f"{about['concurrency'] or 'any number'} at once, "
    load += f"{about['input_len']}/{about['output_len']} tokens"
    old, new = statistics.median(before), statistics.median(now)
    if min(*before, *now) <= 0:  # answers of one token have no TPOT
        return Change(load, figure, old, new, 0.0, None, None, UNSURE)
    low, middle, high = ratio(before, now)
    worse = -1 if figure == "output_throughput" else 1
    loss = middle * worse
    if low is None or high is None:
        word = UNSURE
    elif loss >= MARGIN and (low > 0 if worse > 0 else high < 0):
        word = REGRESSION
    elif loss <= -MARGIN and (high < 0 if worse > 0 else low > 0):
        word = BETTER
    else:
        word = UNSURE if max(low * worse, high * worse) >= RULED_OUT else SAME
    return Change(load, figure, old, new, middle, low, high, word)


def ratio(
    before: Sequence[float], now: Sequence[float]
) -> tuple[float | None, float, float | None]:
    """Return (least, likely, most) of the relative change; no bounds for one repetition.

    >>> [round(one, 2) for one in ratio([100, 101, 99], [85, 86, 84])]
    [-0.17, -0.15, -0.13]
    """
    from scipy import stats  # start-up: only for an interval

    old, new = ([math.log(one) for one in side] for side in (before, now))
    gap = statistics.mean(new) - statistics.mean(old)
    if min(len(old), len(new)) < 2:
        return None, math.expm1(gap), None
    parts = [statistics.variance(side) / len(side) for side in (old, new)]
    whole = sum(parts)
    if not whole:
        return math.expm1(gap), math.expm1(gap), math.expm1(gap)
    freedom = whole**2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (old, new), strict=True)
    )
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(whole)
    return math.expm1(gap - half), math.expm1(gap), math.expm1(gap + half)


def _interval(one: Change) -> str:
    return f"{one.low:+.1%} to {one.high:+.1%}"


def _sentence(one: Change) -> str:
    return (
        f"{one.load}: {one.figure} {one.before:.2f} before, {one.now:.2f} now: {one.change:+.1%} "
        f"({_interval(one)} at {CONFIDENCE:.0%})"
    )
