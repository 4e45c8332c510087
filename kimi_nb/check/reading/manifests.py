"""Find what is wrong with Kubernetes objects as they are written: keys, types, names that must meet.

>>> from kimi_nb.check.reading import compose, manifests
>>> text = '''
... kind: Pod
... spec:
...   containers: [{image: vllm/vllm-openai, command: vllm serve m}]
... '''
>>> [(fault.rule, fault.spot.line) for fault in manifests.find(compose.read(text).roots, "a", 1)]
[('manifests/type', 4)]
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import yaml

from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.reading import pods
from kimi_nb.check.reading.pods import below, fixed, items, keys, plain
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files, numbers

_TYPES = {"int": "a number", "float": "a number", "bool": "true or false"}
_LABEL = re.compile("[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_HTTP = re.compile("80|8[0-9]{3}")
_HOMES = ("container", "pod", "Deployment", "Service", "probe", "http-get")


def find(
    roots: Sequence[yaml.Node | None], file: str, line: int, template: bool = False
) -> list[Fault]:
    """Return the faults of the documents of a YAML text that begins in a file at ``line``.

    ``template`` marks a Helm template, of which branches may be left out.
    """
    seen = _Seen(file, line, template)
    if not template:
        seen.doubled(roots)
    objects = [one for root in roots for one in pods.objects(root)]
    for kind, root in objects:
        seen.object(kind, root)
        seen.nameless(root)
    made = [pod for kind, root in objects for pod in pods.of(kind, root)]
    for pod in made:
        seen.selector(pod)
        seen.volumes(pod)
        for one in pod.containers:
            seen.names(one)
            seen.ports(one)
            seen.devices(one, pod)
    for kind, root in objects:
        if kind == "Service":
            seen.service(root, made)
    for one in pods.loose(roots):  # such as those of a values file
        seen.devices(one, None)
    return seen.faults


class _Seen:
    """The faults that were seen in one text."""

    def __init__(self, file: str, line: int, template: bool) -> None:
        self.file, self.line, self.template = file, line, template
        self.faults: list[Fault] = []
        facts = data_files.facts("check/manifests")
        self.shapes, self.extended, self.whole = facts["shapes"], facts["extended"], facts["whole"]

    def fault(self, rule: str, node: yaml.Node, message: str, severity: str = "") -> None:
        """Keep a fault; in a template nothing is sure."""
        line = self.line + node.start_mark.line
        severity = WARNING if self.template and severity == ERROR else severity
        spot = Spot(f"{self.file}:{line}", self.file, line)
        self.faults.append(Fault(f"manifests/{rule}", spot, message, severity))

    # One mapping ----------------------------------------------------------------------------

    def doubled(self, roots: Sequence[yaml.Node | None]) -> None:
        """Find keys that a mapping has twice."""
        for node in pods.mappings(roots):
            first: dict[str, yaml.Node] = {}
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    continue
                one = first.setdefault(key.value, key)
                if one is not key:
                    above = one.start_mark.line + self.line
                    self.fault("key-twice", key, f"{key.value[:60]} stands in line {above} too")

    def object(self, kind: str, root: yaml.Node) -> None:
        """Judge the keys of an object whose shape is known."""
        if kind != "Pod" and kind not in self.shapes:
            return
        self.known(root, "object")
        for name, shape in (("metadata", "metadata"), ("spec", "pod" if kind == "Pod" else kind)):
            node = below(root, name)
            if node is not None:
                self.shape(node, shape)

    def nameless(self, root: yaml.Node) -> None:
        """Find metadata of which the keys stand beside it, whatever the kind of the object is."""
        node, there = below(root, "metadata"), keys(root)
        if not isinstance(node, yaml.ScalarNode) or node.value not in ("", "null", "~"):
            return
        lost = [key for key in ("name", "namespace", "labels", "annotations") if key in there]
        if lost:
            message = f"metadata is empty, and {', '.join(lost)} beside it: indent them below it"
            self.fault("key", node, message, ERROR)

    def shape(self, node: yaml.Node, name: str) -> None:
        """Judge the keys of a mapping, of those in a list, and what is below them."""
        waiting = [(node, name)]
        for one, kind in waiting:  # grows as it goes
            if len(waiting) > pods.MOST:
                return
            if kind in ("texts", "words", "text"):
                self.typed(one, kind)
            elif isinstance(one, yaml.SequenceNode):
                waiting += [(item, kind) for item in one.value]
            elif kind == "variable" and not {"name", "value"} & set(keys(one)):
                if isinstance(one, yaml.MappingNode) and one.value:
                    self.fault("type", one, "env: a list of name: and value: is expected")
            elif isinstance(one, yaml.MappingNode):
                self.known(one, kind)
                inner = self.shapes[kind]["inner"]
                waiting += [
                    (value, inner[key]) for key, (_, value) in keys(one).items() if key in inner
                ]

    def known(self, node: yaml.Node, kind: str) -> None:
        """Judge whether a mapping has each of its keys."""
        there = self._keys(kind)
        for key, (at, _) in keys(node).items():
            if key in there or key == "<<" or not fixed(key):
                continue
            near = difflib.get_close_matches(key, there, n=1, cutoff=0.75)
            home = next((name for name in _HOMES if key in self._keys(name)), "")
            hint = f"; {near[0]} is" if near else f"; it belongs to: {home}" if home else ""
            self.fault("key", at, f"{key[:60]} is no key of this place ({kind}){hint}")

    def _keys(self, kind: str) -> list[str]:
        return [*self.shapes[kind]["plain"], *self.shapes[kind]["inner"]]

    def typed(self, node: yaml.Node, kind: str) -> None:
        """Judge values that must be texts."""
        values = {"texts": pods.texts_of, "words": pods.items_of, "text": pods.value_of}[kind](node)
        lone = kind == "words" and isinstance(node, yaml.ScalarNode)
        if lone and node.value and fixed(node.value[:1]):
            self.fault("type", node, "a list is expected, found a text")
        for name, one in values:
            said = _TYPES.get(one.tag.rpartition(":")[2])
            if not isinstance(one, yaml.ScalarNode):
                self.fault("type", one, f"{name[:60]}: a text is expected")
            elif said:
                message = f"{name[:60]}: {one.value[:40]} is {said}, a text is expected"
                self.fault("type", one, message)

    # What must meet -------------------------------------------------------------------------

    def selector(self, pod: pods.Pod) -> None:
        """Compare what a workload selects with the labels of its pods."""
        for key, value in pod.selects.items():
            has = pod.labels.get(key, "")
            if has != value and fixed(f"{key}{value}{has}") and pod.selector is not None:
                said = f"{key}: {has}" if has else f"no {key}"
                message = f"it selects {key}: {value}, its pods have {said}"
                self.fault("selector", pod.selector, message, ERROR)

    def volumes(self, pod: pods.Pod) -> None:
        """Compare the names of volumes and of mounts."""
        mounts = [
            mount for one in pod.containers for mount in items(below(one.node, "volumeMounts"))
        ]
        mounted = {plain(mount, "name"): mount for mount in mounts}
        if not pod.containers or not all(fixed(name) for name in (*mounted, *pod.volumes)):
            return
        if self.template and mounted.keys() != pod.volumes.keys():
            return  # a branch of it may add the others
        for name, node in mounted.items():
            if name and name not in pod.volumes:
                there = ", ".join(sorted(pod.volumes)) or "there is none"
                message = f"no volume of the pod is named {name}: {there}"
                self.fault("volume", node, message, ERROR)
        for name, volume in pod.volumes.items():
            if name in mounted or volume is None or pod.devices:
                continue
            if name and not name.startswith("gke-"):  # GKE's sidecars mount theirs
                self.fault("volume", volume, f"the volume {name} is mounted nowhere")

    def names(self, one: pods.Container) -> None:
        """Judge the names of a container and of its ports."""
        for node, longest, what in (
            (one.node, 63, "a container"),
            *((p, 15, "a port") for p in one.ports),
        ):
            name = plain(node, "name")
            if name and fixed(name) and not (_LABEL.fullmatch(name) and len(name) <= longest):
                message = f"{name[:80]} cannot name {what}: a to z, 0 to 9 and -, at most {longest} of them"
                self.fault("name", keys(node)["name"][1], message, ERROR)

    def ports(self, one: pods.Container) -> None:
        """Compare the ports of probes and of the container with that of its engine."""
        names = [plain(port, "name") for port in one.ports]
        numbers = [plain(port, "containerPort") for port in one.ports]
        for name in ("livenessProbe", "readinessProbe", "startupProbe"):
            for how in ("httpGet", "tcpSocket"):
                port = below(one.node, name, how, "port")
                said = port.value if isinstance(port, yaml.ScalarNode) else ""
                if port is None or not said or not fixed("".join((said, *names))):
                    continue
                if not said.isdecimal():
                    if said not in names:
                        self.fault("probe", port, f"{name}: no port is named {said}")
                elif one.port and said != one.port:
                    message = f"{name} asks at {said}, the engine listens at {one.port}"
                    self.fault("probe", port, message)
        # Other ports than of HTTP are those of what else it runs.
        if one.port and numbers and one.port not in numbers and all(map(_HTTP.fullmatch, numbers)):
            message = f"containerPort is {', '.join(numbers)}, the engine listens at {one.port}"
            self.fault("container-port", one.ports[0], message)

    def devices(self, one: pods.Container, pod: pods.Pod | None) -> None:
        """Compare the devices of a container with the ranks of its engine."""
        for name in self.extended:
            both = [
                node
                for side in ("limits", "requests")
                if (node := below(one.node, "resources", side, name)) is not None
            ]
            counts = [str(node.value) for node in both]
            count = numbers.whole(counts[0]) if counts else None
            if count is None or not all(map(str.isdecimal, counts)):
                continue
            if len(set(counts)) > 1:
                message = f"{name}: limits {counts[0]}, requests {counts[1]}; they must be equal"
                self.fault("devices", both[1], message, ERROR)
            elif pod is not None and pod.size:
                self.group(one, pod.size, both[0], name, count)
            elif one.ranks not in (None, count) and not one.spread and name in self.whole:
                message = f"{name} is {counts[0]}, the engine has {one.ranks} ranks"
                self.fault("devices", both[0], message)

    def group(self, one: pods.Container, said: str, node: yaml.Node, name: str, count: int) -> None:
        """Compare the devices of a LeaderWorkerSet with the ranks of its engine."""
        size = numbers.whole(said)
        if not size:
            return
        if one.nodes and one.nodes != size:
            self.fault("group", node, f"--nnodes is {one.nodes}, the group has {size} pods")
        elif (one.ranks or 1) > 1 and one.whole and one.ranks not in (count * size, count):
            message = f"{one.ranks} ranks on {size} pods with {count} {name} each"
            self.fault("group", node, message)

    def service(self, root: yaml.Node, made: Sequence[pods.Pod]) -> None:
        """Compare a service with the pods that it selects."""
        selector = below(root, "spec", "selector")
        wanted = pods.texts(selector)
        said = [text for pair in wanted.items() for text in pair]
        said += [text for pod in made for pair in pod.labels.items() for text in pair]
        if not wanted or selector is None or not all(map(fixed, said)):
            return
        chosen = [pod for pod in made if wanted.items() <= pod.labels.items()]
        if not chosen and len(made) == 1:
            for key, value in wanted.items():
                other = made[0].labels.get(key, value)
                if other != value:
                    message = f"it selects {key}: {value}, the pod has {key}: {other}"
                    self.fault("selector", selector, message)
        for port in items(below(root, "spec", "ports")):
            asked = below(port, "targetPort") or below(port, "port")
            if chosen and isinstance(asked, yaml.ScalarNode):
                self.target(asked, chosen)

    def target(self, node: yaml.ScalarNode, chosen: Sequence[pods.Pod]) -> None:
        """Compare the port at which a service asks with those of its pods."""
        inside = [one for pod in chosen for one in pod.containers]
        ports = [port for one in inside for port in one.ports]
        names = [plain(port, "name") for port in ports]
        numbers = {plain(port, "containerPort") for port in ports} | {one.port for one in inside}
        if not all(map(fixed, (node.value, *names, *numbers))):
            return
        there = ", ".join(sorted(numbers - {""}))
        if not node.value.isdecimal():
            if node.value not in names:
                self.fault("target-port", node, f"no port of the pod is named {node.value}")
        elif there and node.value not in numbers:
            self.fault("target-port", node, f"the pod listens at {there}, not at {node.value}")
