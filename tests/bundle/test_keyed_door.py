"""keyed_door.py of a bundle: it asks for the key that the proxies behind it hand to everybody."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from kimi_nb.core import paths

DOOR = paths.DATA / "bundle" / "keyed_door.py"
KEY = "k-1"
# A proxy that asks nobody: it says what it got, and streams in two pieces.
PROXY = """
import http.server, sys, time
class Any(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for text in (f"{self.command} {self.path} ".encode(), body or b"-"):
            self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(text), text))
            time.sleep(0.2)
        self.wfile.write(b"0\\r\\n\\r\\n")
    do_POST = do_GET
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Any).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def door(tmp_path):
    proxy = tmp_path / "proxy.py"
    proxy.write_text(PROXY)
    port = free_port()
    words = ["--host", "127.0.0.1", "--port", str(port), "--"]
    command = [sys.executable, str(proxy), "{host}", "{port}"]
    process = subprocess.Popen(
        [sys.executable, DOOR, *words, *command], env={**os.environ, "OPENAI_API_KEY": KEY}
    )
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            if ask(port, "GET", "/health")[0] == 200:
                break
        except OSError:
            time.sleep(0.05)
    yield port, process
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Bearer ", KEY, f"Basic {KEY}"])
def test_without_the_key_nothing_reaches_the_proxy(door, key):
    port, _ = door
    headers = {"Authorization": key} if key else {}
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("POST", "/instances/remove")):
        status, text = ask(port, method, path, b"x" * 300_000, **headers)
        assert (status, text) == (401, b'{"error":"Unauthorized"}')


def test_with_the_key_the_answer_comes_as_the_proxy_sends_it(door):
    port, _ = door
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", CHAT, b"body", {"authorization": f"Bearer {KEY}"})
    response = connection.getresponse()
    first, began = response.read(1), time.monotonic()
    assert first == b"P"
    assert response.read() == f"OST {CHAT} body".encode()
    assert time.monotonic() - began > 0.1  # not kept back until it was whole
    for path in ("/health", "/healthcheck?x=1"):
        assert ask(port, "GET", path)[0] == 200


def test_a_second_request_in_one_connection_is_not_passed_on(door):
    port, _ = door
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        text = b""
        while data := one.recv(4096):
            text += data
    assert b"GET /health" in text and b"/v1/models" not in text


@pytest.mark.parametrize(
    ("words", "env", "code", "said"),
    [
        ([], KEY, 2, "keyed_door.py --host"),
        (["--host", "127.0.0.1", "--port", "1", "--", "true"], "", 2, "OPENAI_API_KEY is not set"),
        (["--host", "127.0.0.1", "--port", "PORT", "--", "sh", "-c", "exit 7"], KEY, 7, ""),
    ],
)
def test_it_ends_with_a_word(words, env, code, said):
    words = [str(free_port()) if word == "PORT" else word for word in words]
    done = subprocess.run(
        [sys.executable, DOOR, *words],
        env={**os.environ, "OPENAI_API_KEY": env},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


def test_a_proxy_that_is_not_there_yet_is_told(tmp_path):
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, DOOR, "--host", "127.0.0.1", "--port", str(port), "--", "sleep", "60"],
        env={**os.environ, "OPENAI_API_KEY": KEY},
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                found = ask(port, "GET", "/health")
                break
            except OSError:
                time.sleep(0.05)
        assert found[0] == 503 and b"does not answer" in found[1]
    finally:
        process.terminate()
        process.wait(timeout=20)
