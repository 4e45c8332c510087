"""Errors that authors of public serving documents later corrected, each in its essence.

tests/check/upstream_fixes/*.yaml: what was wrong, the text before and after the correction, and the
rule that names it. The texts are ours; a new case is an entry, not code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry

CASES = [
    case
    for path in sorted((Path(__file__).parent / "upstream_fixes").glob("*.yaml"))
    for case in yaml.safe_load(path.read_text(encoding="utf-8"))
]


def rules(case: dict, side: str) -> set[str]:
    name = case["name"]
    text = Text(name, "", _kind(Path(name), case[side]), case[side])
    made = assemble.of_texts([text], case.get("engine", ""), str(case.get("version", "")))
    return {one.rule for one in registry.check(made).findings}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["fix"])
def test_the_error_is_named_and_its_correction_is_not(case):
    assert case["rule"] in rules(case, "before")
    assert case["rule"] not in rules(case, "after")


def test_there_are_many():
    assert len(CASES) >= 60
