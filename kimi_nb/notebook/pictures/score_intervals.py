"""Draw scores with their intervals.

Example::

    score_intervals.picture(
        [
            {
                "name": "GSM8K",
                "score": 0.95,
                "low": 0.93,
                "high": 0.97,
                "n": 500,
                "baseline": 0.94,
                "mark": "measured",
            }
        ]
    )
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kimi_nb.show import style
from kimi_nb.show.picture import Picture


def picture(
    rows: Sequence[Mapping[str, Any]], title: str = "Accuracy, with intervals of 95 %"
) -> Picture:
    """Draw a point with its interval for each row; scores go from 0 to 1.

    A ``baseline`` is drawn as a diamond; ``n`` and ``mark`` (measured, published, REHEARSAL) are
    written beside the point. Raises ValueError for an interval that does not contain its score.
    """
    for row in rows:
        if not 0 <= row["low"] <= row["score"] <= row["high"] <= 1:
            raise ValueError(
                f"{row['name']}: {row['low']} <= {row['score']} <= {row['high']} is "
                "wanted, of 0 to 1"
            )
    with style.figure(8.5, 1.1 + 0.42 * len(rows)) as canvas:
        axes = canvas.axes
        for at, row in enumerate(rows):
            axes.errorbar(
                row["score"] * 100,
                at,
                fmt="o",
                color=style.BLUE,
                ecolor=style.BLUE,
                capsize=4,
                xerr=[[(row["score"] - row["low"]) * 100], [(row["high"] - row["score"]) * 100]],
            )
            axes.text(row["high"] * 100, at, 3 * style.SPACE + _beside(row), va="center", size=8.5)
            if row.get("baseline") is not None:
                axes.plot(
                    row["baseline"] * 100,
                    at,
                    marker="D",
                    color="none",
                    markeredgecolor=style.VERMILLION,
                    markeredgewidth=1.6,
                )
        axes.set_yticks(range(len(rows)), [str(row["name"]) for row in rows])
        axes.set_ylim(max(len(rows), 1) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.set_xlabel(
            "per cent correct; ● ours with its interval"
            + (", ◇ baseline" if any(row.get("baseline") is not None for row in rows) else "")
        )
        svg = canvas.finish("accuracy")
    said = "; ".join(f"{row['name']} {_percent(row)}, {_beside(row)}" for row in rows)
    return Picture(
        "accuracy", title, svg, f"{title}: {said or 'no score'}.", tuple(dict(row) for row in rows)
    )


def _percent(row: Mapping[str, Any]) -> str:
    return f"{row['score']:.1%} ({row['low']:.1%} to {row['high']:.1%})"


def _beside(row: Mapping[str, Any]) -> str:
    return ", ".join(
        [
            *([f"n = {row['n']}"] if row.get("n") else []),
            *([str(row["mark"])] if row.get("mark") else []),
        ]
    )
