"""Deploy a plan from end to end, show its status, and stop it.

Example::

    made = lifecycle.up(plan, Path("runs/demo/k2.5-a3-pd"), confirm="my-site")
    made.result.ok, made.url
    lifecycle.down(journal.find("", Path("runs")))  # later, also in another process

`up` checks the site, changes it, waits until every engine gives completions, and verifies the
service. The service stays up when this process ends, however it ends. What was done is on disk, so
that a second call continues where the first one was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.bundle import scripts, writer
from kimi_nb.core import evidence, known_secrets
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import node_looks
from kimi_nb.deploy.journal import Journal, alone, beside, holder
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.on_nodes import OnNodes
from kimi_nb.deploy.steps import (
    Change,
    EngineState,
    Outcome,
    StepFailed,
    Target,
    alike,
    together,
)
from kimi_nb.diagnose import first_failure
from kimi_nb.diagnose.first_failure import Diagnosis, Event
from kimi_nb.plan.spec import Plan
from kimi_nb.service import confirmation
from kimi_nb.service.readiness import Found, Limits, Watch

Say = Callable[[str], None]
# Real engines take tens of minutes to load, and compile at the first request.
LIMITS = Limits(ready=5400.0, progress=900.0, answer=120.0, door=180.0)
_MOST = 40  # changes and failures that are shown
MARK = "measured"
LOGS = (".log", ".out", ".err")  # the endings of what nodes and jobs have written
_PROVES = ("ready", "open", "answer", "verify", "benchmark")  # the steps that ask engines
_STARTS = ("start", "submit")  # the steps that start engines, on nodes and under SLURM


@dataclass(frozen=True, repr=False)
class Deployed(show.Shown):
    """The result of a deployment.

    Attributes:
        ok: Whether the service has answered.
        ready: How many engines are ready.
        changes: What was changed; empty if everything was in place already.
        ready_s: Seconds from the start of this call until every engine was ready; None if this
            call has started no engine.
        first_answer_s: Seconds from the start of this call until the first answer; None likewise.
        memory_mb: The memory of the service's processes in MB; 0 if they run in containers.
        moved_tokens: The prompt tokens whose KV cache moved from prefill to decode.
        moved_bytes: The size of that cache in bytes, if the engine reports it.
        failed: What is wrong, the first failure first.
        times: Seconds until the first completion, by rank; empty if this call has started none.
        events: Every sign of a failure, the first cause first.
    """

    ok: bool
    plan: str
    site: str
    engines: int
    ready: int
    url: str
    changes: tuple[Change, ...]
    warnings: tuple[Change, ...]
    ready_s: float | None
    first_answer_s: float | None
    memory_mb: float
    moved_tokens: int
    moved_bytes: int
    answer: str
    failed: tuple[Diagnosis, ...]
    folder: Path
    step: str = ""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    mark: str = MARK

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The first failure."""
        return self.failed[0] if self.failed else None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return asdict(self) | {"folder": str(self.folder)}

    def table(self) -> show.Table:
        """Return the facts as a table, one per row."""
        rows: list[tuple[str, Any]] = [
            ("engines ready", f"{self.ready} of {self.engines}" if self.asked else "not asked"),
            ("front door", self.url),
            *(
                ("changed" if not at else "", line)
                for at, line in enumerate((together(self.changes) or ["no change"])[:_MOST])
            ),
        ]
        if self.asked:
            rows += [
                *self._times(),
                ("memory", f"{self.memory_mb:.0f} MB" if self.memory_mb else "not measured"),
                ("answer", show.Quote(self.answer) if self.answer else "none"),
            ]
        if self.moved_tokens:
            rows.insert(
                -1,
                (
                    "KV cache moved",
                    f"that of {self.moved_tokens} prompt tokens"
                    + (f", {self.moved_bytes:,} bytes" if self.moved_bytes else ""),
                ),
            )
        for one in alike(self.failed)[:_MOST]:
            rows += [
                ("node", one.node),
                *([] if one.rank is None else [("rank", one.rank)]),
                ("step", self.step),
                ("cause", one.cause),
                ("seen", one.evidence),
                ("next", one.help),
            ]
        rows += [(name.replace("_", " "), _words(value)) for name, value in self.facts.items()]
        rows += [("note", note) for note in self.notes]
        rows += [
            ("result", "ok" if self.ok else f"failed at {self.step}"),
            ("logs", str(self.folder)),
        ]
        mark = "" if self.mark == MARK else f"{self.mark}: "
        return show.Table(f"{mark}{self.plan} on {self.site}", ("what", "is"), tuple(rows))

    @property
    def asked(self) -> bool:
        """Whether it came as far as asking the engines."""
        return self.ok or self.ready > 0 or self.step in _PROVES

    def _times(self) -> list[tuple[str, Any]]:
        if self.ok and self.ready_s is None:
            return [("ready after", "not measured: every engine ran before this call")]
        return [
            ("ready after", show.seconds(self.ready_s)),
            ("first answer after", show.seconds(self.first_answer_s)),
        ]


