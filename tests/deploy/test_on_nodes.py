"""A deployment on nodes that answer by a table: who is asked what, in which order, and what is told."""

from __future__ import annotations

import base64
import dataclasses
import types

import pytest
from deploy.answering_nodes import HOLDER, RUN, AnsweringNodes, bundle, link, log, values

from kimi_nb.deploy import on_nodes
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.node_answers import Line
from kimi_nb.deploy.on_nodes import OnNodes
from kimi_nb.deploy.steps import Change, EngineState, Outcome, StepFailed
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan import build
from kimi_nb.plan.spec import Store
from kimi_nb.service import http_client, probe
from kimi_nb.service.http_client import Fault, Reply

# Four nodes: a3-0 and a3-1 are a group of prefill each, a3-2 and a3-3 one of decode.
PLAN = build.plan("k2.5", "a3", "pd")
N0, N1, N2, N3 = PLAN.nodes
CHECK = "look claim dry prepare engine weights push start"
LOST = "no answer: the connection ended"
UNREACHED = "Could not connect (timed out)"


def on(*names: str, verbs: str) -> dict[str, str]:
    return dict.fromkeys(names, verbs)


def every(verbs: str) -> dict[str, str]:
    return on(*PLAN.nodes, verbs=verbs)


def first_ranks(plan=PLAN):
    """The plan with the first engine of each node only."""
    return dataclasses.replace(plan, engines=tuple(plan.of(node)[0] for node in plan.nodes))


@pytest.fixture
def site(tmp_path):
    """Returns a deployment and its nodes."""

    def made(plan=PLAN, unreachable=None, **more) -> tuple[OnNodes, AnsweringNodes]:
        nodes = AnsweringNodes(unreachable)
        folder = tmp_path / "bundle"
        if not folder.exists():
            bundle(folder, PLAN.nodes)
        return OnNodes(plan, folder, tmp_path, RUN, HOLDER, lambda: nodes, **more), nodes

    return made


def failure(call) -> StepFailed:
    with pytest.raises(StepFailed) as caught:
        call()
    return caught.value


def told(error: StepFailed) -> list[tuple[str, str, str]]:
    return [(one.kind, one.node, one.cause) for one in error.failed]


# What it is -----------------------------------------------------------------------------------


def test_the_steps_and_which_are_repeated(site):
    target, _ = site()
    assert [(one.name, one.title, one.always) for one in target.steps] == [
        ("reach", "reach every node", True),
        ("claim", "take the nodes for this run, and look at each", True),
        ("prepare", "settings of the host", False),
        ("engine", "the engine's image", False),
        ("weights", "the weights", False),
        ("start", "the scripts, and start the engines", False),
    ]
    assert site(download=True)[0].steps[4].title == (
        "download the weights that a node lacks; how far it is: /root/kimi/weights-*.log on the node"
    )
    assert (target.every, target.url, target.after, target.queue()) == (1.0, PLAN.url, (), None)
    assert target.plan is target.serving() is PLAN and target.log_folder == target.root / "logs"


def test_nodes_are_reached_once_and_when_somebody_asks(tmp_path):
    made = []

    def connect():
        made.append(AnsweringNodes())
        return made[-1]

    target = OnNodes(PLAN, tmp_path, tmp_path, RUN, HOLDER, connect)
    target.close()
    assert made == []
    assert target.nodes is target.nodes
    target.close()
    assert [one.closed for one in made] == [1]


def test_what_a_call_carries(site):
    plain = {"CHECKSUMS": "", "LEAVE_HOST": "", "DOWNLOAD": "", "DRY": "", "SEEN": ""}
    said = values(site()[0].text(N1, ["weights"]))
    assert said | plain | {"RUN": "r1", "HOLDER": "me@here"} == said and "TOKEN" not in said
    full = site(secrets={"TOKEN": "s3"}, checksums=True, download=True, leave_host=True)[0]
    said = values(full.text(N1, ["weights"], dry=True, seen="a.log 5"))
    asked = {**dict.fromkeys(plain, "1"), "SEEN": "a.log 5", "TOKEN": "s3"}
    assert said | asked == said
    (full._files / N1 / "edit_config.py").write_text("of a3-1 alone")
    assert "of a3-1 alone" in full.text(N1, ["weights"])
    assert "of a3-1 alone" not in full.text(N0, ["weights"])
    assert "of a3-1 alone" not in full.text(N1, ["state"])


