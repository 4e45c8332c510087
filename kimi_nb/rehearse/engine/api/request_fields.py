"""Declare the requests of vLLM 0.20 as pydantic models, and refuse bodies as FastAPI does.

    fields = read(CHAT, raw)        # a ChatCompletionRequest, or an ApiError

Fields and requests have vLLM's names, because a refusal shows these to the client. Only fields that
affect a stand-in are declared; others are ignored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

LEVELS = 64  # of nesting in a body; deeper bodies are refused
_TOO_DEEP = "recursion limit exceeded"
_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_Body = TypeVar("_Body")


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

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter

    def __str__(self) -> str:
        return f"{super().__str__()} (parameter={self.parameter})"


# Parts of requests ----------------------------------------------------------------------------


class CalledFunction(BaseModel):
    """A function that the model called earlier; ``arguments`` are JSON, as a string or parsed."""

    name: str
    arguments: Any = None


class ToolCall(BaseModel):
    """A tool call in an assistant's message."""

    id: Any = None
    function: CalledFunction


class ContentPart(BaseModel, extra="allow"):
    """A part of a message; images and audio are among the extra fields."""

    type: Any = None
    text: str = ""
    refusal: str = ""
    thinking: str = ""


class Message(BaseModel):
    """A message of a chat."""

    role: str
    content: str | list[str | ContentPart] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: list[ToolCall] | None = None


class FunctionDefinition(BaseModel, extra="allow"):
    """A function on offer; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: Any = None
    parameters: dict[str, Any] | None = None


class ChatCompletionToolsParam(BaseModel, extra="allow"):
    """A tool on offer."""

    type: Any = "function"
    function: FunctionDefinition


class ResponseFormat(BaseModel):
    """The form that an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


# Requests -------------------------------------------------------------------------------------


class Generation(BaseModel):
    """The fields that chats and completions share; null means the default."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str = ""
    frequency_penalty: float = 0.0
    guided_json: Any = None
    ignore_eos: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    max_tokens: int | None = None
    min_p: float = 0.0
    min_tokens: int = 0
    n: int = 1
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    response_format: ResponseFormat | None = None
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    stream: bool = False
    stream_options: dict[str, bool | None] = {}
    structured_outputs: dict[str, Any] = {}
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    user: str = ""

    @field_validator("*", mode="before")
    @classmethod
    def _default(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        return field.default if value is None and not field.is_required() else value

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        form = self.response_format
        if form is not None and form.type == "json_schema" and form.json_schema is None:
            raise VLLMValidationError(
                "When response_format type is 'json_schema', the 'json_schema' field must be "
                "provided.",
                "response_format",
            )
        if self.stream_options and not self.stream:
            raise VLLMValidationError(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )
        return self


class CompletionRequest(Generation):
    """The body of POST /v1/completions."""

    prompt: (
        list[Annotated[int, Field(ge=0)]]
        | list[list[Annotated[int, Field(ge=0)]]]
        | str
        | list[str]
        | None
    ) = None

    @model_validator(mode="after")
    def _prompt(self) -> Self:
        if self.prompt in (None, ""):
            raise ValueError("Either prompt or prompt_embeds must be provided and non-empty.")
        return self


class ChatCompletionRequest(Generation):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Any = None

    @model_validator(mode="after")
    def _tools(self) -> Self:
        if self.tools == []:
            raise ValueError(
                "`tools` must not be an empty array. "
                "Either provide at least one tool or omit the field entirely."
            )
        choice = self.tool_choice
        if choice in (None, "none"):
            return self
        if not self.tools:
            raise ValueError("When using `tool_choice`, `tools` must be set.")
        if choice in ("auto", "required"):
            return self
        if not isinstance(choice, dict):
            raise ValueError(
                f"Invalid value for `tool_choice`: {choice}! Only named tools, "
                '"none", "auto" or "required" are supported.'
            )
        function = choice.get("function")
        if not isinstance(function, dict):
            raise ValueError(
                f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}"
            )
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}")
        if all(tool.function.name != name for tool in self.tools):
            raise ValueError(
                "The tool specified in `tool_choice` does not match any of the specified `tools`"
            )
        return self


class TokenizeCompletionRequest(BaseModel):
    """The body of POST /tokenize for a text."""

    model: str | None = None
    prompt: str
    return_token_strs: bool | None = False


class TokenizeChatRequest(BaseModel):
    """The body of POST /tokenize for a chat."""

    model: str | None = None
    messages: list[Message]
    return_token_strs: bool | None = False
    tools: list[ChatCompletionToolsParam] | None = None


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


# Reading --------------------------------------------------------------------------------------


def read(route: Route[_Body], raw: bytes) -> _Body:
    """Parse and validate the body of a request.

    Raises:
        ApiError: The body is not valid.
    """
    try:
        # FastAPI passes from_attributes too; it changes the error for a body that is not an object.
        return route.body.validate_python(_decoded(route, raw), from_attributes=True)
    except ValidationError as error:
        raise _invalid(
            route,
            *({**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)),
        ) from None


def _decoded(route: Route[Any], raw: bytes) -> Any:
    if not raw.strip():
        raise _invalid(
            route, {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}
        )
    try:
        return parse(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ApiError(400, "There was an error parsing the body", "Bad Request") from None
    except ValueError as error:
        raise _invalid(
            route,
            {
                "type": "json_invalid",
                "loc": ("body", getattr(error, "pos", 0)),
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": getattr(error, "msg", str(error))},
            },
        ) from None


def _invalid(route: Route[Any], *faults: dict[str, Any]) -> ApiError:
    """Return the error that vLLM makes of the faults found by FastAPI and pydantic."""
    lines = "".join(f"  {one}\n" for one in faults)
    causes = [one.get("ctx", {}).get("error") for one in faults]
    return ApiError(
        400,
        f"{len(faults)} validation error{'s' if len(faults) > 1 else ''}:\n{lines}\n"
        f'  File "vllm/entrypoints/utils.py", line 40, in {route.function}\n'
        f"    POST {route.path} {list(faults)}",
        "Bad Request",
        next((one.parameter for one in causes if isinstance(one, VLLMValidationError)), None),
    )


def parse(text: str) -> Any:
    """Parse JSON that can be written again.

    Raises:
        ValueError: The text is not JSON, is nested too deeply, or has numbers or characters that
            cannot be written.
    """
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
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
        compact(value).encode()  # refuses half of a surrogate pair
    return value


def _finite(word: str) -> float:
    value = float(word)
    if value - value != 0:
        raise ValueError(f"Out of range float value: {word}")
    return value


def compact(value: Any) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
