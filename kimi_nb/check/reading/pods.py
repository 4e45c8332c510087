"""Find the pods in YAML nodes, and what the engines in their containers say.

>>> import yaml
>>> from kimi_nb.check.reading import pods
>>> node = yaml.compose('{image: vllm/vllm-openai, args: ["--port", "9000", "-tp", "8"]}')
>>> one = pods.container(node)
>>> one.port, one.ranks
('9000', 8)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import yaml

from kimi_nb.catalog import fill_ins
from kimi_nb.core import data_files

MOST = 20_000  # nodes of a text
_LARGEST = 20_000  # characters of a command
_ENGINE = re.compile(r"vllm[ ,'\"]+serve\b|vllm\.entrypoints\.(?:openai\.)?api_server")
_SPREAD = re.compile(r"\bray\b|data[-_]parallel|-dp\b|nnodes|headless|nodes|--omni", re.IGNORECASE)
_MULTIPLIES = re.compile(r"data[-_]parallel|-dp\b")
_SIZES = (
    re.compile(r"(?:--tensor[-_]parallel[-_]size|(?<!\S)-tp)[ =]+(\S+)"),
    re.compile(r"(?:--pipeline[-_]parallel[-_]size|(?<!\S)-pp)[ =]+(\S+)"),
)
_PORT = re.compile(r"(?<!\S)--port[ =]+[\"']?([^\s\"']+)")
_NODES = re.compile(r"(?<!\S)--nnodes[ =]+([0-9]{1,4})(?!\S)")


@dataclass(frozen=True)
class Container:
    """A container of a pod.

    ``port`` is where its engine listens ("" if that is not known), ``ranks`` how many devices that
    takes (tensor x pipeline parallel size, None if it is not known), ``spread`` whether these may be
    on several nodes, ``whole`` whether nothing else makes more of them, and ``nodes`` its --nnodes
    (0 if it is not given).
    """

    node: yaml.Node
    ports: Sequence[yaml.Node]
    port: str
    ranks: int | None
    spread: bool
    whole: bool
    nodes: int


@dataclass(frozen=True)
class Pod:
    """A pod as it is written: its labels, its volumes by name, and what its workload selects.

    ``size`` is that of the group that it belongs to, "" if there is none. ``devices`` is whether a
    volume may be a device of a container.
    """

    labels: dict[str, str]
    selects: dict[str, str]
    selector: yaml.Node | None
    volumes: dict[str, yaml.Node | None]
    containers: tuple[Container, ...]
    size: str
    devices: bool


def fixed(text: str) -> bool:
    """Return whether a text is what will stand there: no variable and no fill-in."""
    return not fill_ins.holds(text) and not re.search(r"[$<>{}]", text)


def keys(node: yaml.Node | None) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Return the keys of a mapping, each with its node and its value; of two alike the last."""
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {
        key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)
    }


def items(node: yaml.Node | None) -> Sequence[yaml.Node]:
    """Return the items of a list."""
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def below(node: yaml.Node | None, *path: str) -> yaml.Node | None:
    """Return the node under keys of keys, None if there is none."""
    for key in path:
        node = keys(node).get(key, (None, None))[1]
    return node


def plain(node: yaml.Node | None, key: str) -> str:
    """Return the text under a key, "" if there is none."""
    value = below(node, key)
    return value.value if isinstance(value, yaml.ScalarNode) else ""


def texts(node: yaml.Node | None) -> dict[str, str]:
    """Return the plain values of a mapping."""
    return {
        key: value.value
        for key, (_, value) in keys(node).items()
        if isinstance(value, yaml.ScalarNode)
    }


