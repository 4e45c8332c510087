"""Results as tables: files of measurements become a tidy frame, with medians over repetitions.

Usage::

    result.frame  # pandas: one row for each measurement, identity and figures
    result.summary()  # one row for each load: median, minimum and maximum of the figures
    result.goodput(ttft_ms=500)  # requests a second within the limits, for each load
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_nb import show
from kimi_nb.prove.bench import measurement_files
from kimi_nb.prove.bench import summary as figures
from kimi_nb.prove.bench.definitions import NAMES
from kimi_nb.prove.bench.measurement_files import FIGURES

if TYPE_CHECKING:
    import pandas as pd

_OF_ONE = ("repetition", "seed", "time", "file")  # columns that differ between repetitions


@dataclass(frozen=True, repr=False)
class BenchResult(show.Shown):
    """The files of a sweep and what they show; `Run.bench` returns one."""

    folder: Path
    files: tuple[Path, ...]

    @functools.cached_property
    def measurements(self) -> tuple[Mapping[str, Any], ...]:
        """The JSON of every file, in the order of measurement."""
        return tuple(measurement_files.read(self.files))

    @property
    def mark(self) -> str:
        """REHEARSAL if any of the measurements is one, else ""."""
        return next(
            (
                one["kimi_nb"]["identity"]["mark"]
                for one in self.measurements
                if one["kimi_nb"]["identity"]["mark"]
            ),
            "",
        )

    @property
    def hardware(self) -> str:
        """The hardware of the first measurement, "" without one."""
        for one in self.measurements:
            return str(one["kimi_nb"]["identity"]["hardware"])
        return ""

    @functools.cached_property
    def frame(self) -> pd.DataFrame:
        """One row for each measurement; throughputs in 1/s, times in ms."""
        return frame(self.measurements)

    @property
    def failed(self) -> int:
        """The number of failed requests in all measurements."""
        return sum(one["failed"] for one in self.measurements)

    @property
    def errors(self) -> dict[str, int]:
        """The number of failed requests by kind."""
        out: dict[str, int] = {}
        for one in self.measurements:
            for kind, many in one["kimi_nb"]["errors"].items():
                out[kind] = out.get(kind, 0) + many
        return out

    def summary(self) -> pd.DataFrame:
        """Return one row for each load of the sweep; see `over_repetitions`."""
        return over_repetitions(self.frame)

    def goodput(self, ttft_ms: float = 0, tpot_ms: float = 0) -> show.Table:
        """Return the requests a second within the limits on TTFT and TPOT (0: none), for each load.

        The figures are medians over the repetitions.
        """
        rows = with_goodput(self.measurements, self.frame, ttft_ms, tpot_ms)
        asked = (
            ", ".join(
                [
                    *([f"TTFT {ttft_ms:g} ms"] if ttft_ms else []),
                    *([f"TPOT {tpot_ms:g} ms"] if tpot_ms else []),
                ]
            )
            or "no bound"
        )
        cells = over_repetitions(rows) if len(rows) else rows
        return show.Table(
            f"{self._prefix}Goodput at {asked}",
            ("concurrency", "requests/s within", "of requests/s", "share"),
            tuple(
                (
                    _many(one),
                    f"{one['goodput']:.2f}",
                    f"{one['request_throughput']:.2f}",
                    _share(one["goodput"], one["request_throughput"]),
                )
                for one in cells.to_dict("records")
            ),
        )

    def table(self) -> show.Table:
        """Return the medians over the repetitions, and the spread of the throughput."""
        if not self.files:
            return show.Table("0 measurements", ("concurrency",), ())
        one = self.measurements[0]["kimi_nb"]["identity"]
        title = (
            f"{self._prefix}{one['model']} on {one['hardware']}, {one['layout']}, by "
            f"{one['tool']} {one['tool_version']}: medians of {_repetitions(self.frame)}"
        )
        return show.Table(
            title,
            (
                "concurrency",
                "requests",
                "failed",
                "tokens/s",
                "spread",
                "TTFT p50 ms",
                "TTFT p99 ms",
                "TPOT p50 ms",
                "TPOT p99 ms",
                "requests/s",
            ),
            tuple(
                (
                    _many(row),
                    int(row["prompts"]),
                    int(row["failed"]),
                    f"{row['output_throughput']:.1f}",
                    f"{row['output_throughput_spread']:.0%}",
                    f"{row['median_ttft_ms']:.1f}",
                    f"{row['p99_ttft_ms']:.1f}",
                    f"{row['median_tpot_ms']:.2f}",
                    f"{row['p99_tpot_ms']:.2f}",
                    f"{row['request_throughput']:.2f}",
                )
                for row in self.summary().to_dict("records")
            ),
        )

    def definitions(self) -> show.Table:
        """Return what each figure means, and why the other load client's differs where it does."""
        rows = {
            name: meaning
            for one in self.measurements
            for name, meaning in one["kimi_nb"].get("definitions", {}).items()
        }
        return show.Table(
            f"{self._prefix}What the figures are",
            ("figure", "definition"),
            tuple((NAMES.get(name, name), meaning) for name, meaning in rows.items()),
        )

    def metrics(self) -> show.Table:
        """Return what the engines and devices reported during the runs."""
        names = (
            "running_max",
            "waiting_max",
            "kv_cache_max",
            "preemptions",
            "prefix_hit_rate",
            "spec_acceptance",
            "utilisation_mean",
        )
        rows = [
            (
                one["kimi_nb"]["identity"]["concurrency"],
                one["kimi_nb"]["identity"]["repetition"],
                *(_short(one["kimi_nb"]["metrics"].get(name)) for name in names),
                "; ".join(
                    str(one["kimi_nb"]["metrics"][why])
                    for why in ("why_not", "utilisation_why_not")
                    if one["kimi_nb"]["metrics"].get(why)
                ),
            )
            for one in self.measurements
        ]
        return show.Table(
            f"{self._prefix}Engines under load",
            (
                "concurrency",
                "repetition",
                "running",
                "waiting",
                "cache used",
                "preemptions",
                "prefix hits",
                "drafts accepted",
                "device %",
                "not seen, because",
            ),
            tuple(rows),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as plain values."""
        if not self.files:
            return {"mark": "", "folder": str(self.folder), "cells": [], "errors": {}}
        rows = json.loads(self.summary().to_json(orient="records"))
        return {"mark": self.mark, "folder": str(self.folder), "cells": rows, "errors": self.errors}

    @property
    def _prefix(self) -> str:
        return f"{self.mark}: " if self.mark else ""


def load(folder: Path) -> BenchResult:
    """Return all measurements in a folder, oldest first."""
    paths = sorted(folder.glob("c*-r*-*.json"), key=lambda path: path.stat().st_mtime)
    return BenchResult(folder, tuple(paths))


def frame(measurements: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return a tidy frame: a row for each measurement, with identity, figures and metrics."""
    import pandas as pd  # start-up: only for a table of results

    rows = []
    for one in measurements:
        own = one["kimi_nb"]
        about = {
            name: json.dumps(value) if isinstance(value, dict) else value
            for name, value in own["identity"].items()
        }
        seen = {
            f"seen_{name}": value
            for name, value in own["metrics"].items()
            if isinstance(value, int | float)
        }
        rows.append(
            {
                **about,
                "time": own["time"],
                "file": one.get("file", ""),
                **{name: one.get(name, math.nan) for name in FIGURES},
                **seen,
            }
        )
    out = pd.DataFrame(rows)
    if len(out):
        out["per_device"] = out["output_throughput"] / out["devices"]
        out["per_user"] = 1000 / out["median_tpot_ms"].where(out["median_tpot_ms"] > 0)
    return out


def over_repetitions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the medians over the repetitions of each load.

    The most important figures also have ``_min``, ``_max`` and ``_spread``, which is (max - min) /
    median. ``failed`` is a sum.
    """
    keys = [
        name
        for name in rows.columns
        if name not in _OF_ONE
        and name not in FIGURES
        and not name.startswith("seen_")
        and name not in ("per_device", "per_user", "goodput")
    ]
    figures_ = [
        name
        for name in rows.columns
        if name in FIGURES
        or name.startswith("seen_")
        or name in ("per_device", "per_user", "goodput")
    ]
    groups = rows.fillna(dict.fromkeys(keys, "")).groupby(keys, sort=False, dropna=False)
    out = groups[figures_].median()
    for name in ("output_throughput", "median_ttft_ms", "median_tpot_ms"):
        out[f"{name}_min"], out[f"{name}_max"] = groups[name].min(), groups[name].max()
        out[f"{name}_spread"] = (out[f"{name}_max"] - out[f"{name}_min"]) / out[name]
    out["failed"], out["repetitions"] = groups["failed"].sum(), groups.size()
    return out.reset_index()


def with_goodput(
    measurements: Sequence[Mapping[str, Any]], rows: pd.DataFrame, ttft_ms: float, tpot_ms: float
) -> pd.DataFrame:
    """Return the frame with a column ``goodput``, requests a second within the limits (0: none)."""
    return rows.assign(
        goodput=[
            figures.goodput(one, ttft_ms or math.inf, tpot_ms or math.inf) for one in measurements
        ]
    )


def _repetitions(rows: pd.DataFrame) -> str:
    most = int(rows["repetition"].max())
    return f"{most} repetitions" if most > 1 else "1 repetition, which has no spread"


def _many(row: Mapping[str, Any]) -> str:
    return str(int(row["concurrency"])) if row["concurrency"] else f"{row['rate']}/s"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _short(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value
