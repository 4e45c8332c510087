"""Find what is wrong with the pools and endpoint pickers of an inference gateway (llm-d).

>>> from kimi_nb.check.reading import compose, gateways
>>> text = '''
... kind: EndpointPickerConfig
... plugins: [{type: queue-scorer}]
... schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorrer}]}]
... '''
>>> [fault.message for fault in gateways.find(compose.read(text).roots, "a.yaml", 1)]
['no plugin is named queue-scorrer: queue-scorer']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import yaml

from kimi_nb.check.reading import pods
from kimi_nb.check.reading.pods import below, fixed, items, keys, plain
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_DEFAULT = "default-plugins.yaml"  # what the chart brings with it


def find(roots: Sequence[yaml.Node | None], file: str, line: int) -> list[Fault]:
    """Return the faults of the documents of a YAML text that begins in a file at ``line``."""
    objects = [one for root in roots for one in pods.objects(root)]
    made = [pod for kind, root in objects for pod in pods.of(kind, root)]
    told: list[tuple[yaml.Node, str]] = []
    for one in pods.mappings(roots):  # objects of other kinds hold one too
        if plain(one, "kind") == "EndpointPickerConfig":
            told += _references(one)
    for kind, root in objects:
        if kind == "InferencePool":
            told += _pool(root, made)
    for values in roots:
        told += _plugin_files(below(values, "inferenceExtension"))
    return [_fault(node, message, file, line) for node, message in told]


def _fault(node: yaml.Node, message: str, file: str, line: int) -> Fault:
    at = line + node.start_mark.line
    return Fault("manifests/gateway", Spot(f"{file}:{at}", file, at), message)


def _references(root: yaml.Node) -> Iterator[tuple[yaml.Node, str]]:
    """Compare the plugins that profiles name with those that are declared.

    A plugin without a name has that of its type.
    """
    names = [plain(one, "name") or plain(one, "type") for one in items(below(root, "plugins"))]
    if not all(map(fixed, names)):
        return
    for profile in items(below(root, "schedulingProfiles")):
        for one in items(below(profile, "plugins")):
            said = plain(one, "pluginRef")
            if said and fixed(said) and said not in names:
                there = ", ".join(names) or "there is none"
                yield keys(one)["pluginRef"][1], f"no plugin is named {said}: {there}"


def _plugin_files(node: yaml.Node | None) -> Iterator[tuple[yaml.Node, str]]:
    """Compare the file that a chart's values name with those that they hold."""
    said, held = plain(node, "pluginsConfigFile"), keys(below(node, "pluginsCustomConfig"))
    if said and held and said not in (*held, _DEFAULT) and fixed("".join((said, *held))):
        message = f"pluginsConfigFile is {said}, pluginsCustomConfig holds {', '.join(held)}"
        yield keys(node)["pluginsConfigFile"][1], message


def _pool(root: yaml.Node, made: Sequence[pods.Pod]) -> Iterator[tuple[yaml.Node, str]]:
    """Compare what a pool selects, and its ports, with the pods of the same file."""
    spec = below(root, "spec")
    selector = below(spec, "selector", "matchLabels") or below(spec, "selector")
    wanted = pods.texts(selector)
    said = [text for pair in wanted.items() for text in pair]
    said += [text for pod in made for pair in pod.labels.items() for text in pair]
    if selector is None or not wanted or not all(map(fixed, said)):
        return
    chosen = [pod for pod in made if wanted.items() <= pod.labels.items()]
    # The pod beside a pool may be its endpoint picker.
    if not chosen and len(made) == 1 and any(one.port for one in made[0].containers):
        for key, value in wanted.items():
            other = made[0].labels.get(key, value)
            if other != value:
                yield selector, f"the pool selects {key}: {value}, the pod has {key}: {other}"
    numbers = {one.port for pod in chosen for one in pod.containers}
    numbers |= {plain(port, "containerPort") for pod in chosen for port in _ports(pod)}
    there = sorted(numbers - {""})
    asked = [below(one, "number") for one in items(below(spec, "targetPorts"))]
    for port in (*asked, below(spec, "targetPortNumber")):
        if not isinstance(port, yaml.ScalarNode) or not there:
            continue
        if port.value not in there and fixed("".join((port.value, *there))):
            message = f"the pool asks at {port.value}, its pods listen at {', '.join(there)}"
            yield port, message


def _ports(pod: pods.Pod) -> list[yaml.Node]:
    return [port for one in pod.containers for port in one.ports]
