"""A deployment from end to end on a site that does what a table says: what is refused, in which
order things are done, what stands on disk when, and what is told afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
from pathlib import Path

import pytest
from deploy.answering_nodes import HOLDER, AnsweringNodes

from kimi_nb.bundle import scripts, writer
from kimi_nb.core import evidence, known_secrets
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.deploy import journal as journals
from kimi_nb.deploy import lifecycle
from kimi_nb.deploy.journal import Journal
from kimi_nb.deploy.kubernetes import pod_deployment
from kimi_nb.deploy.lifecycle import Deployed
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.slurm import cluster
from kimi_nb.deploy.ssh import transport
from kimi_nb.deploy.steps import Change, EngineState, Outcome, Step, StepFailed
from kimi_nb.diagnose import first_failure
from kimi_nb.diagnose.first_failure import Diagnosis, Log
from kimi_nb.plan import build
from kimi_nb.service.http_client import Reply
from kimi_nb.service.readiness import Found, Limits
from kimi_nb.show import Quote, Table

# Two engines on two nodes that are folders of this machine.
PLAN = build.plan("tiny-llama", "cpu", "dp")
NAME, SITE, (N0, N1) = PLAN.name, PLAN.site, PLAN.nodes
NOTHING = Outcome()
LIMITS = Limits(1.0, 2.0, 3.0, 4.0)
FULL = Diagnosis("disk", N1, None, "the disk is full", "node.sh weights", "Free some space.")
MOVED = dataclasses.replace(PLAN, url="http://moved:1")


class Site:
    """A site whose steps do what they were told to; ``events`` has what was called, in order."""

    def __init__(self, *steps: Step, undone=(), after=(), door=NOTHING) -> None:
        self.plan, self.url, self.steps, self.after = PLAN, "http://door:1", steps, after
        self.events: list[str] = []
        self.logs = types.SimpleNamespace(read=lambda: self.events.append("read"), all=list)
        self.states: list[EngineState] = []
        self._undone, self._door = undone, door

    def undone(self, step: str) -> bool:
        return step in self._undone

    def ended(self):
        return {}

    def serving(self):
        return MOVED

    def open_door(self) -> Outcome:
        self.events.append("open")
        if isinstance(self._door, BaseException):
            raise self._door
        return self._door

    def status(self):
        return tuple(self.states)

    def queue(self):
        return None

    def memory_mb(self) -> float:
        return 12.5


class Watch:
    """A watch over engines that answer at once; what it was given is kept."""

    fails: str | None = None
    made: Watch

    def __init__(self, plan, logs, ended, limits, key, say) -> None:
        self.given = (plan, logs, ended, limits, key, say)
        self.events: list[str] = []
        self.ready, self.times, self.answer = 0, {}, None
        self.mark, self.when, self.notes = "", "at start", []
        self.moved_tokens = self.moved_bytes = 0
        Watch.made = self

    def _do(self, name: str) -> None:
        self.events.append(name)
        Watch.site.events.append(name)
        if Watch.fails == name:
            raise Found(FULL)

    def wait_ready(self) -> None:
        self._do("wait")
        Watch.clock.now += 10.106
        self.ready, self.times = 2, {"mixed0-rank0": 1.5}

    def first_answer(self) -> None:
        self._do("first")
        Watch.clock.now += 0.25
        self.answer, self.when = Watch.reply, "while serving"

    def check_transfer(self) -> None:
        self._do("transfer")
        self.moved_tokens, self.moved_bytes = 7, 8

    def look_at_answers(self) -> None:
        self._do("answers")
        self.notes.append("noted")

    def load(self) -> None:
        self._do("load")


def completion(**message) -> Reply:
    return Reply(200, json.dumps({"choices": [{"message": message}]}), 0.1)


@pytest.fixture
def clock(monkeypatch):
    """The time of `lifecycle`, in seconds."""
    made = types.SimpleNamespace(now=100.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(lifecycle, "time", made)
    return made


@pytest.fixture
def deploy(tmp_path, monkeypatch, clock):
    """Returns a function that deploys on a site, and says the result and what was said."""
    monkeypatch.setattr(lifecycle, "Watch", Watch)
    monkeypatch.setattr(Watch, "clock", clock, raising=False)
    monkeypatch.setattr(Watch, "reply", completion(content="four"), raising=False)

    def made(site: Site, journal: Journal | None = None) -> tuple[Deployed, list[str]]:
        monkeypatch.setattr(Watch, "site", site, raising=False)
        said: list[str] = []
        kept = journal or Journal.open(tmp_path, PLAN)
        run = lifecycle._Deployment(PLAN, kept, site, said.append, LIMITS)
        return run.run(), said

    return made


def does(outcome=NOTHING, *, seconds: float = 0.0, note=None):
    """The work of a step."""

    def run() -> Outcome:
        if note is not None:
            note()
        Watch.clock.now += seconds
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return run


def entries(folder: Path) -> list[dict]:
    return [{k: v for k, v in one.items() if k != "time"} for one in evidence.read(folder)]


def kept(folder: Path) -> Journal:
    return Journal.read(folder / "deployments" / "001")


# One call of `up` -----------------------------------------------------------------------------


def test_everything_is_done_in_order_and_written_down(deploy, tmp_path):
    both = (Change(N0, "weights: copied"), Change(N1, "weights: copied"))
    door = Outcome((Change(N0, "router: started"),))
    bench = Step("benchmark", "measure it", does(Outcome(facts={"jobs": 8}), seconds=0.5))
    site = Site(
        Step("reach", "reach every node", does(Outcome(facts={"reached": [N0], "host": "h"}))),
        Step("weights", "the weights", does(Outcome(both, (Change(N1, "slow"),), {N0: 0}), seconds=1.006)),
        Step("start", "start it", does(Outcome(both[:1], (Change(N1, "slow"),)), seconds=2.0)),
        Step("submit", "more", does()),
        after=(bench,),
        door=door,
    )  # fmt: skip
    made, said = deploy(site)
    assert site.events == ["wait", "open", "first", "transfer", "answers", "load", "read"]
    watch = Watch.made
    assert watch.given[:5] == (MOVED, site.logs, site.ended, LIMITS, "")
    watch.given[5]("of the watch")
    assert said.pop() == "of the watch"
    # 1.006 + 2 + 10.106, and 0.25 for the first answer.
    assert made == Deployed(
        ok=True, plan=NAME, site=SITE, engines=2, ready=2, url="http://door:1",
        changes=(*both, both[0], *door.changes), warnings=(Change(N1, "slow"),) * 2,
        ready_s=13.11, first_answer_s=13.36, memory_mb=12.5, moved_tokens=7, moved_bytes=8,
        answer="four", failed=(), folder=tmp_path / "deployments" / "001", step="",
        notes=("noted",), facts={"host": "h", "jobs": 8}, times={"mixed0-rank0": 1.5},
    )  # fmt: skip
    assert said == [
        "reach: reach every node",
        "weights: the weights",
        "  local-0, local-1: weights: copied",
        "  warning: local-1: slow",
        "start: start it",
        "  local-0: weights: copied",
        "submit: more",
        "  no change",
        "  local-0: router: started",
        "first answer after 13.4 s",
        "benchmark: measure it",
        "  no change",
    ]
    journal = kept(tmp_path)
    assert (journal.state, journal.stopped_at) == ("up", "")
    assert journal.begun_steps == journal.steps == ["reach", "weights", "start", "submit"]
    same = {
        "stage": "deploy", "run": journal.run, "by": journals.holder(), "plan": NAME, "site": SITE,
        "failed": [], "codes": {}, "changed": [], "warnings": [],
    }  # fmt: skip
    slow = [{"node": N1, "what": "slow"}]
    copied = [{"node": node, "what": "weights: copied"} for node in (N0, N1)]
    mark = {"mark": "measured"}
    measured = {"ready_s": 13.11, "first_answer_s": 13.36, "memory_mb": 12.5}
    assert entries(journal.folder) == [
        same | {"step": "reach", "seconds": 0.0, "facts": {"reached": [N0], "host": "h"}},
        same | {"step": "weights", "seconds": 1.01, "facts": {}, "changed": copied,
                "warnings": slow, "codes": {N0: 0}},
        same | {"step": "start", "seconds": 2.0, "facts": {}, "changed": copied[:1],
                "warnings": slow},
        same | {"step": "submit", "seconds": 0.0, "facts": {}},
        same | {"step": "open", "seconds": 0.0, "facts": mark,
                "changed": [{"node": N0, "what": "router: started"}]},
        same | {"step": "verify", "seconds": None, "facts": {**measured, **mark}},
        same | {"step": "benchmark", "seconds": 0.5, "facts": {"jobs": 8, **mark}},
    ]  # fmt: skip


def test_a_step_is_on_disk_before_it_changes_anything(deploy, tmp_path):
    seen = []

    def look() -> None:
        one = kept(tmp_path)
        seen.append((list(one.begun_steps), list(one.steps)))

    steps = [Step(name, name, does(note=look)) for name in ("reach", "claim")]
    deploy(Site(*steps))
    assert seen == [(["reach"], []), (["reach", "claim"], ["reach"])]


def test_what_was_done_is_not_done_again_unless_it_is_undone_or_always(deploy, tmp_path):
    journal = Journal.open(tmp_path, PLAN)
    for name in ("reach", "claim", "weights", "start"):
        journal.begin(name)
        journal.done(name)
    ran = []
    site = Site(
        Step("reach", "R", does(note=lambda: ran.append("reach")), always=True),
        Step("claim", "C", does(note=lambda: ran.append("claim"))),
        Step("weights", "W", does(note=lambda: ran.append("weights"))),
        Step("start", "S", does(note=lambda: ran.append("start"))),
        Step("new", "N", does(note=lambda: ran.append("new"))),
        undone=("weights",),
    )
    made, said = deploy(site, journal)
    assert ran == ["reach", "weights", "new"]
    assert [line for line in said if "done" in line] == ["claim: done before", "start: done before"]
    # This call has started nothing: its times say nothing of a start.
    assert (made.ready_s, made.first_answer_s, made.times) == (None, None, {})
    assert not [line for line in said if "first answer" in line]
    assert entries(journal.folder)[-1]["facts"] == {
        "ready_s": None, "first_answer_s": None, "memory_mb": 12.5, "mark": "measured",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("step", "changes", "started"),
    [("start", 1, True), ("start", 0, False), ("submit", 1, True), ("weights", 1, False)],
)
def test_only_a_start_that_changed_something_is_measured(deploy, step, changes, started):
    what = (Change(N0, "x"),) * changes
    later = Step("later", "l", does())  # which must not take it back
    made, _ = deploy(Site(Step(step, "s", does(Outcome(what))), later))
    assert (made.ready_s is not None, bool(made.times)) == (started, started)


def test_the_mark_of_a_stand_in_is_everywhere(deploy, monkeypatch, tmp_path):
    def load(self) -> None:
        self._do("load")

    def wait(self) -> None:
        self.mark, self.ready = "REHEARSAL", 2

    monkeypatch.setattr(Watch, "load", load)
    monkeypatch.setattr(Watch, "wait_ready", wait)
    monkeypatch.setattr(Watch, "reply", completion(reasoning_content="hm"))
    made, said = deploy(Site(Step("start", "s", does(Outcome((Change(N0, "x"),))))))
    assert made.mark == "REHEARSAL" and made.answer == "hm"
    assert made.table().title == f"REHEARSAL: {NAME} on {SITE}"
    assert "REHEARSAL: first answer after 0.2 s" in said
    assert entries(made.folder)[-1]["facts"]["mark"] == "REHEARSAL"


def test_of_many_changes_a_screen_is_said(deploy):
    many = tuple(Change(N0, f"{at}") for at in range(50))
    made, said = deploy(Site(Step("claim", "c", does(Outcome(many, many)))))
    assert sum(line.startswith("  local-0: ") for line in said) == 40
    assert sum(line.startswith("  warning: ") for line in said) == 40
    assert len(made.changes) == len(made.warnings) == 50


def test_a_killed_controller_resumes_with_what_is_left(deploy, tmp_path, monkeypatch):
    """The nodes are claimed and checked again; what was done before is not asked for again."""
    journal = Journal.open(tmp_path, PLAN)
    journal.write()
    monkeypatch.setattr(Watch, "site", Site(), raising=False)
    monkeypatch.setattr(lifecycle, "holder", lambda: HOLDER)

    def up(killed: str, *changes: tuple[str, str]) -> tuple[list[tuple[str, dict]], list[str]]:
        nodes, said = AnsweringNodes(run=journal.run, killed=killed), []
        nodes.says = {one: ["change x y"] for one in changes}
        monkeypatch.setattr(lifecycle, "LocalNodes", lambda: nodes)
        with contextlib.suppress(KeyboardInterrupt):
            lifecycle.up(PLAN, tmp_path, confirm=SITE, resume=True, say=said.append)
        assert nodes.closed == 1
        return [one for one in nodes.asked if one[0] != "look"], said

    check = ("claim", dict.fromkeys((N0, N1), "look claim dry prepare engine weights push start"))
    before = [(N0, "prepare"), (N0, "weights"), (N1, "weights"), (N0, "start"), (N1, "start")]
    assert up("weights", *before)[0] == [
        check,
        ("prepare", {N0: "prepare"}),
        ("weights", {N0: "weights", N1: "weights"}),
    ]
    assert (kept(tmp_path).state, kept(tmp_path).stopped_at) == ("failed", "weights")
    asked, said = up("", (N0, "prepare"), (N1, "weights"), (N0, "start"), (N1, "start"))
    assert asked == [
        check,
        ("weights", {N1: "weights"}),
        ("start", {N0: "push start", N1: "push start"}),
    ]
    assert [line for line in said if line.endswith("done before")] == [
        "prepare: done before",
        "engine: done before",
    ]
    assert kept(tmp_path).state == "up"
    # Engines that have ended are started again, although that step was done.
    asked, _ = up("", (N1, "start"))
    assert asked[1:] == [("stop", {N0: "stop"}), ("start", dict.fromkeys((N0, N1), "push start"))]
    nodes = AnsweringNodes(run=journal.run)
    monkeypatch.setattr(lifecycle, "LocalNodes", lambda: nodes)
    lifecycle.down(kept(tmp_path))
    assert nodes.asked[-2:] == [(verb, {N0: verb, N1: verb}) for verb in ("stop", "release")]


# How it fails ---------------------------------------------------------------------------------


def test_a_check_that_failed_and_changed_nothing_leaves_nothing(deploy, tmp_path):
    error = StepFailed("look", [FULL], Outcome(warnings=(Change(N0, "slow"),), codes={N0: 1}))
    ran = []
    site = Site(
        Step("reach", "r", does(Outcome(facts={"reached": []}))),
        Step("claim", "c", does(error)),
        Step("start", "s", does(note=lambda: ran.append("start"))),
    )
    site.serving = None  # a scheduler does not know yet where
    made, said = deploy(site)
    assert made == Deployed(
        ok=False, plan=NAME, site=SITE, engines=2, ready=0, url="http://door:1", changes=(),
        warnings=(), ready_s=None, first_answer_s=None, memory_mb=0.0, moved_tokens=0,
        moved_bytes=0, answer="", failed=(FULL,), folder=made.folder, step="look",
    )  # fmt: skip
    assert made.diagnosis == FULL and ran == [] == site.events
    journal = kept(tmp_path)
    assert (journal.state, journal.stopped_at, journal.begun_steps) == ("down", "look", [])
    assert entries(journal.folder)[-1] == {
        "stage": "deploy", "step": "look", "run": journal.run, "by": journals.holder(),
        "plan": NAME, "site": SITE, "changed": [], "warnings": [{"node": N0, "what": "slow"}],
        "codes": {N0: 1}, "facts": {}, "failed": [FULL.as_dict()], "seconds": None,
    }  # fmt: skip
    assert said[-1] == "claim: c"


@pytest.mark.parametrize(
    ("before", "changes", "earlier"),
    [
        ((), (Change(N0, "claim: perhaps held"),), ()),
        (("prepare",), (), ()),
        ((), (), (Change(N0, "reached"),)),
    ],
)
def test_what_may_have_changed_something_is_not_called_down(
    deploy, tmp_path, before, changes, earlier
):
    journal = Journal.open(tmp_path, PLAN)
    for name in before:
        journal.begin(name)
    site = Site(
        Step("reach", "r", does(Outcome(earlier))),
        Step("claim", "c", does(StepFailed("claim", [FULL], Outcome(changes)))),
    )
    made, _ = deploy(site, journal)
    journal = kept(tmp_path)
    assert (journal.state, journal.stopped_at) == ("failed", "claim")
    assert journal.steps == ["reach"] and made.changes == (*earlier, *changes)


@pytest.mark.parametrize(
    ("fails", "step"),
    [("wait", "ready"), ("first", "answer"), ("transfer", "verify"), ("load", "verify")],
)
def test_an_engine_that_does_not_answer(deploy, tmp_path, monkeypatch, fails, step):
    monkeypatch.setattr(Watch, "fails", fails)
    signs = [Log(N1, None, "engines.log", ["x"])]
    events = (first_failure.Event("", N1, 0, "k", "cause", False, "line"),)
    seen = []

    def timeline(logs, plan, when):
        seen.append((logs, plan, when))
        return events

    monkeypatch.setattr(first_failure, "timeline", timeline)
    site = Site(Step("start", "s", does(Outcome((Change(N0, "x"),)))))
    site.logs.all = lambda: signs
    made, _ = deploy(site)
    when = "at start" if fails in ("wait", "first") else "while serving"
    assert seen == [(signs, MOVED, when)] and made.events == events
    assert (made.ok, made.step, made.failed) == (False, step, (FULL,))
    assert made.ready == (0 if fails == "wait" else 2) and made.memory_mb == 12.5
    assert (made.ready_s is None) is (fails == "wait")
    journal = kept(tmp_path)
    assert (journal.state, journal.stopped_at) == ("failed", step)
    last = entries(journal.folder)[-1]
    assert (last["step"], last["failed"], last["changed"]) == (step, [FULL.as_dict()], [])
    assert (last["warnings"], last["codes"], last["seconds"]) == ([], {}, None)


def test_a_front_door_that_does_not_open(deploy, tmp_path):
    """Its step is that of the failure, and the engines go on."""
    start = Step("start", "s", does(Outcome((Change(N0, "x"),))))
    made, _ = deploy(Site(start, door=StepFailed("open", [FULL])))
    assert made.step == "open" and made.ready == 2 and made.failed == (FULL,)
    assert (kept(tmp_path).state, kept(tmp_path).stopped_at) == ("failed", "open")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a fault of ours")])
def test_an_interruption_is_written_down_and_goes_on(deploy, tmp_path, error):
    site = Site(Step("reach", "r", does()), Step("weights", "w", does(error)))
    with pytest.raises(type(error)):
        deploy(site)
    journal = kept(tmp_path)
    assert (journal.state, journal.stopped_at) == ("failed", "weights")
    assert (journal.begun_steps, journal.steps) == (["reach", "weights"], ["reach"])
    last = entries(journal.folder)[-1]
    assert (last["step"], last["failed"]) == ("weights", [{"cause": type(error).__name__}])
    assert last["changed"] == [] and last["facts"] == {}


# The result as a table ------------------------------------------------------------------------


def result(**more) -> Deployed:
    given = {
        "ok": True, "plan": "p", "site": "s", "engines": 2, "ready": 2, "url": "http://u",
        "changes": (), "warnings": (), "ready_s": 1.25, "first_answer_s": 2.0, "memory_mb": 10.6,
        "moved_tokens": 0, "moved_bytes": 0, "answer": "four", "failed": (), "folder": Path("/f"),
    }  # fmt: skip
    return Deployed(**given | more)


def test_a_result_that_is_good():
    made = result(
        changes=(Change("a", "x"), Change("b", "x"), Change("a", "y")),
        moved_tokens=7,
        moved_bytes=12345,
        facts={"job_ids": {"serve": 7}, "host": "h"},
        notes=("n1", "n2"),
    )
    table = made.table()
    assert (table.title, table.headings) == ("p on s", ("what", "is"))
    assert list(table.rows) == [
        ("engines ready", "2 of 2"),
        ("front door", "http://u"),
        ("changed", "a, b: x"),
        ("", "a: y"),
        ("ready after", "1.2 s"),
        ("first answer after", "2.0 s"),
        ("memory", "11 MB"),
        ("KV cache moved", "that of 7 prompt tokens, 12,345 bytes"),
        ("answer", Quote("four")),
        ("job ids", "serve 7"),
        ("host", "h"),
        ("note", "n1"),
        ("note", "n2"),
        ("result", "ok"),
        ("logs", "/f"),
    ]
    assert isinstance(table.rows[8][1], Quote)
    assert made.as_dict()["folder"] == "/f" and made.as_dict()["changes"][2]["what"] == "y"
    assert made.diagnosis is None


def test_a_result_that_is_not():
    rank = Diagnosis("k", "b", 3, "died", "line", "look")
    made = result(
        ok=False, ready=0, step="weights", failed=(FULL, rank), ready_s=None, answer="", mark="M"
    )
    assert made.table().title == "M: p on s"
    assert list(made.table().rows) == [
        ("engines ready", "not asked"),
        ("front door", "http://u"),
        ("changed", "no change"),
        ("node", N1),
        ("step", "weights"),
        ("cause", "the disk is full"),
        ("seen", "node.sh weights"),
        ("next", "Free some space."),
        ("node", "b"),
        ("rank", 3),
        ("step", "weights"),
        ("cause", "died"),
        ("seen", "line"),
        ("next", "look"),
        ("result", "failed at weights"),
        ("logs", "/f"),
    ]
    for step in ("ready", "open", "answer", "verify", "benchmark"):
        assert dataclasses.replace(made, step=step).asked
    assert dataclasses.replace(made, ready=1).asked and not made.asked
    rows = dict(dataclasses.replace(made, ready=1, memory_mb=0.0, moved_tokens=5).table().rows)
    assert rows["ready after"] == "never" and rows["memory"] == "not measured"
    assert rows["answer"] == "none" and rows["KV cache moved"] == "that of 5 prompt tokens"


def test_of_a_long_result_a_screen_is_shown():
    many = tuple(Change("a", str(at)) for at in range(50))
    wrong = tuple(Diagnosis("k", "a", at, "died", "line", "look") for at in range(50))
    rows = result(ok=False, changes=many, failed=wrong, step="start").table().rows
    assert sum(value.startswith("a: ") for _, value in rows if isinstance(value, str)) == 40
    assert [name for name, _ in rows].count("cause") == 40
    ran = result(ready_s=None, first_answer_s=None).table().rows
    assert ("ready after", "not measured: every engine ran before this call") in ran
    assert "first answer after" not in dict(ran)


# Which site -----------------------------------------------------------------------------------


class Made:
    """What stands in for a kind of site: it keeps what it was given."""

    def __init__(self, *given, **named) -> None:
        self.given, self.named, self.closed = given, named, 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def journal(tmp_path):
    one = Journal.open(tmp_path / "run" / NAME, PLAN)
    one.keep(PLAN)
    return one


@pytest.fixture
def kinds(monkeypatch):
    monkeypatch.setattr(lifecycle, "OnNodes", Made)
    monkeypatch.setattr(cluster, "Cluster", Made)
    monkeypatch.setattr(pod_deployment, "PodDeployment", Made)
    monkeypatch.setattr(transport, "SshNodes", Made)
    monkeypatch.setattr(known_secrets, "_names", set())
    wrote = []
    real = scripts.files

    def files(plan):
        wrote.append(plan.transport)
        if plan.transport == "kubernetes":
            name = "kubernetes/kustomization.yaml"
            return {name: "x", "plan.json": f'{{"files": ["plan.json", "{name}"]}}'}
        return real(plan)

    monkeypatch.setattr(scripts, "files", files)
    return wrote


def test_nodes_get_their_scripts_once(journal, kinds, monkeypatch):
    monkeypatch.setenv("WORD", "s3")
    plan = dataclasses.replace(PLAN, secrets={"VLLM_API_KEY": "WORD", "C": "NOT_SET", "D": "WORD"})
    who = f"{journals.holder()} since {journal.begun} for {NAME}"
    with lifecycle.target(plan, journal) as site:
        *given, connect, secrets, checksums = site.given
        assert given == [plan, journal.folder / "bundle", journal.folder, journal.run, who]
        assert (secrets, checksums) == ({"WORD": "s3"}, False)
        assert site.named == {"download": False, "leave_host": False}
        assert isinstance(connect(), LocalNodes) and site.closed == 0
    assert site.closed == 1 and kinds == ["local"]
    flags = {"checksums": True, "download": True, "leave_host": True}
    with lifecycle.target(PLAN, journal, **flags) as site:
        assert site.given[7:] == (True,) and site.given[6] == {}
        assert site.named == {"download": True, "leave_host": True}
    assert kinds == ["local"]  # all of it is there
    (journal.folder / "bundle" / N1 / "node.env").unlink()
    with lifecycle.target(PLAN, journal):
        assert (journal.folder / "bundle" / N1 / "node.env").exists()
    assert kinds == ["local"] * 2


def test_nodes_over_ssh(journal, kinds, monkeypatch, tmp_path):
    def plan(**ssh):
        site = PLAN.request.site
        there = site.model_copy(update={"ssh": site.ssh.model_copy(update=ssh)})
        request = dataclasses.replace(PLAN.request, site=there)
        return dataclasses.replace(PLAN, transport="ssh", request=request)

    for jump in (None, "door"):
        made = lifecycle._connect(plan(jump_host=jump, user="me"), journal)
        hosts, *more = made.given
        assert [(name, data["ssh_user"]) for name, data in hosts] == [(N0, "me"), (N1, "me")]
        folder = journal.folder
        assert more == [folder / "bundle" / "deploy", folder / "ssh.log", jump == "door"]
    with pytest.raises(ParameterError, match=r"ssh\.key_file /no/key"):
        lifecycle._connect(plan(key_file="/no/key"), journal)


def test_a_cluster_is_told_what_it_cannot_do(journal, kinds):
    plan, said = dataclasses.replace(PLAN, transport="slurm"), []
    earlier = [Path("/e")]
    with lifecycle.target(plan, journal, say=said.append, earlier=earlier) as site:
        assert site.given[0] is plan and site.given[1] == scripts.files(plan)
        assert site.given[2:] == (journal.folder, journal.run, said.append)
        assert site.named == {"earlier": earlier} and said == []
    with lifecycle.target(plan, journal, say=said.append, download=True) as site:
        assert site.named == {"earlier": ()}
    with lifecycle.target(plan, journal, say=said.append, checksums=True):
        pass
    assert said == [
        "--download: no effect under SLURM, one of the jobs downloads the weights anyway",
        "--checksums: no effect under SLURM, no job reads the weights before the server",
    ]
    with lifecycle.target(plan, journal, download=True, checksums=True):
        assert not (journal.folder / "bundle").exists()


def test_pods_get_the_bundle_once(journal, kinds):
    plan, said = dataclasses.replace(PLAN, transport="kubernetes"), []
    who = f"{journals.holder()} since {journal.begun} for {NAME}"
    with lifecycle.target(plan, journal, say=said.append) as site:
        assert site.given == (
            plan, journal.folder / "bundle", journal.folder, journal.run, who, said.append,
        )  # fmt: skip
        assert site.named == {"download": False} and said == []
        assert (journal.folder / "bundle/kubernetes/kustomization.yaml").read_text() == "x"
    with lifecycle.target(plan, journal, say=said.append, checksums=True, download=True) as site:
        assert site.named == {"download": True}
    assert kinds == ["kubernetes"] and said == [
        "--checksums: no effect on Kubernetes, nobody reads the weights before the engines"
    ]


def test_a_secret_does_not_stay_in_the_log_of_ssh(journal, kinds, monkeypatch):
    monkeypatch.setenv("WORD", "a-value-of-a-key")
    plan = dataclasses.replace(PLAN, secrets={"VLLM_API_KEY": "WORD"})
    log = journal.folder / "ssh.log"
    with pytest.raises(KeyboardInterrupt), lifecycle.target(plan, journal) as site:
        log.write_text("sends a-value-of-a-key")
        raise KeyboardInterrupt
    assert site.closed == 1 and "a-value-of-a-key" not in log.read_text()


def test_the_key_for_probes(monkeypatch, journal):
    monkeypatch.setenv("WORD", "s3")
    plan = dataclasses.replace(PLAN, secrets={"VLLM_API_KEY": "WORD", "OTHER": "HOME"})
    assert lifecycle.key_of(plan) == "s3" and lifecycle.key_of(PLAN) == ""
    monkeypatch.delenv("WORD")
    assert lifecycle.key_of(plan) == ""
    with pytest.raises(ParameterError, match=r"^WORD is not set here, .*export WORD=\.\.\. first"):
        lifecycle._check_secrets(plan)
    both = dataclasses.replace(PLAN, secrets={"A": "ZZ", "B": "AA", "C": "HOME"})
    with pytest.raises(ParameterError, match="^AA is not set"):
        lifecycle._check_secrets(both)
    lifecycle._check_secrets(PLAN)


# `up` and what it refuses ---------------------------------------------------------------------


@pytest.fixture
def sites(monkeypatch, deploy):
    """Targets that were made: the plan, the journal as it was on disk, and what was asked."""
    made = types.SimpleNamespace(asked=[], site=Site(), closed=0)

    @contextlib.contextmanager
    def target(plan, journal, **more):
        there = (journal.folder / "state.json").is_file()
        made.asked.append((plan, Journal.read(journal.folder) if there else journal, more))
        monkeypatch.setattr(Watch, "site", made.site, raising=False)
        yield made.site
        made.closed += 1

    monkeypatch.setattr(lifecycle, "target", target)
    return made


def test_up_on_a_site_where_nothing_is(sites, tmp_path, monkeypatch):
    said = []
    sites.site.steps = (Step("reach", "r", does()),)
    up = lifecycle.up(
        PLAN, tmp_path, confirm=SITE, checksums=True, download=True, leave_host=True,
        say=said.append, limits=LIMITS,
    )  # fmt: skip
    ((plan, before, asked),) = sites.asked
    folder = tmp_path / "deployments" / "001"
    assert plan is PLAN and (before.state, before.steps) == ("starting", [])
    assert asked.pop("say")("x") is None and said.pop() == "x"
    assert asked == {"checksums": True, "download": True, "leave_host": True, "earlier": [folder]}
    assert Watch.made.given[3] == LIMITS and said[0] == "reach: r"
    assert writer.read(folder / "bundle") == scripts.files(PLAN)
    assert Journal.read(folder).kept_plan().as_json() == PLAN.as_json()
    assert up.journal.folder == folder and up.up and up.plan is MOVED and up.url == "http://door:1"
    assert up.result.ok and up.key == ""
    monkeypatch.setenv("WORD", "s3")
    keyed = dataclasses.replace(PLAN, secrets={"VLLM_API_KEY": "WORD"})
    assert lifecycle.Up(up.journal, up.result, keyed).key == "s3"
    plain = {"checksums": False, "download": False, "leave_host": False, "earlier": [folder]}
    lifecycle.up(PLAN, tmp_path, confirm=SITE)
    asked = sites.asked[1][2]
    assert asked.pop("say")("x") is None and asked == plain
    assert Watch.made.given[3] == Limits(5400.0, 900.0, 120.0, 180.0)


def test_a_failed_start_has_the_addresses_of_the_plan(sites, tmp_path):
    sites.site.steps = (Step("weights", "w", does(StepFailed("weights", [FULL]))),)
    up = lifecycle.up(PLAN, tmp_path, confirm=SITE)
    assert up.plan is PLAN and not up.up and up.result.failed == (FULL,)


@pytest.mark.parametrize(("resume", "ran"), [(True, ["start"]), (False, ["weights", "start"])])
def test_a_killed_start_is_gone_on_with_where_that_is_asked(sites, tmp_path, resume, ran):
    """The same run, and the parameters with which it was begun."""
    killed = Journal.open(tmp_path, PLAN)
    killed.keep(PLAN)
    writer.write(scripts.files(PLAN), killed.folder / "bundle")
    for name in ("claim", "weights"):
        killed.begin(name)
        killed.done(name)
    killed.begin("start")
    killed.set("starting")
    (killed.folder / "model.yaml").write_text("as it was")
    notes = []
    sites.site.steps = tuple(
        Step(name, name, does(note=lambda name=name: notes.append(name)))
        for name in ("weights", "start")
    )
    up = lifecycle.up(PLAN, tmp_path, confirm=SITE, resume=resume)
    assert up.journal.run == killed.run and notes == ran
    assert sites.asked[0][1].steps == (["claim", "weights"] if resume else [])
    assert sites.asked[0][1].begun_steps == ["claim", "weights", "start"]
    assert (killed.folder / "model.yaml").read_text() == "as it was"


def test_parameters_are_kept_anew_where_no_node_was_claimed(sites, tmp_path):
    early = Journal.open(tmp_path, PLAN)
    early.begin("reach")
    early.done("reach")
    early.set("failed")
    lifecycle.up(PLAN, tmp_path, confirm=SITE)
    assert sites.asked[0][1].steps == []  # nobody has said to resume
    assert Journal.read(early.folder).more["asked"]["layout"] == "dp"


def refused(sites, tmp_path, plan=PLAN, confirm=SITE, error=ParameterError) -> str:
    """What `up` says where it refuses; the site is not asked, and nothing is begun."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error) as caught:
        lifecycle.up(plan, tmp_path, confirm=confirm)
    assert sites.asked == []
    after = {path for path in tmp_path.rglob("*") if path.name != ".lock"}
    assert after <= set(before)
    return str(caught.value)


