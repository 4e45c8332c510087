"""Requests to strangers: every one ends in time and in bounded memory, and says what went wrong."""

from __future__ import annotations

import ast
import json
import socket
import ssl
import time
import tracemalloc

import hostile
import pytest
from hostile import HostileServer

from kimi_nb.core import paths
from kimi_nb.core.errors import ParameterError
from kimi_nb.service import http_client
from kimi_nb.service.http_client import Fault, Limits

QUICK = Limits(total=0.5, connect=0.5, idle=0.5, size=1 << 20)
SECRET = {"Authorization": "Bearer planted-secret-4711"}

DRIPS = [
    hostile.drips_head,
    hostile.drips_body,
    hostile.drips_chunks,
    hostile.drips_size,
    hostile.drips_trailer,
]
FLOODS = [
    hostile.floods_body,
    hostile.floods_length,
    hostile.floods_headers,
    hostile.floods_line,
    hostile.floods_continue,
    hostile.floods_stream,
    hostile.floods_chunk,
    hostile.floods_trailer,
    hostile.bomb,
]
BROKEN = [
    (hostile.chunk_sizes_lie, Fault.CUT_OFF, "broke off after"),
    (hostile.length_lies, Fault.CUT_OFF, "broke off after 2 of 999 bytes"),
    (hostile.chunk_sizes_are_none, Fault.CUT_OFF, "broke off after"),
    (hostile.chunk_sizes_are_negative, Fault.CUT_OFF, "broke off after"),
    (hostile.packed_badly, Fault.NO_HTTP, "cannot be unpacked"),
    (hostile.packed_strangely, Fault.NO_HTTP, "packed as 'br'"),
    (hostile.is_no_http, Fault.NO_HTTP, "SSH-2.0-OpenSSH_9.6"),
    (hostile.hangs_up, Fault.CUT_OFF, "no answer"),
]


def both(url: str, limits: Limits = QUICK, **more: object) -> list[http_client.Reply]:
    """The same question twice: the answer as a whole, and as a stream."""
    return [
        http_client.send("GET", url, limits, **more),
        http_client.stream(url, limits, **more),
    ]


