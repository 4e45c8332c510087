"""The pages of the rules: what they show is what a check says."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest
from markdown_it import MarkdownIt

from kimi_nb.check import examples, judge, rule_pages
from kimi_nb.check.rules import registry
from kimi_nb.core.errors import ParameterError

RULES = registry.all_rules()
OF_FILES = [
    rule
    for rule, sides in examples.cases().items()
    if all(
        "files" in one and "claims" not in one for one in (sides["fails"][0], sides["passes"][0])
    )
]


def sides(page: str) -> dict[str, str]:
    """The text below each heading of an example."""
    parts = re.split(r"^## (Fails|Passes)$", page, flags=re.MULTILINE)
    return {side.lower(): text for side, text in zip(parts[1::2], parts[2::2], strict=True)}


def written(text: str, folder) -> list[str]:
    """Write the files that an example shows into a folder, and return the words of its command."""
    tokens = MarkdownIt("commonmark").parse(text)
    names = re.findall(r"^`([^`]+)`(?:, where `(.*)` is a .*)?:$", text, re.MULTILINE)
    fences = [token.content for token in tokens if token.type == "fence"]
    for (name, unseen), content in zip(names, fences, strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        letter = {"\\r": "\r", "\\xa0": "\u00a0", "": ""}[unseen]
        path.write_bytes((content.replace(unseen, letter) if unseen else content).encode())
    (command,) = re.findall(r"^`(kimi-nb check [^`]+)`", text, re.MULTILINE)
    return shlex.split(command)[2:]


@pytest.mark.parametrize("identity", OF_FILES)
def test_an_example_can_be_taken_from_its_page(identity, tmp_path, monkeypatch):
    for side, text in sides(rule_pages.page(RULES[identity])).items():
        folder = tmp_path / side
        folder.mkdir()
        words = written(text, folder)
        monkeypatch.chdir(folder)
        options = dict(itertools.pairwise(words))
        found = judge.files(
            [word for word in words if (folder / word).exists()],
            engine=options.get("--engine", ""),
            version=options.get("--engine-version", ""),
            hardware=options.get("--hw", ""),
        )
        mine = [one for one in found.findings if one.rule == identity]
        if side == "passes":
            assert not mine
            continue
        (said,) = re.findall(r"^> \.\.\. (.*) \.\.\.$", text, re.MULTILINE)
        assert any(said.replace("`", "") in one.message.replace("`", "") for one in mine)
        line = re.search(r" says of line (\d+):", text)
        assert line is None or int(line[1]) in {one.line for one in mine}


@pytest.mark.parametrize("identity", RULES)
def test_a_page_has_what_the_rule_says(identity):
    rule = RULES[identity]
    page = rule_pages.page(rule).replace("`", "").replace("\\|", "|")
    for text in (rule.id, rule.severity, rule.says, rule.why, rule.fix, rule.source):
        assert text.replace("`", "") in page


@pytest.mark.parametrize("identity", RULES)
def test_no_word_of_a_page_is_taken_for_a_tag(identity):
    tokens = MarkdownIt("commonmark").enable("table").parse(rule_pages.page(RULES[identity]))
    kinds = {child.type for token in tokens for child in [token, *(token.children or ())]}
    assert not kinds & {"html_inline", "html_block"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("engine/flag-unkown", "did you mean engine/flag-unknown"),
        ("flag-unknown", "did you mean engine/flag-unknown"),
        ("Topology/Ranks", "did you mean topology/ranks"),
        ("zzzzzzzz", "kimi-nb list --rules"),
    ],
)
def test_an_unknown_rule_is_answered_by_the_nearest(given, wanted):
    with pytest.raises(ParameterError, match="is not known") as caught:
        registry.find(given)
    assert wanted in str(caught.value)
