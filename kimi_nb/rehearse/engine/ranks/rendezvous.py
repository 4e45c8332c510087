"""Bring the processes of a group together, as vLLM's ranks meet at address:rpc-port.

The process of rank 0 listens; every other process connects and states its rank and settings. As in
vLLM, a rank that is already present, does not exist, or has different settings is refused and ends.
Once all are present, all continue. The connections stay open: a process that loses its group ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.engine.engine_log import Log, StartError
from kimi_nb.rehearse.engine.start.start_settings import Settings

RETRY = 0.05  # seconds between attempts to reach the first process
REPORT = 1.0  # seconds between log lines that name the missing ranks
_LINE = 1 << 20
Work = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class Group:
    """The processes of a group, from the point of view of one of them."""

    def __init__(self, settings: Settings, log: Log) -> None:
        self._mine, self._log = settings, log
        self._members: dict[int, asyncio.StreamWriter] = {}
        self._names: dict[int, str] = {}
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._serial = 0
        self._complete = asyncio.Event()
        self._leader: asyncio.StreamWriter | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._started: set[int] = set()
        self._all_started = asyncio.Event()
        self.leaving = False
        # Answers requests of the first process; the engine sets it when it is ready.
        self.work: Work = _too_early
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def leads(self) -> bool:
        """Whether this process listens for the others."""
        return self._mine.place == 0

    async def join(self) -> None:
        """Wait until every rank of the group is present.

        Raises:
            StartError: This process is refused, or another one was lost.
        """
        if self._mine.meets is None:
            return
        if self.leads:
            await self._lead()
        else:
            await self._follow()

    async def started(self) -> None:
        """Report that this process has loaded; the first one waits for all that serve through it.

        Raises:
            StartError: Another process was lost.
        """
        if self._leader is not None:
            _send(self._leader, {"started": True})
        elif self._members and not self._mine.alone:
            await self._all(
                self._all_started,
                lambda: self._log.info(
                    "utils.py:1169",
                    f"Waiting for 0 local, {len(self._members) - len(self._started)} "
                    "remote core engine proc(s) to start.",
                ),
            )

    async def ask(self, number: int, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the process that holds a rank, and return its answer.

        Where nodes meet instead of ranks, ``number`` is that of a node.
        """
        owner = max((first for first in self._members if first <= number), default=None)
        if owner is None:
            return {"error": f"{self._what()} {number} is gone"}
        self._serial += 1
        serial = self._serial
        future = asyncio.get_running_loop().create_future()
        self._asked[serial] = future
        _send(self._members[owner], {"ask": serial, "rank": number, **request})
        try:
            return await future
        finally:
            self._asked.pop(serial, None)

    @property
    def nodes(self) -> set[str]:
        """The nodes of the other processes, as far as this process knows them."""
        return {*self._names.values()}

    def node_of(self, rank: int) -> str | None:
        """Return the node of a rank in another process, if this process knows it."""
        mine = self._mine
        number = rank // mine.ranks * mine.span if mine.spans else rank
        owner = max((first for first in self._names if first <= number), default=None)
        return None if owner is None or rank in mine.here else self._names[owner]

    def leave(self) -> None:
        """Tell the others that this process ends on purpose, which is no failure."""
        self.leaving = True
        for writer in (*self._members.values(), *([self._leader] if self._leader else ())):
            _send(writer, {"bye": True})

    # The first process ----------------------------------------------------------------

    async def _lead(self) -> None:
        assert self._mine.meets is not None
        address, port = self._mine.meets
        here: set[int] = set(range(self._mine.place, self._mine.place + self._mine.count))
        try:
            self._server = await asyncio.start_server(
                lambda reader, writer: self._welcome(reader, writer, here),
                address,
                port,
                limit=_LINE,
            )
        except OSError as error:
            raise StartError(
                "RuntimeError",
                "The server socket has failed to listen on any local "
                f"network address. port: {port}, useIpv6: false, code: "
                f"-{error.errno}, name: EADDRINUSE, message: {error.strerror} "
                f"({loopback.shown(address)}:{port})",
                self._mine.rank,
            ) from None
        self._check(here)
        own = loopback.is_own(address)

        def say() -> None:
            missing = sorted(set(range(self._mine.size)) - here)
            self._log.info(
                "utils.py:1164",
                f"Waiting for 0 local, {len(missing)} remote core "
                f"engine proc(s) to connect. {self._what()}s not here: "
                f"{_some(missing)}" + (f" ({self._what()} 0 listens at {self._where})" * own),
            )

        await self._all(self._complete, say)
        for writer in self._members.values():
            _send(writer, {"go": True})

    async def _all(self, event: asyncio.Event, say: Callable[[], None]) -> None:
        """Wait for an event, and log from time to time what is still missing.

        Raises:
            StartError: A process of the group was lost.
        """
        waiting: asyncio.Future[Any] = asyncio.ensure_future(event.wait())
        while not waiting.done():
            await asyncio.wait(
                {waiting, self.lost}, timeout=REPORT, return_when=asyncio.FIRST_COMPLETED
            )
            if self.lost.done():
                waiting.cancel()
                raise self._closed()
            if not waiting.done():
                say()

    def _closed(self) -> StartError:
        return StartError(
            "RuntimeError",
            "[Gloo] the connection was closed by peer "
            f"({self.lost.result()}) before the group was complete",
            self._mine.rank,
        )

    @property
    def _where(self) -> str:
        """Where the group meets, as its processes name it, and whether others can come there."""
        assert self._mine.meets is not None
        address, port = self._mine.meets
        if not loopback.is_own(address):
            return f"{address}:{port}"
        flag = "--master-addr" if self._mine.spans else "--data-parallel-address"
        return (
            f"{loopback.shown(address)}:{port}, which is {self._mine.node} itself and no other node "
            f"({flag} is the default, or says so)"
        )

    def _what(self) -> str:
        return "node rank" if self._mine.spans else "rank"

    def _check(self, here: set[int]) -> None:
        if len(here) == self._mine.size:
            self._complete.set()

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, here: set[int]
    ) -> None:
        hello = json.loads(await reader.readline() or b"{}")
        if "place" not in hello:
            writer.close()
            return
        ranks = range(hello["place"], hello["place"] + hello["count"])
        refused = self._refusal(hello, ranks, here)
        if refused:
            name, text = refused
            _send(writer, {"refused": text, "name": name})
            self._log.error(
                "utils.py:1246",
                f"Refused {self._what()} {hello['place']} of {hello['node']}: {text}",
            )
            writer.close()
            return
        here |= set(ranks)
        self._members[ranks.start] = writer
        self._names[ranks.start] = hello["node"]
        self._check(here)
        await self._listen(reader, ranks.start)

    def _refusal(
        self, hello: Mapping[str, Any], ranks: range, here: set[int]
    ) -> tuple[str, str] | None:
        """Return the exception and the text that refuse a process, or None to accept it."""
        mine, what = self._mine, self._what()
        if hello["size"] != mine.size or hello["tp"] != mine.tp:
            return (
                "RuntimeError",
                f"Configuration mismatch detected for engine {ranks.start}. "
                "All DP workers must have identical configurations: here dp "
                f"{hello['size']} tp {hello['tp']}, {what} 0 has dp {mine.size} tp {mine.tp}.",
            )
        outside = [rank for rank in ranks if not 0 <= rank < mine.size]
        if outside:
            return (
                "ValueError",
                f"data_parallel_rank ({outside[0]}) must be in the range [0, {mine.size})",
            )
        twice = sorted(here & set(ranks))
        if twice:
            return (
                "RuntimeError",
                f"{what} {twice[0]} is in the group already: two processes "
                f"say that they are {what} {twice[0]} of {mine.size}",
            )
        if not mine.spans and hello["headless"] == mine.alone:
            return (
                "RuntimeError",
                f"Remote engine {ranks.start} must not use --headless in external or hybrid dp lb mode"
                if mine.alone
                else f"Remote engine {ranks.start} must use --headless unless in external or hybrid "
                "dp lb mode",
            )
        for key in sorted({*hello["shared"], *mine.shared}):
            theirs, ours = hello["shared"].get(key), mine.shared.get(key)
            if theirs != ours:
                return (
                    "RuntimeError",
                    f"Configuration mismatch detected for engine "
                    f"{ranks.start}. All DP workers must have identical configurations for "
                    "parameters that affect collective communication. Here "
                    f"{_said(key, theirs)}, {what} 0 has {_said(key, ours)}. Please ensure "
                    "all workers are started with the same command-line arguments.",
                )
        return None

    async def _listen(self, reader: asyncio.StreamReader, first: int) -> None:
        async for line in _lines(reader):
            message = json.loads(line)
            if message.get("bye"):
                self.leaving = True
            elif message.get("started"):
                self._started.add(first)
                if len(self._started) == len(self._members):
                    self._all_started.set()
            elif message.get("answer") in self._asked:
                self._asked[message["answer"]].set_result(message)
        self._members.pop(first, None)
        if not self.leaving:
            for writer in self._members.values():
                _send(writer, {"lost": f"{self._what()} {first} on {self._names[first]}"})
            self._lose(f"{self._what()} {first} on {self._names[first]}")

    def _lose(self, who: str) -> None:
        for future in self._asked.values():
            if not future.done():
                future.set_result({"error": f"{who} is gone"})
        if not self.lost.done():
            self.lost.set_result(who)

    # Every other process --------------------------------------------------------------

    async def _follow(self) -> None:
        assert self._mine.meets is not None
        address, port = self._mine.meets
        said = 0.0
        while True:
            try:
                reader, writer = await asyncio.open_connection(address, port, limit=_LINE)
                break
            except OSError:
                await asyncio.sleep(RETRY)
                said += RETRY
                if said >= REPORT:
                    said = 0.0
                    self._log.info(
                        "parallel_state.py:1234",
                        f"Waiting for {self._what()} 0 at {self._where}: nobody listens there",
                    )
        mine = self._mine
        _send(
            writer,
            {
                "place": mine.place,
                "count": mine.count,
                "size": mine.size,
                "tp": mine.tp,
                "headless": mine.headless,
                "node": mine.node,
                "shared": mine.shared,
            },
        )
        answer = json.loads(await reader.readline() or b"{}")
        if "refused" in answer:
            raise StartError(answer["name"], answer["refused"], mine.rank)
        if "go" not in answer:
            raise StartError(
                "RuntimeError",
                f"[Gloo] the connection to {self._what()} 0 at "
                f"{self._where} was closed by peer before the group was complete",
                mine.rank,
            )
        self._leader = writer
        self._keep(self._serve(reader, writer))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background, and hold its task: asyncio itself does not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
        _send(writer, {"answer": message["ask"], **await self.work(message)})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for line in _lines(reader):
            message = json.loads(line)
            if message.get("bye"):
                self.leaving = True
            elif "lost" in message:
                self._lose(message["lost"])
            elif "ask" in message:
                self._keep(self._answer(writer, message))
        if not self.leaving:
            self._lose(f"{self._what()} 0")


async def _too_early(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"error": "the engine is not there yet"}


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield whole lines until the other side closes or resets the connection."""
    try:
        async for line in reader:
            if line.endswith(b"\n"):
                yield line
    except OSError:
        return


def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(message).encode() + b"\n")


def _said(key: str, value: Any) -> str:
    return f"no {key}" if value is None else f"{key} {value}"


def _some(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:8]))
    return text + (", ..." if len(ranks) > 8 else "")
