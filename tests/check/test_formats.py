"""SARIF and GitHub's commands: what programs read of a check, and what scripts cannot make of it."""

from __future__ import annotations

import json
import re
import urllib.parse
from dataclasses import replace
from pathlib import Path

import pytest

from kimi_nb.check import formats, judge
from kimi_nb.cli.main import main
from kimi_nb.plan import build

SCRIPT = """\
#!/bin/bash
vllm serve moonshotai/Kimi-K2.5 \\
    --tensor-paralel-size 8
vllm serve org/other --max-model-len 3,2
"""
# What a script could write to speak to who reads the log, the page or the terminal.
HOSTILE = [
    "::error file=x,line=1::injected",
    "x%0A::set-env name=PATH::/tmp",
    "##[error]injected",
    "[click here](https://example.com/evil)",
    "a\x1b[31mred\u202egnp",
    "{0} {1}",
    "100%",
]
COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def checked(folder: Path, text: str = SCRIPT, name: str = "run.sh"):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return judge.files([folder], engine="vllm", version="0.19.1")


def plain(text: str, *more: str) -> str:
    """What GitHub makes of an escaped text (actions/toolkit, command.ts)."""
    for escape in ("%0D", "%0A", *more, "%25"):
        text = text.replace(escape, urllib.parse.unquote(escape))
    return text


def commands(text: str) -> list[tuple[str, dict[str, str], str]]:
    out = []
    for line in text.removesuffix("\n").split("\n"):
        kind, properties, said = COMMAND.fullmatch(line).groups()
        pairs = (pair.split("=", 1) for pair in properties.split(","))
        out.append((kind, {key: plain(one, "%3A", "%2C") for key, one in pairs}, plain(said)))
    return out


