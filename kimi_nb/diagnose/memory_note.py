"""Say what engines' logs tell of memory, and which command compares it with a plan.

Example::

    of([(source, ("(Worker pid=1) Available KV cache memory: 46.80 GiB",))])
    # ('memory of one device, as h1.log says it: KV cache 46.80 GiB. kimi-nb calibrate h1.log ...',)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kimi_nb.core import shell
from kimi_nb.core.errors import ParameterError
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose.log_sources import Source
from kimi_nb.plan.memory import engine_report

_BEGIN = 1 << 18  # bytes of a log in which an engine tells of its start
_MOST = 200  # lines of one log that are taken
_TOLD = 4  # kinds of engines, and names of logs, that are told


def lines_of(begin: bytes) -> tuple[str, ...]:
    """Return the lines at the beginning of a log that tell of memory."""
    return tuple(engine_report.lines_of(begin[:_BEGIN])[:_MOST])


def of(told: Iterable[tuple[Source, Sequence[str]]]) -> tuple[str, ...]:
    """Return a note for each kind of engine. What stand-ins print is no statement."""
    kinds: dict[str, list[Source]] = {}
    for source, lines in told:
        if lines and (said := _said(lines, source.name)):
            kinds.setdefault(said, []).append(source)
    notes = [
        f"memory of one device, as {_names(logs)} it: {said}. kimi-nb calibrate "
        f"{_path(logs[0])} compares it with a plan, term by term"
        for said, logs in list(kinds.items())[:_TOLD]
    ]
    if len(kinds) > _TOLD:
        notes.append(f"memory: {len(kinds) - _TOLD} more logs say other figures")
    return tuple(notes)


def _said(lines: Sequence[str], name: str) -> str:
    """Return the figures of a log in words, "" if it has none, or a stand-in has made them."""
    if any(MARK in line for line in lines):
        return ""
    try:
        log = engine_report.read(lines, name)
    except ParameterError:  # kimi-nb calibrate tells what is wrong with it
        return ""
    figures = (
        ("weights", log.weights),
        ("activations", log.activations),
        ("graphs", log.graphs),
        ("KV cache", log.cache),
    )
    words = [f"{what} {size:.2f} GiB" for what, size in figures if size is not None]
    if log.tokens is not None:
        words.append(f"{log.tokens:,} tokens")
    return ", ".join(words)


def _names(logs: Sequence[Source]) -> str:
    return f"{logs[0].name} says" if len(logs) == 1 else f"{len(logs)} logs say"


def _path(log: Source) -> str:
    return shell.quote(log.path) if log.path else "LOG"
