"""Draw the candidates of a search: what a device gives over what one user sees.

Example::

    size_front.picture(answer)

Both axes have the interval of each figure. On the line are the candidates of which none gives more
to a device and to a user at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kimi_nb.notebook.pictures import nothing
from kimi_nb.show import style
from kimi_nb.show.picture import Picture
from kimi_nb.sizing import as_plan
from kimi_nb.sizing.sizing_answer import Answer, Candidate

_NAME = "sizes"
_ROOMY = 30  # the largest ratio of an axis' ends at which three ticks a decade do not touch


def picture(found: Answer) -> Picture:
    """Draw the candidates and the Pareto front of an answer; say so where there are none."""
    title = f"Sizes considered: {found.asked}"
    if not (found.candidates or found.front):
        return nothing.picture(_NAME, title, "none was found")
    rows = tuple(_rows(found))
    said = "; ".join(
        f"{row['deployment']} ({row['mark']}): {row['tokens/s/device']} ({row['device low']} to "
        f"{row['device high']}) tokens/s for each device, {row['tokens/s/user']} "
        f"({row['user low']} to {row['user high']}) for one user"
        for row in rows[:3]
    )
    alt = f"{title}. {len(rows)} deployments, estimated by a model of time. First: {said}."
    return Picture(_NAME, title, _drawn(found), alt, rows)


def _rows(found: Answer) -> Iterable[dict[str, Any]]:
    named = [("candidate", one) for one in found.candidates]
    kept = {as_plan.described(one.point) for one in found.candidates}
    named += [("front", one) for one in found.front if as_plan.described(one.point) not in kept]
    for what, one in named:
        user, (low, high) = _user(one)
        yield {
            "what": what,
            "deployment": f"{one.point.base.layout} {as_plan.described(one.point)}",
            "tokens/s/device": round(one.tokens.value, 2),
            "device low": round(one.tokens.low, 2),
            "device high": round(one.tokens.high, 2),
            "tokens/s/user": round(user, 2),
            "user low": round(low, 2),
            "user high": round(high, 2),
            "mark": one.known,
        }


def _user(one: Candidate) -> tuple[float, tuple[float, float]]:
    """Return tokens a second of one user, the least and the most."""
    return 1 / one.tpot.value, (1 / one.tpot.high, 1 / one.tpot.low)


def _drawn(found: Answer) -> str:
    """Return the chart: intervals as crosses, the front as a line, the best one marked."""
    with style.figure(8.2, 4.2) as canvas:
        axes = canvas.axes
        axes.set_xscale("log")
        axes.set_yscale("log")
        front = sorted(found.front, key=lambda one: _user(one)[0])
        axes.plot(
            [_user(one)[0] for one in front],
            [one.tokens.value for one in front],
            "-",
            color=style.INK,
            marker=".",
            label="none is better in both",
        )
        for at, (label, shown) in enumerate(_series(found)):
            _crosses(axes, shown, style.cycle(at), style.mark(at), label)
        if found.bounds.tpot:
            axes.axvline(1 / found.bounds.tpot, color=style.VERMILLION, linestyle="--")
            axes.annotate(
                f"{style.SPACE}bound of TPOT",
                (1 / found.bounds.tpot, 0.02),
                xycoords=("data", "axes fraction"),
                size=8.5,
            )
        _ticks(axes.xaxis)
        _ticks(axes.yaxis)
        axes.set_xlabel("tokens/s of one user (1 / TPOT), with its interval")
        axes.set_ylabel("output tokens/s per device")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=9, ncols=2)
        return canvas.finish(_NAME)


def _series(found: Answer) -> list[tuple[str, tuple[Candidate, ...]]]:
    best, others = found.candidates[:1], found.candidates[1:]
    named = [(f"the best: {as_plan.described(one.point)}", (one,)) for one in best]
    return named + ([("other candidates", others)] if others else [])


def _crosses(axes: Any, shown: tuple[Candidate, ...], colour: str, marker: str, label: str) -> None:
    users = [_user(one) for one in shown]
    axes.errorbar(
        [value for value, _ in users],
        [one.tokens.value for one in shown],
        xerr=[
            [value - low for value, (low, _) in users],
            [high - value for value, (_, high) in users],
        ],
        yerr=[
            [one.tokens.value - one.tokens.low for one in shown],
            [one.tokens.high - one.tokens.value for one in shown],
        ],
        fmt=marker,
        color=colour,
        elinewidth=0.8,
        capsize=2,
        label=label,
    )


def _ticks(axis: Any) -> None:
    """Write plain numbers, at 1, 2 and 5 of each decade where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # start-up: when drawn

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < _ROOMY else (1, 3)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    axis.set_minor_locator(NullLocator())
