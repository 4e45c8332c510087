"""Prove that a started service works: every engine and the front door complete, also under load.

Example::

    watch = readiness.Watch(plan, logs, ended, limits)
    watch.wait_ready()
    watch.first_answer()
    watch.look_at_answers()
    watch.load()

The front door is the URL for clients: that of the router, or else of the first engine. Each method
raises `Found` with a diagnosis of the first failure: the node, the rank and the cause. The watch
judges only by what can be seen from outside: completions, exit codes and logs.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from kimi_nb.diagnose import first_failure, remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Plan
from kimi_nb.service import chat_markers, http_client, probe, reply_mark

_TRIES = 2  # completions that fail before an engine counts as broken
_LOOK, _IDLE = 0.7, 0.3  # seconds of one look; below this many cores nothing computes
_PROBES = 8  # concurrent probes
_LOADS = 2  # requests of the load for each engine behind the front door
_SAY = 0.3  # seconds that the other programs get to log their part of a failure
_ADDED = ("tools", "kv_transfer_params")  # what a request for a completion may have beside its text
STORE = ("store-master", "store-service")  # the parts of a KV store, each behind its node's name
ROUTER = "router"  # the name of the front door among the programs of `ended`


class Logs(Protocol):
    """A deployment's logs, as the watch reads them."""

    @property
    def progress(self) -> int:
        """A number that grows with everything that is read."""

    def read(self) -> None:
        """Read what was added since the last call."""

    def all(self) -> list[first_failure.Log]:
        """Return all logs, as far as they were read."""

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """Return (file, last line) of a rank."""

    def last_of(self, name: str) -> tuple[str, str]:
        """Return (file, last line) of a program."""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds.

    ``ready`` is for all engines to answer, ``progress`` the longest time without any progress,
    ``answer`` for one completion, ``door`` until the front door lets a request through.
    """

    ready: float
    progress: float
    answer: float
    door: float


@dataclass(frozen=True)
class Progress:
    """The progress of a start.

    ``ready`` of ``engines`` have returned a completion, ``seconds`` after the watch began.
    ``doing`` is the current activity, ``line`` the newest log line of a rank that is not ready.
    """

    ready: int
    engines: int
    seconds: float
    doing: str
    line: str


# What was asked, of which rank (None: the front door), and the answer.
Heard = Callable[[str, probe.Endpoint | None, http_client.Reply], None]


def unheard(asked: str, where: probe.Endpoint | None, reply: http_client.Reply) -> None:
    """Leave an answer to the watch alone."""


class Found(Exception):
    """A failure that ends the watch, with its diagnosis."""

    def __init__(self, found: Diagnosis) -> None:
        self.found = found
        super().__init__(str(found))


class Watch:
    """The watch over one deployment after its start.

    ``ended`` returns the exit codes of the programs that have ended, by name: "NODE engines" for
    the program that starts a node's engines, "NODE store-master" for a part of a KV store, ``ROUTER``
    for the front door. ``key`` is an API key.
    ``say`` gets progress as text; ``progress`` gets it as numbers at every look, and an exception
    from it ends the watch. ``busy`` returns how many cores the engines used over a number of
    seconds, where that can be known: an engine that computes does not hang. ``heard`` gets every
    answer: what was asked, of which rank (None: the front door), and the reply; from several threads.
    ``mark`` is that of the service where it is known before any reply: REHEARSAL of stand-ins.
    """

    def __init__(
        self,
        plan: Plan,
        logs: Logs,
        ended: Callable[[], Mapping[str, int]],
        limits: Limits,
        key: str = "",
        say: Callable[[str], None] = print,
        busy: Callable[[float], float] = lambda seconds: 0.0,
        progress: Callable[[Progress], None] | None = None,
        heard: Heard = unheard,
        mark: str = "",
    ) -> None:
        self._plan, self._logs, self._ended = plan, logs, ended
        self._limits, self._key, self._say, self._busy = limits, key, say, busy
        self._progress, self._heard = progress, heard
        self._endpoints = probe.endpoints(plan)
        self._begun = time.monotonic()
        self._ready: set[str] = set()
        self._failing: dict[str, tuple[http_client.Reply, int]] = {}
        self.times: dict[str, float] = {}  # seconds to the first completion, by rank
        self.answer: http_client.Reply | None = None
        self.mark = mark  # REHEARSAL once a stand-in has answered anything
        self.when = "at start"  # the phase, which selects the causes to look for in the logs
        self.notes: list[str] = []
        self.moved_tokens = 0  # prompt tokens whose KV cache was transferred to decode engines
        self.moved_bytes = 0  # bytes of that cache, where the connector counts them
        # What random weights answer means nothing: only that they answer can be judged.
        self._random = any(
            "load-format" in values and values["load-format"].value == "dummy"
            for values in plan.flags.values()
        )

    @property
    def ready(self) -> int:
        """How many engines are ready: each of their ranks has returned a completion.

        An engine that is part of another engine's rank is ready together with it.
        """
        waiting = {one.engine for one in self._endpoints if one.name not in self._ready}
        known = {one.engine for one in self._endpoints}
        heads = {
            (engine.role, engine.group): engine.name
            for engine in self._plan.engines
            if engine.url is not None
        }
        return sum(
            (engine.name if engine.name in known else heads[engine.role, engine.group])
            not in waiting
            for engine in self._plan.engines
        )

    # Readiness ------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until every rank has returned a completion."""
        end, moved_at = time.monotonic() + self._limits.ready, time.monotonic()
        before: tuple[int, int] | None = None
        with ThreadPoolExecutor(_PROBES) as pool:
            while True:
                left = [one for one in self._endpoints if one.name not in self._ready]
                for one, ready in zip(left, pool.map(self._probe, left), strict=True):
                    if ready:
                        self._ready.add(one.name)
                        self.times[one.name] = round(time.monotonic() - self._begun, 3)
                self._tell("waits for engines")
                if len(self._ready) == len(self._endpoints):
                    self._say_ready()
                    return
                self._logs.read()
                self._check_ended("at start")
                self._check_failing()
                progress = (len(self._ready), self._logs.progress)
                if progress != before:
                    if before is None or before[0] != progress[0]:
                        self._say_ready()
                    before, moved_at = progress, time.monotonic()
                if time.monotonic() > end:
                    self._stalled()
                if time.monotonic() - moved_at > self._limits.progress:
                    if self._busy(_LOOK) < _IDLE:
                        self._stalled()
                    moved_at = time.monotonic()  # only slow: the machine is busy
                time.sleep(0.05)

    def _say_ready(self) -> None:
        title = reply_mark.title(self.mark)
        self._say(f"{title}{self.ready} of {len(self._plan.engines)} engines ready")

    def _tell(self, doing: str) -> None:
        """Report progress to the caller; an exception from there ends the watch."""
        if self._progress is None:
            return
        waiting = next(
            (one for one in self._endpoints if one.name not in self._ready), self._endpoints[-1]
        )
        _, line = self._logs.last(waiting.node, waiting.rank)
        self._progress(
            Progress(
                self.ready, len(self._plan.engines), time.monotonic() - self._begun, doing, line
            )
        )

    def _probe(self, one: probe.Endpoint) -> bool:
        """Return whether a rank gives a completion."""
        seconds = self._limits.answer
        if not http_client.listens(one.url, seconds):
            return False
        reply = probe.health(one.url, seconds)
        self._note("GET /health", one, reply)
        if reply.good:
            reply = self._chat(one, max_tokens=16)
            if reply.answered:
                self._failing.pop(one.name, None)
                return True
        elif reply.fault not in http_client.PLAIN:
            return False
        if (
            reply.status
            or reply.fault is http_client.Fault.LATE
            or reply.fault in http_client.PLAIN
        ):
            _, count = self._failing.get(one.name, (reply, 0))
            self._failing[one.name] = (reply, count + 1)
        return False

    def _chat(
        self, where: probe.Endpoint | str, question: str = probe.QUESTION, **more: object
    ) -> http_client.Reply:
        reply = probe.chat(
            where, self._plan.served_name, self._limits.answer, question, self._key, **more
        )
        asked = " ".join(
            ("POST /v1/chat/completions", *(f"+{name}" for name in more if name in _ADDED))
        )
        self._note(asked, where if isinstance(where, probe.Endpoint) else None, reply)
        return reply

    def _note(self, asked: str, where: probe.Endpoint | None, reply: http_client.Reply) -> None:
        """Keep the mark of a reply, and give the reply to whoever listens."""
        self.mark = self.mark or reply.mark
        self._heard(asked, where, reply)

    def _check_failing(self) -> None:
        """Raise Found for an engine that repeatedly answers without a completion."""
        for one in self._endpoints:
            reply, count = self._failing.get(one.name, (None, 0))
            if (
                reply is not None
                and count >= _TRIES
                and (reply.status or reply.fault in http_client.PLAIN or self._busy(_LOOK) < _IDLE)
            ):
                raise Found(_no_answer(one, reply))

    def _stalled(self) -> None:
        """Raise Found for the engine that keeps the start waiting without progress."""
        for one in self._endpoints:
            if one.name in self._failing:
                raise Found(_no_answer(one, self._failing[one.name][0]))
        self.find("at start")
        last = {
            engine.name: self._logs.last(engine.node, engine.rank) for engine in self._plan.engines
        }
        waiting = {one.engine for one in self._endpoints if one.name not in self._ready}
        slow = next(
            (engine for engine in self._plan.engines if "Loading" in last[engine.name][1]),
            next(engine for engine in self._plan.engines if engine.name in waiting),
        )
        file, line = last[slow.name]
        raise Found(
            Diagnosis(
                "slow-start",
                slow.node,
                slow.rank,
                f"slow start: {slow.name} is not ready past the deadline, "
                f"{time.monotonic() - self._begun:.0f} s after the start",
                f"{file}: {line}",
                remedies.of("start/slow-start"),
            )
        )

    # The service ----------------------------------------------------------------------

    def first_answer(self) -> http_client.Reply:
        """Return the answer to one request through the front door."""
        self.when = "while serving"
        end = time.monotonic() + self._limits.door
        while True:
            self._tell("asks at the front door")
            reply = self._chat(self._plan.url)
            if reply.answered:
                break
            if reply.status == 200:
                # A proxy may have begun its answer before an engine refused or failed.
                time.sleep(_SAY)
                self.find("while serving")
                self._check_ended("while serving")
                raise Found(
                    self._door(
                        "empty-200",
                        "empty 200: the proxy answers 200 without a "
                        f"completion ({reply.text[:80]!r})",
                    )
                )
            self._logs.read()
            self._check_ended("while serving")
            # A front door that is starting refuses connections, or knows no engine yet.
            starting = reply.status in (0, 502, 503, 404)
            if not starting or reply.fault in http_client.PLAIN or time.monotonic() > end:
                time.sleep(_SAY)
                self.find("while serving")
                if reply.status in (401, 403):
                    raise Found(
                        self._door(
                            "key-refused",
                            "the API key is refused behind the front door: "
                            f"{reply.status} {reply.text[:120]}",
                            remedies.of("start/key-refused"),
                        )
                    )
                if reply.fault in http_client.PLAIN:
                    raise Found(
                        self._door(
                            reply.fault.value,
                            f"no answer at the front door: {reply.error}",
                            remedies.of(f"answer/{reply.fault.value}"),
                        )
                    )
                raise Found(
                    self._door(
                        "no-answer",
                        "no answer: the front door says "
                        f"{reply.status} {reply.error or reply.text[:120]}",
                    )
                )
            time.sleep(0.05)
        self.answer = reply
        return reply

    def _door(self, kind: str, cause: str, help_: str = "") -> Diagnosis:
        router = self._plan.router
        node = router.node if router else self._plan.engines[0].node
        self._logs.read()
        file, line = self._logs.last_of(ROUTER) if router else ("POST", self._plan.url)
        return Diagnosis(
            kind,
            node,
            None,
            cause,
            f"{file}: {line}",
            help_ or remedies.of("start/front-door"),
        )

    def check_transfer(self) -> None:
        """Check that prefill hands its KV cache to decode; other layouts have nothing to check.

        The cache of the first answer must have been transferred, and the answer must equal the one
        that a decode engine gives alone.
        """
        decode = [one for one in self._endpoints if one.role == "decode"]
        if not decode or self.answer is None:
            return
        self.moved_tokens, counted = probe.moved([one.url for one in decode], self._limits.answer)
        self.moved_bytes = counted or 0
        if not self.moved_tokens or counted == 0:
            self.find("while serving")
            self._ask_prefill()
            raise Found(
                self._door(
                    "cache-not-moved",
                    "no cache moved: decode computed the "
                    "prompt again, although prefill offers its cache",
                )
            )
        if self._random:
            return
        direct = self._chat(decode[0])
        self._check_replies([direct], decode[:1])
        if (direct.content, direct.thoughts) != (self.answer.content, self.answer.thoughts):
            raise Found(
                self._door(
                    "other-answer",
                    "the answer through the front door differs from a direct one: "
                    f"{self.answer.content[:60]!r} and {direct.content[:60]!r}",
                )
            )

    def _ask_prefill(self) -> None:
        """Raise Found for a prefill engine that offers no cache when asked as the proxy asks."""
        for one in self._endpoints:
            if one.role != "prefill":
                continue
            reply = self._chat(
                one,
                max_tokens=1,
                kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False},
            )
            if reply.body.get("kv_transfer_params"):
                continue
            if not reply.good:  # it has failed, whatever it was asked for
                self._check_replies([reply], [one])
            raise Found(
                Diagnosis(
                    "no-kv-params",
                    one.node,
                    one.rank,
                    f"prefill returns no kv params: {one.name} answers a prefill request without "
                    "kv_transfer_params, so that decode computes the prompt again",
                    f"POST {one.url}/v1/chat/completions: kv_transfer_params "
                    f"{reply.body.get('kv_transfer_params')!r}",
                    remedies.of("start/no-kv-params"),
                )
            )

    def look_at_answers(self) -> None:
        """Ask every rank once more, with a tool, and check content, reasoning and tool calls."""
        self._tell("asks every rank once more")
        with ThreadPoolExecutor(_PROBES) as pool:
            replies = list(
                pool.map(
                    lambda one: self._chat(
                        one,
                        probe.TOOL_QUESTION,
                        max_tokens=128,
                        **({"tools": list(probe.TOOLS)} if one.tools else {}),
                    ),
                    self._endpoints,
                )
            )
        if self._random:
            self.notes.append("random weights: what the answers say is not judged")
        elif any(
            not one.reasoning and chat_markers.THINKING.search(reply.content)
            for one, reply in zip(self._endpoints, replies, strict=True)
        ):
            self.notes.append(
                "thoughts stand in the content, with their marks: this plan has no "
                "--reasoning-parser; the feature reasoning-parser adds it"
            )
        for one, reply in zip(self._endpoints, replies, strict=True):
            wrong = probe.flaw(reply, one)
            if wrong and not self._random:
                raise Found(
                    Diagnosis(
                        wrong[0],
                        one.node,
                        one.rank,
                        wrong[1],
                        f"POST {one.url}/v1/chat/completions: {reply.text[:200]}",
                        remedies.of(f"start/{wrong[0]}"),
                    )
                )
        self._check_replies(replies, self._endpoints)
        self._ask_prefill()

    def load(self) -> None:
        """Send a short load through the front door, enough for every engine to get a part.

        The upstream proxy gives what comes while engines are idle to the first of them. Behind it
        every rank is also asked by itself.
        """
        self.when = "under load"
        self._tell("a short load")
        behind = [one for one in self._endpoints if one.role != "prefill"]
        router = self._plan.router
        alone = self._endpoints if router is not None and router.kind == "upstream" else ()
        asked: list[probe.Endpoint | None] = [None] * (_LOADS * len(behind))
        asked += [one for one in alone for _ in range(_LOADS)]
        with ThreadPoolExecutor(_PROBES) as pool:
            replies = list(
                pool.map(
                    lambda at: self._chat(
                        asked[at] or self._plan.url, f"Request {at}: {probe.QUESTION}"
                    ),
                    range(len(asked)),
                )
            )
        self._check_replies(replies, asked)
        self._check_ended("under load")

    def _check_replies(
        self, replies: Sequence[http_client.Reply], where: Sequence[probe.Endpoint | None]
    ) -> None:
        failed = [
            (reply, one) for reply, one in zip(replies, where, strict=True) if not reply.answered
        ]
        if not failed:
            return
        empty = sum(reply.status == 200 and one is None for reply, one in failed)
        if empty:
            self.notes.append(
                f"{empty} of {where.count(None)} requests through the front door got status 200 "
                "without a completion, which a client may take for an answer"
            )
        time.sleep(_SAY)
        self.find("under load")
        self._check_ended("under load")
        reply, one = failed[0]
        if one is not None:
            raise Found(_no_answer(one, reply))
        raise Found(
            self._door(
                "no-answer",
                f"{len(failed)} of {len(replies)} requests under "
                f"load had no answer: {reply.status} "
                f"{reply.error or reply.text[:120]}",
            )
        )

    # Failures -------------------------------------------------------------------------

    def _check_ended(self, when: str) -> None:
        """Raise Found for a program that has ended, and its engines with it."""
        ended = [
            name
            for name in self._ended()
            if name == ROUTER or name.partition(" ")[2] in ("engines", *STORE)
        ]
        if not ended:
            return
        time.sleep(_SAY)
        self.find(when)
        raise Found(self._died(when, ended[0], self._ended()[ended[0]]))

    def find(self, when: str, nodes: Sequence[str] = ()) -> None:
        """Raise Found where the logs (of ``nodes`` only) show a cause."""
        self._logs.read()
        logs = [log for log in self._logs.all() if not nodes or log.node in nodes]
        found = first_failure.of_logs(logs, self._plan, when)
        if found is not None:
            raise Found(found)

    def failed(self, name: str, code: int | None) -> None:
        """Raise Found for a step on a node that failed without any cause known to the doctor."""
        node, _, step = name.partition(" ")
        self._logs.read()
        file, lines = self._logs.last_of(name)
        ending = "did not end" if code is None else f"ended with {how(code)}"
        raise Found(
            Diagnosis(
                "step-failed",
                node,
                None,
                f"{step} {ending}",
                f"{file}: {lines}",
                remedies.of("start/ended", file=file),
            )
        )

    def _died(self, when: str, name: str, code: int) -> Diagnosis:
        """Return the diagnosis of a program that ended without a message."""
        ending = how(code)
        node = name.partition(" ")[0]
        mine = [engine for engine in self._plan.engines if engine.node == node]
        file, line = self._logs.last_of(name)
        help_ = remedies.of("start/killed" if code in (-9, 137) else "start/ended", file=file)
        part = name.partition(" ")[2]
        if part in STORE:
            return Diagnosis(
                "store-master-dies" if part == STORE[0] else "store-service-dies",
                node,
                None,
                f"{part} of the KV store ended {when}: {ending}",
                f"{file}: {line}",
                help_,
            )
        if name == ROUTER or not mine:
            router = self._plan.router
            return Diagnosis(
                "proxy-died",
                router.node if router else node,
                None,
                f"the proxy ended {when}: {ending}",
                f"{file}: {line}",
                help_,
            )
        kind = "rank-dies-at-start" if when == "at start" else "rank-dies-while-serving"
        return Diagnosis(
            kind,
            node,
            mine[0].rank if len(mine) == 1 else None,
            f"rank died {when}: {ending}",
            f"{file}: {line}",
            help_,
        )


