"""Write what others publish as recipes of ours: the facts of a deployment as a dictionary for YAML.

A plan works out most of a command line itself (parallel sizes, ranks, addresses, ports), and knows
features by name. What is left after both are taken away is a recipe's settings:

    recipe = as_recipe.recipe(deployment, load.model("k2.7-code"), load.hardware("h200"))
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kimi_nb.catalog import fill_ins
from kimi_nb.core import data_files
from kimi_nb.params import load, overrides, schema
from kimi_nb.params.settings import flattened, nested
from kimi_nb.upstream.counted import Deployment, Role

SHAPE = ("groups", "nodes", "dp", "tp", "pp")
_SIDE_PORT, _SIDE_HOST = "VLLM_NIXL_SIDE_CHANNEL_PORT", "VLLM_NIXL_SIDE_CHANNEL_HOST"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
# What a plan fills in where a publisher leaves a variable to the reader.
_FILLED = {
    **dict.fromkeys(_INTERFACES, "{nic}"),
    **dict.fromkeys(("HCCL_IF_IP", "VLLM_HOST_IP", _SIDE_HOST), "{address}"),
    "MOONCAKE_CONFIG_PATH": "{work}/mooncake.json",
}


def recipe(
    deployment: Deployment,
    model: schema.Model,
    hardware: schema.Hardware,
    weights: str,
    named: bool = True,
) -> dict[str, Any]:
    """Return a deployment as the keys of a recipe, without its title, variant and version.

    What errata of the publisher take away is left out: flags and variables of its own machines, and
    what no service should have.

    Without ``named`` nothing is taken for a feature, so that two deployments can be compared.
    """
    leading = _leading(deployment.roles)
    gone = _taken_away(deployment.id)
    taken = {
        role: _settings(one, model, hardware, model.weights[weights], gone) for role, one in leading
    }
    pd = "prefill" in taken
    layout = "pd" if pd else "dp" if leading[0][1].nodes > 1 else "single"
    active = {
        role: _features(each, role, layout, model, hardware) if named else []
        for role, each in taken.items()
    }
    shared = [
        name for name in next(iter(active.values())) if all(name in a for a in active.values())
    ]
    left = {
        role: _without(each, active[role], model, hardware, model.weights[weights])
        for role, each in taken.items()
    }
    common = _common(list(left.values()))
    out: dict[str, Any] = {
        "hardware": hardware.name,
        "layout": layout,
        "tried": deployment.verified,
        "weights": weights,
        **({"processes": "rank"} if any(one.per_rank for _, one in leading) else {}),
        "features": shared,
        "settings": _tables(common),
        "roles": {},
    }
    for role, one in leading:
        own = {key: value for key, value in left[role].items() if key not in common}
        out["roles"][role] = _role(
            one, [name for name in active[role] if name not in shared], _tables(own)
        )
    return out


def _leading(roles: Iterable[Role]) -> list[tuple[str, Role]]:
    """Return the first engine of each of our roles: followers differ by their rank alone."""
    found: dict[Any, Role] = {}
    for one in roles:
        name = one.name if one.name in ("prefill", "decode") else "mixed"
        if name != "mixed" or "worker" not in one.name:
            found.setdefault(name, one)
    return list(found.items())


def leaves(role: Role) -> dict[str, Any]:
    """Return the flags of a role by dotted name, without dashes: what is off is False."""
    out: dict[str, Any] = {}
    for flag, value in role.argv:
        name = flag.removeprefix("--")
        if name.startswith("no-") and value is True:
            name, value = name.removeprefix("no-"), False
        out.update(flattened(name, value))
    return out


def _settings(
    role: Role,
    model: schema.Model,
    hardware: schema.Hardware,
    weights: schema.Weights,
    gone: Mapping[str, Sequence[str]],
) -> dict[tuple[str, str], Any]:
    """Return what a role sets beyond hardware, model and weights; None where it lacks theirs."""
    own: dict[tuple[str, str], Any] = {
        ("flags", name): value
        for name, value in leaves(role).items()
        if not overrides.is_derived(name) and not _among(name, gone["argv"]) and not _open(value)
    }
    for name, value in role.env.items():
        text = str(value)
        if name.endswith("_VISIBLE_DEVICES") or _among(name, gone["env"]):
            continue  # the plan gives each engine the devices of its shape
        if name == _SIDE_PORT or (name in hardware.group_env and name in _INTERFACES):
            continue
        if name in hardware.network_env:
            continue
        if _open(text):
            text = _FILLED.get(name, "")
            if not text:
                continue
        own["env", name] = text
    below = _below(hardware, model, weights)
    out = {key: value for key, value in own.items() if _differs(value, below.get(key))}
    return out | {key: None for key in below if key not in own}


def _open(value: Any) -> bool:
    """Return whether a value is left to the reader, as ``$PORT`` and ``<path>`` are."""
    return isinstance(value, str) and fill_ins.holds(value)


def _taken_away(deployment: str) -> dict[str, list[str]]:
    """Return the patterns of flags and variables that no plan of a deployment is to have."""
    out: dict[str, list[str]] = {"argv": [], "env": []}
    for entry in data_files.facts("params/upstream_errata")["errata"]:
        changes = entry["changes"]
        if _among(deployment, entry["deployments"]) and all(one["uses"] is None for one in changes):
            for change in changes:
                out[change["where"]].append(change["name"])
    return out


def _among(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _below(
    hardware: schema.Hardware, model: schema.Model, weights: schema.Weights
) -> dict[tuple[str, str], Any]:
    out: dict[tuple[str, str], Any] = {}
    for each in (hardware.settings, model.settings, weights.settings):
        out.update(_flat(each))
    return {key: value for key, value in out.items() if value is not None}


def _flat(settings: schema.Settings) -> dict[tuple[str, str], Any]:
    flags = {
        leaf: value
        for name, given in settings.flags.items()
        for leaf, value in flattened(name, _plain(given)).items()
    }
    return {("flags", name): value for name, value in flags.items()} | {
        ("env", name): _plain(value) for name, value in settings.env.items()
    }


def _plain(given: Any) -> Any:
    return (
        given["value"] if isinstance(given, dict) and set(given) == {"value", "reason"} else given
    )


def _differs(one: Any, other: Any) -> bool:
    return other is None or str(one) != str(other)


def _features(
    has: Mapping[tuple[str, str], Any],
    role: str,
    layout: str,
    model: schema.Model,
    hardware: schema.Hardware,
) -> list[str]:
    """Return the features that a role has switched on, as far as they are known here."""
    found: list[str] = []
    for name, feature in load.features().items():
        if (
            hardware.vendor in feature.vendors
            and layout in feature.layouts
            and role in feature.roles
            and (not feature.models or model.name in feature.models)
            and (on := _on(feature, model, hardware))
            and all(not _differs(value, has.get(key)) for key, value in on.items())
        ):
            found.append(name)
    known = load.features()
    return [
        name
        for name in found
        if all(other in found for other in known[name].requires)
        and not any(other in found[: found.index(name)] for other in known[name].excludes)
    ]


def _on(
    feature: schema.Feature, model: schema.Model, hardware: schema.Hardware
) -> dict[tuple[str, str], Any]:
    """Return what a feature sets; of a draft its method and id, since its length may differ."""
    if not feature.draft:
        return _flat(feature.on)
    draft = model.drafts.get(feature.draft)
    if draft is None or hardware.vendor not in draft.vendors:
        return {}
    return {
        ("flags", "speculative-config.method"): draft.method,
        ("flags", "speculative-config.model"): draft.id,
    }


def _without(
    has: Mapping[tuple[str, str], Any],
    features: Sequence[str],
    model: schema.Model,
    hardware: schema.Hardware,
    weights: schema.Weights,
) -> dict[tuple[str, str], Any]:
    """Return settings without those that features make."""
    left = dict(has)
    below = _below(hardware, model, weights)
    for name in features:
        feature = load.features()[name]
        for key in _on(feature, model, hardware):
            left.pop(key, None)
        if feature.draft:
            tokens = ("flags", "speculative-config.num_speculative_tokens")
            if left.get(tokens) == model.drafts[feature.draft].tokens:
                del left[tokens]
    return {key: value for key, value in left.items() if value is not None or key in below}


def _common(each: list[dict[tuple[str, str], Any]]) -> dict[tuple[str, str], Any]:
    first = each[0]
    return {
        key: value
        for key, value in first.items()
        if all(key in other and other[key] == value for other in each)
    }


def _tables(flat: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    flags = nested({name: value for (table, name), value in flat.items() if table == "flags"})
    env = {name: value for (table, name), value in flat.items() if table == "env"}
    return {key: value for key, value in (("env", env), ("flags", flags)) if value}


def _role(one: Role, features: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {key: size for key in SHAPE if (size := getattr(one, key)) > 1}
    for key, value in (("ports", dict(one.ports)), ("features", features), ("settings", settings)):
        if value:
            out[key] = value
    return out
