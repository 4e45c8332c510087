"""Rules on the words that install and build what serves: pip, uv, cmake, chmod, paths in vLLM's source."""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Iterator, Sequence

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.rules.registry import Problem, of_reading, rule
from kimi_nb.check.view.deployment import Deployment, Program
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files

_PIP = ("pip", "pip3")
_VALUED = {
    "-e", "--editable", "-r", "--requirement", "--requirements", "-c", "--constraint", "-i",
    "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target",
}  # fmt: skip


def _words(one: Program) -> list[str]:
    return [word for word in one.argv if word != "sudo"]


def _installed(words: Sequence[str]) -> Sequence[str]:
    """Return what a call of pip or uv is told to install, with its options; nothing for others."""
    if not {*_PIP, "uv"} & {os.path.basename(word) for word in words[:4]}:
        return ()
    return words[words.index("install") + 1 :] if "install" in words[:5] else ()


@rule(
    "programs/pip-value",
    WARNING,
    "An option of pip that takes a value has it right behind it.",
    "Put the folder or the file behind the option, and other options elsewhere.",
    "pip install --help: -e, -r, -c and the indexes take the next word, whatever it is",
)
def pip_value(d: Deployment) -> Iterator[Problem]:
    """'-v is not a valid editable requirement', or 'a value is required': nothing is installed."""
    for one in d.programs:
        for option, after in itertools.pairwise([*_installed(_words(one)), ""]):
            if option in _VALUED and re.fullmatch(r"-{1,2}[A-Za-z][\w-]*(=.*)?", after):
                yield Problem(one.spot, f"{option} takes {after[:40]} for its value")


rule(
    "programs/pip-beside-uv",
    WARNING,
    "What is installed beside uv is installed by uv.",
    "Write uv pip install, or make the environment with uv venv --seed.",
    "uv 0.9: uv venv makes an environment without pip",
    needs=("scripts",),
)(
    of_reading(
        "programs/pip-beside-uv",
        "The pip that is found is that of another Python: the package lands where no engine looks, or "
        "'command not found'.",
        __name__,
    )
)


_SWITCH = re.compile(
    r"-(?![DU]?\*)[A-CE-Z][A-Z0-9]*(_[A-Z0-9]+)+=|[A-Z][A-Z0-9]*(_[A-Z0-9]+)+=(ON|OFF)$"
)


@rule(
    "programs/cmake-define",
    WARNING,
    "A variable of a build is given to cmake as -DNAME=VALUE.",
    "Write -D before the name, and one equals sign.",
    "cmake --help: -D sets a variable, -U removes those of a pattern",
)
def cmake_define(d: Deployment) -> Iterator[Problem]:
    """The build goes on without the feature that was asked for, and says nothing."""
    for one in d.programs:
        words = _words(one)
        if "cmake" not in map(os.path.basename, words[:2]) or "--build" in words:
            continue
        for word in words[1:]:
            if _SWITCH.match(word):
                yield Problem(one.spot, f"{word[:60]} sets no variable of the build")
            elif re.match(r"-D\w+==", word):
                yield Problem(one.spot, f"the value in {word[:60]} begins with an equals sign")


_MODE = re.compile(r"[0-7]{1,5}|[ugoa]*([-+=][rwxXstugo]*)+(,[ugoa]*([-+=][rwxXstugo]*)+)*")


@rule(
    "programs/file-mode",
    WARNING,
    "chmod is given a mode that exists.",
    "Write chmod +x FILE.",
    "coreutils: file modes are numbers, or letters with +, - or =",
)
def file_mode(d: Deployment) -> Iterator[Problem]:
    """'invalid mode', and the file that is run next is not executable."""
    for one in d.programs:
        words = _words(one)
        if os.path.basename(words[0] if words else "") != "chmod":
            continue
        rest = [word for word in words[1:] if not re.fullmatch(r"-[cfvR]+|--.*", word)]
        if len(rest) > 1 and not _MODE.fullmatch(rest[0]) and not fill_ins.holds(rest[0]):
            yield Problem(one.spot, f"{rest[0][:40]} is no mode of a file")


