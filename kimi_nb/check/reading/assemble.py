"""Build a deployment from texts: which engine starts on which node, and with which words.

>>> from kimi_nb.check.reading import assemble
>>> from kimi_nb.check.reading.files import Text
>>> text = Text("run.sh", "", "bash", "vllm serve m --port 8001")
>>> assemble.of_texts([text], "vllm", "0.19.1").servers[0].http_port
8001
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb.check.reading import (
    chart_values,
    files,
    fragments,
    ignores,
    inference,
    markdown,
    missing_files,
    pod_expansion,
)
from kimi_nb.check.reading.command_reader import SGLANG
from kimi_nb.check.reading.script_reader import ScriptReader
from kimi_nb.check.reading.sources import Found, sources
from kimi_nb.check.view import commands
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.params import schema

_STARTS = re.compile(r"\bvllm serve [\w$\"'{/<-]")
_MENTIONS = re.compile(
    r"^\s*(#|//)|\b(pkill|pgrep|grep|echo|printf|kill|description|sed)\b|`vllm serve|--help"
)


def read(
    paths: Sequence[Path | str],
    engine: str = "",
    version: str = "",
    hardware: schema.Hardware | None = None,
) -> Deployment:
    """Read the deployment of files and folders, as far as it can be read.

    Raises ParameterError for a path that cannot be read, and for a version that does not exist.
    """
    texts, unread = _texts(paths)
    return of_texts(texts, engine, version, hardware, unread, tree=files.tree(paths))


def read_all(
    paths: Sequence[Path | str],
    engine: str = "",
    version: str = "",
    hardware: schema.Hardware | None = None,
) -> list[Deployment]:
    """Read the deployment of files, once for each version that it is to be judged by.

    They are one, or two for a version that is not listed: the listed ones before and after it.
    Raises what `read` does.
    """
    texts, unread = _texts(paths)
    there = files.tree(paths)
    first = of_texts(texts, engine, version, hardware, unread, tree=there)
    return [
        first,
        *(
            of_texts(
                texts,
                engine,
                "",
                hardware,
                unread,
                inference.Spoken(other, True, stated=first.engine_stated),
                there,
            )
            for other in first.between
        ),
    ]


def _texts(paths: Sequence[Path | str]) -> tuple[list[files.Text], list[tuple[Spot, str]]]:
    """Return every file that can be read, with a folder of scripts for each pod that runs them."""
    texts, unread = files.collect(paths)
    return pod_expansion.expand(texts), unread


def of_texts(
    texts: Sequence[files.Text],
    engine: str = "",
    version: str = "",
    hardware: schema.Hardware | None = None,
    unread: Sequence[tuple[Spot, str]] = (),
    speaks: inference.Spoken | None = None,
    tree: frozenset[str] | None = None,
) -> Deployment:
    """Build the deployment of texts that are already read.

    ``unread`` is what was not read of the files (its spots are named by their paths), and why;
    ``speaks`` is the engine if it is known, and ``tree`` all files of the folder that they are in,
    None if they are no whole folder.
    """
    told = speaks is not None
    speaks = speaks or inference.engine(texts, engine, version)
    found = Found(unread=list(unread), faults=list(speaks.faults))
    shells, boxes = sources(texts, found)
    ScriptReader(speaks.engine, found, shells).read(boxes)
    found.unread += [(box.spot, SGLANG) for box in found.boxes if commands.is_sglang(box.argv)]
    if not told and not speaks.known and not speaks.faults and not version:
        again = inference.from_images(found.boxes, engine)
        if again is not None:  # the image's name came together from variables
            return of_texts(texts, engine, version, hardware, unread, again, tree)
    found.strange += [spot for text in texts for spot in _silent(text, found)]
    services = {text.name for text in texts if text.kind == "yaml"}
    found.servers = _alternatives(found.servers, services)
    found.faults += chart_values.find(texts)
    if tree is not None:
        found.faults += missing_files.find(texts, found.programs, tree)
    model, weights = inference.model(found.servers)
    # A document shows containers of several kinds of node.
    documents = frozenset(
        {text.name for text in texts if text.kind == "markdown"}
        | {source.file for source in shells if source.document}
    )
    prose, wrong = fragments.prose(speaks.engine, found.spans)
    found.faults += wrong
    title = texts[0].name if len(texts) == 1 else f"{len(texts)} files"
    return Deployment(
        title=title,
        engine=speaks.engine,
        engine_known=speaks.known,
        between=speaks.between,
        outside=speaks.outside,
        engine_stated=speaks.stated,
        read=found.read(),
        servers=tuple(found.servers),
        fragments=tuple(fragments.engines(speaks.engine, found.loose)),
        prose=tuple(prose),
        proxies=tuple(found.proxies),
        clients=tuple(found.clients),
        boxes=tuple(found.boxes),
        launchers=tuple(found.launchers),
        batches=tuple(found.batches),
        programs=tuple(found.programs),
        exports=tuple(found.exports),
        metrics=tuple(found.metrics),
        stores=tuple(found.stores),
        faults=tuple(found.faults),
        model=model,
        weights=weights,
        hardware=hardware,
        devices_per_node=hardware.devices.count
        if hardware
        else inference.devices(
            [box for box in found.boxes if box.spot.file not in documents], found.batches
        ),
        unread=tuple(found.unread),
        documents=documents,
        ignores=ignores.merged(found.ignores),
        paths={
            **{text.name: text.path for text in texts if text.path},
            **{spot.file: spot.name for spot, _ in unread},
        },
    )


def _silent(text: files.Text, found: Found) -> list[tuple[Spot, str]]:
    """Return the first line that starts an engine in a file of which nothing was read."""
    taken = [one.spot for one in found.servers] + [one.spot for one in found.boxes]
    taken += [spot for spot, _ in (*found.unread, *found.strange)]
    if "vllm serve " not in text.text or any(spot.file == text.name for spot in taken):
        return []
    pieces = (
        [(fence.line, fence.text) for fence in markdown.fences(text.text)]
        if text.kind == "markdown"
        else [(1, text.text)]
    )
    for first, piece in pieces:
        for number, line in enumerate(piece.split("\n"), start=first):
            if _STARTS.search(line) and not _MENTIONS.search(line):
                return [(Spot(f"{text.name}:{number}", text.name, number), "vllm serve")]
    return []


def _alternatives(servers: list[EngineView], files: set[str]) -> list[EngineView]:
    """Mark the engines of a compose file that cannot run together as ones of which a user takes one.

    They serve different models at one port of one host: ``docker compose up NAME`` starts one.
    """
    models: dict[tuple[str, int], set[str]] = {}
    for one in servers:
        if one.spot.file in files and one.node == one.spot.file and one.http_port is not None:
            models.setdefault((one.node, one.http_port), set()).add(one.model)
    # The others of the file are chosen from as well.
    some = {node for (node, _), names in models.items() if len(names) > 1}
    return [replace(one, certain=False) if one.node in some else one for one in servers]
