"""Start the proxy of a rehearsal: the real vllm-router, for both kinds of command line.

vLLM-Ascend's proxy (load_balance_proxy_server_example.py) is not available as a package. Where a
bundle calls it, `UPSTREAM` takes its place beside proxy.sh and translates its options.
"""

from __future__ import annotations

import http.server
import shutil
import sys
from pathlib import Path

from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

UPSTREAM = Path(__file__).with_name("upstream_proxy.py")


def vllm_router(call: Call) -> int:
    """Run the real router, or a server with empty answers of status 200 if that is the fault."""
    if call.site.fault(FaultName.EMPTY_200, call.node):
        return _empty(call)
    real = shutil.which("vllm-router", path=str(Path(sys.executable).parent)) or call.real()
    if real is None:
        raise Refused(
            "vllm-router: command not found (it comes with pip install 'kimi_nb[rehearse]')",
            127,
        )
    call.say(f"the real vllm-router in front of stand-ins: {' '.join(call.words)}")
    words = call.words
    if "--prometheus-host" not in words:
        # The default is a port of 127.0.0.1, on which two rehearsals would collide.
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
