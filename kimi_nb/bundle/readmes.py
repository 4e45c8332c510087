"""Write the texts of a bundle that are for people: what to run where, how long, how to go back."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from kimi_nb.bundle import node_files
from kimi_nb.plan import checkpoints, router, serving_job
from kimi_nb.plan.router import UPSTREAM
from kimi_nb.plan.spec import EngineSpec, Plan

PICTURE = "client/picture.py"  # of plans whose model takes pictures
_STEPS = {
    "host_tuning.sh": "as root on the host, once after each start of the machine",
    "weights.sh": "downloads the weights that this node lacks, and checks them",
    "edit_quantization_target.py": "once for the weights, unless weights.sh did: `python "
    "edit_quantization_target.py apply FOLDER` (`revert` undoes it)",
    "store-master.sh": "starts the master of the KV store, which runs once for all nodes and stays in "
    "the foreground",
    "store-service.sh": "starts the store's service, when the master answers; it stays in the "
    "foreground",
    "docker_run.sh": "opens the container; run what follows inside it",
    "serve.sh": "starts the engine",
    "launch.sh": "starts every rank of this node with launch_online_dp.py and "
    "run_dp_template.sh; one log for each rank in logs/",
    "proxy.sh": "starts the front door, when every engine answers",
}


_ROLES = {"mixed": "prefill and decode together", "prefill": "prefill", "decode": "decode"}


def steps(plan: Plan, files: Collection[str]) -> list[tuple[str, str, str]]:
    """Return (where, what to run, what it does), in the order in which a person proceeds.

    ``files`` are the names of the bundle's files.
    """
    if plan.jobs:
        rows = [
            ("login node", f"sbatch jobs/{job.file}", f"after {job.after}" if job.after else "")
            for job in plan.jobs
        ]
    else:
        rows = [("every node", "bash install/<one way>.sh", "installs the engine")]
        present = {name.rpartition("/")[2] for name in files}
        for name, text in _STEPS.items():
            if name in present and name == "store-master.sh" and plan.store:
                rows.append((plan.store.node, f"./{name}", text))
            elif name in present and name != "proxy.sh":
                rows.append(("every node", f"./{name}", _says(name, text, present)))
        if plan.router:
            rows.append((plan.router.node, "./proxy.sh", _STEPS["proxy.sh"]))
    return [*rows, ("anywhere", "bash client/chat.sh", "asks one question")]


def _says(name: str, text: str, present: Collection[str]) -> str:
    """Return what a step does; a container that starts nothing else runs the engine itself."""
    if name == "docker_run.sh" and not {"serve.sh", "launch.sh"} & set(present):
        return "starts the engine in its image"
    return text


def node(plan: Plan, first: EngineSpec, names: Collection[str]) -> str:
    """Return the README of a node's folder; ``names`` are the other files there."""
    steps = [(name, text) for name, text in _STEPS.items() if name in names]
    lines = [
        f"# {first.node} ({first.address})",
        "",
        f"{plan.title}. Role of this node: {_ROLES[first.role]}.",
        "",
    ]
    if not plan.jobs:
        lines += [f"Copy this folder to `{node_files.folder(plan, first.node)}` on the node.", ""]
    lines += ["Run in this order:", ""]
    for number, (name, text) in enumerate(steps, start=1):
        lines.append(f"{number}. `{name}`: {_says(name, text, names)}.")
    if plan.jobs:
        lines.append("The jobs in `../jobs` start the engine here.")
    else:
        lines += ["", *_by_hand(plan, first, names)]
    return "\n".join(lines).rstrip() + "\n"


def _by_hand(plan: Plan, first: EngineSpec, names: Collection[str]) -> list[str]:
    """Return what a person has to know who runs the scripts one by one."""
    here = node_files.folder(plan, first.node)
    serves = next((name for name in ("launch.sh", "serve.sh") if name in names), "docker_run.sh")
    lines = [
        f"`{serves}` stays in the foreground: OK is `Application startup complete` in its output or "
        "logs. Start it in tmux, or it ends with your connection.",
        "",
    ]
    if "docker_run.sh" in names and serves != "docker_run.sh":
        name = plan.request.site.container_name
        lines += [
            f"The container holds `{plan.request.site.paths.work}` of the host and ends with its first "
            "shell (`--rm`), so keep that one open too. A second shell in it, already in this folder: "
            f"`docker exec -it -w {shlex.quote(here)} {shlex.quote(name)} bash`.",
            "",
        ]
    if "proxy.sh" in names and plan.router and plan.router.kind == "upstream":
        lines += [
            f"`proxy.sh` runs `{UPSTREAM}`. The image has it in "
            "`/vllm-workspace/vllm-ascend/examples/disaggregated_prefill_v1/`: copy it here first.",
            "",
        ]
    return [
        *lines,
        "`node.sh` does the same, and is what `kimi-nb up` runs: `RUN=by-hand ./node.sh claim prepare "
        "engine weights start` does it (with `DRY=1` it only says what it would do), and "
        "`RUN=by-hand ./node.sh stop release` ends what it has started and gives the node back.",
    ]


