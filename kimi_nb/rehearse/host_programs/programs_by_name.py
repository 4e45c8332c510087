"""The programs that a rehearsal puts first on PATH, by name.

Each is a function of a `Call`; it prints, returns an exit code, raises `Refused` for what the
real one would refuse, or `Replace` to become another program.
"""

from __future__ import annotations

from collections.abc import Callable

from kimi_nb.rehearse.engine.start import serve
from kimi_nb.rehearse.host_programs import docker as containers
from kimi_nb.rehearse.host_programs import front_door as proxies
from kimi_nb.rehearse.host_programs import host_settings as host_tools
from kimi_nb.rehearse.host_programs import job_programs as job_tools
from kimi_nb.rehearse.stand_in_call import Call

TOOLS: dict[str, Callable[[Call], int]] = {
    "vllm": serve.vllm,
    "docker": containers.docker,
    "vllm-router": proxies.vllm_router,
    "ssh": proxies.ssh,
    **host_tools.TOOLS,
    **job_tools.TOOLS,
}


def run(call: Call) -> int:
    """Be the tool; its exit code."""
    return TOOLS[call.tool](call)
