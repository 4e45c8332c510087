"""A stand-in engine beside guidellm's mock server: chunks per second, memory, token spacing.

    GUIDELLM=venv/bin/guidellm python benchmarks/stand_in.py

Both serve from one process and give the same number of chunks for the same request; the client
is one too, in a process of its own. Rounds alternate between the two; figures are medians of the
rounds. A round's speed counts every chunk, from the requests to the last one. Memory is the PSS
of all processes of a server under load: for the stand-in, the engine, the ``vllm`` that the
script has called and the rehearsal's spawner. Spacing is the time between the arrivals of the
chunks of one stream, as the kernel notes them (SO_TIMESTAMPNS), against what was asked for.

The bound of the spacing is that of 200 streams under way; figures from the first request on are
shown too. Its floor is a program that sends the same chunks and does nothing else, a twentieth of
the streams in each twentieth of the time. "others" is how much of the machine went to other
programs. A round beside other work, or in which the floor itself is late, is shown and does not
count, unless there are too few others.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
import os
import re
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import judging
import psutil
from rehearsal import pss, running

from kimi_nb.plan import build
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.host_programs import path_folder
from kimi_nb.rehearse.simulated_site import FOLDER, NODE, SimulatedSite, rebound

INSTALL = (
    "guidellm is not there: install it in a venv of its own (python -m venv peer; "
    "peer/bin/pip install guidellm==0.8.1) and name it: GUIDELLM=peer/bin/guidellm"
)
FASTER, SMALLER, LATE_MS = 2.0, 0.25, 1.0  # the bounds
ROUNDS, TRIES, ENOUGH = 5, 3, 3  # rounds; how many times as many are tried; that must be quiet
QUIET = 0.1  # the share of the machine that other programs may take in a round that counts
SPEED = (50, 256)  # streams at once, tokens of each
SPACING = (200, 100)
PLACES = 20  # within a step, at which the floor sends
STEP = 0.020  # seconds between tokens, where there are any
PATIENCE = 60  # seconds for a server to start, and for a round
MODEL = "m"
SO_TIMESTAMPNS = 35
_TOKEN = re.compile(rb'data: [^\n]*"content": ?"[^"][^\n]*\n\n')


@dataclass(frozen=True)
class Server:
    """One that is up: its address, and the processes whose memory is its own."""

    address: tuple[str, int]
    pids: tuple[int, ...]

    def cpu(self) -> float:
        """CPU seconds of its processes so far."""
        every = {
            one
            for pid in self.pids
            for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
        }
        return sum(sum(one.cpu_times()[:2]) for one in every)


@dataclass(frozen=True)
class Round:
    """What the client saw: ``errors`` are the differences from `STEP` in ms, ``steady`` those
    while all streams were under way, ``together`` how many chunks came with another one, so that
    their time is not known; ``others`` is their share of the machine."""

    chunks: int
    seconds: float
    cpu: float
    errors: tuple[float, ...] = ()
    steady: tuple[float, ...] = ()
    together: int = 0
    others: float = 0.0

    @property
    def speed(self) -> float:
        """Chunks per second."""
        return self.chunks / self.seconds


# The client ---------------------------------------------------------------------------------


def load(address: tuple[str, int], streams: int, tokens: int, stamps: bool) -> Round:
    """Ask for so many streams at once and read them all. Runs in the client's process."""
    gc.disable()
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Say in one sentence what you are."}],
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
    ).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    sockets = {}
    poll = select.epoll()
    for _ in range(streams):
        one = socket.create_connection(address, PATIENCE)
        one.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, int(stamps))
        one.setblocking(False)
        sockets[one.fileno()] = one
        poll.register(one.fileno(), select.EPOLLIN)
    began, cpu = time.perf_counter(), time.process_time()
    for one in sockets.values():
        one.sendall(request)
    read = (_stamped if stamps else _counted)(poll, dict(sockets), began + PATIENCE)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    for one in sockets.values():
        one.close()
    poll.close()
    chunks = (
        sum(read)
        if not stamps
        else sum(b"".join(data for _, data in parts).count(b"data: ") for parts in read)
    )
    if chunks != streams * (tokens + 2):  # the role or the reason beside the tokens, and [DONE]
        raise RuntimeError(f"{chunks} chunks, not {streams} x {tokens + 2}")
    if not stamps:
        return Round(chunks, seconds, cpu)
    arrivals = [_times(parts) for parts in read]
    first = max(times[0] for times in arrivals)
    last = min(times[-1] for times in arrivals)
    errors, steady = [], []
    for before, after in itertools.chain.from_iterable(map(itertools.pairwise, arrivals)):
        errors.append(abs((after - before) / 1e6 - STEP * 1e3))
        if first <= before and after <= last:
            steady.append(errors[-1])
    together = sum(len(times) - len(set(times)) for times in arrivals)
    return Round(chunks, seconds, cpu, tuple(errors), tuple(steady), together)