def at(plan, *addresses: str):
    """The plan with these addresses of its engines."""
    engines = zip(plan.engines, addresses, strict=True)
    made = tuple(dataclasses.replace(engine, address=address) for engine, address in engines)
    return dataclasses.replace(plan, engines=made)


def test_what_is_refused_before_anything_is_touched(sites, tmp_path, monkeypatch):
    example = at(PLAN, "192.0.2.1", "127.0.0.1")
    told = refused(sites, tmp_path, example, "wrong")
    assert told.startswith("site local: 192.0.2.1: these are the example's addresses")
    for name in ("slurm", "kubernetes"):  # they find their nodes by themselves
        lifecycle.check_addresses(dataclasses.replace(example, transport=name))
    keyed = dataclasses.replace(PLAN, secrets={"VLLM_API_KEY": "NOT_SET"})
    said = refused(sites, tmp_path, keyed, "wrong")
    assert said.startswith("confirm 'wrong': this changes 2 nodes of site local")
    assert refused(sites, tmp_path, keyed).startswith("NOT_SET is not set here")
    assert not list(tmp_path.iterdir())


def test_two_processes_do_not_deploy_at_the_same_time(sites, tmp_path):
    with journals.alone(tmp_path):
        said = refused(sites, tmp_path, error=KimiError)
    assert "another process is at work on this deployment" in said


