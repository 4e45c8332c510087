"""Draw which rank failed first and what followed, by the times in the logs.

Example::

    failure_order.picture(plan, first_failure.timeline(logs, plan, "at start"))
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from kimi_nb.diagnose.first_failure import Event
from kimi_nb.plan.spec import Plan
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_ROWS = 48  # the most ranks that are drawn


def picture(plan: Plan, events: Sequence[Event], *, mark: str = "") -> Picture:
    """Draw a row for each rank that failed, with the first cause as a diamond and its text.

    Consequences are circles. An event without a time is placed at the time of the one before it.
    """
    times = _seconds(events)
    places = list(dict.fromkeys(_place(event) for event in events))
    title = f"{mark + ': ' if mark else ''}{plan.name}: who failed first"
    data = tuple(
        {
            "second": second,
            "node": event.node,
            "rank": event.rank,
            "kind": event.kind,
            "cascade": event.cascade,
            "cause": event.cause,
            "line": event.line,
            "mark": mark or "measured",
        }
        for second, event in zip(times, events, strict=True)
    )
    most = max(times, default=0) or 1
    with style.figure(9, 1.1 + 0.3 * max(min(len(places), _ROWS), 2)) as canvas:
        axes = canvas.axes
        for at, (second, event) in enumerate(zip(times, events, strict=True)):
            row = places.index(_place(event))
            if row >= _ROWS:
                continue
            first = at == 0
            axes.plot(
                second,
                row,
                marker="D" if first else "o",
                zorder=3 if first else 2,
                markersize=10 if first else 6,
                clip_on=False,
                linestyle="none",
                color=style.VERMILLION if first else style.GREY,
            )
            if row == 0 and not first:
                continue
            if first or event == next(one for one in events if _place(one) == places[row]):
                axes.text(
                    second + most * 0.025,
                    row,
                    style.SPACE + _short(event.cause),
                    va="center",
                    size=8.5,
                    parse_math=False,
                    weight="bold" if first else "normal",
                )
        shown = places[:_ROWS]
        axes.set_yticks(range(len(shown)), shown, fontsize=8.5)
        axes.set_ylim(max(len(shown), 2) - 0.5, -0.5)
        axes.set_xlim(0, most * 1.6)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(
            "seconds after the first sign, by the logs' clocks (◆ first, ● after it)"
            + (f"; {mark}" if mark else "")
        )
        svg = canvas.finish(f"faults-{plan.name}")
    said = (
        "no rank failed"
        if not events
        else (
            f"first {_place(events[0])}: {events[0].cause}; {len(places) - 1} more place"
            f"{'s' * (len(places) != 2)} after it"
        )
    )
    return Picture("faults", title, svg, f"{title}: {said}.", data)


def _place(event: Event) -> str:
    return event.node + ("" if event.rank is None else f" rank {event.rank}")


def _seconds(events: Sequence[Event]) -> list[int]:
    """Return seconds since the earliest event; the logs give the month and day, but no year."""
    stamps = [
        datetime.datetime.strptime(f"2000-{event.time}", "%Y-%m-%d %H:%M:%S")
        if event.time
        else None
        for event in events
    ]
    known = [stamp for stamp in stamps if stamp]
    begun = min(known, default=None)
    out, last = [], 0
    for stamp in stamps:
        last = int((stamp - begun).total_seconds()) if stamp and begun else last
        out.append(last)
    return out


def _short(text: str) -> str:
    return text if len(text) <= 70 else text[:67] + "..."
