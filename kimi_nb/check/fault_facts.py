"""What the conditions of known faults may ask of a deployment, in plain values.

>>> from kimi_nb.plan import build
>>> told = of_plan(build.plan("k2.6", "a3", "pd", engine_version="0.22.1rc1"))
>>> [fault.id for fault, _ in told if fault.severity == "warning"][:1]
['va-unhashable']

The names that `_around` and `_facts` make are those that ``when`` may use in
``data/catalog/known_faults.yaml``, beside flags and variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kimi_nb import catalog
from kimi_nb.catalog import arguments, known_faults
from kimi_nb.catalog.known_faults import KnownFault, Situation
from kimi_nb.check.view import engine_view
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.core import data_files
from kimi_nb.params import recipes, schema
from kimi_nb.plan import ports
from kimi_nb.plan.spec import Container, EngineSpec, Plan

if TYPE_CHECKING:  # start-up: a plan needs no deployment
    from kimi_nb.check.view.deployment import Deployment

_MEMORY_LIMITS = {"--memory", "-m"}  # of docker run
_DISAGGREGATED = ("prefill", "decode")


def of(d: Deployment) -> list[tuple[KnownFault, list[EngineView]]]:
    """Return the known faults that a deployment meets, each with the engines that meet it."""
    servers = [server for server, _ in d.profiles()]
    told = known_faults.of(
        d.engine,
        situations(d),
        recipes.known_as(d.model) if d.model else None,
        _names(d.hardware),
        d.engine_stated,
    )
    return [(fault, [servers[number] for number in numbers]) for fault, numbers in told]


def situations(d: Deployment) -> list[Situation]:
    """Return what conditions may ask of each kind of engine of a deployment."""
    groups = [(group[0].role, {one.node for one in group}) for group in d.groups()]
    proxy = next((one.kind for one in d.proxies), None)
    limited = any(_MEMORY_LIMITS & set(box.options) for box in d.boxes)
    around = _around(d.engine, groups, proxy, limited, d.model, d.weights, d.hardware)
    return _situations([server for server, _ in d.profiles()], around, d.devices_per_node)


def of_plan(plan: Plan, stated: str = "") -> list[tuple[KnownFault, list[str]]]:
    """Return the known faults that a plan meets, each with the roles that meet it.

    They are those of `of`, read of one engine of each role: a plan of thousands takes no longer.
    ``stated`` is another version that is asked about in the place of the plan's.
    """
    engine = catalog.engine(plan.engine, plan.engine_version)
    first: dict[tuple[str, bool], EngineSpec] = {}
    groups: dict[tuple[str, int], set[str]] = {}
    for one in plan.engines:
        first.setdefault((one.role, one.headless), one)
        groups.setdefault((one.role, one.group), set()).add(one.node)
    servers = [
        engine_view.of(engine, one.argv, one.env, Spot(one.name), one.node)
        for one in first.values()
    ]
    asked = plan.request
    around = _around(
        engine,
        [(role, nodes) for (role, _), nodes in groups.items()],
        plan.router.kind if plan.router else None,
        any(_MEMORY_LIMITS & set(_options(one)) for one in plan.containers),
        asked.model if asked else None,
        asked.weights if asked else None,
        asked.hardware if asked else None,
    )
    told = known_faults.of(
        engine,
        _situations(servers, around, plan.devices_per_node),
        recipes.known_as(asked.model) if asked else plan.model,
        _names(asked.hardware if asked else None),
        stated,
    )
    roles = [role for role, _ in first]
    return [
        (fault, list(dict.fromkeys(roles[number] for number in numbers))) for fault, numbers in told
    ]


def _options(container: Container) -> list[str]:
    """Return the options of a docker run, without what runs inside."""
    end = container.argv.index(container.image) if container.image in container.argv else None
    return [word.partition("=")[0] for word in container.argv[:end]]


def _names(hardware: schema.Hardware | None) -> tuple[str, ...]:
    """Return the names by which faults call a hardware: its own, and of what it is like."""
    return (hardware.name, hardware.recipes_of) if hardware else ()


def _around(
    engine: catalog.Engine,
    groups: Sequence[tuple[str, set[str]]],
    proxy: str | None,
    limited: bool,
    model: schema.Model | None,
    weights: schema.Weights | None,
    hardware: schema.Hardware | None,
) -> dict[str, Any]:
    """Return what is the same for all engines; ``groups`` are (role, nodes)."""
    has = model.architecture if model else {}
    row = data_files.facts("catalog/versions")["vllm-ascend"].get(engine.version, {})
    cann = row.get("cann") if engine.package == "vllm-ascend" else None
    return {
        "nodes": len(set().union(*(nodes for _, nodes in groups))) if groups else 0,
        "spread": any(len(nodes) > 1 for _, nodes in groups),
        "disaggregated": any(role in _DISAGGREGATED for role, _ in groups),
        "prefill_groups": sum(role == "prefill" for role, _ in groups),
        "proxy": proxy,
        "container_memory_limit": limited,
        "mla": "kv_lora_rank" in has,
        "moe": "experts" in has,
        "shared_experts": "shared_experts" in has,
        "precision": weights.precision if weights else None,
        "architecture": hardware.architecture if hardware else None,
        "cann": cann,
    }


def _situations(
    servers: Sequence[EngineView], around: Mapping[str, Any], devices: int | None
) -> list[Situation]:
    sizes = {role: {one.tp for one in servers if one.role == role} for role in _DISAGGREGATED}
    unequal = all(sizes.values()) and sizes["prefill"] != sizes["decode"]
    return [
        Situation(
            {**around, **_facts(one, around, unequal, devices)},
            {**_refused(one), **one.flags},
            one.env,
            whole="config" not in one.flags,
        )
        for one in servers
    ]


def _refused(one: EngineView) -> dict[str, Any]:
    """Return the flags that its version does not know: there, without a value that counts."""
    return {each.name: arguments.Unread(each.spelt) for each in one.given if each.fault}


def _facts(
    one: EngineView, around: Mapping[str, Any], unequal: bool, devices: int | None
) -> dict[str, Any]:
    """Return what is known of one engine."""
    spread = around["spread"] or _is_part(one)
    draft = one.table("speculative-config")
    names = tuple(str(table.get("kv_connector", "")) for table in one.transfers)
    said = _tensor_parallel(one)
    return {
        "layout": "pd" if around["disaggregated"] else "dp" if spread else "single",
        "nodes": max(around["nodes"], 2 if spread else 1),
        "role": one.role,
        "headless": one.headless,
        "tp": one.tp,
        "pp": one.pp,
        "dp": one.dp,
        "dcp": one.number("decode-context-parallel-size") or 1,
        "pcp": one.number("prefill-context-parallel-size") or 1,
        "eager": one.flags.get("enforce-eager") is True,
        "prefix_caching": one.flags.get("enable-prefix-caching") is not False,
        "draft": draft.get("method"),
        "draft_model": draft.get("model"),
        "connector": names,
        "kv_role": tuple(str(table.get("kv_role", "")) for table in one.transfers),
        "unequal_tp": len(set(said)) > 1 if said else unequal,
        "kv_port_random": _is_random(one, names, devices),
    }


def _is_part(one: EngineView) -> bool:
    """Return whether an engine says of itself that others of its group run elsewhere."""
    if (one.number("nnodes") or 1) > 1:
        return True
    known = one.ranks is not None and one.dp is not None
    return known and not one.single and (one.ranks or 0) < (one.dp or 0)


def _tensor_parallel(one: EngineView) -> list[Any]:
    """Return the tensor parallel sizes of both sides, as a Mooncake connector is told them."""
    for table in one.transfers:
        extra = table.get("kv_connector_extra_config")
        sides = [extra.get(role) for role in _DISAGGREGATED] if isinstance(extra, dict) else []
        if sides and all(isinstance(side, dict) and "tp_size" in side for side in sides):
            return [side["tp_size"] for side in sides if isinstance(side, dict)]
    return []


def _is_random(one: EngineView, connectors: Sequence[str], devices: int | None) -> bool:
    """Return whether a KV port lies where the Ascend transport takes random ones."""
    if one.kv_port is None or not any(name.startswith("Mooncake") for name in connectors):
        return False
    random = ports.ascend_random(devices or 16)
    wanted = ports.kv(one.kv_port, 0, one.tp or 1, one.ranks or 1)
    return wanted.start < random.stop and wanted.stop > random.start
