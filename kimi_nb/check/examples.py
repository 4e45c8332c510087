"""The cases of the rules: what each one fails, and what it passes. The first ones are its examples.

They stand in ``kimi_nb/data/check/rules/``, where the tests read them as well: rule id -> ``fails``
and ``passes``. A case is either ``files`` (name: text; they are checked together), or ``plan`` (what
`build.plan` takes), and may bring ``claims`` of a document, and ``tree``, all files of the folder. ``engine``, ``version`` and ``hw`` are
those of the command line. A case that fails also holds what the rule then says (``says``, a part of
it), and where (``line``), how gravely (``severity``) and how often (``count``).

>>> from kimi_nb.check import examples
>>> sorted(examples.cases()["shell/dash"])
['fails', 'passes']
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.core.paths import DATA

SIDES = ("fails", "passes")
Case = Mapping[str, Any]


@functools.cache
def cases() -> dict[str, dict[str, list[Case]]]:
    """Return the cases of every rule: rule id -> side -> cases, the example first."""
    out: dict[str, dict[str, list[Case]]] = {}
    for path in sorted((DATA / "check" / "rules").glob("*.yaml")):
        for identity, sides in data_files.facts(f"check/rules/{path.stem}").items():
            assert identity not in out, f"{path.name}: {identity} stands in two files"
            out[identity] = {
                side: sides[side] if isinstance(sides[side], list) else [sides[side]]
                for side in SIDES
            }
    return out


def example(identity: str, side: str) -> Case:
    """Return the example that a rule fails or passes; ``side`` is ``fails`` or ``passes``."""
    return cases()[identity][side][0]
