"""Flags that have another name or went, among the words of the engines.

flags.rewrite(script, changes, serves)
flags.gone(engine, "--swap-space")                         # "" for may go; None for stays
"""

from __future__ import annotations

import re
from typing import Any

from kimi_nb.catalog import arguments
from kimi_nb.catalog import engine_catalog as catalog
from kimi_nb.check.rewriting.edits import Changes, Edit
from kimi_nb.check.rewriting.engine_commands import Serve
from kimi_nb.check.rewriting.parsed import Parsed
from kimi_nb.check.rules.engine import listed
from kimi_nb.params import load as params


def rewrite(script: Parsed, changes: Changes, serves: list[Serve]) -> None:
    """Rename or take out the flags of every engine; words that engines share are read once."""
    seen: set[int] = set()
    for serve in serves:
        for words in serve.parts:
            if words and words[0].id not in seen:
                seen.add(words[0].id)
                _flags(script, changes, words)


def gone(engine: catalog.Engine, flag: str) -> str | None:
    """What a flag that the engine does not know became, "" where it may go; None for a flag
    that stays as it is."""
    name = flag[2:].replace("_", "-")
    span = listed(name)
    if f"--{name}" in arguments.options(engine.known, "serve") or (
        span is not None and not catalog.older(span[1], engine)
    ):
        return None
    if name in params.data("versions")["renamed"]:
        return str(params.data("versions")["renamed"][name])
    return "" if span is not None and name in params.data("versions")["dropped"] else None


def _flags(script: Parsed, changes: Changes, words: list[Any]) -> None:
    """Renamed and removed flags among words."""
    cuts: list[tuple[Any, Any]] = []
    for index, word in enumerate(words):
        spelt, equals, own = script.said(word).partition("=")
        new = gone(script.engine, spelt) if spelt.startswith("--") else None
        if new is None:
            continue
        value = word
        if (
            not equals
            and _takes_value(spelt)
            and index + 1 < len(words)
            and not script.said(words[index + 1]).startswith("-")
        ):
            value = words[index + 1]
        if new:
            _rename(script, changes, word, value, spelt, new, own)
            continue
        changes.done.append(f"{spelt} is taken out: no later version has it")
        if cuts and words[index - 1] == cuts[-1][1]:
            cuts[-1] = (cuts[-1][0], value)
        else:
            cuts.append((word, value))
    for first, last in cuts:
        _cut(script, changes, first, last)


def _rename(
    script: Parsed, changes: Changes, word: Any, value: Any, spelt: str, new: str, own: str
) -> None:
    """``new`` is the new spelling; ``=value`` in it takes the place of the old value."""
    flag, _, fixed = new.partition("=")
    top, _, below = flag.partition(".")
    option = arguments.options(script.engine.known, "serve").get(top)
    if option is None:
        changes.left[word.start_byte] = f"{spelt} stays: {flag} is not in {script.engine}"
        return
    takes = option.spec["takes_value"] or bool(below)
    text = " ".join(filter(None, (flag, fixed or (own if takes else ""))))
    changes.done.append(f"{spelt} is now {text}")
    end = value.end_byte if fixed or not takes else word.end_byte
    changes.edits.add(Edit(word.start_byte, end, text.encode()))


def _cut(script: Parsed, changes: Changes, first: Any, last: Any) -> None:
    """Take words out, with the continued line that they leave empty."""
    start, end = first.start_byte, last.end_byte
    before = first.prev_sibling.end_byte if first.prev_sibling is not None else start
    gap = script.source[before:start]
    ends = re.compile(rb"[ \t]*(?:\\?\n|\Z)").match(script.source, end)
    if ends or b"\n" not in gap:
        start = before if re.fullmatch(rb"(?:[ \t]|\\?\n)*", gap) else start
    if start == first.start_byte:  # what follows moves to its place
        spaces = re.compile(rb"[ \t]*").match(script.source, end)
        end = spaces.end() if spaces and not ends else end
    changes.edits.add(Edit(start, end, b""))


def _takes_value(flag: str) -> bool:
    """Whether a flag took a value when a version last had it."""
    long = "--" + flag[2:].replace("_", "-")
    runs = catalog.tables("vllm")["serve"].get(long, [])
    return bool(runs and runs[-1]["takes_value"])
