"""The memory of every kind of engine of a plan, term by term, and that of its hosts.

>>> from kimi_nb.plan import build
>>> [bar.role for bar in of(build.plan("k2.5", "a3", "pd")).bars]
['prefill', 'decode']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb.check import judge
from kimi_nb.check.findings import Bar
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import schema
from kimi_nb.plan import store
from kimi_nb.plan.memory import GIB, Term, calibration, engine_report, host
from kimi_nb.plan.spec import Plan
from kimi_nb.show import Table


@dataclass(frozen=True)
class Account:
    """The memory of a plan: a bar for each kind of engine, and the terms of a node's host."""

    plan: str
    bars: tuple[Bar, ...]
    host: tuple[Term, ...]
    checkpoint_gb: float | None

    def __str__(self) -> str:
        return "\n\n".join([*(f"{bar}\n{_terms(bar)}" for bar in self.bars), str(self.hosts())])

    def hosts(self) -> Table:
        """Return the memory of a node's host, and the minutes to read the weights."""
        rows = [(one.name, f"{one.gib:.1f} GiB", one.formula, one.source) for one in self.host]
        if self.checkpoint_gb:
            rows += [
                (
                    f"loading at {speed:g} GB/s",
                    f"{host.load_minutes(self.checkpoint_gb, speed):.1f} minutes",
                    "checkpoint / bandwidth",
                    f"{self.checkpoint_gb:g} GB",
                )
                for speed in (0.5, 2.0, 10.0)
            ]
        return Table("The host of a node", ("term", "size", "formula", "source"), tuple(rows))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "plan": self.plan,
            "memory": [bar.as_dict() for bar in self.bars],
            "host": [one.as_dict() for one in self.host],
        }


def of(plan: Plan) -> Account:
    """Return the account of a plan's devices and hosts."""
    deployment = judge.of_plan(plan)
    size = deployment.weights.size_gb if deployment.weights else None
    offload = max(
        (server.number("kv-offloading-size") or 0 for server in deployment.servers), default=0
    )
    nodes = [sum(len(engine.devices) for engine in plan.of(node)) for node in plan.nodes]
    devices = max(nodes, default=1)
    shared = store.host_gib(plan.store, devices) if plan.store else 0.0
    return Account(
        plan.name,
        judge.memory_of(deployment),
        tuple(host.terms(devices, float(offload), size, shared)),
        size,
    )


def _terms(bar: Bar) -> Table:
    return Table(
        f"{bar.role}: terms of one device",
        ("term", "GiB", "least", "most", "inside", "formula", "source", "how known"),
        tuple(
            (
                one.name,
                f"{one.gib:.2f}",
                f"{one.low / GIB:.2f}",
                f"{one.high / GIB:.2f}",
                "yes" if one.inside else "no",
                one.formula,
                one.source,
                one.mark,
            )
            for one in bar.fit.terms
        ),
    )


def learn(plan: Plan, role: str, log: engine_report.Log, date: str) -> calibration.Learnt:
    """Compare an engine's log with the estimate for one role of a plan.

    ``role`` may be "" for a plan with a single role. Raises ParameterError for a log of another
    engine, and for a model without an estimate.
    """
    roles = tuple(plan.flags)
    if not role and len(roles) > 1:
        raise ParameterError(f"calibrate: --role is wanted: {' or '.join(roles)}.")
    if role and role not in roles:
        raise ParameterError(f"calibrate: --role {role}: the plan has {', '.join(roles)}.")
    role = role or roles[0]
    bar = next((one for one in judge.memory_of(judge.of_plan(plan)) if one.role == role), None)
    if bar is None:
        raise ParameterError(f"calibrate: there is no estimate for {plan.model} to compare with.")
    request = plan.request
    weights: schema.Weights = request.weights
    learnt = calibration.learn(
        bar.fit,
        log,
        {
            "engine": plan.engine,
            "version": plan.engine_version,
            "vllm": plan.vllm_version,
            "model": plan.model,
            "precision": weights.precision,
            "hardware": plan.hardware,
            "role": role,
            "measured": {"date": date, "logs": [log.name]},
            "served": (request.located(weights), weights.id, weights.directory),
        },
    )
    calibration.refuse_impossible(learnt.layer, request.hardware, log.name)
    return learnt


def beside(
    plan: Plan, told: Mapping[str, Mapping[str, Sequence[str]]], date: str, mark: str = ""
) -> Table:
    """Return each term as estimated and as the engines' logs say it, for each role of a plan.

    ``told`` are the lines of each role's logs that tell of memory, by name, of ``date``; a role
    without any has its estimates alone. Logs that cannot be compared are a row that says why.
    """
    title = f"{plan.name}: memory of one device in GiB"
    rows: list[tuple[str, ...]] = []
    for bar in judge.memory_of(judge.of_plan(plan)):
        terms, why = calibration.compare(bar.fit, engine_report.Log("")), ""
        if logs := told.get(bar.role):
            try:
                said = [engine_report.read(lines, name) for name, lines in logs.items()]
                terms = learn(plan, bar.role, engine_report.join(said), date).terms
            except ParameterError as error:
                why = str(error)
        rows += [_row(bar.role, one) for one in terms if one.ours is not None]
        rows += [(bar.role, "not compared", "", "", why)] if why else []
    if not rows:
        rows = [("-", "not estimated", "", "", f"the architecture of {plan.model} is not known")]
    return Table(
        f"{mark}: {title}" if mark else title,
        ("role", "term", "estimated", "logged", "difference"),
        tuple(rows),
    )


def _row(role: str, one: calibration.Compared) -> tuple[str, ...]:
    if one.ours is None or one.logged is None:
        return (role, one.term, f"{one.ours or 0:.2f}", "-", "-")
    return (
        role, one.term, f"{one.ours:.2f}", f"{one.logged:.2f}", f"{one.logged - one.ours:+.2f}"
    )  # fmt: skip
