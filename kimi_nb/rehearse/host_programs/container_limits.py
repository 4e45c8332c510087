"""Tell what a container gives its programs of shared memory, locked memory and RDMA devices.

>>> size("64m"), size("1g")
(67108864, 1073741824)
"""

from __future__ import annotations

import re

from kimi_nb.check.view.deployment import Box
from kimi_nb.core import data_files
from kimi_nb.rehearse.host_programs.docker_options import is_on, last

SHARED = "KIMI_NB_REHEARSAL_SHM"  # in a container: bytes of its own /dev/shm; unset for the host's
RDMA = "KIMI_NB_REHEARSAL_RDMA"  # in a container: "device", "locked", both or none of them
CONTAINER = "KIMI_NB_REHEARSAL_CONTAINER"  # in a container: its id
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def of(box: Box, name: str) -> dict[str, str]:
    """Return the variables that stand for the limits of a container; ``name`` is its id."""
    free = is_on(box, "--privileged")
    device = free or any(
        one.startswith("/dev/infiniband") for one in box.options.get("--device", ())
    )
    locked = (
        free
        or bool({"IPC_LOCK", "ALL"} & {*box.options.get("--cap-add", ())})
        or any(re.match(r"memlock=(-1|unlimited)", one) for one in box.options.get("--ulimit", ()))
    )
    words = [word for word, there in (("device", device), ("locked", locked)) if there]
    out = {CONTAINER: name, RDMA: " ".join(words)}
    if last(box, "--ipc") != "host":
        told = (
            last(box, "--shm-size") or data_files.facts("rehearse/nodes")["shared_memory"]["docker"]
        )
        out[SHARED] = str(size(told))
    return out


def size(text: str) -> int:
    """Return the bytes of a size as docker writes it."""
    found = re.fullmatch(r"([0-9.]+) ?([bkmgt]?)(i?b)?", text.strip().lower())
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0
