"""Find containers in YAML: docker compose services and Kubernetes containers.

>>> from kimi_nb.check.reading import compose
>>> text = "services: {a: {image: vllm/vllm-openai, command: --model m}}"
>>> found, why = compose.containers(text)
>>> found[0].command
[('--model', 1), ('m', 1)]
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import yaml

from kimi_nb.catalog import fill_ins
from kimi_nb.core import data_files

_FILL = re.compile(r"\$\$|\$\{(\w{1,200}):?-([^{}]{1,2000})\}")
_BLOCK = ("|", ">")
_MOST_BASES = 16
_MOST_MERGED = 64
_NULL = "tag:yaml.org,2002:null"
_CONTROL = re.compile(r"\s*(?:\{\{[^{}]{0,400}\}\}\s*)+")
_BLANK = re.compile(r"\s*")
_Keys = dict[str, tuple[yaml.Node, yaml.Node]]


@dataclass
class Container:
    """One container: its image, the words that it runs, its variables, and what it gets.

    The line numbers of the words count from 1 in the text. ``passes`` are variables that are handed
    in by name, without a value. ``gpus`` are values as ``--gpus`` takes them, and ``memory`` is the
    limit as ``--memory`` takes it. ``certain`` is whether it starts with the others.
    """

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
    devices: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)
    env_files: list[str] = field(default_factory=list)
    memory: str = ""
    certain: bool = True


class NotYAML(Exception):
    """A text that is not YAML.

    ``said`` is what the parser reports, and ``line`` the line from 1, or 0 if it names none.
    """

    def __init__(self, said: str, line: int) -> None:
        super().__init__(said)
        self.said, self.line = said, line


def texts(text: str) -> list[tuple[str, int]]:
    """Return the scripts and documents that are values of a YAML text, each with its first line.

    Such as a script in a ConfigMap, or the guide of a recipe. The result is empty for no YAML.
    """
    if ("```" not in text and "#!" not in text) or data_files.too_deep(text):
        return []
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        roots = list(yaml.compose_all(_untemplated(text), Loader=loader))
    except yaml.YAMLError:
        return []
    out: list[tuple[str, int]] = []
    waiting: list[yaml.Node | None] = list(roots)
    seen: set[int] = set()
    for node in waiting:  # grows as it goes
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif _style(node) == "|" and ("```" in node.value or node.value.startswith("#!")):
            out.append((node.value, node.start_mark.line + 2))
    return out


def _quantity(text: str) -> str:
    """Return a quantity of Kubernetes as ``docker run --memory`` takes it, in bytes.

    Suffixes with an i are powers of 1024, those without powers of 1000; another text stays.
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([kKMGTP]?)(i?)", text)
    if match is None:
        return text
    power = "kMGTP".find(match[2].replace("K", "k")) + 1 if match[2] else 0
    return f"{int(float(match[1]) * (1024 if match[3] else 1000) ** power)}b"


class _TooMuch(Exception):
    """Raised when aliases unfold into far more than was written."""


