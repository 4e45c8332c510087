"""Turn a plan into scripts that a person could run by hand.

``scripts.files(plan)`` returns ``{'a3-0/serve.sh': '#!/bin/bash...', ...}``. Everything is pure:
plan in, text out. `bundle.writer` writes the files to disk.
"""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Sequence

from kimi_nb.bundle import inventory, node_files, readmes, script_parts
from kimi_nb.catalog import companions
from kimi_nb.core import shell
from kimi_nb.plan import checkpoints, client_commands, jobs, network
from kimi_nb.plan.router import DOOR
from kimi_nb.plan.spec import Container, EngineSpec, Launch, Plan

PICTURE = readmes.PICTURE
EDITS = node_files.EDITS
# What a pod runs; everything else of a node is the cluster's.
_RUN = ("serve.sh", "launch.sh", "run_dp_template.sh", "launch_online_dp.py", "host_tuning.sh")

# How to get the programs of an installation that no host has by itself.
_WAYS_TO_GET = {
    "uv": "curl -LsSf https://astral.sh/uv/install.sh | sh, or python3 -m pip install uv; then "
    "open a new shell."
}


def files(plan: Plan) -> dict[str, str]:
    """Return every file of the bundle by its relative path, in a fixed order."""
    if plan.request.site.kubernetes:
        return _of_pods(plan)
    out: dict[str, str] = {}
    containers = {container.node: container for container in plan.containers}
    launches = {launch.node: launch for launch in plan.launches}
    by_node = _by_node(plan)
    weights = [] if plan.jobs else node_files.weights(plan)
    for node, engines in by_node.items():
        mine = _node_files(plan, engines, containers.get(node), launches.get(node))
        if not plan.jobs:
            mine["node.env"] = node_files.environment(plan, engines, containers.get(node), weights)
            mine |= node_files.static(plan.store is not None)
            mine |= node_files.store_files(plan, node)
        out |= {f"{node}/{name}": _marked(plan, name, text) for name, text in mine.items()}
    out |= inventory.files(plan)
    out |= {f"jobs/{job.file}": jobs.script(job, plan.modules) for job in plan.jobs}
    if plan.jobs and plan.router and DOOR in plan.router.argv:
        out[f"jobs/{DOOR}"] = script_parts.static(DOOR)
    out |= {f"install/{name}.sh": _install(plan, name) for name in plan.installs}
    out |= _clients(plan)
    out["README.md"] = readmes.bundle(plan, list(by_node))
    out["DAY.md"] = readmes.day(plan)
    out["plan.json"] = plan.as_json([*out, "plan.json"]) + "\n"
    return out


def _by_node(plan: Plan) -> dict[str, list[EngineSpec]]:
    out: dict[str, list[EngineSpec]] = {}
    for engine in plan.engines:
        out.setdefault(engine.node, []).append(engine)
    return out


def _of_pods(plan: Plan) -> dict[str, str]:
    """Return the bundle of a plan on Kubernetes: objects for kubectl, and what each pod runs."""
    from kimi_nb.bundle.kubernetes import (  # start-up: only for Kubernetes
        kubernetes_files,
        kubernetes_readmes,
    )

    out = kubernetes_files.files(plan)
    launches = {launch.node: launch for launch in plan.launches}
    for node, engines in _by_node(plan).items():
        made = _node_files(plan, engines, None, launches.get(node))
        out |= {f"{node}/{name}": _marked(plan, name, made[name]) for name in made if name in _RUN}
        out[f"{node}/README.md"] = kubernetes_readmes.pod(plan, engines[0])
    out |= _clients(plan)
    out["README.md"] = kubernetes_readmes.bundle(plan, out)
    out["DAY.md"] = kubernetes_readmes.day(plan, out)
    out["plan.json"] = plan.as_json([*out, "plan.json"]) + "\n"
    return out


