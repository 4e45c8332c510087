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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.check.findings import WARNING
from kimi_nb.check.reading import compose, dockerfiles, files, ignores, markdown
from kimi_nb.check.view.deployment import (
    Batch,
    Box,
    Client,
    Fault,
    Ignore,
    Launcher,
    Program,
    Proxy,
)
from kimi_nb.check.view.engine_view import EngineView, Spot


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


def sources(
    texts: Sequence[files.Text], found: Found
) -> tuple[list[Source], list[tuple[compose.Container, Source]]]:
    """Return every script and fence, and every container of a YAML file with its source.

    What is wrong with a YAML file is added to ``found``.
    """
    shells, boxes = [], []

    def in_yaml(text: str, name: str, folder: str, line: int, document: bool) -> None:
        if ignores.MARK in text:
            found.ignores += ignores.of_lines(text, name, line)
        try:
            made, why = compose.containers(text)
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
            return
        if why:
            found.unread.append((Spot(name, name), why))
        for inner, place in compose.texts(text):
            if inner.startswith("#!"):
                shells.append(Source(name, folder, inner, line + place - 1, False))
                continue
            for fence in markdown.fences(inner):
                if fence.kind == "bash":
                    first = line + place + fence.line - 2
                    shells.append(Source(name, folder, fence.text, first, True))
        for one in made:
            boxes.append((one, Source(name, folder, "", line, True)))

    for text in texts:
        if text.kind == "yaml":
            in_yaml(text.text, text.name, text.folder, 1, False)
        elif text.kind == "dockerfile":
            if ignores.MARK in text.text:
                found.ignores += ignores.of_lines(text.text, text.name, 1)
            one = dockerfiles.container(text.text)
            if one.entrypoint or one.command:
                boxes.append((one, Source(text.name, text.folder, "", 1, True)))
        elif text.kind == "markdown":
            for fence in markdown.fences(text.text):
                if fence.kind == "yaml":
                    in_yaml(fence.text, text.name, text.folder, fence.line, True)
                else:
                    source = Source(text.name, text.folder, fence.text, fence.line, True)
                    source.label = fence.label
                    shells.append(source)
        else:
            shells.append(Source(text.name, text.folder, text.text, 1, False))
    return shells, boxes
