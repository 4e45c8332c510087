"""What a result is a result of: results with the same identity can be compared.

Usage::

    about = identity.of(plan, load, 1, tool="vllm", tool_version="0.32.0")  # plain values
    identity.key(about)  # twelve hexadecimal digits, for a file name
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kimi_nb.catalog import arguments
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench.workload import Load

# Flags that say where an engine is, not how it serves.
_PLACES = (arguments.OWN - {"kv-transfer-config"}) | {
    "data-parallel-rpc-port",
    "kv-transfer-config.kv_port",
    "kv-transfer-config.engine_id",
}


def of(
    plan: Plan,
    load: Load,
    repetition: int,
    *,
    tool: str,
    tool_version: str,
    mark: str = "",
    attached: str = "",
) -> dict[str, Any]:
    """Return the identity of a measurement.

    ``tool`` is vllm or kimi_nb, ``mark`` is REHEARSAL or "". ``attached`` is the URL of a service
    that was running already, so that its flags are not known.
    """
    return {
        **of_plan(plan),
        "mark": mark,
        "attached": attached,
        "tool": tool,
        "tool_version": tool_version,
        **load.as_dict(),
        "repetition": repetition,
    }


def of_plan(plan: Plan) -> dict[str, Any]:
    """Return the part of an identity that depends on the plan alone.

    ``prefix_cache`` is None if no flag sets it, so that the engine's default applies.
    """
    caching = {
        role: flags["enable-prefix-caching"].value
        for role, flags in plan.flags.items()
        if "enable-prefix-caching" in flags
    }
    values = set(caching.values())
    return {
        "model": plan.model,
        "served_name": plan.served_name,
        "weights": plan.weights,
        "hardware": plan.hardware,
        "nodes": len(plan.nodes),
        "devices": devices(plan),
        "layout": plan.layout,
        "variant": plan.variant,
        "scenario": plan.scenario,
        "engine": plan.engine,
        "engine_version": plan.engine_version,
        "vllm_version": plan.vllm_version,
        "flags": flags_hash(plan),
        "prefix_cache": values.pop() if len(values) == 1 else caching or None,
    }


def devices(plan: Plan) -> int:
    """Return the number of accelerators in use."""
    return len({(engine.node, device) for engine in plan.engines for device in engine.devices})


def flags_hash(plan: Plan) -> str:
    """Return twelve hexadecimal digits that stand for all settings that affect performance.

    These are every serve flag and variable except addresses and ports, the shape, and the kind of
    router. If any of them changes, it is another measurement.
    """
    shape = sorted(
        {
            (one.role, one.group, one.ranks, one.dp_size, one.tp_size)
            # A size that is not used is left out: measurements of before keep their key.
            + ((one.pp_size, one.pcp_size) if one.world != one.tp_size else ())
            for one in plan.engines
        }
    )
    return key(
        {
            **settings(plan),
            "shape": shape,
            "engines": len(plan.engines),
            "router": plan.router.kind if plan.router else "",
        }
    )


def settings(plan: Plan) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the flags and the variables of each role, without addresses and ports."""
    return {
        kind: {
            role: {
                name: value.value for name, value in sorted(values.items()) if name not in _PLACES
            }
            for role, values in sorted(table.items())
        }
        for kind, table in (("flags", plan.flags), ("env", plan.env))
    }


def key(identity: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits that stand for an identity.

    >>> key({"concurrency": 8})
    '1994188c36dc'
    """
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
