"""Rules on the other commands of a deployment: hub tools, the MoE tuner, docker ps, sysctl."""

from __future__ import annotations

import math
import os.path
import re
from collections.abc import Iterator, Sequence

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.commands import word_at
from kimi_nb.check.view.deployment import Deployment, Program
from kimi_nb.params import schema

_TUNED = "VLLM_TUNED_CONFIG_FOLDER"
_TUNER_SIZES = ("--tp-size", "-tp", "--tensor-parallel-size")
TUNER_TYPES = ("auto", "fp8_w8a8", "int8_w8a16", "int4_w4a16")


def _option(words: Sequence[str], *names: str) -> str | None:
    for index, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name in names:
            return text if equals else words[index + 1] if index + 1 < len(words) else ""
    return None


def _calls(words: Sequence[str], name: str) -> bool:
    return any(os.path.basename(word) == name for word in words[:4])


@rule(
    "programs/hub-tool",
    WARNING,
    "Weights are fetched with a tool that exists.",
    "Write hf download REPOSITORY --local-dir FOLDER.",
    "huggingface_hub 2.x: huggingface-cli is gone, hf is its name",
)
def hub_tool(d: Deployment) -> Iterator[Problem]:
    """'command not found' in a job of four hours, or a warning and no file."""
    for one in d.programs:
        if _calls(one.argv, "huggingface-cli"):
            yield Problem(one.spot, "huggingface-cli is gone from huggingface_hub 2.x")
        if _option(one.argv, "--local-dir-use-symlinks") is not None:
            yield Problem(
                one.spot,
                "--local-dir-use-symlinks is gone: a local folder holds files now",
                "Take it out.",
            )


@rule(
    "programs/moe-tuner",
    ERROR,
    "The MoE tuner is called as it is, and tunes the shape that the server looks up.",
    "Run benchmarks/kernels/benchmark_moe.py of the source at the engine's version, with one of "
    f"{', '.join(TUNER_TYPES)}.",
    "the tuner's source at 0.11.2 to 0.32.0; the wheel's list of files",
)
def moe_tuner(d: Deployment) -> Iterator[Problem]:
    """The job ends at its first line: the script is not in the wheel, or the type is no choice;
    or it takes an hour and writes a table whose name, the shape, no server ever looks for."""
    for one in d.programs:
        if not any(word.endswith("benchmark_moe.py") for word in one.argv[:3]):
            continue
        kind = _option(one.argv, "--dtype")
        if kind is not None and kind not in TUNER_TYPES and not fill_ins.holds(kind):
            yield Problem(
                one.spot,
                f"--dtype {kind} is no choice of benchmark_moe.py: {', '.join(TUNER_TYPES)}",
            )
        script = next(word for word in one.argv if word.endswith("benchmark_moe.py"))
        if script.startswith("benchmarks/"):
            yield Problem(
                one.spot,
                f"{script} is not in the pip wheel",
                "Fetch the source of the same version and name the script in it.",
                WARNING,
            )
        if d.model is not None:
            yield from _tuned_shape(one, d.model, _tuned_servers(d))


def _tuned_shape(
    one: Program, model: schema.Model, servers: Sequence[tuple[int, bool]]
) -> Iterator[Problem]:
    """Yield where the tuner's shape is not that of the model and of the servers."""
    arch, nested = model.architecture, model.language_config
    if nested and _option(one.argv, "--model-prefix") is None:
        yield Problem(
            one.spot,
            f"without --model-prefix {nested} it tunes for {arch['intermediate_size']} instead of "
            f"{arch['moe_intermediate_size']}: it does not know the architecture of {model.title}, "
            "and takes the size of the dense layers",
            f"Add --model-prefix {nested}.",
        )
    if not servers:
        return
    ranks, parallel = servers[0]
    tuned = bool({"--enable-expert-parallel", "-enable-ep"} & set(one.argv))
    told = _option(one.argv, *_TUNER_SIZES)
    size = int(told) if told and told.isdecimal() else None
    experts = arch["experts"]
    if parallel and not tuned:
        yield Problem(
            one.spot,
            f"tunes {experts} experts a device, the server runs with "
            f"expert parallelism: {experts} / {ranks} = {experts // ranks}",
            "Add --enable-expert-parallel to the tuner.",
            WARNING,
        )
    elif tuned and not parallel:
        yield Problem(
            one.spot,
            f"tunes {experts // (size or ranks)} experts a device, the server runs without expert "
            f"parallelism: {experts}",
            "Take --enable-expert-parallel away from the tuner.",
            WARNING,
        )
    elif size is not None and size != ranks:
        yield Problem(
            one.spot,
            f"tunes for {size} devices, the server spreads its experts over {ranks}",
            f"Write --tp-size {ranks}: tensor parallel size x data parallel size.",
            WARNING,
        )


