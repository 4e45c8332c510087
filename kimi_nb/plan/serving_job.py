"""Write how a SLURM job serves: one engine on its only node, or one engine on each of its nodes.

Replicas have a router in front of them, which the job starts on its first node. SLURM chooses the
nodes, so that nothing of the site file's names and addresses may be in the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan import ports, router
from kimi_nb.plan.job_image import JobImage
from kimi_nb.plan.spec import EngineSpec

SERVER_FILE = "server_host.txt"
# Variables of every job, which its script exports before anything else.
EVERYWHERE = ("VIRTUAL_ENV", "PATH", "HF_HOME")
LEADER = shell.Raw('"$leader"')
# Who speaks in a job's log: its nodes are SLURM's choice.
SPEAKER = "node ${SLURMD_NODENAME:-$HOSTNAME}"
_NODES = 'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")'
# The router starts with the engines and listens once all of them answer. That one of them fails is
# seen by its end, so that here it has the time of the job.
_PATIENCE = 86400


@dataclass(frozen=True)
class Serving:
    """What a job serves: an engine for each of its nodes.

    ``router_port`` is where vllm-router listens in front of them, None without it; ``keyed`` is
    whether callers are asked for the key there.
    """

    engines: Sequence[EngineSpec]
    router_port: int | None = None
    keyed: bool = False


def _address(name: str, at: int) -> list[str]:
    """Return the lines that set a variable to the address of a node of the job, by its number."""
    node = f"${{nodes[{at}]}}"
    return [
        f"{name}=$(getent ahostsv4 \"{node}\" | awk 'NR == 1 {{print $1}}') || true",
        f'case "${name}" in',
        "    '' | 127.0.*)",
        f"        tell ERROR \"{node} has no address for the other nodes: getent says '${name}'\" >&2",
        "        exit 1",
        "        ;;",
        "esac",
    ]


def lines(
    serving: Serving,
    host_file: str,
    job_name: str,
    cpus: int | str,
    image: JobImage | None = None,
) -> list[str]:
    """Return the lines of a job that serve these engines.

    ``job_name`` and ``cpus`` (for each task) are what the job's options say; ``image`` is that in
    which the engines run, None without one. Raises PlanError.
    """
    engines = serving.engines
    _check(engines)
    host = [
        "# The other jobs, and you, find the server by this file.",
        f"hostname > {shell.quote(host_file)}",
    ]
    if len(engines) == 1:
        alone = engines[0].argv
        run = image.call(alone, cpus, devices=True) if image else shell.command(alone)
        return [*_exports(engines), *host, *run]
    words = [_words(engine, engines[0].address) for engine in engines]
    same = [group for group in words[0] if all(group in other for other in words)]
    own = [[group for group in mine if group not in same] for mine in words]
    in_image = image.options() if image and image.runtime == "pyxis" else []
    common = [word for group in same for word in group]
    serve = (
        image.apptainer(common, devices=True, head="exec ")
        if image and image.runtime == "apptainer"
        else shell.command(["exec", *common])
    )
    return [
        *_find(serving, any(LEADER in group for group in same)),
        "# What the engine of one node is told; SLURM_NODEID is its number within the job.",
        "serve() {",
        "    local own=()",
        '    case "$SLURM_NODEID" in',
        *(f"        {at}) own=({_flat(mine)}) ;;" for at, mine in enumerate(own)),
        '        *) tell ERROR "node $SLURM_NODEID of the job has no engine" >&2; exit 1 ;;',
        "    esac",
        *(f"    {line}" for line in _exports(engines)),
        *(f"    {line}" for line in [*serve[:-1], f"{serve[-1]} \\", '    "${own[@]}"']),
        "}",
        *host,
        "# One task on each node; all end with the first that fails. Since Slurm 22.05 srun does",
        "# not take over --cpus-per-task of the job.",
        f"srun --nodes={len(engines)} --ntasks-per-node=1 --cpus-per-task={cpus} \\",
        *(f"    {shell.quote(option)} \\" for option in in_image),
        "    --kill-on-bad-exit=1 \\",
        # A replica that ends without an error would otherwise leave the others waiting for it.
        *(["    --wait=1 \\"] if serving.router_port else []),
        f"    --output={job_name}.%j{task_suffix('%n')}.out \\",
        f"    --error={job_name}.%j{task_suffix('%n')}.err \\",
        '    bash -c "$(declare -f tell serve); serve"' + (" &" if serving.router_port else ""),
        *(_router(serving, serving.router_port, image) if serving.router_port else []),
    ]


def _find(serving: Serving, led: bool) -> list[str]:
    """Return the lines that look up addresses: of the first node (``led``), or of each replica."""
    if serving.router_port:
        return [
            "# The router finds the replicas by the addresses of their nodes, and has the first one's.",
            _NODES,
            *(line for at in range(len(serving.engines)) for line in _address(f"replica{at}", at)),
            # The replicas are the nodes of one group, whose ranks meet at the first.
            *(["leader=$replica0", "export leader"] if led else []),
        ]
    if not led:
        return []
    return [
        "# The ranks meet at the address of the first node, on which also the API listens.",
        _NODES,
        *_address("leader", 0),
        "export leader",
    ]


def _router(serving: Serving, port: int, image: JobImage | None) -> list[str]:
    """Return the lines that start the router, and end the job with the first of all that ends."""
    host = shell.Raw('"$replica0"')
    workers = [
        ("mixed", shell.Raw(f'"http://$replica{at}:{engine.http_port or ports.HTTP}"'))
        for at, engine in enumerate(serving.engines)
    ]
    listens = ("{host}", "{port}") if serving.keyed else (host, str(port))
    argv: list[Any] = router.vllm_router(*listens, workers, _PATIENCE)
    door = []
    if serving.keyed:
        door = [
            "# It asks for the key; the job is submitted from this folder or from the one above.",
            f"door={router.DOOR}",
            f'[ -e "$door" ] || door=jobs/{router.DOOR}',
        ]
        inner = image.named(argv) if image else argv
        argv = router.door(host, port, inner, shell.Raw('"$PWD/$door"' if image else '"$door"'))
    # The engines hold the CPUs of the node: a step of the router shares one of them.
    step = '--overlap -w "${nodes[0]}"'
    start = image.call(argv, 1, step=step) if image else shell.command(argv)
    return [
        "engines=$!",
        *door,
        *start[:-1],
        f"{start[-1]} &",
        "router=$!",
        "# The replicas and their router are one service: none of them serves on without the others.",
        'trap \'kill "$engines" "$router" 2> /dev/null || true\' EXIT',
        "trap 'exit 143' TERM",
        "code=0",
        "wait -n || code=$?",
        'if kill -0 "$router" 2> /dev/null; then ended="a replica"; else ended="the router"; fi',
        'tell ERROR "$ended has ended with exit code $code, and the job with it" >&2',
        '[ "$code" != 0 ] || code=1',
        'exit "$code"',
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