@contextlib.contextmanager
def target(
    plan: Plan,
    journal: Journal,
    *,
    checksums: bool = False,
    download: bool = False,
    leave_host: bool = False,
    say: Say = lambda text: None,
    earlier: Sequence[Path] = (),
) -> Iterator[Target]:
    """Provide the site for this plan; it is reached at first use and released at the end.

    ``earlier`` are the folders of earlier deployments of the plan, the newest first.
    """
    if plan.transport == "slurm":
        from kimi_nb.deploy.slurm.cluster import Cluster  # start-up: only under SLURM

        if download:
            say("--download: no effect under SLURM, one of the jobs downloads the weights anyway")
        if checksums:
            say("--checksums: no effect under SLURM, no job reads the weights before the server")
        made: Target = Cluster(
            plan, scripts.files(plan), journal.folder, journal.run, say, earlier=earlier
        )
    elif plan.transport == "kubernetes":
        from kimi_nb.deploy.kubernetes.pod_deployment import PodDeployment  # start-up: only there

        if checksums:
            say("--checksums: no effect on Kubernetes, nobody reads the weights before the engines")
        if not (journal.folder / "bundle" / "kubernetes" / "kustomization.yaml").exists():
            writer.write(scripts.files(plan), journal.folder / "bundle")
        made = PodDeployment(
            plan,
            journal.folder / "bundle",
            journal.folder,
            journal.run,
            f"{holder()} since {journal.begun} for {plan.name}",
            say,
            download=download,
        )
    else:
        if any(not (journal.folder / "bundle" / node / "node.env").exists() for node in plan.nodes):
            writer.write(scripts.files(plan), journal.folder / "bundle")  # it was removed meanwhile
        made = OnNodes(
            plan,
            journal.folder / "bundle",
            journal.folder,
            journal.run,
            f"{holder()} since {journal.begun} for {plan.name}",
            lambda: _connect(plan, journal),
            _secrets(plan),
            checksums,
            download=download,
            leave_host=leave_host,
        )
    known_secrets.name(plan.secrets.values())
    try:
        yield made
    finally:
        made.close()
        known_secrets.file(journal.folder / "ssh.log")


def _connect(plan: Plan, journal: Journal) -> Any:
    if plan.transport == "local":
        return LocalNodes()
    from kimi_nb.bundle import inventory  # start-up: only over SSH
    from kimi_nb.deploy.ssh.transport import SshNodes

    node_looks.check_key(plan.request.site)
    return SshNodes(
        inventory.hosts(plan),
        journal.folder / "bundle" / "deploy",
        journal.folder / "ssh.log",
        plan.request.site.ssh.jump_host is not None,
    )


def _secrets(plan: Plan) -> dict[str, str]:
    """Return the values of the plan's secrets that this machine knows.

    The nodes have to know the others.
    """
    return {
        name: os.environ[name] for name in sorted(set(plan.secrets.values())) if name in os.environ
    }


def key_of(plan: Plan) -> str:
    """Return the API key for probes, or ""."""
    return os.environ.get(plan.secrets.get("VLLM_API_KEY", ""), "")


