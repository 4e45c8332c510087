"""What to evaluate: a task, the service to ask and the limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kimi_nb.core import paths
from kimi_nb.prove.accuracy.scores import Part, Subject

SHIPPED = "kimi_nb_arithmetic"  # 24 questions of our own; no network needed
DATA = paths.DATA / "prove" / "accuracy"
CONCURRENCY = 4
RETRIES = 3
LONGEST = 2048  # output tokens, as in the documents' reference configuration
# A stand-in or random weights give no right answer, so a short one will do.
MARKED = 64
TIMEOUT = 600  # seconds to wait for one answer


@dataclass(frozen=True)
class Evaluation:
    """A task for a service.

    Attributes:
        task: The tool's name for the dataset.
        subject: The service to ask.
        limit: How many samples to ask, from the first on; 0 for all.
        max_tokens: The longest answer, in output tokens.
    """

    task: str
    subject: Subject
    limit: int = 0
    max_tokens: int = LONGEST

    @property
    def shipped(self) -> bool:
        """Whether the questions are those shipped with the project."""
        return self.task == SHIPPED


@dataclass(frozen=True)
class Outcome:
    """What a tool left behind.

    Attributes:
        parts: The scores, one for each metric and filter.
        samples: Questions in the task; 0 if not known.
        answered: Answers received.
        malformed: Answers that are not completions.
        empty: Answers without content.
        failed: The number of requests without an answer, by reason.
        mark: REHEARSAL if a stand-in has given any of the answers.
    """

    parts: tuple[Part, ...] = ()
    samples: int = 0
    answered: int = 0
    malformed: int = 0
    empty: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    mark: str = ""


def longest_answer(max_model_len: int, mark: str) -> int:
    """Return how many output tokens an answer may have.

    That is the documents' reference value, or a quarter of the context length if that is less.
    ``mark`` is "" unless the answers come from a stand-in or from random weights.
    """
    return MARKED if mark else min(LONGEST, max_model_len // 4)


def shipped_files() -> dict[str, str]:
    """Return the shipped questions as texts, under the file names that the tools read."""
    return {
        name: (DATA / name).read_text(encoding="utf-8") for name in ("train.jsonl", "test.jsonl")
    }
