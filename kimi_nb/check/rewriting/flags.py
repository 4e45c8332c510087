"""Rewrite flags that have another name, and remove those that are gone.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.rewriting import flags
>>> flags.gone(catalog.engine("vllm-ascend", "0.22.1rc1"), "--disable-log-requests")
'--no-enable-log-requests'
"""

from __future__ import annotations

import re
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import arguments
from kimi_nb.check.rewriting.edits import Changes, Edit
from kimi_nb.check.rewriting.engine_commands import Serve
from kimi_nb.check.rewriting.parsed import Parsed
from kimi_nb.core import data_files


def rewrite(script: Parsed, changes: Changes, serves: list[Serve]) -> None:
    """Rename or remove the flags of every engine; words that engines share are read once."""
    seen: set[int] = set()
    for serve in serves:
        for words in serve.parts:
            if words and words[0].id not in seen:
                seen.add(words[0].id)
                _flags(script, changes, words)


def gone(engine: catalog.Engine, flag: str) -> str | None:
    """Return the new spelling of a flag that the engine does not know.

    It is "" if the flag can be removed, and None if it stays as it is.
    """
    name = flag[2:].replace("_", "-")
    span = catalog.listed(name)
    if f"--{name}" in arguments.options(engine.known, "serve") or (
        span is not None and not catalog.older(span[1], engine)
    ):
        return None
    if name in data_files.facts("catalog/versions")["renamed"]:
        return str(data_files.facts("catalog/versions")["renamed"][name])
    return (
        "" if span is not None and name in data_files.facts("catalog/versions")["dropped"] else None
    )


def _flags(script: Parsed, changes: Changes, words: list[Any]) -> None:
    """Rename or remove flags among words."""
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
        instead = data_files.facts("catalog/versions")["instead"].get(spelt.removeprefix("--"))
        use = f"; by hand: --{instead}" if instead else ""
        changes.done.append(f"{spelt} is taken out: no later version has it{use}")
        if cuts and words[index - 1] == cuts[-1][1]:
            cuts[-1] = (cuts[-1][0], value)
        else:
            cuts.append((word, value))
    for first, last in cuts:
        _cut(script, changes, first, last)


def _rename(
    script: Parsed, changes: Changes, word: Any, value: Any, spelt: str, new: str, own: str
) -> None:
    """Replace a flag by its new spelling; ``=value`` in that takes the place of the old value."""
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
    """Remove words, with the continued line that they leave empty."""
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
    """Return whether a flag took a value in the last version that had it."""
    long = "--" + flag[2:].replace("_", "-")
    runs = catalog.tables("vllm")["serve"].get(long, [])
    return bool(runs and runs[-1]["takes_value"])
