"""What one role of a plan is set to: the layers laid on each other, the features switched.

The order is hardware < model < recipe < site < overrides. A recipe's features come before its
own settings, a scenario after them; a person's ``--with`` and ``--without`` come before their
``--set``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.catalog import language
from kimi_nb.core.errors import ParameterError, PlanError, choice
from kimi_nb.params import load as params
from kimi_nb.params import schema
from kimi_nb.params.fields import Role
from kimi_nb.params.overrides import Overrides, refuse_derived
from kimi_nb.params.settings import EMPTY, Layered, Value, lay


@dataclass(frozen=True)
class Request:
    """Everything that a plan is made from, already loaded. ``chosen``, ``dropped`` and ``pairs``
    are the person's --with, --without and --set; ``named`` is the model that was asked for, where
    another one stands for it."""

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
    named: str = ""

    @property
    def weights(self) -> schema.Weights:
        """The checkpoint that the recipe serves."""
        return self.model.weights[self.recipe.weights]

    def located(self, item: schema.Weights | schema.Draft) -> str:
        """How a checkpoint is named to the engine: a folder of the site, or its hub id."""
        models = self.site.paths.models
        return f"{models}/{item.directory}" if models else item.id

    def places(self) -> dict[str, str]:
        """The site's own words for templates (``{cache}``, ``{tuning}``, ...)."""
        paths = self.site.paths
        base = paths.project or paths.work
        return {
            "cache": paths.cache,
            "work": paths.work,
            "project": base,
            "tuning": f"{base}/configs/moe_tuning",
            "virtual_env": f"{base}/virt_envs/vllm-kimi",
        }


@dataclass(frozen=True)
class RolePlan:
    """One role, resolved: its shape, ports, settings in the engine's language, features."""

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


def fill(text: Any, words: Mapping[str, str]) -> Any:
    """``text`` with ``{word}`` replaced for the words given; anything else stays as it is."""
    if isinstance(text, str) and "{" in text:
        for word, value in words.items():
            text = text.replace(f"{{{word}}}", value)
    return text


def resolve(request: Request, role: Role) -> RolePlan:
    """The role's settings, shape and features. Raises PlanError or ParameterError."""
    recipe, scenario, site = request.recipe, request.scenario, request.site
    spec = recipe.roles[role]
    change = scenario.roles.get(role) if scenario else None
    active = _active(request, role)
    source = f"{recipe.source}"

    settings = lay(EMPTY, request.hardware.settings, "hardware", str(request.hardware.source))
    settings = lay(settings, request.model.settings, "model", str(request.model.source))
    settings = lay(
        settings,
        request.weights.settings,
        "model",
        request.weights.source or str(request.model.source),
    )
    for name in dict.fromkeys([*recipe.features, *spec.features]):
        if name in active:
            settings = _switch(settings, request, name, "recipe")
    settings = lay(settings, recipe.settings, "recipe", source)
    settings = lay(settings, spec.settings, "recipe", source)
    if scenario:
        for name in scenario.features:
            settings = _switch(settings, request, name, "recipe")
        for name in scenario.without:
            settings = lay(settings, params.features()[name].off, "recipe", f"without {name}")
        settings = lay(settings, scenario.settings, "recipe", str(scenario.source))
        if change:
            settings = lay(settings, change.settings, "recipe", str(scenario.source))
    settings = lay(settings, site.settings, "site", f"site {site.name}")
    for name in request.dropped:
        settings = lay(settings, _known(name).off, "override", f"--without {name}")
    for name in request.chosen:
        if role in _known(name).roles:
            settings = _switch(settings, request, name, "override")
    for name, value in settings.flags.items():
        refuse_derived(name, value.source)
    for where, given in request.overrides.of(role):
        settings = lay(settings, given, "override", where)

    settings, notes = language.speak(settings, request.engine)
    shape = {
        key: getattr(change, key, None) or getattr(spec, key)
        for key in ("groups", "nodes", "dp", "tp")
    }
    shape |= request.overrides.shape.get(role, {})
    ports = {**spec.ports.model_dump(), **request.overrides.ports.get(role, {})}
    words = request.places()
    return RolePlan(
        role=role,
        **shape,
        ports=ports,
        settings=_filled(settings, words),
        features=active,
        notes=notes,
        host_tuning=any(_known(name).host for name in active),
    )


def _filled(settings: Layered, words: Mapping[str, str]) -> Layered:
    def fill_all(values: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: Value(fill(value.value, words), value.layer, value.source, value.reason)
            for name, value in values.items()
        }

    return Layered(fill_all(settings.flags), fill_all(settings.env))


def _known(name: str) -> schema.Feature:
    features = params.features()
    if name not in features:
        raise ParameterError(choice("feature", name, sorted(features)))
    return features[name]


def _applies(name: str, role: str) -> bool:
    return role in _known(name).roles


def _switch(settings: Layered, request: Request, name: str, layer: str) -> Layered:
    """``settings`` with the feature on."""
    feature = _known(name)
    source = f"feature {name}" if layer == "recipe" else f"--with {name}"
    given: dict[str, Any] = {"flags": dict(feature.on.flags), "env": dict(feature.on.env)}
    if feature.draft:
        draft = request.model.drafts[feature.draft]
        given["flags"]["speculative-config"] = {
            "method": draft.method,
            "model": request.located(draft),
            "num_speculative_tokens": draft.tokens,
        }
    return lay(settings, given, layer, source)


def _active(request: Request, role: Role) -> tuple[str, ...]:
    """The features that are on for a role, each checked against the others and the plan."""
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
        if other in active:
            raise PlanError(
                f"features {name} and {other} exclude each other: add "
                f"--without {other} (or --without {name})."
            )
    for other in feature.requires:
        if other not in active:
            raise PlanError(f"feature {name} requires {other}: add --with {other}.")
