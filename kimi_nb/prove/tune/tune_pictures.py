"""The pictures of tuning, drawn like those of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_nb.prove.bench import bench_pictures
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def front(result: BenchResult, cells: pd.DataFrame) -> Picture:
    """Draw every setting and load as a point, with the Pareto front of throughput and speed.

    The front is of throughput per device and tokens/s per user. ``cells`` needs a column
    ``setting``.
    """
    best = bench_pictures.front(cells)
    several = len(cells[["input_len", "output_len"]].drop_duplicates()) > 1

    def plot(axes: Axes) -> None:
        for at, (setting, mine) in enumerate(cells.groupby("setting", sort=False)):
            axes.plot(
                mine["per_user"],
                mine["per_device"],
                style.mark(at),
                color=style.cycle(at),
                label=setting,
            )
            for row in mine.to_dict("records"):
                size = f", {row['input_len']}/{row['output_len']}" if several else ""
                axes.annotate(
                    f"{style.SPACE}{int(row['concurrency'])}{size}",
                    (row["per_user"], row["per_device"]),
                )
        axes.plot(
            best["per_user"],
            best["per_device"],
            "-",
            color=style.INK,
            label="none is better in both",
        )
        axes.set_xlabel("tokens/s of one user (1000 / median TPOT); concurrency at each point")
        axes.set_ylabel("output tokens/s per device")
        axes.set_ylim(bottom=0)

    said = "; ".join(
        f"{row['setting']} at concurrency {int(row['concurrency'])}: "
        f"{row['per_device']:.2f} tokens/s per device, {row['per_user']:.1f} for one "
        "user"
        for row in best.to_dict("records")
    )
    return bench_pictures.save(
        result,
        "sweep",
        "Settings of a sweep, and their Pareto front",
        f"On the front: {said}.",
        plot,
        cells,
        ("setting", "concurrency", "input_len", "output_len", "devices", "per_user", "per_device"),
    )