def _where_the_server_is(plan: Plan) -> str:
    """Return where SLURM puts the engines, and how a client finds the API."""
    file = f"{plan.request.places()['project']}/{serving_job.SERVER_FILE}"
    count = len(plan.nodes)
    takes = (
        f"A serving job takes {count} nodes and starts an engine on each, with a log of its own "
        "(`*.nodeN.err`). "
        if count > 1
        else ""
    )
    if plan.router:
        takes += (
            f"The job starts vllm-router on its first node, in front of all of them, at port "
            f"{plan.router.port}; the job ends, with an error, as soon as an engine or the router "
            "does. "
        )
    return (
        f"{takes}SLURM chooses the nodes: `{file}` names the one on which the API listens, and the "
        "benchmark asks there. Put that name into `client/chat.sh` for the address of the site file."
    )


def bundle(plan: Plan, nodes: list[str]) -> str:
    """Return the README of a bundle."""
    shown = nodes if len(nodes) <= 16 else [*nodes[:16], "..."]
    lines = [
        f"# {plan.heading}",
        "",
        f"{plan.title}.",
        "",
        f"- Engine: {plan.engine} {plan.engine_version} (vLLM {plan.vllm_version})",
        f"- Site: {plan.site}, {len(nodes)} node{'s' * (len(nodes) > 1)}: {', '.join(shown)}",
        f"- Front door: {plan.url}, model name {plan.served_name}",
        f"- Source: {plan.source}{'' if plan.documented else ' (not documented)'}",
        "",
        *(f"{note[0].upper()}{note[1:]}\n" for note in router.notes(plan.router)),
        *_of_store(plan),
    ]
    if plan.jobs:
        lines += ["Submit in this order, each after the one it needs:", ""]
        lines += [
            f"{i}. `sbatch jobs/{job.file}`" + (f" (after {job.after})" if job.after else "")
            for i, job in enumerate(plan.jobs, start=1)
        ]
        lines += ["", _where_the_server_is(plan)]
    else:
        lines += [
            "1. `install/`: one way to install, on every node.",
            "2. Copy each node's folder to that node and follow its README.md, which says where; "
            "start all nodes of a group within a few minutes of each other.",
        ]
        if plan.store:
            lines[-1] += (
                f" `{plan.store.node}/store-master.sh` comes before every engine: they end where the "
                "master of the KV store does not answer."
            )
        if plan.router:
            lines.append(f"3. `{plan.router.node}/proxy.sh`, when every engine answers.")
    lines += ["", "`DAY.md` is the same day with `kimi-nb up`, step by step."]
    lines += ["", "Then `client/chat.sh`; OK is HTTP 200 and JSON with choices.", ""]
    if plan.takes_pictures:
        lines += [f"`{PICTURE}` asks about a picture, with OpenAI's Python client.", ""]
    if plan.secrets:
        names = ", ".join(sorted(set(plan.secrets.values())))
        lines += [f"Secrets are read from the environment: set {names} on every node.", ""]
    if plan.errata_off:
        lines += [f"As published, on purpose: {', '.join(plan.errata_off)}.", ""]
    if plan.errata:
        lines += ["Differences from the document, each with its reason:", ""]
        lines += [f"- {entry['id']}: {entry['uses']}" for entry in plan.errata]
    return "\n".join(lines).rstrip() + "\n"


def _of_store(plan: Plan) -> list[str]:
    """Return what the README says of a KV store."""
    store = plan.store
    if store is None:
        return []
    holds = "a service on each node" if store.service else "each device"
    return [
        f"The engines share a KV store ({store.kind}, {store.mode}): {holds} gives {store.segment_gb} GB "
        f"of its host's memory, over {store.protocol}. Each node's `mooncake.json` says so, and `{store.node}` "
        f"runs the master. It needs libibverbs on the hosts (Debian, Ubuntu: libibverbs1). Not "
        "tried on accelerators here.",
        "",
    ]


