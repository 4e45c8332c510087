"""Values as notebooks and papermill hand them over.

words("tool-parser, jemalloc")     # ["tool-parser", "jemalloc"]
"""

from __future__ import annotations

from collections.abc import Iterable

from kimi_nb.core.errors import ParameterError


def words(given: Iterable[str] | str, sign: str = ",") -> list[str]:
    """A list, or a text with commas (papermill passes texts; ``;`` between key=value pairs,
    whose values may hold commas)."""
    if isinstance(given, str):
        return [word.strip() for word in given.split(sign) if word.strip()]
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ParameterError(
            f"a list of words is wanted, or a text with '{sign}' between them; "
            f"found {given!r}. With papermill use -r NAME VALUE."
        )
    return list(given)


def text(given: object) -> str:
    """A version as it was written: papermill's -p makes a number of 0.20."""
    if not isinstance(given, str):
        raise ParameterError(
            f"engine_version: a text is wanted, found {given!r}. With papermill "
            "use -r engine_version VALUE, which keeps texts as they are."
        )
    return given
