"""Find addresses in a text that no client can use: with a brace that opens nowhere.

>>> from kimi_nb.check.reading import addresses
>>> addresses.find("ask `http://host:8000}/v1`", "README.md")[0].message
'a brace that opens nowhere: http://host:8000}/v1'
"""

from __future__ import annotations

import re

from kimi_nb.check.view.deployment import Fault
from kimi_nb.check.view.engine_view import Spot

# The address goes on behind the brace, which so is no end of something around it.
_STRAY = re.compile(r"https?://[\w.$-]*(?::[\w$]+)?\}/[\w/.-]+")


def find(text: str, file: str) -> list[Fault]:
    """Return the addresses with such a brace."""
    if "}/" not in text:
        return []
    out = []
    for number, line in enumerate(text.split("\n"), start=1):
        for match in _STRAY.finditer(line) if "}/" in line and "://" in line else ():
            if line[: match.start()].count("{") > line[: match.start()].count("}"):
                continue  # ${NAME:-http://host:8000}/v1
            spot = Spot(f"{file}:{number}", file, number)
            out.append(
                Fault("client/address", spot, f"a brace that opens nowhere: {match[0][:80]}")
            )
    return out
