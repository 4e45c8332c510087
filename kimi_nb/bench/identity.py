"""What a result is a result of: two with the same identity may be compared, others say why not.

    identity.of(service, load, repetition=1, tool="vllm")     # a dict of plain values
    identity.key(identity)                                    # twelve letters for a file's name
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kimi_nb import __version__, arguments
from kimi_nb.bench.load import Load
from kimi_nb.plan import Plan
from kimi_nb.rehearsal.world import MARK

if TYPE_CHECKING:
    from kimi_nb.served import Service

# Where an engine stands, not how it serves.
_PLACES = (arguments.OWN - {"kv-transfer-config"}) | {
    "data-parallel-rpc-port", "kv-transfer-config.kv_port", "kv-transfer-config.engine_id"}


def of(service: Service, load: Load, repetition: int, tool: str, version: str = "",
       marked: str | None = None) -> dict[str, Any]:
    """The identity of a measurement. ``tool`` is vllm or kimi_nb, ``version`` that of the tool;
    ``marked`` is the service's mark where it is known already (asking costs a request)."""
    plan, mark = service.plan, service.mark if marked is None else marked
    return {**of_plan(plan), "mark": MARK if mark == MARK else "",
            "attached": service.elsewhere, "tool": tool,
            "tool_version": version or (__version__ if tool == "kimi_nb" else ""),
            **load.as_dict(), "repetition": repetition}


def of_plan(plan: Plan) -> dict[str, Any]:
    """The part of an identity that the plan alone gives. ``prefix_cache`` is null where no flag
    says, and the engine's own default holds."""
    caching = {role: flags["enable-prefix-caching"].value for role, flags in plan.flags.items()
               if "enable-prefix-caching" in flags}
    values = set(caching.values())
    return {"model": plan.model, "served_name": plan.served_name, "weights": plan.weights,
            "hardware": plan.hardware, "nodes": len(plan.nodes), "devices": devices(plan),
            "layout": plan.layout, "variant": plan.variant, "scenario": plan.scenario,
            "engine": plan.engine, "engine_version": plan.engine_version,
            "vllm_version": plan.vllm_version, "flags": flags_hash(plan),
            "prefix_cache": values.pop() if len(values) == 1 else caching or None}


def devices(plan: Plan) -> int:
    """Accelerators in use."""
    return len({(engine.node, device) for engine in plan.engines for device in engine.devices})


def flags_hash(plan: Plan) -> str:
    """Twelve hex digits of every serve flag and variable but addresses and ports, of the shape
    and of the router: a change of any of them is another measurement."""
    settings = {kind: {role: {name: value.value for name, value in sorted(values.items())
                              if name not in _PLACES}
                       for role, values in sorted(table.items())}
                for kind, table in (("flags", plan.flags), ("env", plan.env))}
    shape = sorted({(one.role, one.group, one.ranks, one.dp_size, one.tp_size)
                    for one in plan.engines})
    return key({**settings, "shape": shape, "engines": len(plan.engines),
                "router": plan.router.kind if plan.router else ""})


def key(identity: Mapping[str, Any]) -> str:
    """Twelve hex digits that stand for an identity."""
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
