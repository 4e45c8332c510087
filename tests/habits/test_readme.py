"""Documents in two languages: the same structure, commands, code, links and figures."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
)
# Every document that has a translation, not only the README.
PAIRS = [(name.replace(".zh-CN", ""), name) for name in DOCUMENTS if name.endswith(".zh-CN.md")]
MARKDOWN = MarkdownIt("commonmark").enable("table")
FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(document: str) -> Iterator[tuple[int, str, object]]:
    """(line, kind, what has to be equal) of each block, in order; of a table one for each row."""
    kind, line, row = "", 0, []
    for token in MARKDOWN.parse(document):
        line = token.map[0] + 1 if token.map else line
        if token.type == "heading_open":
            kind = token.tag
        elif token.type == "paragraph_open":
            kind = "paragraph"
        elif token.type == "tr_open":
            kind, row = "row", []
        elif token.type == "tr_close":
            yield line, "row", row
        elif token.type in ("fence", "html_block"):
            yield line, token.type, (token.info, token.content)
        elif token.type == "inline" and kind == "row":
            row.append(kept(token))
        elif token.type == "inline":
            yield line, kind, kept(token)
        elif token.level == 0 and token.nesting == 1 and token.type != "table_open":
            yield line, token.type, None


def kept(inline: Token) -> Counter[tuple[str, str]]:
    """What a translation keeps of a paragraph, whatever the order of its words."""
    out: Counter[tuple[str, str]] = Counter()
    for token in inline.children:
        if token.type == "code_inline":
            out["code", token.content] += 1
        elif token.type == "link_open":
            out["link", str(token.attrGet("href")).replace(".zh-CN.md", ".md")] += 1
        elif token.type == "image":
            out["image", str(token.attrGet("src"))] += 1
        elif token.type in ("strong_open", "em_open"):
            out["emphasis", token.tag] += 1
        elif token.type == "text":
            out.update(("figure", figure) for figure in FIGURE.findall(token.content))
            # Beside Chinese punctuation an asterisk easily opens or closes nothing.
            out["asterisks", "*"] += token.content.count("*")
    return +out


def differences(
    english: str, chinese: str, names: tuple[str, str] = (ENGLISH, CHINESE)
) -> list[str]:
    """Where the two are not the same but for the language; [] is good."""
    out = []
    for (line, kind, one), (line_zh, kind_zh, other) in itertools.zip_longest(
        blocks(english), blocks(chinese), fillvalue=("-", "end", None)
    ):
        where = f"{names[0]} line {line}, {names[1]} line {line_zh}"
        if kind != kind_zh:
            return [*out, f"{where}: {kind}, and {kind_zh}"]  # what follows is shifted
        if one != other:
            out.append(f"{where}: {kind}: {one}, and {other}")
    return out


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_both_languages_say_the_same(pair):
    english, chinese = pair
    assert differences(text(english), text(chinese), pair) == []


def test_the_readme_is_translated():
    assert (ENGLISH, CHINESE) in PAIRS


def test_the_comparison_sees_what_there_is():
    """As many of each kind as a plain search finds."""
    total: Counter[str] = Counter()
    for name in DOCUMENTS:
        document = text(name)
        kinds = Counter(kind for _, kind, _ in blocks(document))
        prose = re.sub(r"```.*?```", "", document, flags=re.DOTALL)
        assert kinds["fence"] == document.count("```") / 2, name
        headings = len(re.findall(r"^#+ ", prose, re.MULTILINE))
        assert sum(kinds[f"h{level}"] for level in range(1, 7)) == headings, name
        rows = re.findall(r"^\|.*\|$", prose, re.MULTILINE)
        assert kinds["row"] == sum("| --- |" not in row for row in rows), name
        total += kinds
        if name in (ENGLISH, CHINESE):
            assert kinds["h1"] + kinds["h2"] > 5 and kinds["row"] > 5
    assert total["fence"] > 5


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_each_links_to_the_other(pair):
    """On the line below the title."""
    english, chinese = (Path(name).name for name in pair)
    assert text(pair[0]).splitlines()[2] == f"English | [简体中文]({chinese})"
    assert text(pair[1]).splitlines()[2] == f"[English]({english}) | 简体中文"


@pytest.mark.parametrize("name", [chinese for _, chinese in PAIRS])
def test_every_paragraph_is_chinese(name):
    """Nothing was left in English."""
    for token in MARKDOWN.parse(text(name)):
        if token.type == "inline" and token.level == 1 and token.map[0] > 0:
            words = "".join(
                child.content for child in token.children if child.type in ("text", "image")
            )
            assert re.search(r"[\u4e00-\u9fff]", words), words


# A row of the table of hardware and models.
ROW = re.search(r"\n\| a2 \|[^\n]*", text(CHINESE))[0]


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("make run      #", "make run #", "fence"),
        ("```bash\n", "```\n", "fence"),
        ("\n## ", "\n### ", "h2, and h3"),
        ("\n## ", "\n\n更多。\n\n## ", "h2, and paragraph"),
        ("\n| a2 |", "\n| a9 |", "row: "),
        (ROW, f"{ROW}{ROW}", "row: "),
        ("`kimi-nb list`", "`kimi-nb lists`", "('code', 'kimi-nb lists')"),
        ("`kimi-nb list`", "kimi-nb list", "('code', 'kimi-nb list')"),
        ("(CHANGELOG.md)", "(CONTRIBUTING.md)", "('link', 'CHANGELOG.md')"),
        ("Python 3.11", "Python 3.12", "('figure', '3.12')"),
        ("(docs/rehearsal.png)", "(docs/other.png)", "('image', 'docs/other.png')"),
        ("*微型*", "微型", "('emphasis', 'em')"),
        ("运行过。** 实际", "运行过。**实际", "('asterisks', '*')"),
        ("<!-- end -->", "", "html_block"),
    ],
)
def test_a_difference_is_told(old, new, wanted):
    chinese = text(CHINESE)
    assert old in chinese
    told = differences(text(ENGLISH), chinese.replace(old, new, 1))
    assert told and wanted in told[0], told


def test_a_missing_end_is_told():
    english, chinese = text(ENGLISH), text(CHINESE)
    line = english[: english.rindex("## ")].count("\n") + 1
    assert differences(english, chinese[: chinese.rindex("## ")]) == [
        f"{ENGLISH} line {line}, {CHINESE} line -: h2, and end"
    ]
