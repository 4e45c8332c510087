"""From started to proved: every engine gives a completion, the front door too, and under load.

    watch = readiness.Watch(plan, logs, ended, Limits())
    watch.wait_ready(); watch.first_answer(); watch.look_at_answers(); watch.load()

Each raises `Found` with the diagnosis of the first thing that is wrong: the node, the rank, the
cause. It looks from outside (completions, exit codes, logs) and is told nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from kimi_nb.diagnose import first_failure as diagnosis
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan.spec import Plan
from kimi_nb.service import probe as service

_TRIES = 2  # completions that fail before an engine counts as broken
_LOOK, _IDLE = 0.7, 0.3  # seconds of a look; cores below which nobody computes
_PROBES = 8  # probes at a time
_LOADS = 2  # requests for each engine behind the front door, as load
_SAY = 0.3  # seconds in which the others say what they saw of a failure
ROUTER = "router"  # the program of the front door, among those that `ended` tells of


class Logs(Protocol):
    """What is read of a deployment's logs."""

    @property
    def progress(self) -> int:
        """Grows with what is read."""

    def read(self) -> None:
        """Take in what is new."""

    def all(self) -> list[diagnosis.Log]:
        """What was read."""

    def last(self, node: str, rank: int) -> tuple[str, str]:
        """(file, last line) of a rank."""

    def last_of(self, name: str) -> tuple[str, str]:
        """(file, last line) of a program."""


@dataclass(frozen=True)
class Limits:
    """Seconds: until every engine answers, without any progress, for one completion, until the
    front door lets a request through."""

    ready: float
    progress: float
    answer: float
    door: float


@dataclass(frozen=True)
class Progress:
    """How far a start is: engines that gave a completion, of how many, after how many seconds of
    the watch; ``line`` is the newest of a rank that is waited for, ``doing`` what goes on."""

    ready: int
    engines: int
    seconds: float
    doing: str
    line: str


class Found(Exception):
    """What ends the watch: the diagnosis."""

    def __init__(self, found: Diagnosis) -> None:
        self.found = found
        super().__init__(str(found))


