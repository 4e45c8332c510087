"""Draw the estimated memory of one device as a stacked bar for each kind of engine.

Example::

    device_memory.picture(findings.memory)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kimi_nb.notebook.pictures.diagram import INK, Diagram, width_of
from kimi_nb.plan.memory import GIB, sentence, shares_of
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

if TYPE_CHECKING:
    from kimi_nb.check.findings import Bar

CACHE, UNUSED = "cache", "not used"
_COLOURS = {
    "attention": style.BLUE,
    "dense and shared": style.SKY,
    "routed experts": style.GREEN,
    "embeddings": style.YELLOW,
    "router": style.GREY,
    "vision": style.PURPLE,
    "draft": style.VERMILLION,
    "quantisation scales": "#117733",
    "activations": style.ORANGE,
    "sampler": "#CC6677",
    "encoder cache": "#AA4499",
    "graphs": "#88CCEE",
    "buffers": "#332288",
    "connector": "#661100",
    "contexts": "#999933",
    "latent projections": "#44AA99",
    "sequence states": "#DDCC77",
}
_TITLE = "Memory of one device"
_LEFT, _WIDE = 96, 640  # where the bars begin, and how wide the largest is
_TOP, _BAR, _KEYS = 8, 34, 4  # above the first bar, the height of a bar, keys in a row
_LINE = 20  # the height of a line of words
_HATCH = 8  # between two lines of the hatching


def picture(bars: Sequence[Bar], name: str = "memory") -> Picture:
    """Draw the bars of a plan; without bars the picture says that nothing is known."""
    if not bars:
        return Picture(name, _TITLE, "<svg></svg>", "Memory is not known for this model.", ())
    rows = _rows(bars)
    # An engine that needs more than its device shows by how much.
    most = max(max(bar.fit.device, bar.fit.used) for bar in bars) / GIB
    drawing = Diagram(_LEFT + _WIDE + 24)
    bottom = float(_TOP)
    for bar in bars:
        bottom = _bar(drawing, bar, bottom, _WIDE / most)
    bottom = _axis(drawing, bottom, most)
    bottom = _keys(drawing, bottom, list(dict.fromkeys(str(row["part"]) for row in rows)))
    marks = "; ".join(dict.fromkeys(bar.fit.mark for bar in bars))
    title = f"{_TITLE}, {marks}"
    return Picture(name, title, drawing.finish(bottom), f"{title}. {_words(bars)}.", rows)


def _rows(bars: Sequence[Bar]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "engine": bar.engine,
            "role": bar.role,
            "part": part,
            "gib": round(size / GIB, 3),
            "figure": bar.fit.mark,
        }
        for bar in bars
        for part, size in shares_of(bar.fit)
        if size > 0
    )


def _words(bars: Sequence[Bar]) -> str:
    return "; ".join(
        f"{bar.role}: "
        + ", ".join(f"{part} {size / GIB:.1f} GiB" for part, size in shares_of(bar.fit) if size > 0)
        + f"; {sentence(bar.fit)}"
        for bar in bars
    )


def _bar(drawing: Diagram, bar: Bar, top: float, scale: float) -> float:
    """Draw the parts of one engine side by side, what it may use, and what is left for its cache.

    ``scale`` is in pixels for each GiB. Return where the next engine may begin.
    """
    drawing.text(_LEFT - 8, top + 15, bar.role, anchor="end", bold=True)
    drawing.text(_LEFT - 8, top + 29, bar.engine, anchor="end", size=10, room=_LEFT - 10)
    left = float(_LEFT)
    for part, size in shares_of(bar.fit):
        if size > 0:
            wide = size / GIB * scale
            _part(drawing, part, left, top, wide, _BAR)
            _label(drawing, part, left, top, wide, size / GIB)
            left += wide
    _uncertainty(drawing, bar, top + _BAR - 7, scale)
    budget = _LEFT + bar.fit.budget / GIB * scale
    drawing.line([(budget, top - 5), (budget, top + _BAR + 5)], wide=2.2)
    return drawing.paragraph(_LEFT, top + _BAR + 17, sentence(bar.fit), _WIDE, size=10.5) + 2


def _part(drawing: Diagram, part: str, x: float, y: float, wide: float, high: float) -> None:
    """Draw a part: the cache is hatched, and memory that is left unused is empty."""
    fill = "none" if part in (CACHE, UNUSED) else _COLOURS[part]
    drawing.box(x, y, wide, high, fill=fill, line=0.6, round_by=0)
    if part == CACHE:
        for line in _hatching(x, y, wide, high):
            drawing.line(line, wide=0.6)


def _hatching(x: float, y: float, wide: float, high: float) -> Iterator[list[tuple[float, float]]]:
    """Yield lines that rise to the right, each cut off at the edges of a box."""
    for at in range(_HATCH, int(wide + high), _HATCH):
        low, top = max(at - wide, 0), min(at, high)
        if top > low:
            yield [(x + at - low, y + high - low), (x + at - top, y + high - top)][::-1]


def _label(drawing: Diagram, part: str, x: float, y: float, wide: float, gib: float) -> None:
    """Write a part's size into the part, where there is room for it."""
    said = f"{gib:.1f}"
    if part == CACHE or width_of(said, 10) + 6 > wide:
        return
    ink = INK if part == UNUSED else style.on(_COLOURS[part])
    middle = y + _BAR / 2 + 4
    drawing.text(x + wide / 2, middle, said, size=10, anchor="middle", colour=ink)


def _uncertainty(drawing: Diagram, bar: Bar, y: float, scale: float) -> None:
    """Draw between which sizes the cache may begin: the range that the tokens come from."""
    fit = bar.fit
    if fit.headroom <= 0 or fit.low == fit.high:
        return
    each = fit.per_token / fit.shape.dcp
    ends = [_LEFT + (fit.budget - tokens * each) / GIB * scale for tokens in (fit.high, fit.low)]
    drawing.line([(ends[0], y), (ends[1], y)])
    for end in ends:
        drawing.line([(end, y - 4), (end, y + 4)])


def _axis(drawing: Diagram, y: float, most: float) -> float:
    """Draw the scale below the bars; return where the next thing may begin."""
    step = _step(most)
    drawing.line([(_LEFT, y), (_LEFT + _WIDE, y)], wide=0.8)
    for at in range(int(most / step) + 1):
        x = _LEFT + at * step / most * _WIDE
        drawing.line([(x, y), (x, y + 5)], wide=0.8)
        drawing.text(x, y + 17, f"{at * step:g}", size=10, anchor="middle")
    said = "GiB of one device; thick line: what the engine may use; thin: where its cache may begin"
    drawing.text(_LEFT + _WIDE / 2, y + 34, said, size=10.5, anchor="middle")
    return y + 46


def _step(most: float) -> float:
    """Return the distance of the marks of a scale: 1, 2 or 5 times a power of ten, ten at most."""
    power = 10.0 ** math.floor(math.log10(most / 10))
    return next(power * factor for factor in (1, 2, 5, 10) if most / (power * factor) <= 10)


def _keys(drawing: Diagram, y: float, parts: Sequence[str]) -> float:
    """Draw what each part looks like; return how high the picture is."""
    for at, part in enumerate(parts):
        x = _LEFT + at % _KEYS * _WIDE / _KEYS
        line = y + at // _KEYS * _LINE
        _part(drawing, part, x, line, 22, 12)
        drawing.text(x + 30, line + 10, part, size=10.5)
    return y + -(-len(parts) // _KEYS) * _LINE + 4
