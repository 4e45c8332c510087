"""A JSON body and its fields, read and refused as FastAPI and pydantic do it for vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LEVELS = 64  # of nesting in a body; deeper ones are refused
CHAT = ("create_chat_completion", "/v1/chat/completions")
COMPLETION = ("create_completion", "/v1/completions")
TOKENIZE = ("tokenize", "/tokenize")
Route = tuple[str, str]  # (its function in vLLM, its path)
_TOO_DEEP = "recursion limit exceeded"
_FAULTS = {
    "string_type": "Input should be a valid string",
    "bool_type": "Input should be a valid boolean",
    "bool_parsing": "Input should be a valid boolean, unable to interpret input",
    "int_type": "Input should be a valid integer",
    "list_type": "Input should be a valid list",
    "int_parsing": "Input should be a valid integer, unable to parse string as an integer",
    "int_from_float": "Input should be a valid integer, got a number with a fractional part",
    "float_type": "Input should be a valid number",
    "float_parsing": "Input should be a valid number, unable to parse string as a number",
    "dict_type": "Input should be a valid dictionary",
    "missing": "Field required",
    "literal_error": "Input should be 'text', 'json_object' or 'json_schema'",
}
_WORDS = {
    "true": True,
    "t": True,
    "yes": True,
    "y": True,
    "on": True,
    "1": True,
    "false": False,
    "f": False,
    "no": False,
    "n": False,
    "off": False,
    "0": False,
}


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


def parse(text: str) -> Any:
    """The JSON value of a text; ValueError for what is none, or cannot be written again."""
    try:
        value = json.loads(text, parse_constant=finite, parse_float=finite)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(LEVELS):
        level = [
            child
            for one in level
            if isinstance(one, (dict, list))
            for child in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise ValueError(_TOO_DEEP)
    if "\\ud" in text or "\\uD" in text:
        compact(value).encode()  # half a pair is refused
    return value


def read(raw: bytes, route: Route) -> dict[str, Any]:
    """The object that is a request's body."""
    if not raw.strip():
        raise invalid(route, fault("missing", ("body",), None))
    try:
        body = parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    except json.JSONDecodeError as error:
        raise _unread(route, error.pos, error.msg) from None
    except ValueError as error:
        raise _unread(route, 0, str(error)) from None
    if not isinstance(body, dict):
        raise invalid(
            route,
            {
                "type": "model_attributes_type",
                "loc": ("body",),
                "msg": "Input should be a valid dictionary or object to extract fields from",
                "input": body,
            },
        )
    return body


def finite(word: str | float) -> float:
    """A number as a float; ValueError or OverflowError where JSON has no such number."""
    value = float(word)
    if value - value != 0:
        raise ValueError(f"Out of range float value: {word}")
    return value


def take(body: dict[str, Any], kinds: Mapping[str, str], route: Route) -> dict[str, Any]:
    """The fields of these kinds that are given and not null, each as its type."""
    out, faults = {}, []
    for name, kind in kinds.items():
        if (value := body.get(name)) is not None:
            out[name], wrong = typed(kind, value)
            if wrong:
                faults.append(fault(wrong, ("body", name), value))
    if faults:
        raise invalid(route, *faults)
    return out


def typed(kind: str, value: Any) -> tuple[Any, str]:
    """(the value as pydantic's lax mode takes it, "") or (None, the type of the fault)."""
    if kind in ("string", "dict", "list"):
        good = isinstance(value, {"string": str, "dict": dict, "list": list}[kind])
        return (value, "") if good else (None, f"{kind}_type")
    if kind == "bool":
        word = (
            value.lower()
            if isinstance(value, str)
            else str(int(value))
            if value in (0, 1)
            else None
        )
        return (
            (_WORDS[word], "")
            if word in _WORDS
            else (None, "bool_parsing" if isinstance(value, (str, int)) else "bool_type")
        )
    if not isinstance(value, (str, int, float)):
        return None, f"{kind}_type"
    if kind == "int" and isinstance(value, float) and not value.is_integer():
        return None, "int_from_float"
    try:
        return (int(value) if kind == "int" else finite(value)), ""
    except (ValueError, OverflowError):
        return None, f"{kind}_parsing"


def fault(kind: str, loc: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """One fault of pydantic's: ``kind``, where it is, what stands there."""
    return {"type": kind, "loc": loc, "msg": _FAULTS[kind], "input": value}


def invalid(route: Route, *faults: dict[str, Any], param: str | None = None) -> ApiError:
    """What FastAPI and pydantic say, as vLLM passes it on."""
    lines = "".join(f"  {one}\n" for one in faults)
    many = "s" if len(faults) > 1 else ""
    return ApiError(
        400,
        f"{len(faults)} validation error{many}:\n{lines}\n"
        f'  File "vllm/entrypoints/utils.py", line 40, in {route[0]}\n'
        f"    POST {route[1]} {list(faults)}",
        "Bad Request",
        param,
    )


def missing(route: Route, body: Any, *path: Any) -> ApiError:
    """The error for a field that is not there."""
    return invalid(route, fault("missing", ("body", *path), body))


def refused(route: Route, body: Any, why: str, param: str | None = None) -> ApiError:
    """The error for fields that are fine alone and do not fit together."""
    shown = f"{why} (parameter={param})" if param else why
    return invalid(
        route,
        {
            "type": "value_error",
            "loc": ("body",),
            "msg": f"Value error, {shown}",
            "input": body,
            "ctx": {"error": ValueError(why)},
        },
        param=param,
    )


def _unread(route: Route, place: int, why: str) -> ApiError:
    return invalid(
        route,
        {
            "type": "json_invalid",
            "loc": ("body", place),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": why},
        },
    )


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
