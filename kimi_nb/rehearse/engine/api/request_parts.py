"""Declare the parts of vLLM's requests: messages, tools, and the forms that an answer must have."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, Field, model_validator
from pydantic_core import PydanticCustomError


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

    @model_validator(mode="after")
    def _spoken(self) -> Self:
        if self.content is None and "content" in self.model_fields_set and self.role != "assistant":
            raise PydanticCustomError("string_type", "Input should be a valid string")
        return self


class FunctionDefinition(BaseModel, extra="allow"):
    """A function on offer; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: Any = None
    parameters: dict[str, Any] | None = None


class ChatCompletionToolsParam(BaseModel, extra="allow"):
    """A tool on offer."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class JsonSchemaResponseFormat(BaseModel):
    """A JSON schema and its name."""

    name: str
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(BaseModel):
    """The form that an answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None


class StructuredOutputsParams(BaseModel):
    """vLLM's own demands on an answer, of which a request may have one."""

    json_: str | dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
