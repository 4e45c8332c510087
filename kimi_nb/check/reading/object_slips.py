"""Find slips in objects of any kind, whose own keys nobody has listed here.

>>> from kimi_nb.check.reading import compose, object_slips
>>> text = '''
... apiVersion: example.org/v1
... kind: Model
... spec: {replicase: 2, resources: {limits: {nvidia.com.gpu: 1}}}
... '''
>>> [fault.message for fault in object_slips.find(compose.read(text).roots, "a.yaml", 1)]
['nvidia.com.gpu: the name of a device is VENDOR/NAME', 'replicase is nearly replicas']

Kinds with controllers of their own (models, graphs of services, serving runtimes) hold parts of pods,
so a key is named that is one letter from one of a pod or a workload.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

import yaml

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.reading import pods
from kimi_nb.check.reading.pods import below, fixed, keys, plain
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files

_SHORTEST = 7  # of a key that is compared: shorter ones are near too many words
_DOTTED = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:com|ai|io)\.[A-Za-z][\w-]*")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_FREELY = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}  # path segments
_STANDARD = re.compile(r"cpu|memory|ephemeral-storage|hugepages-\w+")
# What is below them has names of its own.
_FREE = {"data", "stringData", "binaryData", "annotations", "labels", "env", "parameters", "config"}

_Told = tuple[str, yaml.Node, str, str]


def find(
    roots: Sequence[yaml.Node | None], file: str, line: int, template: bool = False
) -> list[Fault]:
    """Return the faults of the documents of a YAML text that begins in a file at ``line``.

    ``template`` marks a Helm template, of which branches may be left out.
    """
    told: list[_Told] = []
    for kind, node in _objects(roots):
        known = kind == "Pod" or kind in data_files.facts("check/manifests")["shapes"]
        severity = ERROR if known and not template else WARNING
        told += [] if template or kind in _FREELY else _named(node)
        for one in _mappings(node):
            told += _devices(one, severity)
            told += [] if template else _empty(one, severity)
            told += [] if known else _lost(one)  # told as keys of another place
            if kind and not known and plain(node, "apiVersion"):
                told += _near(one)
    return [
        Fault(rule, Spot(f"{file}:{at}", file, at), message, severity)
        for rule, node, message, severity in told
        for at in [line + node.start_mark.line]
    ]


def _objects(roots: Sequence[yaml.Node | None]) -> Iterator[tuple[str, yaml.Node]]:
    """Yield each object with its kind, and what has none with ""."""
    for root in roots:
        found = list(pods.objects(root))
        yield from found
        if root is not None and not found:
            yield "", root


def _mappings(root: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Yield each mapping of an object once, but none below keys that are free."""
    waiting: list[yaml.Node] = [root]
    seen: set[int] = set()
    for node in waiting:  # grows as it goes
        if id(node) in seen or len(seen) > pods.MOST:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting += [value for key, (_, value) in keys(node).items() if key not in _FREE]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _named(root: yaml.Node) -> Iterator[_Told]:
    """Yield the name of an object of any kind that the API server refuses."""
    value = below(root, "metadata", "name")
    name = value.value if isinstance(value, yaml.ScalarNode) and plain(root, "apiVersion") else ""
    # Words in capitals alone, or what nobody types, are filled in later.
    typed = re.fullmatch(r"[\w.-]*[a-z][\w.-]*", name) and not re.search("[A-Z]_[A-Z]", name)
    if value is not None and typed and not _NAME.fullmatch(name):
        message = f"{name[:80]} cannot name an object: a to z, 0 to 9, - and . alone"
        yield "manifests/name", value, message, ERROR


def _devices(node: yaml.MappingNode, severity: str) -> Iterator[_Told]:
    """Yield names of devices whose slash is a dot, or that a kubelet does not know."""
    for side in ("limits", "requests"):
        for key, (at, _) in keys(below(node, "resources", side)).items():
            if "/" in key or not fixed(key) or _STANDARD.fullmatch(key):
                continue
            if _DOTTED.fullmatch(key):
                yield (
                    "manifests/key",
                    at,
                    f"{key[:60]}: the name of a device is VENDOR/NAME",
                    severity,
                )


def _empty(node: yaml.MappingNode, severity: str) -> Iterator[_Told]:
    """Yield pods without a container."""
    value = below(node, "containers")
    if isinstance(value, yaml.SequenceNode) and not value.value:
        yield "manifests/type", value, "containers is empty: a pod has at least one", severity


def _lost(node: yaml.MappingNode) -> Iterator[_Told]:
    """Yield keys without a value, where what belongs below them stands beside them."""
    there = keys(node)
    for home, inner in data_files.facts("check/manifests")["homes"].items():
        value = below(node, home)
        if not isinstance(value, yaml.ScalarNode) or value.value not in ("", "null", "~"):
            continue
        lost = [key for key in inner if key in there]
        if lost:
            message = f"{home} is empty, and {', '.join(lost)} beside it: indent them below it"
            yield "manifests/key", there[home][0], message, WARNING


def _near(node: yaml.MappingNode) -> Iterator[_Told]:
    """Yield keys that are one letter from a key of a pod or a workload."""
    there = keys(node)
    for key, (at, _) in there.items():
        if len(key) < _SHORTEST or key in _known() or not re.fullmatch("[A-Za-z]+", key):
            continue
        near = next((one for one in sorted(_known()) if _one_letter(key, one)), "")
        if near and near not in there:
            yield "manifests/key", at, f"{key[:60]} is nearly {near}", WARNING


@functools.cache
def _known() -> frozenset[str]:
    """Return the keys of pods and workloads."""
    shapes = data_files.facts("check/manifests")["shapes"].values()
    return frozenset(key for one in shapes for key in (*one["plain"], *one["inner"]))


def _one_letter(said: str, known: str) -> bool:
    """Return whether one letter is too many, missing or another, or two have changed places.

    Singular and plural are words of their own.

    >>> _one_letter("replicase", "replicas"), _one_letter("volumeMount", "volumeMounts")
    (True, False)
    """
    if len(known) < _SHORTEST or said in (f"{known}s", known.removesuffix("s")):
        return False
    one, other = said, known
    while one and one[:1] == other[:1]:
        one, other = one[1:], other[1:]
    swapped = one[:2] == other[:2][::-1] and one[2:] == other[2:]
    return said != known and (
        swapped or one[1:] == other or one == other[1:] or one[1:] == other[1:]
    )
