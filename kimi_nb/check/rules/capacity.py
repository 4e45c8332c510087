"""Rules on device and host memory, cache and disks: what does not fit, with the arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.params import schema
from kimi_nb.plan import memory
from kimi_nb.plan.memory import calibration, device, host

GIB = memory.GIB


def fit_of(d: Deployment, server: EngineView) -> memory.Fit | None:
    """Return what an engine needs of one device, None if facts are missing."""
    shape = shape_of(d, server)
    if (
        shape is None
        or d.model is None
        or d.hardware is None
        or d.weights is None
        or any(name not in d.model.architecture for name in memory.NEEDED)
        or d.weights.precision not in memory.PRECISIONS
        or min(shape.tp, shape.dp, shape.pp) < 1
        or shape.pp > d.model.architecture["layers"]
    ):
        return None
    found = memory.fit(
        shape,
        d.model.architecture,
        d.weights.precision,
        device.usable(d.hardware),
        draft_parameters(d, server),
    )
    layers = d.plan.request.calibrations if d.plan and d.plan.request else ()
    for layer in layers:
        if layer.role == server.role:
            return calibration.account(found, d.model.architecture, layer)
    return found


def shape_of(d: Deployment, server: EngineView) -> memory.Shape | None:
    """Return the shape of an engine on this deployment's hardware; None if a size is hidden."""
    vendor = d.hardware.vendor if d.hardware else ""
    shape = memory.Shape.of(server, d.engine, vendor, memory.defaults(d.engine, d.hardware))
    draft = draft_of(d, server)
    if shape is None or draft is None or draft.cache_layers is None:
        return shape
    return replace(shape, draft_layers=draft.cache_layers)


def served_shape_of(d: Deployment, server: EngineView) -> memory.Shape | None:
    """Return the same with what the engine sets itself, whatever its flags say."""
    shape = shape_of(d, server)
    return shape.as_served(d.model.architecture) if shape and d.model else shape


def draft_of(d: Deployment, server: EngineView) -> schema.Draft | None:
    """Return the draft of the model that an engine loads; None without one, or for an unknown one."""
    named = str(server.table("speculative-config").get("model", ""))
    for draft in (d.model.drafts if d.model else {}).values():
        if named and (
            named == draft.id
            or named.rstrip("/").rpartition("/")[2].lower()
            in (draft.directory.lower(), draft.id.rpartition("/")[2].lower())
        ):
            return draft
    return None


def draft_parameters(d: Deployment, server: EngineView) -> int:
    """Return the number of parameters of the draft that an engine loads, 0 without one."""
    draft = draft_of(d, server)
    return (draft.parameters_million or 0) * 10**6 if draft else 0


@rule(
    "capacity/memory",
    ERROR,
    "Weights, activations and buffers fit the memory of a device.",
    "Raise tp or dp (with --enable-expert-parallel), or lower --max-num-batched-tokens.",
    "estimated from the model's architecture (kimi_nb/plan/memory)",
    needs=("model", "weights", "hardware"),
)
def fits(d: Deployment) -> Iterator[Problem]:
    """The engine runs out of memory while it loads or profiles, after minutes of loading."""
    for server, _ in d.profiles():
        found = fit_of(d, server)
        if found is None or found.headroom > 0:
            continue
        fix = ""
        if found.parts.get("buffers", 0) > 0.25 * found.budget:
            fix = f"Lower HCCL_BUFFSIZE ({found.shape.buffer_mib} MB, twice)."
        elif found.shape.utilization < 0.7:
            fix = f"Raise --gpu-memory-utilization ({found.shape.utilization:g})."
        parts = ", ".join(f"{name} {size / GIB:.1f}" for name, size in found.parts.items())
        yield Problem(
            server.of("tensor-parallel-size"),
            f"{found.used / GIB:.1f} GiB are needed ({parts}), "
            f"{found.budget / GIB:.1f} GiB are there "
            f"({found.device / GIB:.2f} x {found.shape.utilization}); {found.mark}",
            fix,
        )


def _as_documented(d: Deployment) -> bool:
    """Return whether it is a document's own shape, which its authors ran."""
    return d.plan is not None and d.plan.documented and not d.plan.request.pairs


