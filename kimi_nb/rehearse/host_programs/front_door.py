"""Start the front door of a rehearsal: the real vllm-router, or what stands for the other one.

vLLM-Ascend's proxy (load_balance_proxy_server_example.py) is not available as a package, and its
text is not ours. Where a bundle calls it, the program `upstream_program`, beside proxy.sh,
calls `upstream_proxy`, which behaves as the real one was recorded.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import psutil

from kimi_nb.core.marks import MARK
from kimi_nb.plan.router import DOOR, UPSTREAM
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import docker_names, empty_door, path_folder
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

_HOST = "127.0.0.1"  # where vllm-router listens by default, and with its metrics


def upstream_program(root: Path) -> Path:
    """Return the program that stands where the upstream proxy would: it calls the spawner.

    It is written into the rehearsal's folder, for scripts to copy it or to call it there.
    """
    file = root / UPSTREAM
    if not file.exists():
        new = file.with_name(f"{UPSTREAM}.{os.getpid()}")
        new.write_text(path_folder.caller("the program of vllm-ascend"), encoding="utf-8")
        os.replace(new, file)
    return file


def vllm_router(call: Call) -> int:
    """Run the real router, or a server with empty answers of status 200 if that is the fault."""
    if call.site.fault(FaultName.EMPTY_200, call.node):
        given = dict(zip(call.words, call.words[1:], strict=False))
        host, port = given.get("--host", _HOST), int(given.get("--port", "30000"))
        return empty_door.serve(call.at(host), port, call.say)
    real = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or call.real()
    if real is None:
        raise Refused(
            "vllm-router: command not found (it comes with pip install 'kimi_nb[rehearse]')",
            127,
        )
    call.say(f"the real vllm-router in front of stand-ins: {' '.join(call.words)}")
    words = [_at(call, word) for word in call.words]
    if behind_door(call):
        # The door, which is no stand-in, asks it at the address of this machine.
        words[words.index("--host") + 1] = _HOST
    for option in ("--host", "--prometheus-host"):
        if option not in words:
            words += [option, call.at(_HOST)]
    raise Replace((real, *words), call.env)


def behind_door(call: Call) -> bool:
    """Return whether the door that asks for the key (keyed_door.py) has called this program."""
    if call.channel is None or "--host" not in call.words:
        return False
    try:
        above = psutil.Process(docker_names.caller(call)).parent()
        return above is not None and any(word.endswith(DOOR) for word in above.cmdline())
    except psutil.Error:
        return False


def _at(call: Call, word: str) -> str:
    """Return a word of a command line with addresses of this machine."""
    scheme, between, rest = word.rpartition("://")
    if not between:
        return call.at(word)
    host, colon, port = rest.rpartition(":")
    return f"{scheme}://{call.at(host)}:{port}" if colon else f"{scheme}://{call.at(rest)}"


def ssh(call: Call) -> int:
    """Run ``ssh ADDRESS COMMAND ...``: the command, as on the node of that address."""
    if len(call.words) < 2:
        raise Refused("usage: ssh destination command [argument ...]", 255)
    address, *command = call.words
    node = next((name for name, its in call.site.nodes.items() if its == address), None)
    if node is None:
        raise Refused(f"ssh: Could not resolve hostname {address}: Name or service not known", 255)
    if call.site.fault(FaultName.NODE_UNREACHABLE, node):
        raise Refused(f"ssh: connect to host {address} port 22: No route to host", 255)
    print(f"{MARK}: {node} is {address} of this machine", flush=True)
    raise Replace(command, call.env)
