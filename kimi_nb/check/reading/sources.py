"""Find the pieces of shell text in some files, and hold what is found in them.

>>> from kimi_nb.check.reading import sources
>>> from kimi_nb.check.reading.files import Text
>>> text = Text("run.sh", "", "bash", "vllm serve m")
>>> shells, boxes = sources.sources([text], sources.Found())
>>> shells[0].text
'vllm serve m'
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading import (
    addresses,
    compose,
    compose_names,
    dockerfile_slips,
    dockerfiles,
    files,
    gateways,
    helm_templates,
    ignores,
    manifests,
    markdown,
    object_slips,
    option_tables,
    python_clients,
    yaml_values,
)
from kimi_nb.check.rules import security, variables
from kimi_nb.check.view import clients
from kimi_nb.check.view.deployment import (
    Batch,
    Box,
    Client,
    Fault,
    Ignore,
    Launcher,
    Program,
    Proxy,
    StoreFile,
)
from kimi_nb.check.view.engine_view import EngineView, Spot

_CONFLICT = re.compile(r"^(?:<{7}|>{7}) \S.*$", re.MULTILINE)
_METRIC = re.compile(r"(?<![\w/.-])vllm:[a-z]+(?:_[a-z]+)+(?![\w.-])")
# Keys above the arguments of what is no engine.
_OTHERS = re.compile(
    r"(?i)sglang|trt|router|gateway|proxy|sidecar|scheduler|picker|epp|controller|operator|cache_?server"
)


@dataclass
class Source:
    """A piece of shell text: a file, a fence, or a script that another one writes.

    ``label`` is what a document says above it.

    ``line`` is where it begins in the file. ``calls`` holds (arguments, variables, node) for each
    call of it by another script. ``includes`` is whether it sources files that are not here, and
    ``unset`` holds the variables that it uses and does not set, with their lines.
    """

    file: str
    folder: str
    text: str
    line: int
    document: bool
    tree: Any = None
    calls: list[tuple[tuple[str, ...], Mapping[str, str], str]] = field(default_factory=list)
    includes: bool = False
    unset: dict[str, int] = field(default_factory=dict)
    label: str = ""

    @property
    def base(self) -> str:
        """The name of the file without its folder."""
        return os.path.basename(self.file)


@dataclass(frozen=True)
class Words:
    """Arguments without a command, and their lines in the file.

    ``certain`` is whether they are surely the engine's.
    """

    file: str
    words: tuple[tuple[str, int], ...]
    certain: bool


@dataclass
class Found:
    """What was found so far."""

    servers: list[EngineView] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    launchers: list[Launcher] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    exports: list[Program] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unread: list[tuple[Spot, str]] = field(default_factory=list)
    fill_ins: set[str] = field(default_factory=set)
    ignores: list[Ignore] = field(default_factory=list)
    loose: list[Words] = field(default_factory=list)
    spans: list[Words] = field(default_factory=list)
    metrics: list[tuple[Spot, str]] = field(default_factory=list)
    stores: list[StoreFile] = field(default_factory=list)
    strange: list[tuple[Spot, str]] = field(default_factory=list)

    def read(self) -> dict[str, int]:
        """Count what was judged, what was not understood, and what is left to the reader."""
        judged = (self.servers, self.proxies, self.clients, self.boxes, self.launchers)
        spots = {one.spot.name for kind in judged for one in kind}
        lines = {(one.spot.file, one.spot.line) for kind in judged for one in kind}
        return {
            "commands": len(lines) or len(spots),
            "not understood": len(self.unread) + len(self.strange),
            "fill-ins": len(self.fill_ins),
        }


def of_yaml(
    text: str, name: str, folder: str, line: int, document: bool, found: Found
) -> tuple[list[Source], list[tuple[compose.Container, Source]]]:
    """Return the scripts that are values of a YAML text, and its containers.

    ``line`` is where the text begins in its file. ``document`` marks a fence or a heredoc, which may
    be a part of a file. What is wrong with the text is added to ``found``.
    """
    shells: list[Source] = []
    if ignores.MARK in text:
        found.ignores += ignores.of_lines(text, name, line)
    try:
        made, loose, why, unopened, roots = compose.read(text)
    except compose.NotYAML as wrong:
        at = Spot(name, name, line + max(wrong.line, 1) - 1)
        found.unread.append((at, "not YAML"))
        # A fence may be a part of a file, and a template becomes YAML when it is filled in.
        found.faults.append(
            Fault(
                "shell/yaml",
                at,
                f"not YAML: {wrong.said}",
                WARNING if document or "{{" in text else "",
            )
        )
        return [], []
    if why:
        found.unread.append((Spot(name, name), why))
    found.faults += manifests.find(roots, name, line, "{{" in text)
    found.faults += object_slips.find(roots, name, line, "{{" in text)
    told = {one.spot for one in found.faults if one.rule == "shell/substitution"}  # in a heredoc
    values = yaml_values.find(roots, name, line, "{{" in text)
    found.faults += [one for one in values if one.spot not in told]
    found.faults += gateways.find(roots, name, line)
    if "services:" in text and not document:
        found.faults += compose_names.find(roots, name, line)
    if "{{" in text:  # a chart may add variables
        made = [replace(one, kubernetes=False) for one in made]
    for place, value in unopened:
        at = Spot(name, name, line + place - 1)
        message = f"a quote that opens nowhere ends the value {value[:60]}"
        found.faults.append(Fault("shell/yaml", at, message, WARNING))
    found.loose += [
        Words(
            name,
            tuple((word, place + line - 1) for word, place in one.words),
            any("vllm" in key.lower() for key in one.keys),
        )
        for one in loose
        if not any(_OTHERS.search(key) for key in one.keys)
    ]
    taken = {one.words[0][1] for one in found.loose if one.file == name}
    found.loose += [
        Words(name, tuple((word, place + line - 1) for word, place in words), True)
        for words in (*option_tables.find(roots), *option_tables.of_variables(roots))
        if words[0][1] + line - 1 not in taken
    ]
    boxes = [(one, Source(name, folder, "", line, True)) for one in made]
    for inner, place in compose.texts(text):
        if compose.is_manifest(inner):
            scripts, more = of_yaml(inner, name, folder, line + place - 1, True, found)
            shells += scripts
            boxes += more
            continue
        if inner.startswith("#!") or "```" not in inner:
            shells.append(Source(name, folder, inner, line + place - 1, inner[:2] != "#!"))
            continue
        for fence in markdown.fences(inner):
            if fence.kind == "bash":
                first = line + place + fence.line - 2
                shells.append(Source(name, folder, fence.text, first, True))
    return shells, boxes


def _metrics(text: files.Text) -> list[tuple[Spot, str]]:
    """Return the metrics of vLLM that a file names."""
    out = []
    for number, line in enumerate(text.text.split("\n") if "vllm:" in text.text else (), start=1):
        for match in _METRIC.finditer(line):
            name = re.sub(r"_(bucket|sum|count)$", "", match[0])
            out.append((Spot(f"{text.name}:{number}", text.name, number), name))
    return out


def _conflicts(text: files.Text) -> list[Fault]:
    """Return what a merge has left behind in a file."""
    out = []
    for match in _CONFLICT.finditer(text.text):
        line = text.text.count("\n", 0, match.start()) + 1
        spot = Spot(f"{text.name}:{line}", text.name, line)
        severity = WARNING if text.kind == "markdown" else ""
        message = f"{match[0][:40]} is the mark of a merge that was not finished"
        out.append(Fault("shell/conflict", spot, message, severity))
    return out


def _python(text: files.Text, found: Found) -> None:
    """Add what the blocks of Python of a document ask, import and start, and what is wrong there."""
    for body, first in markdown.python(text.text):

        def spot(line: int, first: int = first) -> Spot:
            return Spot(f"{text.name}:{first + line - 1}", text.name, first + line - 1)

        for one in python_clients.requests(body):
            made = clients.python(one.library, one.url, one.model, spot(one.line))
            found.clients.append(made)
        for module, name, line in python_clients.imports(body):
            words = ("from", module, "import", name)
            found.programs.append(Program(spot(line), words, {}))
        for flags in python_clients.engines(body):
            placed = tuple((word, first + line - 1) for word, line in flags)
            found.loose.append(Words(text.name, placed, False))
        if wrong := python_clients.broken(body):
            said = f"Python does not take this block: {wrong[1]}"
            found.faults.append(Fault("client/python-syntax", spot(wrong[0]), said))


def _unbound(text: files.Text) -> list[Fault]:
    """Return the makers of clients that no block of Python in a document imports."""
    out = []
    for name, line in python_clients.unbound(markdown.python(text.text)):
        spot = Spot(f"{text.name}:{line}", text.name, line)
        out.append(Fault("client/import", spot, f"{name} is called, and imported nowhere"))
    return out


def _secrets(text: files.Text) -> list[Program]:
    """Return what a file sets to a token, as the environment of a program that sets it."""
    out = []
    for match in security.SET.finditer(text.text):
        line = text.text.count("\n", 0, match.start()) + 1
        if security.looks_secret(match[1], match[2]):
            spot = Spot(f"{text.name}:{line}", text.name, line)
            out.append(Program(spot, ("set", match[1]), {match[1]: match[2]}))
    return out


def sources(
    texts: Sequence[files.Text], found: Found
) -> tuple[list[Source], list[tuple[compose.Container, Source]]]:
    """Return every script and fence, and every container of a YAML file with its source.

    What is wrong with a YAML file is added to ``found``.
    """
    shells: list[Source] = []
    boxes: list[tuple[compose.Container, Source]] = []

    def in_yaml(text: str, name: str, folder: str, line: int, document: bool) -> None:
        scripts, made = of_yaml(text, name, folder, line, document, found)
        shells.extend(scripts)
        boxes.extend(made)

    for text in texts:
        found.programs += _secrets(text)
        found.faults += _conflicts(text)
        found.metrics += _metrics(text)
        found.faults += addresses.find(text.text, text.name)
        if text.kind in ("yaml", "helm"):
            found.faults += helm_templates.find(text.text, text.name)
        if text.kind == "yaml":
            in_yaml(text.text, text.name, text.folder, 1, files.is_template(text.name))
        elif text.kind == "dockerfile":
            if ignores.MARK in text.text:
                found.ignores += ignores.of_lines(text.text, text.name, 1)
            found.faults += dockerfile_slips.find(text.text, text.name, 1)
            one = dockerfiles.container(text.text)
            if one.entrypoint or one.command:
                boxes.append((one, Source(text.name, text.folder, "", 1, True)))
        elif text.kind == "markdown":
            found.spans += [
                Words(text.name, ((span, line),), True) for span, line in markdown.spans(text.text)
            ]
            found.exports += [
                Program(Spot(f"{text.name}:{line}", text.name, line), ("env", name), {name: ""})
                for name, line in markdown.variables(text.text)
                if variables.near(name)  # prose names variables of other programs, too
            ]
            found.programs += [
                Program(Spot(f"{text.name}:{line}", text.name, line), ("cmake", word), {})
                for word, line in markdown.defines(text.text)
            ]
            _python(text, found)
            found.faults += _unbound(text)
            for body, line in markdown.dockerfiles(text.text):
                found.faults += dockerfile_slips.find(body, text.name, line)
            for fence in markdown.fences(text.text):
                if fence.kind == "yaml":
                    in_yaml(fence.text, text.name, text.folder, fence.line, True)
                else:
                    source = Source(text.name, text.folder, fence.text, fence.line, True)
                    source.label = fence.label
                    shells.append(source)
        elif text.kind == "bash":
            shells.append(Source(text.name, text.folder, text.text, 1, False))
    return shells, boxes
