"""Copies of the logs of nodes: what is asked, what is written, and what a node cannot do."""

from __future__ import annotations

import base64
import fcntl
import types

import pytest

from kimi_nb.core.errors import KimiError
from kimi_nb.deploy import journal, log_copies, node_facts, node_logs
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.deploy.node_logs import LOST, NodeLogs
from kimi_nb.plan import build

PLAN = build.plan("k2.5", "a3", "pd")
DOOR, OTHER, *_ = PLAN.nodes
SILENT = Answer((), "no answer: the connection ended")


def piece(name: str, begin: int, data: bytes) -> tuple[str, str]:
    return "log", f"{name} {begin} {base64.b64encode(data).decode()}"


def says(*facts: tuple[str, str]) -> Answer:
    return Answer(tuple(Line("fact", thing, text) for thing, text in facts))


class Target:
    """Nodes that give the answers of a list, one after the other, and then none."""

    def __init__(self, root, *answers, plan=PLAN, every=0.0):
        self.plan, self.root, self.log_folder, self.every = plan, root, root / "logs", every
        self.answers, self.polled = list(answers), []

    def poll(self, verbs):
        self.polled.append(tuple(verbs))
        return self.answers.pop(0) if self.answers else {}


@pytest.fixture
def copies(tmp_path):
    """Returns the copies of nodes that answer one time each."""

    def made(*answers, **more) -> NodeLogs:
        logs = NodeLogs(Target(tmp_path, *answers, **more))
        for _ in answers:
            logs.read()
        return logs

    return made


@pytest.fixture
def clock(monkeypatch):
    """The time of `node_logs`, in seconds."""
    time = types.SimpleNamespace(now=0.0)
    time.monotonic = lambda: time.now
    monkeypatch.setattr(node_logs, "time", time)
    return time


def written(tmp_path) -> dict[str, bytes]:
    folder = tmp_path / "logs"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


# When nodes are asked -------------------------------------------------------------------------


def test_nodes_are_asked_again_after_some_time_or_on_demand(tmp_path, clock):
    target = Target(tmp_path, every=5.0)
    logs = NodeLogs(target)
    logs.read()
    assert target.polled == [("state", "tails")]
    for later, polls in ((4.9, 1), (0.1, 2), (4.9, 2)):
        clock.now += later
        logs.read()
        assert len(target.polled) == polls
    logs.read(now=True)
    assert len(target.polled) == 3
    clock.now += 4.9  # counted from the last poll
    logs.read()
    assert len(target.polled) == 3


def test_a_log_is_read_to_its_end_on_demand_only(tmp_path, monkeypatch):
    monkeypatch.setattr(node_facts, "PIECE", 2)
    grows = [{OTHER: says(piece("rank_0.log", 2 * at, b"x\n"))} for at in range(3)]
    end = {OTHER: says(piece("rank_0.log", 6, b"\n"))}
    target = Target(tmp_path, *grows, end, {OTHER: says(piece("rank_0.log", 7, b"y\n"))})
    NodeLogs(target).read()
    assert target.polled == [("state", "tails")]
    NodeLogs(target).read(now=True)
    assert target.polled[1:] == [("state", "tails"), ("tails",), ("tails",)]
    assert written(tmp_path) == {f"{OTHER}/rank_0.log": b"x\nx\nx\n\n"}


def test_one_node_with_more_is_enough_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(node_facts, "PIECE", 2)
    whole, part = (says(piece("rank_0.log", 0, data)) for data in (b"x\n", b"\n"))
    two = says(piece("rank_0.log", 0, b"x\n"), piece("rank_1.log", 0, b"\n"))
    state = says(("engines", "runs"), ("memory", "1"), ("verb", "state"))
    for answer, polls in (({DOOR: whole, OTHER: part}, 2), ({OTHER: two}, 2), ({OTHER: state}, 1)):
        target = Target(tmp_path, answer)
        NodeLogs(target).read(now=True)
        assert target.polled == [("state", "tails"), ("tails",)][:polls]


def test_a_log_that_never_ends_is_not_read_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(node_facts, "PIECE", 2)
    monkeypatch.setattr(node_logs, "_PIECES", 7)
    target = Target(tmp_path, *[{OTHER: says(piece("a.log", 2 * at, b"x\n"))} for at in range(50)])
    NodeLogs(target).read(now=True)
    assert len(target.polled) == 1 + 7


