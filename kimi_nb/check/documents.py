"""The commands of the documents as they were published, as deployments to check.

>>> from kimi_nb.check import documents
>>> for deployment, first in documents.deployments("k2.6", "a3", "pd"):
...     print(deployment.title, len(deployment.servers), first)
Kimi-K2.6 a3 pd as documented (docker) 24 True

The 51 commands are in ``data/check/commands.json``; what the documents state in prose and tables is
in ``data/check/documents.yaml`` (``claims``). The positional parameters ``$1`` to ``$7`` of a
template are filled in from the launch commands.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kimi_nb import catalog
from kimi_nb.check.reading.sources import Found
from kimi_nb.check.view import clients, commands, container_start, engine_view
from kimi_nb.check.view.deployment import Client, Deployment, Fault, Launcher, Program
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import NoRecipeError, ParameterError
from kimi_nb.params import load, schema

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_PLACEHOLDER = re.compile(r"<[a-z_0-9]+>|\|[a-z_]+\||\d+\.xx\.xx\.\d+|\bx{3,}\b")


@functools.cache
def published() -> dict[str, Mapping[str, Any]]:
    """Return every published command by its name."""
    path = paths.DATA / "check" / "commands.json"
    return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))}


def document_of(name: str) -> str:
    """Return the key of the document that publishes a command."""
    golden = published()[name]["document"]
    return next(
        key for key, item in data_files.facts("check/documents").items() if item["golden"] == golden
    )


def chosen(
    model: str, hardware: str, layout: str, variant: str
) -> list[tuple[schema.Model, schema.Recipe]]:
    """Return the documented recipes that match; an empty name matches everything.

    Raises NoRecipeError if none matches, and ParameterError for a model or hardware that does not
    exist.
    """
    model, hardware = load.canonical("models", model), load.canonical("hardware", hardware)
    out = []
    for name in load.names("models"):
        served = load.model(name)
        for recipe in served.recipes:
            if recipe.source.commands and all(
                want in ("", have)
                for want, have in (
                    (model, name),
                    (hardware, recipe.hardware),
                    (layout, recipe.layout),
                    (variant, recipe.variant),
                )
            ):
                out.append((served, recipe))
    if not out:
        for given, kind in ((model, "models"), (hardware, "hardware")):
            if given and given not in load.names(kind):
                getattr(load, {"models": "model"}.get(kind, kind))(given)
        raise NoRecipeError(
            f"No document has commands for model {model or 'any'}, hardware "
            f"{hardware or 'any'}, layout {layout or 'any'}"
            f"{f', variant {variant}' if variant else ''}. kimi-nb list shows what "
            "is documented."
        )
    return out


def deployments(
    model: str = "", hardware: str = "", layout: str = "", variant: str = "", version: str = ""
) -> Iterator[tuple[Deployment, bool]]:
    """Yield each documented deployment, and whether it is at the version of its commands.

    The same deployment follows at each further version that the document names, with False.
    ``version`` replaces them all. Raises ParameterError if ``version`` exists for none of the
    engines, and what `chosen` raises.
    """
    refused: list[ParameterError] = []
    any_made = False
    for served, recipe in chosen(model, hardware, layout, variant):
        chip = load.hardware(recipe.hardware)
        names = [
            *recipe.source.commands,
            *(name for key in recipe.clients for name in served.clients[key].source.commands),
        ]
        claims = _claims(recipe.source.commands, recipe.layout)
        versions = [version or recipe.engine_version]
        if not version:
            versions += [str(claim["version"]) for claim in claims if claim["claim"] == "version"]
        seen = set()
        for index, text in enumerate(versions):
            try:
                engine = catalog.engine(chip.engine, text)
            except ParameterError as error:
                if index == 0:
                    refused.append(error)  # another engine's document
                    break
                continue  # never released: the rule on claimed versions says so
            if engine.version not in seen:
                seen.add(engine.version)
                any_made = True
                yield _deployment(served, recipe, chip, engine, names, claims), index == 0
    if not any_made and refused:
        raise refused[0]


def _claims(names: Sequence[str], layout: str) -> list[dict[str, Any]]:
    out = []
    for document in dict.fromkeys(document_of(name) for name in names):
        for claim in data_files.facts("check/documents")[document].get("claims", ()):
            if claim.get("layout", layout) == layout:
                out.append({**claim, "document": document})
    return out


def _deployment(
    served: schema.Model,
    recipe: schema.Recipe,
    chip: schema.Hardware,
    engine: catalog.Engine,
    names: Sequence[str],
    claims: Sequence[Mapping[str, Any]],
) -> Deployment:
    found = Found()
    for name in names:
        _Reader(found, engine, name).read(recipe)
    for document in dict.fromkeys(map(document_of, names)):
        for argv in data_files.facts("check/documents")[document].get("programs", ()):
            found.programs.append(Program(Spot(document), tuple(argv), {}))
    weights = served.weights[recipe.weights]
    return Deployment(
        title=f"{served.title} {recipe.hardware} {recipe.layout} as documented ({recipe.variant})",
        engine=engine,
        engine_known=True,
        servers=tuple(found.servers),
        proxies=tuple(found.proxies),
        clients=tuple(found.clients),
        boxes=tuple(found.boxes),
        launchers=tuple(found.launchers),
        batches=tuple(found.batches),
        programs=tuple(found.programs),
        faults=tuple(found.faults),
        claims=tuple(claims),
        model=served,
        weights=weights,
        hardware=chip,
        devices_per_node=chip.devices.count,
    )


class _Reader:
    """The reader of one published command, which adds what the command starts to ``found``."""

    def __init__(self, found: Found, engine: catalog.Engine, name: str) -> None:
        self.found, self.engine, self.name = found, engine, name
        self.entry = published()[name]
        self.document = data_files.facts("check/documents")[document_of(name)]
        self.env = dict(map(tuple, self.entry["env"]))
        self.spot = Spot(name)

    def fill(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """Substitute the variables that the command and its document set."""
        known = {**self.document.get("sets", {}), **self.env, **(more or {})}
        for _ in range(2):
            text = _VARIABLE.sub(
                lambda match: (
                    known.get(match[1], f"${{{match[1]}}}")
                    if f"${match[1]}" not in known.get(match[1], "")
                    else f"${{{match[1]}}}"
                ),
                text,
            )
        return text

    def read(self, recipe: schema.Recipe) -> None:
        """Recognise the command, and add it to the collection of its kind."""
        argv = tuple(self.printed(self.entry["argv"]))
        node = self.name.rpartition("/")[2]
        for line in self.entry.get("host_tuning", ()):
            self.found.programs.append(Program(self.spot, tuple(line.split()), {}))
        if "sbatch" in self.entry:
            self.found.batches.append(
                commands.batch(self.entry["sbatch"], [argv[0]], Spot(self.name, self.name))
            )
        filled = tuple(self.fill(word) for word in argv)
        env = {name: self.fill(text) for name, text in self.env.items()}
        self.placeholders((*filled, *env.values()))
        if container_start.container_at(filled) is not None:
            self.unset(argv)
            self.box(filled, env, node)
        elif commands.program_at(filled, commands.LAUNCHER) is not None:
            target = self.document["launches"][self.name]
            home = target.rpartition("/")[2]
            self.found.launchers.append(commands.launcher(filled, self.spot, home))
            self.ranks(target, home, self.found.launchers[-1])
        elif commands.is_proxy(filled):
            self.found.proxies.append(commands.proxy(filled, self.spot))
        elif (start := commands.serve_at(filled)) is not None:
            if not any("$1" in text for text in self.env.values()):
                self.serve(filled, env, self.spot, node, start)
        elif (client := clients.client(self.engine, filled, self.spot)) is not None:
            if "sbatch" in self.entry:
                client = Client(**{**_fields(client), "spot": Spot(self.name, self.name)})
            self.found.clients.append(client)
        else:
            self.found.programs.append(Program(self.spot, filled, env))

    def printed(self, argv: Sequence[str]) -> list[str]:
        """Return the words with the values exactly as the document prints them."""
        out = list(argv)
        for flag, text in self.document.get("printed", {}).get(self.name, {}).items():
            out[out.index(flag) + 1] = text
        return out

    def serve(
        self, argv: tuple[str, ...], env: Mapping[str, str], spot: Spot, node: str, start: int
    ) -> None:
        """Add an engine.

        SLURM jobs of one document are alternatives on the same node, so they may not run together.
        """
        alone = "sbatch" not in self.entry
        where = Spot(spot.name, "" if alone else self.name)
        self.found.servers.append(
            engine_view.of(self.engine, argv, env, where, node, start, certain=alone)
        )

    def ranks(self, target: str, node: str, one: Launcher) -> None:
        """Add the ranks that a launch command starts from its template."""
        other = _Reader(self.found, self.engine, target)
        words = tuple(other.printed(other.entry["argv"]))
        if one.local is None or one.tp is None or one.first is None or one.http_port is None:
            return
        for index in range(one.local):
            devices = ",".join(map(str, range(index * one.tp, (index + 1) * one.tp)))
            given = {
                "1": devices,
                "2": str(one.http_port + index),
                "3": str(one.dp),
                "4": str(one.first + index),
                "5": one.address,
                "6": str(one.rpc_port),
                "7": str(one.tp),
            }
            argv = tuple(other.fill(word, given) for word in words)
            env = {name: other.fill(text, given) for name, text in other.env.items()}
            self.found.servers.append(
                engine_view.of(
                    self.engine, argv, env, Spot(f"{target} rank {one.first + index}"), node
                )
            )

    def box(self, argv: tuple[str, ...], env: Mapping[str, str], node: str) -> None:
        """Add a container, and the engine inside if it runs one."""
        made = container_start.box(argv, env, self.spot, node)
        self.found.boxes.append(made)
        if made.runs_engine:
            self.found.servers.append(
                engine_view.of(
                    self.engine, ("vllm", "serve", *made.argv), made.env, self.spot, node
                )
            )

    def unset(self, argv: Sequence[str]) -> None:
        """Report variables that neither the command nor its document sets."""
        for word in argv:
            for match in _VARIABLE.finditer(word):
                if match[1] not in self.env and match[1] not in self.document.get("sets", {}):
                    self.found.faults.append(
                        Fault("shell/unset", self.spot, f"${match[1]} is set nowhere")
                    )

    def placeholders(self, words: Sequence[str]) -> None:
        """Report placeholders that are left in the words."""
        seen = sorted(
            {match[0] for word in words for match in [_PLACEHOLDER.search(word)] if match}
        )
        if seen:
            self.found.faults.append(
                Fault(
                    "shell/placeholder",
                    self.spot,
                    f"placeholders are left in: {', '.join(seen[:4])}",
                )
            )


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}