def test_a_deployment_belongs_to_one_site(sites, tmp_path):
    other = Journal.open(tmp_path, dataclasses.replace(PLAN, site="elsewhere"))
    other.set("up")
    assert refused(sites, tmp_path) == (
        f"{other.folder}: {NAME} is deployed on elsewhere from here; end that first "
        "(kimi-nb down), or name another run_dir."
    )


def test_scripts_of_what_may_run_are_not_replaced(sites, tmp_path):
    tmp_path = tmp_path / "a b"
    tmp_path.mkdir()
    begun = Journal.open(tmp_path, PLAN)
    begun.keep(PLAN)
    before = scripts.files(PLAN) | {"local-0/serve.sh": "before", "more": "x"}
    writer.write(before, begun.folder / "bundle")
    begun.begin("claim")
    begun.set("up")
    end = f"kimi-nb down '{begun.folder}'"
    said = refused(sites, tmp_path)
    assert (
        said == f"{NAME} on local is up with other scripts (local-0/serve.sh). End it first: {end}"
    )
    for name in ("local-1/serve.sh", "local-1/node.env", "local-0/node.env"):
        (begun.folder / "bundle" / name).write_text("before")
    said = refused(sites, tmp_path)
    first = "local-0/node.env, local-0/serve.sh, local-1/node.env"
    assert f"with other scripts ({first}, ...). End" in said
    (begun.folder / "bundle" / "local-1/serve.sh").write_text(
        scripts.files(PLAN)["local-1/serve.sh"]
    )
    assert f"with other scripts ({first}). End" in refused(sites, tmp_path)
    # An address in common is enough for the same site.
    moved = at(PLAN, "127.0.0.9", "127.0.0.2")
    assert "with other scripts" in refused(sites, tmp_path, moved)
    moved = at(PLAN, "127.0.0.9", "127.0.0.9")
    assert refused(sites, tmp_path, moved) == (
        f"two sites have the name local: {NAME} is up on 127.0.0.1, 127.0.0.2, and this site file "
        "has 127.0.0.9. Give each site file a name of its own (name:), which is what --confirm "
        f"asks for; or end the other first: {end}"
    )
    # No node was claimed yet: they are replaced.
    begun.begun_steps.clear()
    begun.begin("reach")
    assert lifecycle.up(PLAN, tmp_path, confirm=SITE).result.ok
    assert writer.read(begun.folder / "bundle") == scripts.files(PLAN)


