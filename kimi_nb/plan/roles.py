"""Resolve the settings of each role: the order of the layers, and the features switched on or off.

The order is hardware < model < recipe < site < overrides. A recipe's features come before its own
settings, a scenario after them; the user's ``--with`` and ``--without`` come before ``--set``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import language
from kimi_nb.core.errors import ParameterError, PlanError, choice
from kimi_nb.params import errata, load, recipes, schema
from kimi_nb.params.fields import Role
from kimi_nb.params.overrides import Overrides, refuse_derived
from kimi_nb.params.settings import Layer, Layered, Value, fold
from kimi_nb.plan import store_settings
from kimi_nb.plan.spec import name_of

HYBRID = "data-parallel-hybrid-lb"  # the flag by which every node answers for its own ranks


@dataclass(frozen=True)
class Request:
    """Everything that a plan is made from, already loaded.

    ``chosen``, ``dropped``, ``pairs`` and ``derive`` are the user's --with, --without, --set and
    --derive. ``named`` is the model that was asked for, where another one replaces it. ``errata`` is what --erratum says
    and ``errata_off`` what it comes to. ``calibrations`` say what was measured of memory,
    and ``stale`` are those of the site for this model at another version, which are not used.
    """

    model: schema.Model
    hardware: schema.Hardware
    recipe: schema.Recipe
    scenario: schema.Scenario | None
    site: schema.Site
    engine: catalog.Engine
    overrides: Overrides
    chosen: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    derive: bool = False
    named: str = ""
    errata: tuple[str, ...] = ()
    errata_off: frozenset[str] = frozenset()
    calibrations: tuple[schema.Calibration, ...] = ()
    stale: tuple[schema.Calibration, ...] = ()

    @property
    def weights(self) -> schema.Weights:
        """The checkpoint that the recipe serves."""
        return self.model.weights[self.recipe.weights]

    @property
    def router(self) -> str | None:
        """The kind of the front door that is asked for; None where clients ask an engine."""
        scenario = self.scenario.router if self.scenario else None
        asked = self.overrides.router or scenario
        if asked or self.recipe.layout == "pd":
            return asked or self.recipe.router
        return self.recipe.router if self.groups("mixed") > 1 else None

    @property
    def store(self) -> schema.Store | None:
        """The KV store that the engines share; None where they share none."""
        return (self.scenario.store if self.scenario else None) or self.recipe.store

    @property
    def scenario_name(self) -> str:
        """The name of the scenario in its recipe."""
        for name, scenario in self.recipe.scenarios.items():
            if scenario is self.scenario:
                return name
        return recipes.DEFAULT

    @property
    def as_documented(self) -> bool:
        """Whether every correction of the documents is switched off."""
        return f"{errata.ALL}=off" in self.errata

    @property
    def folder(self) -> str:
        """The folder of the plan's scripts on the nodes; each node has its own within it."""
        recipe = self.recipe
        names = self.model.name, self.hardware.name, recipe.layout, recipe.variant
        name = name_of(*names, self.scenario_name, self.as_documented, bool(self.recipe.derivation))
        return f"{self.site.paths.work}/{name}"

    def groups(self, role: Role) -> int:
        """Return how many groups a role has."""
        change = self.scenario.roles.get(role) if self.scenario else None
        planned = (change.groups if change else None) or self.recipe.roles[role].groups
        return self.overrides.shape.get(role, {}).get("groups", planned)

    @property
    def models(self) -> str:
        """The folder on the nodes that holds the checkpoints; "" where hub ids name them."""
        if self.errata_off & errata.renaming(self.recipe.source.commands):
            return self.site.paths.models or ""
        return models_folder(self.site, self.weights)

    def located(self, item: schema.Weights | schema.Draft) -> str:
        """Return how the engine is told the checkpoint: as a folder of the site, or as a hub id."""
        return f"{self.models}/{item.directory}" if self.models else item.id

    def places(self) -> dict[str, str]:
        """Return the values of the site and the model for ``{cache}``, ``{tool_parser}`` and so on."""
        paths = self.site.paths
        base = paths.project or paths.work
        return {
            "cache": paths.cache,
            "work": paths.work,
            "project": base,
            "tuning": f"{base}/configs/moe_tuning",
            "virtual_env": f"{base}/virt_envs/vllm-kimi",
            "tool_parser": self.model.parsers.tool,
            "reasoning_parser": self.model.parsers.reasoning,
        }


