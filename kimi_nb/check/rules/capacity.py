"""Rules on device and host memory, buffers and disks: what does not fit, with the arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.core import data_files
from kimi_nb.plan import memory

GIB = memory.GIB
# Within this share of what is needed the estimate cannot tell.
_MARGIN = 0.85


def fit_of(d: Deployment, server: EngineView) -> memory.Fit | None:
    """Return what an engine needs of one device, None if facts are missing."""
    shape = memory.Shape.of(server, d.ascend, defaults(d))
    if (
        shape is None
        or d.model is None
        or d.hardware is None
        or d.weights is None
        or any(name not in d.model.architecture for name in memory.NEEDED)
        or d.weights.precision not in memory.PRECISIONS
        or min(shape.tp, shape.dp) < 1
    ):
        return None
    return memory.fit(
        shape,
        d.model.architecture,
        d.weights.precision,
        d.hardware.devices.memory_gb,
        draft_parameters(d, server),
    )


def defaults(d: Deployment) -> dict[str, float]:
    """Return the engine's own values for flags that are not given, on this hardware."""
    out = {}
    spec = catalog.flag(d.engine, "gpu-memory-utilization")
    if spec and isinstance(spec.get("default"), float):
        out["gpu-memory-utilization"] = spec["default"]
    for entry in data_files.facts("catalog/versions")["defaults"]:
        if (
            d.hardware is not None
            and d.hardware.vendor in entry["vendors"]
            and d.hardware.devices.memory_gb >= entry["least_memory_gb"]
        ):
            out[entry["flag"]] = entry["value"]
    return out


def draft_parameters(d: Deployment, server: EngineView) -> int:
    """Return the number of parameters of the draft that an engine loads, 0 without one."""
    named = str(server.table("speculative-config").get("model", ""))
    for draft in (d.model.drafts if d.model else {}).values():
        if named and (
            named == draft.id
            or named.rstrip("/").rpartition("/")[2].lower()
            in (draft.directory.lower(), draft.id.rpartition("/")[2].lower())
        ):
            return (draft.parameters_million or 0) * 10**6
    return 0


@rule(
    "capacity/memory",
    ERROR,
    "Weights, activations and buffers fit the memory of a device.",
    "Raise tp or dp (with --enable-expert-parallel), or lower --max-num-batched-tokens.",
    "estimated from the model's architecture (kimi_nb/plan/memory.py)",
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
            f"({found.device / GIB:.0f} x {found.shape.utilization}); estimated",
            fix,
        )


