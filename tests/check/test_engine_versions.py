"""Each version of the engine for a deployment: what serves it, its faults, what changes."""

from __future__ import annotations

import json

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import known_faults, model_versions
from kimi_nb.check import engine_versions
from kimi_nb.cli import main
from kimi_nb.core import data_files
from kimi_nb.plan import build


def rows(*words: str) -> dict[str, engine_versions.VersionRow]:
    return {row.version: row for row in engine_versions.of(*words).rows}


def test_a_row_for_each_version_and_for_those_that_only_faults_name():
    there = list(rows("k2.6", "a3", "pd"))
    listed = list(catalog.versions("vllm-ascend"))
    assert there[: len(listed)] == listed
    assert "0.26.0rc1" in there[len(listed) :] and "0.27.1rc1" in there
    assert list(rows("k2.5", "h200", "", "pip")) == list(catalog.versions("vllm"))


def test_what_k2_6_finds_on_the_way_up():
    found = engine_versions.of("k2.6", "a3", "pd")
    here = {row.version: row for row in found.rows}
    met = {name: {one.id for one in row.faults if one.met} for name, row in here.items()}
    assert found.recipe == "0.20.2rc1"
    # The known issue of 0.22.1rc1, and the memory that 0.26.0rc1 takes (issues 10962, 15297).
    assert "va-unhashable" not in met["0.21.0rc1"] and "va-unhashable" in met["0.22.1rc1"]
    assert "va-k2x-026-oom" not in met["0.25.1rc1"] and "va-k2x-026-oom" in met["0.26.0rc1"]
    # A fault that this plan does not meet is there all the same, unmarked.
    assert ("va-lmhead-tp-hang", False) in {(one.id, one.met) for one in here["0.22.1rc1"].faults}
    assert here["0.13.0"].serves == "no: from 0.15.0rc1"
    assert [name for name, row in here.items() if row.tested] == ["0.23.0", "0.25.1rc1"]
    assert "0.25.1rc1 as the last release" in found.last_tested


def test_changes_are_those_of_the_two_plans():
    row = rows("k2.6", "a3", "pd")["0.18.0"]
    plans = [
        build.plan("k2.6", "a3", "pd", engine_version=version)
        for version in ("0.20.2rc1", "0.18.0")
    ]
    env, keys = (
        [{name for role in getattr(plan, what).values() for name in role} for plan in plans]
        for what in ("env", "flags")
    )
    assert row.new["variable"] == len(env[1] - env[0]) > 0
    assert row.gone["key"] == len(keys[0] - keys[1]) > 0
    assert f"{row.gone['key']} keys gone" in row.changes


def test_a_version_that_refuses_the_plan_says_why():
    row = rows("k2.6", "a3", "pd")["0.17.0rc1"]
    assert "eagle3 needs vLLM >=0.18.0" in row.changes and not row.gone


def test_a_model_that_nobody_tests_says_so():
    assert "No test of k2.5 on h200" in engine_versions.of("k2.5", "h200").last_tested


def test_every_row_of_the_data_is_of_versions_in_order():
    facts = data_files.facts("catalog/model_versions")
    for package, models in facts["served"].items():
        for name, row in models.items():
            first, floor = (
                known_faults.order(row.get(key, row["first"])) for key in ("first", "floor")
            )
            assert first is not None and floor is not None and first <= floor, (package, name)
            assert "http" in row["source"]
    for row in facts["tested"]:
        listed = catalog.versions(row["engine"])
        positions = [listed.index(version) for version in row["versions"]]
        assert positions == sorted(positions) and "http" in row["source"]
        # Upstream tests no version that does not serve the model.
        for version in row["versions"]:
            serves = model_versions.serves(row["engine"], row["model"], version)
            assert not serves.startswith("no:"), (row["model"], version)


def test_the_command(capsys):
    assert main.main(["versions", "--model", "k2.6", "--hw", "a3", "--layout", "pd"]) == 0
    text = capsys.readouterr().out
    assert "0.20.2rc1 (recipe)" in text and "error va-k2x-026-oom" in text
    assert "va-lmhead-tp-hang" not in text
    words = ["versions", "--model", "k2.6", "--hw", "a3", "--layout", "pd"]
    assert main.main([*words, "--explain"]) == 0
    assert "va-lmhead-tp-hang" in capsys.readouterr().out
    assert main.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"id": "va-unhashable", "severity": "warning", "met": True} in next(
        row for row in told["versions"] if row["version"] == "0.22.1rc1"
    )["faults"]
    assert all(one["source"] for one in told["known_faults"])


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--model", "k9", "--hw", "a3"], "k9"),
        (["--model", "k2.5", "--hw", "tpu"], "tpu"),
        (["--model", "k2.6", "--hw", "a3", "--layout", "dp"], "No document describes"),
        (["--model", "k2-instruct", "--hw", "a3"], "No document describes"),
        (["--model", "k2.6", "--hw", "a3", "--site", "mine.yaml"], "--site says nothing here"),
    ],
)
def test_mistakes_are_a_sentence(words, wanted, capsys):
    assert main.main(["versions", *words]) == 2
    out = capsys.readouterr()
    assert wanted in out.err and "Traceback" not in out.err and not out.out


def test_a_plan_tells_the_known_faults_that_it_meets(capsys):
    words = ["plan", "--model", "k2.6", "--hw", "a3", "--layout", "pd"]
    assert main.main([*words, "--engine-version", "0.22.1rc1"]) == 0
    told = capsys.readouterr().out
    assert "warning: known fault va-unhashable (decode): " in told
    assert "issues/10962" in told and "kimi-nb check tells them." in told
    assert main.main([*words, "--engine-version", "0.21.0rc1"]) == 0
    assert "va-unhashable" not in capsys.readouterr().out
    assert main.main([*words, "--engine-version", "0.22.1rc1", "--json"]) == 0
    (fault,) = (
        one
        for one in json.loads(capsys.readouterr().out)["known_faults"]
        if one["id"] == "va-unhashable"
    )
    assert fault["roles"] == ["decode"] and fault["severity"] == "warning" and fault["source"]
