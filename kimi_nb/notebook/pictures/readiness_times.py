"""Draw when each rank was ready, from the start of the engines to its first completion.

Example::

    readiness_times.picture(plan, {"prefill0-rank0": 1.4}, mark="REHEARSAL")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kimi_nb.plan.spec import Plan
from kimi_nb.service import probe
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_ROWS = 72  # the most ranks; with more, a row is a node
_ROLES = {"prefill": style.BLUE, "decode": style.ORANGE, "mixed": style.BLUE}


def picture(plan: Plan, times: Mapping[str, float], *, mark: str = "") -> Picture:
    """Draw a bar for each rank; a rank that never answered has a cross and the words "not ready".

    ``times`` are seconds from the start of the watch to the first completion.
    """
    ranks = probe.endpoints(plan)
    data: tuple[dict[str, Any], ...] = tuple(
        {
            "rank": one.name,
            "node": one.node,
            "role": one.role,
            "ready_s": round(times[one.name], 2) if one.name in times else None,
            "mark": mark or "measured",
        }
        for one in ranks
    )
    rows: list[tuple[Any, ...]] = [
        (row["rank"], row["role"], row["ready_s"], row["ready_s"]) for row in data
    ]
    if len(rows) > _ROWS:
        rows = _by_node(data)
    last = max(times.values(), default=0.0)
    title = f"{mark + ': ' if mark else ''}{plan.name}: {len(times)} of {len(ranks)} ranks ready"
    with style.figure(9, 0.9 + 0.165 * max(len(rows), 3)) as canvas:
        axes = canvas.axes
        for at, (_, role, first, until) in enumerate(rows):
            if first is None:
                axes.plot(0, at, marker="x", color=style.VERMILLION, clip_on=False)
                axes.text(last * 0.01 or 0.01, at, "not ready", size=7.5, va="center")
                continue
            axes.barh(at, first, height=0.7, color=_ROLES[role])
            if until != first:
                axes.barh(at, until - first, left=first, height=0.7, color=_ROLES[role], alpha=0.4)
            axes.text(until, at, f"{style.SPACE}{until:.1f} s", size=7.5, va="center")
        axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=7.5)
        axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
        axes.set_xlim(0, (last or 1) * 1.08)
        axes.grid(axis="x")
        axes.set_axisbelow(True)
        axes.set_xlabel(
            "seconds from the start to the first completion"
            + (f" ({mark}: of stand-ins, no measure of any hardware)" if mark else "")
        )
        svg = canvas.finish(f"readiness-{plan.name}")
    slow = max(times, key=times.__getitem__, default="")
    said = f"; the last was {slow} after {last:.1f} s" if slow else ""
    absent = [row["rank"] for row in data if row["ready_s"] is None]
    missing = (
        f"; not ready: {', '.join(map(str, absent[:8]))}"
        + (f" and {len(absent) - 8} more" if len(absent) > 8 else "")
        if absent
        else ""
    )
    return Picture("readiness", title, svg, f"{title}{said}{missing}.", data)


def _by_node(data: tuple[Mapping[str, Any], ...]) -> list[tuple[Any, ...]]:
    """Return (node, role, seconds of its first rank, of its last); None if a rank is missing."""
    nodes: dict[tuple[str, str], list[Any]] = {}
    for row in data:
        nodes.setdefault((row["node"], row["role"]), []).append(row["ready_s"])
    return [
        (node, role, *((None, None) if None in seen else (min(seen), max(seen))))
        for (node, role), seen in nodes.items()
    ]
