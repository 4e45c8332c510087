"""A rehearsal from end to end: bundle, start, ready, first answer, stop, evidence.

    result = rehearse(plan, Path("runs/k2.5-a3/k2.5-a3-pd"))
    result.ok, result.ready, result.diagnosis

The scripts are those of the bundle, on loopback addresses and in a folder of the run. They run
under a supervisor, so that nothing is left when this process ends, however it ends.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kimi_nb import bundle, diagnosis, scripts, service
from kimi_nb.diagnosis import Diagnosis
from kimi_nb.errors import KimiError
from kimi_nb.plan import Plan
from kimi_nb.processes import Programs
from kimi_nb.rehearsal import faults, proxies, tools_on_path
from kimi_nb.rehearsal.logs import Logs
from kimi_nb.rehearsal.world import FOLDER, MARK, NODE, World, rebound
from kimi_nb.router import UPSTREAM

READY_WAIT = 60.0  # seconds until every engine answers; stand-ins take 2 to 6
PATIENCE = 4.0  # seconds without any progress until what is missing counts as missing
ANSWER_WAIT = 3.0  # seconds for one completion of a stand-in
DOOR_WAIT = 20.0  # seconds until the front door lets a request through
_TRIES = 2  # completions that fail before an engine counts as broken
_PROBES = 8  # probes at a time
_LOADS = 2  # requests for each engine behind the front door, as load


class RehearsalError(KimiError):
    """A rehearsal that cannot take place on this machine."""


@dataclass(frozen=True)
class Rehearsal:
    """What came of it. Seconds and MB are of stand-ins on this machine and say nothing about
    hardware; ``ready`` counts engines that gave a completion; ``peak_memory_mb`` is the largest
    sum of PSS of all processes of the rehearsal."""

    ok: bool
    plan: str
    engines: int
    ready: int
    ready_s: float | None
    first_answer_s: float | None
    peak_memory_mb: float
    answer: str
    diagnosis: Diagnosis | None
    folder: Path
    fault: str = ""
    mark: str = MARK
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"folder": str(self.folder),
                               "diagnosis": self.diagnosis and self.diagnosis.as_dict()}

    def __str__(self) -> str:
        lines = [f"{MARK} of {self.plan}: {self.ready} of {self.engines} engines ready"
                 + (f" after {self.ready_s:.1f} s" if self.ready_s is not None else "")
                 + (f", first answer after {self.first_answer_s:.1f} s"
                    if self.first_answer_s is not None else "")
                 + f", {self.peak_memory_mb:.0f} MB (stand-ins on this machine: no measure of "
                 "hardware)."]
        lines += [f"answer: {self.answer}"] if self.answer else []
        lines += [f"note: {note}" for note in self.notes]
        lines += ["ok: every engine answered, the front door too, nothing is left running."
                  if self.ok else f"failed: {self.diagnosis}", f"logs: {self.folder}"]
        return "\n".join(lines)


@dataclass
class _Seen:
    """What is known while a rehearsal goes on."""

    ready: set[str] = field(default_factory=set)
    ready_s: float | None = None
    first_answer_s: float | None = None
    answer: str = ""
    notes: list[str] = field(default_factory=list)


class _Found(Exception):
    """What ends a rehearsal early: the diagnosis."""

    def __init__(self, found: Diagnosis) -> None:
        self.found = found
        super().__init__(str(found))


def check_machine() -> None:
    """Raise RehearsalError where a rehearsal cannot be: its nodes are 127.x.y.z addresses."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.77.0.2", 0))
        except OSError as error:
            raise RehearsalError(
                "A rehearsal gives each node an address of its own, 127.77.0.1 and on. This "
                f"machine has only 127.0.0.1 ({error.strerror}), as macOS does: use Linux, or a "
                "Linux container or virtual machine. Plans and checks work here.") from None
    if not sys.platform.startswith("linux"):
        raise RehearsalError(f"A rehearsal needs Linux (/proc, process groups); this is "
                             f"{sys.platform}. Plans and checks work here.")
    if shutil.which("bash") is None:
        raise RehearsalError("A rehearsal runs bash scripts; there is no bash on PATH.")