class Up:
    """A deployed service: its result, the plan with the addresses it really uses, and its end."""

    def __init__(self, journal: Journal, result: Deployed, plan: Plan) -> None:
        self.journal, self.result, self.plan = journal, result, plan

    @property
    def key(self) -> str:
        """Its API key, or ""."""
        return key_of(self.plan)

    @property
    def up(self) -> bool:
        """Whether the service is running."""
        return self.journal.state == "up"

    @property
    def url(self) -> str:
        """The URL of its front door."""
        return self.result.url

    def stop(self) -> Deployed:
        """Stop the service on the site; a second call changes nothing."""
        if self.journal.state != "down":
            try:
                down(self.journal)
            finally:
                self.journal = Journal.read(self.journal.folder)
        return self.result


def preview(
    plan: Plan,
    folder: Path,
    *,
    checksums: bool = False,
    download: bool = False,
    leave_host: bool = False,
) -> tuple[list[Change], str]:
    """Return what `up` would change on the site, and the changes of the scripts as ``diff -u``.

    Nothing is changed. Raises StepFailed if something is already wrong on the site, and
    ParameterError for the addresses of an example.
    """
    check_addresses(plan)
    kept = Journal.open(folder, plan)
    with tempfile.TemporaryDirectory() as name:
        # In a folder of its own, but under the run that may be deployed already.
        journal = dataclasses.replace(kept, folder=Path(name))
        writer.write(scripts.files(plan), journal.folder / "bundle")
        with target(
            plan,
            journal,
            checksums=checksums,
            download=download,
            leave_host=leave_host,
            earlier=beside(kept.folder),
        ) as site:
            return list(site.preview()), site.diff()


def up(
    plan: Plan,
    folder: Path,
    *,
    confirm: str,
    resume: bool = False,
    checksums: bool = False,
    download: bool = False,
    leave_host: bool = False,
    say: Say = lambda text: None,
    limits: Limits = LIMITS,
) -> Up:
    """Deploy a plan and wait until its service has answered.

    The files of the deployment go below ``folder``, that of the plan in the run. ``resume`` skips
    what an earlier call has done; ``download`` fetches the weights that a node lacks, and
    ``leave_host`` leaves the settings of the hosts as they are. Failures on the site are returned in
    the result's ``failed``; the service is then left as it is. Raises ParameterError unless ``confirm`` is the name of the site and its nodes are the user's own, and
    KimiError if another process is working on this deployment.
    """
    check_addresses(plan)
    check_confirmed(plan, confirm)
    _check_secrets(plan)
    with alone(folder, wait=False):
        journal = Journal.open(folder, plan)
        if journal.site != plan.site:
            raise ParameterError(
                f"{journal.folder}: {journal.plan} is deployed on {journal.site} from here; end "
                "that first (kimi-nb down), or name another run_dir."
            )
        files = scripts.files(plan)
        _check_same(journal, plan, files)
        writer.write(files, journal.folder / "bundle")
        if "claim" not in journal.begun_steps:
            journal.keep(plan)
        if not resume:
            journal.steps.clear()
        journal.set("starting")
        with target(
            plan,
            journal,
            checksums=checksums,
            download=download,
            leave_host=leave_host,
            say=say,
            earlier=beside(journal.folder),
        ) as site:
            result = _Deployment(plan, journal, site, say, limits).run()
            return Up(journal, result, site.serving() if result.ok else plan)


def _check_same(journal: Journal, plan: Plan, files: dict[str, str]) -> None:
    """Refuse to replace the scripts of a service that may be running.

    A service has to be stopped with the scripts that started it.
    """
    changes = writer.diff(writer.read(journal.folder / "bundle") or {}, files)
    if "claim" in journal.begun_steps and changes:
        before, now = (
            list(dict.fromkeys(engine.address for engine in one.engines))
            for one in (journal.kept_plan(), plan)
        )
        if not set(before) & set(now):
            raise ParameterError(
                f"two sites have the name {plan.site}: {journal.plan} is {journal.state} on "
                f"{', '.join(before[:4])}, and this site file has {', '.join(now[:4])}. Give each "
                "site file a name of its own (name:), which is what --confirm asks for; or end the "
                f"other first: kimi-nb down {shlex.quote(str(journal.folder))}"
            )
        raise ParameterError(
            f"{journal.plan} on {journal.site} is {journal.state} with other scripts "
            f"({', '.join(sorted(changes)[:3])}{', ...' * (len(changes) > 3)}). End it first: "
            f"kimi-nb down {shlex.quote(str(journal.folder))}"
        )


