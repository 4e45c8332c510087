"""A proxy of the environment never sees what is asked of a node, nor the key that goes with it."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import requests
from testbed.mixed_service import MODEL, MixedService

from kimi_nb.plan import build
from kimi_nb.prove.bench import load_client, load_programs
from kimi_nb.prove.verify import curl
from kimi_nb.service import http_client

NAMES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@pytest.fixture
def server():
    """The address of a server that keeps the paths it was asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *given):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{one.server_port}", asked
        one.shutdown()
        thread.join()


def test_a_probe_goes_straight_to_the_node(server, monkeypatch):
    url, asked = server
    for name in NAMES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    # The environment does lead elsewhere: a session that trusts it reaches nobody.
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{url}/there", timeout=5)
    assert http_client.send("GET", f"{url}/straight", 5.0).status == 200
    assert asked == ["/straight"]


def test_a_load_and_the_documents_request_go_straight_to_the_service(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    plan = build.plan("k2.5", "a3", "single", pairs=[f"served-model-name={MODEL}"])
    with MixedService("engine") as service:
        assert load_client.probe(service.url, MODEL, seconds=5.0) == ""
        assert curl.run(plan, service.url, seconds=10.0).status == "pass"
        assert service.asked == 2


@pytest.mark.parametrize(
    ("given", "direct"),
    [
        ({}, "n1.example"),
        ({"no_proxy": "a,b"}, "a,b,n1.example"),
        ({"NO_PROXY": "c"}, "c,n1.example"),
        ({"no_proxy": "a", "NO_PROXY": "c"}, "a,n1.example"),
    ],
)
def test_a_load_program_goes_straight_to_the_node(given, direct):
    given |= {"http_proxy": "http://p", "PYTHONPATH": "x", "OPENAI_API_KEY": "old", "HOME": "/h"}
    made = load_programs.environment(given, "http://n1.example:8000", "")
    assert made["no_proxy"] == made["NO_PROXY"] == direct
    assert made["http_proxy"] == "http://p" and made["HOME"] == "/h"
    assert "PYTHONPATH" not in made and "OPENAI_API_KEY" not in made
    assert load_programs.environment(given, "http://n1", "k")["OPENAI_API_KEY"] == "k"
