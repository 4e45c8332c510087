"""Draw to which captured graph each batch is padded, and how much of the work is padding.

Example::

    graph_padding.picture(plan)

A decode step of n sequences with k drafts has n x (k + 1) tokens. It runs in the smallest captured
graph that holds them, with padding up to its size; a larger step than the largest graph runs without
one, and without padding. Where a plan names no sizes they are those of vLLM's own rule
(`captured`), marked as derived.

Sources: vLLM's VllmConfig._set_cudagraph_sizes and
CompilationConfig.adjust_cudagraph_sizes_for_spec_decode; vllm-ascend's
_get_default_max_cudagraph_capture_size, which leaves out vLLM's factor 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.notebook.pictures import nothing, role_views
from kimi_nb.notebook.pictures.role_views import RoleView
from kimi_nb.plan.memory import Shape
from kimi_nb.plan.spec import Plan
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_TITLE = "batches padded to captured graphs"
_MOST = 512  # tokens of the largest graph that vLLM captures by itself
_SHOWN = 12  # sizes that are named in the words


@dataclass(frozen=True)
class Step:
    """A decode step of ``sequences``: its tokens, and those of its graph; None without a graph."""

    sequences: int
    tokens: int
    graph: int | None

    @property
    def padding(self) -> int:
        """Tokens that are computed for nothing."""
        return 0 if self.graph is None else self.graph - self.tokens


def captured(
    seqs: int, draft: int, batched_tokens: int, *, most: int | None = None, spare: int = 2
) -> tuple[int, ...]:
    """Return the sizes in tokens that vLLM captures where none are named.

    1, 2, 4, every 8th below 256 and every 16th from there, up to ``most`` or else
    min(seqs x (draft + 1) x ``spare``, 512), and never more than a step holds.

    >>> captured(seqs=12, draft=0, batched_tokens=8192)
    (1, 2, 4, 8, 16, 24)
    """
    end = min(most or min(seqs * (draft + 1) * spare, _MOST), batched_tokens)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, end + 1, 16)]
    return tuple(size for size in sizes if size <= end)


def in_steps(sizes: Sequence[int], draft: int) -> tuple[int, ...]:
    """Return sizes rounded up to whole sequences of draft + 1 tokens; larger than all are left out.

    >>> in_steps((1, 2, 4, 8, 16, 24, 32), draft=5)
    (6, 12, 18, 24)
    """
    each = draft + 1
    rounded = {-(-size // each) * each for size in sizes}
    return tuple(sorted(size for size in rounded if size <= max(sizes, default=0)))


def padded(sizes: Sequence[int], seqs: int, draft: int) -> tuple[Step, ...]:
    """Return the decode steps of 1 to ``seqs`` sequences.

    >>> [(step.tokens, step.graph) for step in padded((4, 8), seqs=3, draft=3)]
    [(4, 4), (8, 8), (12, None)]
    """
    out = []
    for count in range(1, seqs + 1):
        tokens = count * (draft + 1)
        out.append(
            Step(count, tokens, min((size for size in sizes if size >= tokens), default=None))
        )
    return tuple(out)


def waste(steps: Sequence[Step]) -> float:
    """Return the share of the tokens computed in graphs that are padding, every batch size once.

    >>> waste(padded((4,), seqs=5, draft=0))
    0.375
    """
    whole = sum(step.graph for step in steps if step.graph)
    return sum(step.padding for step in steps) / whole if whole else 0.0


def picture(plan: Plan) -> Picture:
    """Draw the tokens of each batch as a step, and its padding above."""
    title = f"{plan.heading}: {_TITLE}"
    view = role_views.decoding(plan)
    if view is None or view.shape is None:
        return nothing.picture("graphs", title, "the sizes of its engines cannot be read")
    if not view.shape.graphs:
        return nothing.picture(
            "graphs",
            title,
            "no graph is captured (enforce-eager or cudagraph_mode NONE), no padding",
        )
    sizes, figure = _sizes(view, view.shape)
    draft = view.server.draft
    steps = padded(sizes, view.shape.seqs, draft)
    bare = [step.sequences for step in steps if step.graph is None]
    share = f"{_percent(waste(steps))} of the tokens computed in graphs are padding"
    svg = _drawn(steps, draft, share + _without(bare))
    words = _words(
        steps, sizes, f"{view.role}: {len(sizes)} captured sizes ({figure})", draft, share
    )
    rows = tuple(
        {
            "role": view.role,
            "sequences": step.sequences,
            "tokens": step.tokens,
            "graph": step.graph,
            "padding": step.padding,
            "figure": figure,
        }
        for step in steps
    )
    return Picture("graphs", title, svg, f"{title}. {words}.", rows)


def _words(
    steps: Sequence[Step], sizes: Sequence[int], heading: str, draft: int, share: str
) -> str:
    """Return the picture in words: sizes, batches, the share of padding, and where it is largest."""
    listed = ", ".join(map(str, sizes[:_SHOWN])) + (
        f" to {sizes[-1]}" if len(sizes) > _SHOWN else ""
    )
    said = [
        f"{heading}: {listed or 'none'}",
        f"1 to {len(steps)} sequences of {draft + 1} token{'s' * (draft > 0)}",
        f"{share}, if every batch is as frequent (derived)",
    ]
    worst = max(steps, key=lambda step: step.padding / (step.graph or 1))
    if worst.graph and worst.padding:
        said.append(
            f"at most {_percent(worst.padding / worst.graph)}: {worst.sequences} "
            f"sequence{'s' * (worst.sequences > 1)} with {worst.tokens} tokens run in the graph of "
            f"{worst.graph}"
        )
    bare = [step.sequences for step in steps if step.graph is None]
    return "; ".join(said) + _without(bare)


def _sizes(view: RoleView, shape: Shape) -> tuple[tuple[int, ...], str]:
    """Return the captured sizes, and whether the plan names them or the engine's rule makes them."""
    config = view.server.table("compilation-config")
    flags = view.server.flags
    named = config.get("cudagraph_capture_sizes") or flags.get("cudagraph-capture-sizes")
    # Only graphs of whole decode steps need whole sequences.
    whole = 0 if config.get("cudagraph_mode") == "PIECEWISE" else view.server.draft
    draft = view.server.draft
    if isinstance(named, list) and named and all(type(size) is int for size in named):
        within = sorted({size for size in named if 0 < size <= shape.batched_tokens})
        return in_steps(within, whole), "named by the plan"
    most = config.get("max_cudagraph_capture_size") or flags.get("max-cudagraph-capture-size")
    limit = most if isinstance(most, int) and most > 0 else None
    sizes = captured(
        shape.seqs,
        draft,
        shape.batched_tokens,
        most=limit,
        spare=1 if shape.vendor == "ascend" else 2,
    )
    return in_steps(sizes, whole), "derived from the engine's rule"