def name(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.parametrize("manner", DRIPS, ids=name)
def test_what_drips_is_named_in_time(manner):
    with HostileServer(manner) as server:
        begun = time.monotonic()
        for reply in both(server.url):
            assert reply.fault is Fault.DRIPS, reply
            assert reply.error.startswith("drips: ") and " bytes in 0.5 s" in reply.error
            assert not reply.answered and not reply.good
        assert time.monotonic() - begun < 3


@pytest.mark.parametrize("manner", FLOODS, ids=name)
def test_what_floods_is_named_and_takes_no_memory(manner):
    limits = Limits(total=20, connect=1, idle=5, size=1 << 20)
    hostile._packed_spaces()
    with HostileServer(manner) as server:
        for ask in (http_client.send, http_client.stream):
            first = ("GET",) if ask is http_client.send else ()
            tracemalloc.start()
            reply = ask(*first, server.url, limits)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert reply.fault is Fault.FLOODS and reply.error.startswith("floods: "), reply
            assert not reply.good and peak < 8 << 20


def test_the_figures_of_a_flood():
    with HostileServer(hostile.floods_length) as server:
        reply = http_client.send("GET", server.url, QUICK)
        assert reply.error == "floods: it announces 6,500,000,000 bytes, at most 1,048,576 are read"


def test_a_length_of_hundreds_of_digits_is_told_in_a_line():
    def manner(connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 3000 + b"\r\n\r\n")

    with HostileServer(manner) as server:
        reply = http_client.send("GET", server.url, QUICK)
    assert reply.fault and len(reply.error) < 500


@pytest.mark.parametrize(("manner", "fault", "words"), BROKEN, ids=name)
def test_what_is_broken_is_named(manner, fault, words):
    with HostileServer(manner) as server:
        for reply in both(server.url):
            assert reply.fault is fault and words in reply.error, reply


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nobody_is_sent_elsewhere(status):
    with HostileServer(hostile.well) as other:
        manner = hostile.redirects(f"{other.url}/v1/models?token=abcdefgh1", status)
        with HostileServer(manner) as server:
            for reply in both(f"{server.url}/v1/models", headers=SECRET):
                assert (reply.status, reply.fault) == (status, Fault.ELSEWHERE)
                assert reply.error == f"it sends to {other.url}/v1/models, where nobody asked to go"
        assert other.asked == []


def test_a_silence_before_and_within_an_answer():
    with HostileServer(hostile.says_nothing) as server:
        for reply in both(server.url):
            assert (reply.fault, reply.error) == (Fault.LATE, "no answer in 0.5 s")
    limits = Limits(total=20, connect=1, idle=0.2)
    with HostileServer(hostile.falls_silent) as server:
        for reply in both(server.url, limits):
            assert reply.fault is Fault.LATE
            assert reply.error.startswith("no end: nothing came for 0.2 s after "), reply
    with HostileServer(hostile.falls_silent) as server:
        for reply in both(server.url, Limits(total=0.3, connect=1, idle=20)):
            assert reply.fault is Fault.LATE and reply.error.startswith("no end in 0.3 s"), reply


def test_a_server_that_reads_nothing():
    """The request itself is larger than what the network buffers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        begun = time.monotonic()
        reply = http_client.send("POST", url, QUICK, data="x" * (64 << 20))
        assert reply.fault is Fault.LATE and time.monotonic() - begun < 3


def test_a_good_answer_also_when_packed():
    for manner in (hostile.well, hostile.packed):
        with HostileServer(manner) as server:
            for reply in both(server.url, headers=SECRET):
                assert reply.good and reply.body == {"data": []} and not reply.error
            assert all(b"Accept-Encoding: identity" in one for one in server.asked)
            assert all(b"Bearer planted-secret-4711" in one for one in server.asked)


def test_the_request_is_what_was_asked():
    with HostileServer(hostile.well) as server:
        http_client.send("POST", f"{server.url}/v1/chat?a=b", QUICK, json={"a": "é"})
        head, _, body = server.asked[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/chat?a=b HTTP/1.1\r\n")
        assert b"Content-Type: application/json" in head and json.loads(body) == {"a": "é"}


def test_a_stream_keeps_what_came_and_when():
    def three(one: socket.socket) -> None:
        one.sendall(hostile.CHUNKED)
        for _ in range(3):
            one.sendall(b"%x\r\n%b\r\n" % (len(hostile.EVENT), hostile.EVENT))
            time.sleep(0.05)
        one.sendall(b"0\r\n\r\n")

    with HostileServer(three) as server:
        reply = http_client.stream(server.url, QUICK)
        assert reply.good and reply.text == hostile.EVENT.decode() * 3
        assert len(reply.arrivals) == 3 and reply.arrivals[2] - reply.arrivals[0] > 0.05


@pytest.mark.parametrize("key", ["a\nb-planted", "a\r\nX: planted", "“planted”", "planted\0"])
def test_a_key_that_no_header_can_hold_is_named_and_not_shown(key):
    with HostileServer(hostile.well) as server:
        with pytest.raises(ParameterError, match="Authorization: it holds a character") as error:
            http_client.send("GET", server.url, QUICK, headers={"Authorization": f"Bearer {key}"})
        assert "planted" not in str(error.value) and server.asked == []


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"])
def test_a_proxy_of_the_environment_is_not_used(variable, monkeypatch):
    with HostileServer(hostile.well) as proxy, HostileServer(hostile.well, "127.0.0.2") as server:
        monkeypatch.setenv(variable, proxy.url)
        assert all(reply.good for reply in both(server.url))
        assert http_client.listens(server.url, 1.0)
        assert proxy.asked == []
        assert len([one for one in server.asked if one.strip()]) == 2


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://" + "a" * 3000 + ":8000", "is no address"),
        ("http://" + "a" * 64 + ":8000", "is no name of a host"),
        ("http://" + "a." * 100 + "b:8000", "is not known to this machine"),
        ("http://a..b:8000", "is no name of a host"),
        ("http://no-such-host.invalid:8000", "is not known to this machine"),
        ("http://[::1", "is no address"),
        ("http://127.0.0.1:99999", "is no address"),
        ("http://127.0.0.1:0", "is no address"),
        ("ftp://127.0.0.1", "is no address"),
        ("http://127.0.0.1:8000/a b", "is no address"),
        ("http://127.0.0.1:9", "Connection refused"),
    ],
)
def test_an_address_that_leads_nowhere(url, words):
    for reply in both(url):
        assert reply.fault is Fault.UNREACHABLE and words in reply.error, reply
        assert reply.status == 0 and len(reply.error) < 300
    assert not http_client.listens(url, 0.5)


def test_tls_that_is_none():
    with HostileServer(hostile.well) as server:
        reply = http_client.send("GET", server.url.replace("http:", "https:"), QUICK)
        assert reply.fault is Fault.NO_TLS and reply.error == "no TLS is spoken there"


def test_tls_that_drips():
    """The handshake has no more time than the rest."""
    with HostileServer(lambda one: hostile._drip(one, b"\x16")) as server:
        begun = time.monotonic()
        reply = http_client.send("GET", server.url.replace("http:", "https:"), QUICK)
        assert reply.fault and time.monotonic() - begun < 3
    assert http_client._tls().verify_mode is ssl.CERT_REQUIRED


def test_nothing_else_speaks_http():
    """One client; the load client of bench is asynchronous, and has the same limits."""
    allowed = {
        "kimi_nb/service/http_client.py": {"http.client", "socks"},
        "kimi_nb/prove/bench/load_session.py": {"aiohttp"},
        "kimi_nb/prove/bench/load_client.py": {"aiohttp"},
        "kimi_nb/prove/bench/random_prompts.py": {"aiohttp"},
        "kimi_nb/prove/bench/timed_stream.py": {"aiohttp"},
    }
    clients = {"requests", "httpx", "aiohttp", "urllib.request", "urllib3", "http.client", "socks"}
    found: dict[str, set[str]] = {}
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        if path.is_relative_to(paths.DATA):
            continue  # what users run on their nodes
        text = path.read_text(encoding="utf-8")
        if not any(one in text for one in clients):
            continue
        for node in ast.walk(ast.parse(text)):
            names = (
                [one.name for one in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for one in set(names) & clients:
                found.setdefault(str(path.relative_to(paths.PACKAGE.parent)), set()).add(one)
    assert found == allowed
