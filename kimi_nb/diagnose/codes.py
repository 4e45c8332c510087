"""Look up what a vendor's error code means (data/diagnose/codes).

>>> found = of("NPU function error: aclrtSynchronizeDevice, error code is 507057")
>>> found.code, found.table, found.component
('507057', 'aclError', 'hccl')

The texts are ours. Where the official one misleads, ours says so.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from kimi_nb.core import data_files

# Of two codes in one failure, that of the table that stands first says more.
TABLES = ("cann", "hccl", "acl", "cuda", "hip", "nccl", "hub", "errno", "exits")
_INNER = re.compile(r"E\w9999|EL0003|EZ9903|361001")  # codes that only say "inside this module"


@dataclass(frozen=True)
class Code:
    """A code with its meaning.

    Attributes:
        table: The vendor's name of the table.
        text: What it means.
        component: The part of the system that it speaks of.
        help: What to do about this very code, or "".
        page: The public page of the table.
    """

    code: str
    table: str
    text: str
    component: str
    help: str
    page: str

    @property
    def general(self) -> bool:
        """Whether it only says that something inside a module failed."""
        return bool(_INNER.fullmatch(self.code))

    def __str__(self) -> str:
        return f"{self.table} {self.code}: {self.text}"


@dataclass(frozen=True)
class _Table:
    patterns: tuple[re.Pattern[str], ...]
    words: tuple[tuple[re.Pattern[str], str], ...]
    codes: dict[str, Code]


@functools.cache
def _tables() -> tuple[_Table, ...]:
    return tuple(_table(data_files.facts(f"diagnose/codes/{name}")) for name in TABLES)


def _table(given: dict[str, Any]) -> _Table:
    return _Table(
        tuple(re.compile(pattern) for pattern in given["patterns"]),
        tuple((re.compile(word), str(code)) for word, code in given.get("words", {}).items()),
        {str(code): _code(str(code), entry, given) for code, entry in given["codes"].items()},
    )


def _code(code: str, entry: str | dict[str, str], given: dict[str, Any]) -> Code:
    row = {"text": entry} if isinstance(entry, str) else entry
    text = row["text"]
    if "officially" in row:
        text += f' (the official text, "{row["officially"]}", misleads)'
    return Code(
        code,
        given["title"],
        text,
        row.get("component", given["component"]),
        row.get("help", ""),
        given["page"],
    )


def all_of(text: str) -> list[Code]:
    """Return the known codes in a text, the most telling first."""
    found: dict[str, Code] = {}
    for table in _tables():
        for pattern in table.patterns:
            for match in pattern.finditer(text):
                if match["code"] in table.codes:
                    found.setdefault(match["code"], table.codes[match["code"]])
        for words, code in table.words:
            if code not in found and words.search(text):
                found[code] = table.codes[code]
    return sorted(found.values(), key=lambda one: one.general)


def of(text: str) -> Code | None:
    """Return the most telling known code in a text, or None."""
    return next(iter(all_of(text)), None)
