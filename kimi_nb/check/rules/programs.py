"""Rules on the other commands of a deployment: hub tools, the MoE tuner, docker ps, sysctl."""

from __future__ import annotations

import difflib
import itertools
import math
import os.path
import re
from collections.abc import Iterator, Sequence

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.commands import word_at
from kimi_nb.check.view.deployment import Deployment, Program
from kimi_nb.core import data_files, numbers
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
    size = numbers.whole(told or "")
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


@rule(
    "programs/subcommand",
    ERROR,
    "A tool is given a command that it has.",
    "Spell the command as the tool does.",
    "kubectl 1.31, helm 3.16, docker 27: their --help",
)
def subcommand(d: Deployment) -> Iterator[Problem]:
    """'unknown command', and nothing is deployed."""
    tools = data_files.facts("catalog/versions")["subcommands"]
    for one in d.programs:
        words = _compose([word for word in one.argv if word != "sudo"])
        known = tools.get(os.path.basename(words[0])) if len(words) > 1 else None
        if known is None or not re.fullmatch(r"[a-z][a-z-]{2,}", words[1]) or words[1] in known:
            continue
        near = difflib.get_close_matches(words[1], known, n=1, cutoff=0.75)
        if words[0] == _COMPOSE and set(words[2:4]) & {"up", "down", "logs", "build", "pull"}:
            yield Problem(
                one.spot,
                f"{words[1]} stands where docker compose has its command",
                f"Write docker compose {words[2]} {words[1]}.",
            )
        elif near:
            yield Problem(
                one.spot,
                f"{words[0]} has no command {words[1]}",
                f"Did you mean {near[0]}?",
            )


@rule(
    "programs/option",
    WARNING,
    "An option stands with a command of its tool that takes it.",
    "Take it out, or use the command that has it.",
    "kubectl 1.31, helm 3.16, docker 27: their --help",
)
def option(d: Deployment) -> Iterator[Problem]:
    """'unknown flag', and nothing is deployed."""
    tools = data_files.facts("catalog/versions")["options_of"]
    for one in d.programs:
        words = _compose([word for word in one.argv if word != "sudo"])
        takes = tools.get(os.path.basename(words[0])) if len(words) > 1 else None
        # What stands behind an image or -- is another program's.
        if takes is None or not re.fullmatch(r"[a-z][a-z-]+", words[1]) or words[1] == "exec":
            continue
        for word in itertools.takewhile(lambda word: word != "--", words[2:]):
            name = word.partition("=")[0]
            if name in takes and words[1] not in takes[name]:
                yield Problem(one.spot, f"{words[0]} {words[1]} has no option {name}")


_TORCH_INDEX = "https://download.pytorch.org/"


@rule(
    "programs/pip-index",
    WARNING,
    "vLLM is installed from an index that has it.",
    "Write --extra-index-url, which adds an index to PyPI.",
    "download.pytorch.org holds PyTorch and what it needs; vLLM's wheels are on PyPI",
)
def pip_index(d: Deployment) -> Iterator[Problem]:
    """'No matching distribution found for vllm': --index-url takes the place of PyPI."""
    for one in d.programs:
        if "install" not in one.argv[:4] or not _installs(one.argv, "vllm"):
            continue
        index = _option(one.argv, "--index-url", "-i")
        if index and index.startswith(_TORCH_INDEX) and _option(one.argv, *_MORE) is None:
            yield Problem(one.spot, f"{index} has no vllm, and no other index is asked")


_MORE = ("--extra-index-url", "--find-links", "-f", "--index", "--default-index")


def _installs(words: Sequence[str], name: str) -> bool:
    return any(re.match(rf"{name}(?![\w./-])", word) for word in words[1:])


