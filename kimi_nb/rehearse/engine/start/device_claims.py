"""Accelerators of a node: each belongs to one process at a time."""

from __future__ import annotations

import fcntl
import os

from kimi_nb.rehearse.engine.engine_log import StartError
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.stand_in_call import Call

_SPARE_GB = 1.5  # what a device has in use before anything is loaded


def claim(call: Call, settings: Settings) -> None:
    """Take the devices of a process until it ends, whatever ends it (a lock of the kernel's).

    Raises StartError, in the words of vLLM's memory check, for a device that is in use: the
    second process finds it full.
    """
    for place, device in enumerate(settings.devices):
        handle = os.open(call.state("devices", str(device)), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode() or "another process"
            os.close(handle)
            rank = settings.rank + place // max(1, settings.tp)
            raise StartError("ValueError", _full(call, settings, device, holder), rank) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"rank {settings.rank}, process {os.getpid()}".encode())
        # Not closed: the lock ends with the process.


def _full(call: Call, settings: Settings, device: int, holder: str) -> str:
    total = float(call.world.memory_gb)
    wanted = total * settings.utilization
    free = max(0.0, total - wanted - _SPARE_GB)
    kind = "npu" if call.world.vendor == "ascend" else "cuda"
    return (
        f"Free memory on device {kind}:{device} ({free:.2f}/{total:.2f} GiB) on startup is "
        f"less than desired GPU memory utilization ({settings.utilization}, {wanted:.2f} GiB)."
        " Decrease GPU memory utilization or reduce GPU memory used by other processes. "
        f"[REHEARSAL: device {device} of {call.node} is held by {holder}]"
    )