@rule(
    "capacity/cache",
    ERROR,
    "The cache holds at least one request of the longest context.",
    "Lower --max-model-len, raise --gpu-memory-utilization or tp.",
    "vLLM: max_model_len is larger than the KV cache can hold; estimated by kimi_nb/plan/memory.py",
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
            yield Problem(
                server.of("max-model-len"),
                f"{found.headroom / GIB:.1f} GiB are left for the cache: {found.tokens} "
                f"tokens at {found.per_token} B, --max-model-len is {length}; estimated",
                "",
                WARNING if found.tokens > _MARGIN * length else "",
            )


@rule(
    "capacity/concurrency",
    WARNING,
    "The cache holds the requests that a scenario is for.",
    "Lower --max-model-len, or spread the model over more devices; further requests wait.",
    "estimated by kimi_nb/plan/memory.py",
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
        cached, admitted = found.tokens // length * ranks, found.shape.seqs * ranks
        if min(cached, admitted) < wanted:
            who = "the cache holds" if cached < wanted else "--max-num-seqs admits"
            yield Problem(
                server.of("max-model-len" if cached < wanted else "max-num-seqs"),
                f"{who} {min(cached, admitted)} requests of --max-model-len {length} at once, "
                f"the scenario is for {wanted}; estimated",
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


@rule(
    "capacity/hccl-buffer",
    ERROR,
    "HCCL_BUFFSIZE holds a full decode step.",
    "Raise HCCL_BUFFSIZE to the need, or lower the largest graph, max-num-seqs or the draft. The "
    "operator names its need (NEEDED_HCCL_BUFFSIZE) when it refuses.",
    "CANN ops-transformer 8.5.0 to 9.1.0, moe_distribute_dispatch_v2 (kimi_nb/plan/memory.py); "
    "vllm-ascend issues 2674, 4051, 5287",
    needs=("ascend", "model", "hardware"),
)
def buffer_holds_step(d: Deployment) -> Iterator[Problem]:
    """'HCCL_BUFFSIZE is too SMALL' stops the engine in its profile run, while it captures graphs,
    or at the first full batch."""
    for server, _ in d.profiles():
        shape = memory.Shape.of(server, True)
        text = server.env.get("HCCL_BUFFSIZE", "200")
        if (
            shape is None
            or not text.isdecimal()
            or server.role == "prefill"
            or not dispatches(d, server, shape)
        ):
            continue
        tokens, how = step_tokens(server, shape)
        need, working, severity, sure = buffer_need(d, server, shape, tokens)
        if need > int(text):
            said = (
                f"HCCL_BUFFSIZE is {text}"
                if "HCCL_BUFFSIZE" in server.env
                else "HCCL_BUFFSIZE is not set (200)"
            )
            yield Problem(
                server.env_at("HCCL_BUFFSIZE"),
                f"{said}, a full step needs {need} MB: {how}; {working}; {sure}",
                "",
                severity,
            )


def buffer_need(
    d: Deployment, server: EngineView, shape: memory.Shape, tokens: int
) -> tuple[int, str, str, str]:
    """Return the need in MiB, its arithmetic, the severity of a lack, and how sure the need is."""
    assert d.model is not None and d.hardware is not None
    arch = d.model.architecture
    hidden, experts, chosen = arch["hidden_size"], arch["experts"], arch["experts_per_token"]
    experts += shape.spare_experts
    if d.hardware.recipes_of == "a2":
        need, working = memory.buffer_need_a2(tokens, hidden, experts, chosen)
        return need, working, WARNING, "published (CANN's documentation), not seen in a log"
    if server.table("additional-config").get("enable_mc2_hierarchy_comm"):
        need, working = memory.buffer_need_hierarchy(tokens, hidden, experts, chosen)
        return need, working, WARNING, "derived from the operator's source, not seen in a log"
    local = -(-experts // shape.expert_ranks)
    need, working = memory.buffer_need_a3(tokens, hidden, shape.expert_ranks, local, chosen)
    sure = "derived from the operator's source, agrees with a public log and vllm-ascend's tests"
    return need, working, ERROR, sure


def dispatches(d: Deployment, server: EngineView, shape: memory.Shape) -> bool:
    """Return whether decode steps use the dispatch and combine operators (MC2).

    On Atlas A2 they need 16 ranks with 24 experts each at most. With fused MC2 the experts run in
    an operator that has a buffer need of its own, which is not judged here (vllm-ascend 0.18.0 to
    0.25.1, select_moe_comm_method).
    """
    assert d.model is not None and d.hardware is not None
    ranks = shape.expert_ranks
    fused = server.table("additional-config").get("enable_fused_mc2", 0)
    if not shape.expert_parallel or shape.tp < 1 or ranks < 2:
        return False
    if fused not in (0, False) or server.env.get("VLLM_ASCEND_ENABLE_FUSED_MC2", "0") != "0":
        return False
    if d.hardware.recipes_of == "a2":
        return ranks >= 16 and d.model.architecture["experts"] // ranks <= 24
    return True


def step_tokens(server: EngineView, shape: memory.Shape) -> tuple[int, str]:
    """Return the tokens of a decode step on one rank, and how they were computed.

    The step is the largest captured graph, or else every sequence with its draft up to 512 tokens
    (the default of vllm-ascend, which leaves out vLLM's factor 2); none is larger than
    max-num-batched-tokens. Larger steps do not use the operator. The tp ranks share the step
    (vllm-ascend 0.18.0 to 0.23.0, set_mc2_tokens_capacity).
    """
    sizes = graph_sizes(server, shape)
    if sizes:
        whole, what = max(sizes), f"largest graph {max(sizes)}"
    else:
        whole = min(shape.seqs * (server.draft + 1), 512, shape.batched_tokens)
        what = f"{shape.seqs} sequences x ({server.draft} + 1)"
        if whole < shape.seqs * (server.draft + 1):
            what += f", at most {whole}"
    return -(-whole // shape.tp), f"{what} / tp {shape.tp}"


def graph_sizes(server: EngineView, shape: memory.Shape) -> list[int]:
    """Return the sizes of graphs that an engine is told to capture; none if it is not told."""
    if server.flags.get("enforce-eager"):
        return []
    config = server.table("compilation-config")
    given = config.get("cudagraph_capture_sizes") or [config.get("max_cudagraph_capture_size")]
    if not isinstance(given, list) or not all(isinstance(size, int) for size in given):
        return []
    return [size for size in given if size <= shape.batched_tokens]


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
    "arithmetic: offloaded cache and 8 GiB for each rank's process",
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
            need = offload + 8 * (server.tp or 1)
            if mem < need:
                yield Problem(
                    one.of("mem"),
                    f"--mem={one.options['mem']}, the engine takes about "
                    f"{need:.0f} GiB of host memory: {offload:.0f} for offloaded cache, "
                    f"8 for each of {server.tp} ranks",
                )


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
        folders = [
            ("model", server.model),
            ("download-dir", server.text("download-dir") or ""),
            ("HF_HOME", server.env.get("HF_HOME", "")),
            ("HF_HUB_CACHE", server.env.get("HF_HUB_CACHE", "")),
        ]
        for what, folder in folders:
            if any(folder == base or folder.startswith(base + "/") for base in _TEMPORARY):
                spot = (
                    server.env_at(what)
                    if what.isupper()
                    else server.of(what)
                    if what != "model"
                    else server.spot
                )
                yield Problem(spot, f"{size} in {folder} ({what})")