def _counted(poll: select.epoll, left: dict[int, socket.socket], end: float) -> list[int]:
    """How many chunks came."""
    room = bytearray(1 << 18)
    view = memoryview(room)
    tails = dict.fromkeys(left, b"")
    count = 0
    while left:
        for handle, _ in _ready(poll, end):
            size = left[handle].recv_into(view)
            data = tails[handle] + bytes(view[:size])
            # What is cut at the end is shorter than the word, so that none is counted twice.
            count += data.count(b"data: ")
            tails[handle] = data[-5:]
            if not size or data.endswith(b"0\r\n\r\n"):
                poll.unregister(handle)
                del left[handle]
    return [count]


def _stamped(
    poll: select.epoll,
    left: dict[int, socket.socket],
    end: float,
) -> list[list[tuple[int, bytes]]]:
    """What came on each stream, and when, in ns."""
    seen: dict[int, list[tuple[int, bytes]]] = {handle: [] for handle in left}
    room = socket.CMSG_SPACE(16)
    while left:
        for handle, _ in _ready(poll, end):
            data, extra, _, _ = left[handle].recvmsg(1 << 16, room)
            # The kernel begins to note times a moment after it was told to.
            whole, rest = struct.unpack("qq", extra[0][2]) if extra else (0, time.time_ns())
            seen[handle].append((whole * 10**9 + rest, data))
            if not data or data.endswith(b"0\r\n\r\n"):
                poll.unregister(handle)
                del left[handle]
    return list(seen.values())


def _ready(poll: select.epoll, end: float) -> list[tuple[int, int]]:
    found = poll.poll(1)
    if time.perf_counter() > end:
        raise TimeoutError(f"a round takes more than {PATIENCE} s")
    return found


def _times(parts: list[tuple[int, bytes]]) -> list[int]:
    """When each token of a stream was there as a whole."""
    data = b"".join(part for _, part in parts)
    out, at, reached = [], 0, len(parts[0][1])
    for match in _TOKEN.finditer(data):
        while reached < match.end():
            at += 1
            reached += len(parts[at][1])
        out.append(parts[at][0])
    return out


# The servers --------------------------------------------------------------------------------


