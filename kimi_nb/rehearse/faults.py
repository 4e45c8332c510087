"""What can be made to go wrong in a rehearsal, by name.

    world, files = faults.apply("port-taken", plan, world, files)

A fault is a change of the world (a checkpoint that is not there, an engine that hangs) or of the
scripts (what a person mistypes), aimed at one engine: the last decode engine, or the one that is
named behind an @ (``port-taken@prefill0-rank1``). Nothing that looks for the cause is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kimi_nb.core.errors import ParameterError, PlanError, choice
from kimi_nb.plan import build
from kimi_nb.plan.spec import Engine, Plan
from kimi_nb.rehearse.simulated_site import Fault, World
from kimi_nb.show import values as show

Files = dict[str, str]


@dataclass(frozen=True)
class Target:
    """Which fault it is and where it strikes: ``rank`` is the last one of ``engine``."""

    name: str
    engine: Engine
    rank: int


@dataclass(frozen=True)
class Kind:
    """One fault: what it simulates, and what makes it. ``role`` is whose engine it strikes,
    ``where`` which of them can have it, ``needs`` what a plan must have for it."""

    says: str
    world: Callable[[Plan, World, Target], World] | None = None
    files: Callable[[Plan, Files, Target], Files] | None = None
    needs: str = ""
    role: str = "decode"
    where: Callable[[Engine], bool] = lambda engine: True


def apply(
    asked: str, plan: Plan, world: World, files: Mapping[str, str]
) -> tuple[World, Files, Target]:
    """The world and the scripts with a fault in them, and where it is.

    Raises ParameterError for a name that is not known, PlanError for a fault that this plan
    cannot have.
    """
    name, (_, at, engine) = _name(asked), asked.strip().partition("@")
    if name not in FAULTS:
        raise ParameterError(choice("fault", name, FAULTS))
    if at and not engine.strip():  # a shell variable that is not set, perhaps
        raise ParameterError(
            f"fault {name}@: no engine after the @. Allowed: {name} alone, and "
            f"{', '.join(engine.name for engine in plan.engines[:40])}."
        )
    kind, out = FAULTS[name], dict(files)
    if name == "empty-200" and engine:
        raise PlanError(f"fault {name}: {engine} cannot have it; it needs {kind.needs}.")
    target = _target(plan, kind, name, engine)
    if kind.world is not None:
        world = kind.world(plan, world, target)
    if kind.files is not None:
        out = kind.files(plan, out, target)
        if out == dict(files):
            raise PlanError(
                f"fault {name}: {target.engine.name} of {plan.name} cannot have it; it "
                f"needs {kind.needs}."
            )
    return world, out, target


def _target(plan: Plan, kind: Kind, fault: str, name: str) -> Target:
    able = [engine for engine in plan.engines if kind.where(engine)]
    if name:
        able = [engine for engine in able if engine.name == name]
        if not able and name in (engine.name for engine in plan.engines):
            raise PlanError(f"fault {fault}: {name} cannot have it; it needs {kind.needs}.")
        if not able:
            raise ParameterError(choice("engine", name, [engine.name for engine in plan.engines]))
    able = [engine for engine in able if engine.role == kind.role] or able
    return Target(fault, able[-1], able[-1].rank + able[-1].ranks - 1)


def _answers(engine: Engine) -> bool:
    """Whether the engine gives answers: its own ones, or those of its ranks behind a head. A
    further node of a tensor parallel engine gives none."""
    return not engine.headless or engine.tp_size <= len(engine.devices)


def _hands_over(engine: Engine) -> bool:
    """Of plans without prefill any engine: what they lack is said then."""
    return engine.role != "decode"


def _listens(engine: Engine) -> bool:
    return engine.http_port is not None


def suited(asked: str, plan: Plan) -> Plan:
    """The plan in which a fault can be: with the feature that it is about switched on, where the
    recipe leaves it off (a tool call can leak only past a parser)."""
    feature = _FEATURES.get(_name(asked))
    request = plan.request
    if feature is None or all(feature in names for names in plan.features.values()):
        return plan
    return build.from_request(
        replace(
            request,
            chosen=(*request.chosen, feature),
            dropped=tuple(name for name in request.dropped if name != feature),
        )
    )


def _name(asked: str) -> str:
    return asked.strip().partition("@")[0].replace(" ", "-").replace("_", "-")


# Changes of the world -------------------------------------------------------------------


def _behaves(name: str, of_node: bool = False) -> Callable[[Plan, World, Target], World]:
    def change(plan: Plan, world: World, target: Target) -> World:
        fault = Fault(name, target.engine.node, None if of_node else target.rank)
        return replace(world, faults=(*world.faults, fault))

    return change


def _needs(
    name: str, what: str, there: Callable[[Plan, Target], bool]
) -> Callable[[Plan, World, Target], World]:
    """A behaviour that only some plans can have."""

    def change(plan: Plan, world: World, target: Target) -> World:
        if not there(plan, target):
            raise PlanError(f"fault {name}: {plan.name} has no {what}.")
        return _behaves(name)(plan, world, target)

    return change


def _missing(draft: bool) -> Callable[[Plan, World, Target], World]:
    def change(plan: Plan, world: World, target: Target) -> World:
        argv = list(target.engine.argv)
        found = argv[2]
        if draft:
            match = re.search(r'"model":"([^"]+)"', " ".join(argv))
            if match is None:
                raise PlanError(
                    f"fault draft-missing: the {target.engine.role} engines of "
                    f"{plan.name} have no draft model."
                )
            found = match[1]
        fault = Fault(f"missing:{found}", target.engine.node)
        return replace(world, faults=(*world.faults, fault))

    return change


def _tuned(plan: Plan, world: World, target: Target) -> World:
    if not plan.host_tuning:
        raise PlanError(f"fault host-tuning-refused: {plan.name} tunes nothing on the host.")
    return _behaves("host-tuning-refused", of_node=True)(plan, world, target)


def _router(plan: Plan, world: World, target: Target) -> World:
    if plan.router is None:
        raise PlanError(f"fault empty-200: {plan.name} has no proxy.")
    return replace(world, faults=(*world.faults, Fault("empty-200", plan.router.node)))


def _transfers(plan: Plan, target: Target) -> bool:
    engine = target.engine
    return engine.kv_port is not None or engine.side_channel_port is not None


# Changes of the scripts -----------------------------------------------------------------


def _script(plan: Plan, files: Files, target: Target) -> str:
    """The script with the command line of the target."""
    node = target.engine.node
    for name in ("run_dp_template.sh", "serve.sh", "docker_run.sh"):
        if "vllm serve" in files.get(f"{node}/{name}", "") or (
            name == "docker_run.sh"
            and f"{node}/{name}" in files
            and not plan.launches
            and f"{node}/serve.sh" not in files
        ):
            return f"{node}/{name}"
    return next((f"jobs/{job.file}" for job in plan.jobs if "serve" in job.argv), "")


def _flag(files: Files, path: str, flag: str, change: Callable[[str], str]) -> Files:
    """The script with another value of a flag; unchanged where it has none."""
    found = re.sub(
        rf"(--{flag}[ =])(\"[^\"]*\"|\S+)",
        lambda match: match[1] + change(match[2]),
        files.get(path, ""),
        count=1,
    )
    return {**files, path: found} if path in files else files


def _always(wrong: str) -> Callable[[str], str]:
    return lambda word: wrong


def _for_rank(target: Target, wrong: str) -> Callable[[str], str]:
    """In a launcher's template: another word for one rank, the same for the others."""

    def change(word: str) -> str:
        plain = word.strip('"')
        return f'"$(if [ "$4" = {target.engine.rank} ]; then echo {wrong}; else echo {plain}; fi)"'

    return change


