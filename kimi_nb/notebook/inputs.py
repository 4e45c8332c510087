"""Convert values as notebooks and papermill pass them.

>>> words("tool-parser, jemalloc")
['tool-parser', 'jemalloc']
"""

from __future__ import annotations

from collections.abc import Iterable

from kimi_nb.core.errors import ParameterError


def words(given: Iterable[str] | str, sign: str = ",") -> list[str]:
    """Return a list of words; a text is split at ``sign``, as papermill passes texts only.

    For key=value pairs the sign is ``;``, as their values may contain commas.

    >>> words("decode.dp=16; env.A=1,2", ";")
    ['decode.dp=16', 'env.A=1,2']
    """
    if isinstance(given, str):
        return [word.strip() for word in given.split(sign) if word.strip()]
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ParameterError(
            f"a list of words is wanted, or a text with '{sign}' between them; "
            f"found {given!r}. With papermill use -r NAME VALUE."
        )
    return list(given)


def text(given: object) -> str:
    """Return a version that is a text; refuse a number, into which papermill's -p turns 0.20."""
    if not isinstance(given, str):
        raise ParameterError(
            f"engine_version: a text is wanted, found {given!r}. With papermill "
            "use -r engine_version VALUE, which keeps texts as they are."
        )
    return given