def check_confirmed(plan: Plan, confirm: str) -> None:
    """Refuse to change a site that was not named."""
    confirmation.check(plan.site, confirm, len(plan.nodes))


def check_addresses(plan: Plan) -> None:
    """Refuse to contact the addresses of an example; SLURM and Kubernetes find nodes by themselves.

    Raises ParameterError.
    """
    if plan.transport not in ("slurm", "kubernetes"):
        confirmation.check_addresses(plan.site, (engine.address for engine in plan.engines))


def _check_secrets(plan: Plan) -> None:
    """Refuse to deploy a service whose API key this machine does not know."""
    missing = [name for name in sorted(set(plan.secrets.values())) if name not in os.environ]
    if missing:
        raise ParameterError(
            f"{missing[0]} is not set here, and the service is to ask for it: "
            f"export {missing[0]}=... first (site file: api_key_env)."
        )


class _Deployment:
    """One call of `up`."""

    def __init__(
        self, plan: Plan, journal: Journal, site: Target, say: Say, limits: Limits
    ) -> None:
        self._plan, self._journal, self._site, self._say = plan, journal, site, say
        self._limits, self._begun = limits, time.monotonic()
        self._changes: list[Change] = []
        self._warnings: list[Change] = []
        self._warned: set[str] = set()
        self._facts: dict[str, Any] = {}
        self._ready_s: float | None = None
        self._first_s: float | None = None
        self._watch: Watch | None = None
        self._step = ""
        self._untouched = False
        self._started = False  # by this call: only then its times say how long a start takes

    def run(self) -> Deployed:
        failed: Sequence[Diagnosis] = ()
        try:
            for step in self._site.steps:
                self._step = step.name
                done = step.name in self._journal.steps and not step.always
                if done and not self._site.undone(step.name):
                    self._say(f"{step.name}: done before")
                    continue
                self._say(f"{step.name}: {step.title}")
                self._journal.begin(step.name)
                self._do(step.run)
                self._journal.done(step.name)
            self._prove()
        except StepFailed as error:
            # The claims taken for the check were released again.
            self._changes += error.outcome.changes
            self._untouched = not self._changes and not (
                set(self._journal.begun_steps) - {"reach", "claim"}
            )
            self._step = error.step
            self._record(error.outcome, [one.as_dict() for one in error.failed])
            failed = error.failed
        except Found as error:
            self._record(Outcome(), [error.found.as_dict()])
            failed = [error.found]
        except BaseException as error:
            self._journal.set("failed", self._step)
            self._record(Outcome(), [{"cause": type(error).__name__}])
            raise
        self._journal.set(
            "down" if self._untouched else "failed" if failed else "up",
            self._step if failed else "",
        )
        return self._result(failed)

    def _do(self, work: Callable[[], Outcome]) -> None:
        begun = time.monotonic()
        outcome = work()
        self._started |= self._step in _STARTS and bool(outcome.changes)
        self._changes += outcome.changes
        self._warnings += outcome.warnings
        self._facts |= {name: value for name, value in outcome.facts.items() if name != "reached"}
        for line in together(outcome.changes)[:_MOST]:
            self._say(f"  {line}")
        for line in together(outcome.warnings)[:_MOST]:
            if line not in self._warned:  # steps look at the same again
                self._say(f"  warning: {line}")
                self._warned.add(line)
        if not outcome.changes and self._step != "reach":
            self._say("  no change")
        self._record(outcome, [], round(time.monotonic() - begun, 2))

    def _prove(self) -> None:
        """Wait for completions from every engine and the front door, and test a short load."""
        plan = self._site.serving()
        watch = self._watch = Watch(
            plan, self._site.logs, self._site.ended, self._limits, key_of(plan), self._say
        )
        self._step = "ready"
        watch.wait_ready()
        if self._started:
            self._ready_s = round(time.monotonic() - self._begun, 2)
        self._step = "open"
        self._do(self._site.open_door)
        self._step = "answer"
        watch.first_answer()
        if self._started:
            self._first_s = round(time.monotonic() - self._begun, 2)
            self._say(f"{self._title}first answer after {self._first_s:.1f} s")
        self._step = "verify"
        watch.check_transfer()
        watch.look_at_answers()
        watch.load()
        self._site.logs.read()
        self._record(
            Outcome(
                facts={
                    "ready_s": self._ready_s,
                    "first_answer_s": self._first_s,
                    "memory_mb": self._site.memory_mb(),
                }
            ),
            [],
        )
        for step in self._site.after:
            self._step = step.name
            self._say(f"{step.name}: {step.title}")
            self._do(step.run)

    def _record(
        self, outcome: Outcome, failed: list[dict[str, Any]], seconds: float | None = None
    ) -> None:
        """Write one line of evidence: who, when, what, and exit codes."""
        evidence.record(
            self._journal.folder,
            "deploy",
            step=self._step,
            run=self._journal.run,
            by=holder(),
            plan=self._plan.name,
            site=self._plan.site,
            changed=[asdict(one) for one in outcome.changes],
            warnings=[asdict(one) for one in outcome.warnings],
            codes=dict(outcome.codes),
            facts={**outcome.facts, **({"mark": self._mark} if self._watch else {})},
            failed=failed,
            seconds=seconds,
        )

    @property
    def _mark(self) -> str:
        """REHEARSAL where a stand-in has answered anything: the mark follows the replies."""
        return (self._watch.mark if self._watch else "") or MARK

    @property
    def _title(self) -> str:
        return "" if self._mark == MARK else f"{self._mark}: "

    def _result(self, failed: Sequence[Diagnosis]) -> Deployed:
        watch = self._watch
        reply = watch.answer if watch else None
        plan = self._site.serving() if not failed or watch else self._plan
        return Deployed(
            ok=not failed,
            plan=plan.name,
            site=plan.site,
            engines=len(plan.engines),
            ready=watch.ready if watch else 0,
            url=self._site.url,
            changes=tuple(self._changes),
            warnings=tuple(self._warnings),
            ready_s=self._ready_s,
            first_answer_s=self._first_s,
            memory_mb=self._site.memory_mb() if watch else 0.0,
            moved_tokens=watch.moved_tokens if watch else 0,
            moved_bytes=watch.moved_bytes if watch else 0,
            answer=(reply.content or reply.thoughts) if reply else "",
            mark=self._mark,
            failed=tuple(failed),
            folder=self._journal.folder,
            step=self._step if failed else "",
            notes=tuple(watch.notes) if watch else (),
            facts=self._facts,
            times=dict(watch.times) if watch and self._started else {},
            events=first_failure.timeline(self._site.logs.all(), plan, watch.when)
            if failed and watch
            else (),
        )


