"""The catalogues: nothing missing or stale, placeholders and terms kept, every template found again."""

from __future__ import annotations

import json
import random
import re

import pytest
import yaml
from habits import catalogues, messages, translated_notebooks

from kimi_nb.i18n import catalogue
from kimi_nb.i18n.templates import fill, placeholders

TERMS = yaml.safe_load((catalogues.FOLDER / "terms.yaml").read_text())["zh"]
MESSAGES = json.loads((catalogues.FOLDER / "zh.json").read_text())
WITH_VALUES = [text for text in MESSAGES if placeholders(text)]
# English texts that may wait for their translation, or translations for being taken out. What is missing
# is shown in English, and `make i18n` lists it.
MOST_MISSING = 0
# Names that are not words of a sentence: flags, variables, paths, placeholders, commands, quotations.
NAMES = re.compile(
    r"\{\w+\}|--scenario [\w-]+|--[\w./-]+|[\w.-]*[_/][\w./-]*|'[^']*'"
    r"|(?:kubectl|scontrol|docker)(?: [a-z]+)+|[A-Z]+:[A-Z]+|--help"
)


def wrong_terms(text: str, told: str) -> list[str]:
    """The terms of a text whose Chinese does not stand in its translation."""
    words = NAMES.sub(" ", text)
    return [
        term
        for term, allowed in TERMS.items()
        if re.search(rf"(?<![\w.$<-]){re.escape(term)}(?![\w.=-])", words, re.IGNORECASE)
        and not any(one in told for one in allowed)
    ]


@pytest.fixture(scope="module")
def merged():
    path = catalogues.FOLDER / "zh.po"
    return catalogues.merged(path, catalogues.template())


def test_no_text_is_missing_or_stale(merged):
    missing = catalogues.missing(merged)
    assert len(missing) <= MOST_MISSING, ("make i18n, then translate in zh.po", missing)
    stale = [str(one) for one in merged.obsolete]
    assert len(stale) <= MOST_MISSING, ("make i18n, then take the '#~' out of zh.po", stale)


def test_what_the_program_reads_is_what_people_translated(merged):
    files = [("zh.po", catalogues.text_of(merged)), ("zh.json", catalogues.compiled(merged))]
    there = [(catalogues.FOLDER / name, text) for name, text in files]
    assert catalogues.out_of_date(there, check=True) == [], "make i18n"


def test_translations_keep_their_placeholders():
    for text, told in MESSAGES.items():
        here, there = set(placeholders(text)), set(placeholders(told))
        lost = {name for name in here - there if not re.fullmatch(r"s\d?|several", name)}
        assert there <= here and not lost, text


def test_translations_keep_names_and_terms():
    wrong = {text: terms for text, told in MESSAGES.items() if (terms := wrong_terms(text, told))}
    assert {text: one for text, one in wrong.items() if MESSAGES[text] != text} == {}
    for text, told in MESSAGES.items():
        flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", text))
        assert flags <= set(re.findall(r"--[a-z][\w-]+", told)), text


def test_notebooks_keep_terms():
    book = catalogues.read(translated_notebooks.FOLDER / "zh.po")
    words = re.compile(r"`[^`]*`|\]\([^)]*\)")  # code and the addresses of links are no words
    wrong = {
        text: terms
        for text, told in catalogues.certain(book).items()
        if (terms := wrong_terms(words.sub(" ", text), words.sub(" ", told)))
    }
    assert wrong == {}


def test_a_wrong_term_is_found():
    assert wrong_terms("tp is the tensor parallel size", "tp 是张量切分的大小") == [
        "tensor parallel"
    ]


@pytest.mark.parametrize("seed", range(3))
def test_each_template_is_found_again_whatever_its_values(seed):
    chance = random.Random(seed)
    letters = "qxzjkv0123456789<>&\"'€汉\\"
    chinese = catalogue.load("zh")
    wrong = []
    for text in WITH_VALUES:
        values = {
            name: "".join(chance.choices(letters, k=chance.randint(1, 9)))
            if not re.fullmatch(r"s\d*", name)
            else chance.choice(("", "s"))
            for name in placeholders(text)
        }
        if chinese.translate(fill(text, values)).rstrip(".。") != fill(
            MESSAGES[text], values
        ).rstrip(".。"):
            wrong.append(text)
    assert wrong == []


def test_a_message_of_the_source_becomes_a_template(tmp_path, monkeypatch):
    package = tmp_path / "kimi_nb"
    (package / "check").mkdir(parents=True)
    (package / "check" / "a.py").write_text(
        'def f(d, n):\n    """Say a thing about it."""\n'
        "    return f\"{d.title} has {n} device{'s' * (n != 1)} {'left' if n else 'at all'} here\"\n"
    )
    monkeypatch.setattr(messages, "PACKAGE", package)
    monkeypatch.setattr(messages, "FACTS", {})
    assert list(messages.extracted()) == [
        "{title} has {n} device{s} left here",
        "{title} has {n} device{s} at all here",
    ]
