"""Write the scripts that the pods of a set run: the same launch lines as on nodes of one's own.

Every pod of a set mounts the same scripts. What differs between pods is in variables of the
LeaderWorkerSet controller (`pod_values`); where leader and workers have other flags, each has a
script of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kimi_nb.bundle import script_parts
from kimi_nb.bundle.kubernetes.pod_values import Pod, Said
from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan.pod_names import PodSet
from kimi_nb.plan.spec import EngineSpec, Launch, Plan

FOLDER = "/opt/kimi-nb/scripts"  # where they are mounted
LOGS = "/var/log/kimi-nb"
READY = "ready.py"
PYTHON = "python3"  # vLLM's image has no `python`
LEADER, WORKER, ALL = "leader.sh", "worker.sh", "serve.sh"
_FILLED = "\0"  # in no word of a command
_GIVEN = ': "${POD_IP:?the template gives it}" "${GROUP:?the template gives it}"'


_Member = tuple[Pod, EngineSpec, Launch | None]


@dataclass(frozen=True)
class Scripts:
    """The files of a set by name, and which of them its leaders and its workers run."""

    files: Mapping[str, str]
    leader: str
    worker: str


def of(plan: Plan, pods: PodSet) -> Scripts:
    """Return the scripts of one set of pods; raise PlanError where no script fits all of them."""
    launches = {launch.node: launch for launch in plan.launches}
    first: dict[str, EngineSpec] = {}
    for engine in plan.engines:
        first.setdefault(engine.node, engine)
    members = [
        (
            Pod(group, at, first[name].address, first[names[0]].address),
            first[name],
            launches.get(name),
        )
        for group, names in enumerate(pods.pods)
        for at, name in enumerate(names)
    ]
    common = {READY: script_parts.static(READY)}
    if launches:
        common |= {
            "launch_online_dp.py": script_parts.static("launch_online_dp.py"),
            "run_dp_template.sh": _template(plan, members),
        }
    whole = _script(plan, members)
    if whole is not None:
        return Scripts({ALL: whole, **common}, ALL, ALL)
    parts = [
        [one for one in members if bool(one[0].worker) == follows] for follows in (False, True)
    ]
    leader, worker = (_script(plan, one) for one in parts)
    if leader is None or worker is None:
        raise _other_shape(pods.name)
    return Scripts({LEADER: leader, WORKER: worker, **common}, LEADER, WORKER)


def _other_shape(name: str) -> PlanError:
    return PlanError(
        f"Kubernetes: pods of {name} have other flags than their like, and all of them run one "
        "script. Give these nodes the same flags, or serve with another transport."
    )


def _script(plan: Plan, members: Sequence[_Member]) -> str | None:
    """Return the script of these pods, None if their commands are not of one shape."""
    said = Said([pod for pod, _, _ in members])
    engine = members[0][1]
    env: list[str] = []
    if members[0][2] is not None:
        more = ("--log-dir", LOGS, "--echo")
        columns = [(PYTHON, *one.argv[1:], *more) for _, _, one in members if one]
        lines = ['cd "$(dirname "$0")"']
    else:
        columns = [one.argv for _, one, _ in members]
        tables = [one.env for _, one, _ in members]
        env = script_parts.exports(plan, said.variables(tables), "pod $HOSTNAME")
        lines = []
    words = said.words(columns)
    if words is None:
        return None
    who = f"{engine.role} pods, {plan.engine} {plan.engine_version}"
    return shell.script(
        [f"{plan.title}.", f"The {who}; the controller of LeaderWorkerSet gives the variables."],
        [_GIVEN, *said.lines, *lines, *env, "", *shell.command(["exec", *words])],
    )


def _template(plan: Plan, members: Sequence[_Member]) -> str:
    """Return the script of one rank, for which launch_online_dp.py supplies $1 to $7."""
    said = Said([pod for pod, _, _ in members])
    engine = members[0][1]
    visible = script_parts.visible(engine)
    tables = [
        {name: value for name, value in one.env.items() if name != visible} for _, one, _ in members
    ]
    words = said.words([_positions(one.argv) for _, one, _ in members])
    if words is None:
        raise _other_shape(engine.role)
    for at, word in enumerate(words[1:], start=1):
        if word == _FILLED:
            words[at] = shell.Raw(f'"${script_parts.POSITIONS[str(words[at - 1])]}"')
    rank = f"${script_parts.POSITIONS['--data-parallel-rank']}"
    lines = [
        *([f"rank={rank}"] if "LD_PRELOAD" in engine.env else []),
        *said.lines,
        *script_parts.exports(plan, said.variables(tables), "rank $rank"),
        f'export {visible}="$1"',
        "",
    ]
    return shell.script(
        [
            f"{plan.title}.",
            f"One {engine.role} rank. $1 devices, $2 port, $3 ranks in all, $4 this rank, $5 address",
            "and $6 port where the ranks meet, $7 devices a rank: launch_online_dp.py gives them.",
        ],
        [*lines, *shell.command(["exec", *words])],
    )


def _positions(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a rank's command with a mark for each value that the launcher fills in."""
    before = ("", *argv)
    return tuple(
        _FILLED if flag in script_parts.POSITIONS else word
        for flag, word in zip(before, argv, strict=False)
    )
