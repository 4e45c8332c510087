"""Say why nothing can be sized: weights that do not fit, with the sum, or no speed of links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kimi_nb.plan import memory
from kimi_nb.plan.memory import device
from kimi_nb.sizing import units
from kimi_nb.sizing.base_recipes import Base
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.request_load import Workload


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
    least = _least_nodes(found, load, table, nodes)
    if least:
        lines.append(f"The fewest nodes that hold it: --nodes {least}.")
    else:
        lines.append(
            "No number of nodes up to 16 holds it: shorten --input, or choose another --hw."
        )
    return "\n".join(lines)


def _least_nodes(found: Sequence[Base], load: Workload, table: Factors, nodes: int) -> int | None:
    for count in range(nodes + 1, 17):
        for base in found:
            roles = [
                min(
                    (one.nodes for one in units.of(base, role, count, load, table, Counter())),
                    default=None,
                )
                for role in base.parts
            ]
            if None not in roles and sum(one or 0 for one in roles) <= count:
                return count
    return None
