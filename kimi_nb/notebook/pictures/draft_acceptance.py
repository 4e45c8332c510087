"""Draw what speculative decoding gives: the tokens of a step, by how often a draft is accepted.

Example::

    draft_acceptance.picture(plan)

With k drafts, each accepted with probability a where the ones before it were, a step gives on
average 1 + a + a^2 + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens (Leviathan, Kalman, Matias, "Fast
Inference from Transformers via Speculative Decoding", ICML 2023, equation 1). vLLM's logs and
metrics give the same mean as "mean acceptance length". It computes k + 1 tokens whatever is accepted.
"""

from __future__ import annotations

from typing import Any

from kimi_nb.notebook.pictures import nothing, role_views
from kimi_nb.plan.spec import Plan
from kimi_nb.show import style, visible
from kimi_nb.show.picture import Picture

FORMULA = "(1 - a^(k+1)) / (1 - a)"
_TITLE = "what drafts give"
_COUNTS = (
    1,
    3,
    7,
    15,
)  # drawn beside the plan's: one of half as many at most, one of twice as many at least
_READ = (0.5, 0.6, 0.7, 0.8, 0.9)  # acceptances at which the figures are told


def expected_tokens(drafts: int, acceptance: float) -> float:
    """Return the mean tokens of a step and a sequence; ``acceptance`` is from 0 to 1.

    >>> expected_tokens(3, 0.0), expected_tokens(3, 0.5), expected_tokens(3, 1.0)
    (1.0, 1.875, 4.0)
    """
    return sum(acceptance**position for position in range(drafts + 1))


def picture(plan: Plan) -> Picture:
    """Draw the curve of the plan's draft count, and those of other counts beside it."""
    title = f"{plan.heading}: {_TITLE}"
    view = role_views.decoding(plan)
    if view is None or not view.server.draft:
        return nothing.picture(
            "drafts", title, "the plan has no drafts; every step gives each sequence one token"
        )
    drafts = view.server.draft
    method = visible(str(view.server.table("speculative-config").get("method") or "drafts"))
    less = [count for count in _COUNTS if 2 * count <= drafts][-1:]
    others = [*less, *[count for count in _COUNTS if count >= 2 * drafts][:1]]
    rows = tuple(
        {
            "drafts": drafts,
            "acceptance": acceptance,
            "tokens_per_step": round(expected_tokens(drafts, acceptance), 3),
            "computed_per_step": drafts + 1,
            "figure": "derived",
        }
        for acceptance in (0.0, 0.1, 0.2, 0.3, 0.4, *_READ, 1.0)
    )
    figures = ", ".join(f"{expected_tokens(drafts, one):.2f} at {one:g}" for one in _READ)
    said = (
        f"{title}. {view.role}, {drafts} draft{'s' * (drafts > 1)} ({method}): tokens of a step and "
        f"a sequence by acceptance a, {figures}; at most {drafts + 1}, and {drafts + 1} are "
        f"computed in any case. Derived: {FORMULA}, Leviathan et al. 2023."
    )
    return Picture("drafts", title, _drawn(drafts, method, others), said, rows)


def _drawn(drafts: int, method: str, others: list[int]) -> str:
    grid = [at / 100 for at in range(101)]
    with style.figure(7.6, 3.9) as canvas:
        axes = canvas.axes
        top = drafts + 1
        for count in others:
            values = [expected_tokens(count, one) for one in grid]
            axes.plot(grid, values, color=style.GREY, linewidth=1.1)
            _named(axes, f"{count} draft{'s' * (count > 1)}", count, top)
        axes.plot(
            grid, [expected_tokens(drafts, one) for one in grid], color=style.BLUE, linewidth=2.6
        )
        for one in _READ:
            value = expected_tokens(drafts, one)
            axes.plot(one, value, marker="o", color=style.BLUE, markersize=6)
            axes.annotate(
                f"{value:.2f}",
                (one, value),
                (7, -11) if max(others, default=0) > drafts else (-7, 6),
                textcoords="offset points",
                ha="left" if max(others, default=0) > drafts else "right",
                size=9,
                weight="bold",
            )
        _named(axes, f"{drafts} drafts", drafts, top, bold=True)
        axes.set_xlim(0, 1)
        axes.set_ylim(0.9, top * 1.03)
        axes.set_xlabel("a: the share of drafts accepted, where the ones before were")
        axes.set_ylabel(f"tokens of a step\nand a sequence ({method})", parse_math=False)
        return canvas.finish("drafts")


def _named(axes: Any, text: str, count: int, top: int, bold: bool = False) -> None:
    """Write the number of drafts at the end of its curve: at the right, or where it leaves at the top."""
    weight = "bold" if bold else "normal"
    if count + 1 <= top:
        axes.text(1.01, count + 1, text, va="center", size=9, weight=weight)
        return
    leaves = next(at / 100 for at in range(101) if expected_tokens(count, at / 100) >= top * 1.03)
    axes.text(leaves, top * 1.04, text, ha="center", va="bottom", size=9, weight=weight)
