"""Draw how one request travels through a plan, as numbered steps between those who take part.

Example::

    request_path.picture(plan)

Sources: vllm-ascend's load_balance_proxy_server_example.py and vllm-router (who is asked in which
order, with kv_transfer_params); vLLM's NixlConnector and vllm-ascend's MooncakeConnectorV1 (decode
reads the cache from prefill). Addresses and ports are the plan's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kimi_nb.notebook.pictures import diagram, role_views
from kimi_nb.notebook.pictures.role_views import RoleView
from kimi_nb.plan.spec import EngineSpec, Plan, authority
from kimi_nb.show import spans, style
from kimi_nb.show.picture import Picture

CLIENT, ROUTER, STORE = "client", "router", "KV store"
UPSTREAM = "upstream"  # the router of this kind is the example proxy of vllm-ascend
_CACHE = "cache"  # the kind of a step that moves the KV cache
_LANES, _LEFT, _WORDS, _WIDTH = 324, 40, 426, 784
_PULLS = ("Nixl", "MooncakeConnectorV1")  # decode reads the cache, once it knows where it lies


@dataclass(frozen=True)
class Step:
    """One step of a request: from whom to whom (the same for work of one's own), what, where."""

    start: str
    end: str
    what: str
    where: str
    kind: str = "request"


def steps(plan: Plan) -> tuple[Step, ...]:
    """Return the steps of a request, in their order."""
    views = {view.role: view for view in role_views.of(plan)}
    return _apart(plan, views) if "prefill" in plan.flags else _together(plan, views)


def picture(plan: Plan) -> Picture:
    """Draw the steps as arrows between lanes, each with its words beside it."""
    found = steps(plan)
    lanes = list(dict.fromkeys(name for step in found for name in (step.start, step.end)))
    drawing = diagram.Diagram(_WIDTH)
    between = (_LANES - 2 * _LEFT) / max(len(lanes) - 1, 1)
    at = {lane: _LEFT + index * between for index, lane in enumerate(lanes)}
    wide = min(84, between - 6)
    for lane in lanes:
        drawing.box(at[lane] - wide / 2, 6, wide, 26, line=1.2)
        drawing.text(at[lane], 23, lane, anchor="middle", bold=True, size=10.5, room=wide - 2)
    y = 56.0
    for number, step in enumerate(found, 1):
        drawing.text(_LANES + 26, y, step.what, bold=True, room=_WORDS)
        below = drawing.paragraph(_LANES + 26, y + 14.5, step.where, _WORDS, size=9.5)
        _arrow(drawing, step, at, y + 2, number)
        y = max(below, y + 24) + 14
    for lane in lanes:
        drawing.line([(at[lane], 32), (at[lane], y - 14)], shade=0.3, dashed=True, behind=True)
    said = "; ".join(
        f"{number}) {step.start} to {step.end}: {step.what}; {step.where}"
        if step.start != step.end
        else f"{number}) {step.start}: {step.what}; {step.where}"
        for number, step in enumerate(found, 1)
    )
    title = f"{plan.heading}: how one request travels"
    rows = tuple({"step": number} | asdict(step) for number, step in enumerate(found, 1))
    return Picture("request", title, drawing.finish(y - 6), f"{title}. {said}.", rows)


def _arrow(
    drawing: diagram.Diagram, step: Step, at: dict[str, float], y: float, number: int
) -> None:
    """Draw the arrow of a step with its number; work of one's own is a block on its lane."""
    colour = style.VERMILLION if step.kind == _CACHE else style.BLUE
    start, end = at[step.start], at[step.end]
    if start == end:
        drawing.box(start - 11, y - 14, 22, 28, edge=style.GREEN, fill=style.GREEN, round_by=11)
        drawing.badge(start, y, str(number), style.GREEN, style.on(style.GREEN))
        return
    way = 1 if end > start else -1
    drawing.line(
        [(start, y), (end - way, y)],
        colour=colour,
        wide=1.8,
        arrow=True,
        dashed=step.kind == _CACHE,
    )
    drawing.badge(start + way * 14, y, str(number), colour, style.on(colour))


def _apart(plan: Plan, views: dict[str, RoleView]) -> tuple[Step, ...]:
    """Return the steps where prefill and decode have engines of their own."""
    prefill, decode = plan.first("prefill"), plan.first("decode")
    connector = str(_flag(plan, "prefill", "kv-transfer-config.kv_connector") or "the connector")
    front = ROUTER if plan.router else "prefill"
    out = [Step(CLIENT, front, "POST /v1/chat/completions", _door(plan))]
    if plan.router:
        out.append(
            Step(
                ROUTER,
                "prefill",
                "The prompt, for one token",
                f"{_apis(plan, 'prefill')}, {_choice(plan)}; max_tokens 1, so that it ends after "
                "the prompt",
            )
        )
    out += _looked_up(plan, "prefill")
    out.append(Step("prefill", "prefill", "Computes the prompt", _prefilling(prefill, views)))
    out += _kept(plan, "prefill")
    if plan.router:
        out += [
            Step(
                "prefill",
                ROUTER,
                "Says where the cache lies",
                "kv_transfer_params of its answer: engine, address, port, blocks",
            ),
            Step(
                ROUTER,
                "decode",
                "The request, with kv_transfer_params",
                f"{_apis(plan, 'decode')}, {_choice(plan)}",
            ),
        ]
    out.append(_transfer(plan, connector, prefill))
    out.append(Step("decode", "decode", "Generates the answer", _decoding(decode, views)))
    out.append(Step("decode", CLIENT, "The answer, token by token", _way_back(plan)))
    return tuple(out)


def _together(plan: Plan, views: dict[str, RoleView]) -> tuple[Step, ...]:
    """Return the steps where each engine does prefill and decode."""
    role = next(iter(plan.flags))
    first = plan.first(role)
    door = ROUTER if plan.router else "API"
    out = [Step(CLIENT, door, "POST /v1/chat/completions", _door(plan))]
    if plan.router:
        out.append(
            Step(
                ROUTER, "API", "The request, to one engine", f"{_apis(plan, role)}, {_choice(plan)}"
            )
        )
    out.append(Step("API", "engine", "The prompt as tokens, to a rank", _ranks(plan, first)))
    out += _looked_up(plan, "engine")
    out.append(Step("engine", "engine", "Prefill: computes the prompt", _prefilling(first, views)))
    out += _kept(plan, "engine")
    out.append(Step("engine", "engine", "Decode: generates the answer", _decoding(first, views)))
    out.append(Step("engine", CLIENT, "The answer, token by token", _way_back(plan)))
    return tuple(out)


def _door(plan: Plan) -> str:
    if plan.router is None:
        return f"{plan.url}, the API of {plan.engines[0].node}"
    kind = "vllm-ascend's proxy" if plan.router.kind == UPSTREAM else plan.router.kind
    return f"{plan.url}, {kind} on {plan.router.node}"


def _apis(plan: Plan, role: str) -> str:
    """Return where the APIs of a role are: the first, and how many more there are."""
    doors = [one for one in plan.engines if one.role == role and one.http_port is not None]
    if not doors:
        return "no API"
    first = authority(doors[0].address, doors[0].http_port or 0)
    return f"{first} or one of {len(doors) - 1} more" if len(doors) > 1 else first


def _choice(plan: Plan) -> str:
    if plan.router is None:
        return ""
    if "--policy" in plan.router.argv:
        policy = plan.router.argv[plan.router.argv.index("--policy") + 1]
        return "in turn" if policy == "round_robin" else f"by {policy}"
    return "the least loaded"


def _ranks(plan: Plan, first: EngineSpec) -> str:
    """Return how a rank is chosen, and where the ranks of other nodes are reached."""
    group = [one for one in plan.engines if one.role == first.role and one.group == first.group]
    nodes = len({one.node for one in group})
    if first.spans:
        return f"one rank over {nodes} nodes, which meet at {_master(first)}"
    if first.dp_size < 2:
        return f"the only rank, on {first.node}"
    if sum(one.http_port is not None for one in group) > 1:
        return f"each API has its own: {first.ranks} of {first.dp_size} ranks here"
    text = f"the least loaded of {first.dp_size} ranks"
    if nodes > 1 and first.rpc_port is not None:
        text += f"; those of other nodes joined at {authority(first.address, first.rpc_port)} (rpc)"
    return text


def _master(first: EngineSpec) -> str:
    return authority(first.address, first.master_port or 0) + " (master)"


def _prefilling(engine: EngineSpec, views: dict[str, RoleView]) -> str:
    view = views.get(engine.role)
    step = view.shape.batched_tokens if view and view.shape else None
    return f"on {_devices(engine)}" + (f"; a step takes up to {step:,} tokens" if step else "")


def _decoding(engine: EngineSpec, views: dict[str, RoleView]) -> str:
    view = views.get(engine.role)
    text = f"on {_devices(engine)}; "
    draft = view.server.draft if view else 0
    method = view.server.table("speculative-config").get("method") if view else None
    if not draft:
        return text + "each step gives each request one token"
    return text + f"each step gives each request 1 to {draft + 1} tokens ({draft} drafts, {method})"


def _devices(engine: EngineSpec) -> str:
    return f"{engine.world} device{'s' * (engine.world > 1)} of a rank (tp {engine.sizes})"


def _transfer(plan: Plan, connector: str, prefill: EngineSpec) -> Step:
    listening = prefill.kv_ports or prefill.side_channel_ports
    at = f" at {authority(prefill.address, listening[0])}" if listening else ""
    each = "device" if prefill.kv_ports else "rank"
    more = f" ({spans(listening)}, one for each {each})" if len(listening) > 1 else ""
    if connector.startswith(_PULLS):
        asks = "asks" if prefill.kv_ports else "shakes hands"
        text = f"{connector}: decode {asks}{at}{more}, then reads the blocks"
    else:
        text = f"{connector}{at}{more}"
    return Step("prefill", "decode", "The KV cache of the prompt", text, _CACHE)


def _looked_up(plan: Plan, lane: str) -> Sequence[Step]:
    if plan.store is None:
        return ()
    where = f"master {authority(plan.store.address, plan.store.port)}"
    return (
        Step(
            STORE, lane, "Blocks that the prompt begins with", f"{where}, if any are kept", _CACHE
        ),
    )


def _kept(plan: Plan, lane: str) -> Sequence[Step]:
    if plan.store is None:
        return ()
    text = f"{plan.store.kind}, {plan.store.protocol}, for every engine"
    return (Step(lane, STORE, "New blocks are kept", text, _CACHE),)


def _way_back(plan: Plan) -> str:
    through = "back through the router; " if plan.router else ""
    return f"{through}server-sent events with stream true, else one JSON document"


def _flag(plan: Plan, role: str, name: str) -> object:
    found = plan.flags.get(role, {}).get(name)
    return None if found is None else found.value