@rule(
    "programs/pip-pair",
    WARNING,
    "vllm and vllm-ascend are installed in versions that belong together.",
    "Install the vLLM that vllm-ascend's release notes name.",
    "release notes of vllm-ascend (kimi_nb/data/catalog/versions.yaml)",
)
def pip_pair(d: Deployment) -> Iterator[Problem]:
    """vllm-ascend patches the insides of one version of vLLM: with another it ends in ImportError."""
    named: dict[str, dict[str, Program]] = {}
    for one in d.programs:
        for word in one.argv if "install" in one.argv[:4] else ():
            match = re.fullmatch(r"(vllm(?:-ascend)?)(?:\[.*\])?==([0-9][\w.]*)", word)
            if match:
                named.setdefault(match[1], {})[match[2]] = one
    for version, one in named.get("vllm-ascend", {}).items():
        if version not in catalog.versions("vllm-ascend"):
            continue
        wanted = catalog.engine("vllm-ascend", version).vllm
        others = named.get("vllm", {})
        if others and wanted not in others:
            yield Problem(
                one.spot,
                f"vllm-ascend {version} belongs to vllm {wanted}; vllm {', '.join(others)} is "
                "installed",
            )


@rule(
    "programs/image-version",
    WARNING,
    "What a container installs before it serves leaves the engine of its image as it is.",
    "Take the image of that version.",
    "docker/Dockerfile of vLLM: kernels, CUDA and torch are built for the version in the tag",
)
def image_version(d: Deployment) -> Iterator[Problem]:
    """pip takes torch and the kernels of the image away for others, with another CUDA or ABI."""
    for box in d.boxes:
        image = re.search(r"(?:vllm-openai|vllm-ascend)[\w-]*:v?(\d+\.\d+\.\d+)", box.image)
        name = "vllm-ascend" if "vllm-ascend" in box.image else "vllm"
        wanted = re.search(
            rf"\bpip3? install [^;&|\n]*?(?<![\w-]){name}==(\d+\.\d+\.\d+)", " ".join(box.argv)
        )
        if image and wanted and image[1] != wanted[1]:
            yield Problem(
                box.spot, f"{name} {wanted[1]} is installed over the {image[1]} of {box.image}"
            )


@rule(
    "programs/dynamo-run",
    WARNING,
    "Dynamo's launcher is given an engine that it has.",
    "Start python -m dynamo.frontend, and python -m dynamo.vllm --model MODEL beside it.",
    "ai-dynamo/dynamo pull requests 1920 and 2332 (July and August 2025)",
)
def dynamo_run(d: Deployment) -> Iterator[Problem]:
    """The launcher starts no vLLM any more: the workers are programs of their own."""
    for one in d.programs:
        words = [re.split("[/]", word)[-1] for word in one.argv]
        starts = "dynamo-run" in words[:3] or words[:2] == ["dynamo", "run"]
        for word in one.argv if starts else ():
            if re.fullmatch(r"out=(vllm|sglang|trtllm)\d*(_\d+)?", word):
                yield Problem(one.spot, f"dynamo run has no {word} since August 2025")


_RELEASES = ("uninstall", "delete", "test", "status", "rollback")


@rule(
    "programs/helm-name",
    WARNING,
    "helm is given names that were made before: of a repository, and of a release.",
    "Use the name that helm repo add or helm install was given.",
    "helm 3.16: helm repo add, install, uninstall",
)
def helm_name(d: Deployment) -> Iterator[Problem]:
    """'repo ... not found', or 'release: not found': nothing is installed, or nothing goes away."""
    by_file: dict[str, list[tuple[Program, list[str]]]] = {}
    for one in d.programs:
        words = [word for word in one.argv if word != "sudo"]
        if words[:1] == ["helm"]:
            by_file.setdefault(one.spot.file, []).append((one, words))
    for calls in by_file.values():
        added = {words[3] for _, words in calls if words[1:3] == ["repo", "add"] and words[3:]}
        made = {name for _, words in calls if (name := _release(words))}
        for one, words in calls:
            source = _chart(words).partition("/")[0]
            # Another name may be a folder.
            near = difflib.get_close_matches(source, added, n=1, cutoff=0.6)
            if near and source not in added and not fill_ins.holds(source):
                yield Problem(
                    one.spot, f"helm takes a chart of {source}; added is {', '.join(sorted(added))}"
                )
            name = words[2] if words[1:2] and words[1] in _RELEASES and words[2:] else ""
            plain = re.fullmatch(r"[a-z0-9][a-z0-9-]*", name)
            if made and plain and name not in made and not any(map(fill_ins.holds, made)):
                yield Problem(
                    one.spot,
                    f"helm {words[1]} names {name}; installed is {', '.join(sorted(made))}",
                )
    yield from _published(d, by_file)