def _wrong_rank(plan: Plan, files: Files, target: Target) -> Files:
    path, engine = _script(plan, files, target), target.engine
    if path.endswith("run_dp_template.sh"):
        return _flag(files, path, "data-parallel-rank", _for_rank(target, str(engine.dp_size)))
    for flag, size in (("data-parallel-start-rank", engine.dp_size), ("node-rank", 99)):
        changed = _flag(files, path, flag, _always(str(size)))
        if changed != files:
            return changed
    return files


def _missing_rank(plan: Plan, files: Files, target: Target) -> Files:
    """A person starts one rank less than the group has, or leaves a node out."""
    engine = target.engine
    group = [one for one in plan.engines if (one.role, one.group) == (engine.role, engine.group)]
    launch = f"{engine.node}/launch.sh"
    if launch in files:
        here = [one for one in group if one.node == engine.node]
        if len(group) == 1 or engine is not here[-1]:
            return files
        if len(here) > 1:
            return _flag(files, launch, "dp-size-local", lambda word: str(int(word) - 1))
    elif len(group) == 1 or engine is group[0]:
        return files
    path = launch if launch in files else _script(plan, files, target)
    return {**files, path: "#!/bin/bash\n# Forgotten.\nexec sleep 3600\n"}


def _device_twice(plan: Plan, files: Files, target: Target) -> Files:
    path, engine = _script(plan, files, target), target.engine
    here = [one for one in plan.engines if one.node == engine.node]
    if not path.endswith("run_dp_template.sh") or len(here) < 2:
        return files
    other = here[here.index(engine) - 1]
    wrong = ",".join(map(str, other.devices))
    text = re.sub(
        r'(_VISIBLE_DEVICES=)("\$1")',
        lambda match: match[1] + _for_rank(target, wrong)(match[2]),
        files[path],
    )
    return {**files, path: text}


