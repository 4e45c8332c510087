"""Find containers in YAML (docker compose, Kubernetes), and lists of arguments in values files.

>>> from kimi_nb.check.reading import compose
>>> text = "services: {a: {image: vllm/vllm-openai, command: --model m}}"
>>> compose.read(text).containers[0].command
[('--model', 1), ('m', 1)]
"""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import yaml

from kimi_nb.catalog import fill_ins
from kimi_nb.core import data_files

_FILL = re.compile(r"\$\$|\$\{(\w{1,200}):?-([^{}]{1,2000})\}")
_BLOCK = ("|", ">")
_MOST_BASES = 16
_MOST_MERGED = 64
_NULL = "tag:yaml.org,2002:null"
_UNFOLDS = "its aliases (&name, *name) unfold into far more than was written"
_UNOPENED = re.compile(r"[:-] +[^\s\"'`|>#][^\"'`\n ]*[\"'][ \t]*\n")
# What Kubernetes itself and LWS run as it is written; other kinds have controllers that add to it.
_WORKLOADS = {
    "Pod",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "Job",
    "LeaderWorkerSet",
}
_INSIDE = re.compile(r"```|#!|[|][-+]?\n\s+(?:---\s+)?apiVersion:")
_ARGUMENTS = re.compile(r"(?i)args$|flags$|arguments$|backend_?parameters$")
_CONTROL = re.compile(r"\s*(?:\{\{[^{}]{0,400}\}\}\s*|\{\{ ?`\{\{[^{}`]{0,400}\}\}` ?\}\}\s*)+")
_TEMPLATE = re.compile(r"\{\{(?: ?`\{\{)?-?([^{}\n]{1,400}?)-?\}\}(?:` ?\}\})?")
# A line that controls a template of Jinja ({% if %}) or of Terraform (%{ if }).
_DIRECTIVE = re.compile(r"\s*(?:\{%.*%\}|%\{.*\})\s*")
_BLANK = re.compile(r"\s*")
# The command of an engine in a text, and keys whose texts are none.
_SERVES = re.compile(
    r"^[ \t]*(?:[A-Za-z_]\w*=\S*[ \t]+|exec |nohup |uv run )*"
    r"(?:vllm serve[ \t]+\S|python3?[ \t]+(?:-u[ \t]+)?-m[ \t]+vllm\.entrypoints\.\S*api_server)",
    re.MULTILINE,
)
_SHELLS = {"commands", "run", "script", "command", "args", "setup"}
_RUN = {"command", "args", "entrypoint"}
# A step of a workflow, and what a file of workflows has.
_STEPS = {"run"}
_EXPRESSION = re.compile(r"\$\{\{[^{}\n]*\}\}")
_WORKFLOW = re.compile(r"^ +runs-on:", re.MULTILINE)
_PROSE = {"description", "title", "label", "name", "help"}
_Keys = dict[str, tuple[yaml.Node, yaml.Node]]


