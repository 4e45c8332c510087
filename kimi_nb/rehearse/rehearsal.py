"""Run a rehearsal from end to end: scripts, start, readiness, first answer, load, stop, evidence.

    with start(plan, Path("runs/k2.5-a3/k2.5-a3-pd")) as live:
        live.result.ok, live.result.diagnosis, live.plan.url
    result = live.stop()

The scripts are those of the bundle, on loopback addresses and in a folder of the run. A supervisor
runs them, so that no process is left over however this process ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePath
from signal import SIGINT, SIGTERM, Signals
from types import TracebackType
from typing import Any

import psutil

from kimi_nb import show
from kimi_nb.bundle import scripts
from kimi_nb.core import evidence, known_secrets
from kimi_nb.core.errors import KimiError, ParameterError, WriteError
from kimi_nb.core.marks import MARK
from kimi_nb.core.processes import Programs
from kimi_nb.diagnose import first_failure
from kimi_nb.diagnose.first_failure import Diagnosis, Event
from kimi_nb.diagnose.log_files import Logs, file_of
from kimi_nb.plan import router
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import faults, loopback, silent_losses, simulated_cluster
from kimi_nb.rehearse.launch import WORK, Stage
from kimi_nb.rehearse.loopback import Block, RehearsalError
from kimi_nb.rehearse.simulated_site import rebound
from kimi_nb.service import http_client
from kimi_nb.service.readiness import STORE, Found, Heard, Limits, Progress, Watch, unheard

# What no rehearsal tells: a stand-in has none of it.
NOT_TRIED = (
    "device memory, kernels, the network between the nodes, the weights, the images themselves"
)
Make = Callable[[Plan, Path, Block], tuple[Plan, dict[str, str]]]
_BASE_MB, _ENGINE_MB = 150, 18  # measured: shared by all stand-ins, and for each engine
_LISTENS = 0.5  # seconds; on this machine a free port refuses at once
_MOST = 12  # further causes to show
# Stand-ins take seconds where real engines take many minutes.
LIMITS = Limits(ready=60.0, progress=3.5, answer=3.0, door=20.0)


@dataclass(frozen=True, repr=False)
class Rehearsal(show.Shown):
    """The result of a rehearsal.

    Seconds and MB describe stand-ins on this machine and say nothing about hardware.

    Attributes:
        ok: Whether the service started, answered and passed all checks.
        ready: How many engines gave a completion.
        peak_memory_mb: The largest sum of the PSS of all processes of the rehearsal, in MB.
        answer: The text of the first answer.
        diagnosis: The first cause of a failure; None if there was none.
        also: Further causes found in the logs.
        moved_tokens: Prompt tokens whose KV cache was transferred.
        times: Seconds until the first completion of each rank.
        events: Every sign of a failure, the first cause first.
        not_tried: What an ok does not cover.
    """

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
    also: tuple[Diagnosis, ...] = ()
    notes: tuple[str, ...] = ()
    moved_tokens: int = 0
    times: Mapping[str, float] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    mark: str = MARK
    not_tried: str = NOT_TRIED

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return asdict(self) | {"folder": str(self.folder)}

    def table(self) -> show.Table:
        """Return a table with one fact in each row."""
        found = self.diagnosis
        rows: list[tuple[str, Any]] = [
            ("engines ready", f"{self.ready} of {self.engines}"),
            ("ready after", show.seconds(self.ready_s)),
            ("first answer after", show.seconds(self.first_answer_s)),
            ("memory of the stand-ins", f"{self.peak_memory_mb:.0f} MB"),
            ("answer", show.Quote(self.answer) if self.answer else "none"),
        ]
        if self.moved_tokens:
            rows.append(("KV cache moved", f"that of {self.moved_tokens} prompt tokens"))
        if self.fault:
            rows.append(("fault that was made", self.fault))
        if found is not None:
            rows += [
                ("node", found.node),
                ("rank", "none" if found.rank is None else found.rank),
                ("cause", found.cause),
                ("seen", found.evidence),
                ("next", found.help),
            ]
        rows += [("also" if not at else "", one.short) for at, one in enumerate(self.also[:_MOST])]
        if len(self.also) > _MOST:
            rows.append(("", f"and {len(self.also) - _MOST} more, in rehearsal.json"))
        rows += [("note", note) for note in self.notes]
        rows += [
            ("result", "ok" if self.ok else "failed"),
            ("not tried", self.not_tried),
            ("logs", str(self.folder)),
        ]
        return show.Table(
            f"{MARK} of {self.plan}: stand-ins on this machine, no measure of any hardware",
            ("what", "is"),
            tuple(rows),
        )


class Live:
    """A rehearsed service: running from the start until `stop`, if ``result.ok``.

    It also ends with the process that holds it.
    """

    def __init__(self, plan: Plan, programs: Programs, result: Rehearsal, key: str) -> None:
        self.plan, self.result, self.key = plan, result, key
        self._programs: Programs | None = programs

    @property
    def up(self) -> bool:
        """Whether the service is still running."""
        return self._programs is not None

    @property
    def url(self) -> str:
        """The address of the service on this machine."""
        return self.plan.url

    def stop(self) -> Rehearsal:
        """Stop everything and write the result into the rehearsal's folder; may be called again."""
        if self._programs is not None:
            with contextlib.suppress(KimiError):  # the supervisor was stopped from outside
                self.result = replace(
                    self.result, peak_memory_mb=round(self._programs.peak_mb(), 1)
                )
            self._programs.close()
            self._programs = None
            _tidy(self.result.folder)
            evidence.write_json(self.result.folder / "rehearsal.json", self.result.as_dict())
        return self.result

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def rehearse(plan: Plan, folder: Path, **more: Any) -> Rehearsal:
    """Start a rehearsal, stop it, and return its result."""
    with start(plan, folder, **more) as live:
        pass
    return live.result


