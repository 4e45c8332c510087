"""The signatures as an FAQ: by topic, and searched.

faq.topic("kv")                  # a table: symptom, cause, way out, where to go
faq.search("shm full")           # the entries that hold all of these words
"""

from __future__ import annotations

from collections.abc import Iterable

from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.diagnose import signatures
from kimi_nb.diagnose.signatures import Signature
from kimi_nb.show import values as show

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


def topic(name: str) -> show.Table:
    """The entries of a topic; ParameterError for one that is not known."""
    if name not in signatures.TOPICS:
        raise ParameterError(choice("topic", name, signatures.TOPICS))
    return _table(
        signatures.TOPICS[name], [one for one in signatures.entries() if one.topic == name]
    )


def search(words: str) -> show.Table:
    """The entries that hold all the words somewhere, or whose pattern knows the text."""
    wanted = words.casefold().split()
    found = [
        one
        for one in signatures.entries()
        if wanted and (one.find(words) is not None or all(word in _text(one) for word in wanted))
    ]
    return _table(f"{len(found)} entries for {words!r}", found)


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


def _table(title: str, found: Iterable[Signature]) -> show.Table:
    return show.Table(
        title,
        _HEADINGS,
        tuple(
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
            for one in found
        ),
    )


def _sentence(cause: str) -> str:
    """A cause without what only a log can fill in."""
    for name in ("key", "given", "when", "host", "port", "device", "missing"):
        cause = cause.replace("{" + name + "}", "...")
    return cause
