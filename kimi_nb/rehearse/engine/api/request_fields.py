"""Declare the requests of vLLM as pydantic models, which `request_bodies` reads.

Fields and requests have vLLM's names, because a refusal shows these to the client. Only fields that
affect a stand-in are declared; others are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kimi_nb.rehearse.engine.api.api_errors import VLLMValidationError
from kimi_nb.rehearse.engine.api.request_parts import (
    ChatCompletionToolsParam,
    Message,
    ResponseFormat,
    StructuredOutputsParams,
)

_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_INT64 = 2**63
_MOST_STOPS = 4  # vLLM's VLLM_MAX_STOP_STRINGS


def _has(info: ValidationInfo, change: str) -> bool:
    return change in (info.context or ())


def _refuse(info: ValidationInfo, message: str, parameter: str | None) -> NoReturn:
    """Refuse with the parameter's name; before some version, without."""
    if _has(info, "own_checks_are_bad_requests"):
        raise VLLMValidationError(message, parameter)
    raise ValueError(message)


def _few(value: list[str], info: ValidationInfo) -> list[str]:
    if len(value) > _MOST_STOPS and _has(info, "four_stop_strings"):
        raise PydanticCustomError(
            "too_long",
            "List should have at most {max_length} items after validation, not {actual_length}",
            {"field_type": "List", "max_length": _MOST_STOPS, "actual_length": len(value)},
        )
    return value


class Generation(BaseModel):
    """The fields that chats and completions share; null means the default."""

    model_config = ConfigDict(allow_inf_nan=False)

    model: str = ""
    allowed_token_ids: list[int] | None = None
    cache_salt: Any = None
    echo: bool = False
    frequency_penalty: float = 0.0
    guided_json: Any = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    kv_transfer_params: dict[str, Any] | None = None
    logit_bias: dict[str, float] = {}
    max_tokens: int | None = None
    min_p: float = 0.0
    min_tokens: int = 0
    n: int = 1
    presence_penalty: float = 0.0
    prompt_logprobs: int | None = None
    repetition_penalty: float = 1.0
    request_id: str | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    seed: Annotated[int, Field(ge=-_INT64, le=_INT64 - 1)] | None = None
    stop: str | Annotated[list[str], AfterValidator(_few)] = []
    stop_token_ids: list[int] = []
    stream: bool = False
    stream_options: dict[str, bool | None] = {}
    structured_outputs: StructuredOutputsParams | None = None
    temperature: float = 1.0
    thinking_token_budget: Any = None
    top_k: int = 0
    top_p: float = 1.0
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=_INT64 - 1)] | None = None
    truncation_side: Literal["left", "right"] = "left"
    user: str = ""

    @field_validator(
        "logprobs", "top_logprobs", "prompt_logprobs", mode="before", check_fields=False
    )
    @classmethod
    def _whole(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        counted = cls.model_fields[name].annotation is not bool
        if counted and value is not None and not isinstance(value, (int, float)):
            raise VLLMValidationError(f"`{name}` must be an integer.", name, value)
        return value

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
        if self.cache_salt is not None and (
            not isinstance(self.cache_salt, str) or not self.cache_salt
        ):
            raise VLLMValidationError(
                "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"
            )
        budget = self.thinking_token_budget
        if budget is not None and (type(budget) is not int or budget < -1):
            raise VLLMValidationError(
                "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
                "thinking_token_budget",
                budget,
            )
        _check_logprobs(self.prompt_logprobs, "prompt_logprobs")
        if self.stream and self.prompt_logprobs:
            raise VLLMValidationError(
                "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"
            )
        wish = self.structured_outputs
        if wish and sum(one is not None for one in (wish.json_, wish.regex, wish.choice)) > 1:
            raise VLLMValidationError(
                "You can only use one kind of constraints for structured outputs "
                "('json', 'regex' or 'choice').",
            )
        return self


def _check_logprobs(count: int | None, name: str) -> None:
    if count is not None and count < -1:
        raise VLLMValidationError(f"`{name}` must be a positive value or -1.", name, count)


class CompletionRequest(Generation):
    """The body of POST /v1/completions."""

    prompt: (
        list[Annotated[int, Field(ge=0)]]
        | list[list[Annotated[int, Field(ge=0)]]]
        | str
        | list[str]
        | None
    ) = None
    logprobs: int | None = None
    suffix: str | None = None

    @model_validator(mode="after")
    def _prompt(self, info: ValidationInfo) -> Self:
        _check_logprobs(self.logprobs, "logprobs")
        if self.prompt in (None, ""):
            words = "Either prompt or prompt_embeds must be provided and non-empty."
            _refuse(info, words, "prompt")
        return self


class ChatCompletionRequest(Generation):
    """The body of POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}
    continue_final_message: bool = False
    logprobs: bool = False
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    return_prompt_text: bool = False
    top_logprobs: int = 0
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Any = None

    @model_validator(mode="after")
    def _settings(self, info: ValidationInfo) -> Self:
        _check_logprobs(self.top_logprobs, "top_logprobs")
        if self.top_logprobs and not self.logprobs:
            raise VLLMValidationError(
                "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
            )
        asked = "add_generation_prompt" in self.model_fields_set and self.add_generation_prompt
        if self.continue_final_message and asked:
            _refuse(
                info,
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
                None,
            )
        return self

    @model_validator(mode="after")
    def _tools(self, info: ValidationInfo) -> Self:
        if self.tools == []:
            _refuse(
                info,
                "`tools` must not be an empty array. "
                "Either provide at least one tool or omit the field entirely.",
                "tools",
            )
        choice = self.tool_choice
        if choice in (None, "none"):
            return self
        if not self.tools:
            _refuse(info, "When using `tool_choice`, `tools` must be set.", "tool_choice")
        if choice in ("auto", "required"):
            return self
        if not isinstance(choice, dict):
            _refuse(
                info,
                f"Invalid value for `tool_choice`: {choice}! Only named tools, "
                '"none", "auto" or "required" are supported.',
                "tool_choice",
            )
        function = choice.get("function")
        if not isinstance(function, dict):
            _refuse(
                info,
                f"Invalid value for `function`: `{function}` in `tool_choice`! {_USAGE}",
                "tool_choice.function",
            )
        name = function.get("name")
        if not isinstance(name, str) or not name:
            _refuse(
                info,
                f"Invalid `name` in `function`: `{name}` in `tool_choice`! {_USAGE}",
                "tool_choice.function.name",
            )
        if all(tool.function.name != name for tool in self.tools):
            _refuse(
                info,
                "The tool specified in `tool_choice` does not match any of the specified `tools`",
                "tool_choice",
            )
        wish = self.structured_outputs
        if wish and (wish.json_ or wish.regex or wish.choice):
            _refuse(
                info,
                "You can only either use constraints for structured outputs or tools, not both.",
                None,
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


class DetokenizeRequest(BaseModel):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]
