"""Single figures that the public has measured, with hardware, engine, flags, load and source.

>>> one = figures("k2.6", "mi300x")[0]
>>> one.name, one.value, one.load["concurrency"]
('output_throughput', 127.1, 8)

The tables of the documents (`published_tables`) are among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.prove.bench import published_tables

# The figures of a row, and their units.
UNITS: Mapping[str, str] = {
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "total_per_device": "tokens/s",
    "per_user": "tokens/s",
    "mean_ttft_ms": "ms",
    "mean_tpot_ms": "ms",
    "mean_itl_ms": "ms",
    "mean_e2el_ms": "ms",
    "load_s": "s",
}
_SIZES = ("input_len", "output_len", "concurrency", "rate", "prompts")


@dataclass(frozen=True)
class Figure:
    """One published figure.

    Attributes:
        id: The entry of the data, the same for all figures of one engine.
        engine: The engine and its version, in the words of the source.
        words: The flags of the engine that writes the answers.
        load: Lengths, concurrency, rate and more, under the names of `workload.Load`.
        name: One of `UNITS`.
        date: When it was measured or published; "" if the source does not say.
        note: What else the figure depends on.
        conditions: What a measurement has to have in common with it, as `compare` reads it.
        entry: The whole entry, from which limits are computed; {} for a table of the documents.
    """

    id: str
    model: str
    precision: str
    hardware: str
    devices: int
    engine: str
    words: tuple[str, ...]
    load: Mapping[str, Any]
    name: str
    value: float
    source: str
    date: str
    note: str
    conditions: Mapping[str, Any] = field(repr=False)
    entry: Mapping[str, Any] = field(repr=False)

    @property
    def unit(self) -> str:
        """The unit of the value."""
        return UNITS[self.name]


def figures(model: str = "", hardware: str = "") -> tuple[Figure, ...]:
    """Return the published figures of a model and hardware, or all of them."""
    return tuple(
        one
        for one in (*_of_tables(), *_of_entries())
        if model in ("", one.model) and hardware in ("", one.hardware)
    )


def names(kind: str) -> tuple[str, ...]:
    """Return the models or the hardware (``kind``) that there are figures of."""
    return tuple(sorted({getattr(one, kind) for one in figures()}))


def _of_tables() -> Iterator[Figure]:
    """Yield the figures of the documents' tables, which were measured with a recipe's own flags."""
    for table in published_tables.tables():
        about = table.conditions
        for row in table.rows:
            load = {"tool": about["tool"], "dataset": about["dataset"]}
            for name in UNITS:
                if name in row:
                    yield Figure(
                        table.name,
                        about["model"],
                        "",
                        about["hardware"],
                        about["devices"],
                        f"{about['engine']} {about['engine_version']}",
                        (),
                        load | {size: row[size] for size in _SIZES if size in row},
                        name,
                        row[name],
                        table.source,
                        "",
                        "the recipe's own flags",
                        about,
                        {},
                    )


def _of_entries() -> Iterator[Figure]:
    data = data_files.facts("prove/published_figures")
    for entry in data["engines"]:
        source = data["sources"][entry["source"]]
        where = "/".join(filter(None, (source["url"], entry.get("file"))))
        engine = entry["engine"]
        for row in entry["rows"]:
            load = {**entry.get("load", {}), **row.get("load", {})}
            whole = {**entry, "mean": {**load, **entry.get("mean", {}), **row.get("mean", {})}}
            for name in UNITS:
                if name in row:
                    yield Figure(
                        entry["id"],
                        entry["model"],
                        entry["precision"],
                        entry["hardware"],
                        entry["devices"],
                        _said(engine),
                        tuple(entry["words"]),
                        load,
                        name,
                        float(row[name]),
                        where,
                        source["date"] or "",
                        entry.get("note", ""),
                        _conditions(entry, load),
                        whole,
                    )


def _conditions(entry: Mapping[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a measurement has to have in common, under the names of `identity`."""
    engine = entry["engine"]
    exact = engine["version"] if engine["said"] == engine["version"] else engine["said"] or None
    return {
        "model": entry["model"],
        "hardware": entry["hardware"],
        "devices": entry["devices"],
        "engine": engine.get("name", engine["package"]),
        "engine_version": exact,
        **{name: load[name] for name in ("tool", "dataset", "prefix_cache") if name in load},
    }


def _said(engine: Mapping[str, Any]) -> str:
    """Return the engine as the source names it."""
    name = engine.get("name", engine["package"])
    return f"{name} {engine['said'] or '(version not said)'}"