def start(
    plan: Plan,
    folder: Path,
    *,
    fault: str = "",
    make: Make | None = None,
    begun: float | None = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[Progress], None] | None = None,
    heard: Heard = unheard,
    before_stop: Callable[[Path, Mapping[str, int]], None] = lambda root, ended: None,
) -> Live:
    """Rehearse a plan in a new folder below ``folder``, up to a service under a short load.

    The scripts are those of the plan's bundle, on loopback addresses; on Kubernetes its pods run;
    unless ``make`` derives others from the plan, their folder and the block of addresses (see
    `of_nodes`, `documented`). What goes
    wrong after the start becomes the diagnosis of the result, and the service is stopped.

    Args:
        plan: The plan to rehearse.
        folder: The folder of the run; each rehearsal gets a numbered folder within it.
        fault: The fault to simulate, by a name of `faults.FAULTS`; "" for none.
        make: Makes the plan and the scripts to run.
        begun: The time from which seconds are counted (`time.monotonic`); now if None.
        say: Called with messages about the progress.
        progress: Called with the progress in numbers. An exception that it raises ends the
            rehearsal and is raised here.
        heard: Called with every answer of a rank or the front door (see `readiness.Watch`).
        before_stop: Called with the rehearsal's folder and the exit codes of the programs that have
            ended, once its result is known, while everything that has not failed still runs.

    Raises:
        RehearsalError: This machine cannot run the rehearsal, or its stand-ins were stopped.
        ParameterError: The fault or the folder is not allowed.
        PlanError: The plan cannot have this fault.
        WriteError: The folder cannot be written.
    """
    begun = time.monotonic() if begun is None else begun
    _check_room(plan)
    known_secrets.name(plan.secrets.values())
    folder = Path(os.path.abspath(folder))  # without "..", which a container would not resolve
    if ":" in str(folder):
        raise ParameterError(
            f"run_dir {str(folder)!r}: a rehearsal puts a folder of it on PATH, "
            "where ':' separates two; choose another one."
        )
    block = loopback.claim()
    try:
        root = _fresh(folder)
        # The supervisor keeps the addresses claimed until all processes have ended.
        programs = Programs(root / "logs" / "supervisor.log", [block.guard.fileno()])
    except OSError as error:
        raise _unwritable(folder, error) from None
    finally:
        block.guard.close()
    try:
        # Start it first: its imports take as long as everything up to its first use.
        programs.start(
            "spawner",
            [sys.executable, "-m", "kimi_nb.rehearse.spawner", str(root)],
            root,
            dict(os.environ),
            root / "logs" / "spawner.log",
        )
        local, files = (make or _as_deployed)(faults.suited(fault, plan), root / WORK, block)
        _check_ports(local)
        stage = Stage(local, files, root, fault, programs, say)
        result = _run(stage, programs, begun, fault, say, progress, heard)
        _tell_ends(root, programs.ended())
        before_stop(root, programs.ended())
    except BaseException as error:
        programs.close()
        _tidy(root)
        if not (root / "world.json").exists():
            # Nothing was started. On a disk that has become read-only it stays.
            shutil.rmtree(root, ignore_errors=True)
        if isinstance(error, OSError):
            raise _unwritable(root, error) from None
        raise
    live = Live(stage.plan, programs, result, stage.key)
    if not result.ok:
        live.stop()
    return live