# A 500 of the front door is no 404; each of these results names the door.
_BUT = " but those of a client's mistakes (errors/..., parameters/refused), which the front door causes"

# How long the steps take that no figure is derived for.
_UNKNOWN = "not measured"


def day(plan: Plan) -> str:
    """Return the day of a deployment: what to run, how long, what OK looks like, how to go back."""
    given, download = '"${PLAN[@]}"', "" if plan.jobs else " --download"
    rows = [
        (f"kimi-nb check {given}", "seconds", "0 errors", "nothing is touched"),
        (f"kimi-nb rehearse {given}", "seconds", "result ok", "nothing is touched"),
        (
            f"kimi-nb up {given} --dry-run{download}",
            "seconds",
            "a list of changes, no failure",
            "nothing is changed",
        ),
        (
            f"kimi-nb up {given} --confirm {plan.site}{download}",
            _downloads(plan),
            "every engine ready, an answer from each and from the front door",
            "with --resume it goes on where it stopped; kimi-nb down ends it",
        ),
        ("kimi-nb status", "seconds", "every engine ready", "nothing is changed"),
        (
            'papermill notebooks/06_verification.ipynb 06.ipynb "${SERVICE[@]}"',
            _UNKNOWN,
            "no failed check" + (_BUT if router.notes(plan.router) else ""),
            "the service stays up",
        ),
        (
            'papermill notebooks/08_performance.ipynb 08.ipynb "${SERVICE[@]}" -p input_len 1024 '
            "-p output_len 1024 -p concurrency 1,16,64",
            _UNKNOWN,
            "figures beside the published ones, below the physical limit",
            "the service stays up",
        ),
        (
            "kimi-nb down",
            "seconds",
            "every node given back",
            "weights, image and host settings stay",
        ),
    ]
    lines = [
        f"# The day of {plan.heading}",
        "",
        f"{plan.title}, on {plan.site}. From the machine where kimi_nb is installed"
        + (", a login node:" if plan.jobs else ":"),
        "",
        "```bash",
        f"PLAN=({_words(plan)})",
        f"SERVICE=({_parameters(plan)})",
        "```",
        "",
        "| run | how long | OK is | go back |",
        "| --- | --- | --- | --- |",
        *(f"| `{run}` | {' | '.join(others)} |" for run, *others in rows),
        "",
        "The notebooks find the service that runs on the site, and its own settings.",
        "",
        "The minutes of a download are derived from sizes. Nothing here was timed on accelerators: "
        "loading takes at least the weights divided by the speed at which a node reads them.",
    ]
    return "\n".join(lines) + "\n"


def _words(plan: Plan) -> str:
    """Return the options of kimi-nb that make this plan."""
    request = plan.request
    words = ["--model", request.named or request.model.name, "--hw", request.hardware.name]
    words += ["--layout", plan.layout, "--variant", plan.variant, "--site", f"./{plan.site}.yaml"]
    words += ["--derive"] if request.derive else []
    if request.scenario:
        words += ["--scenario", plan.scenario]
    for option, values in (
        ("--with", request.chosen),
        ("--without", request.dropped),
        ("--set", request.pairs),
        ("--erratum", request.errata),
    ):
        words += [word for value in values for word in (option, value)]
    return shlex.join(words)


def _parameters(plan: Plan) -> str:
    """Return the parameters by which a notebook finds the service of this plan."""
    request = plan.request
    values = {
        "hw": request.hardware.name,
        "model": request.named or request.model.name,
        "layout": plan.layout,
        "variant": plan.variant,
        "site": f"./{plan.site}.yaml",
        "action": "deploy",
        "confirm": plan.site,
        **({"derive": "True"} if plan.derived else {}),
    }
    return shlex.join([word for key, value in values.items() for word in ("-p", key, value)])


def _downloads(plan: Plan) -> str:
    """Return how long the downloads of a plan take at two bandwidths, in words."""
    size = sum(one.size_gb or 0 for one in checkpoints.of(plan) if one.command)
    if plan.jobs or not size:
        return _UNKNOWN
    return (
        f"{size} GB to download: {size * 8 / 10 / 60:.0f} min at 10 Gbit/s, "
        f"{size * 8 / 60:.0f} min at 1 Gbit/s for each copy; then the start, {_UNKNOWN}"
    )
