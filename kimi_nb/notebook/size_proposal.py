"""Propose sizes for a workload, and calibrate the model of time by what was measured.

Example::

    factors = calibrate(run, run.choose("single"))
    found = propose(run, run.choose("single"), factors, input_len=4096, output_len=512)
    choice, sweep = found.around()  # what to plan, and the axes of a sweep around it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_nb import show
from kimi_nb.core.errors import KimiError, NoFigureError, ParameterError, PlanError
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.pictures import nothing, size_front
from kimi_nb.params import load
from kimi_nb.service.session import Session
from kimi_nb.show.picture import Picture
from kimi_nb.sizing import as_plan, factors, search, workload_options
from kimi_nb.sizing.factors import Factors
from kimi_nb.sizing.points import Bounds
from kimi_nb.sizing.sizing_answer import Answer, Candidate

if TYPE_CHECKING:
    from kimi_nb.prove.tune.sweep import Sweep

OWN = ("scenario", "variant", "features", "without", "overrides", "engine_version", "errata")
_REHEARSED = 4  # requests at once: more show nothing else on stand-ins


@dataclass(frozen=True, repr=False)
class Calibrated(show.Shown):
    """Efficiency factors of the model of time, calibrated by results where there are any.

    ``table_of`` are the factors, None where they are the vendor's; ``why`` says which results were
    used, or why none were.
    """

    hardware: str
    table_of: Factors | None
    why: str
    precision: str = ""

    def table(self) -> show.Table:
        """Return every factor with its interval, its mark and its source."""
        known = self.table_of or factors.of(load.hardware(self.hardware).vendor, self.precision)
        rows = tuple(
            (one.name, f"{one.value:.3g} ({one.low:.3g} to {one.high:.3g})", one.mark, one.source)
            for one in known.values()
        )
        return show.Table(
            f"Factors of {self.hardware}: {self.why}",
            ("factor", "share of the peak, or seconds (_s)", "mark", "source"),
            rows,
        )


@dataclass(frozen=True, repr=False)
class Proposed(show.Both):
    """What a search proposes for a choice; ``why`` where no time can be estimated.

    ``most`` limits the requests at once of a sweep around it, 0: no limit.
    """

    choice: Choice
    answer: Answer | None
    why: str = ""
    most: int = 0

    def table(self) -> show.Table:
        """Return the candidates, best first, or why there are none."""
        if self.answer is not None:
            return self.answer.table()
        return show.Table("No size is proposed", ("why",), ((self.why,),))

    def below(self) -> show.Table:
        """Return what limits the best one, what a node more would buy, and what was refused."""
        said = self.answer.sentences() if self.answer is not None else []
        said.append(f"planned and swept around below: {self._planned()}.")
        return show.Table("What the search says", ("",), tuple((one,) for one in said))

    @property
    def best(self) -> Candidate | None:
        """The first candidate that the site has the nodes for; None without one."""
        found = self.answer.candidates if self.answer is not None else ()
        return next((one for one in found if not one.needs_site), None)

    def around(self, sweep: str = "") -> tuple[Choice, str]:
        """Return what to plan and the axes to sweep around it.

        An own ``sweep``, or a choice with own changes, stays as it is.
        """
        best = self.best
        own = any(getattr(self.choice, name) for name in OWN)
        if best is None or own or sweep:
            return self.choice, sweep or _axes(self.choice, self.most)
        return proposed(self.choice, best), as_plan.axes(best.point, self.most)

    def _planned(self) -> str:
        if self.best is None:
            return "the choice as it is, for nothing is proposed"
        changed = [name for name in OWN if getattr(self.choice, name)]
        if changed:
            return f"the choice as it is, for it has {' and '.join(changed)} of its own"
        return f"the first row, unless the parameter sweep says otherwise ({self.best.known})"

    def picture(self) -> Picture:
        """Draw the candidates: what a device gives over what one user sees."""
        if self.answer is None:
            return nothing.picture("sizes", "Sizes considered", self.why.removesuffix("."))
        return size_front.picture(self.answer)


def proposed(given: Choice, best: Candidate) -> Choice:
    """Return the choice that plans a candidate."""
    base = best.point.base
    return dataclasses.replace(
        given,
        layout=base.layout,
        site=best.site or given.site,
        variant="",
        scenario="",
        overrides="; ".join(as_plan.pairs(best.point)),
        derive="yes" if base.derive else "",
    )


def _axes(given: Choice, most: int) -> str:
    """Return the axes around a choice's own limit of sequences: half of it, and it."""
    plan = given.plan()
    role, flags = list(plan.flags.items())[-1]
    found = flags.get("max-num-seqs")
    own = found.value if found is not None else None
    loads = sorted({1, min(own if isinstance(own, int) else 4, most or 64)})
    if not isinstance(own, int) or own < 2:
        return f"concurrency: {loads}"
    return f"{role}.max-num-seqs: {[own // 2, own]}; concurrency: {loads}"


