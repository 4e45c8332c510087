"""Find names in a docker compose file that lead nowhere: services, networks and volumes.

>>> from kimi_nb.check.reading import compose, compose_names
>>> text = "services: {a: {image: i, depends_on: [b]}}"
>>> [one.message for one in compose_names.find(compose.read(text).roots, "compose.yaml", 1)]
['depends_on names b, which is no service of this file']
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import yaml

from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading.pods import below, fixed, items, keys
from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*(?=:/)")
_COMMANDS = ("command", "entrypoint")
_VARIABLE = re.compile(r"(?<!\$)(?:\$\$)*\$\{?([A-Za-z_]\w*)(?![\w:?+-])")
_MOST = 2000  # services of a file


def find(roots: Sequence[yaml.Node | None], file: str, line: int) -> list[Fault]:
    """Return a fault for each name that the file itself does not define.

    Another file that is merged with it may do so; one that includes others is left aside.
    """
    out = []
    for root in roots:
        top = keys(root)
        services = keys(top["services"][1]) if "services" in top else {}
        if not services or "include" in top or len(services) > _MOST:
            continue
        # Without an image it is a part that another file completes.
        if not all({"image", "build", "extends"} & set(keys(one)) for _, one in services.values()):
            continue
        known = {
            name: set(keys(top[name][1])) if name in top else set()
            for name in ("volumes", "networks")
        }
        for _, service in services.values():
            for said, node in _lost(service, set(services), known):
                at = line + node.start_mark.line
                spot = Spot(f"{file}:{at}", file, at)
                out.append(Fault("manifests/compose-name", spot, said, WARNING))
        for said, node in _expanded(root):
            at = line + node.start_mark.line
            spot = Spot(f"{file}:{at}", file, at)
            out.append(Fault("containers/compose-variable", spot, said, WARNING))
    return out


def _expanded(root: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """Yield variables of a service's own that compose fills in before the service starts.

    One that the file asks for elsewhere too is one of the caller's.
    """
    services = keys(below(root, "services")).values()
    asked = {
        name
        for _, service in services
        for key, (_, value) in keys(service).items()
        if key not in _COMMANDS
        for text in _texts(value)
        for name in _VARIABLE.findall(text)
    }
    for _, service in services:
        own = _own(below(service, "environment"))
        for key in _COMMANDS:
            node = below(service, key)
            used = dict.fromkeys(name for text in _texts(node) for name in _VARIABLE.findall(text))
            for name in used:
                if node is not None and name in own and name not in asked:
                    yield (
                        f"${name} is set in the container only, and compose fills it in before",
                        node,
                    )


def _texts(node: yaml.Node | None) -> list[str]:
    """Return the plain values of a value."""
    waiting: list[yaml.Node] = [] if node is None else [node]
    for one in waiting[:_MOST]:
        waiting += [value for _, value in keys(one).values()] or items(one)
    return [one.value for one in waiting if isinstance(one, yaml.ScalarNode)]


def _own(node: yaml.Node | None) -> set[str]:
    """Return the variables to which a service gives a value."""
    listed = [one.value for one in items(node) if isinstance(one, yaml.ScalarNode)]
    named = {
        name
        for name, (_, value) in keys(node).items()
        if isinstance(value, yaml.ScalarNode) and value.value
    }
    return named | {text.partition("=")[0] for text in listed if text.partition("=")[2]}


def _lost(
    service: yaml.Node, services: set[str], known: dict[str, set[str]]
) -> Iterator[tuple[str, yaml.Node]]:
    for name, node in _names(below(service, "depends_on")):
        if name not in services and fixed(name):
            yield f"depends_on names {name}, which is no service of this file", node
    for name, node in _names(below(service, "networks")):
        if name not in known["networks"] and name != "default" and fixed(name):
            yield f"networks names {name}, which this file does not define", node
    for node in items(below(service, "volumes")):
        match = _NAMED.match(node.value) if isinstance(node, yaml.ScalarNode) else None
        if match and match[0] not in known["volumes"]:
            yield f"the volume {match[0]} is not defined in this file", node


def _names(node: yaml.Node | None) -> list[tuple[str, yaml.Node]]:
    """Return the names of a list or of a mapping, with their nodes."""
    listed: list[tuple[str, yaml.Node]] = [
        (one.value, one) for one in items(node) if isinstance(one, yaml.ScalarNode)
    ]
    return listed or [(name, key) for name, (key, _) in keys(node).items()]
