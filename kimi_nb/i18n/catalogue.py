"""Look up texts in the catalogue of a language: as a whole, as a template, sentence by sentence."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path

from kimi_nb.i18n import languages
from kimi_nb.i18n.templates import Index, Template, fill, placeholders

FOLDER = Path(__file__).resolve().parents[1] / "data" / "i18n"
_DEEPEST = 3  # sentences inside sentences
_CANDIDATES = 8  # templates that are tried for one sentence
_LONGEST = 20_000  # characters; what is longer is no sentence of ours
_PLURAL = re.compile(r"s\d*")
_NAMED = re.compile(r"(.*\S)( \[[\w/-]+\])")
_LATIN = re.compile("[A-Za-z]")
_STOP = "。"
_STOPS = {". ": _STOP, "; ": "；"}
_JOINTS = {"; ": "；", ", ": "，"}
# Where a text is parted, from the largest parts to the smallest.
_PARTINGS = (
    re.compile(r"(\n+ *)"),
    re.compile(r"(?<=[^\s.])(?<!^\d)(\. )(?=\S)"),
    re.compile(r"(?<=\S)(; )(?=\S)"),
)
# Words of prose: neither names, paths, flags nor units, which stay as they are.
_PROSE = re.compile(r"(?<![\w./:=@#-])[a-z]{2,}(?![\w/:=@-]|\.\w)")
_UNITS = {"dp", "tp", "pp", "ms", "tokens/s"}
# Ways to put two texts together: words that one or both of them are translated in, and the Chinese form.
_FRAMES = (
    (re.compile(r"(.+?): (.+)"), "{}：{}"),
    (re.compile(r"(.+?) \((.+)\)"), "{}（{}）"),
    (re.compile(r"(.*\D) ([-+]?\d[\d.,]*(?: (?:GiB|GB|MB|ms|s|%))?)"), "{} {}"),
)
# A number, or a span of them, of how many there are.
_SHARE = re.compile(r"(\d[\d,-]*) of (\d[\d,]*)")
_QUOTED = re.compile(r"[\"{\[]|(?<!\w)'")
_LISTED = 24  # items of a list that are translated one by one, at most


class Catalogue:
    """The texts of one language by their English ones."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        # A sentence is the same with its full stop and without, and with a capital at its beginning.
        self._messages = {_bare(text): _bare(told, _STOP) for text, told in messages.items()}
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
            if not one.literals[0] and ": " in values[one.names[0]].rstrip():
                continue  # and here its beginning
            if any(_PLURAL.fullmatch(name) and values[name] not in ("", "s") for name in values):
                continue  # the s of a plural, which Chinese has not, and more than that
            told = {name: self._value(value, depth + 1) for name, value in values.items()}
            foreign = [value for value in one.foreign(values, told) if " " in value]
            if _said(one) >= sum(map(_prose, foreign)) and not any(": " in v for v in foreign):
                several = any(", " in value for value in values.values())
                found.append((fill(self._messages[one.text], told), several))
        best, several = min(found, key=lambda each: _english(each[0]), default=(None, False))
        if best is not None and several and depth <= _DEEPEST:
            # It may have taken the end of another item of a list.
            listed = self._listed(text, depth + 1)
            return listed if listed and _english(listed) <= _english(best) else best
        return best

    def _value(self, text: str, depth: int) -> str:
        """Return a value: translated if it is a sentence itself, as it is if it is one word."""
        if text == ".":
            return _STOP
        for sign, told in _JOINTS.items():
            if text.startswith(sign):
                return told + self._value(text[len(sign) :], depth)
        stripped = text.strip()
        if depth > _DEEPEST or _named(stripped):
            return text
        whole = self._whole(stripped, depth)
        if whole is not None:
            return whole
        parts, all_of_it = self._parts(stripped, depth=depth)
        return parts if all_of_it else text

    def _parts(self, text: str, level: int = 0, depth: int = 0) -> tuple[str, bool]:
        """Return a text of which single lines or sentences are translated, and whether all are."""
        if level == len(_PARTINGS):
            return self._framed(text, depth)
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
        if _named(text):
            return text, True  # a name, a path, an address
        if named := _NAMED.fullmatch(text):  # a finding with its rule: "... [topology/ranks]"
            told, known = self._part(named[1], level, depth)
            return told + named[2], known
        return self._parts(text, level + 1, depth)

    def _framed(self, text: str, depth: int) -> tuple[str, bool]:
        """Return a list, or two texts that are put together, where all of it can be translated.

        Of a text with a colon only the second half need be. Quotations and JSON stay as they are.
        """
        if depth > _DEEPEST or _QUOTED.search(text):
            return text, False
        if found := _SHARE.fullmatch(text):
            return f"{found[1]}（共 {found[2]}）", True
        if (listed := self._listed(text, depth)) is not None:
            return listed, True
        for frame, form in _FRAMES:
            if found := frame.fullmatch(text):
                first, known = self._part(found[1], len(_PARTINGS) - 1, depth + 1)
                second, all_of_it = self._part(found[2], len(_PARTINGS) - 1, depth + 1)
                if (first, second) == found.groups():
                    return text, known and all_of_it
                if all_of_it and (known or form == _FRAMES[0][1]):
                    return form.format(first, second), True
        return text, False

    def _listed(self, text: str, depth: int) -> str | None:
        """Return a list with each item translated, an item as long as one message has it."""
        items = text.split(", ")
        if not 1 < len(items) <= _LISTED:
            return None
        out: list[str] = []
        while items:
            for count in range(len(items) - (not out), 0, -1):
                one = ", ".join(items[:count])
                name = count == 1 and _named(one)
                told = one if name and ": " not in one else self._whole(one, depth)
                if told is None and count == 1:
                    framed, known = self._framed(one, depth + 1)
                    told = framed if known else one if name else None
                if told is not None:
                    break
            else:
                return None
            out.append(told)
            del items[:count]
        # Names stay a list as they are written, so that they can be copied.
        joined = out[0]
        for before, one in itertools.pairwise(out):
            last = before.rpartition("：")[2]  # the first may stand behind what they are
            joined += (", " if f"{last}, {one}" in text else "，") + one
        return joined


def _said(template: Template) -> int:
    """Return how many letters of prose a template says by itself."""
    return _prose(" ".join(template.literals))


def _prose(text: str) -> int:
    """Return how many letters of a text are those of words of prose."""
    return sum(map(len, _PROSE.findall(text)))


def _named(text: str) -> bool:
    """Return whether a text has no word of prose: it is a name, a path, a number with its unit."""
    return " " not in text.strip() or not set(_PROSE.findall(text)) - _UNITS


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