def models_folder(site: schema.Site, weights: schema.Weights) -> str:
    """Return the folder on the nodes that holds the checkpoints; "" where hub ids name them.

    An engine asks one hub for the model, its draft and its tokenizer: Hugging Face, or ModelScope
    with VLLM_USE_MODELSCOPE. The draft models are on Hugging Face only. Weights that are on
    ModelScope only are therefore read from a folder, and their draft with them.
    """
    if site.paths.models:
        return site.paths.models
    return f"{site.paths.work}/models" if weights.hub == "modelscope" else ""


@dataclass(frozen=True)
class RolePlan:
    """One resolved role: its shape, ports, settings in the engine's language, features.

    There are ``groups`` groups of ``nodes`` nodes, each with ``dp`` ranks of ``world`` devices.
    """

    role: str
    groups: int
    nodes: int
    dp: int
    tp: int
    ports: Mapping[str, int | None]
    settings: Layered
    features: tuple[str, ...]
    host_tuning: bool
    notes: tuple[str, ...]
    host: str | tuple[()] | None = ()  # where it listens, if not at its address; None: all over
    pp: int = 1

    @property
    def pcp(self) -> int:
        """The prefill context parallel size, which its settings name."""
        return self._size("prefill-context-parallel-size")

    @property
    def dcp(self) -> int:
        """The decode context parallel size, which its settings name; its devices are those of tp."""
        return self._size("decode-context-parallel-size")

    @property
    def world(self) -> int:
        """The devices of one data parallel rank: tp x pp x pcp, which vLLM calls its world size."""
        return self.tp * self.pp * self.pcp

    @property
    def hybrid(self) -> bool:
        """Whether every node of a group answers requests for its own ranks."""
        found = self.settings.flags.get(HYBRID)
        return found is not None and found.value is True

    def _size(self, flag: str) -> int:
        found = self.settings.flags.get(flag)
        return found.value if found and isinstance(found.value, int) and found.value > 0 else 1


def fill(text: Any, words: Mapping[str, str]) -> Any:
    """Return ``text`` with each known ``{word}`` replaced; other placeholders stay.

    >>> fill("{cache}/{other}", {"cache": "/data"})
    '/data/{other}'
    """
    if isinstance(text, str) and "{" in text:
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
    return text


def resolve(request: Request, role: Role) -> RolePlan:
    """Return a role's settings, shape and features. Raises PlanError or ParameterError."""
    spec, scenario = request.recipe.roles[role], request.scenario
    change = scenario.roles.get(role) if scenario else None
    active = _active(request, role)
    shape = {
        key: getattr(change, key, None) or getattr(spec, key)
        for key in ("groups", "nodes", "dp", "tp", "pp")
    } | request.overrides.shape.get(role, {})
    settings = fold([*_of_groups(request, shape["nodes"]), *_layers(request, role, active)])
    settings = _with_rules(request.recipe, settings)
    for name, value in settings.flags.items():
        refuse_derived(name, value.source)
    given = [Layer(one, "override", where) for where, one in request.overrides.of(role)]
    settings, notes = language.speak(fold(given, settings), request.engine, role)
    base = {**spec.ports.model_dump(), **request.overrides.ports.get(role, {})}
    settings, ports, host = _as_published(request, role, settings, base)
    return RolePlan(
        role=role,
        **shape,
        ports=ports,
        host=host,
        settings=_filled(settings, request.places()),
        features=active,
        notes=tuple(
            note
            for note in notes  # of a variable that stands there again, as it was published
            if note.partition(" ")[0] not in settings.env
        ),
        host_tuning=any(_known(name).host for name in active),
    )


