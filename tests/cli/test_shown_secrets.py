"""What the command line and a notebook show holds no secret, whoever wrote it."""

from __future__ import annotations

import io
import json

import pytest

from kimi_nb.cli import main, redacted_streams
from kimi_nb.core import known_secrets
from kimi_nb.core.errors import KimiError
from kimi_nb.show import Table, Text

SECRET = "open-sesame-4711"
LINE = f"(EngineCore_DP1 pid=7) ERROR 11-21 10:00:01 [core.py:1] RuntimeError: {SECRET} is refused."


@pytest.fixture(autouse=True)
def door(monkeypatch):
    """A secret variable, by its name."""
    monkeypatch.setattr(known_secrets, "_names", set())
    monkeypatch.setenv("DOOR_API_KEY", SECRET)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_log_line_with_a_key_is_evidence_without_it(tmp_path, capsys, more):
    (tmp_path / "rank_0.log").write_text(f"{LINE}\n")
    assert main.main(["doctor", str(tmp_path), *more]) == 1
    shown = capsys.readouterr().out
    assert "[redacted] is refused" in shown and SECRET not in shown
    if more:
        json.loads(shown)


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", f"/none/{SECRET}"),
        ("explain", SECRET),
        ("plan", "--model", SECRET, "--hw", "a3"),
        (SECRET,),
    ],
)
def test_a_message_repeats_no_key(capsys, words):
    """Those of argparse are not ours, and are shown by the same streams."""
    try:
        code = main.main(words)
    except SystemExit as error:
        code = error.code
    shown = capsys.readouterr().err
    assert code == 2 and "[redacted]" in shown and SECRET not in shown


def test_words_that_no_command_knows_are_said_in_short(capsys):
    with pytest.raises(SystemExit):
        main.main(["plan", "--model", "k2.5", "--hw", "a3", "--role=" + "x" * 9000])
    assert len(capsys.readouterr().err) < 2500


def test_a_script_is_shown_without_a_key_and_kept_with_it(tmp_path, capsys):
    script = tmp_path / "run.sh"
    script.write_text(f"vllm serve a --api-key {SECRET} --enable-expert-paralel\n")
    for more in ((), ("--json",), ("--fix", "--dry-run")):
        main.main(["check", str(script), *more])
        shown = capsys.readouterr()
        assert SECRET not in shown.out + shown.err
    assert SECRET in script.read_text()


def test_a_document_stays_one(monkeypatch):
    """A secret may be a number, and a form may end beyond the quotation mark."""
    monkeypatch.setenv("DOOR_API_KEY", "471147")
    facts = {
        "port": 471147,
        "sent": ['Authorization: Digest username="a", response="b"', "after"],
        "said": "471147",
    }
    out = io.StringIO()
    stream = redacted_streams.Redacted(out)
    print(json.dumps(facts, indent=2), file=stream)
    shown = json.loads(out.getvalue())
    assert shown["said"] == "[redacted]" and shown["sent"][1] == "after"
    assert 'username="a"' not in shown["sent"][0]


def test_what_is_written_in_pieces_is_looked_at_whole():
    out = io.StringIO()
    stream = redacted_streams.Redacted(out)
    stream.write(f"a {SECRET[:5]}")
    assert stream.write(f"{SECRET[5:]}\nb") == len(SECRET) - 5 + 2
    assert out.getvalue() == "a [redacted]\n"
    stream.flush()
    assert out.getvalue() == "a [redacted]\nb"


def test_the_streams_are_as_before_afterwards(capsys):
    import sys

    before = sys.stdout, sys.stderr
    assert main.main(["explain", "topology/ranks"]) == 0
    assert (sys.stdout, sys.stderr) == before


def test_what_a_notebook_shows_holds_no_key():
    """A cell that wraps must not hide half of it."""
    long = f"{'word ' * 11}{SECRET} {'word ' * 9}"
    table = Table(f"of {SECRET}", ("what",), ((long,), ({"a": SECRET},)))
    for shown in (str(table), table._repr_html_(), *_both(Text(f"of {SECRET}", LINE))):
        assert "sesame" not in shown and "4711" not in shown and "[redacted]" in shown
    shown = KimiError(f"it said {SECRET}")._render_traceback_()
    assert shown == ["\x1b[31mKimiError\x1b[0m: it said [redacted]"]


def _both(text):
    return str(text), text._repr_html_()