def mappings(roots: Sequence[yaml.Node | None]) -> Iterator[yaml.MappingNode]:
    """Yield each mapping once, but not of more nodes than a person writes."""
    waiting = list(roots)
    seen: set[int] = set()
    for node in waiting:  # grows as it goes
        if node is None or id(node) in seen or len(seen) > MOST:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def objects(root: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """Yield an object of Kubernetes, or those in its list, each with its kind."""
    kind = plain(root, "kind")
    if kind == "List":
        for one in items(below(root, "items")):
            yield plain(one, "kind"), one
    elif kind and root is not None:
        yield kind, root


def of(kind: str, root: yaml.Node) -> Iterator[Pod]:
    """Yield the pods that an object of Kubernetes makes, but of none that merges other keys."""
    if any("<<" in keys(one) for one in mappings([root])):
        return
    spec = below(root, "spec")
    if kind == "Pod":
        yield _pod(root)
    elif kind in data_files.facts("check/manifests")["workloads"]:
        claims = [below(one, "metadata") for one in items(below(spec, "volumeClaimTemplates"))]
        yield _pod(
            below(spec, "template"),
            below(spec, "selector", "matchLabels"),
            [plain(one, "name") for one in claims],
        )
    elif kind == "LeaderWorkerSet":
        group = below(spec, "leaderWorkerTemplate")
        for name in ("leaderTemplate", "workerTemplate"):
            if below(group, name) is not None:
                yield _pod(below(group, name), size=plain(group, "size") or "1")


def _pod(
    template: yaml.Node | None,
    selector: yaml.Node | None = None,
    claims: Sequence[str] = (),
    size: str = "",
) -> Pod:
    spec = below(template, "spec")
    volumes: dict[str, yaml.Node | None] = dict.fromkeys(claims)
    volumes |= {plain(one, "name"): one for one in items(below(spec, "volumes"))}
    made = [one for name in ("initContainers", "containers") for one in items(below(spec, name))]
    return Pod(
        texts(below(template, "metadata", "labels")),
        texts(selector),
        selector,
        volumes,
        tuple(container(one) for one in made),
        size,
        any("volumeDevices" in keys(one) for one in made),
    )


def loose(roots: Sequence[yaml.Node | None]) -> Iterator[Container]:
    """Yield the containers that stand in no object of Kubernetes, such as in a values file."""
    for node in mappings([root for root in roots if not plain(root, "kind")]):
        there = keys(node)
        if "resources" in there and {"args", "command"} & set(there):
            yield container(node)


def container(node: yaml.Node) -> Container:
    """Read a container."""
    values = [below(node, name) for name in ("command", "args")]
    words = [
        one.value
        for value in values
        for one in (items(value) if isinstance(value, yaml.SequenceNode) else [value])
        if isinstance(one, yaml.ScalarNode)
    ]
    text = re.sub(r"\\\n", " ", " ".join(words)[:_LARGEST])
    serves = len(_ENGINE.findall(text))
    engine = serves == 1 or (not serves and "vllm-openai" in plain(node, "image") and "--" in text)
    engine = engine and not re.search(r"(?<!\S)--config\b", text)
    sizes = [_only(pattern, text, "1") for pattern in _SIZES]
    port = _only(_PORT, text, "8000")
    nodes = _NODES.search(text)
    return Container(
        node,
        items(below(node, "ports")),
        port if engine and port.isdecimal() else "",
        math.prod(map(int, sizes)) if engine and all(map(_count, sizes)) else None,
        bool(_SPREAD.search(text)),
        not _MULTIPLIES.search(text),
        int(nodes[1]) if nodes else 0,
    )


def _only(pattern: re.Pattern[str], text: str, default: str) -> str:
    """Return what a pattern finds if it is one text, "" if there are several."""
    found = {value.strip("\"'") for value in pattern.findall(text)}
    return "".join(found) if len(found) == 1 else "" if found else default


def _count(text: str) -> bool:
    return text.isdecimal() and len(text) < 5


def texts_of(node: yaml.Node) -> list[tuple[str, yaml.Node]]:
    """Return the values of a mapping with their keys."""
    return [(key, value) for key, (_, value) in keys(node).items()]


def items_of(node: yaml.Node) -> list[tuple[str, yaml.Node]]:
    """Return the items of a list, each with what it is called."""
    return [("an item", one) for one in items(node)]


def value_of(node: yaml.Node) -> list[tuple[str, yaml.Node]]:
    """Return a value with what it is called."""
    return [("value", node)]