def _marked(plan: Plan, name: str, text: str) -> str:
    """Return a script of a derived plan with its title in the head; other files as they are."""
    known = name in node_files.static() or plan.title in text or not text.startswith("#!")
    if not plan.derived or known:
        return text
    first, _, rest = text.partition("\n")
    return f"{first}\n# {plan.title}.\n{rest}"


def _node_files(
    plan: Plan, engines: list[EngineSpec], container: Container | None, launch: Launch | None
) -> dict[str, str]:
    """Return the files of one node, by name."""
    first = engines[0]
    out: dict[str, str] = {}
    if plan.host_tuning:
        out["host_tuning.sh"] = _host_tuning(plan.host_tuning)
    for edit in plan.edits:
        out[EDITS[edit]] = script_parts.static(EDITS[edit])
    if not plan.jobs and (fetched := [one for one in checkpoints.of(plan) if one.command]):
        out["weights.sh"] = _weights(plan, fetched)
    if container is not None:
        out["docker_run.sh"] = _docker_run(plan, container)
    if launch is not None:
        out["launch_online_dp.py"] = script_parts.static("launch_online_dp.py")
        out["run_dp_template.sh"] = _template(plan, first)
        out["launch.sh"] = _launch(plan, engines, launch)
    elif not plan.jobs and not (container and container.runs_engine):
        out["serve.sh"] = _serve(plan, first)
    out |= _store(plan, first.node)
    if plan.router and plan.router.node == first.node and not plan.jobs:
        out["proxy.sh"] = _proxy(plan)
        if DOOR in plan.router.argv:
            out[DOOR] = script_parts.static(DOOR)
    out["README.md"] = readmes.node(plan, first, list(out))
    return out


@functools.lru_cache(maxsize=8)
def _host_tuning(tuning: tuple[tuple[str, str], ...]) -> str:
    lines = []
    for name, value in tuning:
        if name == "governor":
            # The glob must not be quoted: it stands for one file per core.
            files = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
            lines += [
                f"if compgen -G '{files}' > /dev/null; then",
                f"    echo {shell.quote(value)} | tee {files} > /dev/null",
                "else",
                "    echo 'No CPU frequency control here: the governor stays as it is.'",
                "fi",
            ]
        else:
            lines += shell.command(["sysctl", "-w", f"{name}={value}"])
    return shell.script(
        [
            "Host settings for steady latency. Run as root on the host, once after",
            "each start of the machine; they are gone after a restart.",
        ],
        lines,
    )


def _weights(plan: Plan, fetched: Sequence[checkpoints.Checkpoint]) -> str:
    """Return the script that downloads what is missing of these checkpoints on a node."""
    lines = []
    for one in fetched:
        size = f"about {one.size_gb} GB" if one.size_gb else "size not published"
        lines += [
            f"{one.id} ({size}) into {one.into}:",
            f"    {shlex.join(one.command)}",
        ]
    return shell.script(
        [
            "Download the weights that this node lacks, and check them; run it again to go on.",
            "On a file system that the nodes share one of them downloads, and the others wait.",
            "",
            *lines,
            "",
            "Where the node has no such program, that of the engine's image is used. Variables:",
            "    DRY=1 says what would be done; CHECKSUMS=1 reads every byte where sums are known",
            "    WORKERS=16 files at the same time",
            "    HF_ENDPOINT, MODELSCOPE_ENDPOINT a mirror; HTTPS_PROXY; HF_TOKEN for a gated model",
            "    HF_HUB_OFFLINE=1 asks no hub",
        ],
        ['DOWNLOAD=1 exec bash "$(dirname "$0")/node.sh" weights'],
    )


def _serve(plan: Plan, engine: EngineSpec) -> str:
    argv = ["exec", *engine.argv]
    return shell.script(
        [
            f"{plan.title}.",
            f"Engine {engine.name} on {engine.node} "
            f"({engine.address}), {plan.engine} {plan.engine_version}.",
        ],
        [
            *script_parts.path(plan.engine_folder),
            *script_parts.exports(plan, engine.env, f"rank {engine.rank}"),
            "",
            *shell.command(argv),
        ],
    )


