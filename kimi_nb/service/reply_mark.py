"""Tell whether a stand-in has answered: by the header that it sends, or by what it writes.

>>> of("REHEARSAL"), of("")
('REHEARSAL', '')
>>> of("", '{"choices": [{"message": {"content": "REHEARSAL: hello"}}]}')
'REHEARSAL'

A gateway in front may drop the header and make the body anew; the text it has to leave as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from kimi_nb.core.marks import MARK

HEADER = "x-rehearsal"
_READ = 64 << 10  # characters of a body
# The texts of a completion, whole or in the pieces of a stream.
_TEXTS = re.compile(r'"(?:content|reasoning(?:_content)?|text)":\s*"((?:[^"\\]|\\.)*)"')
# Where a stand-in samples, a word of filler comes first.
_BEGINS = re.compile(rf"\s*(?:[a-z]+\s+)?{MARK}\b")


def of(header: str, body: str = "") -> str:
    """Return REHEARSAL for a reply with this value of `HEADER`, or this body; "" for any other."""
    if header.strip() == MARK:
        return MARK
    return of_text("".join(_TEXTS.findall(body[:_READ])))


def of_text(text: str) -> str:
    """Return REHEARSAL for a text that a stand-in has generated, "" for any other."""
    return MARK if _BEGINS.match(text) else ""


def of_texts(texts: Iterable[object]) -> str:
    """Return REHEARSAL if a stand-in has generated any of these texts, else ""."""
    return next((MARK for one in texts if isinstance(one, str) and of_text(one)), "")


def title(mark: str) -> str:
    """Return what stands before a line about a service with this mark.

    >>> title("REHEARSAL"), title("")
    ('REHEARSAL: ', '')
    """
    return f"{mark}: " if mark else ""


def said(say: Callable[[str], None], mark: str) -> Callable[[str], None]:
    """Return what says a line of progress with the mark before it."""
    return lambda text: say(f"{title(mark)}{text}")
