"""--select and --ignore: which rules are asked, and what is said of the others."""

from __future__ import annotations

import json

import pytest

from kimi_nb.check import judge, selection
from kimi_nb.check.rules import registry
from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError

SCRIPT = "vllm serve org/model --tensor-paralel-size 8 --port 99999\n"


@pytest.fixture
def found(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    return judge.files([tmp_path / "run.sh"], engine="vllm", version="0.19.1")


def told(findings) -> list[str]:
    return [one.rule for one in findings.findings]


def test_rules_and_families_are_chosen(found):
    everything = set(told(found))
    assert {"engine/flag-unknown", "topology/port-range", "security/open-api"} <= everything
    engine = {one for one in everything if one.startswith("engine/")}
    assert set(told(selection.chosen(found, ["engine"]))) == engine
    assert set(told(selection.chosen(found, ["engine", "topology/port-range"]))) == {
        *engine,
        "topology/port-range",
    }
    assert set(told(selection.chosen(found, [], ["engine"]))) == everything - engine
    assert told(selection.chosen(found, ["engine"], ["engine/flag-unknown"])) == [
        one for one in told(found) if one in engine - {"engine/flag-unknown"}
    ]
    assert selection.chosen(found) is found


def test_what_is_left_out_is_counted(found):
    less = selection.chosen(found, ["topology/port-range"])
    assert set(less.findings) | set(less.left_out) == set(found.findings)
    assert "1 rules asked" in less.verdict
    assert f"Left out by --select or --ignore: {len(found.errors) - 1} error" in less.verdict
    assert len(less.as_dict()["left_out"]) == len(less.left_out) > 0
    assert "Left out" not in found.verdict
    asked = set(registry.all_rules()) - selection.rules(["topology"])
    without = selection.chosen(found, [], ["topology"])
    assert without.rules == len(asked) and set(without.skipped) <= asked


@pytest.mark.parametrize(
    ("select", "ignore", "wanted"),
    [
        (["engine/flag-unkown"], [], "did you mean engine/flag-unknown"),
        ([], ["topolgy"], "'topolgy' is not known; did you mean topology"),
        ([], [""], "is not known"),
        (["engine"], ["engine"], "leave no rule"),
    ],
)
def test_a_choice_that_is_none(select, ignore, wanted, found):
    with pytest.raises(ParameterError, match=wanted):
        selection.chosen(found, select, ignore)


def test_the_command_line(tmp_path, capsys):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    asked = ["check", str(script), "--engine-version", "0.19.1"]
    assert main([*asked, "--ignore", "engine", "--ignore", "topology,security"]) == 0
    assert "Left out by --select or --ignore: 2 errors" in capsys.readouterr().out
    assert main([*asked, "--select", "topology/port-range", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [one["rule"] for one in document["findings"]] == ["topology/port-range"]
    assert main([*asked, "--fix", "--select", "engine/nonsense"]) == 2
    said = capsys.readouterr()
    assert "is not known" in said.err and said.out == ""
    assert script.read_text() == SCRIPT
