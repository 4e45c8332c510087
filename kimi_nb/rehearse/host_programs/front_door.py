"""The front door of a rehearsal: the real vllm-router, behind either command line.

The upstream proxy (load_balance_proxy_server_example.py of vllm-ascend) is not a package; where
a bundle calls it, `UPSTREAM` stands beside proxy.sh and translates its options.
"""

from __future__ import annotations

import http.server
import shutil
import sys
from pathlib import Path

from kimi_nb.rehearse.simulated_site import MARK
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

UPSTREAM = Path(__file__).with_name("upstream_proxy.py")


def vllm_router(call: Call) -> int:
    """The real router, or one that answers 200 with nothing where that is the fault."""
    if call.world.fault("empty-200", call.node):
        return _empty(call)
    real = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or call.real()
    if real is None:
        raise Refused(
            "vllm-router: command not found (pip install vllm-router; it is one of the "
            "packages of environment.yml)",
            127,
        )
    call.say(f"the real vllm-router in front of stand-ins: {' '.join(call.words)}")
    words = call.words
    if "--prometheus-host" not in words:
        # Its default is one port of 127.0.0.1, which two rehearsals would both want.
        words = (*words, "--prometheus-host", call.address)
    raise Replace((real, *words), call.env)


def _empty(call: Call) -> int:
    words = dict(zip(call.words, call.words[1:], strict=False))

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, form: str, *args: object) -> None:
            call.say(form % args)

    address = (words.get("--host", call.address), int(words.get("--port", "30000")))
    http.server.ThreadingHTTPServer(address, Empty).serve_forever()
    return 0


def ssh(call: Call) -> int:
    """``ssh ADDRESS COMMAND ...``: the command on the node of an address."""
    if len(call.words) < 2:
        raise Refused("usage: ssh destination command [argument ...]", 255)
    address, *command = call.words
    node = next((name for name, its in call.world.nodes.items() if its == address), None)
    if node is None:
        raise Refused(f"ssh: Could not resolve hostname {address}: Name or service not known", 255)
    if call.world.fault("node-unreachable", node):
        raise Refused(f"ssh: connect to host {address} port 22: No route to host", 255)
    print(f"{MARK}: {node} is {address} of this machine", flush=True)
    raise Replace(command, call.env)
