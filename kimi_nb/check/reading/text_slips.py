r"""Find texts of a script that do not say what they look like: JSON, sentences, two installers.

>>> from kimi_nb.check.reading import text_slips
>>> [slip.rule for slip in text_slips.of_installers(["uv venv", "pip install vllm"])]
['programs/pip-beside-uv']
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading.slips import Slip
from kimi_nb.check.reading.syntax import text_of

_SENTENCE = re.compile(r"[\"'][A-Z][a-z]+(?: [A-Za-z]+){2,}[.!]?[\"']")
# NAME="Some words", and a flag that is given $NAME.
_SAID = re.compile(r"^\s*(?:export |local )?([A-Za-z_]\w*)=(.*?)\s*$", re.MULTILINE)


def of_messages(text: str) -> Iterator[Slip]:
    r"""Yield a variable that holds a sentence, and that a flag is given without quotes.

    >>> [slip.row for slip in of_messages("WHY='It did not run'\nreport --error $WHY\n")]
    [1]
    """
    if "--" not in text:
        return
    for name in {one[1] for one in _SAID.finditer(text) if _SENTENCE.fullmatch(one[2])}:
        for found in re.finditer(rf"\s(--[a-z][\w-]*)[ =]\$\{{?{name}\}}?(?=\s|$)", text):
            row = text.count("\n", 0, found.start(1))
            said = f"{found[1]} is given the first word of ${name}: no quotes stand around it"
            yield Slip("shell/words", row, said)


_UV = re.compile(r"\s*(?:\w+=\S+ )*uv (?:venv|pip install)\b")
_PIP = re.compile(r"\s*(?:\w+=\S+ )*pip3? install\b")
_HAS_PIP = re.compile(
    r"--seed|--system|UV_SYSTEM_PYTHON|ensurepip|-m venv|virtualenv|conda|mamba|install [^\n]*\bpip\b(?! install)"
)


def of_installers(lines: Sequence[str]) -> Iterator[Slip]:
    """Yield a package that pip installs below others that uv installs, which makes no pip.

    >>> [slip.row for slip in of_installers(["uv venv", "pip install vllm"])]
    [1]
    """
    first = next((row for row, line in enumerate(lines) if _UV.match(line)), None)
    if first is None or _HAS_PIP.search("\n".join(lines)):
        return
    for row, line in enumerate(lines[first:], first):
        if _PIP.match(line):
            said = f"{line.strip()[:60]}: uv installs above, into an environment without pip"
            yield Slip("programs/pip-beside-uv", row, said)


_OPEN_JSON = re.compile(r"\.\.\.|\N{HORIZONTAL ELLIPSIS}|[$<>`%|]|\{\{|: *\.")


def of_assignment(node: Any) -> Iterator[Slip]:
    """Yield a text between single quotes that looks like JSON all over, and is none."""
    value = node.children[-1]
    text = text_of(value)[1:-1].strip()
    keys = re.findall(r"^\s*\"[\w.-]+\"\s*:", text, re.MULTILINE)
    if (
        value.type != "raw_string"
        or not re.match(r"\{\s*\"[\w.-]+\"\s*:", text)
        or not text.endswith("}")
        or len(keys) < 2
        or fill_ins.holds(text)
        or _OPEN_JSON.search(text)
    ):
        return
    try:
        json.loads(text)
    except RecursionError:
        return
    except ValueError as wrong:
        line = getattr(wrong, "lineno", 1) - 1
        said = text.split("\n")[line].strip()[:60]
        row = value.start_point[0] + text_of(value).count("\n", 0, text_of(value).find(text)) + line
        yield Slip("shell/json-text", row, f"what looks like JSON is none: {said}")