def propose(
    session: Session,
    given: Choice,
    calibrated: Calibrated | None = None,
    *,
    input_len: int | None = None,
    output_len: int | None = None,
    lengths: str = "",
    trace: str = "",
    ttft_ms: float = 0,
    tpot_ms: float = 0,
    nodes: int = 0,
) -> Proposed:
    """Search the sizes that keep bounds of mean latencies (ms; 0: none), and record the best.

    The workload is ``input_len`` and ``output_len``. A distribution of ``lengths`` such as
    "1000:200:0.9,60000:800:0.1", or the file of a ``trace``, as ``kimi-nb size`` takes them, stands
    in their place.
    With ``nodes`` it is every layout on so many nodes, else the choice's layout on its own nodes.

    Raises:
        ParameterError: If a length, a trace, a bound or a number of nodes is not allowed, or if
            not exactly one workload is given.
    """
    fixed = (None, None) if lengths or trace else (input_len, output_len)
    load_of = workload_options.of(*fixed, lengths=lengths, trace=trace)
    bounds = Bounds(*(_bound(name, one) for name, one in (("ttft", ttft_ms), ("tpot", tpot_ms))))
    most = 0 if session.action == "deploy" else _REHEARSED
    try:
        found = search.answer(
            given.model,
            given.hw,
            nodes or len(given.plan().nodes),
            load_of,
            bounds,
            layout="" if nodes else given.layout,
            derive=bool(given.derive),
            site=given.site,
            table=calibrated.table_of if calibrated else None,
        )
    except (NoFigureError, PlanError) as error:
        session.record("size", proposed="", why=str(error))
        return Proposed(given, None, " ".join(str(error).split()), most)
    out = Proposed(given, found, most=most)
    best = out.best
    session.record(
        "size",
        considered=found.considered,
        proposed=as_plan.command(best.point, best.site) if best else "",
        mark=best.mark if best else "",
    )
    return out


def _bound(name: str, value: float) -> float | None:
    """Return a bound in seconds, None for 0. Raises ParameterError below 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ParameterError(
            f"slo_{name}_ms: milliseconds of 0 (no bound) or more are wanted, found {value!r}."
        )
    return value / 1e3 or None


def calibrate(session: Session, given: Choice, measured: str | Sweep = "") -> Calibrated:
    """Calibrate the factors by results: a folder of notebook 08's, or a sweep.

    Without either it is what notebook 08 has left in this run for the same plan. Results of
    stand-ins are not used, and said.

    Raises:
        ParameterError: If a folder that was named has no results that calibrate.
    """
    from kimi_nb.prove.tune import site_factors  # pandas: only when asked

    plan = given.plan()
    out = Calibrated(given.hw, None, "", plan.request.weights.precision)
    if isinstance(measured, str):
        folder = session.folder / plan.name / "bench"
        if not measured and not any(folder.glob("*.json")):
            why = "not calibrated, notebook 08 has measured nothing in this run"
            return dataclasses.replace(out, why=why)
        pairs = [one.strip() for one in given.overrides.split(";") if one.strip()]
        place = load.user_path(measured, "results") if measured else folder
        table, why = _told(lambda: site_factors.of(place, given.hw, pairs), bool(measured))
    else:
        found, plans = measured.result, [one.plan for one in measured.design.groups]
        table, why = _told(lambda: site_factors.of_plans(found, plans), False)
    out = dataclasses.replace(out, table_of=table, why=why)
    moved = [one.name for one in (table or {}).values() if one.mark == "calibrated"]
    session.record("calibrate", moved=moved, why=why)
    return out


def _told(fit: Any, named: bool) -> tuple[Mapping[str, Any] | None, str]:
    """Return calibrated factors, or None and why; what a person has ``named`` raises instead."""
    try:
        table: Factors = fit()
    except KimiError as error:
        if named:
            raise
        return None, f"not calibrated, {str(error).split(': ', 1)[-1]}"
    moved = [one for one in table.values() if one.mark == "calibrated"]
    if not moved:
        return table, "the measurements agree with the factors as they were"
    return table, f"{len(moved)} calibrated by {moved[0].source}"
