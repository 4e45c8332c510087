"""Stand in for ``vllm`` on PATH: ``serve`` is simulated; what is not goes to the real vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from kimi_nb import catalog
from kimi_nb.core import data_files
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.engine.api import answers
from kimi_nb.rehearse.engine.api.routes import Api
from kimi_nb.rehearse.engine.api.stand_in import Engine, out_of_memory
from kimi_nb.rehearse.engine.engine_log import Log, StartError
from kimi_nb.rehearse.engine.ranks.cache_transfer import Store
from kimi_nb.rehearse.engine.ranks.rendezvous import Group
from kimi_nb.rehearse.engine.start import (
    device_claims,
    dispatch_buffer,
    kernels,
    links,
    refusals,
    store_client,
    surroundings,
)
from kimi_nb.rehearse.engine.start.start_settings import Settings, settings
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import bench_serve
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace

SHARDS = 64  # files of a checkpoint, as in the published ones
SLOW_START = 120.0  # seconds; longer than any rehearsal waits
_WARM = (
    "m",
    "--tensor-parallel-size",
    "1",
    "--speculative-config",
    '{"method":"eagle3"}',
    "--kv-transfer-config",
    '{"kv_connector":"c","kv_role":"kv_both"}',
    "--compilation-config",
    '{"cudagraph_mode":"FULL_DECODE_ONLY"}',
)
_FAILED = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
)


def vllm(call: Call) -> int:
    """Run ``vllm serve`` or ``vllm bench serve``; other commands become the real vLLM, if it is here."""
    engine = catalog.engine(call.site.engine, call.site.engine_version)
    if call.words[:1] == ("serve",):
        # Not asyncio.run, which would cancel the remaining tasks and report them.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(_serve(call, engine))
    if call.words in (("--version",), ("-v",)):
        print(f"{engine.vllm}  # {MARK}")
        return 0
    if call.words[:2] == ("bench", "serve"):
        return bench_serve.bench(call)
    real = call.real()
    if real is None:
        raise Refused(
            f"{MARK} vllm {' '.join(call.words[:1])}: only `serve` and `bench serve` are rehearsed; "
            "the rest is left to the real vLLM, which is not installed here."
        )
    raise Replace((real, *call.words), call.env)


def warm(site: SimulatedSite) -> None:
    """Do once, before the forks, what each of them would repeat.

    This reads tables, builds types and imports modules that are otherwise imported at first use;
    the forks share the result.
    """
    importlib.import_module("uvicorn.protocols.http.httptools_impl")
    importlib.import_module("uvicorn.lifespan.off")
    for name in ("api", "checkpoints", "images", "metrics", "nodes", "packages"):
        data_files.facts(f"rehearse/{name}")
    engine = catalog.engine(site.engine, site.engine_version)
    refusals.refusal(engine, _WARM, {}, site)
    served = answers.Served(("m",), "m", 4096, "kimi_k2", "kimi_k2", True, True, engine.vllm)
    ask = answers.chat(
        served,
        json.dumps({"model": "m", "messages": [{"role": "user", "content": "warm"}]}).encode(),
        {},
        "0",
        0,
    )
    answers.whole(ask)
    list(answers.frames(ask))


async def _serve(call: Call, engine: catalog.Engine) -> int:
    log = Log()
    refusal = refusals.refusal(engine, call.words[1:], call.env, call.site)
    print(
        f"{MARK}: a stand-in for {engine}; no model is loaded, no accelerator is used.", flush=True
    )
    if refusal is not None:
        log.plain(refusal.lines())
        return refusal.code
    mine = settings(call, engine)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    if call.channel is not None:
        _end_with(call.channel)
    log.info("utils.py:299", f"version {engine.vllm}, model {mine.model}")
    if call.folder == call.root:
        raise Refused(f"{MARK} vllm serve: started in the rehearsal's own folder")
    group = Group(mine, log)
    try:
        listener = None if mine.headless else bound(mine)
        served = await _or_ended(_start(call, mine, group, log), ended)
    except StartError as error:
        return _failed(error, mine, log)
    if served is None:
        return 0
    if listener is None:
        return await _follow(group, log, ended)
    return await _answer(served, listener, group, log, ended)


def bound(mine: Settings) -> socket.socket:
    """Bind the API's port before anything loads, as vLLM does.

    Raises:
        StartError: The port is taken.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in mine.address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # vLLM's event loop (uvloop) sets this on every connection; asyncio only on sockets that were made
    # with IPPROTO_TCP. Without it a first token waits 40 ms for the client's acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((mine.address, mine.port))
    except OSError as error:
        listener.close()
        raise StartError(
            "OSError",
            f"[Errno {error.errno}] {error.strerror} ({loopback.shown(mine.address)}:{mine.port})",
        ) from None
    # Bound but not listening: requests are accepted only once the engine is ready.
    return listener


