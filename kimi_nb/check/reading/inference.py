"""Infer what scripts do not state: engine and version, model, and devices of a node.

>>> from kimi_nb.check.reading import inference
>>> from kimi_nb.check.reading.files import Text
>>> text = Text("run.sh", "", "bash", "docker run quay.io/ascend/vllm-ascend:v0.18.0 m")
>>> inference.engine([text], "", "").engine.version
'0.18.0'
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kimi_nb import catalog
from kimi_nb.catalog import known_faults
from kimi_nb.check.reading.files import Text
from kimi_nb.check.view import container_start
from kimi_nb.check.view.deployment import Batch, Box, Fault
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.params import load, schema

_ASCEND = re.compile(
    r"vllm-ascend|ASCEND_|davinci\d|HCCL_|--quantization[ =]ascend|npu-smi|"
    r"VLLM_ASCEND"
)
_IMAGE = re.compile(
    r"(?<![\w./-])[\w./-]{0,200}\b(vllm-ascend|vllm-openai(?:-rocm)?)"
    r"(?:[:@][\w.${}|-]+)"
)
_PIP = re.compile(r"\b(vllm|vllm-ascend)==([0-9][\w.]*)")
# As releases, candidates and development builds are numbered: 0.10.1.1, 0.19.2rc1.dev48+g1a2b3c4.
_VERSION = re.compile(
    r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}(\.?(rc|a|b|post|dev)[0-9]{1,6})*(\+[\w.]{1,40})?", re.ASCII
)
_OTHERS = (
    "Versions between these, candidates (0.20.0rc1) and development versions (0.20.1.dev3+gabc) are "
    "judged by the nearest of them; without a version the newest is assumed, also for nightly."
)
# What the README.md of a bundle says of it. node.sh, the same in each, names programs of any vendor.
_BUNDLE = re.compile(r"- Engine: (vllm|vllm-ascend) ([0-9][\w.]*) \(vLLM [0-9][\w.]*\)")


@dataclass(frozen=True)
class Spoken:
    """The engine that scripts are written for, and what is odd about its version.

    ``known`` is whether something names a version that is listed, or lies between two listed ones;
    ``between`` holds the other of these, and ``outside`` is whether it lies before or after them all.
    ``stated`` is the version as it was named, where it is not listed.
    """

    engine: catalog.Engine
    known: bool
    faults: tuple[Fault, ...] = ()
    between: tuple[catalog.Engine, ...] = ()
    outside: bool = False
    stated: str = ""


def engine(texts: Sequence[Text], package: str, version: str) -> Spoken:
    """Infer the engine of some scripts.

    A given ``package`` and ``version`` win. Otherwise an image's tag, a pinned install or the README
    of a bundle names the version, and if nothing does, the newest listed one is assumed. Raises ParameterError if
    ``version`` does not exist.
    """
    if version:
        named = package or _package(texts)
        wanted = _public(version)
        major, minor = _minor(catalog.versions(named)[-1])
        # The minor release after the last listed one has candidates; those after it are slips.
        named_by_faults = wanted in known_faults.unlisted(named)
        if not named_by_faults and (
            not _VERSION.fullmatch(wanted) or _minor(wanted) > (major, minor + 1)
        ):
            raise ParameterError(
                choice(f"{named} version", wanted[:40], catalog.versions(named), _OTHERS)
            )
        return named_engine(named, wanted, Spot("--engine-version"))
    found: list[tuple[str, str, Spot]] = []
    branches: list[tuple[str, str]] = []
    for text in texts:
        for number, line in enumerate(text.text.split("\n"), start=1):
            if "vllm" not in line:
                continue
            spot = Spot(f"{text.name}:{number}", text.name, number)
            for match in _IMAGE.finditer(line):
                tagged = container_start.image_engine(match[0])
                if tagged is not None:
                    found.append((*tagged, spot))
                    branches.append((tagged[0], match[0].rpartition(":")[2]))
            for match in _PIP.finditer(line):
                pinned = _VERSION.match(match[2])  # "0.19.*" is any of 0.19
                if pinned:
                    found.append((match[1], pinned[0], spot))
            if stated := _BUNDLE.fullmatch(line):
                found.append((stated[1], stated[2], spot))
    # What a script names and is no version, such as 0.19.x, names none.
    found = [(name, its if _VERSION.fullmatch(its) else "", spot) for name, its, spot in found]
    package = package or (found[0][0] if found else _package(texts))
    versions = {its: spot for name, its, spot in reversed(found) if name == package and its}
    if not versions:
        tags = [tag for name, tag in branches if name == package]
        named_image = next((tag for tag in tags if known_faults.is_image(package, tag)), "")
        return Spoken(
            catalog.engine(package, catalog.versions(package)[-1]), False, stated=named_image
        )
    first = next(its for name, its, _ in found if name == package and its)
    spoken = named_engine(package, first, versions[first])
    if any(name == package and not its for name, its, _ in found):
        spoken = replace(spoken, known=False)  # another image of it is no release
    others = [its for its in versions if its != first]
    if others:
        spot = versions[others[0]]
        fault = Fault(
            "truth/several-versions",
            spot,
            f"{package} {first} and {', '.join(others)} "
            f"are named; all is checked as {spoken.engine}",
        )
        spoken = replace(spoken, faults=(*spoken.faults, fault))
    return spoken


def _package(texts: Sequence[Text]) -> str:
    return "vllm-ascend" if any(_ASCEND.search(text.text) for text in texts) else "vllm"


def from_images(boxes: Sequence[Box], package: str) -> Spoken | None:
    """Return the engine that images name once their variables are filled in, None if none does."""
    for box in boxes:
        tagged = container_start.image_engine(box.image)
        if tagged and _VERSION.fullmatch(tagged[1]) and package in ("", tagged[0]):
            return named_engine(*tagged, box.spot)
    return None


def named_engine(package: str, version: str, spot: Spot) -> Spoken:
    """Return the engine of a version that a script names, or of the nearest one that is listed."""
    text = _public(version)
    listed = catalog.versions(package)
    if text in listed:
        return Spoken(catalog.engine(package, text), True)
    near = nearest(package, text)
    older = [name for name in listed if catalog.earlier(name, text)]
    # Before the first listed version, and after the last, only one neighbour is known.
    other = older[-1] if older and near != older[-1] else ""
    engines = tuple(catalog.engine(package, name) for name in (near, other) if name)
    fault = Fault(
        "truth/unknown-version",
        spot,
        f"{package} {text} is not among the listed versions "
        f"({listed[0]} to {listed[-1]}); "
        f"checked as {near}" + (f" and {other}" if other else ""),
    )
    return Spoken(engines[0], bool(other), (fault,), engines[1:], outside=not other, stated=text)


def _public(version: str) -> str:
    """Return a version without its build: 0.19.1+cu130 and the tag v0.19.1-cu130 are 0.19.1.

    A development version keeps its commit.
    """
    text = version.strip().lower().removeprefix("v")
    released = re.match(r"([0-9.]+(?:rc[0-9]+|\.post[0-9]+)?)[+-]", text)
    return released[1] if released else text


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def nearest(package: str, version: str) -> str:
    """Return the first listed version that is not older than a given one, else the last."""
    for name in catalog.versions(package):
        if not catalog.earlier(name, version):
            return name
    return catalog.versions(package)[-1]


@functools.cache
def _models() -> dict[str, tuple[str, str]]:
    """Return (model, weights) by every name that a checkpoint may have, in lower case."""
    out: dict[str, tuple[str, str]] = {}
    for name in load.names("models"):
        for key, item in load.model(name).weights.items():
            for word in (item.id, item.id.rpartition("/")[2], item.directory):
                out.setdefault(word.lower(), (name, key))
    return out


def model(servers: Sequence[EngineView]) -> tuple[schema.Model | None, schema.Weights | None]:
    """Return the model that all servers serve, and its weights, if it is one of ours.

    Both are None otherwise.
    """
    found = set()
    for server in servers:
        word = server.model.rstrip("/").lower()
        found.add(_models().get(word) or _models().get(word.rpartition("/")[2]))
    if len(found) != 1 or None in found:
        return None, None
    name, weights = next(iter(found)) or ("", "")
    chosen = load.model(name)
    return chosen, chosen.weights[weights]


def devices(boxes: Sequence[Box], batches: Sequence[Batch]) -> int | None:
    """Infer the devices of a node from those that a container gets or a job asks for."""
    counts = set()
    for box in boxes:
        if box.devices and all("davinci" in name for name in box.devices):
            # Another container may have those below: the node has at least up to the last.
            counts.add(
                max(container_start.device_numbers(box.devices) or (len(box.devices) - 1,)) + 1
            )
    for batch in batches:
        text = batch.options.get("gpus-per-node") or ",".join(
            part
            for part in batch.options.get("gres", "").split(",")
            if re.match(r"(gres[:/])?(gpu|npu|dcu|ascend|davinci)", part)
        )
        # A kind without a number is one; two kinds (gpu:a100:4,gpu:h100:4) add up.
        found = [
            re.fullmatch(r"(?:[\w/]+:){0,3}?(\d{1,6})?(?:[a-z]\w*)?(?:\(.*\))?", part)
            for part in text.split(",")
        ]
        if text and all(found):
            counts.add(sum(int(part[1] or 1) for part in found if part))
    return max(counts) if counts else None
