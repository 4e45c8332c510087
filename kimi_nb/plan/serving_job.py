"""Write how a SLURM job serves: one engine on its only node, or one engine on each of its nodes.

SLURM chooses the nodes, so that nothing of the site file's names and addresses may be in the job.
"""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan.spec import EngineSpec

SERVER_FILE = "server_host.txt"
# Variables of every job, which its script exports before anything else.
EVERYWHERE = ("VIRTUAL_ENV", "PATH", "HF_HOME")
LEADER = shell.Raw('"$leader"')
_FIND_LEADER = [
    "# The ranks meet at the address of the first node, on which also the API listens.",
    'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
    "leader=$(getent ahostsv4 \"${nodes[0]}\" | awk 'NR == 1 {print $1}') || true",
    'case "$leader" in',
    "    '' | 127.0.*)",
    "        echo \"${nodes[0]} has no address for the other nodes: getent says '$leader'\" >&2",
    "        exit 1",
    "        ;;",
    "esac",
    "export leader",
]


def lines(
    engines: Sequence[EngineSpec], host_file: str, job_name: str, cpus: int | str
) -> list[str]:
    """Return the lines of a job that serve ``engines``, which are one for each node.

    ``job_name`` and ``cpus`` (for each task) are what the job's options say. Raises PlanError.
    """
    _check(engines)
    host = [
        "# The other jobs, and you, find the server by this file.",
        f"hostname > {shell.quote(host_file)}",
    ]
    if len(engines) == 1:
        return [*_exports(engines), *host, *shell.command(engines[0].argv)]
    words = [_words(engine, engines[0].address) for engine in engines]
    same = [group for group in words[0] if all(group in other for other in words)]
    own = [[group for group in mine if group not in same] for mine in words]
    serve = shell.command(["exec", *(word for group in same for word in group)])
    return [
        *(_FIND_LEADER if any(LEADER in group for group in same) else []),
        "# What the engine of one node is told; SLURM_NODEID is its number within the job.",
        "serve() {",
        "    local own=()",
        '    case "$SLURM_NODEID" in',
        *(f"        {at}) own=({_flat(mine)}) ;;" for at, mine in enumerate(own)),
        '        *) echo "node $SLURM_NODEID of the job has no engine" >&2; exit 1 ;;',
        "    esac",
        *(f"    {line}" for line in _exports(engines)),
        *(f"    {line}" for line in [*serve[:-1], f"{serve[-1]} \\", '    "${own[@]}"']),
        "}",
        *host,
        "# One task on each node; all end with the first that fails. Since Slurm 22.05 srun does",
        "# not take over --cpus-per-task of the job.",
        f"srun --nodes={len(engines)} --ntasks-per-node=1 --cpus-per-task={cpus} \\",
        "    --kill-on-bad-exit=1 \\",
        f"    --output={job_name}.%j{task_suffix('%n')}.out \\",
        f"    --error={job_name}.%j{task_suffix('%n')}.err \\",
        '    bash -c "$(declare -f serve); serve"',
    ]


def task_suffix(node: int | str) -> str:
    """Return what the names of a task's files have that those of its job have not.

    >>> task_suffix(1)
    '.node1'
    """
    return f".node{node}"


def _check(engines: Sequence[EngineSpec]) -> None:
    groups = {(engine.role, engine.group) for engine in engines}
    if 1 < len(groups) < len(engines):
        raise PlanError(
            f"Under SLURM a plan is one group over its nodes, or groups of one node each; found "
            f"{len(groups)} groups on {len(engines)} nodes. Set groups=1 or nodes=1."
        )


def _words(engine: EngineSpec, leader: str) -> list[tuple[object, ...]]:
    """Return the command line in groups of an option and its values, with no address of the site.

    The leader's address is only known within the job.
    """
    groups: list[list[object]] = [[]]
    for word in engine.argv:
        if word.startswith("--"):
            groups.append([])
        before = groups[-1][:1]
        known = before in (["--data-parallel-address"], ["--master-addr"]) and word == leader
        groups[-1].append(LEADER if known else word)
    return [tuple(group) for group in groups]


def _flat(groups: Sequence[Sequence[object]]) -> str:
    return " ".join(
        word if isinstance(word, shell.Raw) else shell.quote(word)
        for group in groups
        for word in group
    )


def _exports(engines: Sequence[EngineSpec]) -> list[str]:
    """Return the exports of the variables that only serving jobs have. Raises PlanError."""
    out = []
    for name, value in engines[0].env.items():
        if name in EVERYWHERE:
            continue
        if len(engines) > 1 and any(engine.address in value for engine in engines):
            raise PlanError(
                f"{name}={value} holds an address of the site file, but under SLURM the nodes of a "
                "job are not known before it runs. Take {address} and {leader} out of it."
            )
        line = shell.export(name, value)
        if name == "VLLM_TUNED_CONFIG_FOLDER":
            line = f"if [ -d {shell.quote(value)} ]; then {line}; fi"
        out.append(line)
    return out
