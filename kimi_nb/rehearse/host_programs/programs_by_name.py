"""Map the names of programs on PATH to their stand-ins.

Each is a function of a `Call`. It prints and returns an exit code, raises `Refused` for what the
real program would refuse, or raises `Replace` to become another program.
"""

from __future__ import annotations

from collections.abc import Callable

from kimi_nb.plan.router import UPSTREAM
from kimi_nb.rehearse.engine.start import serve
from kimi_nb.rehearse.host_programs import (
    docker,
    front_door,
    host_settings,
    image_programs,
    installed_packages,
    job_programs,
    moe_tuner,
    shared_store,
    slurm_programs,
    upstream_proxy,
)
from kimi_nb.rehearse.stand_in_call import Call

TOOLS: dict[str, Callable[[Call], int]] = {
    "vllm": serve.vllm,
    "docker": docker.docker,
    "vllm-router": front_door.vllm_router,
    "ssh": front_door.ssh,
    **host_settings.TOOLS,
    **image_programs.TOOLS,
    **installed_packages.TOOLS,
    **job_programs.TOOLS,
    **shared_store.TOOLS,
    **slurm_programs.TOOLS,
}
# Not on PATH, but beside the script that calls it.
_BESIDE = {
    UPSTREAM: upstream_proxy.upstream_proxy,
    job_programs.TUNER: moe_tuner.benchmark_moe,
    **shared_store.BESIDE,
}


def run(call: Call) -> int:
    """Run the stand-in of this name, and return its exit code."""
    return {**TOOLS, **_BESIDE}[call.tool](call)