# Reaching nodes -------------------------------------------------------------------------------


def test_nodes_that_cannot_be_reached_are_all_named_and_nobody_is_asked(site):
    target, nodes = site(unreachable={N3: UNREACHED, N1: "key of N1: Authentication failed"})
    error = failure(target.steps[0].run)
    assert (error.step, error.outcome) == ("reach", Outcome(facts={"reached": [N0, N2]}))
    first, second = error.failed
    assert first == Diagnosis(
        "unreachable",
        N1,
        None,
        "cannot be reached: key of N1: Authentication failed",
        "ssh 192.0.2.12: key of N1: Authentication failed",
        "The node does not take this key: site file, ssh.user and ssh.key_file; or ssh-add the "
        "right one.",
    )
    assert (second.node, second.rank, second.kind) == (N3, None, "unreachable")
    assert second.cause == "cannot be reached: timed out"
    assert second.evidence == "ssh 192.0.2.14: timed out"
    assert second.help.endswith("other nodes answered.")
    assert nodes.asked == []
    gone = dict.fromkeys(PLAN.nodes, UNREACHED)
    nobody = failure(site(first_ranks(), unreachable=gone)[0].reach)
    assert "no node answered" in nobody.failed[0].help
    assert nobody.outcome.facts == {"reached": []}


def test_the_network_is_looked_at_before_anything_is_changed(site):
    target, nodes = site()
    assert target.reach() == Outcome(facts={"reached": [N0, N1, N2, N3]})
    assert nodes.asked == [("look", every(what)) for what in ("interface", "address", "ping")]
    for text in nodes.texts[2].values():  # one device of each other node
        assert text.count("hccn_tool -i ") == 3
    local, nodes = site(dataclasses.replace(PLAN, transport="local"))
    assert local.reach().warnings == () and nodes.asked == [("look", every("interface"))]


def wired(nics: dict[str, str], shared: str | None, env: dict[str, str]):
    """The plan on nodes with these interfaces, with engines that have these variables."""
    request = PLAN.request
    there = request.site.model_copy(
        update={
            "nic": shared,
            "nodes": tuple(
                node.model_copy(update={"nic": nics.get(node.name)}) for node in request.site.nodes
            ),
        }
    )
    return dataclasses.replace(
        first_ranks(),
        request=dataclasses.replace(request, site=there),
        engines=tuple(
            dataclasses.replace(engine, env={"X_SOCKET_IFNAME": env[engine.node], "OTHER": "e1"})
            for engine in first_ranks().engines
        ),
        transport="local",
    )


def test_an_interface_is_looked_for_where_the_engines_use_it(site):
    plan = wired({N1: "lo:1"}, "e1", {N0: "e1", N1: "lo:1", N2: "auto", N3: "nosuch0"})
    target, nodes = site(plan)
    target.reach()
    ((_, asked),) = nodes.asked
    assert list(asked) == [N0, N1]
    nobody, nodes = site(wired({}, "e1", dict.fromkeys(PLAN.nodes, "auto")))
    nobody.reach()
    assert nodes.asked == []
    # Real bash: the loopback is on every machine, and its name goes to no other.
    target, nodes = site(wired({N1: "lo:1"}, "nosuch0", {**dict.fromkeys(PLAN.nodes, "nosuch0"), N1: "lo:1"}))  # fmt: skip
    target.reach()
    real = LocalNodes().look({node: nodes.texts[0][node] for node in (N0, N1)})
    assert real[N1].lines == () and not real[N1].error
    ((kind, thing, text),) = [dataclasses.astuple(line) for line in real[N0].lines]
    assert (kind, thing) == ("fail", "interface")
    assert text.startswith("nosuch0 is not there; this node has ") and "lo" in text.split()


def test_an_interface_that_is_missing_ends_it_before_the_links(site):
    target, nodes = site()
    nodes.says[N2, "interface"] = ["fail interface e1 is not there", "warn interface slow"]
    error = failure(target.reach)
    assert error.step == "reach" and error.failed == (
        Diagnosis(
            "reach-interface",
            N2,
            None,
            "the network: interface: e1 is not there",
            "node.sh reach",
            "Name one of its interfaces in the site file: nic: for every node, or nic: beside the "
            "address of a3-2.",
        ),
    )
    assert nodes.asked == [("look", every("interface"))]


