"""Time to the first answer and memory of whole rehearsals.

    python benchmarks/rehearsal.py

From the start of ``kimi-nb rehearse`` to the first answer through its front door, and the largest
sum of PSS of all that it runs. The floor is as many bare HTTP servers as the plan has engines, with
the real vllm-router in front of them where the plan has a front door: from the start of the first
one to the same answer. Seconds taken beside other programs say little.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import judging
import psutil

from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.simulated_site import rebound

REPEATS = 3
SECONDS, MEGABYTES = 5.0, 900.0  # on two idle cores
PLANS = (("k2.5", "a3", "pd"), ("k2.6", "a3", "pd"), ("k2.5", "a2", "dp"))
PATIENCE = 60.0  # seconds for a first answer
# An engine's routes with the shortest answers that the router takes. It ends with its caller.
BARE = """
import sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
BODY = (b'{"id":"0","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"bare"},"finish_reason":"stop"}],'
        b'"kv_transfer_params":{"remote_engine_id":"0","remote_host":"127.0.0.1",'
        b'"remote_port":1,"remote_block_ids":[0]}}')
class Bare(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = BODY if self.path.startswith("/v1") else b""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = do_POST = answer
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Bare)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


def pss(pids: list[int]) -> float:
    """MB of processes and of all below them."""
    every = {
        one.pid: one
        for pid in pids
        for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
    }
    return sum(one.memory_full_info().pss for one in every.values()) / 1e6


@contextlib.contextmanager
def running() -> Iterator[list[subprocess.Popen[bytes]]]:
    """What is put into the list is stopped at the end, the last one first."""
    programs: list[subprocess.Popen[bytes]] = []
    try:
        yield programs
    finally:
        for program in reversed(programs):
            if program.stdin:
                program.stdin.close()
            program.terminate()
        for program in programs:
            try:
                program.wait(10)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def rehearse(model: str, hardware: str, layout: str) -> tuple[float, float, float]:
    """(seconds from the start of the process to the first answer, seconds to its end, peak MB)."""
    with tempfile.TemporaryDirectory() as folder, running() as programs:
        began, first, lines = time.perf_counter(), None, []
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kimi_nb",
                "rehearse",
                "--model",
                model,
                "--hw",
                hardware,
                "--layout",
                layout,
                "--json",
                "--run-dir",
                folder,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        programs.append(process)
        for line in process.stderr:
            lines.append(line.decode())
            if b"first answer after" in line:
                first = time.perf_counter() - began
        # One document on stdout, less than a pipe holds; it comes last.
        result = json.loads(process.stdout.read() or "{}")
        if first is None or process.wait() != 0:
            sys.exit(f"the rehearsal of {model} {hardware} {layout} failed:\n{''.join(lines)}")
        return first, time.perf_counter() - began, result["peak_memory_mb"]


def floor(plan: Plan) -> tuple[float, float]:
    """(seconds to the first answer, MB) of bare servers, and the router where there is one."""
    with running() as programs:
        began = time.perf_counter()
        for engine in plan.engines:
            # A headless engine has no API: a server at a port of no meaning stands for it.
            programs.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        "-c",
                        BARE,
                        engine.address,
                        str(engine.http_port or 0),
                    ],
                    stdin=subprocess.PIPE,
                )
            )
        for engine in plan.engines:
            if engine.url:
                _answered(f"{engine.url}/health", None)
        url = plan.engines[0].url
        if plan.router is not None:
            real = Path(sys.executable).with_name("vllm-router")
            programs.append(
                subprocess.Popen(
                    [str(real), *plan.router.argv[1:]],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            url = plan.router.url
        _answered(
            f"{url}/v1/chat/completions",
            json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode(),
        )
        seconds = time.perf_counter() - began
        return seconds, pss([program.pid for program in programs])


def _answered(url: str, body: bytes | None) -> None:
    end = time.monotonic() + PATIENCE
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                if answer.status == 200 and (body is None or b"bare" in answer.read()):
                    return
        except (urllib.error.URLError, OSError) as error:
            seen = error
        else:
            seen = f"{answer.status}"
        if time.monotonic() > end:
            sys.exit(f"the floor gives no answer at {url}: {seen}")
        time.sleep(0.01)


def bare(model: str, hardware: str, layout: str, block: loopback.Block) -> Plan:
    """The plan for the floor, on addresses of this machine, behind the real router."""
    plan = build.plan(model, hardware, layout)
    if plan.router is not None:
        plan = build.plan(model, hardware, layout, pairs=["router=vllm-router"])
    return rebound(plan, Path("/nowhere"), block)


def main(judge: judging.Judge) -> None:
    block = loopback.claim()
    with block.guard:
        for recipe in PLANS:
            plan = bare(*recipe, block)
            ours, floors = judging.repeated(
                REPEATS, lambda recipe=recipe: rehearse(*recipe), lambda plan=plan: floor(plan)
            )
            first, end, memory = zip(*ours, strict=True)
            lowest, least = zip(*floors, strict=True)
            peer = f"{len(plan.engines)} bare servers"
            name = "-".join(recipe)
            judge.figure(f"{name}, first answer", first, "s", most=SECONDS, peer=(peer, lowest))
            judge.figure(f"{name}, end", end, "s")
            judge.figure(f"{name}, memory", memory, "MB", most=MEGABYTES, peer=(peer, least))


if __name__ == "__main__":
    sys.exit(judging.judged(main))
