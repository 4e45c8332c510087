"""Load the known failures from data/diagnose/signatures.yaml.

>>> entry = next(one for one in of_logs() if one.id == "image-not-found")
>>> entry.find("manifest for vllm:v9 not found")  # the named groups of its pattern
{'key': 'vllm:v9'}
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.params.vendor import VENDORS

PLATFORMS = ("any", *VENDORS)
WHERE = ("log", "answer", "faq")  # a line of a log, an answer of the API, a question only
TOPICS = {
    "api": "Parsers and API",
    "memory": "Memory",
    "collectives": "Collectives",
    "kv": "KV cache transfer",
    "start": "Start",
    "platform": "Platform",
}
_GROUP = re.compile(r"\(\?P<(\w+)>")


@dataclass(frozen=True)
class Signature:
    """One entry; ``pattern`` is all of its patterns in one, ``see`` is "notebook#heading".

    ``words`` are others that people search for, also in Chinese. A ``general`` one knows only that
    something failed: a more special event of the same process wins. A ``peer`` one may be due to the
    rank at the other end: after another rank's failure it is no cause of its own.
    """

    id: str
    topic: str
    where: str
    kind: str
    pattern: re.Pattern[str] | None
    cause: str
    help: str
    question: str
    platform: str
    versions: str
    refs: tuple[str, ...]
    see: str
    cascade: bool
    waits: bool
    remote: bool
    examples: tuple[str, ...]
    general: bool = False
    words: tuple[str, ...] = ()
    peer: bool = False

    def find(self, text: str) -> dict[str, str] | None:
        """Return the named groups that a text has filled, or None if no pattern matches."""
        match = self.pattern.search(text) if self.pattern else None
        if match is None:
            return None
        return {
            name.partition("__")[0]: value
            for name, value in match.groupdict().items()
            if value is not None
        }

    @property
    def asks(self) -> str:
        """The symptom as a user would put it."""
        return self.question or self.examples[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        return {
            name: getattr(self, name)
            for name in (
                "id",
                "topic",
                "where",
                "question",
                "cause",
                "help",
                "platform",
                "versions",
                "see",
            )
        } | {
            "refs": list(self.refs),
            "examples": list(self.examples),
            "words": list(self.words),
            "pattern": self.pattern.pattern if self.pattern else "",
        }


@functools.cache
def entries() -> tuple[Signature, ...]:
    """Return all entries, those of API answers and the FAQ included, in the order of the file."""
    return tuple(
        _entry(name, item) for name, item in data_files.facts("diagnose/signatures").items()
    )


@functools.cache
def of_logs() -> tuple[Signature, ...]:
    """Return the entries for log lines; if two match a line, the first one counts."""
    return tuple(entry for entry in entries() if entry.where == "log")


def _entry(name: str, item: dict[str, Any]) -> Signature:
    patterns = _listed(item.get("patterns", item.get("pattern")))
    return Signature(
        name,
        item["topic"],
        item.get("where", "log"),
        item.get("kind", name),
        _joined(patterns) if patterns else None,
        item["cause"],
        item["help"],
        item.get("question", ""),
        item.get("platform", "any"),
        item.get("versions", ""),
        tuple(item.get("refs", ())),
        item["see"],
        item.get("cascade", False),
        item.get("waits", False),
        item.get("blames") == "remote",
        tuple(_listed(item.get("example"))),
        item.get("general", False),
        tuple(item.get("words", ())),
        item.get("peer", False),
    )


def _listed(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else value


def _joined(patterns: list[str]) -> re.Pattern[str]:
    """Return several patterns as one; groups of the same name are numbered."""
    return re.compile(
        "|".join(_GROUP.sub(rf"(?P<\1__{at}>", one) for at, one in enumerate(patterns))
    )
