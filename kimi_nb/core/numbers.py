"""Read whole numbers that others wrote: any text may stand there, and any number of digits.

>>> whole("8"), whole("0x8"), whole("²"), whole("9" * 5000)
(8, None, None, None)
"""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[0-9]{1,18}", re.ASCII)


def whole(text: str) -> int | None:
    """Return the whole number that a text is, None for any other and for more than 18 digits.

    `int` raises ValueError for more than some thousand digits, and what it returns for hundreds is
    no float.
    """
    return int(text) if _WHOLE.fullmatch(text) else None
