"""The documents' commands as they were published, as deployments to check.

    for deployment, at in documents.deployments("k2.6", "a3", "pd"): ...

The 51 commands are data (data/commands.json), what the documents say in words and tables is too
(`claims` in data/documents.yaml). The shell's ``$1`` to ``$7`` come from the launch lines.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check.reading.sources import Found
from kimi_nb.check.view import clients as callers
from kimi_nb.check.view import commands
from kimi_nb.check.view import container_start as docker
from kimi_nb.check.view.deployment import Client, Deployment, Fault, Launcher, Program
from kimi_nb.check.view.engine_view import Spot, server
from kimi_nb.core.errors import NoRecipeError, ParameterError
from kimi_nb.params import load as params
from kimi_nb.params import schema

_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_PLACEHOLDER = re.compile(r"<[a-z_0-9]+>|\|[a-z_]+\||\d+\.xx\.xx\.\d+|\bx{3,}\b")


@functools.cache
def published() -> dict[str, Mapping[str, Any]]:
    """Every published command by its name."""
    path = params.PACKAGE / "data" / "commands.json"
    return {entry["name"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))}


def document_of(name: str) -> str:
    """The document of a command."""
    golden = published()[name]["document"]
    return next(key for key, item in params.data("documents").items() if item["golden"] == golden)


def chosen(
    model: str, hardware: str, layout: str, variant: str
) -> list[tuple[schema.Model, schema.Recipe]]:
    """The documented recipes of these names; an empty name is any."""
    out = []
    for name in params.names("models"):
        served = params.model(name)
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
            if given and given not in params.names(kind):
                getattr(params, {"models": "model"}.get(kind, kind))(given)
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
    """Each documented deployment, and whether it is checked at the version of its commands; the
    others are at a further version that the document names. ``version`` replaces them all."""
    refused: list[ParameterError] = []
    any_made = False
    for served, recipe in chosen(model, hardware, layout, variant):
        chip = params.hardware(recipe.hardware)
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
        for claim in params.data("documents")[document].get("claims", ()):
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
        for argv in params.data("documents")[document].get("programs", ()):
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
    """One published command, into what it is."""

    def __init__(self, found: Found, engine: catalog.Engine, name: str) -> None:
        self.found, self.engine, self.name = found, engine, name
        self.entry = published()[name]
        self.document = params.data("documents")[document_of(name)]
        self.env = dict(map(tuple, self.entry["env"]))
        self.spot = Spot(name)

    def fill(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """A text with the variables that the document sets."""
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
        """Sort the command to its kind."""
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
        if docker.container_at(filled) is not None:
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
        elif (client := callers.client(self.engine, filled, self.spot)) is not None:
            if "sbatch" in self.entry:
                client = Client(**{**_fields(client), "spot": Spot(self.name, self.name)})
            self.found.clients.append(client)
        else:
            self.found.programs.append(Program(self.spot, filled, env))

    def printed(self, argv: Sequence[str]) -> list[str]:
        """The words with the values that the document really prints."""
        out = list(argv)
        for flag, text in self.document.get("printed", {}).get(self.name, {}).items():
            out[out.index(flag) + 1] = text
        return out

    def serve(
        self, argv: tuple[str, ...], env: Mapping[str, str], spot: Spot, node: str, start: int
    ) -> None:
        """An engine. Jobs of one document are alternatives on one node."""
        alone = "sbatch" not in self.entry
        where = Spot(spot.name, "" if alone else self.name)
        self.found.servers.append(server(self.engine, argv, env, where, node, start, certain=alone))

    def ranks(self, target: str, node: str, one: Launcher) -> None:
        """The ranks that a launch line starts from its template."""
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
                server(self.engine, argv, env, Spot(f"{target} rank {one.first + index}"), node)
            )

    def box(self, argv: tuple[str, ...], env: Mapping[str, str], node: str) -> None:
        """A container, and the engine inside where the image is one."""
        made = docker.box(argv, env, self.spot, node)
        self.found.boxes.append(made)
        if made.runs_engine:
            self.found.servers.append(
                server(self.engine, ("vllm", "serve", *made.argv), made.env, self.spot, node)
            )

    def unset(self, argv: Sequence[str]) -> None:
        """Variables that neither the command nor its document sets."""
        for word in argv:
            for match in _VARIABLE.finditer(word):
                if match[1] not in self.env and match[1] not in self.document.get("sets", {}):
                    self.found.faults.append(
                        Fault("shell/unset", self.spot, f"${match[1]} is set nowhere")
                    )

    def placeholders(self, words: Sequence[str]) -> None:
        """Placeholders that are left in."""
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