class Watch:
    """One deployment that was started. ``ended`` tells the programs that have ended and their
    exit codes: "NODE engines" for what starts a node's engines, ``ROUTER`` for the front door.
    ``key`` is an API key; ``say`` is told of progress in words, ``progress`` in numbers at every
    look (what it raises ends the watch); ``busy`` tells how many cores the engines
    keep busy over some seconds, where that can be known: who computes does not hang."""

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
    ) -> None:
        self._plan, self._logs, self._ended = plan, logs, ended
        self._limits, self._key, self._say, self._busy = limits, key, say, busy
        self._progress = progress
        self._endpoints = service.endpoints(plan)
        self._begun = time.monotonic()
        self._ready: set[str] = set()
        self._failing: dict[str, tuple[service.Reply, int]] = {}
        self.times: dict[str, float] = {}  # rank: seconds to its first completion
        self.answer: service.Reply | None = None
        self.when = "at start"  # what goes on, for the causes in the logs
        self.notes: list[str] = []
        self.moved_tokens = 0  # prompt tokens whose KV cache came to decode engines
        self.moved_bytes = 0  # of that cache, where it is counted
        # Words of random weights mean nothing: that they come is all that can be judged.
        self._random = any(
            "load-format" in values and values["load-format"].value == "dummy"
            for values in plan.flags.values()
        )

    @property
    def ready(self) -> int:
        """Engines of which every rank gave a completion; the parts of one rank count with it."""
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

    # Ready ----------------------------------------------------------------------------

    def wait_ready(self) -> None:
        """Wait until every rank gave a completion."""
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
                    self._say(f"{self.ready} of {len(self._plan.engines)} engines ready")
                    return
                self._logs.read()
                self._check_ended("at start")
                self._check_failing()
                progress = (len(self._ready), self._logs.progress)
                if progress != before:
                    if before is None or before[0] != progress[0]:
                        self._say(f"{self.ready} of {len(self._plan.engines)} engines ready")
                    before, moved_at = progress, time.monotonic()
                if time.monotonic() > end:
                    self._stalled()
                if time.monotonic() - moved_at > self._limits.progress:
                    if self._busy(_LOOK) < _IDLE:
                        self._stalled()
                    moved_at = time.monotonic()  # slow, on a machine that has other work
                time.sleep(0.05)

    def _tell(self, doing: str) -> None:
        """How far it is, for who looks on; what that raises ends the watch."""
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

    def _probe(self, one: service.Endpoint) -> bool:
        """Whether a rank gave a completion."""
        seconds = self._limits.answer
        if not service.listens(one.url, seconds) or not service.healthy(one.url, seconds):
            return False
        reply = self._chat(one, max_tokens=16)
        if reply.answered:
            self._failing.pop(one.name, None)
            return True
        if reply.status or reply.error.startswith("no answer"):
            _, count = self._failing.get(one.name, (reply, 0))
            self._failing[one.name] = (reply, count + 1)
        return False

    def _chat(
        self, where: service.Endpoint | str, question: str = service.QUESTION, **more: object
    ) -> service.Reply:
        return service.chat(
            where, self._plan.served_name, self._limits.answer, question, self._key, **more
        )

    def _check_failing(self) -> None:
        """An engine that answers, but not with a completion, again and again."""
        for one in self._endpoints:
            reply, count = self._failing.get(one.name, (None, 0))
            if (
                reply is not None
                and count >= _TRIES
                and (reply.status or self._busy(_LOOK) < _IDLE)
            ):
                raise Found(_no_answer(one, reply))

    def _stalled(self) -> None:
        """Nothing moves any more: say what is waited for."""
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
                "Look whether it still reads from disk (iostat), or waits for another rank; "
                "VLLM_ENGINE_READY_TIMEOUT_S is how long vLLM waits.",
            )
        )

    # The service ----------------------------------------------------------------------

    def first_answer(self) -> service.Reply:
        """One request through the front door."""
        self.when = "while serving"
        end = time.monotonic() + self._limits.door
        while True:
            self._tell("asks at the front door")
            reply = self._chat(self._plan.url)
            if reply.answered:
                break
            if reply.status == 200:
                raise Found(
                    self._door(
                        "empty-200",
                        "empty 200: the proxy answers 200 without a "
                        f"completion ({reply.text[:80]!r})",
                    )
                )
            self._logs.read()
            self._check_ended("while serving")
            # A front door that starts refuses connections, or knows no engine yet.
            if reply.status not in (0, 502, 503, 404) or time.monotonic() > end:
                time.sleep(_SAY)
                self.find("while serving")
                if reply.status in (401, 403):
                    raise Found(
                        self._door(
                            "key-refused",
                            "the API key is refused behind the front door: "
                            f"{reply.status} {reply.text[:120]}",
                            "The proxy hands OPENAI_API_KEY to the engines: export the engines' key "
                            "under that name where it starts (proxy.sh does).",
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
            help_
            or "The engines answer by themselves: look at the proxy's log, "
            "take a newer one, and check a completion, never the status.",
        )

    def check_transfer(self) -> None:
        """Behind a prefill-decode front door: the cache of the first answer moved, and the
        answer is the one that a decode engine gives alone."""
        decode = [one for one in self._endpoints if one.role == "decode"]
        if not decode or self.answer is None:
            return
        self.moved_tokens, counted = service.moved([one.url for one in decode], self._limits.answer)
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
        if (direct.content, direct.thoughts) != (self.answer.content, self.answer.thoughts):
            raise Found(
                self._door(
                    "other-answer",
                    "the answer through the front door differs from a direct one: "
                    f"{self.answer.content[:60]!r} and {direct.content[:60]!r}",
                )
            )

    def _ask_prefill(self) -> None:
        """Which prefill engine hands nothing over: each is asked as the proxy asks."""
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
            raise Found(
                Diagnosis(
                    "no-kv-params",
                    one.node,
                    one.rank,
                    f"prefill returns no kv params: {one.name} answers a prefill request without "
                    "kv_transfer_params, so that decode computes the prompt again",
                    f"POST {one.url}/v1/chat/completions: kv_transfer_params "
                    f"{reply.body.get('kv_transfer_params')!r}",
                    "Compare --kv-transfer-config of this engine (kv_role kv_producer) with the "
                    "others'; its log says whether the connector started.",
                )
            )

    def look_at_answers(self) -> None:
        """Every rank once more, with a tool: words, thoughts and calls where they belong."""
        self._tell("asks every rank once more")
        with ThreadPoolExecutor(_PROBES) as pool:
            replies = list(
                pool.map(
                    lambda one: self._chat(
                        one,
                        service.TOOL_QUESTION,
                        max_tokens=128,
                        **({"tools": list(service.TOOLS)} if one.tools else {}),
                    ),
                    self._endpoints,
                )
            )
        if self._random:
            self.notes.append("random weights: what the answers say is not judged")
        elif any(
            not one.reasoning and "</think>" in reply.content
            for one, reply in zip(self._endpoints, replies, strict=True)
        ):
            self.notes.append(
                "thoughts stand in the content, up to </think>: this plan has no "
                "--reasoning-parser; the feature reasoning-parser adds it"
            )
        for one, reply in zip(self._endpoints, replies, strict=True):
            wrong = service.flaw(reply, one)
            if wrong and not self._random:
                raise Found(
                    Diagnosis(
                        wrong[0],
                        one.node,
                        one.rank,
                        wrong[1],
                        f"POST {one.url}/v1/chat/completions: {reply.text[:200]}",
                        _FLAW_HELP[wrong[0]],
                    )
                )
        self._check_replies(replies, self._endpoints)
        self._ask_prefill()

    def load(self) -> None:
        """A short load through the front door: every engine gets some of it."""
        self.when = "under load"
        self._tell("a short load")
        behind = [one for one in self._endpoints if one.role != "prefill"]
        with ThreadPoolExecutor(_PROBES) as pool:
            replies = list(
                pool.map(
                    lambda at: self._chat(self._plan.url, f"Request {at}: {service.QUESTION}"),
                    range(_LOADS * len(behind)),
                )
            )
        self._check_replies(replies, [None] * len(replies))
        self._check_ended("under load")

    def _check_replies(
        self, replies: Sequence[service.Reply], where: Sequence[service.Endpoint | None]
    ) -> None:
        failed = [
            (reply, one) for reply, one in zip(replies, where, strict=True) if not reply.answered
        ]
        if not failed:
            return
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

    # What is wrong --------------------------------------------------------------------

    def _check_ended(self, when: str) -> None:
        """A script that has ended took its engines with it."""
        ended = [name for name in self._ended() if name.endswith(" engines") or name == ROUTER]
        if not ended:
            return
        time.sleep(_SAY)
        self.find(when)
        raise Found(self._died(when, ended[0], self._ended()[ended[0]]))

    def find(self, when: str, nodes: Sequence[str] = ()) -> None:
        """Raise Found where the logs (of ``nodes`` only) show a cause."""
        self._logs.read()
        logs = [log for log in self._logs.all() if not nodes or log.node in nodes]
        found = diagnosis.of_logs(logs, self._plan, when)
        if found is not None:
            raise Found(found)

    def failed(self, name: str, code: int | None) -> None:
        """Raise Found for a step on a node that has failed in words that nobody knows."""
        node, _, step = name.partition(" ")
        self._logs.read()
        file, lines = self._logs.last_of(name)
        how = "did not end" if code is None else f"ended with {_how(code)}"
        raise Found(
            Diagnosis(
                "step-failed", node, None, f"{step} {how}", f"{file}: {lines}", f"Read {file}."
            )
        )

    def _died(self, when: str, name: str, code: int) -> Diagnosis:
        """A program that has ended without a word."""
        how = _how(code)
        node = name.partition(" ")[0]
        mine = [engine for engine in self._plan.engines if engine.node == node]
        file, line = self._logs.last_of(name)
        help_ = (
            "A SIGKILL without a message is often the host's memory (dmesg)."
            if code == -9
            else f"Read {file}."
        )
        if name == ROUTER or not mine:
            router = self._plan.router
            return Diagnosis(
                "proxy-died",
                router.node if router else node,
                None,
                f"the proxy ended {when}: {how}",
                f"{file}: {line}",
                help_,
            )
        kind = "rank-dies-at-start" if when == "at start" else "rank-dies-while-serving"
        return Diagnosis(
            kind,
            node,
            mine[0].rank if len(mine) == 1 else None,
            f"rank died {when}: {how}",
            f"{file}: {line}",
            help_,
        )


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


_FLAW_HELP = {
    "garbled-output": "Run the canary on every engine alone; change the attention backend, drop "
    "FLASHCOMM1, take a newer engine.",
    "reasoning-leaks": "Start with --reasoning-parser kimi_k2, vLLM 0.20 or later.",
    "tool-call-leaks": "Start with --tool-call-parser kimi_k2 --enable-auto-tool-choice, vLLM "
    "0.20 or later.",
}


def _no_answer(one: service.Endpoint, reply: service.Reply) -> Diagnosis:
    """A rank whose /health is 200 and whose completions are not."""
    asked = f"POST {one.url}/v1/chat/completions"
    if reply.status == 0:
        return Diagnosis(
            "engine-hangs",
            one.node,
            one.rank,
            f"engine hangs: {one.name} says /health 200 and gives {reply.error}",
            f"{asked}: {reply.error}",
            "Restart the engine; its log and those of its group say what it waits "
            "for. Probe completions, not /health.",
        )
    if reply.status == 200:
        return Diagnosis(
            "empty-200",
            one.node,
            one.rank,
            f"empty 200: {one.name} answers without a completion",
            f"{asked}: {reply.text[:200]}",
            "Read the engine's log.",
        )
    return Diagnosis(
        "first-chat-500",
        one.node,
        one.rank,
        f"/health 200 but first chat {reply.status}: {one.name} cannot compute",
        f"{asked}: {reply.status} {reply.text[:200]}",
        "Read the engine's log at the first request; a broken MoE or attention "
        "kernel shows only there.",
    )
