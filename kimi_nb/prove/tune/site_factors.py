"""Calibrate the efficiency factors of sizing by what notebook 08 measured on a site.

Usage::

    table = site_factors.of(Path("runs/k2.5-h200/k2.5-h200-single/bench"), "h200")
    search.answer("k2.5", "h200", 2, load, bounds, table=table)
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kimi_nb.check import judge
from kimi_nb.check.rules import capacity
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.prove.bench import identity, results
from kimi_nb.prove.bench.results import BenchResult
from kimi_nb.sizing import factor_fit, factors, request_load
from kimi_nb.sizing.factor_fit import Observation
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.roofline import Spread
from kimi_nb.sizing.step_time import Kind

_FIGURES = ("median_ttft_ms", "median_tpot_ms", "output_throughput")
_ABOUT = "the results"
_MOST_AT_ONCE = 16_384  # requests: a fit simulates them some hundred times


def of(folder: Path, hardware: str, pairs: Sequence[str] = ()) -> Factors:
    """Return the vendor's factors as the measurements in a folder calibrate them.

    ``pairs`` are the overrides of the plan that was measured.

    Raises:
        ParameterError: If there are none, they are of a stand-in, of other hardware, of separate
            prefill and decode, or of other settings than the plan has.
    """
    seen = _measured(results.load(folder))
    about = seen[0]["kimi_nb"]["identity"]
    _refuse(about, hardware, folder)
    return _fitted(seen, [_plan(about, hardware, pairs, folder)], folder)


def of_plans(measured: BenchResult, plans: Sequence[Plan]) -> Factors:
    """Return the vendor's factors as measurements of several plans of one model calibrate them.

    Raises:
        ParameterError: As `of`, or if there is no plan.
    """
    seen = _measured(measured)
    if not plans:
        raise ParameterError(f"{measured.folder}: no plan was measured.")
    _refuse(seen[0]["kimi_nb"]["identity"], plans[0].request.hardware.name, measured.folder)
    return _fitted(seen, plans, measured.folder)


def _measured(found: BenchResult) -> list[Mapping[str, Any]]:
    seen = [one for one in found.measurements if _tells(one)]
    if not seen:
        raise ParameterError(
            f"{found.folder}: no results with a concurrency are there. Name the folder bench that "
            "notebook 08 writes (runs/MODEL-HW/PLAN/bench)."
        )
    return seen


def _tells(one: Mapping[str, Any]) -> bool:
    """Return whether a measurement says how many requests there were at once, and how long."""
    lengths = (one.get("total_input_tokens", 0), one.get("total_output_tokens", 0))
    at_once = one["kimi_nb"]["identity"]["concurrency"]
    # NaN, which is not measured, is not above 0.
    return bool(
        one["completed"] and 0 < at_once <= _MOST_AT_ONCE and all(each > 0 for each in lengths)
    )


def _fitted(seen: Sequence[Mapping[str, Any]], plans: Sequence[Plan], folder: Path) -> Factors:
    found: list[Observation] = []
    for plan in plans:
        kind, groups = _kind(plan, folder)
        mine = [one for one in seen if _same(one["kimi_nb"]["identity"], plan)]
        for repeated in _by_load(mine):
            found += _observations(repeated, kind, groups)
    if not found:
        raise ParameterError(
            f"{folder}: {_ABOUT} are of other settings than {plan.name} has. Give what was measured "
            "with --set, as it was planned."
        )
    source = f"{len(found)} figures of the load client, {seen[0]['kimi_nb']['time'][:10]}"
    prior = factors.of(kind.hardware.vendor, kind.precision)
    return factor_fit.fitted(found, prior, "calibrated", source)


def _refuse(about: Mapping[str, Any], hardware: str, folder: Path) -> None:
    """Refuse results of stand-ins and of other hardware. Raises ParameterError."""
    if about["mark"]:
        raise ParameterError(
            f"{folder}: {_ABOUT} are of stand-ins ({about['mark']}), which say nothing of hardware. "
            "Measure a deployed service with notebook 08."
        )
    name = load.hardware(hardware).name
    if about["hardware"] != name:
        raise ParameterError(
            f"{folder}: {_ABOUT} are of {about['hardware']}, sized is {name}. Name results of "
            f"{name}, or --hw {about['hardware']}."
        )


def _plan(about: Mapping[str, Any], hardware: str, pairs: Sequence[str], folder: Path) -> Plan:
    try:
        return build.plan(
            about["model"],
            hardware,
            about["layout"],
            variant=str(about.get("variant", "")),
            scenario=str(about.get("scenario", "")),
            pairs=pairs,
            derive=True,
        )
    except KimiError as error:
        raise ParameterError(f"{folder}: {_ABOUT} are of no plan: {error}") from None


def _same(about: Mapping[str, Any], plan: Plan) -> bool:
    """Return whether a measurement is of the settings of a plan."""
    return bool(about.get("flags") == identity.flags_hash(plan))


def _kind(plan: Plan, folder: Path) -> tuple[Kind, int]:
    if plan.layout == "pd":
        raise ParameterError(
            f"{folder}: {_ABOUT} are of separate prefill and decode, whose times cannot be told "
            "apart. Name results of layout single or dp."
        )
    deployment = judge.of_plan(plan)
    server = deployment.servers[0]
    shape = capacity.served_shape_of(deployment, server)
    asked = plan.request
    if shape is None or asked is None:
        raise ParameterError(f"{folder}: the sizes of {plan.name} are not known.")
    groups = len({one.group for one in plan.engines})
    kind = Kind(
        shape,
        asked.model.architecture,
        asked.weights.precision,
        asked.hardware,
        capacity.draft_parameters(deployment, server),
        server.draft,
        str(server.table("speculative-config").get("method", "")),
        Spread(plan.devices_per_node, max(len(plan.nodes) // groups, 1)),
    )
    return kind, groups


def _by_load(seen: Sequence[Mapping[str, Any]]) -> Iterable[list[Mapping[str, Any]]]:
    """Return the repetitions of each load."""
    out: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in seen:
        about = one["kimi_nb"]["identity"]
        key = tuple(about.get(name) for name in ("input_len", "output_len", "concurrency", "rate"))
        out.setdefault(key, []).append(one)
    return out.values()


def _observations(
    repeated: Sequence[Mapping[str, Any]], kind: Kind, groups: int
) -> Iterator[Observation]:
    """Yield the medians of a load's figures, with the lengths that its requests really had."""
    one = repeated[0]
    done, about = one["completed"], one["kimi_nb"]["identity"]
    lengths = request_load.fixed(
        max(round(one["total_input_tokens"] / done), 1),
        max(round(one["total_output_tokens"] / done), 1),
    )
    for name in _FIGURES:
        if name == "median_tpot_ms" and lengths.output_len == 1:
            continue  # such answers have no further token
        values = [other[name] for other in repeated if other.get(name, 0) > 0]
        if values:
            middle = statistics.median(values)
            yield Observation(kind, lengths, about["concurrency"], name, middle, groups, done)
