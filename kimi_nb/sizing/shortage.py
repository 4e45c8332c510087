"""Say why nothing can be sized: weights that do not fit, with the sum, or no speed of links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kimi_nb.plan import memory
from kimi_nb.plan.memory import device
from kimi_nb.sizing import units
from kimi_nb.sizing.base_recipes import Base
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload

_MOST = 16  # nodes that are looked at


def of_links(hardware: str) -> str:
    """Return that every size needs the speed of a link that nobody has published."""
    return (
        f"{hardware}: nobody has published its node_link_gb_s or network_gb_s, which every size "
        "needs. Put the figures, with their source, below `peaks:` in a hardware file of your own "
        "and name the file with --hw, or choose another --hw."
    )


def said(found: Sequence[Base], load: Workload, table: Factors, nodes: int) -> str:
    """Return the sum by which the weights do not fit, and how many nodes they take."""
    base = found[0]
    chip, asked = base.hardware, base.request
    size = memory.checkpoint_bytes(base.arch, base.precision)
    usable = device.usable(chip).bytes * nodes * chip.devices.count
    gib = memory.GIB
    lines = [
        f"{asked.model.title} on {nodes} node{'s' * (nodes > 1)} of {chip.name}: "
        f"{size / gib:.0f} GiB of {base.precision} weights, beside them cache for "
        f"{load.longest} tokens, activations and buffers; {nodes} x {chip.devices.count} "
        f"devices have {usable / gib:.0f} GiB."
    ]
    needs = [(one.layout, _needs(one, load, table)) for one in found]
    held = [(layout, need) for layout, need in needs if need]
    if size <= usable:  # the sum is not what refuses it
        lines += [f"layout {layout} takes {_nodes_of(need)}." for layout, need in held]
    least = [sum(need.values()) for _, need in held if sum(need.values()) > nodes]
    if least:
        lines.append(f"The fewest nodes that hold it: --nodes {min(least)}.")
    else:
        lines.append(
            f"No number of nodes up to {_MOST} holds it: shorten --input, or choose another --hw."
        )
    return "\n".join(lines)


def _nodes_of(need: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} node{'s' * (count > 1)}" + (f" for {role}" if len(need) > 1 else "")
        for role, count in need.items()
    )


def _needs(base: Base, load: Workload, table: Factors) -> dict[str, int]:
    """Return the fewest nodes of each role; nothing where `_MOST` nodes do not hold one of them."""
    out: dict[str, int] = {}
    for role in base.parts:
        able = [one.nodes for one in units.of(base, role, _MOST, load, table, Counter())]
        if not able:
            return {}
        out[role] = min(able)
    return out