def test_a_link_that_is_down_ends_it_and_one_that_was_not_tried_is_told(site):
    target, nodes = site()
    nodes.says[N1, "address"] = [link(0, "no address")]
    nodes.says[N2, "ping"] = [link(at, "0% packet loss") for at in (0, 1)]
    warned = target.reach().warnings
    assert {one.node for one in warned} == {N0, N1, N2, N3}
    assert all(one.what.startswith("link not tried: npu-ping") for one in warned)
    nodes.says[N2, "ping"] = [link(0, "0% packet loss"), link(1, "100% packet loss")]
    error = failure(target.reach)
    assert (error.step, [(one.kind, one.node) for one in error.failed]) == (
        "reach",
        [("link-down", N2)],
    )


# Claims and the check -------------------------------------------------------------------------


def test_every_node_is_claimed_and_checked_in_one_call(site):
    target, nodes = site()
    nodes.says[N0, "claim"] = ["changed claim taken"]
    nodes.says[N1, "claim"] = ["same claim held"]
    nodes.says[N1, "engine"] = ["warn docker old", "change image pull it"]
    assert target.steps[1].run() == Outcome(
        (Change(N0, "claim: taken"),),
        (Change(N1, "docker: old"),),
        {N0: 0, N1: 0, N2: 0, N3: 0},
    )
    assert nodes.asked == [("claim", every(CHECK))]
    assert not any(target.undone(name) for name in ("start", "engine", "push"))
    nodes.says[N3, "start"] = ["same engines run"]
    target._claim()
    assert not target.undone("start")
    nodes.says[N3, "start"] = ["change engines start them"]
    target._claim()
    assert target.undone("start") and not target.undone("engine")


def test_what_was_claimed_is_given_back_where_anything_is_wrong(site):
    target, nodes = site()
    nodes.says = {
        (N0, "claim"): ["changed claim taken"],
        (N0, "engine"): ["fail image none"],
        (N1, "look"): ["fail disk full"],
        (N1, "claim"): ["changed claim taken"],
        (N2, "look"): ["fail port 8000 is taken"],
        (N2, "claim"): ["fail claim run r0 has it"],
        (N2, "start"): ["fail port 8000 is taken"],
        (N3, "claim"): ["same claim held by this run"],
        (N0, "release"): ["changed claim given back"],
        (N1, "release"): ["fail claim read-only"],
    }
    error = failure(target.steps[1].run)
    assert nodes.asked == [("claim", every(CHECK)), ("release", on(N0, N1, verbs="release"))]
    assert error.step == "look" and told(error) == [
        ("look-disk", N1, "look: disk: full"),
        ("claim-claim", N2, "take the nodes for this run: claim: run r0 has it"),
        ("engine-image", N0, "the engine's image: image: none"),
    ]
    assert error.outcome == Outcome((Change(N1, "claim: perhaps held: an answer was lost"),))
    assert error.__cause__ is None and error.__suppress_context__


def test_a_lost_answer_may_hold_a_claim(site):
    target, nodes = site()
    for node in (N0, N1, N2):
        nodes.says[node, "claim"] = ["changed claim taken"]
    nodes.silent = {(N2, "prepare"): LOST, (N3, "claim"): LOST}
    nodes.says |= {(N0, "release"): ["changed claim x"], (N1, "release"): ["same claim x"]}
    nodes.says[N2, "release"] = ["changed claim x"]
    error = failure(target._claim)
    assert nodes.asked[1:] == [("release", on(N0, N1, N2, verbs="release"))]
    assert error.step == "look" and told(error) == [
        ("no-answer", N2, "gave no answer: the connection ended"),
        ("no-answer", N3, "gave no answer: the connection ended"),
    ]
    assert error.failed[0].rank is None and error.failed[0].evidence == "node.sh"
    assert error.failed[0].help.startswith("Log in on a3-2 and look")
    assert [one.node for one in error.outcome.changes] == [N3]


def test_nothing_is_given_back_where_nothing_was_taken(site):
    target, nodes = site()
    nodes.says[N1, "claim"] = ["fail claim run r0 has it"]
    error = failure(target._claim)
    assert nodes.asked == [("claim", every(CHECK))] and error.outcome == Outcome()
    assert error.step == "claim"


