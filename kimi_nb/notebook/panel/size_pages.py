"""Write what the panel's search of sizes has found, as HTML and as the options of a list."""

from __future__ import annotations

import html
from collections.abc import Sequence

from kimi_nb.i18n import translate
from kimi_nb.notebook.panel import panel_style
from kimi_nb.notebook.panel.size_request import SizeRequest
from kimi_nb.notebook.panel.size_search import SizeSearch
from kimi_nb.notebook.size_proposal import Proposed
from kimi_nb.sizing import as_plan

_BEFORE = (
    "Searches which layouts, parallel sizes and batch limits keep these latencies, by a model of "
    "time, and sorts them by tokens per second and device. Each candidate is a plan that the rules "
    "pass."
)
_NODES = "There is no plan whose nodes to take: write how many, such as 4."


def status(sizes: SizeSearch, asked: SizeRequest) -> str:
    """Return the line beside the button: what is searched, or why there is no result."""
    if sizes.running:
        return f"{panel_style.waiting('search')}<span role='status'>{panel_style.escaped(sizes.said)}</span>"
    if not asked.nodes and not asked.mistakes:
        return html.escape(translate(_NODES))
    return panel_style.alert(sizes.error)


def options(found: Proposed | None) -> Sequence[tuple[str, int]]:
    """Return (what is read, number of the candidate from 0), best first; () without any."""
    if found is None or found.answer is None:
        return ()
    return tuple(
        (f"{at + 1}: {one.point.base.layout}, {as_plan.described(one.point)}", at)
        for at, one in enumerate(found.answer.candidates)
    )


def result(sizes: SizeSearch) -> str:
    """Return the table of candidates and what the search says of them, or what it would do."""
    found = sizes.found
    if found is None:
        return f"<p>{html.escape(translate(_BEFORE))}</p>"
    if found.answer is None:
        why = translate("No time can be estimated, or nothing fits:")
        return f"<p>{html.escape(why)}</p>{panel_style.alert(found.why)}"
    said = found.answer.sentences()
    if sizes.factors is not None:
        said.append(f"factors: {sizes.factors.why}.")
    items = "".join(f"<li>{panel_style.escaped(one)}</li>" for one in said)
    name = html.escape(f"{found.choice.model} · {found.choice.hw}")
    return f"<h4>{name}</h4>{found.answer.table()._repr_html_()}<ul>{items}</ul>"
