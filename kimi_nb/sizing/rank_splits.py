"""How many nodes a group may have, and what one of its ranks may be split over.

Tensor parallelism, pipeline stages (pp) and prefill context parallelism (pcp), as far as the planner
allows them whatever the other sizes are; the rules judge the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kimi_nb.plan import context_parallel
from kimi_nb.sizing import factors
from kimi_nb.sizing.base_recipes import Base, Part

_DIVIDED = ("heads", "intermediate_size", "moe_intermediate_size")  # by tensor parallel


def nodes(base: Base, part: Part, most: int) -> Iterator[int]:
    """Yield the nodes that a group may have: those of the data, and what is documented."""
    if base.layout == "single":
        yield 1
        return
    least = 2 if base.layout == "dp" else 1
    sizes = {*factors.facts()["group_nodes"], part.nodes}
    yield from sorted(one for one in sizes if least <= one <= most)


def _tensor(base: Base, nodes: int) -> Iterator[int]:
    """Yield sizes of tensor parallelism: inside a node, or over all devices of a group."""
    there = base.hardware.devices.count
    divided = [base.arch[name] for name in _DIVIDED if name in base.arch]
    sizes = [one for one in range(1, there + 1) if there % one == 0]
    if nodes > 1 and base.request.recipe.processes == "node":
        sizes.append(nodes * there)
    yield from (one for one in sizes if not any(size % one for size in divided))


def of(base: Base, part: Part, count: int, refused: Counter[str]) -> Iterator[tuple[int, int, int]]:
    """Yield what a rank may be split over: tp, pipeline stages, prefill context parallelism.

    Not over stages and context at once; what the planner refuses of any size is counted here.
    """
    there = base.hardware.devices.count
    stages = count if count > 1 else 2  # over nodes, the slow links are between stages
    for tp in _tensor(base, count):
        yield tp, 1, 1
        wide = [(tp, stages, 1), *([(tp, 1, 2)] if part.role != "decode" else [])]
        for _, pp, pcp in wide:
            world = tp * pp * pcp
            if (there % world and world % there) or (count * there) % world:
                continue
            if why := _no_depth(base, part, pp, pcp, count * there // world):
                refused[why] += 1
            elif world <= there or count > 1:
                yield tp, pp, pcp


def _no_depth(base: Base, part: Part, pp: int, pcp: int, dp: int) -> str:
    """Return why the planner refuses stages or prefill context parallelism, "" if it does not."""
    if pp > 1 and base.request.recipe.processes == "rank":
        return "pp where each rank is a process"
    if pp > 1 and part.role == "decode" and base.connector.startswith("Nixl"):
        return "pp of decode (NIXL)"
    found = context_parallel.fault(
        base.engine, part.role, pcp=pcp, dp=dp, method=part.method if part.drafts else ""
    )
    return f"pcp: {found.says}" if pcp > 1 and found and found.certain else ""