def test_a_preview_changes_nothing_and_is_in_the_order_of_the_steps(site):
    target, nodes = site()
    nodes.says = {
        (N0, "push"): ["change scripts new"],
        (N1, "claim"): ["change claim take the node", "same x y"],
        (N2, "claim"): ["change claim take the node", "changed x y"],
        (N3, "look"): ["change nothing at all"],
    }
    assert target.preview() == [
        Change(N1, "claim: take the node"),
        Change(N2, "claim: take the node"),
        Change(N0, "scripts: new"),
    ]
    looks = ("interface", "address", "ping", "look dry claim prepare engine weights push start")
    assert nodes.asked == [("look", every(verbs)) for verbs in looks]
    nodes.says[N0, "weights"] = ["fail weights none"]
    error = failure(target.preview)
    assert error.step == "weights" and told(error) == [
        ("weights-weights", N0, "the weights: weights: none")
    ]


def test_the_scripts_of_the_nodes_beside_those_of_the_plan(site):
    def sent(name: str, data: bytes) -> str:
        return f"change file {name} {base64.b64encode(data).decode()}"

    target, nodes = site()
    assert target.diff() == ""
    nodes.says[N0, "push"] = [
        "change scripts new",
        "change file ../up no",
        sent("gone.sh", b"x"),
        sent("serve.sh", b"\xff\n"),
    ]
    nodes.says[N1, "push"] = [sent("serve.sh", b"same\n")]
    for node, text in ((N0, "new é\n"), (N1, "same\n")):
        (target._files / node / "serve.sh").write_text(text, encoding="utf-8")
    target.preview()
    assert target.diff().splitlines() == [
        "--- before/a3-0/serve.sh",
        "+++ after/a3-0/serve.sh",
        "@@ -1 +1 @@",
        "-\ufffd",
        "+new é",
    ]


# Steps ----------------------------------------------------------------------------------------


@pytest.fixture
def checked(site):
    """Returns a deployment whose check has found these things to change."""

    def made(*changes: tuple[str, str], plan=PLAN, **more):
        target, nodes = site(plan, **more)
        for node, verb in changes:
            nodes.says[node, verb] = ["change x y"]
        target._claim()
        nodes.says.clear()
        nodes.asked.clear()
        return target, nodes, {step.name: step.run for step in target.steps}

    return made


def test_only_nodes_with_something_to_change_are_changed(checked):
    _, nodes, run = checked((N1, "weights"), (N3, "weights"), (N0, "engine"))
    assert run["prepare"]() == Outcome() and nodes.asked == []
    nodes.says = {
        (N1, "weights"): ["changed weights copied", "same config good", "warn disk 90 %"],
        (N3, "weights"): ["same weights there"],
    }
    assert run["weights"]() == Outcome(
        (Change(N1, "weights: copied"),), (Change(N1, "disk: 90 %"),), {N1: 0, N3: 0}
    )
    assert nodes.asked == [("weights", on(N1, N3, verbs="weights"))]


def test_a_step_that_failed_says_what_it_has_done(checked):
    _, nodes, run = checked(*[(node, "weights") for node in PLAN.nodes])
    nodes.says = {
        (N0, "weights"): ["changed config edited", "fail weights 3 files are missing"],
        (N1, "weights"): ["changed weights copied"],
        (N3, ""): ["fail login as nobody"],
    }
    nodes.silent[N2, "weights"] = LOST
    error = failure(run["weights"])
    assert error.step == "weights" and error.outcome == Outcome(
        (Change(N0, "config: edited"), Change(N1, "weights: copied")),
        (),
        {N0: 1, N1: 0, N2: 1, N3: 1},
    )
    assert told(error) == [
        ("weights-weights", N0, "the weights: weights: 3 files are missing"),
        ("login", N3, ": login: as nobody"),
        ("no-answer", N2, "gave no answer: the connection ended"),
    ]
    assert error.failed[0].evidence == "node.sh weights"
    assert "kimi-nb up --download fetches" in error.failed[0].help


