"""Run one stand-in engine: admission, steps, cache from other engines, and faults."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from kimi_nb.rehearse.engine.api import answers
from kimi_nb.rehearse.engine.api.counters import Metrics, Times
from kimi_nb.rehearse.engine.api.decode_steps import Send, Steps, Stream
from kimi_nb.rehearse.engine.engine_log import Log
from kimi_nb.rehearse.engine.ranks import cache_transfer
from kimi_nb.rehearse.engine.ranks.rendezvous import Group
from kimi_nb.rehearse.engine.start import links
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call

DIES_AT = 3  # a fault under load strikes at this request of a rank
_FLAWS = (FaultName.GARBLED_OUTPUT, FaultName.REASONING_LEAKS, FaultName.TOOL_CALL_LEAKS)
_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass
class Answer:
    """A request that runs on a rank."""

    ask: answers.Ask
    rank: int
    kv: dict[str, Any] | None
    metrics: Metrics
    times: Times
    step: float = 0.0

    def finished(self) -> None:
        """Count what was generated."""
        ask, self.times.ended = self.ask, time.monotonic()
        self.metrics.request(
            self.times, ask.prompt_tokens, ask.made, ask.n, ask.max_tokens, self.step
        )
        self.metrics.generated += self.ask.made
        self.metrics.finished["length" if self.ask.finish_reason == "length" else "stop"] += 1


class Engine:
    """The ranks of one process behind its API."""

    def __init__(
        self,
        settings: Settings,
        call: Call,
        group: Group,
        store: cache_transfer.Store | None,
        log: Log,
    ) -> None:
        self.settings, self.log = settings, log
        self._site, self._group, self._store = call.site, group, store
        self._at = call.at
        self._stall = functools.partial(links.stall, call)
        self.ranks = _answered(settings)
        self.metrics = {rank: Metrics() for rank in self.ranks}
        self.served = _served(settings, self.ranks)
        self.dead = False
        self._next = 0
        self._seen = dict.fromkeys((*self.ranks, *settings.here), 0)
        self._free = dict.fromkeys(self.ranks, settings.max_num_seqs)
        self._queue: dict[int, deque[asyncio.Future[None]]] = {rank: deque() for rank in self.ranks}
        self._steps = Steps(call.site.seconds_per_token)

    async def admit(self, ask: answers.Ask, rank: int) -> Answer:
        """Start a request on a rank once that has room, with the cache of its prompt fetched.

        Raises:
            ApiError: A fault strikes, or the cache cannot be transferred.
        """
        if rank in self.settings.here or self.settings.spans:
            await self._strike(rank)
        metrics = self.metrics[rank]
        times = Times(time.monotonic())
        answer = Answer(ask, rank, None, metrics, times, self._steps.seconds)
        await self._room(rank)
        times.begun = time.monotonic()
        metrics.running += 1
        try:
            await self._prompt(answer)
            times.prompted = time.monotonic()
        except BaseException:
            self.release(answer)
            raise
        return answer

    def release(self, answer: Answer) -> None:
        """End a request, however it ended, and let the next one in."""
        answer.metrics.running -= 1
        queue = self._queue[answer.rank]
        while queue:
            waiter = queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free[answer.rank] += 1

    async def generate(self, answer: Answer) -> None:
        """Wait as long as the tokens of an answer take."""
        if self._steps.seconds:
            await asyncio.sleep(self._steps.seconds * answer.ask.longest)

    async def stream(self, ask: answers.Ask, send: Send, gone: asyncio.Future[None]) -> bool:
        """Send an answer, a token in each step, and return whether the client stayed to the end."""
        if self._steps.seconds:
            return await self._steps.run(Stream(answers.steps(ask), send), gone)
        message: dict[str, Any] = {"type": "http.response.body", "body": b"", "more_body": True}
        for frame in answers.frames(ask):
            await asyncio.sleep(0)
            if gone.done():
                return False
            message["body"] = frame
            await send(message)
        return True

    def flaw(self, rank: int) -> FaultName | None:
        """Return what is wrong with the words of a rank, if anything."""
        return next((name for name in _FLAWS if self._wrong(name, rank)), None)

    async def compute(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compute a prompt for the first process, and return its digest or the error."""
        rank = int(request["of"])
        try:
            await self._strike(rank)
        except answers.ApiError as error:
            return {"error": error.body["error"]["message"]}
        return {"digest": request["digest"]}

    def rank_of(self, ask: answers.Ask) -> int:
        """Return the rank that a request asks for, or the next one in turn."""
        if ask.rank is not None:
            return self.ranks[ask.rank]
        self._next = (self._next + 1) % len(self.ranks)
        return self.ranks[self._next]

    async def _room(self, rank: int) -> None:
        if self._free[rank] > 0:
            self._free[rank] -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[rank].append(waiter)
        self.metrics[rank].waiting += 1
        try:
            await waiter
        finally:
            self.metrics[rank].waiting -= 1

    async def _prompt(self, answer: Answer) -> None:
        ask, metrics = answer.ask, answer.metrics
        for number in self._elsewhere(answer.rank):
            got = await self._group.ask(number, {"digest": ask.digest, "of": answer.rank})
            if "error" in got:
                raise answers.internal(f"{_DEAD} ({got['error']})")
            answer.ask = answers.regenerate(ask, str(got["digest"]))
        params = ask.kv or {}
        if params.get("do_remote_prefill"):
            await self._fetch(answer, params)
            return
        metrics.prompt["local_compute"] += ask.prompt_tokens
        if (
            params.get("do_remote_decode")
            and self._store is not None
            and not self._wrong(FaultName.NO_KV_PARAMS, answer.rank)
        ):
            answer.kv = self._store.keep(ask.id, ask.digest, ask.prompt_tokens, answer.rank)

    def _elsewhere(self, rank: int) -> Iterable[int]:
        """Return whose work a request needs besides ours.

        This is the process that holds the rank, or all other nodes that the rank has.
        """
        mine = self.settings
        if mine.spans:
            first = rank // mine.ranks * mine.span
            return (node for node in range(first, first + mine.span) if node != mine.node_rank)
        return () if rank in mine.here else (rank,)

    async def _fetch(self, answer: Answer, params: dict[str, Any]) -> None:
        core = self.log.core(answer.rank, self.settings.dp)
        try:
            digest, size = await cache_transfer.fetch(params, self.settings, self._at)
        except cache_transfer.TransferError as error:
            mooncake = (
                "ooncake" in self.settings.transfer.connector if self.settings.transfer else False
            )
            core.error(
                "mooncake_connector.py:455" if mooncake else "nixl_connector.py:2100",
                f"Error in KVCacheTransferThread. {error}" if mooncake else str(error),
            )
            answer.metrics.finished["error"] += 1
            raise answers.internal(f"KV cache transfer failed: {error}") from None
        answer.metrics.prompt["external_kv_transfer"] += answer.ask.prompt_tokens
        answer.metrics.observe("nixl_bytes_transferred", size)
        answer.ask = answers.regenerate(answer.ask, digest)

    # Faults ---------------------------------------------------------------------------

    def _wrong(self, fault: FaultName, rank: int) -> bool:
        return self._site.fault(fault, self._node_of(rank), rank)

    def _node_of(self, rank: int) -> str:
        return self._group.node_of(rank) or self.settings.node

    async def _strike(self, rank: int) -> None:
        self._seen[rank] += 1
        if self.dead:
            raise answers.internal(_DEAD)
        core = self.log.core(rank, self.settings.dp)
        if self._seen[rank] == DIES_AT and (stall := self._stall()):
            self._die(core, stall)
        if not self._site.faults:
            return
        if self._wrong(FaultName.ENGINE_HANGS, rank):
            await asyncio.sleep(3600)
        if self._wrong(FaultName.FIRST_CHAT_500, rank):
            core.error(
                "core.py:1136",
                "EngineCore encountered a fatal error.\nRuntimeError: "
                "The size of tensor a (384) must match the size of tensor b (48) at "
                "non-singleton dimension 0",
            )
            raise answers.internal("")
        if self._seen[rank] < DIES_AT:
            return
        if self._wrong(FaultName.RANK_DIES_WHILE_SERVING, rank):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._wrong(FaultName.OUT_OF_MEMORY_UNDER_LOAD, rank):
            self._die(core, out_of_memory(self._site, self.settings.devices[0]))

    def _die(self, core: Log, error: str) -> NoReturn:
        """End the process by an error of its core, as vLLM does: requests fail, then it exits."""
        core.error("core.py:1136", f"EngineCore encountered a fatal error.\n{error}")
        self.log.error(
            "async_llm.py:704",
            f"AsyncLLM output_handler failed.\nvllm.v1.engine.exceptions.EngineDeadError: {_DEAD}",
        )
        self.dead = True
        asyncio.get_running_loop().call_later(0.2, os._exit, 1)
        raise answers.internal(_DEAD)


