"""Simulate failures in a rehearsal, by name.

    site, files, target = faults.apply("port-taken", plan, site, files)

A fault changes the simulated site (a missing checkpoint, an engine that hangs) or the scripts (a
user's mistake). It strikes one engine: the last decode engine, or the one named after an @, as in
``port-taken@prefill0-rank1``. The code that diagnoses a failure is never told about the fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kimi_nb import show
from kimi_nb.core.errors import ParameterError, PlanError, choice
from kimi_nb.plan import build
from kimi_nb.plan.spec import EngineSpec, Plan
from kimi_nb.rehearse import cluster_table, fault_names
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.simulated_site import Fault, SimulatedSite

Files = dict[str, str]
_PODS = "a site with transport kubernetes, rehearsed as such (--as kubernetes)"


@dataclass(frozen=True)
class Target:
    """A fault and where it strikes: ``rank`` is the last rank of ``engine``."""

    name: FaultName
    engine: EngineSpec
    rank: int


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        says: What it simulates.
        site: Changes the simulated site; None if the fault is in the scripts.
        files: Changes the scripts; None if the fault is in the site.
        needs: What a plan must have for this fault, for error messages.
        role: The role of the engines that it strikes if no engine is named.
        where: Tells whether an engine can have the fault.
    """

    says: str
    site: Callable[[Plan, SimulatedSite, Target], SimulatedSite] | None = None
    files: Callable[[Plan, Files, Target], Files] | None = None
    needs: str = ""
    role: str = "decode"
    where: Callable[[EngineSpec], bool] = lambda engine: True


def apply(
    asked: str, plan: Plan, site: SimulatedSite, files: Mapping[str, str]
) -> tuple[SimulatedSite, Files, Target]:
    """Return the site and the scripts with a fault in them, and where it strikes.

    Raises:
        ParameterError: The name of the fault or of the engine is not known.
        PlanError: This plan, or this engine, cannot have the fault.
    """
    _, at, engine = asked.strip().partition("@")
    try:
        name = FaultName(_name(asked))
    except ValueError:
        raise ParameterError(choice("fault", _name(asked), FaultName)) from None
    if at and not engine.strip():  # perhaps from a shell variable that is not set
        raise ParameterError(
            f"fault {name}@: no engine after the @. Allowed: {name} alone, and "
            f"{', '.join(engine.name for engine in plan.engines[:40])}."
        )
    kind, out = FAULTS[name], dict(files)
    if name == FaultName.EMPTY_200 and engine:
        raise PlanError(f"fault {name}: {engine} cannot have it; it needs {kind.needs}.")
    if name in fault_names.ON_PODS and cluster_table.FILE not in out:
        raise PlanError(f"fault {name}: {plan.name} does not run in pods here; it needs {_PODS}.")
    target = _target(plan, kind, name, engine)
    if kind.site is not None:
        site = kind.site(plan, site, target)
    if kind.files is not None:
        out = kind.files(plan, out, target)
        if out == dict(files):
            raise PlanError(
                f"fault {name}: {target.engine.name} of {plan.name} cannot have it; it "
                f"needs {kind.needs}."
            )
    return site, out, target


def _target(plan: Plan, kind: Kind, fault: FaultName, name: str) -> Target:
    able = [engine for engine in plan.engines if kind.where(engine)]
    if fault == FaultName.STORE_MASTER_DIES:  # the master is beside the first engine
        able = able[:1]
    if name:
        able = [engine for engine in able if engine.name == name]
        if not able and name in (engine.name for engine in plan.engines):
            raise PlanError(f"fault {fault}: {name} cannot have it; it needs {kind.needs}.")
        if not able:
            raise ParameterError(choice("engine", name, [engine.name for engine in plan.engines]))
    able = [engine for engine in able if engine.role == kind.role] or able
    return Target(fault, able[-1], able[-1].rank + able[-1].ranks - 1)


def _answers(engine: EngineSpec) -> bool:
    """Return whether the engine answers requests, itself or through the API server of its group.

    A further node of a rank that spans several does not.
    """
    return not engine.part


def _hands_over(engine: EngineSpec) -> bool:
    """Return whether the engine can hand its cache over.

    In a plan without prefill every engine passes; the error then names what the plan lacks.
    """
    return engine.role != "decode"


def _listens(engine: EngineSpec) -> bool:
    return engine.http_port is not None


def suited(asked: str, plan: Plan) -> Plan:
    """Return a plan that can have the fault, with the feature that it concerns switched on.

    For example, a tool call can leak only past a tool call parser, which most recipes leave off.
    """
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


# Changes to the site -------------------------------------------------------------------


