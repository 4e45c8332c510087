"""What nodes send is data of a small grammar: a hostile one changes no file of this machine."""

from __future__ import annotations

import base64
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kimi_nb.deploy import node_facts, node_looks
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.deploy.node_logs import NodeLogs
from kimi_nb.deploy.on_nodes import OnNodes
from kimi_nb.plan import build
from kimi_nb.service import prerequisites

PLAN = build.plan("k2.5", "h200", "single", variant="pip")
(NODE,) = PLAN.nodes
HI = base64.b64encode(b"hi\n").decode()
HOSTILE = [
    "/etc/cron.d/x.log 0 {}",
    "{outside}/authorized_keys.log 0 {}",
    "../../../.bashrc.log 0 {}",
    "a/b.log 0 {}",
    "..log/../x.log 0 {}",
    ".hidden.log 0 {}",
    "-rf.log 0 {}",
    "rank 7.log 0 {}",
    "rank_7 0 {}",
    "rank_7.log -1 {}",
    "rank_7.log 1e3 {}",
    "rank_7.log {}",
    "rank_7.log 0 not base64",
    "rank_7.log 0 %%%",
    "r\u0661nk.log 0 {}",
    "",
]


def logs(root, *lines):
    """Copies of the logs of one node that sends these facts."""
    answer = Answer(tuple(Line("fact", thing, text) for thing, text in lines))
    target = types.SimpleNamespace(
        plan=PLAN, root=root, log_folder=root / "logs", every=0.0, poll=lambda verbs: {NODE: answer}
    )
    return NodeLogs(target)


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("text", HOSTILE)
def test_a_log_by_another_name_is_written_nowhere(tmp_path, text):
    outside = tmp_path / "home"
    outside.mkdir()
    (outside / "authorized_keys.log").write_text("mine\n")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    made = logs(
        run,
        ("log", text.replace("{}", HI).replace("{outside}", str(outside))),
        ("log", f"rank_0.log 0 {HI}"),
        ("engines", "runs"),
    )
    made._read(("state", "tails"))
    assert files(tmp_path) == ["home/authorized_keys.log", f"run/logs/{NODE}/rank_0.log"]
    assert (outside / "authorized_keys.log").read_text() == "mine\n"
    assert made.states == {NODE: "starting"}  # what else it said counts
    assert "log" in made.strange[NODE]


@pytest.mark.parametrize(
    "thing, text",
    [("engines", "ended"), ("engines", "ended x"), ("engines", "sleeps"), ("router", "ended 999"),
     ("memory", "much"), ("memory", "1" * 40)],
)  # fmt: skip
def test_a_state_that_is_none_is_named_and_skipped(tmp_path, thing, text):
    made = logs(tmp_path, (thing, text), ("engines", "ended 137, and left processes behind"))
    (tmp_path / "logs").mkdir()
    made._read(("state",))
    assert made.codes == {f"{NODE} engines": 137} and made.memory == {}
    assert thing in made.strange[NODE] and len(made.strange[NODE]) < 300


def test_a_node_cannot_fill_the_folder_with_names(tmp_path):
    many = [("log", f"rank_{number}.log 0 {HI}") for number in range(node_facts.LOGS + 50)]
    made = logs(tmp_path, *many)
    (tmp_path / "logs").mkdir()
    made._read(("tails",))
    assert len(files(tmp_path)) == node_facts.LOGS
    assert "more than" in made.strange[NODE]


def test_a_log_that_begins_anew_without_end_is_named(tmp_path):
    again = [("log", f"rank_1.log 0 {HI}")] * 300
    made = logs(tmp_path, *again)
    (tmp_path / "logs").mkdir()
    made._read(("tails",))
    assert 50 < len(list((tmp_path / "logs").rglob("*.before"))) < 200
    assert "begun anew" in made.strange[NODE]


def test_a_piece_has_a_bound():
    whole = base64.b64encode(b"x" * node_facts.PIECE).decode()
    assert len(node_facts.log(f"a.log 0 {whole}").data) == node_facts.PIECE
    more = base64.b64encode(b"x" * (node_facts.PIECE + 3)).decode()
    with pytest.raises(ValueError, match="at most"):
        node_facts.log(f"a.log 0 {more}")