def test_of_many_addresses_the_first_are_told(tmp_path, monkeypatch):
    begun = Journal.open(tmp_path, PLAN)
    begun.begin("claim")
    many = dataclasses.replace(PLAN, engines=PLAN.engines * 3)
    monkeypatch.setattr(
        Journal, "kept_plan", lambda self: at(many, *[f"10.0.0.{n}" for n in range(6)])
    )
    with pytest.raises(ParameterError) as caught:
        lifecycle._check_same(begun, at(many, *[f"10.0.1.{n}" for n in range(6)]), {"a": "b"})
    said = str(caught.value)
    assert "is new on 10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3, and this" in said
    assert "file has 10.0.1.0, 10.0.1.1, 10.0.1.2, 10.0.1.3. Give" in said


def test_a_preview_leaves_the_record_as_it_is(sites, tmp_path):
    sites.site.preview = lambda: (Change(N0, "x"),)
    sites.site.diff = lambda: "diff"
    begun = Journal.open(tmp_path, PLAN)
    begun.begin("claim")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    made = lifecycle.preview(PLAN, tmp_path, checksums=True, download=True, leave_host=True)
    assert made == ([Change(N0, "x")], "diff") and type(made[0]) is list
    ((plan, journal, more),) = sites.asked
    assert plan is PLAN and journal.run == begun.run and not journal.folder.exists()
    assert tmp_path not in journal.folder.parents
    flags = {"checksums": True, "download": True, "leave_host": True}
    assert more == {**flags, "earlier": [begun.folder]}
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    sites.site.diff = lambda: str(writer.read(sites.asked[-1][1].folder / "bundle") == scripts.files(PLAN))  # fmt: skip
    assert lifecycle.preview(PLAN, tmp_path)[1] == "True"
    assert sites.asked[1][2] == {**dict.fromkeys(flags, False), "earlier": [begun.folder]}
    lifecycle.preview(PLAN, tmp_path / "new")
    assert (sites.asked[2][1].plan, sites.asked[2][2]["earlier"]) == (NAME, [])
    with pytest.raises(ParameterError, match="the example's addresses"):
        lifecycle.preview(at(PLAN, "192.0.2.1", "127.0.0.1"), tmp_path)
    assert len(sites.asked) == 3


