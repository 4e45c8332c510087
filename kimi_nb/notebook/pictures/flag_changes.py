"""Draw the flags and variables that differ between two plans: added, removed, changed.

Example::

    flag_changes.picture(before, after)
"""

from __future__ import annotations

import json
from typing import Any

from kimi_nb.plan.spec import Plan
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_ROWS = 40  # the most rows that are drawn
_LONGEST = 44  # the most characters of a value
_KINDS = {
    "added": ("+", style.GREEN),
    "gone": ("−", style.VERMILLION),
    "changed": ("→", style.BLUE),
}


def difference(before: Plan, after: Plan) -> tuple[dict[str, str], ...]:
    """Return a row for each flag or variable that differs, by role: its old and its new value."""
    old, new = _settings(before), _settings(after)
    rows = []
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            kind = "added" if key not in old else "gone" if key not in new else "changed"
            rows.append(
                {
                    "role": key[0],
                    "name": key[1],
                    "kind": kind,
                    "before": old.get(key, ""),
                    "after": new.get(key, ""),
                }
            )
    return tuple(rows)


def picture(before: Plan, after: Plan) -> Picture:
    """Draw the differences as rows, each with a sign and a colour for its kind."""
    rows = difference(before, after)
    title = (
        f"Settings: {before.name} and {after.name}"
        if before.name != after.name
        else f"Settings of {after.name}: what was changed"
    )
    counts = ", ".join(f"{sum(row['kind'] == kind for row in rows)} {kind}" for kind in _KINDS)
    shown = rows[:_ROWS]
    height = 20 * (len(shown) + 2) + (20 if len(rows) > _ROWS else 0)
    with style.figure(800 / 72, height / 72) as canvas:
        axes = canvas.plain(800, height)
        for x, heading in ((30, "role"), (100, "setting"), (380, before.name), (600, after.name)):
            axes.text(
                x,
                14,
                heading
                if x < 300 or before.name != after.name
                else ("before" if x == 380 else "now"),
                weight="bold",
            )
        for at, row in enumerate(shown):
            y = 36 + 20 * at
            sign, colour = _KINDS[row["kind"]]
            axes.add_patch(_circle(14, y - 4, colour))
            axes.text(14, y, sign, ha="center", color=style.on(colour), weight="bold", size=9)
            axes.text(30, y, row["role"], size=9)
            for x, key in ((100, "name"), (380, "before"), (600, "after")):
                axes.text(x, y, _short(row[key]), size=8, family="monospace", parse_math=False)
        if len(rows) > _ROWS:
            axes.text(30, height - 26, f"and {len(rows) - _ROWS} more", style="italic")
        axes.text(30, height - 6, counts if rows else "no difference", size=9)
        svg = canvas.finish("flags")
    return Picture("flags", title, svg, f"{title}: {counts if rows else 'no difference'}.", rows)


def _settings(plan: Plan) -> dict[tuple[str, str], str]:
    return {
        (row.role, ("--" if row.kind == "flag" else "") + row.name): _text(row.value)
        for row in plan.explain()
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _circle(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Circle  # start-up: only when drawn

    return Circle((x, y), 7, facecolor=colour, linewidth=0)