@rule(
    "capacity/cache",
    ERROR,
    "The cache holds at least one request of the longest context.",
    "Lower --max-model-len, raise --gpu-memory-utilization or tp.",
    "vLLM: max_model_len is larger than the KV cache can hold; estimated by kimi_nb/plan/memory",
    needs=("model", "weights", "hardware"),
)
def cache_holds_context(d: Deployment) -> Iterator[Problem]:
    """The engine measures its cache after loading and stops when the longest request does not
    fit."""
    assert d.model is not None
    for server, _ in d.profiles():
        found = fit_of(d, server)
        if (
            found is None
            or found.headroom <= 0
            or server.flags.get("max-model-len") in ("auto", -1)
        ):
            continue
        length = found.shape.model_len or d.model.context_length
        if found.tokens < length:
            # A document that names no length has not promised the model's longest.
            silent = _as_documented(d) and not found.shape.model_len
            yield Problem(
                server.of("max-model-len"),
                f"{found.headroom / GIB:.1f} GiB are left for the cache: {found.tokens} "
                f"tokens ({found.low} to {found.high}) at {found.per_token} B, --max-model-len is "
                f"{length}; {found.mark}",
                "",
                WARNING if found.high >= length or silent else "",
            )


@rule(
    "capacity/concurrency",
    WARNING,
    "The cache holds the requests that a scenario is for.",
    "Lower --max-model-len, or spread the model over more devices; further requests wait.",
    "estimated by kimi_nb/plan/memory",
    needs=("plan", "model", "weights", "hardware"),
)
def cache_holds_requests(d: Deployment) -> Iterator[Problem]:
    """Requests of the full length queue, or are preempted and computed again, so that the latency
    is not that of the row."""
    assert d.plan is not None
    scenario = d.plan.request.scenario
    wanted: int = (scenario.concurrency or 0) if scenario else 0
    for server, _ in d.profiles():
        found = fit_of(d, server)
        if server.role == "prefill" or found is None or not found.shape.model_len:
            continue
        groups = {engine.group for engine in d.plan.engines if engine.role == server.role}
        ranks, length = found.shape.dp * len(groups), found.shape.model_len
        cached, admitted = found.requests(length) * ranks, found.shape.seqs * ranks
        if min(cached, admitted) < wanted:
            who = "the cache holds" if cached < wanted else "--max-num-seqs admits"
            yield Problem(
                server.of("max-model-len" if cached < wanted else "max-num-seqs"),
                f"{who} {min(cached, admitted)} requests of --max-model-len {length} at once, "
                f"the scenario is for {wanted}; {found.mark}",
            )


@rule(
    "capacity/uncertain",
    WARNING,
    "The cache is larger than the uncertainty of the estimate.",
    "Raise --gpu-memory-utilization or tp, lower --max-num-batched-tokens, or start it once and "
    "hand its log to kimi-nb calibrate.",
    "ranges of public logs (kimi_nb/data/plan/memory.yaml)",
    needs=("model", "weights", "hardware"),
)
def cache_is_certain(d: Deployment) -> Iterator[Problem]:
    """The engine may have no cache at all, and stop after minutes of loading; nobody can tell before
    it was started once."""
    for server, _ in d.profiles():
        found = fit_of(d, server)
        if found is None or found.headroom <= 0 or found.low > 0:
            continue
        parts = " - ".join(f"{name} {size / GIB:.1f}" for name, size in found.parts.items())
        yield Problem(
            server.of("gpu-memory-utilization"),
            f"{found.budget / GIB:.1f} GiB - {parts} leave {found.headroom / GIB:.1f} GiB for the "
            f"cache, less than these figures may be wrong by: 0 to {found.high} tokens; "
            f"{found.mark}",
        )


@rule(
    "capacity/calibration",
    WARNING,
    "What a site file says was measured of memory is of the version that the plan is for.",
    "Start this version once and hand its log to kimi-nb calibrate.",
    "kimi_nb/plan/memory/calibration.py",
    needs=("plan",),
)
def calibrated_version(d: Deployment) -> Iterator[Problem]:
    """Versions differ by GiB in what they take beside the weights; an upgrade falls back to the
    estimate."""
    assert d.plan is not None
    for layer in d.plan.request.stale if d.plan.request else ():
        server = next(one for one in d.servers if one.role == layer.role)
        yield Problem(
            server.spot,
            f"the calibration of {layer.role} was measured with {layer.version}, the plan is for "
            f"{d.plan.engine_version}: it is not used, the figures are estimates",
        )