# The end --------------------------------------------------------------------------------------


def test_the_end_is_written_down_and_told(sites, journal):
    journal.begin("claim")
    journal.set("failed", "weights")
    stale = dataclasses.replace(journal, state="down", run="other")
    both = (Change(N0, "engines: stopped"), Change(N1, "engines: stopped"))
    made = Outcome(both, (Change(N0, "slow"),))
    sites.site.down = lambda: made
    said = []
    assert lifecycle.down(stale, say=said.append) == made
    assert said == ["local-0, local-1: engines: stopped", "local-0: slow"]
    ((plan, before, more),) = sites.asked
    assert (before.run, before.state, more) == (journal.run, "failed", {})
    assert plan.as_json() == PLAN.as_json() and sites.closed == 1
    after = Journal.read(journal.folder)
    assert (after.state, after.stopped_at, after.begun_steps) == ("down", "", [])
    assert entries(journal.folder) == [
        {
            "stage": "down", "run": journal.run, "by": journals.holder(), "plan": NAME,
            "site": SITE, "failed": [],
            "changed": [{"node": one.node, "what": one.what} for one in both],
        }
    ]  # fmt: skip
    assert lifecycle.down(journal) == made


def test_an_end_that_failed(sites, journal):
    changes = (Change(N0, "engines: stopped"),)

    def down():
        raise StepFailed("down", [FULL], Outcome(changes))

    sites.site.down = down
    for before, after, stopped in (("up", "failed", "down"), ("down", "down", "")):
        journal.set(before)
        with pytest.raises(StepFailed):
            lifecycle.down(journal)
        now = Journal.read(journal.folder)
        assert (now.state, now.stopped_at) == (after, stopped)
    first, second = entries(journal.folder)
    assert first == second == {
        "stage": "down", "run": journal.run, "by": journals.holder(), "plan": NAME, "site": SITE,
        "changed": [{"node": N0, "what": "engines: stopped"}], "failed": [FULL.as_dict()],
    }  # fmt: skip