def containers(text: str) -> tuple[list[Container], str]:
    """Return the containers of a YAML text, and why it was not read to its end ("" if it was).

    Raises NotYAML.
    """
    if data_files.too_deep(text):
        return [], "nested more than 64 levels deep"
    text = _untemplated(text)
    try:
        roots = list(yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotYAML(
            getattr(error, "problem", None) or "it cannot be parsed", mark.line + 1 if mark else 0
        ) from None
    reader = _Reader(text)
    out: list[Container] = []
    try:
        for root in roots:
            out.extend(reader.found(root))
    except _TooMuch:
        return out, "its aliases (&name, *name) unfold into far more than was written"
    return out, ""


class _Reader:
    """A reader of the containers in the nodes of one text.

    It counts what it reads, because aliases let a small text ask for the same thing over and over.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.left = 300_000 + 4 * len(text)

    def spend(self, steps: int = 1) -> None:
        """Count what is read, and raise _TooMuch beyond the limit."""
        self.left -= steps
        if self.left < 0:
            raise _TooMuch

    # Nodes ----------------------------------------------------------------------------------

    def items(self, node: yaml.Node | None) -> _Keys:
        """Return the keys of a mapping with their nodes and values.

        Its own keys win over those that ``<<`` merges.
        """
        out: _Keys = {}
        waiting: list[yaml.Node | None] = [node]
        seen: set[int] = set()
        while waiting and len(seen) < _MOST_MERGED:
            one = waiting.pop()
            if not isinstance(one, yaml.MappingNode) or id(one) in seen:
                continue
            seen.add(id(one))
            self.spend(4 + len(one.value))
            own: _Keys = {}
            merged: list[yaml.Node] = []
            for key, value in one.value:
                if not isinstance(key, yaml.ScalarNode):
                    continue
                if key.value == "<<":
                    merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                else:
                    own[key.value] = key, value
            for name, pair in own.items():
                out.setdefault(name, pair)
            self.spend(len(merged))
            waiting += reversed(merged)
        return out

    def each(self, node: yaml.Node | None) -> Sequence[yaml.Node]:
        """Return the items of a list; a lone value is a list of one."""
        lone = [] if node is None else [node]
        found = node.value if isinstance(node, yaml.SequenceNode) else lone
        self.spend(len(found))
        return found

    def table(self, node: yaml.Node | None) -> dict[str, str]:
        """Return the plain values of a mapping."""
        return {
            name: text
            for name, (_, value) in self.items(node).items()
            if (text := self.text(value)) is not None
        }

    def text(self, node: yaml.Node | None) -> str | None:
        """Return a plain value with defaults filled in, None for a list, a mapping or nothing."""
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            return None
        self.spend(1 + len(node.value))
        return fill_ins.masked(_filled(node.value))

    def below(self, node: yaml.Node | None, *path: str) -> yaml.Node | None:
        """Return the node under keys of keys, None if there is none."""
        for key in path:
            node = self.items(node).get(key, (None, None))[1]
        return node

    # Containers -----------------------------------------------------------------------------

    def found(self, root: yaml.Node | None) -> Iterator[Container]:
        """Yield the containers: mappings that have an image and something to run."""
        # (key, node, the key of what it stands in, its neighbours)
        waiting: list[tuple[str, yaml.Node | None, str, _Keys]] = [("", root, "", {})]
        seen: set[int] = set()
        for name, node, parent, beside in waiting:  # grows as it goes
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += [(name, item, parent, {}) for item in node.value]
            if not isinstance(node, yaml.MappingNode):
                continue
            chain = [self.items(node)]
            service = parent == "services"
            if service:
                chain += self.bases(chain[0], beside)
            if _is_container(chain, service):
                yield self.container(name, node, chain[::-1])
                continue
            waiting += [
                (key, value, name, chain[0])
                for key, (_, value) in chain[0].items()
                # What compose leaves aside: texts to take over from.
                if node is not root or not key.startswith("x-")
            ]

    def bases(self, own: _Keys, beside: _Keys) -> list[_Keys]:
        """Return what a service extends, the nearest first; other files are not read."""
        out: list[_Keys] = []
        seen: set[str] = set()
        while "extends" in own and len(out) < _MOST_BASES:
            value = own["extends"][1]
            told = self.table(value)
            name = self.text(value) or ("" if "file" in told else told.get("service", ""))
            if name in seen or name not in beside:
                break
            seen.add(name)
            own = self.items(beside[name][1])
            out.append(own)
        return out

    def container(self, name: str, node: yaml.Node, chain: list[_Keys]) -> Container:
        """Build a container from its keys, those that it extends first."""
        out = Container(name, node.start_mark.line + 1, "")
        kubernetes = name in ("containers", "initContainers") or any("args" in one for one in chain)
        for keys in chain:
            for word, (_, value) in keys.items():
                self.key(out, word, value, kubernetes)
        if kubernetes:
            # Inside a pod ports are published by a service, which is another document.
            out.ports = []
        return out

    def key(self, out: Container, word: str, value: yaml.Node, kubernetes: bool) -> None:
        """Read one key of a container."""
        if word == "image":
            out.image = self.text(value) or ""
        elif word in ("name", "container_name"):
            out.name = self.text(value) or out.name
        elif word == "entrypoint" or (word == "command" and kubernetes):
            out.entrypoint = self.words(value)
        elif word in ("command", "args"):
            out.command = self.words(value)
        elif word == "modelCommand" and self.text(value) == "vllmServe":  # llm-d's charts
            line = value.start_mark.line + 1
            out.entrypoint = [("vllm", line), ("serve", line)]
        elif word in ("environment", "env"):
            self.variables(value, out)
        elif word == "env_file":
            out.env_files += [
                text
                for item in self.each(value)
                if (text := self.text(item) or self.table(item).get("path"))
            ]
        elif word == "envFrom":
            out.env_files += [
                text
                for item in self.each(value)
                for _, inner in self.items(item).values()
                if (text := self.table(inner).get("name"))
            ]
        elif word == "ports":
            out.ports += [text for item in self.each(value) if (text := self.port(item))]
        elif word == "volumes":
            out.mounts += [
                text
                for item in self.each(value)
                if (text := self.text(item) or _mount(self.table(item)))
            ]
        elif word == "volumeMounts":
            out.mounts += [
                f"{told.get('name', 'volume')}:{told.get('mountPath', 'volume')}"
                for item in self.each(value)
                for told in [self.table(item)]
            ]
        elif word == "devices":
            out.devices += [
                text
                for item in self.each(value)
                if (text := self.text(item) or self.table(item).get("source"))
            ]
        elif word == "gpus":
            out.gpus += self.gpus(value)
        elif word == "deploy":
            out.gpus += self.gpus(self.below(value, "resources", "reservations", "devices"))
            out.memory = self.text(self.below(value, "resources", "limits", "memory")) or out.memory
        elif word == "mem_limit":
            out.memory = self.text(value) or ""
        elif word == "resources":
            out.memory = _quantity(self.text(self.below(value, "limits", "memory")) or "")
        elif word == "network_mode":
            out.host_network = self.text(value) == "host"
        elif word == "privileged":
            out.privileged = _true(self.text(value))
        elif word == "securityContext":
            out.privileged = _true(self.table(value).get("privileged"))
        elif word == "profiles":
            out.certain = False

    def port(self, node: yaml.Node) -> str:
        """Return a published port as ``docker run -p`` takes it."""
        told = self.table(node)
        parts = [told.get("host_ip"), told.get("published"), told.get("target")]
        return self.text(node) or ":".join(part for part in parts if part)

    def gpus(self, node: yaml.Node | None) -> list[str]:
        """Return the GPUs of a service as ``docker run --gpus`` takes them."""
        out = []
        for item in self.each(node):
            keys = self.items(item)
            told = self.table(item)
            kinds = (
                [self.text(one) for one in self.each(keys["capabilities"][1])]
                if "capabilities" in keys
                else ["gpu"]
            )
            numbers = (
                [self.text(one) or "" for one in self.each(keys["device_ids"][1])]
                if "device_ids" in keys
                else []
            )
            if text := self.text(item):
                out.append(text)
            elif numbers:
                out.append("device=" + ",".join(numbers))
            elif keys and "gpu" in kinds:
                out.append(told.get("count", "all"))
        return out

    def words(self, node: yaml.Node) -> list[tuple[str, int]]:
        """Return the words of a command with their lines."""
        if isinstance(node, yaml.SequenceNode):
            return [
                (text, item.start_mark.line + 1 + (_style(item) in _BLOCK))
                for item in self.each(node)
                if (text := self.text(item)) is not None
            ]
        text = self.text(node)
        if text is None:
            return []
        first = node.start_mark.line + 1
        found = _split(text)
        if _style(node) == "|":
            return [(word, first + 1 + breaks) for word, breaks in found]
        if node.end_mark.line > node.start_mark.line:
            # Its lines were joined: they are found in what was written, where that splits alike.
            written = _split(fill_ins.masked(_filled(self.written(node))))
            if len(written) == len(found):
                return [
                    (word, first + breaks)
                    for (word, _), (_, breaks) in zip(found, written, strict=True)
                ]
        return [(word, first + (_style(node) in _BLOCK)) for word, _ in found]

    def written(self, node: yaml.Node) -> str:
        """Return a plain value of several lines as it stands in the text, without its quotes."""
        start, end = node.start_mark, node.end_mark
        lines = self.lines[start.line : end.line + 1]
        self.spend(len(lines))
        quoted = _style(node) in ("'", '"')
        lines[-1] = lines[-1][: max(end.column - quoted, 0)]
        lines[0] = "" if _style(node) in _BLOCK else lines[0][start.column + quoted :]
        return "\n".join(lines)

    def variables(self, node: yaml.Node, out: Container) -> None:
        """Read variables from a mapping, from ``NAME=VALUE``, or from ``name:`` and ``value:``.

        A name alone takes its value from outside.
        """
        given: list[tuple[str | None, str | None, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            given = [
                (name, self.text(value), key) for name, (key, value) in self.items(node).items()
            ]
        else:
            for item in self.each(node):
                told = self.table(item)
                if (text := self.text(item)) is not None:
                    word, equals, rest = text.partition("=")
                    given.append((word, rest if equals else None, item))
                else:
                    given.append((told.get("name"), told.get("value"), item))
        for name, value, at in given:
            if name and value is not None:
                out.env[name] = value
                out.env_lines[name] = at.start_mark.line + 1
            elif name and name not in out.passes:
                out.passes.append(name)


def _is_container(chain: list[_Keys], service: bool) -> bool:
    """Return whether keys are those of a container that says what it runs."""
    keys = set().union(*chain)
    named = any(isinstance(one["image"][1], yaml.ScalarNode) for one in chain if "image" in one)
    return (named or (service and "build" in keys)) and bool(
        keys & {"command", "args", "entrypoint"}
    )


def _untemplated(text: str) -> str:
    """Return a Helm template as YAML, line for line: fill-ins are words, what controls is left out."""
    if "{{" not in text:
        return text
    lines = ["" if _CONTROL.fullmatch(line) else fill_ins.masked(line) for line in text.split("\n")]
    return "\n".join(lines)


def _split(text: str) -> list[tuple[str, int]]:
    """Split words as a shell does, each with the number of line breaks before it."""
    # A backslash at the end of a line joins lines; shlex would make a word of it.
    text = text.replace("\\\n", " \n")
    stream = io.StringIO(text)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    out: list[tuple[str, int]] = []
    breaks = at = 0
    try:
        while True:
            begin = _BLANK.match(text, at).end()  # type: ignore[union-attr]
            breaks += text.count("\n", at, begin)
            word = lexer.get_token()
            if word is None:
                return out
            out.append((word, breaks))
            at = max(begin, stream.tell())
            # The blank that ended the word was read with it.
            breaks += text.count("\n", begin, at)
    except ValueError:  # a quote that nothing closes
        return [
            (word, number) for number, line in enumerate(text.split("\n")) for word in line.split()
        ]


def _mount(told: dict[str, str]) -> str:
    """Return a long volume as ``docker run -v`` takes it, "" for one in memory."""
    if told.get("type") in ("tmpfs", "npipe", "cluster"):
        return ""
    parts = [told.get("source"), told.get("target"), "ro" if _true(told.get("read_only")) else ""]
    return ":".join(part for part in parts if part)


def _true(text: str | None) -> bool:
    return (text or "").lower() in ("true", "yes", "on")


def _filled(text: str) -> str:
    """Fill in the defaults of ``${NAME:-default}``, and turn ``$$`` into a dollar."""
    for _ in range(4):  # a default may hold another
        before, text = text, _FILL.sub(lambda match: match[2] or "$$", text)
        if text == before:
            break
    return text.replace("$$", "$")


def _style(node: yaml.Node) -> str | None:
    """Return how a scalar is written: | or > for a block, a quotation mark, None if it is plain."""
    return node.style if isinstance(node, yaml.ScalarNode) else None
