"""The figures of tuning, drawn as those of a benchmark are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_nb.bench import pictures
from kimi_nb.bench.pictures import Picture
from kimi_nb.bench.results import BenchResult

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def front(result: BenchResult, cells: pd.DataFrame) -> Picture:
    """Every setting and load as a point, and the Pareto front through those that no other beats
    in both throughput per device and speed for one user. ``cells`` has a column ``setting``."""
    best = pictures.front(cells)

    def plot(axes: Axes) -> None:
        for (setting, mine), sign in zip(cells.groupby("setting", sort=False), _signs(),
                                         strict=False):
            axes.plot(mine["per_user"], mine["per_device"], sign, label=setting)
            for row in mine.to_dict("records"):
                axes.annotate(f" {int(row['concurrency'])}", (row["per_user"], row["per_device"]))
        axes.plot(best["per_user"], best["per_device"], "-", color="#222222",
                  label="none is better in both")
        axes.set_xlabel("tokens/s of one user (1000 / median TPOT); concurrency at each point")
        axes.set_ylabel("output tokens/s per device")
        axes.set_ylim(bottom=0)

    said = "; ".join(f"{row['setting']} at concurrency {int(row['concurrency'])}: "
                     f"{row['per_device']:.2f} tokens/s per device, {row['per_user']:.1f} for one "
                     "user" for row in best.to_dict("records"))
    return pictures.save(result, "sweep", "Settings of a sweep, and their Pareto front",
                         f"On the front: {said}.", plot, cells,
                         ("setting", "concurrency", "input_len", "output_len", "devices",
                          "per_user", "per_device"))


def _signs() -> list[str]:
    """A marker for each of many settings, so that colour is not all that tells them apart."""
    return [*"osD^v<>PX*hp"] * 20