def _without(bare: Sequence[int]) -> str:
    """Return which batches have no graph: those beyond the largest one."""
    if not bare:
        return ""
    return (
        f"; without a graph: {bare[0]} to {bare[-1]} sequences"
        if len(bare) > 1
        else (f"; without a graph: {bare[0]} sequences")
    )


def _percent(part: float) -> str:
    return f"{part * 100:.1f} %"


def _drawn(steps: Sequence[Step], draft: int, heading: str) -> str:
    """Return the chart: tokens below, padding above them, both by sequences.

    Of the batches without a graph only the first are drawn, for the others to stay visible.
    """
    last = max((step.sequences for step in steps if step.graph), default=len(steps))
    steps = steps[: max(last + last // 4, 8)]
    counts = [step.sequences for step in steps]
    edges = [*(count - 0.5 for count in counts), counts[-1] + 0.5]
    whole = [step.graph or step.tokens for step in steps]
    with style.figure(8.2, 3.6) as canvas:
        axes: Any = canvas.axes
        axes.stairs(whole, edges, fill=True, color=style.ORANGE, label="padding")
        axes.stairs(
            [step.tokens for step in steps], edges, fill=True, color=style.BLUE, label="tokens"
        )
        bare = [step for step in steps if step.graph is None]
        if bare:
            axes.stairs(
                [step.tokens for step in bare],
                [*(step.sequences - 0.5 for step in bare), bare[-1].sequences + 0.5],
                fill=False,
                hatch="////",
                edgecolor=style.INK,
                linewidth=0,
                label="without a graph",
            )
        axes.stairs(whole, edges, color=style.INK, linewidth=1.0, baseline=None)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, max(whole) * 1.08)
        axes.locator_params(axis="x", integer=True)
        axes.locator_params(axis="y", integer=True)
        axes.set_xlabel("sequences of a decode step, on one data parallel rank")
        axes.set_ylabel(f"tokens ({draft + 1} for each sequence)")
        axes.set_title(heading, loc="left", size=10)
        axes.legend(loc="upper left", fontsize=9)
        return canvas.finish("graphs")