def _unwritable(folder: Path, error: OSError) -> KimiError:
    if error.filename == sys.executable:  # such as one in a home of somebody else
        return RehearsalError(
            f"{sys.executable}: cannot be run by this user ({error.strerror}). Install kimi_nb with a "
            "Python that this user may run."
        )
    return WriteError(f"{folder}: cannot be written ({error.strerror or error}).")


def _tell_ends(
    root: Path, ended: Mapping[str, int], programs: Sequence[str] = ("engines",)
) -> None:
    """Write of programs that were killed that they were, as node.sh does: they cannot themselves."""
    for name, code in ended.items():
        number = -code if code < 0 else code - 128
        node, _, program = name.partition(" ")
        if program in programs and number in {*Signals} - {SIGINT, SIGTERM}:
            now = time.strftime("%m-%d %H:%M:%S")
            place = f"{Path(__file__).name}:{sys._getframe().f_lineno}"
            how = f"{program} failed: signal {Signals(number).name}"
            with file_of(root, name).open("a", encoding="utf-8") as file:
                file.write(f"ERROR {now} [{place}] node {node}: {how}\n")


def _tidy(root: Path) -> None:
    for name in ("spawner.sock", "spawner.new"):
        # On a disk that has become read-only they stay; what failed there is told by who wrote.
        with contextlib.suppress(OSError):
            (root / name).unlink()
    known_secrets.folder(root)  # redact secrets in logs of other programs


def _check_room(plan: Plan) -> None:
    """Refuse a plan whose stand-ins do not fit into the memory of this machine.

    Raises:
        RehearsalError: The stand-ins need more memory than is free.
    """
    needed = _BASE_MB + _ENGINE_MB * len(plan.engines)
    there = psutil.virtual_memory().available / 1e6
    if needed > there:
        raise RehearsalError(
            f"{plan.name} has {len(plan.engines)} engines; their stand-ins would take some "
            f"{needed / 1000:.1f} GB, and {there / 1000:.1f} GB are free here. Rehearse a smaller "
            "shape of it (--set decode.nodes=..., decode.dp=...)."
        )


def _check_ports(plan: Plan) -> None:
    """Refuse to start where another program takes connections: it would answer for an engine."""
    urls = dict.fromkeys([plan.url, *(one.url for one in plan.engines if one.url)])
    taken = [url.partition("://")[2] for url in urls if http_client.listens(url, _LISTENS)]
    if taken:
        port = taken[0].rpartition(":")[2]
        raise RehearsalError(
            f"{', '.join(taken[:4])}{' and more' * (len(taken) > 4)}: another program of this "
            f"machine takes connections there, maybe at all addresses (ss -Hltnp sport = :{port} "
            "names it). Stop it, or rehearse another port, as with --set port=PORT."
        )