def test_sarif_has_what_its_schema_requires(tmp_path):
    found = checked(tmp_path)
    log = formats.sarif(found, str(tmp_path))
    assert log["version"] == "2.1.0" and "sarif-schema-2.1.0" in log["$schema"]
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "kimi-nb"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    assert all(one["executionSuccessful"] is True for one in run["invocations"])
    assert len(run["results"]) == len(found.findings) >= 3
    for result, one in zip(run["results"], found.findings, strict=True):
        assert ids[result["ruleIndex"]] == result["ruleId"] == one.rule
        assert result["level"] == one.severity and result["level"] in ("error", "warning", "note")
        assert one.message in result["message"]["text"] and one.fix in result["message"]["text"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"] == "run.sh"
        assert place["physicalLocation"]["region"]["startLine"] == one.line >= 1
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"] and rule["help"]["text"]
        assert rule["help"]["markdown"].startswith(f"# {rule['id']}\n")
        assert "helpUri" not in rule
    json.dumps(log)


def test_a_rule_names_its_page():
    found = judge.documents("k2.6", "a3", "pd")
    for rule in formats.sarif(found, home="https://example.com/rules/")["runs"][0]["tool"][
        "driver"
    ]["rules"]:
        assert rule["helpUri"] == f"https://example.com/rules/{rule['id']}.md"
        assert (Path(__file__).parents[2] / "docs/rules" / f"{rule['id']}.md").is_file()


def test_the_other_lines_are_related_places(tmp_path):
    found = checked(tmp_path, "vllm serve org/a --port 8000\nvllm serve org/a --port 8001\n")
    both = next(one for one in found.findings if one.also)
    result = formats.sarif(found)["runs"][0]["results"][found.findings.index(both)]
    lines = [one["physicalLocation"]["region"]["startLine"] for one in result["relatedLocations"]]
    assert lines == list(both.also)
    assert "(also line 2)" in formats.github(found)


def test_what_has_no_file_has_a_name():
    """A plan is not written yet."""
    plan = build.plan("k2.5", "a3", "pd", pairs=["decode.env.HCCL_BUFFSIZE=200"])
    found = judge.plan(plan)
    assert found.errors
    for result in formats.sarif(found)["runs"][0]["results"]:
        (place,) = result["locations"]
        assert place["logicalLocations"][0]["fullyQualifiedName"]
        assert "physicalLocation" not in place
    assert all("file" not in given for _, given, _ in commands(formats.github(found)))


def test_a_path_leads_to_the_file(tmp_path, monkeypatch):
    """From where the check was started, whatever is in the name."""
    name = "de ploy/no:de,0/run 1%.sh"
    checked(tmp_path / "there", name=name)
    (tmp_path / "there/de ploy/large.sh").write_bytes(b"x" * 300_000)
    monkeypatch.chdir(tmp_path)
    for given in ("there", "./there", tmp_path / "there", Path("there") / name):
        found = judge.files([given], engine="vllm", version="0.19.1")
        (run,) = formats.sarif(found, str(tmp_path))["runs"]
        for one in [*run["results"], *run["invocations"][0]["toolExecutionNotifications"][:-1]]:
            uri = one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
            assert urllib.parse.urlsplit(uri).scheme == ""
            assert (tmp_path / urllib.parse.unquote(uri)).is_file()
        for _, properties, _ in commands(formats.github(found, str(tmp_path)))[:-1]:
            assert (tmp_path / properties["file"]).is_file()
    elsewhere = formats.sarif(judge.files([tmp_path / "there"]), "/elsewhere")
    place = elsewhere["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    uri = urllib.parse.urlsplit(place["artifactLocation"]["uri"])
    assert uri.scheme == "file" and Path(urllib.parse.unquote(uri.path)).is_file()


def test_files_of_one_name_in_two_folders_are_told_apart(tmp_path):
    for folder in ("one", "two"):
        checked(tmp_path / folder)
    found = judge.files([tmp_path / "one", tmp_path / "two"], engine="vllm", version="0.19.1")
    assert {one.file for one in found.errors} == {"run.sh", str(tmp_path / "two/run.sh")}
    places = {properties.get("file") for _, properties, _ in commands(formats.github(found))}
    assert places == {str(tmp_path / "one/run.sh"), str(tmp_path / "two/run.sh"), None}


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_a_script_becomes_a_command_or_a_link(text, tmp_path):
    script = f"vllm serve org/model --max-model-len '{text}' --port \"$'\\n'::error::x\"\n"
    found = checked(tmp_path, script, name=f"{text.replace('/', '-')}.sh")
    assert found.errors
    said = formats.github(found)
    assert said.replace("\n", "").isprintable()
    told = commands(said)  # each line is one command of ours
    assert len(told) == len(found.findings) + len(found.unread) + 1
    assert [properties.get("title") for _, properties, _ in told[: len(found.findings)]] == [
        one.rule for one in found.findings
    ]
    for result in formats.sarif(found)["runs"][0]["results"]:
        message = result["message"]["text"]
        assert message.isprintable() and not re.search(r"\[[^\]]*\]\(", message)


def test_line_breaks_in_a_message_stay_in_it(tmp_path):
    found = checked(tmp_path)
    one = replace(found.findings[0], message="a\r\n::error::b", fix="c\nd", file="x\n::error::y")
    assert len(commands(formats.github(replace(found, findings=(one,))))) == 2


def test_the_command_line_chooses(tmp_path, monkeypatch, capsys):
    checked(tmp_path)
    monkeypatch.chdir(tmp_path)
    asked = ["check", "run.sh", "--engine-version", "0.19.1"]

    def said(*words: str) -> str:
        assert main([*asked, *words]) == 1
        return capsys.readouterr().out

    assert said("--json") == said("--format", "json") == said("--format", "text", "--json")
    assert json.loads(said("--format", "sarif"))["version"] == "2.1.0"
    assert commands(said("--format", "github"))[0][1]["file"] == "run.sh"
    assert said() == said("--format", "text")
    for mistake in (["--format", "junit"], ["--fix", "--format", "sarif"], ["--fix", "--json"]):
        try:
            code = main([*asked, *mistake])
        except SystemExit as end:
            code = end.code
        assert code == 2


def test_the_help_names_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "exit codes: 0 no error, 1 at least one error, 2 " in said


def test_the_address_is_that_of_the_package(tmp_path, monkeypatch, capsys):
    from email.message import Message
    from importlib import metadata

    about = Message()
    about["Project-URL"] = "Repository, https://example.com/kimi_nb/"
    monkeypatch.setattr(metadata, "metadata", lambda _: about)
    checked(tmp_path)
    main(["check", str(tmp_path), "--format", "sarif"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    rule = run["tool"]["driver"]["rules"][0]
    assert re.fullmatch(
        rf"https://example\.com/kimi_nb/blob/v[\d.]+/docs/rules/{rule['id']}\.md", rule["helpUri"]
    )