def test_nobody_ends_what_another_process_works_on(sites, journal):
    journal.set("up")
    with (
        journals.alone(journal.folder.parent.parent),
        pytest.raises(KimiError, match="another process"),
    ):
        lifecycle.down(journal)
    assert sites.asked == []


def test_a_service_is_stopped_once_and_knows_it(sites, journal):
    calls = []

    def down() -> Outcome:
        calls.append("down")
        if len(calls) == 1:
            raise StepFailed("down", [FULL])
        return Outcome()

    sites.site.down = down
    journal.set("up")
    made = lifecycle.Up(journal, result(), PLAN)
    assert made.up
    with pytest.raises(StepFailed):
        made.stop()
    assert not made.up and made.journal.state == "failed"
    for _ in range(2):
        assert made.stop() is made.result and not made.up
    assert calls == ["down", "down"] and made.journal.state == "down"


# Its state ------------------------------------------------------------------------------------


def test_the_state_of_what_is_up(sites, journal, monkeypatch):
    journal.set("up")
    queue = Table("queue", ("a",), ())
    sites.site.queue = lambda: queue
    sites.site.states = [
        EngineState("mixed0-rank0", N0, 0, 8000, "ready"),
        EngineState("mixed0-rank1", N1, 1, None, "starting", "ERROR x"),
        EngineState("store-master", N0, None, 50051, "ready", mark="M"),
    ]
    monkeypatch.setattr(first_failure, "of_logs", None)
    states, tables = lifecycle.status(journal)
    assert states == sites.site.states and type(states) is list
    shown, last = tables
    assert last is queue and sites.asked[0][1].run == journal.run
    assert sites.asked[0][0].as_json() == PLAN.as_json()
    assert shown.title == f"M: {NAME} on {SITE}, up: 1 of 2 engines ready"
    assert shown.headings == ("node", "engine", "rank", "port", "state", "last error")
    assert shown.rows == (
        (N0, "mixed0-rank0", "0", "8000", "ready", ""),
        (N1, "mixed0-rank1", "1", "", "starting", "ERROR x"),
        (N0, "store-master", "", "50051", "ready", ""),
    )
    # An engine has ended: the logs say why.
    seen = []
    monkeypatch.setattr(first_failure, "of_logs", lambda *given: seen.append(given) or FULL)
    sites.site.states[0] = EngineState("mixed0-rank0", N0, 0, 8000, "ended 1")
    _, tables = lifecycle.status(journal)
    assert seen == [([], MOVED, "while serving")]
    assert [one.title for one in tables][1:] == ["The first failure", "queue"]


