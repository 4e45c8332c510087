"""Hold the memory model against public logs: what was said, what we say, and the difference.

>>> one = rows()[0]
>>> one.quantity, one.said, round(one.error) <= 10
('cache_gib', 46.8, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb.check import public_engines
from kimi_nb.check.rules import capacity
from kimi_nb.core import data_files
from kimi_nb.plan import memory
from kimi_nb.plan.memory import GIB, Fit, states
from kimi_nb.show import Table

WITHIN = 10.0


@dataclass(frozen=True)
class Row:
    """One public statement, and what the model says.

    Attributes:
        said: What the source says, in the unit of ``quantity``.
        ours: What the model says; None where it does not describe the model.
        low: The least that the model allows, and ``high`` the most; None where it has no range.
        use: fit if a figure of the model was set by this row, hold if not, none if not modelled.
        within: The bound of the difference in per cent.
        reason: Why the bound is wider, or why the row is not modelled.
    """

    id: str
    source: str
    engine: str
    quantity: str
    said: float
    ours: float | None
    low: float | None
    high: float | None
    use: str
    within: float
    reason: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, with the difference in per cent."""
        return asdict(self) | {"error_percent": round(self.error, 2)}

    @property
    def error(self) -> float:
        """How far ours is from what was said, in per cent of the latter; 0 if not modelled."""
        return 0.0 if self.ours is None else (self.ours / self.said - 1) * 100


def rows() -> tuple[Row, ...]:
    """Return every statement of data/plan/memory_evidence.yaml with what the model says."""
    out: list[Row] = []
    for entry in data_files.facts("plan/memory_evidence")["rows"]:
        fit = _fit(entry) if "engine" in entry else None
        said = entry.get("engine", {}).get("said", "")
        engine = f"{entry['engine']['package']} {said}".strip() if "engine" in entry else ""
        for one in entry["said"]:
            ours = low = high = None
            if fit is not None:
                ours, low, high = _quantity(fit, entry, one["quantity"])
            out.append(
                Row(
                    entry["id"],
                    entry["source"],
                    engine,
                    one["quantity"],
                    float(one["value"]),
                    ours,
                    low,
                    high,
                    one["use"],
                    float(one.get("within", WITHIN)),
                    one.get("reason", ""),
                )
            )
    return tuple(out)


def table() -> Table:
    """Return the statements as a table: source, what was said, what we say, difference."""
    return Table(
        "The memory model against public statements (used: fit set a figure, hold did not)",
        ("statement", "quantity", "said", "ours", "difference", "used", "why", "source"),
        tuple(
            (
                one.id,
                one.quantity,
                f"{one.said:,.10g}",
                "-" if one.ours is None else _number(one.ours, one.quantity),
                "-" if one.ours is None else f"{one.error:+.1f} %",
                one.use,
                one.reason,
                f"{one.source}; {one.engine}".strip("; "),
            )
            for one in rows()
        ),
    )


def _number(value: float, quantity: str) -> str:
    return f"{value:,.0f}" if quantity.endswith("tokens") else f"{value:.2f}"


def _quantity(
    fit: Fit, entry: Mapping[str, Any], name: str
) -> tuple[float, float | None, float | None]:
    """Return (value, least, most) of a quantity of the account of what an entry describes."""
    if name in ("page_tokens", "state_mb", "checkpoint_gb"):
        model = public_engines.of(entry).model
        assert model is not None, entry["id"]
        arch = model.architecture
        if name == "checkpoint_gb":
            return memory.checkpoint_bytes(arch, entry["precision"]) / 1e9, None, None
        if name == "page_tokens":
            return states.page_tokens(fit.shape, arch), None, None
        return memory.state_bytes(fit.shape, arch) / 1e6, None, None
    cache = fit.headroom / GIB
    if name == "cache_tokens":
        return fit.tokens, fit.low, fit.high
    if name == "cache_gib":
        bytes_ = fit.per_token / fit.shape.dcp / GIB
        return cache, fit.low * bytes_, fit.high * bytes_
    if name == "beside_gib":
        found = [one for one in fit.terms if one.name in ("buffers", "contexts", "connector")]
        low, high = (sum(getattr(one, side) for one in found) / GIB for side in ("low", "high"))
        return sum(one.bytes for one in found) / GIB, low, high
    parts = fit.parts
    values = {
        "routed_gib": parts.get("routed experts", 0.0) + parts.get("quantisation scales", 0.0),
        "held_gib": fit.budget - sum(parts.get(one, 0.0) for one in ("activations", "sampler")),
        "weights_gib": fit.weights,
        "used_gib": fit.used,
        "device_gib": fit.device,
        "budget_gib": fit.budget,
    }
    return values[name] / GIB, None, None


def _fit(entry: Mapping[str, Any]) -> Fit:
    """Return the account of the engine that a statement is about."""
    deployment = public_engines.of(entry)
    found = capacity.fit_of(deployment, deployment.servers[0])
    assert found is not None, entry["id"]
    return found
