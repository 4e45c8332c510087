"""Rules on engines that take the same devices because nothing gives each of them its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView

_NEAR = 40  # lines
_USUAL = 0.9  # --gpu-memory-utilization, where it is not given


@rule(
    "topology/same-device",
    WARNING,
    "Engines that run beside one another are given devices, or parts of them, that do not overlap.",
    "Set CUDA_VISIBLE_DEVICES (or ASCEND_RT_VISIBLE_DEVICES) for each, or lower "
    "--gpu-memory-utilization so that they fit on one.",
    "vLLM takes the first devices that it sees, and 0.9 of their memory",
)
def same_device(d: Deployment) -> Iterator[Problem]:
    """The second one ends with 'Free memory on device is less than desired GPU memory utilization'."""
    if d.plan is not None:
        return
    first: dict[str, EngineView] = {}
    for server in d.servers:
        # Blocks of a document are typed on one machine, unless they name another.
        if not _takes_first(server) or not re.fullmatch(
            rf"{re.escape(server.spot.file)}(:\d+)?", server.node
        ):
            continue
        other = first.setdefault(server.spot.file, server)
        # At one port, or far apart in a document, they are alternatives.
        apart = server.spot.line - other.spot.line > _NEAR
        if apart or other.http_port == server.http_port or other.model == server.model:
            first[server.spot.file] = server
            continue
        both = _share(other) + _share(server)
        if both > 1:
            yield Problem(
                server.spot,
                f"it takes the same devices as {other.spot.name}: {both:.2f} of their memory",
            )


def _takes_first(server: EngineView) -> bool:
    """Return whether an engine takes the first devices of its node, as far as can be seen."""
    return (
        server.devices is None
        and not any("VISIBLE_DEVICES" in name or "VLLM_CPU" in name for name in server.env)
        and server.http_port is not None
        and bool(server.model)
        and not fill_ins.holds(server.model)
        and not server.assumed
        and server.dp == 1
        and "distributed-executor-backend" not in server.flags
        and "device-ids" not in server.flags
    )


def _share(server: EngineView) -> float:
    value = server.flags.get("gpu-memory-utilization", _USUAL)
    return float(value) if isinstance(value, int | float) else 0.0
