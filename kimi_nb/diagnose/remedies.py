"""What to do about a cause, by its id (`kimi_nb/data/diagnose/remedies.yaml`).

>>> of("start/ended", file="a3-0/engines.log")
'Read a3-0/engines.log.'
"""

from __future__ import annotations

from collections.abc import Iterable

from kimi_nb.core import data_files


def first(causes: Iterable[str], **words: object) -> str:
    """Return the remedy of the first cause that has one; "" where none has."""
    known = data_files.facts("diagnose/remedies")
    return next((of(cause, **words) for cause in causes if cause in known), "")


def of(cause: str, **words: object) -> str:
    """Return the remedy of a cause with its words filled in. Raises KeyError for an unknown id."""
    text: str = data_files.facts("diagnose/remedies")[cause]
    for name, value in words.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