def test_the_state_of_what_is_down_asks_nobody(sites, journal):
    def never():
        raise AssertionError

    sites.site.status = sites.site.queue = never
    journal.set("down")
    states, (shown,) = lifecycle.status(journal)
    assert states == [
        EngineState("mixed0-rank0", N0, 0, 8088, "down"),
        EngineState("mixed0-rank1", N1, 1, None, "down"),
    ]
    assert shown.title == f"{NAME} on {SITE}, down: 0 of 2 engines ready"


def test_the_state_of_what_failed_names_where_and_why(sites, journal, monkeypatch):
    monkeypatch.setattr(first_failure, "of_logs", None)
    sites.site.states = [EngineState("mixed0-rank0", N0, 0, 8000, "ended 1")]
    evidence.record(journal.folder, "deploy", step="x", failed=[])
    evidence.record(journal.folder, "deploy", step="weights", failed=[FULL.as_dict()])
    journal.set("failed", "weights")
    _, (shown, first) = lifecycle.status(journal)
    assert shown.title == f"{NAME} on {SITE}, failed at weights: 0 of 1 engines ready"
    assert first == Table(
        "The first failure",
        ("what", "is"),
        (
            ("node", N1),
            ("cause", "the disk is full"),
            ("seen", "node.sh weights"),
            ("next", "Free some space."),
            ("start again", "kimi-nb up, with the same words and --resume"),
        ),
    )
    logs = journal.folder / "logs" / N0
    logs.mkdir(parents=True)
    (logs / "notes.txt").write_text("")
    rank = Diagnosis("k", N1, 0, "died", "line", "")
    assert [name for name, _ in lifecycle._first(rank, journal).rows] == [
        "node", "rank", "cause", "seen", "start again",
    ]  # fmt: skip
    (logs / "engines.log").write_text("")
    rows = lifecycle._first(rank, journal).rows
    assert rows[1] == ("rank", 0) and rows[4] == ("all signs", f"kimi-nb doctor {journal.folder}")


