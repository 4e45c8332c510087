"""What is to be asked: a task, of a service, by a tool. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi_nb.params import load as params
from kimi_nb.prove.accuracy.scores import Part, Subject

SHIPPED = "kimi_nb_arithmetic"  # 24 questions of our own, which need no network
DATA = params.PACKAGE / "data" / "accuracy"
CONCURRENCY = 4
RETRIES = 3
LONGEST = 2048  # output tokens, as the documents' reference configuration has it
# Of a stand-in, or of random weights, no answer can be right: it need not be a long one.
MARKED = 64
TIMEOUT = 600  # seconds for one answer


@dataclass(frozen=True)
class Evaluation:
    """``limit`` is how many of the first samples, 0 for all; ``max_tokens`` bounds an answer."""

    task: str
    subject: Subject
    limit: int = 0
    max_tokens: int = LONGEST

    @property
    def shipped(self) -> bool:
        """Whether its questions come with the project."""
        return self.task == SHIPPED


@dataclass(frozen=True)
class Outcome:
    """What a tool left behind. ``failed`` are reasons of requests without an answer, counted;
    ``malformed`` counts answers that are no completions, ``empty`` those without content."""

    parts: tuple[Part, ...] = ()
    samples: int = 0
    answered: int = 0
    malformed: int = 0
    empty: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)


def longest_answer(max_model_len: int, mark: str) -> int:
    """Output tokens that an answer may have: the reference's, or a quarter of a short context."""
    return MARKED if mark else min(LONGEST, max_model_len // 4)


def shipped_files() -> dict[str, str]:
    """The project's own questions, by the names under which the tools read them."""
    return {
        name: (DATA / name).read_text(encoding="utf-8") for name in ("train.jsonl", "test.jsonl")
    }
