"""Write errors as vLLM's server of a version does.

raise ApiError(404, "The model `x` does not exist.", "NotFoundError", "model")
raise invalid(changes, "create_completion", "/v1/completions", faults)  # of pydantic
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# What vLLM drops from the location of a fault: names of types, and wrappers with brackets.
_TYPES = frozenset({"str", "int", "float", "bool", "list", "dict", "none", "nullable", "union"})
_MOST_FAULTS, _MOST_INPUT, _MOST_TEXT = 10, 200, 1000


class ApiError(Exception):
    """An answer that is an error: the HTTP ``status`` and vLLM's JSON ``body``."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": status}
        }


class VLLMValidationError(ValueError):
    """A refusal that names the ``parameter`` at fault; clients see the name of this class."""

    def __init__(self, message: str, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter, self.value = parameter, value

    def __str__(self) -> str:
        more = [f"parameter={self.parameter}"] if self.parameter is not None else []
        more += [f"value={self.value}"] if self.value is not None else []
        return super().__str__() + (f" ({', '.join(more)})" if more else "")


def parameter(message: str, name: str, value: Any = None) -> ApiError:
    """Return the refusal of a parameter and, if it is told, of its value."""
    return ApiError(400, str(VLLMValidationError(message, name, value)), param=name)


def unsupported_media_type() -> ApiError:
    """Return the refusal of a body that does not call itself JSON."""
    text = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return ApiError(400, text, "Bad Request")


def invalid(
    changes: frozenset[str], function: str, path: str, faults: Sequence[dict[str, Any]]
) -> ApiError:
    """Return the error that vLLM makes of the faults found by FastAPI and pydantic."""
    causes = [one.get("ctx", {}).get("error") for one in faults]
    own = next((one for one in causes if isinstance(one, VLLMValidationError)), None)
    if own is not None and "own_checks_are_bad_requests" in changes:
        return ApiError(400, str(own), param=own.parameter)
    param = own.parameter if own is not None else None
    if param is None and faults and "param_from_location" in changes:
        param = _dotted(faults[0]["loc"])
    bounded = "bounded_validation_errors" in changes
    shown = faults[:_MOST_FAULTS] if bounded else faults
    plural = "s" if len(faults) > 1 else ""
    text = f"{len(faults)} validation error{plural}:\n"
    text += "".join(f"  {_bounded(one) if bounded else one}\n" for one in shown)
    if len(shown) < len(faults):
        text += f"  ...and {len(faults) - len(shown)} more error{plural}\n"
    if "short_validation_errors" in changes:
        return ApiError(400, text.rstrip(), "Bad Request", param)
    text += f'\n  File "vllm/entrypoints/utils.py", line 40, in {function}\n'
    return ApiError(400, f"{text}    POST {path} {list(faults)}", "Bad Request", param)


def _bounded(fault: dict[str, Any]) -> str:
    out = {**fault, "loc": _dotted(fault["loc"])}
    if "input" in fault:
        out["input"] = _described(fault["input"])
    text = str(out)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}...[truncated]"


def _described(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _MOST_INPUT else f"{text[:_MOST_INPUT]}...[truncated]"


def _dotted(location: Sequence[Any]) -> str:
    """Return a location without the types of alternatives.

    >>> _dotted(("body", "stop", "list[str]", 0))
    'body.stop.0'
    """
    parts = [
        str(part)
        for part in location
        if not re.search(r"[\[\]{}()]|Request$", str(part)) and str(part).lower() not in _TYPES
    ]
    return ".".join(parts or map(str, location))
