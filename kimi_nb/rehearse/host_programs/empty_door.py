"""Be a front door that answers everything with status 200 and nothing in it: a fault."""

from __future__ import annotations

import http.server
from collections.abc import Callable


def serve(host: str, port: int, say: Callable[[str], None]) -> int:
    """Serve until a signal; ``say`` gets a line for each request."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, form: str, *args: object) -> None:
            say(form % args)

    http.server.ThreadingHTTPServer((host, port), Empty).serve_forever()
    return 0