def _with_rules(recipe: schema.Recipe, settings: Layered) -> Layered:
    """Return the settings with the recipe and the rule that each one of a derived recipe is from."""
    marks = recipe.derivation
    if marks is None:
        return settings

    def mark(name: str, value: Value) -> Value:
        if value.layer != "recipe":
            return value
        feature = value.source if value.source.startswith("feature ") else ""
        rule = marks.rule(feature or name)
        reason = rule if value.reason in ("", rule) else f"{rule}; {value.reason}"
        return replace(value, source=f"{feature}{': ' if feature else ''}{marks}", reason=reason)

    return Layered(
        {name: mark(name, value) for name, value in settings.flags.items()},
        {name: mark(name, value) for name, value in settings.env.items()},
    )


def _as_published(
    request: Request, role: Role, settings: Layered, ports: dict[str, int | None]
) -> tuple[Layered, dict[str, int | None], str | tuple[()] | None]:
    """Return settings, ports and host of a role, with the document's own where errata are off.

    They come after the engine's language, which would write the document's words anew.
    """
    host: str | tuple[()] | None = ()
    for entry in errata.touching(request.recipe.source.commands):
        if entry["id"] not in request.errata_off:
            continue
        has = {
            "argv": {name: value.value for name, value in settings.flags.items()},
            "env": {name: value.value for name, value in settings.env.items()},
        }
        found = errata.published(entry, role, has)
        tables = {"flags": found.flags, "env": found.env}
        source = f"{entry['document']}, as published (erratum {entry['id']} is off)"
        settings = fold([Layer(tables, "recipe", source)], settings)
        host = found.host if found.host != () else host
        if found.kv_port is not None and "kv" not in request.overrides.ports.get(role, {}):
            ports = {**ports, "kv": found.kv_port}
    return settings, ports, host


def _of_groups(request: Request, nodes: int) -> Iterator[Layer]:
    """Yield the variables of a group that has more than one node.

    SLURM chooses the nodes, so that nobody has looked whether a default interface is there.
    """
    site = request.site
    if nodes > 1 and (site.transport != "slurm" or "nic" in site.model_fields_set):
        source = f"site {site.name}, a group on {nodes} nodes"
        yield Layer({"env": request.hardware.group_env}, "hardware", source)


def _layers(request: Request, role: Role, active: Collection[str]) -> Iterator[Layer]:
    """Yield the layers of a role's settings, from low to high, without the overrides."""
    hardware, model, recipe, scenario = (
        request.hardware,
        request.model,
        request.recipe,
        request.scenario,
    )
    spec, source = recipe.roles[role], str(recipe.source)
    yield Layer(hardware.settings, "hardware", str(hardware.source))
    yield Layer(model.settings, "model", str(model.source))
    weights = request.weights
    yield Layer(weights.settings, "model", weights.source or str(model.source))
    for name in dict.fromkeys([*recipe.features, *spec.features]):
        if name in active:
            yield _switched(request, name, "recipe")
    if request.store:
        yield store_settings.layer(request.store, source)
    yield Layer(recipe.settings, "recipe", source)
    yield Layer(spec.settings, "recipe", source)
    for name, settings in spec.when.items():
        if _known(name) and name in active:
            yield Layer(settings, "recipe", f"{source}, with {name}")
    if scenario:
        for name in scenario.features:
            yield _switched(request, name, "recipe")
        for name in scenario.without:
            yield Layer(load.features()[name].off, "recipe", f"without {name}")
        yield Layer(scenario.settings, "recipe", str(scenario.source))
        if role in scenario.roles:
            yield Layer(scenario.roles[role].settings, "recipe", str(scenario.source))
    site = request.site
    if site.slurm and site.slurm.container:  # the environment is that of the image
        source = f"site {site.name}, jobs in an image"
        yield Layer({"env": {"VIRTUAL_ENV": None, "PATH": None}}, "site", source)
    yield Layer(site.settings, "site", f"site {site.name}")
    for name in request.dropped:
        yield Layer(_known(name).off, "override", f"--without {name}")
    for name in request.chosen:
        if role in _known(name).roles:
            yield _switched(request, name, "override")


