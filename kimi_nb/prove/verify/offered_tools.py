"""The functions that checks offer to the model, and what must hold for any call of them."""

from __future__ import annotations

import json
import re
from typing import Any

from kimi_nb.prove.verify import schemas
from kimi_nb.prove.verify.contract import Failed
from kimi_nb.prove.verify.received import Answer, ToolCall, short
from kimi_nb.service.chat_markers import TOOL_CALL

CITIES = ("Beijing", "Tokyo", "Paris")
MARKERS = re.compile(rf"{TOOL_CALL.pattern}|functions\.\w+:\d+")


def function(name: str, says: str, properties: dict[str, Any]) -> dict[str, Any]:
    """Return a tool whose arguments are all required."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": says,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        },
    }


# Every value is an enum: with the grammar, the arguments of any model then come to an end.
WEATHER = function(
    "get_weather",
    "The weather of a city.",
    {
        "city": {"type": "string", "enum": list(CITIES)},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
)
TIME = function(
    "get_time", "The local time of a city.", {"city": {"type": "string", "enum": list(CITIES)}}
)
ONE = "What is the weather in Beijing, in celsius? Use get_weather."
TWO = (
    "What is the weather in Beijing, in celsius, and the local time in Tokyo? Use get_weather "
    "and get_time, both in one turn."
)


def no_markers(answer: Answer) -> None:
    """Check that no tool call is in the text of an answer.

    Raises:
        Failed: If there is one.
    """
    found = MARKERS.search(answer.text)
    if found:
        start = max(0, found.start() - 20)
        raise Failed(
            f"a tool call as text: {answer.text[start : found.end() + 40]!r}",
            "" if answer.calls else "no-tool-parser",
        )


def arguments(call: ToolCall, tools: list[dict[str, Any]]) -> Any:
    """Return the arguments of a call.

    Raises:
        Failed: If the function was not offered, or if the arguments are no text or do not fit its
            schema.
    """
    schema = next(
        (one["function"]["parameters"] for one in tools if one["function"]["name"] == call.name),
        None,
    )
    if schema is None:
        raise Failed(f"a call of {call.name!r}, which was not offered")
    if call.form:
        raise Failed(
            f"arguments of {call.name} are {call.form}, not a text of JSON, which clients parse: "
            f"{short(call.arguments)}"
        )
    try:
        value = json.loads(call.arguments)
    except ValueError as error:
        raise Failed(
            f"arguments of {call.name} are no JSON ({error}): {short(call.arguments)!r}"
        ) from None
    wrong = schemas.fault(value, schema)
    if wrong:
        raise Failed(
            f"arguments of {call.name} do not fit its schema ({wrong}): {short(call.arguments)}"
        )
    return value