def down(journal: Journal, *, say: Say = lambda text: None) -> Outcome:
    """Stop a deployment on its site and clean up, whatever its state.

    Raises StepFailed with the nodes on which that was not possible, after doing all that was
    possible.
    """
    with alone(journal.folder.parent.parent, wait=False):
        journal = Journal.read(journal.folder)
        plan = journal.kept_plan()
        return _down(journal, plan, say)


def _down(journal: Journal, plan: Plan, say: Say) -> Outcome:
    with target(plan, journal) as site:
        facts: dict[str, Any] = {
            "run": journal.run,
            "by": holder(),
            "plan": plan.name,
            "site": plan.site,
        }
        try:
            outcome = site.down()
        except StepFailed as error:
            if journal.state != "down":  # what was down before does not come up by failing
                journal.set("failed", "down")
            evidence.record(
                journal.folder,
                "down",
                **facts,
                changed=[asdict(one) for one in error.outcome.changes],
                failed=[one.as_dict() for one in error.failed],
            )
            raise
        journal.set("down")
        evidence.record(
            journal.folder,
            "down",
            **facts,
            failed=[],
            changed=[asdict(one) for one in outcome.changes],
        )
    for line in together((*outcome.changes, *outcome.warnings)):
        say(line)
    return outcome


def _words(fact: Any) -> Any:
    """Return a fact for a table; a list or a table of facts as words."""
    if isinstance(fact, Mapping):
        return ", ".join(f"{name} {value}" for name, value in fact.items())
    return ", ".join(map(str, fact)) if isinstance(fact, list | tuple) else fact