def _as_deployed(plan: Plan, work: Path, block: Block) -> tuple[Plan, dict[str, str]]:
    """Return what the site deploys: pods of a cluster, or the scripts of nodes."""
    if plan.request.site.kubernetes:
        from kimi_nb.rehearse import kubernetes_pods  # start-up: only for Kubernetes

        return kubernetes_pods.make(plan, work, block)
    return of_nodes(plan, work, block)


def of_nodes(plan: Plan, work: Path, block: Block) -> tuple[Plan, dict[str, str]]:
    """Return the plan on loopback addresses, and the scripts of its nodes there."""
    local = rebound(plan, work, block)
    return local, scripts.files(local)


def _run(
    stage: Stage,
    programs: Programs,
    begun: float,
    fault: str,
    say: Callable[[str], None],
    progress: Callable[[Progress], None] | None,
    heard: Heard,
) -> Rehearsal:
    logs = Logs(stage.plan, stage.root)
    told: set[str] = set()

    def ended() -> dict[str, int]:
        """Return what has ended; what of a store was killed is told in its log once, at once."""
        found = stage.ended()
        _tell_ends(stage.root, {name: found[name] for name in found.keys() - told}, STORE)
        told.update(found)
        return found

    watch = Watch(
        stage.plan,
        logs,
        ended,
        LIMITS,
        stage.key,
        say,
        programs.busy,
        progress,
        heard,
        MARK,
    )
    ready_s = first_s = found = None
    lost: list[Diagnosis] = []
    try:
        stage.open()
        stage.prepare(watch)
        stage.start_store(watch)
        stage.start_engines()
        watch.wait_ready()
        ready_s = round(time.monotonic() - begun, 2)
        stage.open_door()
        watch.first_answer()
        first_s = round(time.monotonic() - begun, 2)
        say(f"{MARK}: first answer after {first_s:.1f} s")
        watch.check_transfer()
        watch.look_at_answers()
        watch.load()
        stage.finish(watch)
        logs.read()
        lost = silent_losses.of(logs.all())
        found = lost[0] if lost else _restarted(logs, stage.plan)
    except Found as end:
        found = end.found
    reply = watch.answer
    return Rehearsal(
        ok=found is None,
        plan=stage.plan.name,
        engines=len(stage.plan.engines),
        ready=watch.ready,
        ready_s=ready_s,
        first_answer_s=first_s,
        peak_memory_mb=round(programs.peak_mb(), 1),
        answer=(reply.content or reply.thoughts) if reply else "",
        diagnosis=found,
        folder=stage.root,
        fault=fault,
        notes=(*_door(stage.plan), *watch.notes),
        moved_tokens=watch.moved_tokens,
        times=dict(watch.times),
        events=() if found is None else first_failure.timeline(logs.all(), stage.plan, watch.when),
        also=()
        if found is None
        else tuple(
            one
            for one in (*lost, *first_failure.causes(logs.all(), stage.plan, watch.when))
            if (one.kind, one.node) != (found.kind, found.node)
            or (one.rank is not None and one.rank != found.rank)
        ),
    )


def _restarted(logs: Logs, plan: Plan) -> Diagnosis | None:
    """Return what a cluster tells of a service that came up all the same, after a restart."""
    events = [one for one in logs.all() if PurePath(one.file).name == simulated_cluster.EVENTS]
    return first_failure.of_logs(events, plan, "at start") if events else None


def _door(plan: Plan) -> tuple[str, ...]:
    """Return which front door ran."""
    if plan.router is None:
        return ()
    if plan.router.kind != "upstream":
        return ("the front door that ran is the real vllm-router",)
    return (
        "the front door that ran stands for vllm-ascend's example proxy and does as it was recorded",
        *router.notes(plan.router),
    )


def _fresh(folder: Path) -> Path:
    """Create the next numbered folder, so that earlier rehearsals are kept."""
    base = folder / "rehearsals"
    base.mkdir(parents=True, exist_ok=True)
    number = max((int(path.name) for path in base.iterdir() if path.name.isdecimal()), default=0)
    while True:
        number += 1
        try:
            (base / f"{number:03}" / "logs").mkdir(parents=True)
        except FileExistsError:
            continue
        return base / f"{number:03}"
