"""Draw the estimated memory of one device as a stacked bar for each kind of engine.

Example::

    device_memory.picture(findings.memory)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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


def picture(bars: Sequence[Bar], name: str = "memory") -> Picture:
    """Draw the bars of a plan; without bars the picture says that nothing is known."""
    if not bars:
        return Picture(name, _TITLE, "<svg></svg>", "Memory is not known for this model.", ())
    rows = _rows(bars)
    # An engine that needs more than its device shows by how much.
    most = max(max(bar.fit.device, bar.fit.used) for bar in bars) / GIB
    parts = list(dict.fromkeys(row["part"] for row in rows))
    height = 1.3 + 0.85 * len(bars)
    with style.figure(9.5, height) as canvas:
        axes = canvas.axes
        for at, bar in enumerate(bars):
            _bar(axes, bar, at, most)
        axes.set_yticks(range(len(bars)), [f"{bar.role}\n{bar.engine}" for bar in bars])
        axes.set_ylim(len(bars) - 0.3, -0.5)
        axes.set_xlim(0, most * 1.001)
        axes.set_xlabel(
            "GiB of one device; thick line: what the engine may use; thin: where its cache may begin"
        )
        axes.legend(
            handles=[_key(str(part)) for part in parts],
            ncols=4,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.5 / (axes.get_position().height * height)),
            fontsize=9,
        )
        svg = canvas.finish(name)
    marks = "; ".join(dict.fromkeys(bar.fit.mark for bar in bars))
    title = f"{_TITLE}, {marks}"
    return Picture(name, title, svg, f"{title}. {_words(bars)}.", rows)


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


def _bar(axes: Any, bar: Bar, at: int, most: float) -> None:
    """Draw the parts of one engine side by side, what it may use, and what is left for its cache."""
    left = 0.0
    for part, size in shares_of(bar.fit):
        if size > 0:
            wide = size / GIB
            look = {"edgecolor": style.INK, "linewidth": 0.5} | _look(part)
            axes.barh(at, wide, left=left, height=0.5, **look)
            _label(axes, part, left, wide, at, most)
            left += wide
    _uncertainty(axes, bar, at)
    budget = [bar.fit.budget / GIB] * 2
    axes.plot(budget, [at - 0.36, at + 0.36], color=style.INK, linewidth=1.6)
    axes.text(0, at + 0.44, f"{style.SPACE}{sentence(bar.fit)}", size=8.5, va="center")


def _uncertainty(axes: Any, bar: Bar, at: int) -> None:
    """Draw between which sizes the cache may begin: the range that the tokens come from."""
    fit = bar.fit
    if fit.headroom <= 0 or fit.low == fit.high:
        return
    each = fit.per_token / fit.shape.dcp / GIB
    left, right = (fit.budget / GIB - tokens * each for tokens in (fit.high, fit.low))
    axes.plot([left, right], [at, at], color=style.INK, linewidth=1.2)
    for end in (left, right):
        axes.plot([end, end], [at - 0.1, at + 0.1], color=style.INK, linewidth=1.2)


def _look(part: str) -> dict[str, Any]:
    """Return the style of a part: the cache is hatched, and memory that is left unused is empty."""
    if part in (CACHE, UNUSED):
        return {"facecolor": "none", "hatch": "////" if part == CACHE else ""}
    return {"facecolor": _COLOURS[part]}


def _key(part: str) -> Any:
    from matplotlib.patches import Patch  # start-up: only when drawn

    return Patch(edgecolor=style.INK, linewidth=0.5, label=part, **_look(part))


def _label(axes: Any, part: str, left: float, size: float, at: int, most: float) -> None:
    """Write a part's size into the part, where there is room for it."""
    if size < most * 0.06 or part == CACHE:
        return
    colour = _look(part)["facecolor"]
    axes.text(
        left + size / 2,
        at,
        f"{size:.1f}",
        ha="center",
        va="center",
        size=9,
        color=style.INK if colour == "none" else style.on(colour),
    )
