"""Time to the first answer and memory of whole rehearsals.

    python benchmarks/rehearsal.py

From the start of ``kimi-nb rehearse`` to the first answer through its front door, and the largest
sum of PSS of all that it runs: medians of three. The floor, in the same run, is as many bare HTTP
servers as the plan has engines, with the real vllm-router in front of them where the plan has a
front door: from the start of the first one to the same answer. "others" is how much of the
machine went to programs that are not the benchmark's: figures taken beside other work say little.

Exit code 1 when a bound is missed.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.simulated_site import rebound

REPEATS = 3
SECONDS, MEGABYTES = 8.0, 900.0
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


@contextlib.contextmanager
def others() -> Iterator[list[float]]:
    """The share of the machine's CPU that went to programs other than our own and what they have
    started and waited for; there at the end of the ``with``."""
    found: list[float] = []
    began, worked, own = time.monotonic(), busy(), _own()
    yield found
    spent = (busy() - worked) - (_own() - own)
    found.append(max(0.0, spent / (time.monotonic() - began) / psutil.cpu_count()))


def busy() -> float:
    """CPU seconds of all processes there are, and of those that they have waited for. The
    machine's own count samples at clock ticks, and misses what runs between two."""
    times = (one.info["cpu_times"] for one in psutil.process_iter(["cpu_times"]))
    return sum(sum(one[:4]) for one in times if one is not None)


def _own() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


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
                "kimi_nb.cli.main",
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


def main() -> int:
    """Print the figures; 1 when a bound is missed."""
    block = loopback.claim()
    missed = []
    print(
        f"{'plan':12} {'engines':>7}  {'first answer':>20}  {'end':>6}  {'memory':>7}  "
        f"{'others':>6}  {'floor':>16}  ratio"
    )
    for recipe in PLANS:
        plan = bare(*recipe, block)
        ours, floors, noise = [], [], []
        for _ in range(REPEATS):
            with others() as share:
                ours.append(rehearse(*recipe))
            noise += share
            floors.append(floor(plan))
        first, end, memory = (statistics.median(row) for row in zip(*ours, strict=True))
        lowest, least = (statistics.median(row) for row in zip(*floors, strict=True))
        spread = f"({min(one[0] for one in ours):.1f} to {max(one[0] for one in ours):.1f})"
        name = "-".join(recipe)
        print(
            f"{name:12} {len(plan.engines):7}  {first:5.1f} s {spread:>12}  {end:4.1f} s  "
            f"{memory:4.0f} MB  {statistics.median(noise):6.0%}  {lowest:4.1f} s, {least:4.0f} "
            f"MB  {first / lowest:.1f}, {memory / least:.1f}",
            flush=True,
        )
        if first > SECONDS or memory > MEGABYTES:
            missed.append(name)
    block.guard.close()
    print(
        f"bounds: first answer {SECONDS:.0f} s, memory {MEGABYTES:.0f} MB: "
        + (f"missed by {', '.join(missed)}" if missed else "kept")
    )
    return 1 if missed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
