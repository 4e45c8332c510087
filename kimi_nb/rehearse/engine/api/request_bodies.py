"""Read the bodies of requests, and refuse them as FastAPI does.

Example::

    fields = read(CHAT, raw, versions.changes("0.32.0"))  # a ChatCompletionRequest, or an ApiError
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from kimi_nb.rehearse.engine.api.api_errors import ApiError, invalid
from kimi_nb.rehearse.engine.api.json_text import parse
from kimi_nb.rehearse.engine.api.request_fields import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)

_Body = TypeVar("_Body")


@dataclass(frozen=True)
class Route(Generic[_Body]):
    """A path, the name of its function in vLLM, and the model of its bodies."""

    function: str
    path: str
    body: TypeAdapter[_Body]


CHAT = Route("create_chat_completion", "/v1/chat/completions", TypeAdapter(ChatCompletionRequest))
COMPLETION = Route("create_completion", "/v1/completions", TypeAdapter(CompletionRequest))
TOKENIZE: Route[TokenizeCompletionRequest | TokenizeChatRequest] = Route(
    "tokenize", "/tokenize", TypeAdapter(TokenizeCompletionRequest | TokenizeChatRequest)
)
DETOKENIZE = Route("detokenize", "/detokenize", TypeAdapter(DetokenizeRequest))


def read(route: Route[_Body], raw: bytes, changes: frozenset[str]) -> _Body:
    """Parse and validate the body of a request, as a version with these changes does.

    Raises:
        ApiError: The body is not valid.
    """
    try:
        # FastAPI passes from_attributes too; it changes the error for a body that is not an object.
        return route.body.validate_python(
            _decoded(route, raw, changes), from_attributes=True, context=changes
        )
    except ValidationError as error:
        faults = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        raise invalid(changes, route.function, route.path, faults) from None


def _decoded(route: Route[Any], raw: bytes, changes: frozenset[str]) -> Any:
    if raw.strip() in (b"", b"null"):
        fault = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        raise invalid(changes, route.function, route.path, [fault])
    try:
        return parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    except ValueError as error:
        wrong: dict[str, Any] = {
            "type": "json_invalid",
            "loc": ("body", getattr(error, "pos", 0)),
            "msg": "JSON decode error",
            "input": {},
            "ctx": {"error": getattr(error, "msg", str(error))},
        }
        raise invalid(changes, route.function, route.path, [wrong]) from None