def _filled(settings: Layered, words: Mapping[str, str]) -> Layered:
    def fill_all(values: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: Value(fill(value.value, words), value.layer, value.source, value.reason)
            for name, value in values.items()
        }

    return Layered(fill_all(settings.flags), fill_all(settings.env))


def _known(name: str) -> schema.Feature:
    features = load.features()
    if name not in features:
        raise ParameterError(choice("feature", name, sorted(features)))
    return features[name]


def _applies(name: str, role: str) -> bool:
    return role in _known(name).roles


def _switched(request: Request, name: str, layer: str) -> Layer:
    """Return the layer that switches a feature on."""
    feature = _known(name)
    given: dict[str, Any] = {"flags": dict(feature.on.flags), "env": dict(feature.on.env)}
    if feature.draft:
        draft = request.model.drafts[feature.draft]
        given["flags"]["speculative-config"] = {
            "method": draft.method,
            "model": request.located(draft),
            "num_speculative_tokens": draft.tokens,
            **draft.options,
        }
    return Layer(given, layer, f"feature {name}" if layer == "recipe" else f"--with {name}")


def _active(request: Request, role: Role) -> tuple[str, ...]:
    """Return the features that are on for a role, each checked against the others and the plan."""
    recipe, scenario = request.recipe, request.scenario
    names = [
        *recipe.features,
        *recipe.roles[role].features,
        *(scenario.features if scenario else ()),
    ]
    gone = {*(scenario.without if scenario else ()), *request.dropped}
    for name in request.dropped:
        _known(name)
    for name in request.chosen:
        if name in request.dropped:
            raise PlanError(f"--with {name} and --without {name}: say one of them.")
        if not set(_known(name).roles) & set(recipe.roles):
            raise PlanError(
                f"--with {name}: it belongs to the roles "
                f"{', '.join(_known(name).roles)}; layout {recipe.layout} has "
                f"{', '.join(recipe.roles)}."
            )
    names = [name for name in names if name not in gone] + list(request.chosen)
    active = tuple(name for name in dict.fromkeys(names) if _applies(name, role))
    for name in active:
        _check_alone(request, name)
    for name in active:
        _check_together(name, active)
    return active


def _check_alone(request: Request, name: str) -> None:
    feature, recipe = _known(name), request.recipe
    if request.hardware.vendor not in feature.vendors:
        raise PlanError(
            f"feature {name} is for {', '.join(feature.vendors)}; "
            f"{request.hardware.name} is {request.hardware.vendor}."
        )
    if recipe.layout not in feature.layouts:
        raise PlanError(
            f"feature {name} is for the layouts {', '.join(feature.layouts)}; "
            f"this is {recipe.layout}. {feature.price}"
        )
    if feature.models and request.model.name not in feature.models:
        raise PlanError(
            f"feature {name} is for {', '.join(feature.models)}; this is {request.model.name}."
        )
    needed = feature.vllm
    if feature.draft:
        drafts = {
            key: draft
            for key, draft in request.model.drafts.items()
            if request.hardware.vendor in draft.vendors
        }
        if feature.draft not in drafts:
            raise PlanError(
                choice(
                    f"draft model of {request.model.name} on {request.hardware.name}:",
                    feature.draft,
                    drafts,
                )
            )
        needed = drafts[feature.draft].vllm
    if not catalog.satisfies(request.engine, needed):
        raise PlanError(
            f"feature {name} needs vLLM {needed}; {request.engine} is vLLM "
            f"{request.engine.vllm}. Take it away (--without {name}) or choose "
            "another --engine-version."
        )


def _check_together(name: str, active: Iterable[str]) -> None:
    feature = _known(name)
    for other in feature.excludes:
        if other in active and other != name:
            raise PlanError(
                f"features {name} and {other} exclude each other: add "
                f"--without {other} (or --without {name})."
            )
    for other in feature.requires:
        if other not in active:
            raise PlanError(f"feature {name} requires {other}: add --with {other}.")
