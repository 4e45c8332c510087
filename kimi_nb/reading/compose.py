"""Containers in YAML: docker compose services and Kubernetes containers.

    compose.containers("services: {a: {image: vllm/vllm-openai, command: --model m}}")
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from kimi_nb import params

_DEFAULT = re.compile(r"\$\{(\w+):?-([^{}]+)\}")


@dataclass
class Container:
    """One container: image, words that it runs, variables, what is handed in; line numbers of
    the words count from 1 in the text."""

    name: str
    line: int
    image: str
    entrypoint: list[tuple[str, int]] = field(default_factory=list)
    command: list[tuple[str, int]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    env_lines: dict[str, int] = field(default_factory=dict)
    ports: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    host_network: bool = False
    privileged: bool = False


def containers(text: str) -> tuple[list[Container], str]:
    """(the containers of a YAML text, why it could not be read or "")."""
    if params.too_deep(text):
        return [], "nested more than 64 levels deep"
    try:
        roots = list(yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        return [], f"not YAML{where}"
    out = []
    for root in roots:
        for name, node in _found(root):
            out.append(_container(name, node))
    return out, ""


def _found(root: yaml.Node | None) -> Iterator[tuple[str, yaml.MappingNode]]:
    """Mappings with an image and something to run, and the key they stand under."""
    waiting: list[tuple[str, yaml.Node | None]] = [("", root)]
    seen: set[int] = set()
    while waiting:
        name, node = waiting.pop(0)
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = {key.value: value for key, value in node.value
                    if isinstance(key, yaml.ScalarNode)}
            if "image" in keys and isinstance(keys["image"], yaml.ScalarNode) and (
                    keys.keys() & {"command", "args", "entrypoint"}):
                named = keys.get("name")
                yield (named.value if isinstance(named, yaml.ScalarNode) else name), node
                continue
            waiting += [(key.value, value) for key, value in node.value
                        if isinstance(key, yaml.ScalarNode)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(name, item) for item in node.value]


def _container(name: str, node: yaml.MappingNode) -> Container:
    out = Container(name, node.start_mark.line + 1, "")
    kubernetes = False
    for key, value in node.value:
        word = key.value
        if word == "image":
            out.image = _filled(value.value)
        elif word == "entrypoint":
            out.entrypoint = _words(value)
        elif word == "args":
            out.command += _words(value)
            kubernetes = True
        elif word == "command":
            out.command = _words(value) + out.command
        elif word in ("environment", "env"):
            _variables(value, out)
        elif word == "ports" and isinstance(value, yaml.SequenceNode):
            out.ports = [_filled(item.value) for item in value.value
                         if isinstance(item, yaml.ScalarNode)]
        elif word == "volumes" and isinstance(value, yaml.SequenceNode):
            out.mounts = [_filled(item.value) for item in value.value
                          if isinstance(item, yaml.ScalarNode)]
        elif word == "volumeMounts" and isinstance(value, yaml.SequenceNode):
            out.mounts = ["volume:volume" for _ in value.value]
        elif word == "network_mode" and isinstance(value, yaml.ScalarNode):
            out.host_network = value.value == "host"
        elif word == "privileged" and isinstance(value, yaml.ScalarNode):
            out.privileged = value.value.lower() == "true"
    if kubernetes:
        # Inside a pod ports are published by a service, which is another document.
        out.ports = []
    return out


def _words(node: yaml.Node) -> list[tuple[str, int]]:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        return [(_filled(item.value), item.start_mark.line + 1) for item in node.value
                if isinstance(item, yaml.ScalarNode)]
    if not isinstance(node, yaml.ScalarNode):
        return []
    text = _filled(node.value)
    try:
        return [(word, line) for word in shlex.split(text)]
    except ValueError:
        return [(word, line) for word in text.split()]


def _variables(node: yaml.Node, out: Container) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                out.env[key.value] = _filled(value.value)
                out.env_lines[key.value] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            if isinstance(item, yaml.ScalarNode) and "=" in item.value:
                name, _, text = item.value.partition("=")
                out.env[name] = _filled(text)
                out.env_lines[name] = item.start_mark.line + 1
            elif isinstance(item, yaml.MappingNode):
                keys = {key.value: value for key, value in item.value
                        if isinstance(key, yaml.ScalarNode)}
                named, value = keys.get("name"), keys.get("value")
                if isinstance(named, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode):
                    out.env[named.value] = _filled(value.value)
                    out.env_lines[named.value] = item.start_mark.line + 1


def _filled(text: str) -> str:
    """A text with the defaults of ``${NAME:-default}``; ``$$`` is a dollar."""
    return _DEFAULT.sub(lambda match: match[2], text).replace("$$", "$")
