"""Recognise a finished sentence as one of many templates, and put its values into another one.

A template is text with named placeholders, ``"{engine} is not {named}"``. Braces around anything
but a name are text. Matching takes time linear in the sentence, whatever its values hold.

>>> list(Template("{a} is not {b}").matches("1 is not 2"))
[{'a': '1', 'b': '2'}]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_SEAM = "\0"  # in no text: where a value begins or ends
_HAN = r"[\u4e00-\u9fff，。；：（）“”、]"
_BLANK = re.compile(rf"(?<={_HAN}) (?={_SEAM}{_HAN})|(?<={_HAN}{_SEAM}) (?={_HAN})")
_MARKS = ("'", '"', "`")
_WORD = re.compile(r"\w+")
# Words and letters of literal text from which on a template may have values of several words. "{a} of
# {b}" fits too much: with single words it is what it says, with more it may be any sentence.
_STRONG_WORDS, _STRONG_LETTERS = 2, 8


def placeholders(text: str) -> list[str]:
    """Return the names of the placeholders of a template, in their order, each as often as it is."""
    return _PLACEHOLDER.findall(text)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its placeholders replaced; one without a value stays.

    A blank between the template and a value goes where both are Chinese there.

    >>> fill("实际使用 {uses}", {"uses": "节点"}), fill("实际使用 {uses}", {"uses": "tp 4"})
    ('实际使用节点', '实际使用 tp 4')
    """
    filled = _PLACEHOLDER.sub(lambda found: f"{_SEAM}{values.get(found[1], found[0])}{_SEAM}", text)
    return _BLANK.sub("", filled).replace(_SEAM, "")


class Template:
    """A template as its literal parts and the names between them."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts = _PLACEHOLDER.split(text)
        self.literals, self.names = tuple(parts[::2]), tuple(parts[1::2])
        self.weight = sum(map(len, self.literals))
        words = re.findall(r"[^\W\d_]{2,}", " ".join(self.literals))
        letters = sum(map(len, words))
        self.strong = len(words) >= _STRONG_WORDS and letters >= _STRONG_LETTERS

    def words(self) -> set[str]:
        """Return the words that stand in every sentence of this template as words of their own."""
        last = len(self.literals) - 1
        out = set()
        for at, literal in enumerate(self.literals):
            for found in _WORD.finditer(literal):
                # A word beside a placeholder may be part of a longer one.
                begins = found.start() > 0 or at == 0
                ends = found.end() < len(literal) or at == last
                if begins and ends:
                    out.add(found[0])
        return out

    def foreign(self, values: Mapping[str, str], told: Mapping[str, str]) -> Iterator[str]:
        """Yield the values that no translation changes, but for those that are set off as quoted.

        Words of another program stand behind a colon, in brackets or in quotation marks.
        """
        for name, before in zip(self.names, self.literals, strict=False):
            quoted = before.endswith((": ", "(", *_MARKS)) or values[name].startswith(_MARKS)
            if told[name] == values[name] and not quoted:
                yield values[name]

    def matches(self, text: str) -> Iterator[dict[str, str]]:
        """Yield the values of a sentence of this template: first values as short, then as long as can be.

        A name that stands twice must have one value.
        """
        seen = None
        for places in (self._from_left(text), self._from_right(text)):
            if places is not None and places != seen:
                seen = places
                values = [text[begin:end] for begin, end in places]
                told = dict(zip(self.names, values, strict=True))
                if [told[name] for name in self.names] == values:
                    yield told

    def _from_left(self, text: str) -> list[tuple[int, int]] | None:
        """Return where the values are, each literal text taken as early as it can be."""
        first, *rest = self.literals
        if not text.startswith(first) or not text.endswith(self.literals[-1]):
            return None
        out, position = [], len(first)
        for literal in rest[:-1]:
            found = text.find(literal, position)
            if found < 0:
                return None
            out.append((position, found))
            position = found + len(literal)
        end = len(text) - len(self.literals[-1])
        return [*out, (position, end)] if rest and end >= position else None

    def _from_right(self, text: str) -> list[tuple[int, int]] | None:
        """Return where the values are, each literal text taken as late as it can be."""
        *rest, last = self.literals
        if not text.startswith(self.literals[0]) or not text.endswith(last):
            return None
        out, end = [], len(text) - len(last)
        for literal in reversed(rest[1:]):
            found = text.rfind(literal, 0, end)
            if found < 0:
                return None
            out.append((found + len(literal), end))
            end = found
        begin = len(self.literals[0])
        return [(begin, end), *reversed(out)] if rest and end >= begin else None


def _short(value: str) -> bool:
    return len(value.split(maxsplit=1)) < 2


class Index:
    """Templates, each found by its rarest word."""

    def __init__(self, texts: Iterable[str]) -> None:
        templates = [Template(text) for text in texts]
        known = [(one, one.words()) for one in templates]
        counts = Counter(word for _, words in known for word in words)
        self._by_word: dict[str, list[Template]] = {}
        for one, words in known:
            if words:  # without a word of its own a template would fit anything
                rarest = min(words, key=lambda word: (counts[word], word))
                self._by_word.setdefault(rarest, []).append(one)

    def matches(self, text: str) -> Iterator[tuple[Template, dict[str, str]]]:
        """Yield the templates that fit a sentence with its values, the most literal text first."""
        words = dict.fromkeys(_WORD.findall(text))
        near = [one for word in words for one in self._by_word.get(word, ())]
        for one in sorted(near, key=lambda each: (-each.weight, each.text)):
            for values in one.matches(text):
                if one.strong or all(map(_short, values.values())):
                    yield one, values