async def _start(call: Call, mine: Settings, group: Group, log: Log) -> Engine:
    """Do everything between the command line and the first request.

    Raises:
        StartError: The engine cannot start.
    """
    site, core = call.site, log.core(mine.rank, mine.dp)
    surroundings.check(call, mine)
    _files(call, mine)
    device_claims.claim(call, mine)
    core.info(
        "core.py:109",
        f"Initializing a V1 LLM engine (v{mine.engine.vllm}) with config: "
        f"model={mine.model!r}, tensor_parallel_size={mine.tp}, data_parallel_size="
        f"{mine.dp}, data_parallel_rank={mine.rank}, devices={list(mine.devices)}",
    )
    for rank in mine.here:
        if site.fault(FaultName.RANK_DIES_AT_START, mine.node, rank):
            raise StartError(
                "RuntimeError",
                "Worker failed with error 'device is lost', please "
                "check the stack trace above for the root cause",
                rank,
            )
    await group.join()
    links.check(call, mine, group, core)
    core.info(
        "parallel_state.py:1234",
        f"rank {mine.rank} in world size {mine.dp * mine.world} is "
        f"assigned as DP rank {mine.rank}, TP rank 0",
    )
    await _load(call, mine, log)
    await store_client.join(call, mine, core)
    store = None
    if mine.transfer is not None and mine.transfer.ports:
        blocked = any(site.fault(FaultName.KV_PORT_BLOCKED, mine.node, rank) for rank in mine.here)
        store = Store(mine, core, call.at, blocked)
        await store.listen()
        core.info(
            "factory.py:64",
            f"Creating v1 connector with name: {mine.transfer.connector} "
            f"and engine_id: {mine.transfer.engine_id}, listening at {mine.transfer.host}:"
            f"{mine.transfer.ports.start}-{mine.transfer.ports.stop - 1}",
        )
    engine = Engine(mine, call, group, store, log)
    group.work = engine.compute
    await group.started()
    return engine


def _files(call: Call, mine: Settings) -> None:
    """Refuse a checkpoint that does not exist.

    Raises:
        StartError: The checkpoint of the model or of the draft is not on the node.
    """
    for checkpoint in filter(None, (mine.model, mine.draft)):
        if not call.site.has(checkpoint, call.node):
            raise StartError(
                "OSError",
                f"{checkpoint} is not a local folder and is not a valid "
                "model identifier listed on 'https://huggingface.co/models'. "
                "(Couldn't find a config.json there; nothing is downloaded.)"
                + (" [draft model]" if checkpoint == mine.draft else ""),
            )


