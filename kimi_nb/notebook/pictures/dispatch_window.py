"""Draw why HCCL needs its buffer: the window into which all ranks write the tokens of a step.

Example::

    dispatch_window.picture(plan)

Experts are spread over the ranks. In each step every rank sends each of its tokens to the ranks
that hold the experts chosen for it (dispatch), and gets the results back (combine). A rank keeps
room for the worst case: all tokens of all ranks for each of its experts. `plan.memory.buffers` has
the formulas with their sources; what a step holds is that of the rule capacity/hccl-buffer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kimi_nb.check.rules import capacity_buffers
from kimi_nb.notebook.pictures import diagram, nothing, role_views
from kimi_nb.notebook.pictures.role_views import RoleView
from kimi_nb.plan import memory
from kimi_nb.plan.spec import Plan
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_TITLE = "the HCCL buffer of a decode step"
_DEFAULT = 200  # MB of HCCL_BUFFSIZE where it is not set (CANN, environment variables)
_RANKS, _EXPERTS = 4, 4  # the most ranks and experts that are drawn
_WIDTH = 820


@dataclass(frozen=True)
class Window:
    """What one rank needs and has; sizes are in MB of 2**20 bytes, as HCCL_BUFFSIZE is.

    ``tokens`` is the largest decode step of one rank, ``local`` the experts that a rank holds,
    ``device_mb`` what the buffers of all communicators take of a device.
    """

    role: str
    ranks: int
    experts: int
    local: int
    chosen: int
    tokens: int
    tokens_how: str
    need_mb: int
    need_how: str
    sure: str
    buffer_mb: int
    device_mb: int
    given: bool


def window(plan: Plan) -> Window | str:
    """Return the window of the plan's decode engines, or why there is none."""
    view = role_views.decoding(plan)
    why = _missing(view)
    if view is None or view.shape is None or why:
        return why
    d, server, shape = view.deployment, view.server, view.shape
    assert d.model is not None
    tokens, tokens_how = capacity_buffers.step_tokens(server, shape)
    need, need_how, _, sure = capacity_buffers.buffer_need(d, server, shape, tokens)
    experts = d.model.architecture["experts"] + shape.spare_experts
    return Window(
        view.role,
        shape.expert_ranks,
        experts,
        -(-experts // shape.expert_ranks),
        d.model.architecture["experts_per_token"],
        tokens,
        tokens_how,
        need,
        need_how,
        sure,
        shape.buffer_mib,
        round(memory.buffer_bytes(shape) / 2**20),
        "HCCL_BUFFSIZE" in server.env,
    )


def _missing(view: RoleView | None) -> str:
    if view is None or view.shape is None:
        return "the sizes of its engines cannot be read"
    d = view.deployment
    if d.hardware is None or d.hardware.vendor != "ascend":
        return "its devices have no HCCL; on Ascend this is the window of dispatch and combine"
    if d.model is None or "experts" not in d.model.architecture:
        return "the model has no experts"
    if not view.server.env.get("HCCL_BUFFSIZE", str(_DEFAULT)).isdecimal():
        return "HCCL_BUFFSIZE is not a number"
    if not capacity_buffers.dispatches(d, view.server, view.shape):
        return (
            f"its {view.shape.expert_ranks} ranks do not use dispatch and combine (MC2) in decode "
            "steps, whose need is known; other collectives have a buffer of a fixed size"
        )
    return ""


def picture(plan: Plan) -> Picture:
    """Draw the ranks that send, the window of one of them, and its need beside HCCL_BUFFSIZE."""
    title = f"{plan.heading}: {_TITLE}"
    found = window(plan)
    if isinstance(found, str):
        return nothing.picture("hccl", title, found)
    drawing = diagram.Diagram(_WIDTH)
    y = _exchange(drawing, found)
    y = _bars(drawing, found, y + 26)
    set_to = (
        f"HCCL_BUFFSIZE is {found.buffer_mb}" if found.given else "HCCL_BUFFSIZE is not set (200)"
    )
    verdict = _verdict(found)
    lines = (
        f"A step: {found.tokens_how} = {found.tokens} tokens on one rank.",
        f"The need: {found.need_how} ({found.sure}).",
        f"A device: 2 x ({found.buffer_mb} + 2 x 200) MB = {found.device_mb} MB for its "
        "communicators, each with a buffer to send and one to receive (derived).",
    )
    for line in lines:
        y = drawing.paragraph(12, y, line, _WIDTH - 24, size=10) + 3
    said = (
        f"{title}. {found.role}: {found.ranks} ranks hold {found.experts} experts, {found.local} "
        f"each; a token goes to {found.chosen} of them. A full step needs {found.need_mb} MB, "
        f"{set_to}: {verdict}. {' '.join(lines)}"
    )
    return Picture("hccl", title, drawing.finish(y), said, (asdict(found) | {"figure": "derived"},))


def _verdict(found: Window) -> str:
    spare = found.buffer_mb - found.need_mb
    return f"{spare} MB are spare" if spare >= 0 else f"{-spare} MB are missing"


def _exchange(drawing: diagram.Diagram, found: Window) -> float:
    """Draw ranks that send their tokens into the window of one, with a slot for each expert."""
    ranks, slots = min(found.ranks, _RANKS), min(found.local, _EXPERTS)
    top, tall = 34.0, 40.0
    drawing.text(12, 18, f"{found.ranks} ranks, {found.tokens} tokens each", bold=True, room=210)
    left, width = 380.0, _WIDTH - 392.0
    drawing.text(left, 18, "the window of one rank", bold=True, room=width)
    each = width / slots
    for row in range(ranks):
        y = top + row * tall
        drawing.box(12, y, 120, 28, fill=style.cycle(row), line=0.8)
        drawing.text(
            72, y + 18, f"rank {row}", anchor="middle", bold=True, colour=style.on(style.cycle(row))
        )
        drawing.line([(136, y + 14), (left - 8, y + 14)], colour=style.BLUE, wide=1.6, arrow=True)
        _slots(drawing, row, slots, left, y, each)
    drawing.text(
        256,
        top - 4,
        f"dispatch: {found.chosen} of {found.experts} experts",
        anchor="middle",
        size=9.5,
    )
    y = top + ranks * tall
    if found.ranks > ranks:
        drawing.text(72, y + 8, f"× {found.ranks - ranks} more", anchor="middle", italic=True)
    more = found.local - slots
    text = f"a slot for each rank and expert, {found.tokens} tokens in each"
    drawing.text(
        left, y + 8, text + (f"; × {more} more experts" if more else ""), size=9.5, room=width
    )
    drawing.line(
        [(left - 8, y + 2), (136, y + 2)],
        colour=style.VERMILLION,
        wide=1.6,
        arrow=True,
        dashed=True,
    )
    drawing.text(256, y + 16, "combine: the results go back", anchor="middle", size=9.5)
    return y + 16


def _slots(
    drawing: diagram.Diagram, row: int, slots: int, left: float, y: float, each: float
) -> None:
    """Draw what the window keeps for the tokens of one rank: a slot for each expert."""
    for slot in range(slots):
        x = left + slot * each
        drawing.box(x + 1, y, each - 4, 28, fill=style.cycle(row), shade=0.22, line=0.8)
        said = f"expert {slot}" if slots > 1 else "its expert"
        drawing.text(x + each / 2 - 1, y + 18, said, anchor="middle", size=9.5, room=each - 8)


def _bars(drawing: diagram.Diagram, found: Window, y: float) -> float:
    """Draw the need and the setting as bars of one scale."""
    most = max(found.need_mb, found.buffer_mb, 1)
    full = _WIDTH - 330.0
    lacks = found.need_mb > found.buffer_mb
    for text, size, colour in (
        ("a full step needs", found.need_mb, style.VERMILLION if lacks else style.BLUE),
        (
            "HCCL_BUFFSIZE" if found.given else "HCCL_BUFFSIZE (not set)",
            found.buffer_mb,
            style.GREEN,
        ),
    ):
        drawing.text(12, y + 14, text, bold=True, room=170)
        drawing.box(190, y, max(full * size / most, 1), 20, fill=colour, shade=0.75, round_by=2)
        drawing.text(196 + full * size / most, y + 14, f"{size} MB", mono=True, size=10.5)
        y += 27
    drawing.text(190, y + 10, _verdict(found), italic=True, size=10)
    return y + 32
