"""Find the variable that is meant by a name which nothing sets.

>>> nearly("MAX_MODEL_LEN", {"MAX_MODE_LEN"}, "")
'MAX_MODE_LEN'
"""

from __future__ import annotations

import difflib
import re

_LARGEST = 200_000  # characters of a file in which a name is looked for


def nearly(name: str, there: set[str], text: str) -> str:
    """Return another variable of a file that differs in case, or in one letter; "" for none."""
    cased = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    for match in cased.finditer(text[:_LARGEST]):
        before = text[max(match.start() - 8, 0) : match.start()]
        is_variable = re.search(r"(\$\{?|-e |export |(^|\n)\s*#+ *)$", before) or (
            text[match.end() : match.end() + 1] == "=" and re.search(r"(^|[\s;&])$", before)
        )
        if match[0] != name and is_variable:
            return match[0]
    if len(name) < 8:
        return ""
    for other in sorted(there):
        if (
            abs(len(other) - len(name)) <= 1
            and re.sub(r"\d", "", other) != re.sub(r"\d", "", name)
            and not other.startswith(name)
            and not name.startswith(other)
            and difflib.SequenceMatcher(None, name, other).ratio() > 0.88
        ):
            return other
    return ""


def ending(name: str, others: set[str]) -> str:
    """Return a variable of the scripts beside a document whose name is the end of another's.

    >>> ending("DEMO_SERVICE_PORT", {"SERVICE_PORT", "PORT"})
    'SERVICE_PORT'
    """
    return next((one for one in sorted(others) if "_" in one and name.endswith(f"_{one}")), "")
