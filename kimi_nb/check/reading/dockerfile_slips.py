r"""Find what is wrong in a Dockerfile: variables that nothing sets, and uv without an environment.

>>> from kimi_nb.check.reading import dockerfile_slips
>>> text = "FROM a\nARG MODEL_REVISION\nENV MODEL_REVISION=$REVISION"
>>> [(fault.rule, fault.spot.line) for fault in dockerfile_slips.find(text, "Dockerfile", 1)]
[('containers/dockerfile-variable', 3)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb.check.reading import dockerfiles
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_CUDA_IMAGE = re.compile(r"(?:docker\.io/)?nvidia/cuda:(\d+\.\d+)")
_CUDA_FOLDER = re.compile(r"/usr/local/cuda-(\d+\.\d+)(?![\d.])")
_USED = re.compile(r"(?<!\\)\$\{?([A-Z][A-Z0-9_]*)\}?(?![:\w])")
# Images in which uv finds no environment, as far as their Dockerfiles say.
_PLAIN = re.compile(r"(docker\.io/)?(vllm/vllm-openai|python|ubuntu|debian|nvidia/cuda)(:|@|$)")
_UV = re.compile(r"\buv pip (?:install|sync|uninstall)\b(?P<words>[^&;|]*)")
_PLACED = re.compile(r"--(system|python|target|prefix)\b|-p ")
_ENVIRONMENT = re.compile(
    r"UV_SYSTEM_PYTHON|VIRTUAL_ENV|UV_PROJECT_ENV|uv venv|bin/activate|CONDA_PREFIX"
)


def find(text: str, file: str, first: int) -> list[Fault]:
    """Return the faults of a Dockerfile that begins in a file at line ``first``."""
    return [
        Fault(rule, Spot(f"{file}:{line + first - 1}", file, line + first - 1), message)
        for rule, line, message in (*_unset(text), *_homeless(text), *_other_cuda(text))
    ]


def _unset(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield variables that are set nowhere, given to one that ends in their name."""
    declared: set[str] = set()
    for name, rest, line in dockerfiles.instructions(text):
        if name == "ENV":
            for match in _USED.finditer(rest):
                near = [one for one in sorted(declared) if one.endswith(f"_{match[1]}")]
                if match[1] not in declared and near and f"{near[0]}=${match[1]}" in _bare(rest):
                    yield (
                        "containers/dockerfile-variable",
                        _line_of(text, line, match[0]),
                        f"{match[0]} is set nowhere; {near[0]} is",
                    )
        if name in ("ARG", "ENV"):
            declared.update(re.findall(r"(?:^|\s)([A-Za-z_]\w*)(?==|\s|$)", rest))


def _bare(text: str) -> str:
    return re.sub(r"[{}\"']", "", text)


def _line_of(text: str, line: int, part: str) -> int:
    """Return the first line from ``line`` on that holds a part of an instruction."""
    for number, one in enumerate(text.split("\n")[line - 1 :], start=line):
        if part in one:
            return number
    return line


def _homeless(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield calls of uv pip in an image that has no virtual environment."""
    if "uv pip" not in text or _ENVIRONMENT.search(text):
        return
    image = ""
    for name, rest, line in dockerfiles.instructions(text):
        if name == "FROM":
            image = next((word for word in rest.split() if not word.startswith("--")), "")
        elif name == "RUN" and _PLAIN.match(image):
            for match in _UV.finditer(rest):
                if not _PLACED.search(match["words"]):
                    yield (
                        "containers/uv-system",
                        line,
                        f"uv finds no virtual environment in {image[:60]}",
                    )
                    break


def _other_cuda(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield folders of a CUDA that is not the image's, where nothing installs another."""
    version = ""
    for name, rest, line in dockerfiles.instructions(text):
        if name == "FROM":
            match = _CUDA_IMAGE.match(next(iter(rest.split()), ""))
            version = match[1] if match else ""
        for match in _CUDA_FOLDER.finditer(rest) if version else ():
            if match[1] != version and f"-{match[1].replace('.', '-')}" not in text:
                yield (
                    "containers/cuda-folder",
                    _line_of(text, line, match[0]),
                    f"{match[0]} is not there: the image has CUDA {version}",
                )
                break