def test_a_group_starts_as_a_whole_and_its_other_nodes_are_stopped_first(checked, tmp_path):
    """The scripts of a3-0 changed, an engine of a3-2 has ended; its group is on a3-3 too."""
    for node in PLAN.nodes:
        (tmp_path / "logs" / node).mkdir(parents=True)
        (tmp_path / "logs" / node / "rank_0.log").write_text("before\n")
    target, nodes, run = checked((N2, "start"), (N0, "push"))
    nodes.says = {
        (N0, "state"): ["fact router ended 1", "fact engines runs"],
        (N2, "state"): ["fact engines strange", "fact engines ended 137", "fact memory 5"],
        (N2, "start"): ["changed engines started"],
        (N3, "start"): ["changed engines started", "warn port reused"],
    }
    assert run["start"]() == Outcome(
        (Change(N2, "engines: started"), Change(N3, "engines: started")),
        (
            Change(N2, "engines: had ended with exit code 137 (SIGKILL)"),
            Change(N3, "port: reused"),
        ),
        {N0: 0, N2: 0, N3: 0},
    )
    assert nodes.asked == [
        ("look", on(N0, N2, verbs="state")),
        ("stop", {N3: "stop"}),
        ("start", on(N0, N2, N3, verbs="push start")),
    ]
    left = {path.parent.name: path.name for path in (tmp_path / "logs").glob("*/rank_0*")}
    aside = "rank_0.1.before"
    assert left == {N0: aside, N1: "rank_0.log", N2: aside, N3: aside}
    assert target.logs.codes == {}


def test_no_part_of_a_group_starts_beside_what_could_not_be_stopped(checked):
    """Its engines would wait for each other until their time is up."""
    target, nodes, run = checked((N2, "start"), (N0, "start"))
    nodes.says[N3, "stop"] = ["changed router stopped", "fail engines still there: processes 7"]
    error = failure(run["start"])
    assert [how for how, _ in nodes.asked] == ["look", "stop"]
    assert error.step == "start" and told(error) == [
        ("stop-engines", N3, "stop: engines: still there: processes 7")
    ]
    assert error.outcome.changes == (Change(N3, "router: stopped"),)
    nodes.says.clear()
    nodes.asked.clear()
    nodes.silent[N3, "stop"] = LOST
    assert [one.kind for one in failure(run["start"]).failed] == ["no-answer"]
    assert [how for how, _ in nodes.asked] == ["look", "stop"] and target.undone("start")


def test_no_other_group_is_stopped(checked):
    _, nodes, run = checked((N0, "start"), (N2, "start"), (N3, "start"))
    nodes.says[N2, "start"] = ["fail engines x"]
    error = failure(run["start"])
    assert error.step == "start" and told(error)[0][0] == "start-engines"
    assert [how for how, _ in nodes.asked] == ["look", "start"]


def test_a_failure_of_the_scripts_is_one_of_the_scripts(checked):
    _, nodes, run = checked((N0, "push"))
    nodes.says[N0, "push"] = ["fail scripts No space left on device"]
    error = failure(run["start"])
    assert error.step == "start" and told(error) == [
        ("push-scripts", N0, "the scripts: scripts: No space left on device")
    ]
    assert error.failed[0].help.startswith("Free some space in the site's paths.work on a3-0")


def test_the_front_door_opens_on_its_node(site):
    alone, nodes = site(dataclasses.replace(PLAN, router=None))
    assert alone.open_door() == Outcome() and nodes.asked == []
    door = dataclasses.replace(PLAN.router, node=N1)
    target, nodes = site(dataclasses.replace(PLAN, router=door))
    nodes.says[N1, "open"] = ["changed router started"]
    assert target.open_door() == Outcome((Change(N1, "router: started"),), (), {N1: 0})
    assert nodes.asked == [("open", {N1: "open"})]
    nodes.says[N1, "open"] = ["fail router no such program"]
    error = failure(target.open_door)
    assert (error.step, told(error)) == (
        "open",
        [("open-router", N1, "open: router: no such program")],
    )


# State ----------------------------------------------------------------------------------------


def test_a_poll_asks_those_that_were_reached_for_what_is_new(site, tmp_path):
    target, nodes = site(unreachable={N1: UNREACHED})
    (tmp_path / "logs" / N2).mkdir(parents=True)
    (tmp_path / "logs" / N2 / "rank_16.log").write_text("12345")
    assert set(target.poll()) == {N0, N2, N3}
    assert nodes.asked == [("look", on(N0, N2, N3, verbs="state tails"))]
    assert [values(text)["SEEN"] for text in nodes.texts[0].values()] == ["", "rank_16.log 5", ""]
    target.poll(("tails",))
    assert nodes.asked[-1] == ("look", on(N0, N2, N3, verbs="tails"))


def test_what_has_ended_and_what_memory_runs_take(site):
    target, nodes = site()
    assert target.memory_mb() == 0.0 and target.ended() == {}
    nodes.says[N0, "state"] = ["fact memory 10240000", "fact engines ended 3"]
    nodes.says[N1, "state"] = ["fact memory 1300"]
    target.logs.read(now=True)
    assert target.memory_mb() == 10001.3  # 10000 + 1.27
    ended = target.ended()
    assert ended == {f"{N0} engines": 3} and ended is not target.logs.codes