@rule(
    "capacity/headroom",
    WARNING,
    "The device keeps some memory beside the engine.",
    "Lower --gpu-memory-utilization.",
    "vllm-ascend issue 7123; vLLM issue 39788",
)
def headroom(d: Deployment) -> Iterator[Problem]:
    """Graphs and communication buffers that come after the profile run take what is left; at
    0.97 and more there is nothing."""
    for server, _ in d.profiles():
        share = server.number("gpu-memory-utilization")
        if share is not None and 0.96 < share <= 1:
            yield Problem(
                server.of("gpu-memory-utilization"),
                f"--gpu-memory-utilization {share:g} leaves nearly nothing",
            )


# Hosts --------------------------------------------------------------------------------------


_UNITS = {"k": 2**-20, "m": 2**-10, "g": 1, "t": 2**10, "": 2**-10}


def gib(text: str) -> float | None:
    """Convert a SLURM size to GiB, None if it is no size; a bare number is in MiB."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmgtKMGT]?)[bB]?", text)
    return float(match[1]) * _UNITS[match[2].lower()] if match else None


@rule(
    "capacity/slurm-memory",
    ERROR,
    "A job asks for the host memory that its engine takes.",
    "Raise --mem, or lower --kv-offloading-size.",
    "arithmetic: offloaded cache and 8 GiB for each rank's process (estimated: 3 to 16)",
)
def slurm_memory(d: Deployment) -> Iterator[Problem]:
    """SLURM kills the job when its memory is used up, with nothing in the engine's log."""
    for one in d.batches:
        mem = gib(one.options.get("mem", ""))
        if mem is None or mem == 0:
            continue
        for server in d.servers:
            # The jobs of a plan that hold devices and run vllm are those of its engine.
            ours = d.plan is not None and "vllm" in one.programs and "gpus-per-node" in one.options
            if server.spot.file != one.spot.file and not ours:
                continue
            offload = server.number("kv-offloading-size") or 0
            ranks = _processes(server)
            need = host.need_gib(ranks, offload)
            if mem < need:
                yield Problem(
                    one.of("mem"),
                    f"--mem={one.options['mem']}, the engine takes about "
                    f"{need:.0f} GiB of host memory: {offload:.0f} for offloaded cache, "
                    f"{host.process().value:g} for each of {ranks} ranks",
                    "",
                    "" if mem < host.least_gib(ranks, offload) else WARNING,
                )


def _limit(text: str) -> float | None:
    """Convert a limit of a container to GiB, None if it is no size; a bare number is in bytes."""
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([bkmgtBKMGT]?)[bB]?", text)
    if match is None or float(match[1]) == 0:
        return None
    return float(match[1]) * (
        _UNITS[match[2].lower()] if match[2].lower() in "kmgt" and match[2] else 2**-30
    )


@rule(
    "capacity/container-memory",
    ERROR,
    "The memory limit of a container holds what its engine takes of the host.",
    "Raise the limit (--memory, mem_limit, resources.limits.memory), or lower --kv-offloading-size.",
    "arithmetic: offloaded cache and 8 GiB for each rank's process (estimated: 3 to 16)",
)
def container_memory(d: Deployment) -> Iterator[Problem]:
    """The kernel kills a worker while the weights load, and the engine's log ends without a reason."""
    for box in d.boxes:
        name = next((one for one in ("-m", "--memory") if box.options.get(one)), "")
        given = box.options[name][-1] if name else ""
        limit = _limit(given)
        if limit is None or not box.runs_engine:
            continue
        inside = [one for one in d.servers if one.node == box.node]
        if not inside:
            continue
        ranks = sum(_processes(one) for one in inside)
        offload = sum(one.number("kv-offloading-size") or 0 for one in inside)
        need = host.need_gib(ranks, offload)
        if limit < need:
            said = f"{limit:.0f} GiB" if given.endswith("b") else given
            yield Problem(
                box.spot,
                f"{name} {said}, the engine takes about {need:.0f} GiB of host memory: "
                f"{offload:.0f} for offloaded cache, {host.process().value:g} for each of "
                f"{ranks} ranks; the page cache that loading fills counts as well",
                "",
                # The figure is an estimate; below the least that was seen nothing starts.
                "" if limit < host.least_gib(ranks, offload) else WARNING,
            )


def _processes(server: EngineView) -> int:
    """Return how many worker processes an engine has on its node."""
    return max(server.needs or 1, 1)


