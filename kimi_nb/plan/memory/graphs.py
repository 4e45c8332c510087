"""The memory of captured graphs, inside the share of the engine or after it, by version."""

from __future__ import annotations

from kimi_nb.plan.memory.shape import Shape
from kimi_nb.plan.memory.terms import GIB, Term, facts, figure


def terms(shape: Shape) -> list[Term]:
    """Return the term of the graphs' pool, none without graphs.

    >>> [one.inside for one in terms(Shape(graphs_inside=True))], terms(Shape(graphs=False))
    ([True], [])
    """
    table = facts()["graphs"]
    if not shape.graphs or shape.vendor not in table:
        return []
    return [
        figure("graphs", shape.vendor).term(
            "graphs", GIB, "a pool for all captured sizes", inside=shape.graphs_inside
        )
    ]