@rule(
    "programs/requirements-file",
    WARNING,
    "A file of requirements is read where vLLM's source has it.",
    "Write requirements/NAME.txt.",
    "vLLM pull request 12547 (March 2025): requirements-NAME.txt became requirements/NAME.txt",
)
def requirements_file(d: Deployment) -> Iterator[Problem]:
    """'Could not open requirements file', or sed finds no such file: nothing is built."""
    names = data_files.facts("catalog/versions")["requirements"]
    for one in d.programs:
        for word in one.argv[1:]:
            match = re.fullmatch(r"(?:\./)?(?:vllm/)?requirements-([\w-]+)\.txt", word)
            if match and match[1] in names and _in_vllm(d, one) and _since(d, one.spot, "0.8.0"):
                yield Problem(
                    one.spot,
                    f"vLLM's source has no {word[:60]} since 0.8.0",
                    f"Write requirements/{match[1]}.txt.",
                )


def _in_vllm(d: Deployment, one: Program) -> bool:
    """Return whether a file names vLLM: else what it reads may be its own."""
    return any(
        "vllm" in word.lower()
        for other in d.programs
        if other.spot.file == one.spot.file
        for word in other.argv
    )


def _known(d: Deployment) -> str:
    """Return the listed version of vLLM that is named, "" if none is."""
    return d.engine.known if d.engine_known else ""


def _since(d: Deployment, spot: Spot, version: str) -> bool:
    """Return whether the source that a file speaks of is of this version or of a newer one.

    A file says it by the branch that it clones, which is the newest by default, before all others.
    """
    calls = [
        one.argv for one in d.programs if one.spot.file == spot.file and one.argv[:1] == ("git",)
    ]
    clones = [argv for argv in calls if any(re.search(r"/vllm(\.git)?$", word) for word in argv)]
    picks = [
        after
        for argv in calls
        for before, after in itertools.pairwise(argv)
        if before in ("-b", "--branch", "checkout", "switch", "reset")
    ]
    told = picks[-1].removeprefix("v") if picks else "" if clones else d.engine_stated or _known(d)
    if re.match(r"\d", told):
        return not catalog.earlier(told, version)
    return not picks or told in ("main", "master")


@rule(
    "programs/torch-backend",
    WARNING,
    "PyTorch is the build that the requirements of a CPU ask for.",
    "Write --torch-backend cpu.",
    "vLLM pull request 24073; uv: auto takes the build of the GPU that it sees",
)
def torch_backend(d: Deployment) -> Iterator[Problem]:
    """Beside a GPU, auto brings torchvision and torchaudio for CUDA: the build ends in an import."""
    for one in d.programs:
        words = _installed(_words(one))
        cpu = any(re.search(r"requirements/cpu(-build)?\.txt$", word) for word in words)
        for before, word in itertools.pairwise(["", *words]):
            name, _, value = word.partition("=")
            given = (
                value if name == "--torch-backend" else word if before == "--torch-backend" else ""
            )
            if cpu and given and given != "cpu" and not fill_ins.holds(given):
                yield Problem(one.spot, f"--torch-backend {given} with the requirements of a CPU")


@rule(
    "programs/source-path",
    WARNING,
    "A script of vLLM's source is called where it lies.",
    "Write the path that is named.",
    "examples/ and benchmarks/ of vLLM's source in May 2026 (kimi_nb/data/catalog/source_files.yaml)",
)
def source_path(d: Deployment) -> Iterator[Problem]:
    """'No such file or directory': the examples were put into other folders."""
    folders = data_files.facts("catalog/source_files")["scripts"]
    homes = {name: folder for folder, names in folders.items() for name in names}
    for spot, argv in d.commands():
        for word in argv[:4]:
            match = re.fullmatch(
                r"(?:\S*?/?vllm/|\./)?((?:examples|benchmarks)/\S*?)/?([\w.-]+\.(?:py|sh))", word
            )
            home = homes.get(match[2]) if match else None
            if match and home and match[1].rstrip("/") != home and _since(d, spot, "0.21.0"):
                yield Problem(
                    spot,
                    f"vLLM's source has no {match[1].rstrip('/')}/{match[2]}: it is in {home}",
                    f"Write {home}/{match[2]}.",
                )