def rehearse(plan: Plan, folder: Path, *, fault: str = "", started: float | None = None,
             say: Callable[[str], None] = lambda text: None) -> Rehearsal:
    """Rehearse a plan in a new folder below ``folder``. ``say`` is told of progress.

    Raises RehearsalError, ParameterError or PlanError before anything starts; what fails later
    is in the result.
    """
    begun = time.monotonic() if started is None else started
    check_machine()
    root = _fresh(folder)
    found: Diagnosis | None = None
    try:
        with Programs(root / "logs" / "supervisor.log") as programs:
            # First, because loading takes it as long as everything before its first use.
            programs.start("spawner", [sys.executable, "-m", "kimi_nb.rehearsal.spawner",
                                       str(root)], root, dict(os.environ),
                           root / "logs" / "spawner.log")
            stage = _Stage(plan, root, fault, begun, say, programs)
            try:
                stage.run()
            except _Found as end:
                found = end.found
            finally:
                peak, _ = programs.peak_mb()
    except (KimiError, OSError):
        if not (root / "world.json").exists():
            shutil.rmtree(root)
        raise
    finally:
        for name in ("spawner.sock", "spawner.new"):
            (root / name).unlink(missing_ok=True)
    seen = stage.seen
    result = Rehearsal(
        ok=found is None, plan=plan.name, engines=len(stage.plan.engines),
        ready=stage.count_ready(), ready_s=_round(seen.ready_s),
        first_answer_s=_round(seen.first_answer_s), peak_memory_mb=round(peak, 1),
        answer=seen.answer, diagnosis=found, folder=root, fault=fault, notes=tuple(seen.notes))
    (root / "rehearsal.json").write_text(
        json.dumps(result.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _fresh(folder: Path) -> Path:
    """The next numbered folder; nothing of an earlier rehearsal is lost."""
    base = folder / "rehearsals"
    base.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in base.iterdir() if path.name.isdecimal()), default=0)
    while True:
        number += 1
        try:
            (base / f"{number:03}").mkdir()
            (base / f"{number:03}" / "logs").mkdir()
        except FileExistsError:
            continue
        return base / f"{number:03}"


