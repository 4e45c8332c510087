"""Words of the glossary at their first use in a notebook: each is a link to where it is explained.

    # exit code 1 where one is none
    python tests/habits/glossary_links.py notebooks/*.ipynb notebooks/*/*.ipynb

What counts is prose: headings, code, and words of a link that leads elsewhere are left out. The
words are those of docs/glossary.md, in the language of the notebook; glossary_links.yaml beside this
file says which need no link, and why.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = "docs/glossary.md"
_MARKDOWN = MarkdownIt("commonmark").enable("table")
# A row of a table of words: word, Chinese, meaning, carried by.
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| [^|]+ \|$")
# A piece of prose, and where the link leads that it stands in ("" for none).
_Piece = tuple[str, str]


@dataclass(frozen=True)
class Word:
    """A word of the glossary: how English and Chinese write it, and where it is explained."""

    name: str
    en: tuple[str, ...]
    zh: tuple[str, ...]
    places: tuple[str, ...]


@functools.cache
def exceptions() -> dict[str, Any]:
    """Return what needs no link, and which page explains a word as well as the glossary does."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@functools.cache
def words() -> tuple[Word, ...]:
    """Return the words of the glossary.

    >>> next(word for word in words() if word.name == "TTFT").places
    ('docs/glossary.md#words-of-the-field',)
    """
    out: list[Word] = []
    section = ""
    for line in (ROOT / GLOSSARY).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ").lower().replace(" ", "-")
        elif (row := _ROW.match(line)) and row[1] not in ("word", "-" * 3):
            out += _of_row(row[1].split(", "), row[2].split("、"), f"{GLOSSARY}#{section}")
    return tuple(out)


def _of_row(english: list[str], chinese: list[str], place: str) -> Iterator[Word]:
    """Yield the words of a row; where each has a Chinese word of its own, that one."""
    for at, told in enumerate(english):
        spelled = _spelled(told)
        own = chinese[at : at + 1] if len(english) == len(chinese) else chinese
        more = exceptions()["pages"].get(spelled[0], ())
        in_chinese = [one for word in own for one in _spelled(word)]
        yield Word(spelled[0], spelled, tuple(in_chinese), (place, *more))


def _spelled(told: str) -> tuple[str, ...]:
    """Return the ways to write a word: ``data parallel (DP)`` has two, a gloss of many letters none."""
    word, _, short = re.sub(r"[（）]", lambda one: "()"["（）".index(one[0])], told).partition("(")
    short = short.strip(" )")
    return (word.strip(), short) if re.match(r"[A-Z]{2}", short) else (word.strip(),)


def _ways(word: Word, language: str) -> Iterator[str]:
    """Yield a pattern for each way to write a word, also at the start of a sentence and as a plural."""
    if language == "zh":
        # Chinese puts no space between words; Latin letters in it are words as in English.
        yield from (f"(?<![A-Za-z]){re.escape(one)}(?![A-Za-z])" for one in word.zh)
        return
    for one in word.en:
        first = f"[{one[0].upper()}{one[0]}]" if one[0].islower() else re.escape(one[0])
        rest = re.sub("y$", "(?:y|ie)", re.escape(one[1:]))
        yield rf"\b{first}{rest}(?:s|ism)?\b"


@functools.cache
def _finder(language: str) -> re.Pattern[str]:
    """Return what finds the words, of two at one place the longer one."""
    ways = [(way, n) for n, word in enumerate(words()) for way in _ways(word, language)]
    ways.sort(key=lambda one: -len(one[0]))
    # A word may be written in several ways: the group is named for the way, and begins with its word.
    return re.compile("|".join(f"(?P<w{n}_{at}>{way})" for at, (way, n) in enumerate(ways)))


def faults(path: Path, language: str = "") -> list[str]:
    """Return the words whose first use in a notebook is no link, one line each; [] is good."""
    if path.stem in exceptions()["notebooks"]:
        return []
    language = language or ("zh" if path.parent.name == "zh" else "en")
    seen = set(exceptions()["everyday"])
    out = []
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
        if cell["cell_type"] != "markdown":
            continue
        for paragraph in _prose("".join(cell["source"])):
            for word, piece, link in _uses(paragraph, language):
                if word.name in seen or (link and not _leads(link, word)):
                    continue
                seen.add(word.name)
                if not link:
                    out.append(
                        f"{path}, cell {number}: {word.name!r} is used first in {piece!r}, and is "
                        f"no link to {' or '.join(word.places)}"
                    )
    return out


def _leads(link: str, word: Word) -> bool:
    return re.sub(r"^(\.\./)+", "", link) in word.places


def _uses(paragraph: list[_Piece], language: str) -> Iterator[tuple[Word, str, str]]:
    """Yield each use of a word: the word, some text around it, and where its link leads."""
    text = "".join(piece for piece, _ in paragraph)
    links = [link for piece, link in paragraph for _ in piece]
    others = [
        found.span()
        for phrase in exceptions()["other_senses"]
        for found in re.finditer(re.escape(phrase), text)
    ]
    for found in _finder(language).finditer(text):
        at = found.start()
        if any(start <= at < end for start, end in others):
            continue
        word = words()[int(str(found.lastgroup)[1:].partition("_")[0])]
        yield word, text[max(0, at - 30) : found.end() + 20], links[at]


def _prose(text: str) -> Iterator[list[_Piece]]:
    """Yield the pieces of each paragraph, item and cell of a table; headings are left out."""
    heading = False
    for token in _MARKDOWN.parse(text):
        if token.type in ("heading_open", "heading_close"):
            heading = token.type == "heading_open"
        elif token.type == "inline" and not heading:
            yield list(_pieces(token.children or ()))


def _pieces(tokens: Sequence[Token]) -> Iterator[_Piece]:
    link = ""
    for token in tokens:
        if token.type == "link_open":
            link = str(token.attrGet("href"))
        elif token.type == "link_close":
            link = ""
        elif token.type == "text":
            yield token.content, link
        else:  # a line's end, code, emphasis: what is on either side is no one word
            yield " " if token.type in ("softbreak", "hardbreak") else "\0", link


def main(paths: Sequence[str]) -> int:
    """Print the first uses that are no links; 0 where there are none."""
    found = [fault for path in paths for fault in faults(Path(path))]
    for fault in found:
        print(f"{fault}.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
