#!/usr/local/bin/python3 -ISB
"""`vllm` of the tests' images: the stand-in engine, in the container and of its own.

The file that KIMI_NB_SIMULATED_SITE names says what it pretends; the container shows where it runs
and which accelerators there are.
"""

import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path

sys.path += ["/opt/kimi_nb", "/opt/packages"]

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.engine.start import serve
from kimi_nb.rehearse.host_programs.docker_run import DEVICES
from kimi_nb.rehearse.simulated_site import NODE, SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call, Refused

_ROOT = Path("/var/lib/rehearsal")
_FIRST = {"davinci": 0, "nvidia": 0, "renderD": 128}  # the number of the first accelerator


def devices() -> str:
    """The accelerators whose device nodes are here, numbered from 0."""
    names = [*os.listdir("/dev"), *(os.listdir("/dev/dri") if os.path.isdir("/dev/dri") else ())]
    found = filter(None, (re.fullmatch("(davinci|nvidia|renderD)([0-9]+)", one) for one in names))
    return ",".join(map(str, sorted(int(one[2]) - _FIRST[one[1]] for one in found)))


def main() -> int:
    """Be `vllm`; its exit code."""
    site = SimulatedSite.read(Path(os.environ["KIMI_NB_SIMULATED_SITE"]))
    node = socket.gethostname()
    if node not in site.nodes:  # a network of its own, in which vLLM listens everywhere
        site = replace(site, nodes={node: "0.0.0.0"})
    env = {**os.environ, NODE: node, DEVICES: devices()}
    if not env[DEVICES]:
        print(f"{MARK}: RuntimeError: Failed to infer device type", file=sys.stderr)
        return 1
    _ROOT.mkdir(parents=True, exist_ok=True)
    try:
        return serve.vllm(Call("vllm", tuple(sys.argv[1:]), env, Path.cwd(), _ROOT, site))
    except Refused as refusal:
        print(f"{MARK}: what the real vllm would say:\n{refusal}", file=sys.stderr)
        return refusal.code


if __name__ == "__main__":
    sys.exit(main())
