"""The pictures of a sweep, each saved as SVG and PNG with its data as CSV, next to the results.

Usage::

    shown = bench_pictures.draw(result, ttft_ms=1000, tpot_ms=100)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_nb.prove.bench import results
from kimi_nb.prove.bench.compare import with_published
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_SIZE = (7.2, 4.0)  # inches
FOLDER = "pictures"  # in the folder of the results


@dataclass(frozen=True)
class Pictures:
    """The pictures of a result, one below the other."""

    pictures: tuple[Picture, ...]

    def __len__(self) -> int:
        return len(self.pictures)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.pictures)) or "nothing was measured: no pictures"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(one._repr_html_() for one in self.pictures) or f"<p>{self}</p>"


def draw(result: results.BenchResult, ttft_ms: float = 0, tpot_ms: float = 0) -> Pictures:
    """Draw and save all pictures of a result; none if nothing was measured.

    The goodput counts requests within ``ttft_ms`` and ``tpot_ms`` (0: no limit).
    """
    if not result.files:
        return Pictures(())
    rows = results.with_goodput(result.measurements, result.frame, ttft_ms, tpot_ms)
    cells = results.over_repetitions(rows).sort_values("concurrency")
    pairs = with_published(result).pairs
    made = [
        _throughput(result, cells, pairs),
        _latencies(result, cells),
        _pareto(result, cells),
        _goodput(result, cells, ttft_ms, tpot_ms),
    ]
    return Pictures(tuple(made))


def _throughput(result: Any, cells: pd.DataFrame, pairs: tuple[Any, ...]) -> Picture:
    def plot(axes: Axes) -> None:
        _whiskers(axes, cells, "output_throughput", "measured, median and range", style.BLUE, "o")
        if pairs:
            at = [theirs["concurrency"] for _, theirs, _ in pairs]
            axes.plot(
                at,
                [theirs["output_throughput"] for _, theirs, _ in pairs],
                "s--",
                color=style.VERMILLION,
                label=f"published ({pairs[0][2]})",
            )
        _concurrency(axes, cells)
        axes.set_ylabel("output tokens/s")
        axes.set_ylim(bottom=0)

    best = cells.loc[cells["output_throughput"].idxmax()]
    alt = (
        f"Output throughput rises to {best['output_throughput']:.1f} tokens/s at concurrency "
        f"{int(best['concurrency'])}; {_each(cells, 'output_throughput', '.1f')}."
    )
    return save(
        result,
        "throughput",
        "Throughput over concurrency",
        alt,
        plot,
        cells,
        (
            "concurrency",
            "output_throughput",
            "output_throughput_min",
            "output_throughput_max",
            "total_token_throughput",
            "request_throughput",
            "repetitions",
        ),
    )


def _latencies(result: Any, cells: pd.DataFrame) -> Picture:
    def plot(left: Axes) -> None:
        figure = left.figure
        left.remove()
        for place, name in ((121, "ttft"), (122, "tpot")):
            axes = figure.add_subplot(place)
            for at, colour, sign in (
                ("p50", style.BLUE, "o"),
                ("p90", style.GREEN, "^"),
                ("p99", style.VERMILLION, "s"),
            ):
                axes.plot(
                    cells["concurrency"],
                    cells[f"{at}_{name}_ms"],
                    f"{sign}-",
                    color=colour,
                    label=at,
                )
            _concurrency(axes, cells)
            axes.set_ylabel(f"{name.upper()} ms")
            axes.set_ylim(bottom=0)

    alt = (
        f"Time to first token, median: {_each(cells, 'p50_ttft_ms', '.1f')} ms. Time per output "
        f"token, median: {_each(cells, 'p50_tpot_ms', '.2f')} ms."
    )
    return save(
        result,
        "latency",
        "TTFT and TPOT over concurrency",
        alt,
        plot,
        cells,
        (
            "concurrency",
            *(f"{at}_{name}_ms" for name in ("ttft", "tpot") for at in ("p50", "p90", "p99")),
        ),
    )


def _pareto(result: Any, cells: pd.DataFrame) -> Picture:
    points = front(cells)

    def plot(axes: Axes) -> None:
        axes.plot(cells["per_user"], cells["per_device"], "o", color=style.BLUE, label="cells")
        axes.plot(
            points["per_user"],
            points["per_device"],
            "-",
            color=style.VERMILLION,
            label="none is better in both",
        )
        for row in cells.to_dict("records"):
            axes.annotate(
                f"{style.SPACE}{int(row['concurrency'])}", (row["per_user"], row["per_device"])
            )
        axes.set_xlabel("tokens/s of one user (1000 / median TPOT)")
        axes.set_ylabel("output tokens/s per device")
        axes.set_ylim(bottom=0)

    alt = (
        "Tokens/s per device against tokens/s of one user; concurrency "
        f"{', '.join(str(int(one)) for one in points['concurrency'])} lie on the front."
    )
    return save(
        result,
        "pareto",
        "Throughput per device over speed for one user",
        alt,
        plot,
        cells,
        ("concurrency", "devices", "per_user", "per_device"),
    )


def front(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the Pareto front of tokens/s per device and tokens/s per user.

    These are the rows that no other row beats in both, fastest for a user first.
    """
    keep: list[Any] = []
    best = -1.0
    for index, row in cells.sort_values(["per_user", "per_device"], ascending=False).iterrows():
        if row["per_device"] > best:
            keep, best = [*keep, index], row["per_device"]
    return cells.loc[keep]