def test_two_processes_do_not_copy_at_the_same_time(tmp_path):
    class Watched(Target):
        def poll(self, verbs):
            with pytest.raises(KimiError), journal.alone(self.log_folder, wait=False):
                pass
            return super().poll(verbs)

    target = Watched(tmp_path)
    NodeLogs(target).read()
    assert target.polled
    with (tmp_path / "logs" / ".lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# What is copied -------------------------------------------------------------------------------


def test_a_copy_grows_and_is_read(copies, tmp_path):
    logs = copies(
        {OTHER: says(piece("rank_3.log", 0, b"one\ntw"))},
        {OTHER: says(piece("rank_3.log", 6, b"o\n"))},
    )
    assert written(tmp_path) == {f"{OTHER}/rank_3.log": b"one\ntwo\n"}
    (log,) = logs.all()
    assert (log.node, log.rank, list(log.lines)) == (OTHER, 3, ["one", "two"])
    assert logs.progress == 2 and logs.strange == {}


def test_a_log_that_begins_anew_stands_beside_the_earlier_one(copies, tmp_path):
    copies(*[{OTHER: says(piece("rank_3.log", 0, text))} for text in (b"a\n", b"b\n", b"c\n")])
    assert written(tmp_path) == {
        f"{OTHER}/rank_3.log": b"c\n",
        f"{OTHER}/rank_3.1.before": b"a\n",
        f"{OTHER}/rank_3.2.before": b"b\n",
    }


def test_a_log_that_began_anew_too_often_stays_as_it_is(copies, tmp_path, monkeypatch):
    monkeypatch.setattr(log_copies, "MOST", 1)
    logs = copies(*[{OTHER: says(piece("a.log", 0, text))} for text in (b"a\n", b"b\n", b"c\n")])
    assert written(tmp_path) == {f"{OTHER}/a.log": b"b\n", f"{OTHER}/a.1.before": b"a\n"}
    assert logs.strange == {OTHER: "log 'a.log 0 Ywo=': it has begun anew more than 1 times"}


def test_a_log_of_the_greatest_number_still_grows(copies, tmp_path, monkeypatch):
    monkeypatch.setattr(node_facts, "LOGS", 2)
    logs = copies(
        {OTHER: says(*[piece(f"rank_{at}.log", 0, b"x") for at in range(3)])},
        {OTHER: says(piece("rank_1.log", 1, b"y")), DOOR: says(piece("rank_0.log", 0, b"z"))},
    )
    assert written(tmp_path) == {
        f"{OTHER}/rank_0.log": b"x",
        f"{OTHER}/rank_1.log": b"xy",
        f"{DOOR}/rank_0.log": b"z",
    }
    assert logs.strange == {OTHER: "log 'rank_2.log 0 eA==': more than 2 logs"}


def test_a_secret_in_two_pieces_is_redacted_in_place(copies, tmp_path, monkeypatch):
    secret = b"correct-horse-battery"
    monkeypatch.setenv("KIMI_API_KEY", secret.decode())
    parts = [b"key " + secret[:9], secret[9:] + b"\n", b"." * 9000 + secret[:5]]
    parts.append(secret[5:] + b"." * 9000)
    begins = [sum(map(len, parts[:at])) for at in range(len(parts))]
    copies(*[{OTHER: says(piece("a.log", *one))} for one in zip(begins, parts, strict=True)])
    (copy,) = written(tmp_path).values()
    assert len(copy) == sum(map(len, parts)) and secret not in copy
    assert copy.count(b".") >= 18000 and copy.startswith(b"key ") and b"horse" not in copy
    copies({OTHER: says(piece("b.log", 0, secret))})
    assert secret[1:] not in written(tmp_path)[f"{OTHER}/b.log"]
    assert written(tmp_path)[f"{OTHER}/b.log"][:1] != secret[:1]


def test_how_far_each_log_was_read(copies, tmp_path):
    logs = copies({
        DOOR: says(piece("rank_0.log", 0, b"abc"), piece("router.log", 0, b"ab")),
        OTHER: says(piece("rank_8.log", 0, b"a")),
    })  # fmt: skip
    assert sorted(logs.seen(DOOR).splitlines()) == ["rank_0.log 3", "router.log 2"]
    assert logs.seen(OTHER) == "rank_8.log 1"
    assert logs.seen(PLAN.nodes[2]) == ""
    again = NodeLogs(Target(tmp_path))
    assert again.seen(OTHER) == "rank_8.log 1"  # by any process
    (tmp_path / "logs" / "router.log").unlink()
    assert again.seen(DOOR) == "rank_0.log 3"


def test_a_start_sets_the_logs_of_its_nodes_aside(copies, tmp_path, monkeypatch):
    monkeypatch.setattr(log_copies, "MOST", 1)
    logs = copies({node: says(piece("a.log", 0, node.encode())) for node in (DOOR, OTHER)})
    logs.begin([OTHER])
    assert written(tmp_path) == {
        f"{DOOR}/a.log": DOOR.encode(),
        f"{OTHER}/a.1.before": OTHER.encode(),
    }
    logs.begin(iter([DOOR]))
    (tmp_path / "logs" / OTHER / "a.log").write_text("new")
    logs.begin([OTHER])  # there is no room for one more
    assert written(tmp_path) == {f"{node}/a.1.before": node.encode() for node in (DOOR, OTHER)}


# The front door -------------------------------------------------------------------------------


def test_the_router_is_that_of_its_node(copies, tmp_path):
    logs = copies({DOOR: says(piece("router.log", 0, b"hi\n"), ("router", "ended 3"))})
    assert written(tmp_path) == {"router.log": b"hi\n"} and logs.codes == {"router": 3}
    (log,) = logs.all()
    assert (log.node, log.rank, list(log.lines)) == (DOOR, None, ["hi"])


@pytest.mark.parametrize("plan", [PLAN, build.plan("tiny-llama", "cpu", "dp")])
def test_no_other_node_speaks_for_the_router(plan, copies, tmp_path):
    """It could hide why the router ended, or end a service that runs."""
    other = plan.nodes[1]
    logs = copies(
        {other: says(piece("router.log", 0, b"all is well\n"))},
        {other: says(("router", "ended 0"), ("engines", "runs"))},
        plan=plan,
    )
    assert written(tmp_path) == {} and logs.codes == {} and logs.states == {other: "starting"}
    assert logs.strange[other].endswith(": the router is not on this node")


# What runs ------------------------------------------------------------------------------------


def test_what_runs_and_what_has_ended(copies):
    logs = copies({
        DOOR: says(("engines", "runs"), ("store-master", "runs"), ("memory", "2048")),
        OTHER: says(("engines", "ended 137, and left processes behind"), ("memory", "7"),
                    ("store-service", "ended 9"), ("free", "12")),
    })  # fmt: skip
    assert logs.codes == {f"{OTHER} engines": 137, f"{OTHER} store-service": 9}
    assert logs.states == {DOOR: "starting", OTHER: "ended 137"}
    assert logs.parts == {(DOOR, "store-master"): "ready", (OTHER, "store-service"): "ended 9"}
    assert logs.memory == {DOOR: 2048, OTHER: 7} and logs.strange == {}


def test_what_runs_again_has_no_exit_code(copies):
    ended = says(("engines", "ended 1"), ("router", "ended 2"))
    runs = says(("engines", "runs"), ("router", "runs"), ("store-master", "runs"))
    logs = copies({DOOR: ended}, {DOOR: runs})
    assert logs.codes == {} and logs.states == {DOOR: "starting"}


def test_a_node_that_does_not_answer_for_some_time_is_lost(copies):
    runs = {OTHER: says(("engines", "runs")), DOOR: says(("engines", "runs"))}
    half = {OTHER: SILENT, DOOR: runs[DOOR]}
    logs = copies(half, half, half, half)
    assert logs.lost() == set() and logs.codes == {}
    logs._target.answers += [runs, half, half, half, half]
    for _ in range(5):
        logs.read()
    assert logs.lost() == set() and logs.codes == {}
    logs._target.answers += [half, half]
    logs.read()
    assert logs.lost() == {OTHER} and logs.codes == {f"{OTHER} engines": LOST}
    logs.read()
    assert logs.lost() == {OTHER}
    logs._target.answers += [runs]
    logs.read()
    assert logs.lost() == set() and logs.codes == {}


def test_a_node_that_breaks_off_is_not_heard_in_vain(copies):
    """What it has said before its connection ended counts."""
    broken = Answer((Line("fact", "engines", "ended 3"),), "the connection ended")
    assert copies({OTHER: broken}).codes == {f"{OTHER} engines": 3}


def test_the_first_strange_line_of_each_node_is_told_in_short(copies):
    logs = copies({
        DOOR: says(("memory", "x" * 300), ("memory", "y"), ("memory", "3")),
        OTHER: says(("log", "z")),
    })  # fmt: skip
    assert logs.strange == {
        DOOR: f"memory {'x' * 80!r}: a number of KB is wanted",
        OTHER: "log 'z': a log is wanted as NAME.log BYTES BASE64",
    }
    assert logs.memory == {DOOR: 3}


# Copies of earlier logs, and answers ----------------------------------------------------------


def test_an_earlier_log_gets_the_first_free_name(tmp_path, monkeypatch):
    monkeypatch.setattr(log_copies, "MOST", 3)
    log = tmp_path / "router.log"
    (tmp_path / "router.2.before").write_text("kept")
    for number, room in ((1, True), (3, True), (4, False)):
        log.write_text(str(number))
        assert log_copies.set_aside(log) is room
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "router.1.before": "1",
        "router.2.before": "kept",
        "router.3.before": "3",
        "router.log": "4",
    }


def test_the_lines_of_some_kinds():
    lines = [Line(kind, "disk", str(at)) for at, kind in enumerate(("fact", "fail", "fact"))]
    answer = Answer(tuple(lines))
    assert answer.of("fact") == [lines[0], lines[2]] and answer.of() == []
    assert answer.of("fail", "fact") == lines and answer.error == ""