def test_the_logs_are_told_as_they_grow(site, monkeypatch):
    target, nodes = site(unreachable={N3: UNREACHED})
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 8

    monkeypatch.setattr(on_nodes, "time", types.SimpleNamespace(sleep=pause))
    rounds = iter(range(8))
    nodes.silent[N1, "state"] = LOST

    def stop() -> bool:
        at = next(rounds)
        nodes.says.clear()
        if at == 0:
            nodes.says[N0, "tails"] = [log("rank_0.log", 0, "one\ntwo\n")]
        if at == 1:
            nodes.says[N0, "tails"] = [log("rank_0.log", 8, "three\n"), "fact memory much"]
        if at == 2:
            nodes.says[N0, "tails"] = ["fact memory more"]
            nodes.says[N2, "tails"] = [log("engines.log", 0, "four\n"), "fact engines hm"]
        return at == 7

    source = f"{N0} rank_0"
    strange = "sent a line that is no answer: "
    assert list(target.follow(stop)) == [
        (N3, "cannot be reached: timed out"),
        (source, "one"),
        (source, "two"),
        (source, "three"),
        (N0, f"{strange}memory 'much': a number of KB is wanted"),
        (f"{N2} engines", "four"),
        (N2, f"{strange}engines 'hm': a state is wanted as runs, or ended CODE"),
        (N1, "gives no answer any more"),
    ]
    assert pauses == [1.0] * 7 and next(rounds, None) is None


def test_following_ends_with_what_came_last(site):
    target, nodes = site()
    nodes.says[N2, "tails"] = [log("engines.log", 0, "last\n")]
    assert list(target.follow(lambda: True)) == [(f"{N2} engines", "last")]


@pytest.fixture
def asked(monkeypatch):
    """Completions: what was asked of which engine, and what it answers."""
    made = types.SimpleNamespace(listens=[], chats=[], deaf=set(), replies={})

    def listens(url, seconds):
        made.listens.append((url, seconds))
        return url not in made.deaf

    def chat(where, model, seconds, **more):
        made.chats.append((where.engine, model, seconds, more))
        return made.replies.get(where.engine, Reply(500, "no", 0.1))

    monkeypatch.setattr(http_client, "listens", listens)
    monkeypatch.setattr(probe, "chat", chat)
    return made


GOOD = Reply(200, '{"choices": [{"message": {"content": "yes"}}]}', 0.1, mark="REHEARSAL")


def test_the_state_of_each_engine(site, asked, tmp_path):
    plan = dataclasses.replace(first_ranks(), secrets={"VLLM_API_KEY": "MY_KEY"})
    target, nodes = site(plan, unreachable={N1: UNREACHED}, secrets={"MY_KEY": "s3"})
    for node in (N0, N2):
        nodes.says[node, "state"] = ["fact engines runs"]
    nodes.says[N3, "state"] = ["fact engines ended 9"]
    asked.replies["prefill0-rank0"] = GOOD
    asked.deaf.add("http://192.0.2.13:7100")
    assert target.status() == [
        EngineState("prefill0-rank0", N0, 0, 7100, "ready", "", "REHEARSAL"),
        EngineState("prefill1-rank0", N1, 0, 7100, "unreachable"),
        EngineState("decode0-rank0", N2, 0, 7100, "starting"),
        EngineState("decode0-rank16", N3, 16, 7100, "ended 9"),
    ]
    assert asked.listens == [(f"http://192.0.2.1{at}:7100", 5.0) for at in (1, 3)]
    assert asked.chats == [("prefill0-rank0", "kimi_k25", 30.0, {"key": "s3", "max_tokens": 4})]
    assert nodes.asked == [("look", on(N0, N2, N3, verbs="state tails"))]
    # It is that of now, however lately the nodes were asked.
    nodes.says[N2, "state"] = ["fact engines ended 4"]
    assert target.status()[2].state == "ended 4"
    # Before anything runs.
    assert {one.state for one in site(first_ranks())[0].status()} == {"not started"}
    assert len(asked.chats) == 2


