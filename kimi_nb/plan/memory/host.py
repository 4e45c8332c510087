"""What loading takes of the host: memory of the processes, page cache, disk, and minutes.

>>> round(load_minutes(594, 2.0), 1)  # 594 GB at 2 GB/s
5.0
"""

from __future__ import annotations

from kimi_nb.plan.memory.terms import GIB, Figure, Term, figure


def process() -> Figure:
    """Return the GiB of host memory that one worker process takes."""
    return figure("host_process")


def need_gib(ranks: int, offload_gib: float = 0.0) -> float:
    """Return the GiB of host memory that the engine of a node takes: workers and offloaded cache.

    >>> need_gib(8, offload_gib=400)
    464.0
    """
    return float(offload_gib + process().value * ranks)


def least_gib(ranks: int, offload_gib: float = 0.0) -> float:
    """Return the GiB of host memory without which the engine of a node surely fails.

    >>> least_gib(8, offload_gib=400)
    424.0
    """
    return float(offload_gib + process().low * ranks)


def terms(
    ranks: int, offload_gib: float, checkpoint_gb: float | None, store_gib: float = 0.0
) -> list[Term]:
    """Return the terms of a node's memory; ``store_gib`` is what it gives to a shared KV store.

    Reading a checkpoint fills the page cache with it. The kernel takes that back under pressure,
    but a limit of a container counts it, and a reader that prefetches waits for it.
    """
    out = [process().term("processes", ranks * GIB, "a worker for each device of the node")]
    if offload_gib:
        size = offload_gib * GIB
        out.append(Term("offloaded cache", size, size, size, "--kv-offloading-size", "the plan"))
    if store_gib:
        size = store_gib * GIB
        formula = "a segment and a buffer of each device or service"
        out.append(Term("shared KV store", size, size, size, formula, "the plan"))
    if checkpoint_gb:
        size = checkpoint_gb * 1e9
        out.append(
            Term(
                "page cache",
                size,
                0.0,
                size,
                "the checkpoint, as it is read",
                "safetensors are mapped; --safetensors-load-strategy prefetch reads all of them",
                inside=False,
            )
        )
    return out


def load_minutes(checkpoint_gb: float, gb_per_s: float) -> float:
    """Return the minutes in which a disk or network of this bandwidth reads a checkpoint."""
    return checkpoint_gb / gb_per_s / 60
