"""Make something go wrong in a rehearsal, and keep its logs for a person to read.

    drill = exercise.start(plan, folder, fault="port-taken", seed=7)  # at an engine of chance
    drill = exercise.start(plan, folder)  # a surprise

Nothing that is shown or named before the answer tells the fault of a surprise or the engine that it
strikes: the rehearsal's own folder, which has both, is removed before this returns.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kimi_nb.bundle import scripts
from kimi_nb.core import known_secrets
from kimi_nb.core.errors import KimiError, PlanError, ServiceError, WriteError
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose import attribution, doctor
from kimi_nb.drill import record
from kimi_nb.drill.client_log import ClientLog
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import faults, rehearsal
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.rehearsal import Rehearsal
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.service.readiness import ROUTER, how

# A plan that can have every fault but that of a KV store, with several nodes and ranks to choose from.
MODEL, HARDWARE, LAYOUT, FEATURES = "k2.6", "a3", "pd", ("eagle3", "host-tuning")
_TRIES = 4  # rehearsals until a fault shows; at some engines nothing comes of some
_QUIET, _SETTLE = 0.7, 4.0  # seconds without a new line, and the longest wait for that
_WHOLE_NODE = (FaultName.WEIGHTS_MISSING, FaultName.DRAFT_MISSING, FaultName.WRONG_KV_SIZES)


def default_plan() -> Plan:
    """Return the plan that drills are made on where none is chosen."""
    return build.plan(MODEL, HARDWARE, LAYOUT, chosen=FEATURES)


def start(
    plan: Plan,
    folder: Path,
    *,
    fault: str = "",
    seed: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> record.Drill:
    """Rehearse a plan with a fault, in a new folder below ``folder``/drills, and return the drill.

    Args:
        plan: The plan to rehearse.
        folder: Where the drills of the plan are.
        fault: NAME or NAME@ENGINE of `faults.FAULTS`; "" for one of chance. Without an engine
            chance chooses it.
        seed: Repeats what chance has chosen; None for another choice each time.
        say: Called with messages that give nothing away.

    Raises:
        ParameterError: The fault, the engine or the folder is not allowed.
        PlanError: The plan cannot have the fault.
        RehearsalError: This machine cannot run the rehearsal.
        ServiceError: Nothing came of the fault.
        WriteError: The folder cannot be written.
    """
    seed = random.SystemRandom().randrange(100_000) if seed is None else seed
    drawn = _draws(plan, fault, random.Random(seed))
    for asked in itertools.islice(drawn, _TRIES):
        say(f"{MARK} of {plan.name}: {len(plan.engines)} engines start here, on stand-ins")
        root = _fresh(folder)
        try:
            made = _rehearsed(plan, root, asked)
            if made is not None:
                say("it has failed, and is stopped; its logs are kept")
                return record.write(root, plan=plan.name, asked=fault, seed=seed, truth=made)
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        shutil.rmtree(root)
        say("nothing came of it: the drill is drawn again")
    raise ServiceError(
        f"drill {fault or 'surprise'}: nothing came of it in {plan.name}. Choose another fault or "
        "engine (NAME@ENGINE), or another --seed."
    )


def _draws(plan: Plan, fault: str, chance: random.Random) -> Iterator[str]:
    """Yield NAME@ENGINE that the plan can have, in the order of chance.

    Raises ParameterError for an unknown fault, PlanError for one that the plan cannot have.
    """
    if "@" in fault:
        _try(plan, fault)
        yield fault
        return
    if fault:
        _try(plan, fault)  # raises what is wrong with it
        yield from _at_engines(plan, fault, chance)
        return
    names = [str(name) for name in FaultName]
    for name in chance.sample(names, len(names)):
        with contextlib.suppress(KimiError):
            _try(plan, name)
            yield from itertools.islice(_at_engines(plan, name, chance), 1)


def _at_engines(plan: Plan, name: str, chance: random.Random) -> Iterator[str]:
    if name == FaultName.EMPTY_200:  # it strikes the proxy
        yield name
        return
    for engine in chance.sample(plan.engines, len(plan.engines)):
        with contextlib.suppress(PlanError):
            _try(plan, f"{name}@{engine.name}")
            yield f"{name}@{engine.name}"


def _try(plan: Plan, asked: str) -> faults.Target:
    """Return where a fault would strike. Raises KimiErrors where it cannot be."""
    suited = faults.suited(asked, plan)
    return faults.apply(asked, suited, SimulatedSite.of(suited), scripts.files(suited))[2]


def _rehearsed(plan: Plan, root: Path, asked: str) -> record.Truth | None:
    """Rehearse with a fault, keep the logs in ``root``; return None where nothing came of it."""
    work, client = root / "work", ClientLog(root / record.CLIENT)

    def keep(made: Path, ended: Mapping[str, int]) -> None:
        for name, code in ended.items():
            if code or name == ROUTER or name.endswith(" engines"):
                client.say(f"{name} ended: {how(code)}")
        _keep(made, root)

    try:
        live = rehearsal.start(
            plan,
            work,
            fault=asked,
            say=client.say,
            heard=client.heard,
            before_stop=keep,
        )
        result = live.stop()
        client.say("everything was stopped here; the logs end before that")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    known_secrets.folder(root)
    return _truth(plan, asked, result, root)


def _truth(plan: Plan, asked: str, result: Rehearsal, root: Path) -> record.Truth | None:
    """Return what is right, where the rehearsal and the doctor found what was made."""
    target, found = _try(plan, asked), result.diagnosis
    name, engine = target.name, target.engine
    router = faults.suited(asked, plan).router
    node = router.node if name == FaultName.EMPTY_200 and router else engine.node
    if found is None or (found.kind, found.node) != (name, node):
        return None
    told = doctor.examine(root / "logs", root).first
    if told is not None and (told.node, told.rank) != (found.node, found.rank):
        return None
    whole = attribution.of_node(name) or name == FaultName.EMPTY_200
    ranks = {target.rank, found.rank} - {None}
    if name in _WHOLE_NODE:
        ranks = {one.rank for one in plan.engines if one.node == node}
    return record.Truth(
        fault=str(name),
        node=node,
        ranks=() if whole else tuple(sorted(rank for rank in ranks if rank is not None)),
        whole=whole or name in _WHOLE_NODE or found.rank is None,
        cause=found.cause,
        evidence=re.sub(r"^bundle/([^/]+)/logs/", r"logs/\1/", found.evidence),
        help=found.help,
        in_logs=told is not None,
    )


def _keep(made: Path, root: Path) -> None:
    """Copy the logs of a rehearsal once those that follow from its failure are written.

    Only those of nodes and of the front door: others are of the machinery, and one is there only
    for a fault.
    """
    nodes = [path.name for path in (made / "logs").iterdir() if path.is_dir()]
    _settle(made)
    for node in nodes:
        (root / "logs" / node).mkdir(parents=True)
        for path in (
            *(made / "logs" / node).glob("*.log"),
            *(made / "bundle" / node / "logs").glob("rank_*.log"),
        ):
            shutil.copyfile(path, root / "logs" / node / path.name)
    if (made / "logs" / "router.log").exists():
        shutil.copyfile(made / "logs" / "router.log", root / "logs" / "router.log")
    shutil.copyfile(made / "bundle" / "plan.json", root / "plan.json")


def _settle(made: Path) -> None:
    """Wait until no log grows any more, some seconds at most."""
    end = quiet = time.monotonic()
    end += _SETTLE
    before = -1
    while time.monotonic() < end:
        logs = (*made.glob("logs/*/*.log"), *made.glob("bundle/*/logs/rank_*.log"))
        size = sum(path.stat().st_size for path in logs)
        if size != before:
            before, quiet = size, time.monotonic()
        elif time.monotonic() - quiet > _QUIET:
            return
        time.sleep(0.1)


def _fresh(folder: Path) -> Path:
    """Create the next numbered folder of a drill."""
    base = folder / record.FOLDER
    try:
        base.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1 + max(map(_number, base.iterdir()), default=0)):
            with contextlib.suppress(FileExistsError):
                (base / f"{number:03}").mkdir()
                return base / f"{number:03}"
    except OSError as error:
        raise WriteError(
            f"{base}: cannot be written ({error.strerror}). Choose another --run-dir."
        ) from None
    raise AssertionError("a count does not end")


def _number(path: Path) -> int:
    return int(path.name) if path.name.isdecimal() else 0
