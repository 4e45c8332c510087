"""Look up texts in the catalogue of a language: as a whole, as a template, sentence by sentence."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from kimi_nb.i18n import languages
from kimi_nb.i18n.templates import Index, fill, placeholders

FOLDER = Path(__file__).resolve().parents[1] / "data" / "i18n"
_DEEPEST = 3  # sentences inside sentences
_CANDIDATES = 8  # templates that are tried for one sentence
_LONGEST = 20_000  # characters; what is longer is no sentence of ours
_NAMED = re.compile(r"(.*\S)( \[[\w/-]+\])")
_LATIN = re.compile("[A-Za-z]")
_STOP = "。"
_STOPS = {". ": _STOP, "; ": "；"}
# Where a text is parted, from the largest parts to the smallest.
_PARTINGS = (
    re.compile(r"(\n+ *)"),
    re.compile(r"(?<=[^\s.])(\. )(?=\S)"),
    re.compile(r"(?<=\S)(; )(?=\S)"),
)


class Catalogue:
    """The texts of one language by their English ones."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        # A sentence is the same with its full stop and without, and with a capital at its beginning.
        self._messages = {
            _bare(text): _bare(told, _STOP) for text, told in messages.items() if told != text
        }
        self._index = Index(text for text in self._messages if placeholders(text))
        self.translate = functools.lru_cache(maxsize=8192)(self._translate)

    def _translate(self, text: str) -> str:
        """Return a text in this language, and what has no translation as it is."""
        if len(text) > _LONGEST or not text.strip():
            return text
        exact = self._exact(_bare(text))
        if exact is not None:
            return exact + _STOP * (_bare(text) != text)
        parts, _ = self._parts(text)
        # A template takes what it finds between its words, also the end of another sentence: what
        # leaves less English has understood more.
        whole = self._whole(text, 0)
        return parts if whole is None or _english(parts) < _english(whole) else whole

    def _exact(self, text: str) -> str | None:
        """Return the translation of a text without values."""
        found = self._messages.get(text)
        return found or self._messages.get(text[:1].lower() + text[1:])

    def _whole(self, text: str, depth: int) -> str | None:
        """Return the translation of a text as one message, with or without its full stop."""
        body = _bare(text)
        found = self._exact(body) or self._filled(body, depth)
        return found and found + _STOP * (body != text)

    def _filled(self, text: str, depth: int) -> str | None:
        """Return the translation by the template that leaves the least English.

        Of equal ones it is the most literal.
        """
        found = []
        for one, values in itertools.islice(self._index.matches(text), _CANDIDATES):
            if any(map(_PARTINGS[1].search, values.values())):
                continue  # it has swallowed the end of another sentence
            told = {name: self._value(value, depth + 1) for name, value in values.items()}
            found.append(fill(self._messages[one.text], told))
        return min(found, key=_english, default=None)

    def _value(self, text: str, depth: int) -> str:
        """Return a value: translated if it is a sentence itself, as it is if it is one word."""
        stripped = text.strip()
        if depth > _DEEPEST or " " not in stripped:
            return text
        whole = self._whole(stripped, depth)
        if whole is not None:
            return whole
        parts, all_of_it = self._parts(stripped, depth=depth)
        return parts if all_of_it else text

    def _parts(self, text: str, level: int = 0, depth: int = 0) -> tuple[str, bool]:
        """Return a text of which single lines or sentences are translated, and whether all are."""
        if level == len(_PARTINGS):
            return self._after_colon(text, depth)
        pieces = _PARTINGS[level].split(text)
        if len(pieces) < 2:
            return self._parts(text, level + 1, depth)
        out, every = [], True
        for at in range(0, len(pieces), 2):
            stop = pieces[at + 1] if at + 1 < len(pieces) else ""
            told, known = self._part(pieces[at], level, depth)
            every = every and known
            out += [told, _STOPS.get(stop, stop) if known else stop]
        return "".join(out), every

    def _part(self, text: str, level: int, depth: int) -> tuple[str, bool]:
        """Return one line or sentence, and whether nothing of it is left to translate."""
        new = self._whole(text, depth)
        if new is not None:
            return new, True
        if " " not in text.strip():
            return text, True  # a name, a path, an address
        if named := _NAMED.fullmatch(text):  # a finding with its rule: "... [topology/ranks]"
            told, known = self._part(named[1], level, depth)
            return told + named[2], known
        return self._parts(text, level + 1, depth)

    def _after_colon(self, text: str, depth: int) -> tuple[str, bool]:
        """Return a text with what stands after its first colon translated, if that can be."""
        before, colon, after = text.partition(": ")
        told = self._whole(after, depth) if colon else None
        if told is None:
            return text, False
        return f"{self._whole(before, depth) or before}：{told}", True


def _english(text: str) -> int:
    """Return how many letters of a text are Latin."""
    return len(_LATIN.findall(text))


def _bare(text: str, stop: str = ".") -> str:
    """Return a sentence without its full stop; "..." stays."""
    return text if text.endswith("...") else text.removesuffix(stop)


@functools.cache
def load(name: str) -> Catalogue:
    """Return the catalogue of a language, read once."""
    messages = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return Catalogue(messages)


def into(name: str, text: str) -> str:
    """Return a text in a language, whatever the current one is."""
    return text if name == "en" else load(name).translate(text)


def translate(text: str) -> str:
    """Return a finished English text in the current language; what is not known stays English."""
    return into(languages.current(), text)