@contextlib.contextmanager
def stand_in(block: loopback.Block, seconds: float) -> Iterator[Server]:
    """One stand-in engine, started as a rehearsal starts it."""
    with tempfile.TemporaryDirectory() as name, running() as programs:
        root = Path(name)
        work = root / "work"
        work.mkdir()
        plan = rebound(build.plan("k2.5", "a3", "single"), work, block)
        site = replace(SimulatedSite.of(plan), seconds_per_token=seconds)
        path_folder.write(root)
        site.write(root / "world.json")
        engine = plan.engines[0]
        env = {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "HOME": str(work),
            "LANG": "C.UTF-8",
            NODE: engine.node,
            FOLDER: str(root),
        }
        with (work / "log").open("wb") as log:
            spawner = subprocess.Popen(
                [sys.executable, "-m", "kimi_nb.rehearse.spawner", str(root)],
                stdout=log,
                stderr=log,
            )
            programs.append(spawner)
            _wait(lambda: (root / "spawner.sock").exists(), spawner, work / "log")
            vllm = subprocess.Popen(
                [
                    *engine.argv,
                    "--served-model-name",
                    MODEL,
                    "--max-num-seqs",
                    "1024",
                    "--data-parallel-size",
                    "1",
                    "--tensor-parallel-size",
                    "1",
                ],
                executable=root / "stubs" / "vllm",
                env=env,
                cwd=work,
                stdout=log,
                stderr=log,
            )
            programs.append(vllm)
        address = (engine.address, engine.http_port or 0)
        _wait(lambda: _healthy(address), vllm, work / "log")
        yield Server(address, (spawner.pid, vllm.pid))


@contextlib.contextmanager
def floor(address: tuple[str, int], context) -> Iterator[Server]:
    """Sockets to which the chunks are sent, and nothing else."""
    with socket.create_server(address, backlog=SPACING[0]) as listener:
        process = context.Process(target=_send, args=(listener, *SPACING), daemon=True)
        process.start()
        try:
            yield Server(address, (process.pid,))
        finally:
            process.terminate()
            process.join()


def _send(listener: socket.socket, streams: int, tokens: int) -> None:
    gc.disable()
    head = (
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n16\r\ndata: {"content":""}\n\n\r\n'
    )
    frame = b'c8\r\ndata: {"content":"' + b"w" * 177 + b'"}\n\n\r\n'
    while True:
        every = [listener.accept()[0] for _ in range(streams)]
        for one in every:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.recv(1 << 16)
            one.sendall(head)
        began = time.monotonic() + STEP
        for number in range(tokens * PLACES):
            time.sleep(max(0.0, began + number * STEP / PLACES - time.monotonic()))
            for one in every[number % PLACES :: PLACES]:
                one.sendall(frame)
        for one in every:
            one.sendall(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
            one.close()


@contextlib.contextmanager
def guidellm(
    program: str,
    address: tuple[str, int],
    seconds: float,
    tokens: int,
) -> Iterator[Server]:
    """guidellm's mock server, whose first token comes as soon as any."""
    with tempfile.TemporaryDirectory() as name, running() as programs:
        log = Path(name) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    program,
                    "mock-server",
                    "--host",
                    address[0],
                    "--port",
                    str(address[1]),
                    "--model",
                    MODEL,
                    "--ttft-ms",
                    "0",
                    "--itl-ms",
                    f"{seconds * 1e3:g}",
                    "--output-tokens",
                    str(tokens),
                ],
                cwd=name,
                stdout=out,
                stderr=out,
            )
        programs.append(process)
        _wait(lambda: _healthy(address), process, log)
        yield Server(address, (process.pid,))