def how(code: int) -> str:
    """Return how a program ended, in words; a shell tells signal N as 128 + N.

    >>> how(-9), how(137), how(2)
    ('SIGKILL', 'exit code 137 (SIGKILL)', 'exit code 2')
    """
    if code < 0:
        return signal.Signals(-code).name
    try:
        return f"exit code {code} ({signal.Signals(code - 128).name})"
    except ValueError:
        return f"exit code {code}"


def _no_answer(one: probe.Endpoint, reply: http_client.Reply) -> Diagnosis:
    """Return the diagnosis of a rank that passes /health but fails to complete."""
    asked = f"POST {one.url}/v1/chat/completions"
    if reply.fault in http_client.PLAIN:
        return Diagnosis(
            reply.fault.value,
            one.node,
            one.rank,
            f"{one.name} gives no answer: {reply.error}",
            f"{one.url}: {reply.error}",
            remedies.of(f"answer/{reply.fault.value}"),
        )
    if reply.status == 0:
        return Diagnosis(
            "engine-hangs",
            one.node,
            one.rank,
            f"engine hangs: {one.name} says /health 200 and gives {reply.error}",
            f"{asked}: {reply.error}",
            remedies.of("start/engine-hangs"),
        )
    if reply.status == 200:
        return Diagnosis(
            "empty-200",
            one.node,
            one.rank,
            f"empty 200: {one.name} answers without a completion",
            f"{asked}: {reply.text[:200]}",
            remedies.of("start/empty-200"),
        )
    return Diagnosis(
        "first-chat-500",
        one.node,
        one.rank,
        f"/health 200 but first chat {reply.status}: {one.name} cannot compute",
        f"{asked}: {reply.status} {reply.text[:200]}",
        remedies.of("start/first-chat-500"),
    )