def _template(plan: Plan, engine: EngineSpec) -> str:
    """Return the script of one rank, for which launch_online_dp.py supplies $1 to $7."""
    words: list[object] = ["exec", *engine.argv]
    for i, word in enumerate(words[:-1]):
        if word in script_parts.POSITIONS:
            words[i + 1] = shell.Raw(f'"${script_parts.POSITIONS[word]}"')
    visible = script_parts.visible(engine)
    env = {name: value for name, value in engine.env.items() if name != visible}
    rank = (
        [f"rank=${script_parts.POSITIONS['--data-parallel-rank']}"] if "LD_PRELOAD" in env else []
    )
    lines = [*rank, *script_parts.exports(plan, env, "rank $rank"), f'export {visible}="$1"', ""]
    return shell.script(
        [
            f"{plan.title}.",
            f"One {engine.role} rank on {engine.node} ({engine.address}).",
            "$1 devices, $2 port, $3 ranks in all, $4 this rank, $5 address and $6 port where the",
            "ranks meet, $7 devices a rank: launch_online_dp.py gives them.",
        ],
        [*lines, *shell.command(words)],
    )


def _launch(plan: Plan, engines: list[EngineSpec], launch: Launch) -> str:
    ranks = f"{engines[0].rank} to {engines[-1].rank}" if len(engines) > 1 else f"{engines[0].rank}"
    return shell.script(
        [f"Start the {engines[0].role} ranks {ranks} of {launch.node}."],
        [
            'cd "$(dirname "$0")"',
            *script_parts.path(plan.engine_folder),
            *shell.command(["exec", *launch.argv]),
        ],
    )


def _docker_run(plan: Plan, container: Container) -> str:
    words: list[object] = list(container.argv)
    passed = [
        word for name in sorted({*plan.secrets, *plan.secrets.values()}) for word in ("-e", name)
    ]
    if container.runs_engine:
        at = words.index(container.image)
        words[at:at] = passed
        return shell.script(
            [f"{plan.title}.", f"The engine on {container.node}, in its image."],
            [*script_parts.secrets(plan.secrets), *shell.command(["exec", *words])],
        )
    end = len(words) - 3  # -it IMAGE bash
    words[end:] = [
        *passed,
        shell.Raw('${tty[@]+"${tty[@]}"}'),
        shell.Raw('"$IMAGE"'),
        shell.Raw('"${@:-bash}"'),
    ]
    lines = [
        shell.export("IMAGE", container.env["IMAGE"]),
        "tty=()",
        "if [ -t 0 ]; then tty=(-it); fi",
        *shell.command(["exec", *words]),
    ]
    return shell.script(
        [
            f"The container of {container.node}: a shell, or the command given.",
            "    ./docker_run.sh",
            "    ./docker_run.sh bash /path/to/serve.sh",
        ],
        lines,
    )


def _proxy(plan: Plan) -> str:
    router = plan.router
    assert router is not None
    source = (
        "The program is in the repository of vllm-ascend, examples/disaggregated_prefill_v1; "
        "run this beside it."
        if router.kind == "upstream"
        else f"pip install vllm-router=={companions.router()}; install/ does."
    )
    # Both proxies send the engines the value of OPENAI_API_KEY, for which the door asks.
    keys = script_parts.secrets(
        dict.fromkeys(
            ["OPENAI_API_KEY"] if plan.secrets else [], plan.secrets.get("VLLM_API_KEY", "")
        )
    )
    return shell.script(
        [f"The front door: {router.url}. {source}"],
        [
            # docker exec begins in the image's working folder, and the program is beside this.
            'cd "$(dirname "$0")"',
            *keys,
            *script_parts.path(router.folder or plan.engine_folder),
            *shell.command(["exec", *router.argv]),
        ],
    )


