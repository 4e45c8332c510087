"""Text of others on a page: it stays text, whatever it holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from website import markup

MARKDOWN = MarkdownIt("commonmark").enable("table")
# Letters and whatever Markdown or HTML gives a meaning to.
WORDS = st.text(st.sampled_from("ab1 \n`*_{}[]()#+-.!|<>~$&:@%^='\"\\/;é中"), max_size=40)


class Reader(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def words(text: str) -> str:
    return " ".join(text.split())


@given(WORDS)
def test_text_is_shown_as_it_is(hostile):
    page = Reader(MARKDOWN.render(f"x {markup.text(hostile)} y"))
    assert page.tags == ["p"] and words(page.text) == words(f"x {hostile} y")


@given(WORDS, WORDS)
def test_cells_stay_cells(hostile, other):
    rows = [[markup.text(hostile), markup.code(other)]]
    page = Reader(MARKDOWN.render(markup.table(("a", "b"), rows)))
    shape = [tag for tag in page.tags if tag != "code"]
    assert shape == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]
    assert words(page.text) == words(f"a b {hostile} {other}")


@given(WORDS)
def test_a_block_ends_where_it_should(hostile):
    page = Reader(MARKDOWN.render(markup.block(hostile) + "\nafter\n"))
    assert page.tags == ["pre", "code", "p"] and page.text.endswith("after\n")


def test_prose_keeps_its_code():
    assert markup.prose("as ``docker run`` or `a|b`, <b>") == r"as `docker run` or `a|b`, \<b\>"


@pytest.mark.parametrize("name", ["`", "``a``", "a`b", " `` "])
def test_backquotes_within_code(name):
    page = Reader(MARKDOWN.render(f"x {markup.code(name)} y"))
    assert page.tags == ["p", "code"] and re.sub(r"\s", "", page.text) == f"x{name.strip()}y"
