"""What a plan cannot exceed: the memory, arithmetic and links of its devices.

Usage::

    found = limits.of_plan(plan, input_len=1024, output_len=1024, concurrency=8)
    found.tpot_ms(), found.ttft_ms(), found.tokens_per_s("decode")
    found.share(90.3)  # "6 % of the bandwidth limit (estimated)"

Every figure is estimated: `roofline` computes the work from the model's architecture, and the
data sheets give the peaks of the devices (params/hardware). How far a measured throughput is below
its limit says how much there is to gain. The limit is not strict (`ASSUMED`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.check import judge
from kimi_nb.check.rules import capacity
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import schema
from kimi_nb.plan import memory
from kimi_nb.plan.spec import Plan
from kimi_nb.sizing import roofline
from kimi_nb.sizing.roofline import FORMULAS, Spread, Step

ASSUMED = (
    "estimated and not strict: experts are taken to be chosen evenly; an uneven choice reads fewer "
    "of them, so that a measurement may lie above"
)
_UNITS = {"bandwidth": "GB", "arithmetic": "10^12 operations", "links": "GB", "transfer": "GB"}


@dataclass(frozen=True)
class Limit:
    """The least time of one step, for one resource of a device.

    Attributes:
        role: The role of the engines.
        phase: decode, prefill, prompt or transfer.
        resource: bandwidth, arithmetic, links or transfer.
        amount: What a step takes, in GB or 10^12 operations.
        peak: What the device gives in a second, in the same unit; None if not published.
        step_ms: The least time of a step in ms; of a transfer, that of one prompt.
        tokens_per_s: The most tokens a second of the whole plan.
        formula: How the amount is computed.
        source: Where formula and peak are from.
        missing: The figure that nobody has published; "" if all are known.
        figures: What kind of figures these are.
    """

    role: str
    phase: str
    resource: str
    amount: float
    peak: float | None
    step_ms: float | None
    tokens_per_s: float | None
    formula: str
    source: str
    missing: str = ""
    figures: str = "estimated"


@dataclass(frozen=True, repr=False)
class Limits(show.Both):
    """The limits of a plan under a load.

    Attributes:
        seqs: Sequences of a decode rank at once.
        accepted: Tokens that a decode step gives each sequence, 1 without drafts.
        chunks: Prefill steps of one prompt.
        notes: What could not be computed.
    """

    plan: str
    limits: tuple[Limit, ...]
    seqs: int
    accepted: float
    chunks: int
    notes: tuple[str, ...] = ()

    def of(self, phase: str) -> tuple[Limit, ...]:
        """Return the limits of a phase whose peaks are known, tightest first.

        ``phase`` is decode, prefill (full steps), prompt (a single one) or transfer (of its cache).
        """
        return tuple(
            sorted(
                (one for one in self.limits if one.phase == phase and one.step_ms),
                key=lambda one: -(one.step_ms or 0),
            )
        )

    def tokens_per_s(self, phase: str = "decode") -> float | None:
        """Return the most tokens a second of the whole plan; None if not known."""
        found = self.of(phase)
        return found[0].tokens_per_s if found else None

    def tpot_ms(self) -> float | None:
        """Return the least time in ms for each output token of a request; None if not known."""
        found = self.of("decode")
        return found[0].step_ms / self.accepted if found and found[0].step_ms else None

    def ttft_ms(self) -> float | None:
        """Return the least time in ms to a prompt's first token if nothing else delays it."""
        found = self.of("prompt")
        if not found or not found[0].step_ms:
            return None
        moved = self.of("transfer")
        return found[0].step_ms * self.chunks + (moved[0].step_ms or 0 if moved else 0)

    def share(self, output_tokens_per_s: float) -> str:
        """Return a measured output throughput as a percentage of the tightest decode limit."""
        found = self.of("decode")
        if not found or not found[0].tokens_per_s:
            return "no limit is known"
        part = output_tokens_per_s / found[0].tokens_per_s
        return f"{_percent(part)} of the {found[0].resource} limit (estimated)"

    def table(self) -> show.Table:
        """Return a table with a row for each resource; * marks the tightest of a phase."""
        tight = {
            phase: found[0]
            for phase in ("prefill", "prompt", "transfer", "decode")
            if (found := self.of(phase))
        }
        rows = [
            (
                one.role,
                one.phase,
                one.resource + (" *" if tight.get(one.phase) is one else ""),
                f"{one.amount:.3g} {_UNITS[one.resource]}",
                f"{one.peak:g}/s" if one.peak else f"not published: {one.missing}",
                f"{one.step_ms:.3g} ms" if one.step_ms is not None else "-",
                f"{one.tokens_per_s:,.0f}" if one.tokens_per_s else "-",
            )
            for one in self.limits
        ]
        rows += [("", "", "note", note, "", "", "") for note in self.notes]
        return show.Table(
            f"Limits of {self.plan} with {self.seqs} sequences a decode rank and "
            f"{self.accepted:g} tokens a step; * is the tightest ({ASSUMED})",
            (
                "role",
                "phase",
                "resource",
                "a step on one device",
                "peak",
                "least time",
                "tokens/s at most",
            ),
            tuple(rows),
        )

    def below(self) -> show.Table:
        """Return a table of how each resource is computed, and the sources."""
        return show.Table(
            "Formulas",
            ("resource", "a step takes", "source"),
            tuple(dict.fromkeys((one.resource, one.formula, one.source) for one in self.limits)),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def of_plan(
    plan: Plan,
    *,
    input_len: int = 1024,
    output_len: int = 1024,
    concurrency: int = 0,
    accepted: float | None = None,
) -> Limits:
    """Return the limits of a plan for requests of these sizes.

    ``concurrency`` is the number of requests at once (0: a full batch). ``accepted`` is the
    measured number of tokens that a step with drafts gives (the mean acceptance length). Without
    it, every draft is assumed to be accepted, which is the upper bound.

    Raises:
        ParameterError: If a size is not a whole number, or too small.
    """
    deployment = judge.of_plan(plan)
    kinds = []
    for role in plan.flags:
        server = next(one for one, _ in deployment.profiles() if one.role == role)
        mine = [engine for engine in plan.engines if engine.role == role]
        nodes = len({engine.node for engine in mine if engine.group == mine[0].group})
        groups = len({engine.group for engine in mine})
        kinds.append((role, server, groups, Spread(plan.devices_per_node, nodes)))
    return _of(plan.name, deployment, kinds, input_len, output_len, concurrency, accepted)


def of_engine(
    deployment: Deployment,
    *,
    groups: int = 1,
    input_len: int = 1024,
    output_len: int = 1024,
    concurrency: int = 0,
    accepted: float | None = None,
) -> Limits:
    """Return the limits of ``groups`` engines, each like the deployment's first; see `of_plan`.

    Raises:
        ParameterError: If a size is not a whole number, or too small.
    """
    server = deployment.servers[0]
    shape = capacity.served_shape_of(deployment, server)
    devices = deployment.hardware.devices.count if deployment.hardware else 1
    nodes = math.ceil(shape.devices / devices) if shape else 1
    kinds = [("mixed", server, groups, Spread(devices, nodes))]
    return _of(deployment.title, deployment, kinds, input_len, output_len, concurrency, accepted)


def _of(
    name: str,
    deployment: Deployment,
    kinds: Iterable[tuple[str, EngineView, int, Spread]],
    input_len: int,
    output_len: int,
    concurrency: int,
    accepted: float | None,
) -> Limits:
    """Return the limits of (role, an engine of it, its groups, how a group is spread)."""
    for size, value, least in (
        ("input_len", input_len, 1),
        ("output_len", output_len, 1),
        ("concurrency", concurrency, 0),
    ):
        if type(value) is not int or value < least:
            raise ParameterError(
                f"{size}: a whole number of {least} or more is wanted, found {value!r}."
            )
    found: list[Limit] = []
    notes: list[str] = []
    seqs, given, chunks = 0, 1.0, 1
    for role, server, groups, spread in kinds:
        shape = capacity.served_shape_of(deployment, server)
        why = _unknown(deployment, shape)
        if why or shape is None:
            notes.append(f"{role}: {why}")
            continue
        one = _Role(deployment, server, shape, role, groups, spread)
        if role != "decode":
            chunks = math.ceil(input_len / shape.batched_tokens)
            found += one.prefill(input_len) + one.prompt(input_len)
        if role == "prefill":
            found.append(one.transfer(input_len))
        if role != "prefill":
            seqs = one.seqs(concurrency, input_len + output_len)
            given = min(accepted, 1.0 + one.drafts) if accepted else 1.0 + one.drafts
            found += one.decode(seqs, concurrency, input_len + output_len / 2, given)
    return Limits(name, tuple(found), seqs, given, chunks, tuple(notes))


def _unknown(d: Deployment, shape: memory.Shape | None) -> str:
    if shape is None or d.model is None or d.weights is None or d.hardware is None:
        return "its sizes are not known"
    return roofline.named(d.weights.precision, d.model.architecture)


class _Role:
    """The limits of one role."""

    def __init__(
        self,
        d: Deployment,
        server: EngineView,
        shape: memory.Shape,
        role: str,
        groups: int,
        spread: Spread,
    ) -> None:
        assert d.model is not None and d.weights is not None and d.hardware is not None
        self.role, self.shape = role, shape
        self.arch, self.precision = d.model.architecture, d.weights.precision
        self.hardware: schema.Hardware = d.hardware
        self.groups, self.spread = groups, spread
        table = server.table("speculative-config")
        drafts = table.get("num_speculative_tokens", 0)
        self.drafts = drafts if isinstance(drafts, int) else 0
        self.draft_parameters = capacity.draft_parameters(d, server)
        fit = capacity.fit_of(d, server)
        self.fit = fit

    def seqs(self, concurrency: int, length: int) -> int:
        """Return how many sequences a rank works on at once.

        That is the least of what the load asks for, what a batch takes and what the cache holds.
        """
        asked = (
            math.ceil(concurrency / (self.shape.dp * self.groups))
            if concurrency
            else self.shape.seqs
        )
        held = self.fit.requests(length) if self.fit else 0
        return max(1, min(asked, self.shape.seqs, held or 1))

    def decode(self, seqs: int, concurrency: int, context: float, accepted: float) -> list[Limit]:
        full = seqs * self.shape.dp * self.groups
        whole = min(concurrency or full, full)
        step = roofline.decode(
            self.shape,
            self.arch,
            self.precision,
            seqs=seqs,
            context=context,
            tokens_each=1 + self.drafts,
            spread=self.spread,
            group_seqs=math.ceil(whole / self.groups),
            draft_parameters=self.draft_parameters,
        )
        return self._limits("decode", step, whole * accepted)

    def prefill(self, prompt: int) -> list[Limit]:
        """Return the limits of steps that are full on every rank."""
        tokens = self.shape.batched_tokens
        return self._limits(
            "prefill",
            self._prefill(tokens, prompt, self.shape.dp),
            tokens * self.shape.dp * self.groups,
        )

    def prompt(self, prompt: int) -> list[Limit]:
        """Return the limits of a single prompt."""
        tokens = min(self.shape.batched_tokens, prompt)
        return self._limits("prompt", self._prefill(tokens, prompt, 1), tokens)

    def _prefill(self, tokens: int, prompt: int, ranks: int) -> Step:
        return roofline.prefill(
            self.shape,
            self.arch,
            self.precision,
            tokens=tokens,
            prompt=prompt,
            ranks=ranks,
            spread=self.spread,
            draft_parameters=self.draft_parameters,
        )

    def transfer(self, prompt: int) -> Limit:
        size = roofline.transfer_bytes(self.shape, self.arch, prompt)
        return self._limit("transfer", "transfer", size / 1e9, "network_gb_s", prompt)

    def _limits(self, phase: str, step: Step, whole: float) -> list[Limit]:
        """Return the limits of a step that gives the whole plan ``whole`` tokens."""
        out = [
            self._limit(phase, "bandwidth", step.memory / 1e9, "memory_gb_s", whole),
            self._arithmetic(phase, step, whole),
        ]
        for amount, name in ((step.node_link, "node_link_gb_s"), (step.network, "network_gb_s")):
            if amount:
                out.append(self._limit(phase, "links", amount / 1e9, name, whole))
        return out

    def _limit(self, phase: str, resource: str, amount: float, peak: str, whole: float) -> Limit:
        known = getattr(self.hardware.peaks, peak)
        formula, source = FORMULAS[resource]
        if known is None:
            return Limit(
                self.role,
                phase,
                resource,
                amount,
                None,
                None,
                None,
                formula,
                source,
                f"{peak} of {self.hardware.name}",
            )
        seconds = amount / known.value
        return Limit(
            self.role,
            phase,
            resource,
            amount,
            known.value,
            seconds * 1e3,
            whole / seconds,
            formula,
            f"{source}; peak: {known.source}",
        )

    def _arithmetic(self, phase: str, step: Step, whole: float) -> Limit:
        """Return the limit of the arithmetic.

        All number formats are computed by the same units, one after the other, so their times add
        up.
        """
        formula, source = FORMULAS["arithmetic"]
        amount, seconds, sources = 0.0, 0.0, []
        for kind, count in step.operations.items():
            peak = f"{kind}_tops" if kind == "int8" else f"{kind}_tflops"
            known = getattr(self.hardware.peaks, peak)
            if known is None:
                return Limit(
                    self.role,
                    phase,
                    "arithmetic",
                    sum(step.operations.values()) / 1e12,
                    None,
                    None,
                    None,
                    formula,
                    source,
                    f"{peak} of {self.hardware.name}",
                )
            amount += count / 1e12
            seconds += count / 1e12 / known.value
            sources.append(known.source)
        return Limit(
            self.role,
            phase,
            "arithmetic",
            amount,
            amount / seconds,
            seconds * 1e3,
            whole / seconds,
            formula,
            f"{source}; peak: {'; '.join(dict.fromkeys(sources))}",
        )


def _percent(part: float) -> str:
    return f"{part:.0%}".replace("%", " %") if part >= 0.01 else "less than 1 %"