def _unequal(plan: Plan, files: Files, target: Target) -> Files:
    path, engine = _script(plan, files, target), target.engine
    group = [one for one in plan.engines if (one.role, one.group) == (engine.role, engine.group)]
    if len(group) < 2 or engine is group[0]:
        return files
    for flag in (
        "max-num-batched-tokens",
        "max-num-seqs",
        "max-model-len",
        "gpu-memory-utilization",
    ):
        if path.endswith("run_dp_template.sh"):
            changed = _flag(files, path, flag, lambda word: _for_rank(target, _other(word))(word))
        else:
            changed = _flag(files, path, flag, _other)
        if changed != files:
            return changed
    # A command line without a number gets one.
    text = re.sub(r"(vllm serve \S+)", r"\1 --max-num-seqs 17", files[path], count=1)
    return {**files, path: text}


def _other(word: str) -> str:
    return str(int(word) + 8) if word.isdecimal() else "0.77"


def _wrong_sizes(plan: Plan, files: Files, target: Target) -> Files:
    """The decode side declares half of prefill's tensor parallel size."""
    path = _script(plan, files, target)
    text = re.sub(
        r'("prefill":\{"dp_size":\d+,"tp_size":)(\d+)',
        lambda match: f"{match[1]}{max(1, int(match[2]) // 2) if match[2] != '1' else 2}",
        files.get(path, ""),
    )
    return {**files, path: text} if path else files


def _wrong_image(plan: Plan, files: Files, target: Target) -> Files:
    path = f"{target.engine.node}/docker_run.sh"
    if path not in files:
        return files
    return {**files, path: files[path].replace(plan.image, f"{plan.image}-rc99")}


# Faults that are about a feature which most recipes leave to the person.
_FEATURES = {"reasoning-leaks": "reasoning-parser", "tool-call-leaks": "tool-parser"}

