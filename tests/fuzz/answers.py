"""What services answer: bytes of HTTP, completions, streams, counters."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from testbed.silent_logs import SilentLogs

from fuzz import change, guard
from fuzz.targets import Target, instead, screen, written
from kimi_nb.plan import build
from kimi_nb.prove import verify
from kimi_nb.prove.bench import metrics, timed_stream
from kimi_nb.prove.verify import target, vendor_verifier
from kimi_nb.service import http_client, probe, readiness
from kimi_nb.service.http_client import Limits, Reply

_QUICK = Limits(total=2.0, connect=1.0, idle=1.0, size=1 << 20)


def _http(data: bytes, folder: Path) -> str:
    """Bytes that come over the network, as a whole answer and as a stream."""
    shown = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        thread = threading.Thread(target=_serve, args=(server, data, 2))
        thread.start()
        shown = [http_client.send("GET", f"{url}/v1/models", _QUICK),
                 http_client.stream(f"{url}/v1/chat", _QUICK, json={})]  # fmt: skip
        thread.join(10)
    for reply in shown:
        assert reply.good or reply.fault or reply.status != 200
        assert len(reply.error) < 600
        assert reply.content is not None and reply.answered in (True, False)
    return screen(*(reply.error + reply.mark for reply in shown))


def _serve(server: socket.socket, data: bytes, times: int) -> None:
    server.settimeout(5)
    for _ in range(times):
        try:
            one, _ = server.accept()
            with one:
                one.settimeout(5)
                one.recv(65536)
                one.sendall(data)
        except OSError:
            continue


def _said(data: bytes) -> Reply:
    """An answer with this body."""
    text = data.decode("utf-8", "replace")
    return Reply(200, text, 0.01, kind="application/json", arrivals=(0.01,))


def _verify(data: bytes, folder: Path) -> str:
    """Every check, of a service that always answers this."""
    reply = _said(data)
    asked = target.at("http://127.0.0.1:9", "kimi", key=guard.SECRET, seconds=1.0, pauses=())
    with (
        instead(http_client, "send", lambda *a, **more: reply),
        instead(http_client, "stream", lambda *a, **more: reply),
        instead(http_client, "listens", lambda *a: True),
    ):
        found = verify.verify(asked, folder=folder / "run")
        verify.verify(asked, folder=folder / "run", resume=True)
    assert all(len(one.got) < 3000 for one in found.results)
    return screen(found)


def _start(data: bytes, folder: Path) -> str:
    """A start whose engines and door answer this."""
    plan = build.plan("k2.5", "h200", "single")
    reply, shown = _said(data), []
    with (
        instead(http_client, "send", lambda *a, **more: reply),
        instead(http_client, "listens", lambda *a: True),
        instead(readiness, "_SAY", 0.0),
    ):
        patience = readiness.Limits(ready=0.0, progress=0.0, answer=0.1, door=0.1)
        watch = readiness.Watch(plan, SilentLogs(), dict, patience, say=shown.append)
        for step in (watch.wait_ready, watch.first_answer, watch.check_transfer,
                     watch.look_at_answers, watch.load):  # fmt: skip
            try:
                step()
            except readiness.Found as error:
                guard.message(str(error.found))
                shown.append(str(error.found))
        shown += [probe.version("http://127.0.0.1:9", 1.0)[:200], str(probe.moved(["a"], 1.0))]
    return screen(*shown)


def _stream(data: bytes, folder: Path) -> str:
    """A stream that comes in two pieces, as a load client reads it."""
    out = timed_stream.Timed(3)
    stream = timed_stream._Stream(out)
    try:
        stream.take(data[: len(data) // 2])
        stream.take(data[len(data) // 2 :])
        stream.end()
    except timed_stream._Faulty as error:
        guard.message(str(error))
        return screen(error)
    return str(out.output_len)


def _metrics(data: bytes, folder: Path) -> str:
    """The counters of an engine, looked at twice."""
    reply = _said(data)
    with instead(http_client, "send", lambda *a, **more: reply):
        sampler = metrics.Sampler(["http://127.0.0.1:9"])
        sampler._look()
        sampler._look()
        moved = probe.moved(["http://127.0.0.1:9"], 1.0)
    return screen(sampler.result(), moved)


def _requests(data: bytes, folder: Path) -> str:
    """A file of requests for the vendor's verifier, and what becomes of each."""
    shown: list[str] = []
    with guard.refusals(shown):
        path = written(folder, "requests.jsonl", data)
        samples = vendor_verifier.read(path)
        asked = target.at("http://127.0.0.1:9", "kimi", seconds=1.0, pauses=())
        reply = _said(_CALL)
        with (
            instead(http_client, "send", lambda *a, **more: reply),
            instead(http_client, "stream", lambda *a, **more: reply),
        ):
            results = {one.line: vendor_verifier._asked(one, asked) for one in samples[:3]}
            shown.append(str(vendor_verifier.measure(samples, results)))
    return screen(*shown)


_CALL = (
    b'{"choices": [{"finish_reason": "tool_calls", "message": {"role": "assistant", "content": "",'
    b' "tool_calls": [{"id": "functions.f:0", "type": "function", "function": {"name": "f",'
    b' "arguments": "{\\"a\\": 1}"}}]}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1,'
    b' "total_tokens": 2}}'
)

TARGETS = (
    Target("http", _http, (b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n", b"Content-Length: ", b"Location: http://a",
           b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n", b"X-Rehearsal: ", b"HTTP/1.1 100 C\r\n\r\n")),
    Target("completion", _verify, (b"data: ", b"\n\n", b"[DONE]", b"<think>", b"\"usage\": null"),
           change.json_values),
    Target("start", _start, (b"<think>", b"<|tool_calls_section_begin|>"), change.json_values),
    Target("stream", _stream, (b"data: ", b"\n\n", b"[DONE]", b": ping\n\n", b"\r\n")),
    Target("metrics", _metrics, (b"vllm:num_requests_running{", b"} 1\n", b"# TYPE ", b"\"", b"NaN", b"+Inf")),
    Target("requests", _requests, (b"\"tools\": ", b"$ref"), change.json_lines),
)  # fmt: skip
