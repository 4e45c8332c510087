"""Every rule has something that fails it and something that passes; the cases are data.

kimi_nb/check/examples.py says what a case holds. A new case is an entry, not code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kimi_nb import catalog
from kimi_nb.check import examples, judge
from kimi_nb.check.reading import assemble, inference
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry
from kimi_nb.params import load
from kimi_nb.plan import build

CASES = examples.cases()
SIDES = [
    (identity, side, number)
    for identity, case in CASES.items()
    for side in examples.SIDES
    for number in range(len(case[side]))
]


def deployment(side: dict):
    """What a side of a case describes."""
    if "plan" in side:
        words = dict(side["plan"])
        if "/" in words.get("site", ""):  # a file beside this one
            words["site"] = str(Path(__file__).parent / words["site"])
        made = judge.of_plan(replace(build.plan(**words), **side.get("replace", {})))
    else:
        texts = [
            Text(name, str(Path(name).parent).replace(".", ""), _kind(Path(name), text), text)
            for name, text in side["files"].items()
        ]
        chip = load.hardware(side["hw"]) if "hw" in side else None
        tree = frozenset(side["tree"]) if "tree" in side else None
        version = str(side.get("version", ""))
        made = assemble.of_texts(texts, side.get("engine", ""), version, chip, tree=tree)
    if "claims" in side:
        made = replace(made, claims=tuple(side["claims"]))
    return made


@pytest.mark.parametrize(("identity", "side", "number"), SIDES)
def test_rule(identity, side, number):
    case = CASES[identity][side][number]
    found = registry.check(deployment(case))
    assert identity not in found.skipped, found.skipped.get(identity)
    mine = [one for one in found.findings if one.rule == identity]
    if side == "passes":
        assert not mine, mine
        return
    assert mine
    for one in mine:
        assert one.message and one.fix and one.source and one.where
    if "says" in case:
        assert any(case["says"] in one.message for one in mine), [one.message for one in mine]
    if "severity" in case:
        assert case["severity"] in {one.severity for one in mine}
    if "line" in case:
        assert case["line"] in {one.line for one in mine}
    if "count" in case:
        assert case["count"] == len(mine), [one.message for one in mine]


NAMELESS = [
    (identity, number)
    for identity, case in CASES.items()
    if identity.startswith(("engine/", "json/", "variables/"))
    for number, one in enumerate(case["fails"])
    if set(one) <= {"files", "says", "severity", "line", "count"}
]


@pytest.mark.parametrize(("identity", "number"), NAMELESS)
def test_an_error_where_nothing_names_the_version_is_one_in_the_oldest_too(identity, number):
    texts = [
        Text(name, str(Path(name).parent).replace(".", ""), _kind(Path(name), text), text)
        for name, text in CASES[identity]["fails"][number]["files"].items()
    ]
    newest = assemble.of_texts(texts)
    if newest.engine_known:
        return
    package = newest.engine.package
    oldest = catalog.engine(package, catalog.versions(package)[0])
    told = registry.check(assemble.of_texts(texts, speaks=inference.Spoken(oldest, False))).findings
    here = {(one.rule, one.file, one.line) for one in told}
    for one in registry.check(newest).errors:
        if one.rule == identity:
            assert (one.rule, one.file, one.line) in here, one.message


def test_every_rule_has_its_case():
    assert sorted(CASES) == sorted(registry.all_rules())


@pytest.mark.parametrize("identity", sorted(registry.all_rules()))
def test_a_rule_explains_itself(identity):
    one = registry.all_rules()[identity]
    assert one.why and one.says.endswith(".") and one.fix.endswith((".", "?")) and one.source