def _wait(there, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not there():
        if process.poll() is not None or time.monotonic() > end:
            sys.exit(f"a server did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def _healthy(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, 2) as one:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b" 200 " in one.recv(100)
    return False


# The figures --------------------------------------------------------------------------------


def rounds(
    servers: dict[str, Server],
    shape: tuple[int, int],
    stamps: bool,
    client,
) -> dict[str, list[Round]]:
    """The rounds that count of each server, the servers in turn, one line for each. The first
    round warms up. One in which the machine was not quiet does not count, as long as there are
    enough others."""
    every: list[dict[str, Round]] = []
    quiet: list[dict[str, Round]] = []
    for number in range(1 + ROUNDS * TRIES):
        row = {}
        for name, server in servers.items():
            began, worked, spent = time.monotonic(), judging.busy(), server.cpu()
            one = client.submit(load, server.address, *shape, stamps).result()
            spent = server.cpu() - spent
            rest = (judging.busy() - worked - spent - one.cpu) / (time.monotonic() - began)
            row[name] = one = replace(one, others=max(0.0, rest) / psutil.cpu_count())
            if number:
                print(
                    f"  {name:9} {one.speed:6.0f} chunks/s  server {spent / one.seconds:4.0%}, "
                    f"client {one.cpu / one.seconds:3.0%} of a core, others {one.others:3.0%}"
                    f"{_spacing(one) if stamps else ''}",
                    flush=True,
                )
        every += [row] if number else []
        if (
            number
            and all(one.others <= QUIET for one in row.values())
            and ("floor" not in row or _at(row["floor"].steady, 0.99) <= LATE_MS / 2)
        ):
            quiet.append(row)
        if len(quiet) == ROUNDS:
            break
    print(
        f"  {len(quiet)} of {len(every)} rounds were quiet"
        + ("" if len(quiet) >= ENOUGH else ": too few, all of them count")
    )
    counted = quiet if len(quiet) >= ENOUGH else every
    return {name: [row[name] for row in counted] for name in servers}


def _spacing(one: Round) -> str:
    shares = ", ".join(
        f"{label} {_at(one.steady, share):.2f}"
        for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    )
    return f"  {shares} ms; from the first request on p99 {_at(one.errors, 0.99):.2f} ms" + (
        f"; {one.together} together" if one.together else ""
    )


def _at(values: tuple[float, ...], share: float) -> float:
    ordered = sorted(values) or [float("inf")]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def memory(server: Server, client) -> float:
    """The largest PSS during one more round."""
    under_way = client.submit(load, server.address, *SPEED, False)
    peak = pss(list(server.pids))
    while not under_way.done():
        peak = max(peak, pss(list(server.pids)))
    under_way.result()
    return peak


def main(judge: judging.Judge) -> None:
    peer = os.environ.get("GUIDELLM") or shutil.which("guidellm")
    block = loopback.claim()
    beside = (block.address(200), 8000)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as client, block.guard:
        with contextlib.ExitStack() as stack:
            servers = {"stand-in": stack.enter_context(stand_in(block, 0))}
            if peer:
                servers["guidellm"] = stack.enter_context(guidellm(peer, beside, 0, SPEED[1]))
            print(f"{SPEED[0]} streams of {SPEED[1]} tokens, no time between them")
            speed = {
                name: [one.speed for one in many]
                for name, many in rounds(servers, SPEED, False, client).items()
            }
            size = {name: [memory(server, client)] for name, server in servers.items()}
        if peer:
            theirs = ("guidellm", speed["guidellm"])
            judge.ratio("speed", speed["stand-in"], "chunks/s", least=FASTER, peer=theirs)
            theirs = ("guidellm", size["guidellm"])
            judge.ratio("memory", size["stand-in"], "MB", most=SMALLER, peer=theirs)
        else:
            judge.not_measured("speed and memory beside guidellm", INSTALL)
        with contextlib.ExitStack() as stack:
            servers = {
                "floor": stack.enter_context(floor((beside[0], 8001), context)),
                "stand-in": stack.enter_context(stand_in(block, STEP)),
            }
            if peer:
                servers["guidellm"] = stack.enter_context(guidellm(peer, beside, STEP, SPACING[1]))
            print(
                f"{SPACING[0]} streams of {SPACING[1]} tokens, {STEP * 1e3:g} ms between them: "
                "what the intervals differ from that\nwhile all streams are under way"
            )
            late = {
                name: [_at(one.steady, 0.99) for one in many]
                for name, many in rounds(servers, SPACING, True, client).items()
            }
        least = ("bare sockets", late["floor"])
        judge.figure("spacing, p99", late["stand-in"], "ms", most=LATE_MS, peer=least)
        if peer:
            judge.figure("guidellm's spacing, p99", late["guidellm"], "ms", peer=least)


if __name__ == "__main__":
    sys.exit(judging.judged(main))