@rule(
    "capacity/idle-device",
    WARNING,
    "A job asks for devices that it uses.",
    "Take the GPUs out of the job; the client computes nothing on them.",
    "the programs that the job runs",
)
def slurm_devices(d: Deployment) -> Iterator[Problem]:
    """The job waits in the queue for a device, and keeps it from others, to send HTTP."""
    for one in d.batches:
        asked = next(
            (
                name
                for name in ("gpus-per-node", "gpus", "gres", "gpus-per-task")
                if one.options.get(name) and one.options[name] != "0"
            ),
            "",
        )
        clients = [client for client in d.clients if client.spot.file == one.spot.file]
        busy = any(server.spot.file == one.spot.file for server in d.servers) or any(
            "moe" in name
            or name
            in (
                "srun",
                "mpirun",
                "torchrun",
                "docker",
                "apptainer",
                "singularity",
                "ray",
                "bash",
                "python",
                "python3",
                "sh",
            )
            for name in one.programs
        )
        if asked and clients and not busy:
            yield Problem(
                one.of(asked),
                f"--{asked}={one.options[asked]} for a job that only runs {clients[0].kind}",
            )


@rule(
    "capacity/weights-mount",
    WARNING,
    "A container finds the weights outside itself.",
    "Mount the cache: -v ~/.cache/huggingface:/root/.cache/huggingface (or the weights' folder).",
    "docker: what is written inside goes away with the container",
)
def weights_mounted(d: Deployment) -> Iterator[Problem]:
    """Each start downloads the checkpoint again, hundreds of GB, into the container's layer."""
    for one in d.boxes:
        if not one.runs_engine or any(
            not mount.startswith(("/dev", "/sys", "/var/run")) for mount in one.mounts
        ):
            continue
        size = f" ({d.weights.size_gb} GB)" if d.weights and d.weights.size_gb else ""
        yield Problem(
            one.spot,
            f"nothing is mounted: the weights{size} are downloaded into the "
            "container at each start",
        )


@rule(
    "capacity/mount-unused",
    WARNING,
    "A folder that is mounted for the weights is one where the engine looks.",
    "Mount it at /root/.cache/huggingface, or set HF_HOME or --download-dir to it.",
    "huggingface_hub: HF_HOME is ~/.cache/huggingface; text-generation-inference looks in /data",
)
def mount_unused(d: Deployment) -> Iterator[Problem]:
    """The weights are downloaded into the container at each start, although a folder is mounted."""
    for one in d.boxes:
        targets = [mount.split(":")[1] for mount in one.mounts if mount.count(":")]
        said = " ".join((*one.argv, *one.env.values(), *one.passes))
        settings = {"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"}
        if (
            one.runs_engine
            and targets == ["/data"]
            and "/data" not in said
            and not settings & {*one.env, *one.passes}
            and "--env-file" not in one.options
        ):
            yield Problem(
                one.spot, "/data is mounted, and the engine looks in ~/.cache/huggingface"
            )


_TEMPORARY = ("/dev/shm", "/tmp", "/run", "/var/tmp")


@rule(
    "capacity/disk",
    WARNING,
    "The weights lie on a disk that holds them.",
    "Put them on a large disk that every node sees, and look at it with df -h first.",
    "the size of the checkpoint",
)
def weights_disk(d: Deployment) -> Iterator[Problem]:
    """/dev/shm and /tmp are small, or are memory that the engine needs; the download ends with
    'No space left on device' after an hour."""
    size = f"{d.weights.size_gb} GB of weights" if d.weights and d.weights.size_gb else "weights"
    for server, _ in d.profiles():
        if server.flags.get("load-format") == "dummy":
            continue  # nothing is read
        folders = (
            ("model", server.model if server.model.startswith("/") else ""),
            ("download-dir", server.text("download-dir") or ""),
            ("HF_HUB_CACHE", server.env.get("HF_HUB_CACHE", "")),
            ("HF_HOME", server.env.get("HF_HOME", "")),
        )
        # The engine reads them from the first of these that is given.
        for what, folder in [one for one in folders if one[1]][:1]:
            if any(folder == base or folder.startswith(base + "/") for base in _TEMPORARY):
                spot = (
                    server.env_at(what)
                    if what.isupper()
                    else server.of(what)
                    if what != "model"
                    else server.spot
                )
                yield Problem(spot, f"{size} in {folder} ({what})")
