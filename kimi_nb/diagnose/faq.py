"""Present the signatures as an FAQ, by topic or by search.

>>> "no-space-shm" in search("shm full").ids
True
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_nb import show
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.diagnose import signatures
from kimi_nb.diagnose.signatures import Signature

_HEADINGS = (
    "what is seen",
    "why",
    "the way out",
    "platform",
    "versions",
    "known as",
    "go to",
    "id",
)


@dataclass(frozen=True, repr=False)
class Entries(show.Shown):
    """Some entries of the FAQ under a title."""

    title: str
    entries: tuple[Signature, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the entries."""
        return tuple(one.id for one in self.entries)

    def table(self) -> show.Table:
        """Return a table with a row for each entry."""
        rows = tuple(
            (
                one.asks,
                _sentence(one.cause),
                one.help,
                one.platform if one.platform != "any" else "",
                one.versions,
                ", ".join(one.refs),
                one.see.replace("#", ", "),
                one.id,
            )
            for one in self.entries
        )
        return show.Table(self.title, _HEADINGS, rows)


def topic(name: str) -> Entries:
    """Return the entries of a topic. Raises ParameterError for an unknown one."""
    if name not in signatures.TOPICS:
        raise ParameterError(choice("topic", name, signatures.TOPICS))
    found = tuple(one for one in signatures.entries() if one.topic == name)
    return Entries(signatures.TOPICS[name], found)


def search(words: str) -> Entries:
    """Return the entries that contain all of the words, or whose pattern matches the text."""
    wanted = words.casefold().split()
    found = tuple(
        one
        for one in signatures.entries()
        if wanted and (one.find(words) is not None or all(word in _text(one) for word in wanted))
    )
    return Entries(f"{len(found)} entries for {words!r}", found)


def _text(entry: Signature) -> str:
    return " ".join(
        (
            entry.id,
            entry.asks,
            entry.cause,
            entry.help,
            entry.platform,
            entry.versions,
            *entry.refs,
            *entry.examples,
        )
    ).casefold()


def _sentence(cause: str) -> str:
    """Return a cause without the placeholders that only a log can fill in."""
    for name in ("key", "given", "when", "host", "port", "device", "missing"):
        cause = cause.replace("{" + name + "}", "...")
    return cause
