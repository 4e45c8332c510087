"""Turn a point into a plan: the overrides that ``kimi-nb plan --set`` takes, and its site."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

from kimi_nb.params import load, schema
from kimi_nb.plan import build, router
from kimi_nb.plan.roles import HYBRID
from kimi_nb.plan.spec import Plan
from kimi_nb.sizing import units
from kimi_nb.sizing.points import Group, Point


def pairs(point: Point) -> list[str]:
    """Return the key=value pairs that turn the recipe of a point into the point."""
    out: list[str] = []
    for group in point.groups:
        out += _shape(group) + _limits(point, group) + _drafts(point, group)
    asked = point.base.request
    if point.base.layout != "pd" and point.groups[0].count > 1 and asked.recipe.router is None:
        out.append(f"router={router.VLLM_ROUTER}")
    return out


def _shape(group: Group) -> list[str]:
    """Return the pairs of the sizes that are not those of the recipe."""
    part, shape = group.unit.part, group.unit.kind.shape
    wanted = {
        "groups": (group.count, part.groups),
        "nodes": (group.unit.nodes, part.nodes),
        "dp": (shape.dp, part.shape.dp),
        "tp": (shape.tp, part.shape.tp),
        "pp": (shape.pp, part.shape.pp),
    }
    out = [f"{part.role}.{key}={new}" for key, (new, old) in wanted.items() if new != old]
    if shape.expert_parallel and not part.shape.expert_parallel:
        out.append(f"{part.role}.enable-expert-parallel=true")
    if part.flags.get(HYBRID) and (group.unit.nodes == 1 or shape.dp < group.unit.nodes):
        out.append(f"{part.role}.{HYBRID}=null")
    if shape.pcp != part.shape.pcp:
        wide = shape.pcp if shape.pcp > 1 else "null"
        out.append(f"{part.role}.prefill-context-parallel-size={wide}")
    if shape.dcp != part.shape.dcp:
        out.append(f"{part.role}.decode-context-parallel-size={shape.dcp}")
    return out


def _limits(point: Point, group: Group) -> list[str]:
    part, unit = group.unit.part, group.unit
    out = []
    if unit.length != part.shape.model_len:
        out.append(f"{part.role}.max-model-len={unit.length}")
    if group.seqs != part.flags.get("max-num-seqs", part.shape.seqs):
        out.append(f"{part.role}.max-num-seqs={group.seqs}")
    batched = unit.batched(group.seqs)
    if batched != part.shape.batched_tokens:
        out.append(f"{part.role}.max-num-batched-tokens={batched}")
    if unit.cache:
        out.append(f"{part.role}.kv-cache-dtype={unit.cache}")
    reads = part.role != "decode" and unit.load.hit > 0
    if reads and part.flags.get("enable-prefix-caching") is False:
        out.append(f"{part.role}.enable-prefix-caching=true")
    buffer = unit.buffers.get(group.seqs, 0)
    if buffer and buffer != part.shape.buffer_mib:
        out.append(f"{part.role}.env.HCCL_BUFFSIZE={buffer}")
    sizes = units.graph_sizes(point.base, unit, group.seqs)
    if sizes:
        listed = json.dumps(sizes, separators=(",", ":"))
        out.append(f"{part.role}.compilation-config.cudagraph_capture_sizes={listed}")
    return out


def _drafts(point: Point, group: Group) -> list[str]:
    """Return the pairs of drafts; a service without drafts has none in prefill either."""
    part, drafts = group.unit.part, group.unit.kind.drafts
    writing = point.groups[-1].unit.kind.drafts
    if part.drafts and not writing:
        return [f"{part.role}.speculative-config=null"]
    if part.role == "prefill" or drafts == part.drafts:
        return []
    return [f"{part.role}.speculative-config.num_speculative_tokens={drafts}"]


def axes(point: Point, most: int = 0) -> str:
    """Return the axes of a sweep around a point: half its sequences, its own, twice as many.

    Requests at once are half of what the whole service runs, and all of it; at most ``most`` of
    them, 0: no limit. Such as "mixed.max-num-seqs: [16, 32]; concurrency: [64, 128]".
    """
    group = point.groups[-1]
    less = [one for one in group.unit.seqs if 2 * one <= group.seqs]
    more = [one for one in group.unit.seqs if one >= 2 * group.seqs]
    seqs = [*less[-1:], group.seqs, *more[:1]]
    whole = group.count * group.unit.kind.shape.dp * group.seqs
    loads = sorted({min(max(one, 1), most or one) for one in (whole // 2, whole)})
    return f"{group.unit.part.role}.max-num-seqs: {seqs}; concurrency: {loads}"


def options(point: Point, site: str) -> list[str]:
    """Return the words of ``kimi-nb plan`` for a point, the name of the command first."""
    words = ["plan", "--model", point.base.model, "--hw", point.base.chip]
    words += ["--layout", point.base.layout]
    if point.base.derive:
        words.append("--derive")
    if site:
        words += ["--site", site]
    for pair in pairs(point):
        words += ["--set", pair]
    return words


def command(point: Point, site: str) -> str:
    """Return the command line that shows the plan of a point."""
    return shlex.join(["kimi-nb", *options(point, site)])


def site_of(point: Point, given: str) -> tuple[str, schema.Site | None]:
    """Return the name to give with --site ("": none is needed), and a site grown for the point.

    Example sites have few nodes: where none has enough, one of as many is made up, as a plan of a
    derived recipe does, and the user names a site of their own.
    """
    asked = point.base.request
    if given or len(asked.site.nodes) >= point.nodes:
        return given, None
    wide = build.example_site(asked.hardware, None, nodes=point.nodes)
    if len(wide.nodes) >= point.nodes:
        return wide.name if wide.name in load.names("sites") else _file_name(wide), None
    return "", build.grown(wide, point.nodes)


def _file_name(site: schema.Site) -> str:
    """Return the name of the file of an example site, whose own name is another."""
    return next(name for name in load.names("sites") if load.site(name).name == site.name)


def plan(point: Point, given: str) -> Plan:
    """Return the plan of a point. Raises KimiErrors where the planner refuses it."""
    name, grown = site_of(point, given)
    request = build.request(
        point.base.model,
        point.base.chip,
        point.base.layout,
        pairs=pairs(point),
        derive=point.base.derive,
        site=name,
    )
    return build.from_request(replace(request, site=grown) if grown else request)


def described(point: Point) -> str:
    """Return the sizes of a point in few words.

    Such as "2 x prefill dp2 tp8, 1 x decode dp16 tp2, drafts 3, max-num-seqs 24".
    """
    out = []
    for group in point.groups:
        shape: Any = group.unit.kind.shape
        role = "" if group.unit.part.role == "mixed" else f"{group.unit.part.role} "
        nodes = f" on {group.unit.nodes} nodes" if group.unit.nodes > 1 else ""
        sizes = (("pp", shape.pp), ("pcp", shape.pcp), ("dcp", shape.dcp))
        split = "".join(f" {name}{size}" for name, size in sizes if size > 1)
        out.append(f"{group.count} x {role}dp{shape.dp} tp{shape.tp}{split}{nodes}")
    last = point.groups[-1]
    out.append(f"{last.seqs} sequence{'s' * (last.seqs > 1)} a rank")
    if last.unit.kind.drafts:
        drafts = last.unit.kind.drafts
        out.append(f"{drafts} draft{'s' * (drafts > 1)}")
    if last.unit.cache:
        out.append(f"{last.unit.cache} cache")
    return ", ".join(out)
