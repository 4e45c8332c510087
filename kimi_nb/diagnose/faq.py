"""Present the signatures as an FAQ, by topic or by search.

>>> "no-space-shm" in search("shm full").ids
True
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from kimi_nb import show
from kimi_nb.catalog import known_faults as faults_of_versions
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.diagnose import signatures
from kimi_nb.diagnose.signatures import Signature
from kimi_nb.i18n import into

_HEADINGS = (
    "what is seen",
    "why",
    "the way out",
    "applies to",
    "known as",
    "go to",
    "id",
)
_IN_TITLE, _IN_REST = 1.0, 0.6  # what a word counts in what is seen, and in the rest
_LEAST, _NEAR = 0.3, 0.5  # of the question's weight, and of the best score
_MOST = 12  # entries
_STEM = 4  # letters from which on a word stands for its longer forms
_COMMON = re.compile(
    "a|an|and|are|as|at|be|by|can|do|does|for|from|has|have|how|i|if|in|is|it|its|may|my|no|not|of|"
    "on|or|our|should|that|the|there|they|this|to|was|what|when|where|which|why|will|with|you|your"
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
                _applies(one),
                ", ".join(one.refs),
                one.see.replace("#", ", "),
                one.id,
            )
            for one in self.entries
        )
        return show.Table(self.title, _HEADINGS, rows)


def _applies(one: Signature) -> str:
    """Return the platform and the versions of which an entry is known; "" for any."""
    return ", ".join(word for word in (one.platform, one.versions) if word not in ("", "any"))


def topic(name: str) -> Entries:
    """Return the entries of a topic. Raises ParameterError for an unknown one."""
    if name not in signatures.TOPICS:
        raise ParameterError(choice("topic", name, signatures.TOPICS))
    found = tuple(one for one in signatures.entries() if one.topic == name)
    return Entries(signatures.TOPICS[name], found)


def known_faults(words: str = "") -> show.Table:
    """Return the known faults of engine versions that have every word; all of them without any.

    >>> [row[0] for row in known_faults("lmhead hang").rows]
    ['va-lmhead-tp-hang']
    """
    wanted = words_of(words)
    rows = []
    for one in faults_of_versions.every():
        told = (one.id, one.symptom, one.range, one.needs, one.way_out, one.source)
        named = words_of(" ".join((*told, *one.models, *one.hardware, one.note)))
        if all(has(named, word) for word in wanted):
            rows.append(told)
    title = f"{len(rows)} known faults of engine versions"
    headings = ("known fault", "what is seen", "versions", "with", "the way out", "source")
    return show.Table(title, headings, tuple(rows))


def search(words: str) -> Entries:
    """Return the entries that a line of a log or an answer matches, else those for a question.

    An entry for a question shares words with it, in English or Chinese. The best come first: a rare
    word counts more than a frequent one, and more in what is seen than in the rest.
    """
    known = tuple(one for one in signatures.entries() if one.find(words) is not None)
    found = known or _ranked(words)
    return Entries(f"{len(found)} entries for {words!r}", found)


def _ranked(question: str) -> tuple[Signature, ...]:
    wanted = words_of(question)
    # Only a Chinese question needs the Chinese texts, whatever the language of the screen is.
    language = "en" if question.isascii() else "zh"
    texts = [
        (one, words_of(_title(one, language)), words_of(_rest(one, language)))
        for one in signatures.entries()
    ]
    rarity = {
        word: math.log(
            (1 + len(texts)) / (0.5 + sum(has(title | rest, word) for _, title, rest in texts))
        )
        for word in wanted
    }
    whole = sum(rarity.values())
    scored = [
        (
            sum(
                weight * (_IN_TITLE if has(title, word) else _IN_REST if has(rest, word) else 0)
                for word, weight in rarity.items()
            ),
            one,
        )
        for one, title, rest in texts
    ]
    best = max((score for score, _ in scored), default=0.0)
    least = max(_LEAST * whole, _NEAR * best)
    kept = [(score, one) for score, one in scored if score and score >= least]
    kept.sort(key=lambda pair: -pair[0])  # stable: the order of the file among equals
    return tuple(one for _, one in kept[:_MOST])


def _title(entry: Signature, language: str) -> str:
    return " ".join((entry.id, into(language, entry.asks), *entry.words))


def _rest(entry: Signature, language: str) -> str:
    return " ".join(
        (
            *dict.fromkeys((entry.cause, into(language, entry.cause))),
            *dict.fromkeys((entry.help, into(language, entry.help))),
            entry.platform,
            entry.versions,
            *entry.refs,
            *entry.examples,
        )
    )


@functools.cache
def words_of(text: str) -> frozenset[str]:
    """Return the words of a text that tell something; of Chinese, every two characters."""
    text = text.casefold()
    found = re.findall(r"[a-z0-9]+(?:\.[a-z0-9]+)*", text)
    latin = {word for word in found if not _COMMON.fullmatch(word)}
    chinese = re.findall(r"[\u4e00-\u9fff]+", text)
    pairs = {run[at : at + 2] for run in chinese for at in range(max(1, len(run) - 1))}
    return frozenset(latin | pairs)


def has(words: frozenset[str], word: str) -> bool:
    """Return whether a word is among words, also in another form, such as its plural."""
    if word in words:
        return True
    return len(word) >= _STEM and any(
        one.startswith(word) or (len(one) >= _STEM and word.startswith(one)) for one in words
    )


def _sentence(cause: str) -> str:
    """Return a cause without the placeholders that only a log can fill in."""
    for name in ("key", "given", "when", "host", "port", "device", "missing"):
        cause = cause.replace("{" + name + "}", "...")
    return cause
