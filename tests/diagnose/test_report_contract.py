"""The JSON of `kimi-nb doctor`: what other programs may rely on, for every failure that is known.

Fields may be added; those that are here exist, with these types.
"""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path

import pytest

from kimi_nb.cli import main
from kimi_nb.core import data_files, paths
from kimi_nb.diagnose import codes, components, doctor, line_grammar, signatures
from kimi_nb.diagnose.doctor_report import Finding, Report, Unknown

CASES = data_files.read_yaml(Path(__file__).parent / "cases" / "failures.yaml")
REPORT = {
    "first": dict | None,
    "also": list,
    "cascade": list,
    "unknown": list,
    "notes": list,
    "files": int,
    "bytes": int,
    "engines": bool,
}
FINDING = {
    "signature": str,
    "kind": str,
    "component": str,
    "confidence": str,
    "cause": str,
    "help": str,
    "see": str,
    "refs": list,
    "node": str,
    "rank": int | str | None,
    "label": str,
    "devices": list,
    "file": str,
    "line": int,
    "text": str,
    "time": str,
    "exception": str,
    "code": str,
    "means": str,
    "page": str,
}
UNKNOWN = {
    "node": str,
    "rank": int | str | None,
    "devices": list,
    "file": str,
    "line": int,
    "time": str,
    "lines": list,
}
SIGNATURES = {entry.id for entry in signatures.of_logs()} | {"unknown"}
COMPONENTS = {one.id for one in components.entries()} | {""}


def holds(value, wanted) -> bool:
    """Whether a value of JSON has a type; True is no number here."""
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    return any(type(value) is (type(None) if kind is None else kind) for kind in kinds)


def check_fields(row: dict, wanted: dict) -> None:
    assert row.keys() >= wanted.keys(), wanted.keys() - row.keys()
    for name, kind in wanted.items():
        assert holds(row[name], kind), (name, row[name])


def check(report: dict) -> None:
    """Types, and what one field says of another."""
    check_fields(report, REPORT)
    for row in [*report["also"], *report["cascade"], *filter(None, [report["first"]])]:
        check_fields(row, FINDING)
        assert row["signature"] in SIGNATURES and row["component"] in COMPONENTS
        assert row["confidence"] in ("known", "component", "seen")
        assert (row["confidence"] == "known") == (row["signature"] != "unknown"), row
        assert row["cause"] and row["help"] and row["file"] and row["line"] > 0 and row["text"]
        assert bool(row["means"]) == bool(row["page"]) and (row["code"] or not row["means"])
        assert all(type(one) is int for one in row["devices"])
    for row in report["unknown"]:
        check_fields(row, UNKNOWN)
        assert row["lines"] and all(type(one) is str for one in row["lines"])
    assert all(type(one) is str for one in report["notes"])


def told(path: Path, capsys) -> dict:
    """What the command prints for programs."""
    code = main.main(["doctor", "--json", str(path)])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if report["first"] else 0)
    return report


def test_the_fields_are_all_that_there_are():
    """Whoever adds one adds it here, too."""
    for row, wanted in ((Report, REPORT), (Finding, FINDING), (Unknown, UNKNOWN)):
        assert {*row.__dataclass_fields__} == {*wanted}


@pytest.mark.parametrize("entry", signatures.of_logs(), ids=lambda entry: entry.id)
def test_of_a_failure_that_a_signature_knows(entry, tmp_path, capsys):
    for at, example in enumerate(entry.examples):
        (tmp_path / str(at)).mkdir()
        path = tmp_path / str(at) / "rank_3.log"
        path.write_text(f"INFO 11-22 05:49:08 [x.py:1] fine\n{example}\n")
        report = told(path, capsys)
        check(report)
        first = report["first"]
        if first is None:  # a warning is no cause
            assert line_grammar.of(example).calm, example
        else:
            assert first["line"] == 2, example


@pytest.mark.parametrize("name", CASES)
def test_of_failures_that_nobody_has_listed(name, tmp_path, capsys):
    row = CASES[name]
    for file, text in (row.get("logs") or {"serve.log": row["log"]}).items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    report = told(tmp_path, capsys)
    check(report)
    assert report["first"]


def test_of_a_code(tmp_path, capsys):
    (tmp_path / "rank_0.log").write_text("RuntimeError: aclrtMalloc failed, error code is 207001\n")
    report = told(tmp_path, capsys)
    check(report)
    first = report["first"]
    assert first["code"] == "207001" and first["means"] and first["page"].startswith("https://")
    assert codes.of("error code is 207001") is not None


def test_of_a_whole_deployment_and_of_nothing(tmp_path, capsys):
    report = told(paths.DATA / "diagnose" / "sample_logs", capsys)
    check(report)
    assert report["first"]["rank"] is not None and report["files"] > 1
    (tmp_path / "x.log").write_text("INFO 11-22 05:49:08 [x.py:1] fine\n")
    report = told(tmp_path, capsys)
    check(report)
    assert report["first"] is None and not report["also"]


def test_the_types_are_looked_at():
    good = json.loads(json.dumps(doctor.examine(paths.DATA / "diagnose" / "sample_logs").as_dict()))
    check(good)
    for name, wrong in (("line", "7"), ("rank", 1.5), ("rank", True), ("devices", None)):
        with pytest.raises(AssertionError):
            check({**good, "first": {**good["first"], name: wrong}})
    with pytest.raises(AssertionError):
        check({name: value for name, value in good.items() if name != "notes"})