@given(st.text(max_size=60))
def test_any_words_are_a_fact_or_a_value_error(text):
    readers = (node_facts.log, node_facts.file, node_facts.program, node_facts.kilobytes)
    for reader in (*readers, node_facts.look):
        try:
            found = reader(text)
        except ValueError:
            continue
        name = str(getattr(found, "name", found[0] if isinstance(found, tuple) else "a"))
        assert "/" not in name and not name.startswith(".")


@pytest.mark.parametrize("text", ["x aGk=", "1 %%", "9999 aGk=", "aGk=", "-1 aGk=", ""])
def test_a_look_that_is_none_is_no_answer(text):
    request = PLAN.request
    look, *_ = prerequisites.looks(request.hardware, request.site, request.weights, "single")
    answer = Answer((Line("fact", "look 0", text),))
    (seen,) = node_looks._seen([look], answer)
    assert (seen.status, seen.found) == ("fail", "no answer: the look ended early")


@pytest.mark.parametrize("text", ["/etc/passwd {}", "../x {}", "serve.sh", "serve.sh %%", ""])
def test_the_diff_of_a_script_reads_no_other_file(tmp_path, text):
    bundle = tmp_path / "bundle" / NODE
    bundle.mkdir(parents=True)
    (bundle / "serve.sh").write_text("mine\n")
    site = OnNodes(PLAN, tmp_path / "bundle", tmp_path, "r", "me", lambda: None)
    site._found = {NODE: {"push": [Line("fact", "file", text.replace("{}", HI)),
                                   Line("fact", "file", f"serve.sh {HI}")]}}  # fmt: skip
    assert site.diff().count("@@ -") == 1 and "+mine" in site.diff()


# The grammar, sentence by sentence ---------------------------------------------------------------

Program, Piece = node_facts.Program, node_facts.Piece


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (node_facts.log, f"rank_7.log 42 {HI}", Piece("rank_7.log", 42, b"hi\n")),
        (node_facts.log, "a-b.1.log 0 ", Piece("a-b.1.log", 0, b"")),
        (node_facts.file, f"serve.sh {HI}", ("serve.sh", b"hi\n")),
        (node_facts.program, "runs", Program(True, 0)),
        (node_facts.program, "ended 0", Program(False, 0)),
        (node_facts.program, "ended 255", Program(False, 255)),
        (node_facts.program, "ended 1, and left processes behind", Program(False, 1)),
        (node_facts.look, f"3 {HI}", (3, b"hi\n")),
        (node_facts.kilobytes, "0", 0),
        (node_facts.kilobytes, "9" * 12, 999999999999),
    ],
)
def test_each_fact_has_its_value(reader, text, value):
    assert reader(text) == value


@pytest.mark.parametrize(
    ("reader", "text", "words"),
    [
        (node_facts.log, "x", "a log is wanted as NAME.log BYTES BASE64"),
        (node_facts.log, "a.log 0 %%%%", "base64 is wanted"),
        (node_facts.log, "a.log 0 aGkK?", "base64 is wanted"),
        (node_facts.file, "x", "a file is wanted as NAME BASE64"),
        (node_facts.program, "ended 256", "a state is wanted as runs, or ended CODE"),
        (node_facts.program, "ended", "a state is wanted as runs, or ended CODE"),
        (node_facts.look, "x", "a look is wanted as CODE BASE64"),
        (node_facts.kilobytes, "1" * 13, "a number of KB is wanted"),
        (node_facts.kilobytes, "", "a number of KB is wanted"),
        (node_facts.file, "a " + "A" * 349532, "at most 262144 bytes are wanted"),
    ],
)
def test_what_is_wanted_is_said(reader, text, words):
    with pytest.raises(ValueError) as found:
        reader(text)
    assert str(found.value) == words and found.value.__suppress_context__ is (words[0] == "b")


def test_the_largest_piece_in_base64_is_taken():
    """349,528 characters, whatever bytes they have."""
    assert (node_facts.PIECE + 2) // 3 * 4 == 349528
    assert len(node_facts.file("a " + "A" * 349528)[1]) == 262146