def _behaves(
    name: FaultName, of_node: bool = False
) -> Callable[[Plan, SimulatedSite, Target], SimulatedSite]:
    def change(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
        fault = Fault(name, target.engine.node, None if of_node else target.rank)
        return replace(site, faults=(*site.faults, fault))

    return change


def _needs(
    name: FaultName, what: str, there: Callable[[Plan, Target], bool]
) -> Callable[[Plan, SimulatedSite, Target], SimulatedSite]:
    """Return a change for a fault that only some plans can have."""

    def change(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
        if not there(plan, target):
            raise PlanError(f"fault {name}: {plan.name} has no {what}.")
        return _behaves(name)(plan, site, target)

    return change


def _missing(draft: bool) -> Callable[[Plan, SimulatedSite, Target], SimulatedSite]:
    def change(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
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
        fault = Fault(fault_names.missing(found), target.engine.node)
        return replace(site, faults=(*site.faults, fault))

    return change


def _tuned(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
    if not plan.host_tuning:
        raise PlanError(f"fault host-tuning-refused: {plan.name} tunes nothing on the host.")
    return _behaves(FaultName.HOST_TUNING_REFUSED, of_node=True)(plan, site, target)


def _router(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
    if plan.router is None:
        raise PlanError(f"fault empty-200: {plan.name} has no proxy.")
    return replace(site, faults=(*site.faults, Fault(FaultName.EMPTY_200, plan.router.node)))


def _store_master(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
    if plan.store is None:
        raise PlanError(f"fault {target.name}: {plan.name} has no KV store.")
    return replace(site, faults=(*site.faults, Fault(target.name, plan.store.node)))


def _transfers(plan: Plan, target: Target) -> bool:
    engine = target.engine
    return engine.kv_port is not None or engine.side_channel_port is not None


# Changes to the scripts -----------------------------------------------------------------


def _script(plan: Plan, files: Files, target: Target) -> str:
    """Return the path of the script with the target's command line."""
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
    """Change the value of a flag in a script; without the flag, return the files unchanged."""
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
    """Return a change for a launcher's template: another value for one rank only."""

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
    """Start one rank too few, or leave a node out, as a user could by mistake."""
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
    # None of these flags is set: add one.
    text = re.sub(r"(vllm serve \S+)", r"\1 --max-num-seqs 17", files[path], count=1)
    return {**files, path: text}


def _other(word: str) -> str:
    return str(int(word) + 8) if word.isdecimal() else "0.77"


def _wrong_sizes(plan: Plan, files: Files, target: Target) -> Files:
    """Declare half of prefill's tensor parallel size on the decode side."""
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


def _early_probe(plan: Plan, files: Files, target: Target) -> Files:
    """Give the start-up probe of one pod one second and one try, as of a template for small models."""
    table = json.loads(files[cluster_table.FILE])
    for pod in table["pods"]:
        asked = pod["spec"]["containers"][0].get("startupProbe")
        if pod["metadata"]["name"] == target.engine.node and asked:
            asked |= {"periodSeconds": 1, "failureThreshold": 1}
    return {**files, cluster_table.FILE: json.dumps(table, indent=1) + "\n"}


def _drained(plan: Plan, site: SimulatedSite, target: Target) -> SimulatedSite:
    """Drain the node of a pod, where the disruption budget of its role lets a group go."""
    engine = target.engine
    if len({one.group for one in plan.engines if one.role == engine.role}) == 1:
        raise PlanError(
            f"fault node-drained: {engine.name} of {plan.name} cannot have it: the disruption budget "
            f"keeps the only group of {engine.role} where it is. It needs a role of several groups."
        )
    return _behaves(FaultName.NODE_DRAINED, of_node=True)(plan, site, target)


# Faults of a feature that most recipes leave to the user to switch on.
_FEATURES: dict[str, str] = {
    FaultName.REASONING_LEAKS: "reasoning-parser",
    FaultName.TOOL_CALL_LEAKS: "tool-parser",
}

FAULTS: dict[FaultName, Kind] = {
    FaultName.RANK_DIES_AT_START: Kind(
        "a rank fails while it starts", _behaves(FaultName.RANK_DIES_AT_START)
    ),
    FaultName.RANK_DIES_WHILE_SERVING: Kind(
        "a rank is killed at its third request", _behaves(FaultName.RANK_DIES_WHILE_SERVING)
    ),
    FaultName.PORT_TAKEN: Kind(
        "another program listens at an engine's port",
        _behaves(FaultName.PORT_TAKEN),
        where=_listens,
        needs="an engine with a port of its own",
    ),
    FaultName.WRONG_RANK: Kind(
        "a rank is started as one that does not exist",
        files=_wrong_rank,
        needs="a group of several engines, and one that is told its rank",
    ),
    FaultName.MISSING_RANK: Kind(
        "a rank of a group is never started",
        files=_missing_rank,
        needs="a group of several engines, and not its first one",
    ),
    FaultName.DEVICE_TWICE: Kind(
        "a rank is given the devices of its neighbour",
        files=_device_twice,
        needs="several engines on one node",
    ),
    FaultName.UNEQUAL_SETTINGS: Kind(
        "a rank is set otherwise than its group",
        files=_unequal,
        needs="a group of several engines, and not its first one, with which "
        "the others are compared",
    ),
    FaultName.KV_PORT_BLOCKED: Kind(
        "a firewall swallows what goes to prefill's kv port",
        _needs(FaultName.KV_PORT_BLOCKED, "KV cache connector", _transfers),
        role="prefill",
        where=_hands_over,
        needs="an engine that hands its cache over (prefill)",
    ),
    FaultName.WRONG_KV_SIZES: Kind(
        "decode declares other sizes than prefill has",
        files=_wrong_sizes,
        needs="a connector that declares the sizes of both sides",
    ),
    FaultName.NO_KV_PARAMS: Kind(
        "a prefill engine returns no kv_transfer_params",
        _needs(FaultName.NO_KV_PARAMS, "KV cache connector", _transfers),
        role="prefill",
        where=_hands_over,
        needs="an engine that hands its cache over (prefill)",
    ),
    FaultName.EMPTY_200: Kind(
        "the proxy answers 200 with nothing in it", _router, needs="a proxy; it is no engine's"
    ),
    FaultName.ENGINE_HANGS: Kind(
        "an engine takes requests and never answers; /health says 200",
        _behaves(FaultName.ENGINE_HANGS),
        where=_answers,
    ),
    FaultName.FIRST_CHAT_500: Kind(
        "/health says 200, the first chat 500", _behaves(FaultName.FIRST_CHAT_500), where=_answers
    ),
    FaultName.GARBLED_OUTPUT: Kind(
        "an engine answers !!!!", _behaves(FaultName.GARBLED_OUTPUT), where=_answers
    ),
    FaultName.REASONING_LEAKS: Kind(
        "thoughts stand in the content",
        _needs(
            FaultName.REASONING_LEAKS,
            "reasoning parser",
            lambda plan, at: "reasoning-parser" in plan.flags[at.engine.role],
        ),
        where=_answers,
    ),
    FaultName.TOOL_CALL_LEAKS: Kind(
        "a tool call stands in the content as text",
        _needs(
            FaultName.TOOL_CALL_LEAKS,
            "tool call parser",
            lambda plan, at: "tool-call-parser" in plan.flags[at.engine.role],
        ),
        where=_answers,
    ),
    FaultName.SLOW_START: Kind("an engine loads past the deadline", _behaves(FaultName.SLOW_START)),
    FaultName.NODE_UNREACHABLE: Kind(
        "a node does not answer", _behaves(FaultName.NODE_UNREACHABLE, True)
    ),
    FaultName.STORE_MASTER_DIES: Kind(
        "the master of the KV store is gone once every engine has joined it",
        _store_master,
        needs="a KV store, and is its master's, on the first node",
    ),
    FaultName.DISK_FULL: Kind("a rank cannot write its cache", _behaves(FaultName.DISK_FULL)),
    FaultName.WEIGHTS_MISSING: Kind("the checkpoint is not on a node", _missing(False)),
    FaultName.DRAFT_MISSING: Kind("the draft model is not on a node", _missing(True)),
    FaultName.OUT_OF_MEMORY_AT_LOAD: Kind(
        "the weights do not fit", _behaves(FaultName.OUT_OF_MEMORY_AT_LOAD)
    ),
    FaultName.OUT_OF_MEMORY_UNDER_LOAD: Kind(
        "a rank runs out of memory at its third request",
        _behaves(FaultName.OUT_OF_MEMORY_UNDER_LOAD),
    ),
    FaultName.WRONG_IMAGE_TAG: Kind(
        "a node's script names an image that does not exist",
        files=_wrong_image,
        needs="a container",
    ),
    FaultName.HOST_TUNING_REFUSED: Kind("sysctl is not permitted", _tuned),
    FaultName.POD_EVICTED: Kind(
        "kubelet evicts a pod: the memory of its node runs out",
        _behaves(FaultName.POD_EVICTED, of_node=True),
        needs=_PODS,
    ),
    FaultName.IMAGE_NOT_PULLED: Kind(
        "the image of a pod cannot be pulled",
        _behaves(FaultName.IMAGE_NOT_PULLED, of_node=True),
        needs=_PODS,
    ),
    FaultName.PROBE_TOO_EARLY: Kind(
        "the start-up probe of a pod gives up while the engine loads",
        files=_early_probe,
        where=_listens,
        needs=f"an engine that answers, and {_PODS}",
    ),
    FaultName.QUOTA_EXCEEDED: Kind(
        "the quota of the namespace does not admit a pod",
        _behaves(FaultName.QUOTA_EXCEEDED, of_node=True),
        needs=_PODS,
    ),
    FaultName.NODE_DRAINED: Kind(
        "the node of a pod is drained",
        _drained,
        role="prefill",
        needs=f"a role of several groups, and {_PODS}",
    ),
    FaultName.GROUP_RESTART: Kind(
        "a pod of a group ends once, and its whole group starts again",
        _behaves(FaultName.GROUP_RESTART, of_node=True),
        needs=_PODS,
    ),
}


def table() -> show.Table:
    """Return a table of all faults and what they simulate."""
    return show.Table(
        "Faults of kimi-nb rehearse",
        ("name", "what goes wrong", "needs"),
        tuple((name, kind.says, kind.needs) for name, kind in FAULTS.items()),
    )