async def _load(call: Call, mine: Settings, log: Log) -> None:
    """Simulate the loading of the weights: log lines, time, and faults.

    Raises:
        StartError: A fault strikes while loading.
    """
    site, node = call.site, mine.node
    seconds = site.seconds_to_load
    for rank in mine.here:
        core = log.core(rank, mine.dp)
        core.info("gpu_model_runner.py:4820", f"Starting to load model {mine.model}...")
        if site.fault(FaultName.SLOW_START, node, rank):
            seconds = SLOW_START
        if site.fault(FaultName.OUT_OF_MEMORY_AT_LOAD, node, rank):
            first = mine.devices[(rank - mine.rank) * len(mine.devices) // mine.ranks]
            name, _, text = out_of_memory(site, first).partition(": ")
            raise StartError(name, text, rank)
        if site.fault(FaultName.DISK_FULL, node, rank):
            raise StartError(
                "OSError",
                "[Errno 28] No space left on device: "
                f"'/root/.cache/vllm/torch_compile_cache/rank_{rank}_0/backbone'",
                rank,
            )
    for percent in range(0, 101, 25):
        log.core(mine.rank, mine.dp).info(
            "weight_utils.py:700",
            f"Loading safetensors checkpoint shards: {percent}% Completed "
            f"| {SHARDS * percent // 100}/{SHARDS}",
        )
        if seconds and percent < 100:
            await asyncio.sleep(seconds / 4)
    for rank in mine.here:
        core = log.core(rank, mine.dp)
        core.info(
            "gpu_model_runner.py:4917",
            "Model loading took 0.00 GiB memory and "
            f"{seconds:.2f} seconds ({MARK}: nothing was loaded)",
        )
        kernels.choose(call, mine, core)
        if short := dispatch_buffer.short(call, mine):
            raise StartError("RuntimeError", short, rank)
        if not mine.eager:
            core.info(
                "gpu_model_runner.py:5800",
                f"Graph capturing finished in 0 secs, took 0.00 GiB ({MARK})",
            )


async def _or_ended(start: Any, ended: asyncio.Event) -> Engine | None:
    """Return the started engine, or None if the process was told to end before."""
    task, stop = asyncio.ensure_future(start), asyncio.ensure_future(ended.wait())
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        stop.cancel()
        return task.result()
    task.cancel()
    return None


def _failed(error: StartError, mine: Settings, log: Log) -> int:
    """Log a failed start as vLLM does, the core first, and return the exit code."""
    line = f"{error.name}: {error.text}"
    if error.rank is None:
        log.plain(
            [
                "Traceback (most recent call last):",
                '  File "vllm/entrypoints/cli/main.py", in main',
                line,
            ]
        )
        return error.code
    core = log.core(error.rank, mine.dp)
    core.error(
        "core.py:1136",
        "EngineCore failed to start.\nTraceback (most recent call last):\n"
        f'  File "vllm/v1/engine/core.py", in run_engine_core\n{line}',
    )
    who = f"EngineCore_DP{error.rank}" if mine.dp > 1 else "EngineCore"
    log.plain([f"{_FAILED}{{'{who}': {error.code}}}"])
    return error.code


class _Server(uvicorn.Server):
    """A server that leaves the handling of signals to us."""

    def __init__(self, config: uvicorn.Config, log: Log) -> None:
        super().__init__(config)
        self._log = log

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Log that the startup is complete, as the real one before it takes a request."""
        self._log.plain(["INFO:     Application startup complete."])
        await super().startup(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


async def _answer(
    engine: Engine, listener: socket.socket, group: Group, log: Log, ended: asyncio.Event
) -> int:
    """Serve until the process is told to end or loses its group; return the exit code."""
    mine = engine.settings
    log.info(
        "api_server.py:602",
        f"Starting vLLM server on http://{loopback.shown(mine.address)}:{mine.port}",
    )
    server = _Server(
        uvicorn.Config(
            Api(engine),
            lifespan="off",
            log_config=None,
            access_log=False,
            loop="asyncio",
            http="httptools",
            ws="none",
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
            backlog=512,
            proxy_headers=False,
        ),
        log,
    )
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    code = await _until(ended, group, log, lambda: setattr(engine, "dead", True))
    server.should_exit = True
    server.force_exit = code != 0
    await serving
    return code


async def _follow(group: Group, log: Log, ended: asyncio.Event) -> int:
    """Work for the first process, without an API, until the end; return the exit code."""
    log.info("serve.py:110", "Running as a headless follower: no API server here")
    log.plain(["INFO:     Engine core is ready."])
    return await _until(ended, group, log, lambda: None)


async def _until(ended: asyncio.Event, group: Group, log: Log, die: Any) -> int:
    stop: asyncio.Future[Any] = asyncio.ensure_future(ended.wait())
    await asyncio.wait({stop, group.lost}, return_when=asyncio.FIRST_COMPLETED)
    if stop.done():
        log.info("launcher.py:110", "Shutting down")
        group.leave()
        await asyncio.sleep(0)
        return 0
    die()
    log.error(
        "core_client.py:600",
        f"The group has lost {group.lost.result()}: collective "
        "operations cannot go on.\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause.",
    )
    # Let pending requests get their answer before the process ends.
    await asyncio.sleep(0.2)
    return 1


def _end_with(channel: socket.socket) -> None:
    """End at once when the calling stand-in is gone, as if killed."""
    channel.setblocking(False)

    def gone() -> None:
        if not channel.recv(1):
            os._exit(137)

    asyncio.get_running_loop().add_reader(channel.fileno(), gone)