def test_an_engine_without_an_api_of_its_own_is_not_asked(site, asked):
    """The second node of a rank of two nodes."""
    head, tail = (
        dataclasses.replace(
            engine,
            role="decode",
            group=0,
            rank=0,
            tp_size=32,
            devices=tuple(range(16)),
            argv=("vllm", "--node-rank", str(at)),
            http_port=None if at else 7100,
        )
        for at, engine in enumerate(first_ranks().engines[2:])
    )
    target, nodes = site(dataclasses.replace(PLAN, engines=(head, tail), router=None))
    for node in (N2, N3):
        nodes.says[node, "state"] = ["fact engines runs"]
    asked.replies["decode0-rank0"] = GOOD
    assert [one.state for one in target.status()] == ["ready", "starting"]
    assert [(engine, more["key"]) for engine, _, _, more in asked.chats] == [("decode0-rank0", "")]


@pytest.mark.parametrize(
    ("reply", "secrets", "error"),
    [
        (Reply(401, "no", 0.1), {}, "asks for a key: 401; export VLLM_API_KEY=... here"),
        (
            Reply(403, "no", 0.1),
            {"VLLM_API_KEY": "B", "OPENAI_API_KEY": "A", "X": "B"},
            "asks for a key: 403; export A, B=... here",
        ),
        (Reply(0, "", 0.1, "floods", fault=Fault.FLOODS), {}, "floods"),
        (Reply(400, "y" * 130, 0.1), {}, f"HTTP 400: {'y' * 120}"),
        (Reply(399, "no", 0.1), {}, ""),
        (Reply(0, "", 0.1, "late", fault=Fault.LATE), {}, ""),
    ],
)  # fmt: skip
def test_why_an_engine_gives_no_completion(site, asked, reply, secrets, error):
    target, nodes = site(dataclasses.replace(first_ranks(), secrets=secrets))
    nodes.says[N0, "state"] = ["fact engines runs"]
    asked.replies["prefill0-rank0"] = reply
    assert target.status()[0] == EngineState("prefill0-rank0", N0, 0, 7100, "starting", error)


def test_the_last_error_of_a_rank_or_else_of_its_node(site, asked):
    target, nodes = site(first_ranks())
    bad = "ERROR number {}\n".format
    nodes.says = {
        (N0, "tails"): [
            log("rank_0.log", 0, bad(1) + bad(2) + "INFO all is well\n"),
            log("engines.log", 0, bad(3)),
        ],
        (N1, "tails"): [
            log("rank_7.log", 0, bad(4)),
            log("engines.log", 0, bad(5) + "INFO x\n"),
            "fact memory much",
        ],
        (N2, "tails"): [log("rank_0.log", 0, "INFO x\n"), log("engines.log", 0, bad(6))],
        (N3, "tails"): [log("rank_7.log", 0, bad(7)), "fact memory much"],
    }
    strange = "memory 'much': a number of KB is wanted"
    assert [one.error for one in target.status()] == [
        "ERROR number 2",
        "ERROR number 5",
        "",
        strange,
    ]


def test_the_parts_of_a_store(site, asked):
    store = Store(
        "mooncake", "distributed", N1, "192.0.2.12", 50051, 9003, 8081, 1, 1, "tcp", (), (), {},
        {N0: {}, N2: {}, N3: {}},
    )  # fmt: skip
    plan = dataclasses.replace(first_ranks(), store=store)
    target, nodes = site(plan, unreachable={N3: UNREACHED})
    nodes.says[N1, "state"] = ["fact store-master runs", "fact store-service runs"]
    nodes.says[N0, "state"] = ["fact store-service ended 4", "fact store-master runs"]
    assert target.status()[4:] == [
        EngineState("store-master", N1, None, 50051, "ready"),
        EngineState("store-service", N0, None, 8081, "ended 4"),
        EngineState("store-service", N2, None, 8081, "not started"),
        EngineState("store-service", N3, None, 8081, "unreachable"),
    ]
    assert [one.state for one in target.status()[:4]] == ["not started"] * 3 + ["unreachable"]
    held = dataclasses.replace(plan, store=dataclasses.replace(store, service_port=None))
    assert site(held)[0].status()[5].port == 0
    assert len(site(first_ranks())[0].status()) == 4


# The end --------------------------------------------------------------------------------------