class _Stage:
    """One rehearsal under way."""

    def __init__(self, plan: Plan, root: Path, fault: str, begun: float,
                 say: Callable[[str], None], programs: Programs) -> None:
        self.root, self._begun, self._say, self._programs = root, begun, say, programs
        self.work = root / "bundle"
        self.plan = rebound(plan, self.work)
        self.seen = _Seen()
        world, files = World.of(self.plan), scripts.files(self.plan)
        self.fault = ""
        if fault:
            world, files, target = faults.apply(fault, self.plan, world, files)
            self.fault = fault.partition("@")[0]
            if self.fault == "port-taken":
                self._occupied = target.engine
        self.world = world
        bundle.write(files, self.work)
        tools_on_path.write(root)
        world.write(root / "world.json")
        self.endpoints = service.endpoints(self.plan)
        self.logs = Logs(self.plan, root)
        self._failing: dict[str, tuple[service.Reply, int]] = {}

    # The steps ------------------------------------------------------------------------

    def run(self) -> None:
        """All of them. Raises _Found at the first thing that is wrong."""
        self._spawner()
        self._on_every_node("reach", lambda node: ["ssh", self.world.nodes[node], "hostname"])
        if self.plan.host_tuning:
            self._on_every_node("host_tuning", lambda node: ["bash", "host_tuning.sh"])
        for job in self._jobs_before():
            self._on_every_node(job, lambda node, job=job: ["bash", f"../jobs/{job}"])
        self._start_engines()
        self._wait_ready()
        self._open_door()
        self._first_answer()
        self._look_at_answers()
        self._load()
        self._say("stopping")

    def _spawner(self) -> None:
        if self.fault == "port-taken":
            self._start("occupant", self.plan.engines[0].node, [
                sys.executable, "-m", "http.server", str(self._occupied.http_port), "--bind",
                self._occupied.address, "--directory", str(self.root / "logs")], self.root)
        end = time.monotonic() + 30
        while not (self.root / "spawner.sock").exists():
            if "spawner" in self._programs.ended() or time.monotonic() > end:
                text = (self.root / "logs" / "spawner.log").read_text(errors="replace")
                raise RehearsalError("The stand-ins of the rehearsal did not start:\n"
                                     + "\n".join(text.splitlines()[-8:]))
            time.sleep(0.01)

    def _start(self, name: str, node: str, argv: Sequence[str], folder: Path) -> None:
        self._programs.start(name, argv, folder, self._environment(node),
                             self.root / "logs" / f"{name.replace(' ', '.')}.log")

    def _environment(self, node: str) -> dict[str, str]:
        """What a login on the node would give: stand-ins first on PATH, a home and a temporary
        folder of its own, secrets by a value that is none."""
        home = self.root / "nodes" / node / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {"PATH": f"{self.root / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                        "/sbin:/bin",
                "HOME": str(home), "TMPDIR": str(home), "USER": "root", "LANG": "C.UTF-8",
                "HOSTNAME": node, NODE: node, FOLDER: str(self.root),
                **{source: self._key for source in self.plan.secrets.values()}}

    @property
    def _key(self) -> str:
        return f"{MARK}-key" if self.plan.secrets else ""

    def _on_every_node(self, step: str, argv: Callable[[str], list[str]]) -> None:
        """Run a script on every node and wait for all; the first failure in the order of the
        nodes ends the rehearsal, when the others have reported."""
        nodes = list(self.world.nodes)
        for node in nodes:
            self._start(f"{node} {step}", node, argv(node), self.work / node)
        codes = {node: self._programs.wait(f"{node} {step}", READY_WAIT) for node in nodes}
        if any(codes.values()) or None in codes.values():
            self.logs.read()
            self._diagnose("at start", only=[node for node in nodes if codes[node] != 0],
                           fallback=f"{step} ended with {codes}")

    def _jobs_before(self) -> list[str]:
        """The jobs that have to be done before the one that serves."""
        jobs = {job.name: job for job in self.plan.jobs}
        serving = jobs.get(self._serving) if jobs else None
        chain: list[str] = []
        while serving is not None and serving.after:
            serving = jobs.get(serving.after)
            if serving is not None and serving.name != "tune-moe":
                chain.insert(0, serving.file)
        return chain

    @property
    def _serving(self) -> str:
        return "baseline" if self.plan.scenario == "default" else "optimised"

    def _start_engines(self) -> None:
        containers = {box.node: box for box in self.plan.containers}
        for node in self.world.nodes:
            folder = self.work / node
            inner = "launch.sh" if (folder / "launch.sh").exists() else "serve.sh"
            if self.plan.jobs:
                file = next(job.file for job in self.plan.jobs if job.name == self._serving)
                argv = ["bash", f"../jobs/{file}"]
            elif node in containers and containers[node].runs_engine:
                argv = ["bash", "docker_run.sh"]
            elif node in containers:
                argv = ["bash", "docker_run.sh", "bash", str(folder / inner)]
            else:
                argv = ["bash", inner]
            self._say(f"{node}: {shlex.join(argv[:2])}")
            self._start(f"{node} engines", node, argv, folder)

    # Ready ----------------------------------------------------------------------------

    def _wait_ready(self) -> None:
        end, moved_at, before = time.monotonic() + READY_WAIT, time.monotonic(), None
        with ThreadPoolExecutor(_PROBES) as pool:
            while True:
                left = [one for one in self.endpoints if one.name not in self.seen.ready]
                for one, ready in zip(left, pool.map(self._probe, left), strict=True):
                    if ready:
                        self.seen.ready.add(one.name)
                if not [one for one in left if one.name not in self.seen.ready]:
                    self.seen.ready_s = time.monotonic() - self._begun
                    self._say(f"{self.count_ready()} of {len(self.plan.engines)} engines ready")
                    return
                self.logs.read()
                self._check_ended("at start")
                self._check_failing()
                progress = (len(self.seen.ready), self.logs.progress)
                if progress != before:
                    before, moved_at = progress, time.monotonic()
                    self._say(f"{self.count_ready()} of {len(self.plan.engines)} engines ready")
                if time.monotonic() - moved_at > PATIENCE or time.monotonic() > end:
                    self._stalled(left)
                time.sleep(0.05)

    def _probe(self, one: service.Endpoint) -> bool:
        """Whether a rank gave a completion."""
        if not service.listens(one.url, ANSWER_WAIT) or not service.healthy(one.url, ANSWER_WAIT):
            return False
        reply = service.chat(one, self.plan.served_name, ANSWER_WAIT, key=self._key,
                             max_tokens=16)
        if reply.answered:
            self._failing.pop(one.name, None)
            return True
        if reply.status or reply.error.startswith("no answer"):
            _, count = self._failing.get(one.name, (reply, 0))
            self._failing[one.name] = (reply, count + 1)
        return False

    def count_ready(self) -> int:
        """Engines of which every rank gave a completion; the parts of one rank count with it."""
        waiting = {one.engine for one in self.endpoints if one.name not in self.seen.ready}
        heads = {(engine.role, engine.group): engine.name for engine in self.plan.engines
                 if engine.url is not None}
        known = {one.engine for one in self.endpoints}
        return sum((engine.name if engine.name in known
                    else heads[engine.role, engine.group]) not in waiting
                   for engine in self.plan.engines)

    def _check_ended(self, when: str) -> None:
        """A script that has ended took its engines with it."""
        ended = [name for name in self._programs.ended() if name.endswith(" engines")
                 or name == "router"]
        if ended:
            time.sleep(0.3)  # what the others still say
            self.logs.read()
            self._diagnose(when, fallback=", ".join(
                f"{name} ended with {_how(self._programs.ended()[name])}" for name in ended),
                node=ended[0].partition(" ")[0])

    def _check_failing(self) -> None:
        """An engine that answers, but not with a completion, again and again."""
        for name, (reply, count) in self._failing.items():
            if count >= _TRIES:
                one = next(one for one in self.endpoints if one.name == name)
                raise _Found(_no_answer(one, reply))

    def _stalled(self, left: Sequence[service.Endpoint]) -> None:
        """Nothing moves any more: say what is waited for."""
        for name, (reply, _) in self._failing.items():
            raise _Found(_no_answer(next(
                one for one in self.endpoints if one.name == name), reply))
        self._find("at start")
        last = {engine.name: self.logs.last(engine.node, engine.rank)
                for engine in self.plan.engines}
        waiting = {one.engine for one in left}
        one = next((engine for engine in self.plan.engines if "Loading" in last[engine.name][1]),
                   next(engine for engine in self.plan.engines if engine.name in waiting))
        file, line = last[one.name]
        raise _Found(Diagnosis(
            "slow-start", one.node, one.rank,
            f"slow start: {one.name} is not ready past the deadline, "
            f"{time.monotonic() - self._begun:.0f} s after the start", f"{file}: {line}",
            "Look whether it still reads from disk (iostat), or waits for another rank; "
            "VLLM_ENGINE_READY_TIMEOUT_S is how long vLLM waits."))

    # The service ----------------------------------------------------------------------

    def _open_door(self) -> None:
        router = self.plan.router
        if router is None:
            return
        self._say("front door: proxy.sh")
        if router.kind == "upstream":
            shutil.copy(proxies.UPSTREAM, self.work / router.node / UPSTREAM)
        self._start("router", router.node, ["bash", "proxy.sh"], self.work / router.node)

    def _first_answer(self) -> None:
        """One request through the front door."""
        end = time.monotonic() + DOOR_WAIT
        while True:
            reply = service.chat(self.plan.url, self.plan.served_name, DOOR_WAIT, key=self._key)
            if reply.answered:
                break
            if reply.status == 200:
                raise _Found(self._door("empty-200", "empty 200: the proxy answers 200 without "
                                        f"a completion ({reply.text[:80]!r})"))
            self.logs.read()
            self._check_ended("while serving")
            if reply.status not in (0, 502, 503, 404) or time.monotonic() > end:
                time.sleep(0.2)
                self._find("while serving")
                raise _Found(self._door("no-answer", "no answer: the front door says "
                                        f"{reply.status} {reply.error or reply.text[:120]}"))
            time.sleep(0.05)
        self.seen.first_answer_s = time.monotonic() - self._begun
        self.seen.answer = reply.content or reply.thoughts
        self._say(f"first answer after {self.seen.first_answer_s:.1f} s")
        self._check_transfer(reply)

    def _door(self, kind: str, cause: str) -> Diagnosis:
        router = self.plan.router
        node = router.node if router else self.plan.engines[0].node
        self.logs.read()
        file, line = self.logs.last_of("router") if router else ("", "")
        return Diagnosis(kind, node, None, cause, f"{file}: {line}",
                         "The engines answer by themselves: look at the proxy's log, take a "
                         "newer one, and check a completion, never the status.")

    def _check_transfer(self, reply: service.Reply) -> None:
        """Behind a prefill-decode front door: the cache moved, and the answer is the one that an
        engine gives alone."""
        decode = [one for one in self.endpoints if one.role == "decode"]
        if not decode:
            return
        if not service.moved([one.url for one in decode], ANSWER_WAIT):
            self._find("while serving")
            self._ask_prefill()
        direct = service.chat(decode[0], self.plan.served_name, ANSWER_WAIT, key=self._key)
        if (direct.content, direct.thoughts) != (reply.content, reply.thoughts):
            raise _Found(self._door("other-answer", "the answer through the front door differs "
                                    f"from a direct one: {reply.content[:60]!r} and "
                                    f"{direct.content[:60]!r}"))

    def _ask_prefill(self) -> None:
        """Which prefill engine hands nothing over: each is asked as the proxy asks."""
        for one in self.endpoints:
            if one.role != "prefill":
                continue
            reply = service.chat(one, self.plan.served_name, ANSWER_WAIT, key=self._key,
                                 max_tokens=1, kv_transfer_params={
                                     "do_remote_decode": True, "do_remote_prefill": False})
            if not reply.body.get("kv_transfer_params"):
                raise _Found(Diagnosis(
                    "no-kv-params", one.node, one.rank,
                    f"prefill returns no kv params: {one.name} answers a prefill request without "
                    "kv_transfer_params, so that decode computes the prompt again",
                    f"POST {one.url}/v1/chat/completions: kv_transfer_params "
                    f"{reply.body.get('kv_transfer_params')!r}",
                    "Compare --kv-transfer-config of this engine (kv_role kv_producer) with the "
                    "others'; its log says whether the connector started."))

    def _look_at_answers(self) -> None:
        """Every rank once more, with a tool: words, thoughts and calls where they belong."""
        with ThreadPoolExecutor(_PROBES) as pool:
            replies = list(pool.map(lambda one: service.chat(
                one, self.plan.served_name, ANSWER_WAIT, service.TOOL_QUESTION, self._key,
                **({"tools": list(service.TOOLS)} if one.tools else {}), max_tokens=128),
                self.endpoints))
        for one, reply in zip(self.endpoints, replies, strict=True):
            wrong = service.flaw(reply, one)
            if wrong:
                raise _Found(Diagnosis(
                    wrong[0], one.node, one.rank, wrong[1],
                    f"POST {one.url}/v1/chat/completions: {reply.text[:200]}", _FLAW_HELP[wrong[0]]))
        self._check_replies(replies, self.endpoints)
        if any(one.role == "prefill" for one in self.endpoints):
            self._ask_prefill()

    def _load(self) -> None:
        """A short load through the front door: every engine gets some of it."""
        behind = [one for one in self.endpoints if one.role != "prefill"]
        with ThreadPoolExecutor(_PROBES) as pool:
            replies = list(pool.map(
                lambda at: service.chat(self.plan.url, self.plan.served_name, ANSWER_WAIT,
                                        f"Request {at}: {service.QUESTION}", self._key),
                range(_LOADS * len(behind))))
        self._check_replies(replies, [None] * len(replies))
        self.logs.read()
        self._check_ended("under load")

    def _check_replies(self, replies: Sequence[service.Reply],
                       where: Sequence[service.Endpoint | None]) -> None:
        failed = [(reply, one) for reply, one in zip(replies, where, strict=True)
                  if not reply.answered]
        if not failed:
            return
        time.sleep(0.5)  # what the logs say of it
        self.logs.read()
        self._find("under load")
        self._check_ended("under load")
        reply, one = failed[0]
        if one is not None:
            raise _Found(_no_answer(one, reply))
        raise _Found(self._door("no-answer", f"{len(failed)} of {len(replies)} requests under "
                                f"load had no answer: {reply.status} "
                                f"{reply.error or reply.text[:120]}"))

    # What is wrong --------------------------------------------------------------------

    def _find(self, when: str) -> None:
        self.logs.read()
        found = diagnosis.of_logs(self.logs.all(), self.plan, when)
        if found is not None:
            raise _Found(found)

    def _diagnose(self, when: str, fallback: str, only: Sequence[str] = (), node: str = ""
                  ) -> None:
        logs = [log for log in self.logs.all() if not only or log.node in only]
        found = diagnosis.of_logs(logs, self.plan, when)
        raise _Found(found or self._died(when, fallback, (only or [node])[0]))

    def _died(self, when: str, how: str, node: str) -> Diagnosis:
        """A script that has ended without a word."""
        mine = [engine for engine in self.plan.engines if engine.node == node]
        file, line = self.logs.last_of(f"{node}.engines" if mine else node)
        return Diagnosis(
            f"rank-dies-{'at-start' if when == 'at start' else 'while-serving'}" if mine
            else "proxy-died", node if mine else self.plan.router.node if self.plan.router else "",
            mine[0].rank if len(mine) == 1 else None, f"rank died {when}: {how}" if mine
            else f"the proxy ended {when}: {how}", f"{file}: {line}",
            "A SIGKILL without a message is often the host's memory (dmesg); else read the log.")


