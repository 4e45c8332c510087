"""Make a derived recipe: the sizes of its roles, its settings, and the rule of each change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kimi_nb.catalog import known_faults
from kimi_nb.catalog.known_faults import Situation
from kimi_nb.params import load, recipes, schema
from kimi_nb.plan import ports
from kimi_nb.plan.derivation import adapting, fitting
from kimi_nb.plan.derivation.adapting import Impossible, Subject
from kimi_nb.plan.derivation.fitting import Fitted

_EXPERTS = "expert-parallel"
_NIXL_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"


@dataclass(frozen=True)
class Made:
    """The parts of a derived recipe; ``steps`` are what differs from the base, with value and rule."""

    subject: Subject
    version: str
    features: tuple[str, ...]
    settings: schema.Settings
    specs: Mapping[str, schema.RoleSpec]
    roles: Mapping[str, Fitted]
    steps: Mapping[str, tuple[str, str]]
    processes: Literal["node", "rank"]


def made(subject: Subject, version: str, rule: str) -> Made:
    """Return the parts of a recipe with these weights; raise Impossible where it does not fit."""
    base, steps = subject.base.recipe, dict[str, tuple[str, str]]()
    _say(subject, version, rule, steps)
    common = adapting.features(subject, base.features, steps)
    common += _experts(subject, common, steps)
    settings = _common(subject, steps)
    specs: dict[str, schema.RoleSpec] = {}
    roles: dict[str, Fitted] = {}
    situations: list[Situation] = []
    # Mooncake's tp of prefill is no smaller than that of decode, which is therefore settled first.
    first = "decode" if _is_mooncake(base) else "prefill"
    for role in sorted(base.roles, key=lambda name: name != first):
        spec = base.roles[role]
        mine = adapting.features(subject, spec.features, steps)
        own = _without_drafts(spec.settings, [*common, *mine], steps)
        own = adapting.of_the_model(subject, adapting.kept(subject, own, steps), steps)
        when = [
            adapting.kept(subject, one, steps)
            for name, one in spec.when.items()
            if name in (*common, *mine)
        ]
        given = fitting.settings(subject, role, [*common, *mine], [settings, own, *when])
        least_tp = roles["decode"].sizes.tp if role == "prefill" and "decode" in roles else 1
        found = fitting.fitted(subject, spec, given, least_tp)
        roles[role] = found
        situations.append(_situation(subject, role, found, given))
        specs[role] = _spec(spec, found, own, tuple(mine), when)
        _say_sizes(role, spec, found, subject, steps)
    _refuse_known_faults(subject, situations)
    ordered = {str(name): specs[name] for name in base.roles}
    settings = _with_address(settings, ordered, steps)
    processes = _processes(subject, roles, steps)
    if processes == "rank":
        ordered = {name: _with_port(spec) for name, spec in ordered.items()}
    return Made(subject, version, tuple(common), settings, ordered, roles, steps, processes)


def _with_address(
    settings: schema.Settings,
    specs: Mapping[str, schema.RoleSpec],
    steps: dict[str, tuple[str, str]],
) -> schema.Settings:
    """Return the settings with the address at which NIXL is asked for caches, where it moves them."""
    tables = (settings, *(spec.settings for spec in specs.values()))
    moves = any(str(_connector(one)).startswith("Nixl") for one in tables)
    if not moves or any(_NIXL_HOST in one.env for one in tables):
        return settings
    steps[_NIXL_HOST] = ("{address}", "else NIXL names 127.0.0.1 to the other nodes")
    return schema.Settings(flags=settings.flags, env={**settings.env, _NIXL_HOST: "{address}"})


def _with_port(spec: schema.RoleSpec) -> schema.RoleSpec:
    """Return a role whose ranks listen at ports that count up from a first one."""
    first = spec.ports.http or ports.HTTP
    return spec.model_copy(update={"ports": spec.ports.model_copy(update={"http": first})})


def _processes(
    subject: Subject, roles: Mapping[str, Fitted], steps: dict[str, tuple[str, str]]
) -> Literal["node", "rank"]:
    """Return whether each node or each rank is a process.

    A cache is fetched from the rank that has it: with ranks of prefill on several nodes each one
    answers at an address of its own.
    """
    there = subject.hardware.devices.count
    if (
        subject.base.recipe.processes == "node"
        and "prefill" in roles
        and roles["prefill"].sizes.nodes > 1
        and all(one.sizes.tp <= there for one in roles.values())
    ):
        steps["processes"] = (
            "rank",
            "ranks of prefill on several nodes each answer for themselves",
        )
        return "rank"
    return subject.base.recipe.processes


def _situation(subject: Subject, role: str, found: Fitted, given: fitting.Settings) -> Situation:
    """Return what conditions of known faults may ask of a role, as far as it is settled here."""
    facts = {
        "layout": subject.layout,
        "role": role,
        "tp": found.sizes.tp,
        "dp": found.sizes.dp,
        "precision": subject.precision,
        "connector": given.table("kv-transfer-config").get("kv_connector"),
    }
    known = {name: value for name, value in facts.items() if value is not None}
    return Situation(known, given.flags, given.env, whole=False)


def _refuse_known_faults(subject: Subject, situations: list[Situation]) -> None:
    """Raise Impossible where this version is known not to start, to hang or to answer wrongly."""
    assert subject.engine is not None
    names = (subject.hardware.name, subject.hardware.recipes_of)
    model = recipes.known_as(subject.model)
    for fault, _ in known_faults.of(subject.engine, situations, model, names):
        if fault.severity == "error":
            way_out = f". {fault.way_out}" if fault.way_out else ""
            raise Impossible(
                f"known fault {fault.id}: {fault.symptom} ({fault.range}; {fault.source}){way_out}"
            )


def _is_mooncake(base: schema.Recipe) -> bool:
    """Return whether caches travel by Mooncake."""
    tables = (base.settings, *(role.settings for role in base.roles.values()))
    return any(str(_connector(one)).startswith("Mooncake") for one in tables)


def _connector(settings: schema.Settings) -> Any:
    """Return the connector that settings name, None without one."""
    table = settings.flags.get("kv-transfer-config")
    return table.get("kv_connector") if isinstance(table, Mapping) else None


def _say(subject: Subject, version: str, rule: str, steps: dict[str, tuple[str, str]]) -> None:
    """Tell which weights and version were taken, and why."""
    base = subject.base.recipe
    same = subject.precision == subject.base_precision
    steps["weights"] = (
        subject.model.weights[subject.weights].id,
        f"{subject.precision}, as the nearest recipe's"
        if same
        else f"{subject.precision}: {subject.hardware.name} computes it, and {subject.model.title} "
        f"has no {subject.base_precision} that it computes and that fits",
    )
    steps["engine version"] = (version, rule)
    if subject.model.name != subject.base.model.name:
        apart = "the same" if _same(subject) else "another"
        steps["model"] = (subject.model.name, f"{apart} architecture as {subject.base.model.name}")
    if base.hardware != subject.hardware.name:
        steps["hardware"] = (subject.hardware.name, f"of the same vendor as {base.hardware}")


def _same(subject: Subject) -> bool:
    return subject.model.architecture == subject.base.model.architecture


def _experts(subject: Subject, names: list[str], steps: dict[str, tuple[str, str]]) -> list[str]:
    """Return the feature that spreads whole experts, where ranks of one node become several."""
    base = subject.base.recipe
    if (
        subject.layout != "dp"
        or base.layout == "dp"
        or _EXPERTS in names
        or subject.hardware.vendor not in load.features()[_EXPERTS].vendors
    ):
        return []
    steps[f"feature {_EXPERTS}"] = ("on", "data parallel ranks over nodes share whole experts")
    return [_EXPERTS]


def _common(subject: Subject, steps: dict[str, tuple[str, str]]) -> schema.Settings:
    """Return the settings of all roles, with the name of this model."""
    settings = adapting.kept(subject, subject.base.recipe.settings, steps)
    settings = adapting.of_the_model(subject, settings, steps)
    name = "served-model-name"
    given = settings.flags.get(name)
    base, item = subject.base, subject.model.weights[subject.weights]
    if given is None or (base.model.name == subject.model.name and "/" not in str(given)):
        return settings
    flags = {key: value for key, value in settings.flags.items() if key != name}
    if given == base.model.weights[base.recipe.weights].id and given != item.id:
        flags[name] = item.id
        steps[name] = (item.id, "the id of these weights")
    elif base.model.name != subject.model.name:
        steps[name] = ("left out", f"it names {base.model.title}")
    else:
        return settings
    return schema.Settings(flags=flags, env=settings.env)


def _without_drafts(
    settings: schema.Settings, names: list[str], steps: dict[str, tuple[str, str]]
) -> schema.Settings:
    """Return the settings of a role without those of a draft that is not there."""
    if "speculative-config" not in settings.flags or any(
        load.features()[name].draft for name in names
    ):
        return settings
    flags = {key: value for key, value in settings.flags.items() if key != "speculative-config"}
    steps["speculative-config"] = ("left out", "there is no draft")
    return schema.Settings(flags=flags, env=settings.env)


def _spec(
    spec: schema.RoleSpec,
    found: Fitted,
    own: schema.Settings,
    features: tuple[str, ...],
    when: list[schema.Settings],
) -> schema.RoleSpec:
    flags: dict[str, Any] = dict(own.flags)
    env: dict[str, Any] = dict(own.env)
    for one in when:  # the features are settled, so that nothing depends on them any more
        flags, env = load.merge(flags, one.flags), load.merge(env, one.env)
    for name, (value, reason) in found.limits.items():
        flags[name] = {"value": value, "reason": reason}
    sizes = found.sizes
    return spec.model_copy(
        update={
            "nodes": sizes.nodes,
            "dp": sizes.dp,
            "tp": sizes.tp,
            "pp": 1,
            "features": features,
            "settings": schema.Settings(flags=flags, env=env),
            "when": {},
        }
    )


def _say_sizes(
    role: str,
    spec: schema.RoleSpec,
    found: Fitted,
    subject: Subject,
    steps: dict[str, tuple[str, str]],
) -> None:
    sizes, there = found.sizes, subject.hardware.devices.count
    heads = subject.model.architecture["heads"]
    rules = {
        "nodes": f"the least that hold the weights and a cache, of {there} devices each",
        "dp": f"{sizes.nodes} x {there} devices / tp {sizes.tp}",
        "tp": f"divides {heads} heads and the {there} devices of a node"
        if sizes.tp <= there
        else f"one rank over {sizes.nodes} nodes of {there} devices, divides {heads} heads",
    }
    before = subject.base.recipe.layout
    for key, rule in rules.items():
        value = getattr(sizes, key)
        if value != getattr(spec, key) or before != subject.layout:
            steps[f"{role}.{key}"] = (str(value), rule)
    for name, (value, rule) in found.limits.items():
        steps[name] = (str(value), rule)


def recipe(parts: Made) -> schema.Recipe:
    """Return the parts as a recipe that plans like any other."""
    subject, base = parts.subject, parts.subject.base
    hardware, steps = subject.hardware, dict(parts.steps)
    install = _install(subject, parts.processes, steps)
    nodes = sum(spec.groups * spec.nodes for spec in parts.specs.values())
    title = f"{subject.model.title} on {nodes} node{'s' * (nodes > 1)} of {hardware.title}"
    kept = (
        f"kept: a setting for {hardware.name}"
        if base.recipe.hardware == hardware.name
        else f"kept: a setting for {hardware.vendor}"
    )
    marks = schema.Derivation(
        model=base.model.name,
        hardware=base.recipe.hardware,
        layout=base.recipe.layout,
        variant=base.recipe.variant,
        base=str(base),
        kept=kept,
        steps=tuple(
            schema.DerivedValue(what=what, value=value, rule=rule)
            for what, (value, rule) in steps.items()
        ),
    )
    own = subject.model.clients
    clients = tuple(name for name in base.recipe.clients if name in own)
    return base.recipe.model_copy(
        update={
            "hardware": hardware.name,
            "layout": subject.layout,
            "variant": install,
            "title": title,
            "documented": False,
            "source": base.recipe.source.model_copy(update={"commands": ()}),
            "engine_version": parts.version,
            "weights": subject.weights,
            "install": install,
            "processes": parts.processes,
            "features": parts.features,
            "settings": parts.settings,
            "roles": dict(parts.specs),
            "scenarios": {},
            "clients": clients or tuple(own)[:1],
            "derivation": marks,
        }
    )


def _install(
    subject: Subject, processes: Literal["node", "rank"], steps: dict[str, tuple[str, str]]
) -> str:
    """Return the way to install: the base's where this hardware has it, else its first one."""
    hardware, wanted = subject.hardware, subject.base.recipe.install
    container = hardware.container
    # An image that starts an engine by itself starts one, and a node has several ranks.
    boxed = container is not None and (processes == "node" or container.entrypoint == "bash")
    able = [name for name in hardware.installs if name != "docker" or boxed]
    if wanted in able:
        return wanted
    if not able:
        raise Impossible(f"no way to install an engine on {hardware.name} is known")
    why = "starts one engine a container" if container else "is not there"
    steps["install"] = (able[0], f"{wanted} {why} on {hardware.name}")
    return able[0]