def _goodput(result: Any, cells: pd.DataFrame, ttft_ms: float, tpot_ms: float) -> Picture:
    asked = (
        ", ".join(
            [
                *([f"TTFT {ttft_ms:g} ms"] if ttft_ms else []),
                *([f"TPOT {tpot_ms:g} ms"] if tpot_ms else []),
            ]
        )
        or "no bound"
    )

    def plot(axes: Axes) -> None:
        axes.plot(
            cells["concurrency"],
            cells["request_throughput"],
            "s--",
            color=style.VERMILLION,
            label="all requests",
        )
        axes.plot(cells["concurrency"], cells["goodput"], "o-", color=style.BLUE, label="within")
        _concurrency(axes, cells)
        axes.set_ylabel("requests/s")
        axes.set_ylim(bottom=0)

    best = cells.loc[cells["goodput"].idxmax()]
    alt = (
        f"Most requests within {asked}: {best['goodput']:.2f} a second at concurrency "
        f"{int(best['concurrency'])}."
    )
    return save(
        result,
        "goodput",
        f"Goodput at {asked}",
        alt,
        plot,
        cells,
        ("concurrency", "goodput", "request_throughput"),
    )


def save(
    result: Any,
    name: str,
    title: str,
    alt: str,
    plot: Callable[[Axes], None],
    cells: pd.DataFrame,
    columns: tuple[str, ...],
) -> Picture:
    """Draw a picture and save it in the result's folder, with ``columns`` of ``cells`` as its data.

    A rehearsal is marked as such in the title, the alternative text, the data and across the
    picture.
    """
    about = result.measurements[0]["kimi_nb"]["identity"]
    mark = f"{result.mark}: " if result.mark else ""
    title = (
        f"{mark}{title}: {about['model']} on {about['hardware']}, {about['layout']}, "
        f"{about['input_len']}/{about['output_len']} tokens"
    )
    with style.figure(*_SIZE) as canvas:
        canvas.figure.set_layout_engine("constrained")
        plot(canvas.axes)
        for axes in canvas.figure.axes:
            axes.grid()
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        if mark:
            canvas.figure.text(
                0.5,
                0.45,
                result.mark,
                fontsize=44,
                alpha=0.10,
                ha="center",
                va="center",
                rotation=20,
            )
        svg, png = canvas.finish(name), canvas.png(title)
    rows = cells[list(columns)].round(4).assign(mark=result.mark or "measured")
    picture = Picture(name, title, svg, f"{mark}{alt}", tuple(rows.to_dict("records")), png)
    picture.save(result.folder / FOLDER)
    return picture


def _whiskers(
    axes: Axes, cells: pd.DataFrame, name: str, label: str, colour: str, sign: str
) -> None:
    middle = cells[name]
    axes.errorbar(
        cells["concurrency"],
        middle,
        fmt=f"{sign}-",
        color=colour,
        label=label,
        yerr=[middle - cells[f"{name}_min"], cells[f"{name}_max"] - middle],
        capsize=4,
    )


def _concurrency(axes: Axes, cells: pd.DataFrame) -> None:
    axes.set_xlabel("requests in flight")
    many = sorted({int(one) for one in cells["concurrency"]})
    if min(many) > 0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(many, [str(one) for one in many])
    axes.minorticks_off()


def _each(cells: pd.DataFrame, name: str, form: str) -> str:
    return ", ".join(
        f"{row[name]:{form}} at {int(row['concurrency'])}" for row in cells.to_dict("records")
    )
