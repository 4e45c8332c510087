"""Give each accelerator of a node to one process at a time."""

from __future__ import annotations

import fcntl
import os

from kimi_nb.rehearse.engine.engine_log import StartError
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.stand_in_call import Call

_SPARE_GB = 1.5  # memory in use on a device before anything is loaded


def claim(call: Call, settings: Settings) -> None:
    """Claim the devices of a process, by locks that the kernel releases whenever the process ends.

    Raises:
        StartError: Another process holds a device. The text is that of vLLM's memory check, because
            on real hardware the second process finds the memory full.
    """
    for place, device in enumerate(settings.devices):
        handle = os.open(call.state("devices", str(device)), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 200).decode() or "another process"
            os.close(handle)
            rank = settings.rank + place * settings.ranks // len(settings.devices)
            raise StartError("ValueError", _full(call, settings, device, holder), rank) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"rank {settings.rank}, process {os.getpid()}".encode())
        # Left open: the lock ends with the process.


def _full(call: Call, settings: Settings, device: int, holder: str) -> str:
    total = call.site.memory_gib
    wanted = total * settings.utilization
    free = max(0.0, total - wanted - _SPARE_GB)
    kind = "npu" if call.site.vendor == "ascend" else "cuda"
    return (
        f"Free memory on device {kind}:{device} ({free:.2f}/{total:.2f} GiB) on startup is "
        f"less than desired GPU memory utilization ({settings.utilization}, {wanted:.2f} GiB)."
        " Decrease GPU memory utilization or reduce GPU memory used by other processes. "
        f"[REHEARSAL: device {device} of {call.node} is held by {holder}]"
    )
