"""Refuse, or name, what keeps ranks from each other: gloo's interface, /dev/shm and RDMA.

The sizes, and where they come from, are in data/rehearse/nodes.yaml. Outside of containers the
host's own limits hold, of which nothing is known.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kimi_nb.core import data_files
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.engine.engine_log import Log, StartError
from kimi_nb.rehearse.engine.ranks.rendezvous import Group
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.host_programs import container_limits
from kimi_nb.rehearse.host_programs.container_limits import CONTAINER, RDMA, SHARED
from kimi_nb.rehearse.stand_in_call import Call

_GIB = 1 << 30
# Without an interface gloo binds to the address of the host's name, which on Debian and Ubuntu is
# 127.0.1.1 (aws-samples/aws-do-eks pull request 69, vllm-project/vllm issue 7074).
_NO_MESH = (
    "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] timed "
    "out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:14215 (rank={rank}, size={size}, "
    "local=[127.0.1.1])"
)


def check(call: Call, mine: Settings, group: Group, log: Log) -> None:
    """Refuse an engine whose ranks cannot talk, and log where they take another way.

    Raises:
        StartError: In the words of NCCL, UCX or the engine.
    """
    # A job under SLURM looks itself whether its nodes' names have addresses for the others.
    told = call.env.get("GLOO_SOCKET_IFNAME") or call.env.get("SLURM_JOB_NODELIST")
    if not told and (mine.spans or _elsewhere(call, mine, group)):
        raise StartError("RuntimeError", _NO_MESH.format(rank=mine.rank, size=mine.dp), mine.rank)
    if CONTAINER not in call.env:
        return
    facts = data_files.facts("rehearse/nodes")
    (_engines(call) / str(os.getpid())).touch()
    told = facts["shared_memory"]["gpu"]
    if (
        call.site.vendor != "ascend"
        and len(mine.devices) > 1
        and int(call.env.get(SHARED, sys.maxsize)) < container_limits.size(told["least"])
    ):
        raise StartError(
            "RuntimeError",
            "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details); NCCL WARN "
            f"Error while creating shared memory segment {told['segment']} (size {told['bytes']})",
            mine.rank,
        )
    if call.site.vendor in ("nvidia", "amd") and _over_nodes(call, mine):
        _rdma(call, mine, log, facts["locked_kb"])


def _elsewhere(call: Call, mine: Settings, group: Group) -> bool:
    """Return whether a process of the group is on another node, as far as this one knows it."""
    if mine.meets is None:
        return False
    here = (call.address, call.at("localhost"))
    return mine.meets[0] not in here or any(node != mine.node for node in group.nodes)


def stall(call: Call) -> str:
    """Return what ends an engine under load whose calls wait for /dev/shm; "" if none does."""
    if SHARED not in call.env or call.site.vendor != "ascend":
        return ""
    facts, there = data_files.facts("rehearse/nodes")["shared_memory"], int(call.env[SHARED])
    count = sum(Path("/proc", one.name).exists() for one in _engines(call).iterdir())
    if count < 2 or there > container_limits.size(facts["ascend"]["several_fill"]):
        return ""
    return (
        f"TimeoutError: RPC call to sample_tokens timed out. [{MARK}: {there / _GIB:.1f} GiB of "
        f"/dev/shm for {count} engines of one container, where HCCL keeps buffers of every group]"
    )


def _engines(call: Call) -> Path:
    """Return the folder with a file for each engine of the container, by its process."""
    return call.state("containers", f"{call.env[CONTAINER]}.engines", "x").parent


def _over_nodes(call: Call, mine: Settings) -> bool:
    """Return whether the ranks, or their caches, travel between nodes."""
    return len(call.site.nodes) > 1 and (mine.meets is not None or mine.transfer is not None)


def _rdma(call: Call, mine: Settings, log: Log, limit: int) -> None:
    has = call.env[RDMA].split()
    if "device" not in has:
        # NCCL says this only with NCCL_DEBUG=INFO; UCX and NIXL say nothing.
        log.info("nccl", f"NCCL INFO NET/IB : No device found. ({MARK}: no RDMA device)")
        log.info("nccl", f"NCCL INFO NET/Socket : Using [0]eth0:{call.address}<0>")
    elif "locked" not in has and mine.transfer is not None:
        raise StartError(
            "nixl._bindings.nixlBackendError",
            "NIXL_ERR_BACKEND; UCX  ERROR mlx5_0: mlx5dv_devx_umem_reg(size=131072 access=0x0) "
            "failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to "
            f"'unlimited' (current: {limit} kbytes)",
            mine.rank,
        )
    elif "locked" not in has:
        raise StartError(
            "RuntimeError",
            "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details); NCCL WARN "
            "Call to ibv_reg_mr failed with error Cannot allocate memory "
            f"[{MARK}: locked memory is limited to {limit} kbytes]",
            mine.rank,
        )
