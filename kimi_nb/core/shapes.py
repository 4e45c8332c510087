"""Say what is wrong with values that a shape (pydantic) refuses, without the values themselves."""

from __future__ import annotations

from pydantic import ValidationError

from kimi_nb.core.errors import short


def fault(error: Exception) -> str:
    """Return what is wrong on one line: of a ValidationError, the place and fault of the first.

    >>> from pydantic import TypeAdapter
    >>> try:
    ...     TypeAdapter(dict[str, int]).validate_python({"a": "b"})
    ... except ValidationError as error:
    ...     fault(error)
    'a: Input should be a valid integer, unable to parse string as an integer'
    """
    if not isinstance(error, ValidationError):
        return short(" ".join(str(error).split()))
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{short(where, 100)}: {first['msg']}" if where else first["msg"]
