"""Whether a measurement can be compared with a published one, and if not, what differs.

Usage::

    compare.differences(about, conditions, row)  # () or ("hardware: h200, published a3",)
    compare.with_published(result)  # a table, or the reasons
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.catalog.group_settings import API_FLAGS
from kimi_nb.check import public_engines
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.prove.bench import identity, published_figures, published_tables
from kimi_nb.prove.bench.results import BenchResult

# The columns that describe the load; the others are figures.
_LOAD = ("concurrency", "input_len", "output_len", "prompts", "rate")
_FIGURES = (
    "output_throughput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "total_token_throughput",
    "mean_itl_ms",
    "mean_e2el_ms",
    "per_user",
)


@dataclass(frozen=True, repr=False)
class Comparison(show.Shown):
    """Measurements next to published ones.

    Attributes:
        pairs: (measured row, published row, source) for each pair that can be compared.
        reasons: (published table, what differs) for each table that cannot.
    """

    mark: str
    pairs: tuple[tuple[Mapping[str, Any], Mapping[str, Any], str], ...]
    reasons: tuple[tuple[str, str], ...]

    def table(self) -> show.Table:
        """Return measured next to published figures, or the reasons if there are none."""
        if not self.pairs:
            return show.Table(
                "Not comparable with what is published",
                ("published", "because"),
                self.reasons
                or (("nothing", "no document has figures of this model on this hardware"),),
            )
        rows = [
            (
                mine["concurrency"],
                name,
                f"{mine[name]:.2f}",
                theirs[name],
                f"{mine[name] / theirs[name]:.2f}",
                source,
            )
            for mine, theirs, source in self.pairs
            for name in _FIGURES
            if name in theirs
        ]
        return show.Table(
            "Measured beside published",
            ("concurrency", "figure", "measured", "published", "ratio", "source"),
            tuple(rows),
        )


def differences(
    about: Mapping[str, Any], conditions: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return what differs between a measurement and a published row, by name; () if nothing does.

    Conditions that the document does not state are not compared.
    """
    out = [f"it is a {about['mark']}"] if about.get("mark") else []
    if about.get("attached"):
        out.append("the service was there already: its flags are not known")
    wanted = {**conditions, **{name: row[name] for name in _LOAD if name in row}}
    for name, there in wanted.items():
        here = about.get(name)
        if there is not None and str(here) != str(there):
            out.append(f"{name}: {_said(here)}, published {_said(there)}")
    return tuple(out)


def with_published(result: BenchResult) -> Comparison:
    """Compare every measured load with every published row.

    The flags must be exactly those of the plan, which are those of the document's command.
    """
    cells = result.summary().to_dict("records") if result.files else []
    pairs: list[Any] = []
    reasons: dict[str, str] = {}
    for table in published_tables.tables():
        # The load with the fewest differences says best what would have to change.
        found: list[tuple[str, ...]] = []
        own = build.plan(*(table.conditions[name] for name in ("model", "hardware", "layout")))
        conditions = {**table.conditions, "flags": identity.flags_hash(own)}
        for row in table.rows:
            for cell in cells:
                differ = differences(_plain(cell), conditions, row)
                found.append(differ)
                if not differ:
                    pairs.append((cell, row, table.source))
        if found and all(found):
            nearest = sorted(found, key=len)[0]
            reasons[f"{table.title} ({table.source})"] = "; ".join(nearest)
    if cells:
        _with_figures(result, cells, pairs, reasons)
    return Comparison(result.mark, tuple(pairs), tuple(reasons.items()))


def _with_figures(
    result: BenchResult,
    cells: Sequence[Mapping[str, Any]],
    pairs: list[Any],
    reasons: dict[str, str],
) -> None:
    """Compare every measured load with every single figure of the same model and hardware."""
    settings = {
        one["kimi_nb"]["identity"].get("flags"): one["kimi_nb"].get("settings")
        for one in result.measurements
    }
    about = cells[0]
    nearest: dict[str, tuple[str, ...]] = {}
    for figure in published_figures.figures(about["model"], about["hardware"]):
        if not figure.entry:
            continue  # of a table, see above
        found = [
            (
                *_unsaid(figure.load),
                *differences(_plain(cell), figure.conditions, figure.load),
                *_precision(cell, figure.precision),
                *flag_differences(settings.get(cell.get("flags")), figure.entry),
            )
            for cell in cells
        ]
        for cell, differ in zip(cells, found, strict=True):
            if not differ:
                theirs = {figure.name: figure.value}
                pairs.append((cell, theirs, figure.source))
        name = f"{figure.id} ({figure.source})"
        nearest[name] = min((*found, nearest.get(name, found[0])), key=len)
    reasons.update({name: "; ".join(differ) for name, differ in nearest.items() if differ})


def _unsaid(load_: Mapping[str, Any]) -> list[str]:
    """Return what a source would have to say of its load for a comparison."""
    return [
        f"{name}: the source does not say"
        for name in ("concurrency", "input_len", "output_len")
        if name not in load_
    ]


def _precision(about: Mapping[str, Any], published: str) -> list[str]:
    if about["model"] not in load.names("models"):
        return []  # the user's own file, whose weights are compared by their name
    weights = load.model(about["model"]).weights.values()
    here = next((one.precision for one in weights if one.id == about.get("weights")), published)
    return [f"precision: {here}, published {published}"] if here != published else []


def flag_differences(
    settings: Mapping[str, Any] | None, entry: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return which flags and variables of the engine differ from an entry's, by name.

    ``settings`` are those of `identity.settings`, None where a result was written without them.
    What decides nothing but how answers look is not compared.
    """
    if settings is None:
        return ("the result does not hold its flags: measure again",)
    role = "decode" if "decode" in settings["flags"] else next(iter(settings["flags"]))
    theirs = public_engines.of(entry).servers[0].flags
    skip = API_FLAGS | {"trust-remote-code", "model"}
    out = []
    for kind, here, there in (
        ("--", settings["flags"][role], theirs),
        ("", settings["env"].get(role, {}), entry.get("env", {})),
    ):
        names = set(there) if not kind else set(here) | set(there)
        for name in sorted(names - skip):
            mine, said = here.get(name), there.get(name)
            if str(mine) != str(said):
                out.append(f"{kind}{name}: {_said(mine)}, published {_said(said)}")
    return tuple(out)


def _plain(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Convert whole floats to integers: pandas has made floats of them, an identity has none."""
    return {
        name: int(value)
        if isinstance(value, float) and value.is_integer() and name != "rate"
        else value
        for name, value in cell.items()
    }


def _said(value: Any) -> str:
    return "not said" if value in (None, "") else str(value)