def out_of_memory(site: SimulatedSite, device: int) -> str:
    """Return the allocator's message for the devices of the site's vendor."""
    total = site.memory_gib
    if site.vendor == "ascend":
        return (
            f"RuntimeError: NPU out of memory. Tried to allocate 1.31 GiB (NPU {device}; "
            f"{total:.2f} GiB total capacity; {total - 0.9:.2f} GiB already allocated; "
            "412.50 MiB free)"
        )
    return (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.31 GiB. GPU "
        f"{device} has a total capacity of {total:.2f} GiB of which 412.50 MiB is free."
    )


def _answered(settings: Settings) -> range:
    """Return the ranks behind the API of a process: its own, or those of all its followers too."""
    return settings.here if settings.alone or settings.headless else range(settings.dp)


def _served(settings: Settings, ranks: range) -> answers.Served:
    return answers.Served(
        names=settings.names,
        root=settings.model,
        max_model_len=settings.max_model_len,
        reasoning_parser=settings.reasoning_parser,
        tool_parser=settings.tool_parser,
        auto_tools=settings.auto_tools,
        multimodal="thinking" not in settings.model.lower(),
        version=settings.engine.vllm,
        dp_size=len(ranks),
        thinking=settings.thinking,
        text_only=settings.text_only,
    )