@pytest.mark.parametrize(
    ("stage", "facts", "cause"),
    [
        ("deploy", {"failed": [FULL.as_dict()]}, "the disk is full"),
        ("deploy", {"failed": [{"cause": "KeyboardInterrupt"}]}, "it was interrupted at start"),
        ("deploy", {"failed": [{"cause": "ValueError"}]}, "it ended at start"),
        ("deploy", {"failed": []}, None),
        ("deploy", {}, None),
        ("down", {"failed": [FULL.as_dict()]}, None),
    ],
)
def test_the_failure_that_is_on_disk(tmp_path, stage, facts, cause):
    journal = Journal.open(tmp_path, PLAN)
    assert lifecycle._recorded(journal) is None
    for _ in range(2):
        evidence.record(journal.folder, "deploy", step="before", failed=[{"cause": "OSError"}])
    evidence.record(journal.folder, stage, step="start", **facts)
    found = lifecycle._recorded(journal)
    assert (found and found.cause) == cause
    if cause == "it ended at start":
        assert found == Diagnosis("interrupted", "here", None, cause, "ValueError", "")


def test_engines_in_one_state_are_one_row():
    states = [
        EngineState("e0", "a", 0, 1, "ended", "pid 41 died"),
        EngineState("e1", "a", 1, 2, "ended", "pid 7 died"),
        EngineState("e2", "a", 2, 3, "ended", "pid 8 lives"),
        EngineState("e3", "b", 3, None, "ended", "pid 8 lives"),
        EngineState("e4", "b", 4, None, "ready", "pid 8 lives"),
        EngineState("e5", "b", 5, None, "ready", "pid 8 lives"),
    ]
    assert lifecycle._engines("t", states).rows == (
        ("a", "e0 to e1", "0 to 1", "1 to 2", "ended", "pid 41 died"),
        ("a", "e2", "2", "3", "ended", "pid 8 lives"),
        ("b", "e3", "3", "", "ended", "pid 8 lives"),
        ("b", "e4 to e5", "4 to 5", "", "ready", "pid 8 lives"),
    )
    assert lifecycle._words(("a", 1)) == "a, 1" and lifecycle._words({"a": 1, "b": 2}) == "a 1, b 2"
    assert lifecycle._words(3) == 3