def _store(plan: Plan, node: str) -> dict[str, str]:
    """Return the scripts of the KV store on a node: its master on the first, a service on each."""
    store, out = plan.store, {}
    if store is not None and store.node == node:
        out[node_files.MASTER] = (f"The KV store's master, at port {store.port}.", store.master)
    if store is not None and store.service:
        says = f"The KV store's service: {store.segment_gb} GB of this node's memory."
        out[node_files.SERVICE] = (says, store.service)
    return {
        f"{name}.sh": shell.script(
            [says],
            [
                'cd "$(dirname "$0")"',
                *script_parts.path(plan.engine_folder),
                *shell.command(["exec", *argv]),
            ],
        )
        for name, (says, argv) in out.items()
    }


def _install(plan: Plan, name: str) -> str:
    lines = [shell.export(*item) for item in network.variables(plan.request.site.network).items()]
    programs = {step.argv[0] for step in plan.installs[name]}
    for program in sorted(programs & set(_WAYS_TO_GET)):
        told = shell.quote(f"{program} is not on PATH: {_WAYS_TO_GET[program]}")
        lines += [
            f"if ! command -v {program} > /dev/null; then",
            f"    echo {told} >&2",
            "    exit 127",
            "fi",
            "",
        ]
    for step in plan.installs[name]:
        text = shell.command(step.argv)
        if step.env:
            text[0] = (
                " ".join(f"{key}={shell.quote(value)}" for key, value in step.env.items())
                + f" {text[0]}"
            )
        if step.directory:
            text = [f"(cd {shell.quote(step.directory)} && {text[0]}", *text[1:]]
            text[-1] += ")"
        lines += [shell.remark(step.says), *text, ""]
    return shell.script([f"{plan.engine} {plan.engine_version} by {name}, on every node."], lines)


def _clients(plan: Plan) -> dict[str, str]:
    chat: list[object] = list(client_commands.curl(plan.url, plan.served_name))
    asked: list[str] = []
    if plan.secrets:
        source = plan.secrets["VLLM_API_KEY"]
        asked = [f': "${{{source}:?set {source} before you start}}"']
        # Not a word of curl's: everybody on the machine can list those.
        header = f"@<(printf 'Authorization: Bearer %s\\n' \"${source}\")"
        chat[3:3] = ["-H", shell.Raw(header)]
    out = {
        "client/chat.sh": shell.script(
            ["One chat completion; OK is HTTP 200 and JSON with choices."],
            [*asked, *shell.command(chat)],
        )
    }
    if plan.takes_pictures:
        out[PICTURE] = _picture(plan)
    for client in plan.clients:
        exports = [shell.export(name, value) for name, value in client.env.items()]
        if client.sweep:
            words: list[object] = list(client.argv)
            words[words.index("--num-prompts") + 1] = shell.Raw('"$((concurrency * 10))"')
            words[words.index("--max-concurrency") + 1] = shell.Raw('"$concurrency"')
            body = [
                f"for concurrency in {' '.join(map(str, client.sweep))}; do",
                *(f"    {line}" for line in shell.command(words)),
                "done",
            ]
        else:
            body = shell.command(client.argv)
        out[f"client/{client.name}.sh"] = shell.script([f"{client.title}."], [*exports, *body])
    return out


def _picture(plan: Plan) -> str:
    """Return the usage guide's client for pictures, with this service's address, model and key."""
    text, marked = script_parts.static("picture.py"), "SERVICE, MODEL, KEY = "
    line = next(one for one in text.splitlines() if one.startswith(marked))
    mine = (f"{plan.url}/v1", plan.served_name, plan.secrets.get("VLLM_API_KEY", ""))
    return text.replace(line, marked + ", ".join(map(json.dumps, mine)))


def steps(plan: Plan) -> list[tuple[str, str, str]]:
    """Return (where, what to run, what it does), in the order in which a person proceeds."""
    return readmes.steps(plan, files(plan))