_Calls = dict[str, list[tuple[Program, list[str]]]]


def _published(d: Deployment, by_file: _Calls) -> Iterator[Problem]:
    """Yield charts that a known repository lacks, and services of another release of theirs."""
    facts = data_files.facts("check/manifests")
    for file, calls in by_file.items():
        charts = {
            words[3]: names
            for _, words in calls
            if words[1:3] == ["repo", "add"] and words[4:]
            for url, names in facts["charts"].items()
            if url in words[4]
        }
        of_them = [(one, words) for one, words in calls if _chart(words).split("/")[0] in charts]
        for one, words in of_them:
            source, _, chart = _chart(words).partition("/")
            if chart not in charts[source]:
                has = ", ".join(charts[source])
                yield Problem(one.spot, f"{source} has no chart {chart}", f"Its chart is {has}.")
        made = {_release(words) for _, words in of_them}
        asked = d.programs if made and not any(map(fill_ins.holds, made)) else ()
        for program in asked:
            for word in program.argv if program.spot.file == file else ():
                match = _SERVICE.match(word)
                end = next((one for one in facts["services"] if word.endswith(one)), "")
                if match and end and not match[1].startswith(tuple(f"{one}-" for one in made)):
                    yield Problem(
                        program.spot,
                        f"no service is named {match[1]}: installed is {', '.join(sorted(made))}",
                    )


_SERVICE = re.compile(r"(?:svc|service)/([a-z0-9-]+)$")


def _release(words: Sequence[str]) -> str:
    """Return the release that a call of helm installs, "" for other calls."""
    rest = [word for word in words[2:] if not word.startswith("-")]
    return rest[0] if words[1:2] and words[1] in ("install", "upgrade") and len(rest) > 1 else ""


def _chart(words: Sequence[str]) -> str:
    """Return the chart of a repository that a call of helm installs, "" for others."""
    rest = [word for word in words[2:] if not word.startswith("-")]
    chart = rest[1] if _release(words) else ""
    return chart if re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+", chart) and words[3:4] == [chart] else ""


_COMPOSE = "docker compose"
_COMPOSE_VALUES = ("-f", "--file", "-p", "--project-name", "--profile", "--env-file")


def _compose(words: list[str]) -> list[str]:
    """Return the words of docker compose as a program with its command, others as they are."""
    if words[:2] != ["docker", "compose"]:
        return words
    at = 2
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in _COMPOSE_VALUES else 1
    return [_COMPOSE, *words[at:]]


@rule(
    "programs/metric",
    WARNING,
    "A metric that is read has the name by which engines report it.",
    "Use the name that is given.",
    "the sources of vLLM at 0.6.4, 0.10.1 and 0.32.0",
    needs=("scripts",),
)
def metric(d: Deployment) -> Iterator[Problem]:
    """A dashboard or a scaler that asks for a metric which is gone sees no data, and no error."""
    gone = data_files.facts("catalog/versions")["metrics_gone"]
    for spot, name in d.metrics:
        if name in gone:
            use = f": {gone[name]} is" if gone[name] else ""
            yield Problem(spot, f"{name} is reported by vLLM 0.32.0 no longer{use}")
