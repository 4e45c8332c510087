"""Draw the roofline of a plan's devices with the plan's own prefill and decode steps on it.

Example::

    roofline_picture.picture(plan, input_len=1024, output_len=1024)

A step of intensity I (operations for each byte read from memory) runs at no more than
min(peak, I x bandwidth) operations a second (Williams, Waterman, Patterson, CACM 52(4), 2009).
Bandwidth and peaks are published (params/hardware); operations and bytes of a step are derived from
the model's architecture by `prove.tune.roofline`. A step that computes in several number formats
has a peak between theirs. Links and host are left out: see `prove.tune.limits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kimi_nb.notebook.pictures import nothing
from kimi_nb.params import schema
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.tune import limits
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

_TITLE = "roofline of one device"
_PEAKS = {"bf16_tflops": "BF16", "fp8_tflops": "FP8", "int8_tops": "INT8", "fp4_tflops": "FP4"}
_APART = 1.3  # the least factor between two roofs whose labels do not touch
_ROOMY = 600  # the largest ratio of an axis' ends at which three ticks a decade do not touch
_PHASES = ("decode", "prefill")


@dataclass(frozen=True)
class Point:
    """A step of a role.

    ``intensity`` is in operations for each byte, ``attainable`` and ``peak`` (of its number
    formats) in 10^12 operations a second, ``step_ms`` its least time, ``bound`` what limits it.
    """

    role: str
    phase: str
    intensity: float
    attainable: float
    peak: float
    step_ms: float
    bound: str
    figure: str = "derived"


def points(plan: Plan, input_len: int = 1024, output_len: int = 1024) -> tuple[Point, ...]:
    """Return the full decode and prefill steps of a plan; none where a figure is not published.

    ``input_len`` are the tokens of a prompt, ``output_len`` those of an answer. Raises
    ParameterError if one is below 1.
    """
    found = limits.of_plan(plan, input_len=input_len, output_len=output_len)
    out = []
    for role, phase in dict.fromkeys((one.role, one.phase) for one in found.limits):
        if phase not in _PHASES:
            continue
        parts = {
            one.resource: one for one in found.limits if (one.role, one.phase) == (role, phase)
        }
        memory, work = parts["bandwidth"], parts["arithmetic"]
        if not (memory.step_ms and work.step_ms and work.peak):
            continue
        slowest = max(memory.step_ms, work.step_ms)
        out.append(
            Point(
                role,
                phase,
                work.amount * 1e3 / memory.amount,  # 10^12 operations over GB
                work.amount / slowest * 1e3,
                work.peak,
                slowest,
                "bandwidth" if memory.step_ms >= work.step_ms else "arithmetic",
            )
        )
    return tuple(out)


def picture(plan: Plan, input_len: int = 1024, output_len: int = 1024) -> Picture:
    """Draw the roofs of the hardware, and the `points` of prompts and answers of these sizes."""
    title = f"{plan.heading}: {_TITLE}"
    hardware: schema.Hardware = plan.request.hardware
    bandwidth = hardware.peaks.memory_gb_s
    roofs = {
        name: peak for name in _PEAKS if (peak := getattr(hardware.peaks, name, None)) is not None
    }
    if bandwidth is None or not roofs:
        return nothing.picture(
            "roofline", title, f"bandwidth and peaks of {hardware.title} are not published"
        )
    found = points(plan, input_len, output_len)
    rows = [_row("memory bandwidth", bandwidth.value, "GB/s", "published", bandwidth.source)]
    for name, peak in roofs.items():
        rows.append(_row(f"{_PEAKS[name]} peak", peak.value, "10^12/s", "published", peak.source))
    for one in found:
        for what, value, unit in (
            ("intensity", one.intensity, "operations/byte"),
            ("attainable", one.attainable, "10^12/s"),
            ("least time of a step", one.step_ms, "ms"),
        ):
            rows.append(
                _row(f"{one.role} {one.phase}: {what}", value, unit, one.figure, "roofline")
            )
    peaks = {_PEAKS[name]: peak.value for name, peak in roofs.items()}
    load = f"full batches, prompts of {input_len:,} and answers of {output_len:,} tokens"
    svg = _drawn(bandwidth.value, peaks, found, load)
    said = [f"{hardware.title}: {bandwidth.value:,.0f} GB/s of memory (published)"]
    said += [
        f"{name} {value:,.0f} x 10^12 operations/s (published)" for name, value in peaks.items()
    ]
    said += [
        f"{one.role}, a full {one.phase} step (derived): {_short(one.intensity)} operations for each "
        f"byte, at most {_short(one.attainable)} x 10^12/s, {_short(one.step_ms)} ms or more, "
        f"bound by {one.bound}"
        for one in found
    ] or ["the steps of this model cannot be derived"]
    said.append(load)
    return Picture("roofline", title, svg, f"{title}. {'; '.join(said)}.", tuple(rows))


def _row(what: str, value: float, unit: str, figure: str, source: str) -> dict[str, Any]:
    return {
        "what": what,
        "value": round(value, 4),
        "unit": unit,
        "figure": figure,
        "source": source,
    }


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _drawn(bandwidth: float, peaks: dict[str, float], found: tuple[Point, ...], load: str) -> str:
    """Return the chart, both axes logarithmic: the roofs as lines, the steps as markers below."""
    ridges = [peak * 1e3 / bandwidth for peak in peaks.values()]
    most = max(peaks.values())
    left = min([*ridges, *(one.intensity for one in found)]) / 4
    right = max([*ridges, *(one.intensity for one in found)]) * 6
    low = min([left * bandwidth / 1e3, most, *(one.attainable for one in found)]) / 1.5
    with style.figure(8.2, 4.2) as canvas:
        axes = canvas.axes
        axes.set_xscale("log")
        axes.set_yscale("log")
        _roofs(axes, bandwidth, peaks, left, right)
        _steps(axes, found, low)
        axes.set_xlim(left, right)
        axes.set_ylim(low, most * 1.8)
        _ticks(axes.xaxis, right / left)
        _ticks(axes.yaxis, most / low)
        axes.set_xlabel("intensity: operations for each byte read from memory")
        axes.set_ylabel("10^12 operations a second", parse_math=False)
        if found:
            axes.legend(
                loc="upper center",
                bbox_to_anchor=(0.5, -0.16),
                fontsize=9,
                title=load,
                title_fontsize=9,
            )
        return canvas.finish("roofline")


def _ticks(axis: Any, ratio: float) -> None:
    """Write plain numbers at powers of ten, and at 2 and 5 times those where there is room."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # start-up: when drawn

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < _ROOMY else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def _roofs(axes: Any, bandwidth: float, peaks: dict[str, float], left: float, right: float) -> None:
    """Draw the slope of the bandwidth, and a roof for each number format."""
    most = max(peaks.values())
    ridge = most * 1e3 / bandwidth
    axes.plot([left, ridge], [left * bandwidth / 1e3, most], color=style.INK, linewidth=1.8)
    for peak in peaks.values():
        axes.plot([peak * 1e3 / bandwidth, right], [peak] * 2, color=style.INK, linewidth=1.8)
    for text, peak in _labels(peaks):
        axes.text(right * 1.06, peak, f"{text} (published)", va="center", size=9)
    slope = f"slope: {bandwidth:,.0f} GB/s of memory (published)"
    axes.text(left * 1.1, most * 1.25, slope, size=9)


def _steps(axes: Any, found: tuple[Point, ...], low: float) -> None:
    """Draw each step as a marker with a line down to its intensity."""
    for at, one in enumerate(found):
        colour = style.cycle(at)
        axes.plot(
            one.intensity,
            one.attainable,
            linestyle="none",
            marker=style.mark(at),
            color=colour,
            markeredgecolor=style.INK,
            markersize=11,
            zorder=3,
            label=f"{one.role}, a full {one.phase} step (derived): {_short(one.step_ms)} ms "
            f"or more, {one.bound}",
        )
        down = [low, one.attainable]
        axes.plot([one.intensity] * 2, down, color=colour, linewidth=1, linestyle=":")


def _labels(peaks: dict[str, float]) -> list[tuple[str, float]]:
    """Return (label, where it stands) of the roofs; those that nearly meet share a label."""
    groups: list[list[tuple[str, float]]] = []
    for name, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        if groups and groups[-1][-1][1] < peak * _APART:
            groups[-1].append((name, peak))
        else:
            groups.append([(name, peak)])
    return [
        (", ".join(f"{name} {peak:,.0f}" for name, peak in group), group[0][1]) for group in groups
    ]