def status(journal: Journal) -> tuple[list[EngineState], list[show.Table]]:
    """Return the state of every engine, and tables that show it.

    The tables show node, rank, port, state and last error, the first failure if engines have
    ended, and the scheduler's queue if there is one.
    """
    plan = journal.kept_plan()
    queue = first = None
    with target(plan, journal) as site:
        if journal.state == "down":
            states = [
                EngineState(engine.name, engine.node, engine.rank, engine.http_port, "down")
                for engine in plan.engines
            ]
        else:
            states, queue = list(site.status()), site.queue()
            if journal.state == "up" and any(one.state.startswith("ended") for one in states):
                logs = site.logs.all()
                first = first_failure.of_logs(logs, site.serving(), "while serving")
    if journal.state != "up":
        first = _recorded(journal)
    engines = [one for one in states if one.rank is not None]
    ready = sum(one.state == "ready" for one in engines)
    mark = next((f"{one.mark}: " for one in states if one.mark), "")
    title = (
        f"{mark}{journal.plan} on {journal.site}, {journal.state}"
        + (f" at {journal.stopped_at}" if journal.stopped_at else "")
        + f": {ready} of {len(engines)} engines ready"
    )
    tables = [_engines(title, states), _first(first, journal) if first else None, queue]
    return states, [one for one in tables if one is not None]


def _recorded(journal: Journal) -> Diagnosis | None:
    """Return the failure with which the last call of `up` ended, or None if it did not fail."""
    entries = evidence.read(journal.folder)
    last = entries[-1] if entries else {}
    failed = last.get("failed") or []
    if last.get("stage") != "deploy" or not failed:
        return None
    if "node" not in failed[0]:  # an exception, such as Ctrl-C
        why = "it was interrupted" if failed[0]["cause"] == "KeyboardInterrupt" else "it ended"
        return Diagnosis(
            "interrupted", "here", None, f"{why} at {last['step']}", failed[0]["cause"], ""
        )
    return Diagnosis(**failed[0])


def _first(found: Diagnosis, journal: Journal) -> show.Table:
    """Return the failure from which the others follow, and what to do next."""
    rows = [
        ("node", found.node),
        *([] if found.rank is None else [("rank", found.rank)]),
        ("cause", found.cause),
        ("seen", found.evidence),
        *([("next", found.help)] if found.help else []),
    ]
    if any(path.suffix in LOGS for path in (journal.folder / "logs").rglob("*")):
        rows.append(("all signs", f"kimi-nb doctor {shlex.quote(str(journal.folder))}"))
    rows.append(("start again", "kimi-nb up, with the same words and --resume"))
    return show.Table("The first failure", ("what", "is"), tuple(rows))


def _engines(title: str, states: Sequence[EngineState]) -> show.Table:
    """Return a row for the engines of a node that are in the same state, one after the other.

    Errors that differ in numbers only, such as times and processes, are the same; the first is
    shown.
    """

    def alike(one: EngineState) -> tuple[str, str, str]:
        return one.node, one.state, re.sub(r"\d+", "0", one.error)

    def span(first: object, last: object) -> str:
        words = ["" if one is None else str(one) for one in (first, last)]
        return " to ".join(dict.fromkeys(words))

    rows = []
    for (node, state, _), group in itertools.groupby(states, alike):
        members = list(group)
        first, last = members[0], members[-1]
        rows.append(
            (
                node,
                span(first.engine, last.engine),
                span(first.rank, last.rank),
                span(first.port, last.port),
                state,
                first.error,
            )
        )
    return show.Table(title, ("node", "engine", "rank", "port", "state", "last error"), tuple(rows))
