"""How much of a device's memory the engine can plan with: what torch sees, not the nominal size.

>>> from kimi_nb.params import load
>>> round(usable(load.hardware("a3")).bytes / 2**30, 2)  # of nominal 64 GB
60.96
"""

from __future__ import annotations

from kimi_nb.params import schema
from kimi_nb.plan.memory.terms import GIB, Term, figure


def usable(hardware: schema.Hardware) -> Term:
    """Return the memory of one device as torch reports it.

    --gpu-memory-utilization multiplies this figure (MemorySnapshot.total_memory). Without a figure
    of the hardware file for this nominal size, it is the usual share of the vendor's devices.
    """
    nominal = hardware.devices.memory_gb
    seen = hardware.devices.usable
    if seen is not None and seen.nominal_gb == nominal:
        size = seen.gib * GIB
        return Term("device", size, size, size, "what torch reports", seen.source, mark="measured")
    share = figure("usable", hardware.vendor)
    return share.term("device", nominal * GIB, f"{nominal} GB nominal x {share.value:g}")
