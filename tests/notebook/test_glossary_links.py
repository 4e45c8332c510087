"""A word of the glossary is a link where a notebook uses it first, in each language."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from habits import glossary_links

ROOT = glossary_links.ROOT
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
NOTEBOOKS = [path for path in NOTEBOOKS if ".ipynb_checkpoints" not in path.parts]
RANK = "[rank](../docs/glossary.md#words-of-the-field)"


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT / "notebooks"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_the_first_use_of_a_word_is_a_link(path):
    assert glossary_links.faults(path) == []


def found(folder: Path, *cells: str, language: str = "en") -> list[str]:
    """The words whose first use is no link in a notebook of these cells."""
    path = folder / "book.ipynb"
    made = [{"cell_type": "markdown", "source": [cell]} for cell in cells]
    code = {"cell_type": "code", "source": ["rank"]}
    path.write_text(json.dumps({"cells": [code, *made]}))
    return [one.split("'")[1] for one in glossary_links.faults(path, language)]


@pytest.mark.parametrize(
    "cells, wanted",
    [
        (("A rank.",), ["rank"]),
        (("Ranks, and proxies.",), ["rank", "proxy"]),
        (("| port |\n| --- |\n| of a rank |",), ["rank"]),
        (("a <details><summary>x</summary>\n\nrank\n\n</details>",), ["rank"]),
        ((f"A {RANK}.", "A rank again."), []),
        (("A rank.", f"A {RANK}, too late."), ["rank"]),
        (("A [rank](../docs/glossary.md#what-is-done).", "A rank."), ["rank"]),
        (("A [rank](05_pd.ipynb).",), []),
        (("## Rank\n\n`rank`, a prank and Frank.",), []),
        (("A [rule](../docs/rules/README.md), a rule.",), []),
        (("Tensor parallelism",), ["tensor parallel"]),
        (("prefill-decode disaggregation",), ["prefill-decode disaggregation"]),
        (("The feature on its own pages, and every node.",), []),
    ],
)
def test_what_counts_as_first_use(cells, wanted, tmp_path):
    assert found(tmp_path, *cells) == wanted


@pytest.mark.parametrize(
    "cells, wanted",
    [
        (("每个 rank 有 HTTP 端口",), ["rank"]),
        (("按方案部署引擎",), ["engine"]),
        (("TP，即张量并行",), ["tensor parallel"]),
        (("投机解码",), ["speculative decoding"]),
        (("[预填充和解码](../../docs/glossary.md#words-of-the-field)，再解码",), []),
    ],
)
def test_chinese_words_are_found_without_spaces(cells, wanted, tmp_path):
    assert found(tmp_path, *cells, language="zh") == wanted


def test_the_words_are_those_of_the_glossary():
    text = (ROOT / glossary_links.GLOSSARY).read_text(encoding="utf-8")
    tables = text.replace("| side | meaning | carried by |", "").split("\n| word | Chinese |")
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 5]
    words = {word.name for word in glossary_links.words()}
    assert len(words) >= len(rows) - 2 * (len(tables) - 1)
    for row in rows:
        name = row.split("|")[1].partition("(")[0].split(",")[0].strip()
        assert name in words | {"word", "---"}, name


def test_an_exception_is_of_use():
    """Each names a word of the glossary, or a phrase that stands in a notebook."""
    words = {word.name for word in glossary_links.words()}
    allowed = glossary_links.exceptions()
    assert {*allowed["everyday"], *allowed["pages"]} <= words
    assert set(allowed["notebooks"]) <= {path.stem for path in NOTEBOOKS}
    books = "".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS)
    assert [phrase for phrase in allowed["other_senses"] if phrase not in books] == []
    for pages in allowed["pages"].values():
        assert all((ROOT / page).exists() for page in pages)
