"""Draw plans, starts and scores, each picture with a description and its numbers.

Example::

    pictures.draw(plan, "request")  # one of NAMES
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kimi_nb.check import judge
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.notebook.pictures import (
    device_memory,
    dispatch_window,
    draft_acceptance,
    graph_padding,
    rank_ports,
    request_path,
    roofline_picture,
    topology_picture,
)
from kimi_nb.plan.spec import Plan
from kimi_nb.show.picture import Picture


def _memory(plan: Plan) -> Picture:
    return device_memory.picture(judge.memory_of(judge.of_plan(plan)))


_DRAWN: Mapping[str, Callable[[Plan], Picture]] = {
    "topology": topology_picture.picture,
    "ranks": rank_ports.picture,
    "request": request_path.picture,
    "memory": _memory,
    "graphs": graph_padding.picture,
    "drafts": draft_acceptance.picture,
    "hccl": dispatch_window.picture,
    "roofline": roofline_picture.picture,
}
NAMES = tuple(_DRAWN)


def draw(plan: Plan, name: str) -> Picture:
    """Return the picture of a plan that has this name, one of `NAMES`.

    What a plan does not have (drafts, graphs, HCCL) is a picture that says so. Raises ParameterError
    for another name.
    """
    if name not in _DRAWN:
        raise ParameterError(choice("picture", name, NAMES))
    return _DRAWN[name](plan)