FAULTS: dict[str, Kind] = {
    "rank-dies-at-start": Kind("a rank fails while it starts", _behaves("rank-dies-at-start")),
    "rank-dies-while-serving": Kind(
        "a rank is killed at its third request", _behaves("rank-dies-while-serving")
    ),
    "port-taken": Kind(
        "another program listens at an engine's port",
        _behaves("port-taken"),
        where=_listens,
        needs="an engine with a port of its own",
    ),
    "wrong-rank": Kind(
        "a rank is started as one that does not exist",
        files=_wrong_rank,
        needs="a group of several engines, and one that is told its rank",
    ),
    "missing-rank": Kind(
        "a rank of a group is never started",
        files=_missing_rank,
        needs="a group of several engines, and not its first one",
    ),
    "device-twice": Kind(
        "a rank is given the devices of its neighbour",
        files=_device_twice,
        needs="several engines on one node",
    ),
    "unequal-settings": Kind(
        "a rank is set otherwise than its group",
        files=_unequal,
        needs="a group of several engines, and not its first one, with which "
        "the others are compared",
    ),
    "kv-port-blocked": Kind(
        "a firewall swallows what goes to prefill's kv port",
        _needs("kv-port-blocked", "KV cache connector", _transfers),
        role="prefill",
        where=_hands_over,
        needs="an engine that hands its cache over (prefill)",
    ),
    "wrong-kv-sizes": Kind(
        "decode declares other sizes than prefill has",
        files=_wrong_sizes,
        needs="a connector that declares the sizes of both sides",
    ),
    "no-kv-params": Kind(
        "a prefill engine returns no kv_transfer_params",
        _needs("no-kv-params", "KV cache connector", _transfers),
        role="prefill",
        where=_hands_over,
        needs="an engine that hands its cache over (prefill)",
    ),
    "empty-200": Kind(
        "the proxy answers 200 with nothing in it", _router, needs="a proxy; it is no engine's"
    ),
    "engine-hangs": Kind(
        "an engine takes requests and never answers; /health says 200",
        _behaves("engine-hangs"),
        where=_answers,
    ),
    "first-chat-500": Kind(
        "/health says 200, the first chat 500", _behaves("first-chat-500"), where=_answers
    ),
    "garbled-output": Kind("an engine answers !!!!", _behaves("garbled-output"), where=_answers),
    "reasoning-leaks": Kind(
        "thoughts stand in the content",
        _needs(
            "reasoning-leaks",
            "reasoning parser",
            lambda plan, at: "reasoning-parser" in plan.flags[at.engine.role],
        ),
        where=_answers,
    ),
    "tool-call-leaks": Kind(
        "a tool call stands in the content as text",
        _needs(
            "tool-call-leaks",
            "tool call parser",
            lambda plan, at: "tool-call-parser" in plan.flags[at.engine.role],
        ),
        where=_answers,
    ),
    "slow-start": Kind("an engine loads past the deadline", _behaves("slow-start")),
    "node-unreachable": Kind("a node does not answer", _behaves("node-unreachable", True)),
    "disk-full": Kind("a rank cannot write its cache", _behaves("disk-full")),
    "weights-missing": Kind("the checkpoint is not on a node", _missing(False)),
    "draft-missing": Kind("the draft model is not on a node", _missing(True)),
    "out-of-memory-at-load": Kind("the weights do not fit", _behaves("out-of-memory-at-load")),
    "out-of-memory-under-load": Kind(
        "a rank runs out of memory at its third request", _behaves("out-of-memory-under-load")
    ),
    "wrong-image-tag": Kind(
        "a node's script names an image that does not exist",
        files=_wrong_image,
        needs="a container",
    ),
    "host-tuning-refused": Kind("sysctl is not permitted", _tuned),
}


def table() -> show.Table:
    """Every fault with what it simulates."""
    return show.Table(
        "Faults of kimi-nb rehearse",
        ("name", "what goes wrong", "needs"),
        tuple((name, kind.says, kind.needs) for name, kind in FAULTS.items()),
    )