def test_the_end_stops_everything_and_then_gives_it_back(site, tmp_path):
    target, nodes = site()
    nodes.says = {
        (N0, "tails"): [log("engines.log", 0, "last words\n")],
        (N0, "stop"): ["changed engines stopped", "warn engines slow"],
        (N0, "release"): ["changed claim given back", "warn engines slow"],
        (N1, "stop"): ["same engines nothing runs", "warn files left"],
        (N2, "release"): ["warn engines slow"],
    }
    target.logs.read()  # a moment before
    (tmp_path / "logs" / N0 / "engines.log").unlink()
    nodes.asked.clear()
    assert target.down() == Outcome(
        (Change(N0, "engines: stopped"), Change(N0, "claim: given back")),
        (Change(N0, "engines: slow"), Change(N1, "files: left"), Change(N2, "engines: slow")),
    )
    assert nodes.asked == [
        ("look", every("state tails")),
        ("stop", every("stop")),
        ("release", every("release")),
    ]
    assert (tmp_path / "logs" / N0 / "engines.log").read_text() == "last words\n"


def test_logs_that_cannot_be_kept_keep_nothing_running(site, monkeypatch):
    target, nodes = site()

    def full(now):
        raise OSError(28, "No space left on device", "/run/logs/a3-0/engines.log")

    monkeypatch.setattr(target.logs, "read", full)
    nodes.says = {(N0, "stop"): ["changed engines stopped", "warn engines slow"]}
    unkept = "logs: the last lines are not kept: No space left on device"
    assert target.down() == Outcome(
        (Change(N0, "engines: stopped"),),
        (Change("this machine", unkept), Change(N0, "engines: slow")),
    )
    assert nodes.asked == [("stop", every("stop")), ("release", every("release"))]


def test_a_node_where_something_runs_on_keeps_its_claim(site):
    target, nodes = site(unreachable={N3: UNREACHED})
    nodes.says = {
        (N0, "stop"): ["changed router stopped", "fail engines do not end"],
        (N2, "stop"): ["changed engines stopped"],
        (N2, "release"): ["fail claim read-only"],
    }
    nodes.silent[N1, "stop"] = LOST
    error = failure(target.down)
    assert nodes.asked[1:] == [
        ("stop", on(N0, N1, N2, verbs="stop")),
        ("release", {N2: "release"}),
    ]
    assert error.step == "down" and error.outcome == Outcome(
        (Change(N0, "router: stopped"), Change(N2, "engines: stopped"))
    )
    assert told(error) == [
        ("stop-engines", N0, "stop: engines: do not end"),
        ("no-answer", N1, "gave no answer: the connection ended"),
        ("release-claim", N2, "release: claim: read-only"),
        ("unreachable", N3, "cannot be reached: timed out"),
    ]
    last = error.failed[-1]
    assert (last.rank, last.evidence) == (None, "ssh 192.0.2.14: timed out")
    assert last.help == "What runs there goes on. Run kimi-nb down again when it answers."


def test_an_answer_that_is_lost_at_the_very_end_is_told(site):
    target, nodes = site()
    nodes.silent[N2, "release"] = LOST
    assert told(failure(target.down)) == [("no-answer", N2, "gave no answer: the connection ended")]


@pytest.mark.parametrize(
    ("verb", "line", "kind", "way_out"),
    [
        ("claim", "fail claim x", "claim-claim", "Another run has the node."),
        ("prepare", "fail /etc/hccn.conf x", "prepare-/etc/hccn.conf", "Configure the NPU network of n1"),
        ("prepare", "fail vm.swappiness x", "prepare-vm.swappiness", "Set it on n1 as root"),
        ("push", "fail a/b No space left on device", "push-a/b", "Free some space in the site's paths.work on n1"),
        ("look", "fail  x", "look", ""),
        ("stop", "fail XX x", "stop-XX", ""),
    ],
)  # fmt: skip
def test_what_to_do_about_a_line(site, verb, line, kind, way_out):
    found = site()[0]._diagnosis("n1", verb, Line(*line.split(" ", 2)))
    assert (found.kind, found.node, found.rank) == (kind, "n1", None)
    assert found.help.startswith(way_out) and bool(found.help) is bool(way_out)
    assert found.evidence == f"node.sh {verb}"


def test_a_download_that_failed_is_no_missing_download(site):
    line, other = Line("fail", "weights", "exit code 1"), Line("fail", "room", "exit code 1")
    ways = [site(download=flag)[0]._diagnosis("n1", "weights", line).help for flag in (True, False)]
    assert ways[0].startswith("Mend what is said there") and ways[1].startswith("kimi-nb up --down")
    assert site(download=True)[0]._diagnosis("n1", "weights", other).help.startswith("Free space")
