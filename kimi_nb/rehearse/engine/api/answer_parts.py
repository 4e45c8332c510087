"""What an answer consists of: its choices, their tokens, and what was asked about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer.

    Attributes:
        channel: "reasoning", "content" or "tool".
        text: Its text; empty for the token that ends an answer, and for the first token of a tool
            call, which carries the call's name and id.
        call: The index of its tool call; -1 for none.
    """

    channel: str
    text: str
    call: int = -1


@dataclass(frozen=True, slots=True)
class Call:
    """The id of a tool call, "functions.NAME:IDX", and the name of the function."""

    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a request.

    Attributes:
        finish_reason: "stop", "length" or "tool_calls".
        stop_reason: The stop string or the stop token that was found.
        calls: The tool calls of the answer.
        prompt: The tokens of its prompt.
    """

    tokens: tuple[Token, ...]
    finish_reason: str
    stop_reason: str | int | None
    calls: tuple[Call, ...]
    prompt: tuple[str, ...]

    @property
    def thoughts(self) -> int:
        """How many of its tokens are reasoning."""
        return sum(token.channel == "reasoning" for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and the answer to it.

    Attributes:
        kind: "chat" or "completion".
        created: When the request came, in seconds since the epoch.
        rank: The rank that the client chose, or None.
        digest: The SHA-256 of the prompt, in hex; prefill and decode compare it.
        choices: The answers: ``n`` to each prompt, of which a completion can have several.
        kv: The kv_transfer_params of the request.
        blank: The content of a message that has none: "" or None.
        parsed: Whether the frames of the content come from a tool parser.
        reasons: Whether reasoning is told apart, and counted.
        before: The text of the last message that a chat echoes.
        echo: Whether the prompt is returned too.
        only_echo: Whether nothing else is.
        top: How many alternatives to each token to return; None for no log probabilities.
        prompt_top: The same for the tokens of the prompt.
        token_ids: Whether the ids of all tokens are returned.
        ids_as_tokens: Whether log probabilities show ids in place of texts.
        prompt_text: Whether the rendered prompt is returned.
        changes: How the API of the engine's version differs from earlier ones.
    """

    kind: str
    id: str
    created: int
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    rank: int | None
    digest: str
    choices: tuple[Choice, ...]
    n: int
    max_tokens: int
    kv: dict[str, Any] | None = None
    blank: str | None = None
    parsed: bool = False
    reasons: bool = False
    before: str = ""
    echo: bool = False
    only_echo: bool = False
    top: int | None = None
    prompt_top: int | None = None
    token_ids: bool = False
    ids_as_tokens: bool = False
    prompt_text: bool = False
    changes: frozenset[str] = frozenset()

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the first choice."""
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> str:
        """Why the first choice ends."""
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """What stopped the first choice."""
        return self.choices[0].stop_reason

    @property
    def longest(self) -> int:
        """The number of steps that the answer takes."""
        return max(len(choice.tokens) for choice in self.choices)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all prompts."""
        return sum(len(choice.prompt) for choice in self.choices[:: self.n])

    @property
    def made(self) -> int:
        """The number of tokens of all choices."""
        return sum(len(choice.tokens) for choice in self.choices)

    def usage(self, made: int | None = None, thoughts: int | None = None) -> dict[str, Any]:
        """Return the number of tokens of the prompts and of all choices, or so far."""
        made = self.made if made is None else made
        out: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + made,
            "completion_tokens": made,
        }
        if self.reasons and "reasoning_tokens" in self.changes:
            if thoughts is None:
                thoughts = sum(choice.thoughts for choice in self.choices)
            out["completion_tokens_details"] = {"reasoning_tokens": thoughts}
        return out