@dataclass
class Container:
    """One container: its image, the words that it runs, its variables, and what it gets.

    The line numbers of the words count from 1 in the text. ``passes`` are variables that are handed
    in by name, without a value. ``gpus`` are values as ``--gpus`` takes them, and ``memory`` is the
    limit as ``--memory`` takes it. ``certain`` is whether it starts with the others, ``kubernetes``
    whether it is part of a workload that a kubelet starts as it is written.
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
    kubernetes: bool = False


@dataclass
class Loose:
    """Arguments that stand in a list of a values file, for a container that a chart writes.

    ``keys`` are the keys above them, the outermost first; the lines of ``words`` count from 1.
    """

    keys: tuple[str, ...]
    line: int
    words: list[tuple[str, int]]


class NotYAML(Exception):
    """A text that is not YAML.

    ``said`` is what the parser reports, and ``line`` the line from 1, or 0 if it names none.
    """

    def __init__(self, said: str, line: int) -> None:
        super().__init__(said)
        self.said, self.line = said, line


def texts(text: str) -> list[tuple[str, int]]:
    """Return the scripts and documents that are values of a YAML text, each with its first line.

    Such as a script or a manifest in a ConfigMap, the guide of a recipe, the commands of a service,
    or a step of a workflow; what containers run is left to `read`. The result is empty for no YAML.
    """
    if not ("vllm" in text or _INSIDE.search(text)) or data_files.too_deep(text):
        return []
    steps = _WORKFLOW.search(text) is not None
    if steps:  # ${{ secrets.NAME }} is put in before a shell starts
        text = _EXPRESSION.sub("$(true)", text)
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        roots = list(yaml.compose_all(_untemplated(text), Loader=loader))
    except yaml.YAMLError:
        return []
    out: list[tuple[str, int]] = []
    waiting: list[tuple[str, yaml.Node | None]] = [("", root) for root in roots]
    seen: set[int] = set()
    for name, node in waiting:  # grows as it goes
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
            taken = _PROSE | (_RUN if keys & {"image", "build"} else set())
            for key, value in node.value:
                if key.value == "commands" and (joined := _joined(value)) is not None:
                    out.append(joined)
                elif isinstance(key, yaml.ScalarNode) and key.value not in taken:
                    waiting.append((key.value, value))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(name, item) for item in node.value]
        elif isinstance(node, yaml.ScalarNode) and (
            (node.style == "|" and (_begins_other(node.value) or (steps and name in _STEPS)))
            or _SERVES.search(node.value)
        ):
            text = node.value
            # Who runs it is not known, and may join its lines.
            if not (
                name in _SHELLS
                or is_manifest(text)
                or re.search(r"\\[ \t]*$|^#!|```", text, re.MULTILINE)
            ):
                text = re.sub(r"\n(?=[ \t]*(?:--|['\"]?\{))", " \\\\\n", text)
            out.append((text, _first_line(node)))
    return out


def is_manifest(text: str) -> bool:
    """Return whether a text begins as those do that Kubernetes reads."""
    return text.lstrip().startswith(("apiVersion:", "---\napiVersion:"))


def _begins_other(text: str) -> bool:
    return "```" in text or text.startswith("#!") or is_manifest(text)


def _first_line(node: yaml.ScalarNode) -> int:
    return int(node.start_mark.line) + 1 + (node.style in _BLOCK)


def _joined(node: yaml.Node) -> tuple[str, int] | None:
    """Return a list of commands as one script, each on its line, and the first line of it.

    The result is None for what is no such list, or starts no engine.
    """
    items = node.value if isinstance(node, yaml.SequenceNode) else []
    if not all(isinstance(item, yaml.ScalarNode) for item in items) or not any(
        _SERVES.search(item.value) for item in items
    ):
        return None
    first = _first_line(items[0])
    lines: list[str] = []
    for item in items:
        lines += [""] * (_first_line(item) - first - len(lines))
        lines += item.value.rstrip("\n").split("\n")
    return "\n".join(lines), first


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


class Read(NamedTuple):
    """What was read of a YAML text, and why it was not read to its end ("" if it was).

    ``unopened`` are plain values that end in a quote which opens nowhere, with their lines, and
    ``roots`` the nodes of its documents.
    """

    containers: list[Container]
    loose: list[Loose]
    unread: str = ""
    unopened: Sequence[tuple[int, str]] = ()
    roots: Sequence[yaml.Node | None] = ()


def read(text: str) -> Read:
    """Return the containers of a YAML text, and the lists of arguments outside them.

    Raises NotYAML.
    """
    if data_files.too_deep(text):
        return Read([], [], "nested more than 64 levels deep")
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
        return Read(out, reader.loose, _UNFOLDS)
    unopened = _unopened(roots) if _UNOPENED.search(text) else []
    return Read(out, reader.loose, "", unopened, roots)


def _unopened(roots: Sequence[yaml.Node | None]) -> list[tuple[int, str]]:
    """Return the plain values that end in a quote which opens nowhere."""
    out: list[tuple[int, str]] = []
    waiting = list(roots)
    seen: set[int] = set()
    for node in waiting:  # grows as it goes
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif (
            isinstance(node, yaml.ScalarNode)
            and not node.style
            and _UNOPENED.fullmatch(f": {node.value}\n")
        ):
            out.append((node.end_mark.line + 1, node.value))
    return out


class _Reader:
    """A reader of the containers in the nodes of one text.

    It counts what it reads, because aliases let a small text ask for the same thing over and over.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.left = 300_000 + 4 * len(text)
        self.loose: list[Loose] = []
        self.workload = False

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
        """Yield the containers: mappings that have an image and something to run.

        What stands outside them and is called arguments goes to ``loose``.
        """
        self.workload = self.table(root).get("kind") in _WORKLOADS
        # (keys down to it, node, its neighbours)
        waiting: list[tuple[tuple[str, ...], yaml.Node | None, _Keys]] = [((), root, {})]
        seen: set[int] = set()
        for keys, node, beside in waiting:  # grows as it goes
            name, parent = keys[-1] if keys else "", keys[-2] if len(keys) > 1 else ""
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += [
                    (keys, item, {}) for item in node.value if not isinstance(item, yaml.ScalarNode)
                ]
            if _ARGUMENTS.search(name) and not isinstance(node, yaml.MappingNode):
                engine = beside["backend"][1] if "backend" in beside else None
                if not isinstance(engine, yaml.ScalarNode) or "vllm" in engine.value.lower():
                    self.arguments(keys, node)
            if not isinstance(node, yaml.MappingNode):
                continue
            chain = [self.items(node)]
            service = parent == "services"
            if service:
                chain += self.bases(chain[0], beside)
            if _is_container(chain, service):
                yield self.container(name, node, chain[::-1], service)
                continue
            waiting += [
                ((*keys, key), value, chain[0])
                for key, (_, value) in chain[0].items()
                # What compose leaves aside: texts to take over from.
                if node is not root or not key.startswith("x-")
            ]

    def arguments(self, keys: tuple[str, ...], node: yaml.Node) -> None:
        """Keep the words of a list or of a text, if they begin with an option."""
        words = self.words(node)
        if words and words[0][0].startswith("--"):
            self.loose.append(Loose(keys, node.start_mark.line + 1, words))

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

    def container(self, name: str, node: yaml.Node, chain: list[_Keys], service: bool) -> Container:
        """Build a container from its keys, those that it extends first."""
        out = Container(name, node.start_mark.line + 1, "")
        kubernetes = name in ("containers", "initContainers") or any("args" in one for one in chain)
        for keys in chain:
            for word, (_, value) in keys.items():
                self.key(out, word, value, kubernetes or not service)
        out.kubernetes = kubernetes and self.workload
        if kubernetes:
            # Inside a pod ports are published by a service, which is another document.
            out.ports = []
        return out

    def key(self, out: Container, word: str, value: yaml.Node, whole: bool) -> None:
        """Read one key of a container; ``whole`` is whether ``command`` is all that runs.

        Only compose adds it to the entry point of the image.
        """
        if word == "image":
            out.image = self.text(value) or ""
        elif word in ("name", "container_name"):
            out.name = self.text(value) or out.name
        elif word == "entrypoint" or (word == "command" and whole):
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
    if not any(mark in text for mark in ("{{", "{%", "%{")):
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        if not (_CONTROL.fullmatch(line) or _DIRECTIVE.fullmatch(line)):
            lines.append(_TEMPLATE.sub(_filled_later, fill_ins.masked(line)))
        elif before.endswith("\\"):  # it stands inside a command
            lines.append(before[: len(before) - len(before.lstrip())] + "\\")
        else:
            lines.append("")
    return "\n".join(lines)


def _filled_later(match: re.Match[str]) -> str:
    """Return a template as a fill-in that is one word."""
    name = re.sub(r"\W+", "_", match[1]).strip("_")
    return f"{fill_ins.MARK[0]}{name or 'value'}{fill_ins.MARK[1]}"


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