_FLAW_HELP = {
    "garbled-output": "Run the canary on every engine alone; change the attention backend, drop "
                      "FLASHCOMM1, take a newer engine.",
    "reasoning-leaks": "Start with --reasoning-parser kimi_k2, vLLM 0.20 or later.",
    "tool-call-leaks": "Start with --tool-call-parser kimi_k2 --enable-auto-tool-choice, vLLM "
                       "0.20 or later.",
}


def _no_answer(one: service.Endpoint, reply: service.Reply) -> Diagnosis:
    """A rank whose /health is 200 and whose completions are not."""
    if reply.status == 0:
        return Diagnosis("engine-hangs", one.node, one.rank, f"engine hangs: {one.name} says "
                         f"/health 200 and gives {reply.error}",
                         f"POST {one.url}/v1/chat/completions: {reply.error}",
                         "Restart the engine; its log and those of its group say what it waits "
                         "for. Probe completions, not /health.")
    if reply.status == 200:
        return Diagnosis("empty-200", one.node, one.rank, f"empty 200: {one.name} answers "
                         "without a completion", reply.text[:200], "Read the engine's log.")
    return Diagnosis("first-chat-500", one.node, one.rank, f"/health 200 but first chat "
                     f"{reply.status}: {one.name} cannot compute",
                     f"POST {one.url}/v1/chat/completions: {reply.status} {reply.text[:200]}",
                     "Read the engine's log at the first request; a broken MoE or attention "
                     "kernel shows only there.")


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"