def _tuned_servers(d: Deployment) -> list[tuple[int, bool]]:
    """Return (devices of the experts, expert parallelism) of each server that reads the table.

    Where none names the folder of it, all servers count.
    """
    found = [
        (
            _TUNED in server.env,
            (server.tp or 1) * (server.dp or 1),
            bool(server.flags.get("enable-expert-parallel")),
        )
        for server in d.servers
    ]
    reads = [(ranks, parallel) for named, ranks, parallel in found if named]
    # A plan has both serving jobs among its programs, and only one of them as its engines.
    for one in d.programs:
        if one.argv[:2] == ("vllm", "serve") and _TUNED in one.env:
            sizes = (_option(one.argv, f"--{name}-parallel-size") for name in ("tensor", "data"))
            ranks = math.prod(int(size or 1) for size in sizes)
            reads.append((ranks, "--enable-expert-parallel" in one.argv))
    return reads or [(ranks, parallel) for _, ranks, parallel in found]


@rule(
    "programs/vllm-command",
    ERROR,
    "vllm is told what to do.",
    "Write vllm serve MODEL.",
    "vLLM's command line: serve, bench, chat, complete, run-batch, collect-env, launch",
)
def vllm_command(d: Deployment) -> Iterator[Problem]:
    """'invalid choice', with a list of what it can do; nothing starts."""
    for one in d.programs:
        at = word_at(one.argv, "vllm")
        word = one.argv[at] if at is not None and at < len(one.argv) else ""
        if (
            at == 1
            and not fill_ins.holds(word)
            and (re.fullmatch(r"[\w.-]+/[\w./-]+", word) or word.startswith(("--model", "/")))
        ):
            yield Problem(
                one.spot, f"vllm {word[:60]}: no command, such as serve, stands before it"
            )


@rule(
    "programs/container-name",
    WARNING,
    "The status command looks for the container's name.",
    "Use one name in both.",
    "docker ps --filter name=",
)
def container_name(d: Deployment) -> Iterator[Problem]:
    """An empty list looks like a container that died."""
    names = {box.name for box in d.boxes if box.name}
    if not names:
        return
    for one in d.programs:
        if not _calls(one.argv, "docker") or "ps" not in one.argv[:3]:
            continue
        for word in one.argv:
            match = re.fullmatch(r"(?:--filter=)?name=([\w.-]+)", word)
            if match and not any(match[1] in name for name in names):
                yield Problem(
                    one.spot,
                    f"docker ps looks for {match[1]}, the container is called "
                    f"{', '.join(sorted(names))}",
                )


@rule(
    "programs/host-setting",
    NOTE,
    "A host setting is written, not only read.",
    "Write sysctl -w NAME=VALUE.",
    "sysctl: without -w older versions only read",
)
def sysctl_writes(d: Deployment) -> Iterator[Problem]:
    """Some versions of sysctl take NAME=VALUE without -w, others print an error: the setting then
    is not made."""
    for one in d.programs:
        if (
            _calls(one.argv, "sysctl")
            and "--write" not in one.argv
            and not any(re.fullmatch(r"-[a-z]*w[a-z]*", word) for word in one.argv)
            and any("=" in word for word in one.argv[1:])
        ):
            yield Problem(one.spot, f"{' '.join(one.argv)[:80]} lacks -w")
