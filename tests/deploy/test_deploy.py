"""What a deployment is made of, without a site: the node's script, the journal, the weights."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.hosts import checkpoint

from kimi_nb.bundle import node_files, scripts, writer
from kimi_nb.cli import main
from kimi_nb.core import evidence, paths
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.deploy import journal, lifecycle, node_call
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.deploy.on_nodes import OnNodes
from kimi_nb.deploy.steps import EngineState, StepFailed, alike
from kimi_nb.diagnose import doctor
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.notebook import start
from kimi_nb.plan import build
from kimi_nb.service import weights

# Other tests run at the same time, and a run stops whatever bears its name on the machine.
RUN = f"r{os.getpid()}"
ALL = ("look", *node_call.VERBS, "open", "state", "tails", "stop", "release")


class Node:
    """One node of this machine, in a folder of its own; its engine is any command."""

    def __init__(self, root: Path, engine: list[str]) -> None:
        self.root, self.work = root / "files", root / "work"
        plan = build.plan("tiny-llama", "cpu", "dp")
        name = plan.nodes[0]
        self.folder = self.work / plan.name / name
        writer.write(scripts.files(plan), self.root)
        self.files = self.root / name
        (self.files / "serve.sh").write_text(shlex.join(engine) + "\n")
        env = self.files / "node.env"
        env.write_text(env.read_text() + f"WORK={self.work}\nFOLDER={self.folder}\nPORTS=\n")

    def call(self, *verbs: str, run: str = RUN, **more) -> dict[str, list[tuple[str, str]]]:
        """Lines by kind: (thing, text)."""
        text = node_call.text(self.files, verbs, run=run, holder=f"{run}-holder", **more)
        answer = LocalNodes().change({"n": text}, verbs[-1])["n"]
        out: dict[str, list[tuple[str, str]]] = {"error": [("", answer.error)]}
        for line in answer.lines:
            if line.thing != "verb":
                out.setdefault(line.kind, []).append((line.thing, line.text))
        return out


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path, ["sleep", "60"])
    yield made
    made.call("stop", "release")


# The script of a node -----------------------------------------------------------------------


def test_each_call_carries_all_that_it_needs(node):
    for verb in ALL:
        for dry in (True, False):
            text = node_call.text(node.files, [verb], run=RUN, dry=dry)
            assert (
                subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
            )
            done = subprocess.run(
                node_call.READER, input=text, text=True, capture_output=True, check=False
            )
            assert "not found" not in done.stderr and "unbound" not in done.stderr, done.stderr
    assert len(node_call.text(node.files, ["claim"], run="r")) < 6000


def test_the_same_by_hand(node):
    """The file itself, as a person calls it."""

    def call(*words, **env):
        return subprocess.run(
            ["bash", str(node.files / "node.sh"), *words],
            text=True,
            capture_output=True,
            env={**os.environ, **env},
            check=False,
        )

    assert "change\tclaim\ttake the node" in call("claim", DRY="1").stdout
    assert "changed\tclaim\ttaken" in call("claim").stdout
    assert "same\tclaim" in call("claim").stdout
    assert "same\tweights\ttiny-llama" in call("weights").stdout
    assert "changed\tclaim\tgiven back" in call("release").stdout
    assert call("sing").returncode == 2


def test_twice_changes_nothing(node):
    first = node.call("claim", "push", "start")
    assert [thing for thing, _ in first["changed"]] == ["claim", "scripts", "engines"]
    again = node.call("claim", "push", "start")
    assert "changed" not in again and len(again["same"]) == 3
    assert node.call("state")["fact"][1] == ("engines", "runs")
    stopped = node.call("stop", "release")
    assert [thing for thing, _ in stopped["changed"]] == ["engines", "claim"]
    again = node.call("stop", "release")
    assert "changed" not in again and "fail" not in again


def test_dry_changes_nothing(node):
    found = node.call("look", node_call.DRY, *node_call.VERBS)
    assert "changed" not in found and "change" in found
    assert not node.work.exists()


def test_the_claim_comes_first_by_hand(node):
    assert node.call("push")["fail"] == [
        ("claim", "nobody holds the node: the verb claim comes first")
    ]
    assert "fail" not in node.call("claim", "push", "start")


def test_the_front_door_of_this_run_keeps_its_port(node):
    """An engine was killed, and the front door of its node goes on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = node.files / "node.env"
        env.write_text(
            f"{env.read_text()}ADDRESS=127.0.0.1\nPORTS='{port} the front door'\nDOOR=(sleep 60)\n"
        )
        node.call("claim", "push")
        ((thing, text),) = node.call("start")["fail"]
        assert thing == "port" and f"{port}, wanted for the front door" in text
        assert node.call("open")["changed"] == [("router", "started: proxy.sh")]
        assert "fail" not in node.call("start")


def test_what_is_alike_is_told_once():
    def weights(node):
        return Diagnosis("w", node, None, "no weights", f"node.sh on {node}", f"copy to {node}")

    ranks = [Diagnosis("r", "a", rank, "died", "log", "read it") for rank in (1, 2)]
    several, other, *rest = alike([weights("a"), weights("b"), weights("c"), *ranks])
    assert (several.node, several.help) == ("a, b, c", "copy to each node")
    assert [other, *rest] == ranks
    assert alike([weights("a")]) == [weights("a")]


def test_what_nodes_say_of_a_failed_step_fits_a_screen():
    long = [Diagnosis("x", f"n{at}", at, "y" * 60_000, "{\n" * 57, "z" * 60_000) for at in range(9)]
    said = str(StepFailed("down", long))
    assert len(said) < 6000 and said.count("\n") < 50
    assert said.startswith("down: n0, rank 0: yyy") and said.endswith("and 8 more")
    short = [Diagnosis("x", f"n{at}", at, "gone", "nothing", "look") for at in range(5)]
    assert str(StepFailed("down", short)).count("gone") == 5


@pytest.mark.parametrize("text", ["{}", "{}+empty", "{}rc1.dev3+g1a2b3c", "{}.post1"])
def test_the_version_that_the_plan_is_for(node, text):
    told = text.format(_installed(node, text))
    assert ("version", f"vLLM {told}") in node.call("engine")["same"]


@pytest.mark.parametrize("text", ["0.1.0", "{}1", "{}.1", "1{}"])
def test_another_version_is_named_before_anything_starts(node, text):
    own = _installed(node, text)
    told = text.format(own)
    found = node.call("engine")["fail"]
    program = node.root.parent / "engine" / "bin" / "vllm"
    assert found == [("version", f"vLLM {told} is in {program}, and the plan is for {own}")]


def test_an_engine_without_records_is_taken_as_it_is(node):
    _installed(node, "")
    assert "fail" not in node.call("engine")


def test_an_image_of_another_version_is_named(node, tmp_path):
    """The tag is that of the plan, what it holds is not: pulled once, and moved since."""
    own = _installed(node, "9.9.9")
    (tmp_path / "engine" / "bin" / "docker").write_text(
        '#!/bin/bash\n[ "$1" = run ] || exit 0\n'
        '[ "$*" = "run --rm --entrypoint python3 some/image:v1 ${*:6}" ] && echo 9.9.9\n'
    )
    (tmp_path / "engine" / "bin" / "docker").chmod(0o755)
    env = node.files / "node.env"
    env.write_text(f"{env.read_text()}IMAGE=some/image:v1\nPATH={tmp_path}/engine/bin:$PATH\n")
    found = node.call("engine")
    assert found["same"] == [("image", "some/image:v1")]
    assert found["fail"] == [
        ("version", f"vLLM 9.9.9 is in some/image:v1, and the plan is for {own}")
    ]


def _installed(node: Node, text: str) -> str:
    """Put an engine into a folder whose Python tells ``text``; {} is the plan's version."""
    own = build.plan("tiny-llama", "cpu", "dp").vllm_version
    folder = node.root.parent / "engine"
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    line = f"echo {shlex.quote(text.format(own))}" if text else "exit 1"
    python.write_text(f"#!/bin/bash\n{line}\n")
    (folder / "bin" / "vllm").write_text(f"#!{python}\n")
    for program in python.parent.iterdir():
        program.chmod(0o755)
    env = node.files / "node.env"
    env.write_text(f"{env.read_text()}ENGINE={folder}\n")
    return own


def test_of_many_claims_one_is_taken(node):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: node.call("claim", run=f"r{at}"), range(16)))
    assert sum("changed" in one for one in found) == 1
    winner = next(at for at, one in enumerate(found) if "changed" in one)
    held = node.call("claim", run="other")["fail"]
    assert held == [("claim", f"held by r{winner} r{winner}-holder")]
    # Others neither stop nor release what is not theirs.
    assert "warn" in node.call("stop", "release", run="other")
    assert (node.work / "claim").exists()
    node.call("release", run=f"r{winner}")


def test_a_claim_is_never_half_written(node):
    """The disk is full, or the script is killed: nothing is left that holds the node."""
    env = node.files / "node.env"
    kept = env.read_text()
    env.write_text(f"{kept}ln() {{ kill -9 $BASHPID; }}\n")
    node.call("claim")
    assert not (node.work / "claim").exists()
    env.write_text(kept)
    assert node.call("claim")["changed"] == [("claim", "taken")]
    assert (node.work / "claim").read_text() == f"{RUN}\n{RUN}-holder\n"
    (node.work / "claim").write_text("")
    assert "is empty; remove it" in node.call("claim", run="other")["fail"][0][1]


def test_who_does_not_hold_the_node_starts_nothing(node):
    assert "nobody holds the node" in node.call("push", "start")["fail"][0][1]
    assert not node.folder.exists()
    node.call("claim", run="other")
    assert "not held by this run: other" in node.call("push", "start")["fail"][0][1]
    node.call("release", run="other")


def test_an_engine_that_ends_is_told_with_its_code(tmp_path):
    node = Node(tmp_path, ["bash", "-c", "echo words; exit 3"])
    node.call("claim", "push", "start")
    end = time.monotonic() + 60
    while ("engines", "ended 3") not in (facts := node.call("state", "tails")["fact"]):
        assert time.monotonic() < end, facts
        time.sleep(0.05)
    name, begin, _ = dict(facts)["log"].split(" ")
    assert (name, begin) == ("engines.log", "0")
    again = dict(node.call("tails", seen="engines.log 6").get("fact", []))
    assert "log" not in again  # read already
    # Once more: the earlier log is kept, and the code of the earlier end forgotten.
    node.call("start")
    assert len(list((node.folder / "logs").glob("before-*/engines.log"))) == 1
    node.call("stop", "release")


@pytest.mark.parametrize("at_end", ["orderly", "at once"])
def test_what_was_stopped_on_this_machine_has_not_failed(at_end, tmp_path):
    """Two ranks below the launcher; one that does not catch SIGTERM ends before it can speak."""
    rank = (
        "import signal, sys\n"
        "print('(APIServer pid=7) INFO:     Application startup complete.', flush=True)\n"
        "signal.sigwait([signal.SIGTERM]) if sys.argv[1] == 'orderly' else signal.pause()\n"
        "print('(APIServer pid=7) INFO 11-22 05:49:01 [launcher.py:254] [shutdown] API server: '\n"
        "      'shutdown triggered')\n"
    )
    (tmp_path / "rank.py").write_text(rank)
    template = tmp_path / "run_dp_template.sh"
    words = shlex.join([sys.executable, str(tmp_path / "rank.py"), at_end])
    template.write_text(f"#!/bin/bash\nexec {words}\n")
    template.chmod(0o755)
    launcher = [sys.executable, str(paths.DATA / "bundle" / "launch_online_dp.py")]
    sizes = "--dp-size 2 --tp-size 1 --dp-size-local 2 --dp-rank-start 0 --dp-address 127.0.0.1"
    ports = "--dp-rpc-port 12399 --vllm-start-port 9399"
    node = Node(tmp_path, [*launcher, *sizes.split(), *ports.split(), "--template", str(template)])
    node.call("claim", "push", "start")
    ranks = [node.folder / "logs" / f"rank_{rank}.log" for rank in range(2)]
    end = time.monotonic() + 60
    while not all(log.exists() and "complete" in log.read_text() for log in ranks):
        assert time.monotonic() < end, list(node.folder.rglob("*.log"))
        time.sleep(0.05)
    assert node.call("stop")["changed"] == [("engines", "stopped")]
    assert "stopping all ranks" in (node.folder / "logs" / "engines.log").read_text()
    assert doctor.examine(node.folder / "logs").ok
    node.call("release")


@pytest.mark.parametrize("how", ["KILL", "SEGV"])
def test_an_engine_that_is_killed_is_told_in_its_log(how, tmp_path):
    """It cannot say so itself, and no launcher watches it."""
    said = "(APIServer pid=7) INFO:     Application startup complete."
    node = Node(tmp_path, ["bash", "-c", f"echo '{said}'; kill -{how} $$"])
    node.call("claim", "push", "start")
    log = node.folder / "logs" / "engines.log"
    end = time.monotonic() + 60
    while not log.exists() or "failed: signal" not in log.read_text():
        assert time.monotonic() < end, log.exists() and log.read_text()
        time.sleep(0.05)
    assert re.search(
        rf"^ERROR \d\d-\d\d [\d:]+ \[node.sh:\d+\] node \S+: engines failed: signal SIG{how}$",
        log.read_text(),
        re.MULTILINE,
    )
    first = doctor.examine(node.folder / "logs").first
    assert (first.kind, first.cause) == (
        "rank-dies-while-serving",
        f"rank died while serving: signal SIG{how}",
    )
    node.call("stop", "release")


def test_an_engine_that_is_killed_because_it_takes_too_long_to_stop_has_not_failed(tmp_path):
    """As `docker stop` does after its seconds, before anything else of the verb stop."""
    until = "while [ ! -e run/stopping ]; do sleep 0.05; done; kill -KILL $$"
    node = Node(tmp_path, ["bash", "-c", f"trap '' TERM; echo serving; {until}"])
    node.call("claim", "push", "start")
    (node.folder / "run" / "stopping").touch()
    end = time.monotonic() + 60
    while not (code := node.folder / "run" / "engines.code").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert code.read_text() == "137\n"
    assert "failed: signal" not in (node.folder / "logs" / "engines.log").read_text()
    node.call("stop", "release")
    assert not (node.folder / "run").exists()


def test_what_hides_and_does_not_listen_is_stopped_too(tmp_path):
    """A process that wrote over its variables, and one that ignores SIGTERM; below others."""
    hidden = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.environ.clear()\n"
        "os.execve('/bin/bash', ['bash', '-c', 'trap \"\" TERM; while :; do sleep 1; done'], "
        "{'PATH': '/usr/bin:/bin'})\n"
    )
    node = Node(tmp_path, [sys.executable, "-c", hidden])
    node.call("claim", "push", "start")
    time.sleep(0.5)
    text = node_call.text(node.files, ["stop"], run=RUN).replace("${STOP_SECONDS:-20}", "1")
    answer = LocalNodes().change({"n": text}, "stop")["n"]
    assert [line.text for line in answer.of("changed")] == ["stopped"], answer
    left = subprocess.run(
        ["pgrep", "-f", 'trap "" TERM; while'], capture_output=True, text=True, check=False
    ).stdout.split()
    assert left == []
    node.call("release")


def test_processes_that_are_left_keep_a_second_engine_away(node):
    """What watched the engine is killed, the engine itself goes on."""
    node.call("claim", "push", "start")
    leader = int((node.folder / "run/engines.pid").read_text().split()[0])
    end = time.monotonic() + 60
    while not Path(f"/proc/{leader}/task/{leader}/children").read_text().split():
        assert time.monotonic() < end
    os.kill(leader, signal.SIGKILL)
    while ("engines", "runs") in (facts := node.call("state")["fact"]):
        assert time.monotonic() < end
    assert ("engines", "ended 137, and left processes behind") in facts
    assert "processes of an earlier start are left" in node.call("start")["fail"][0][1]
    assert node.call("stop")["changed"] == [("engines", "stopped")]
    assert "changed" in node.call("start")


@pytest.mark.parametrize("boot", ["another-boot 0", "", None])
def test_a_session_of_somebody_else_is_left_alone(node, tmp_path, boot):
    """A number that stands in an old file and belongs to another session by now."""
    node.call("claim", "push", "start")
    node.call("stop")
    other = subprocess.Popen(
        ["setsid", "bash", "-c", "echo $$; sleep 50 & exit"], text=True, stdout=subprocess.PIPE
    )
    session = other.stdout.readline().strip()
    if boot is None:  # of this boot, but begun later than its first process
        boot = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} 99999999999"
    (node.folder / "run").mkdir()
    (node.folder / "run/engines.pid").write_text(f"{session} {boot}\n")
    assert node.call("stop")["same"] == [("engines", "nothing runs")]
    left = subprocess.run(["pgrep", "-s", session], capture_output=True, text=True, check=False)
    assert left.stdout.split()
    subprocess.run(["pkill", "-s", session], check=False)


def test_logs_are_read_to_their_end_and_belong_to_one_run(node, tmp_path):
    plan = build.plan("tiny-llama", "cpu", "dp")
    single = dataclasses.replace(plan, engines=plan.engines[:1])
    node.call("claim", "push", "start")
    text = "".join(f"line {at} of a long log\n" for at in range(60_000)) + "ERROR the last\n"
    (node.folder / "logs/engines.log").write_text(text)

    def copy(run):
        target = OnNodes(single, node.root, tmp_path / run, run, "me", LocalNodes)
        target.logs.read(now=True)
        path = tmp_path / run / "logs" / plan.nodes[0] / "engines.log"
        return path.read_text() if path.exists() else ""

    assert len(text) > 1 << 20 and copy(RUN) == text
    assert copy("r2") == ""


class LostNodes:
    """Nodes that take the claim; the answers to ``lost`` verbs of the first one do not arrive."""

    def __init__(self, *lost: str) -> None:
        self.unreachable: dict[str, str] = {}
        self._lost, self.asked = lost, []

    def change(self, texts, verb):
        self.asked.append((verb, list(texts)))
        taken = Answer((Line("fact", "verb", verb), Line("changed", "claim", verb)))
        out = dict.fromkeys(texts, taken)
        first = min(texts)
        if verb in self._lost:
            out[first] = Answer((), "no answer: the connection ended")
        elif verb == "claim":
            out[first] = Answer((*taken.lines, Line("fail", "disk", "full")))
            out[max(texts)] = Answer((Line("fact", "verb", "look"), Line("fail", "disk", "full")))
        return out


@pytest.mark.parametrize("lost", ["claim", "release"])
def test_a_claim_that_may_be_held_is_told_and_kept_in_the_record(lost, tmp_path, monkeypatch):
    """Else another run cannot have the node, and the `down` of this one leaves it alone."""
    plan = build.plan("tiny-llama", "cpu", "dp")
    first, *others = sorted(plan.nodes)
    nodes = LostNodes(lost)
    assert others
    monkeypatch.setattr(OnNodes, "text", lambda *_: "")
    target = OnNodes(plan, tmp_path, tmp_path, "r", "me", lambda: nodes)
    with pytest.raises(StepFailed) as caught:
        target._claim()
    (left,) = caught.value.outcome.changes
    assert left.node == first and "claim" in left.what
    asked = others if lost == "claim" else [first, *others[:-1]]  # the last one never took it
    assert [(verb, sorted(names)) for verb, names in nodes.asked[1:]] == [("release", asked)]


@given(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), max_size=40)
)
def test_any_value_reaches_the_node_as_it_is(word):
    for value, shown in ((word, 'printf %s "$X"'), ([word, "b"], 'printf %s "${X[0]}"')):
        script = f"X={node_files._text(value)}\n{shown}"
        assert (
            subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout.decode()
            == word
        )


def test_a_message_is_one_line_of_three_parts():
    found = node_call.lines(["Welcome!", "fail\tdisk\ta\tb", "same\tx", "fact\thost\th1, x\n"])
    assert [(line.kind, line.thing, line.text) for line in found] == [
        ("fail", "disk", "a\tb"),
        ("fact", "host", "h1, x"),
    ]


# The journal --------------------------------------------------------------------------------


def test_the_plan_that_was_deployed_comes_back(each_plan, tmp_path):
    """From the parameters that were kept, whatever became of the files since."""
    made = journal.Journal.open(tmp_path, each_plan)
    made.folder.mkdir(parents=True)
    made.keep(each_plan)
    assert journal.Journal.read(made.folder).kept_plan().as_json() == each_plan.as_json()


def test_what_was_deployed_does_not_need_the_calibration_any_more(tmp_path):
    """Its file may be gone when the deployment is to be stopped; no script depends on it."""
    beside = shutil.copytree(Path(__file__).parents[1] / "check/calibrated", tmp_path / "mine")
    plan = build.plan(
        "k2.5", "a3", "single", site=str(beside / "site.yaml"), engine_version="0.18.0"
    )
    assert plan.request.calibrations
    made = journal.Journal.open(tmp_path / "plan", plan)
    made.keep(plan)
    shutil.rmtree(beside)
    kept = journal.Journal.read(made.folder).kept_plan()
    assert scripts.files(kept) == scripts.files(plan)


def test_a_plan_as_documented_comes_back(tmp_path):
    plan = build.plan("k2.5", "a3", "pd", erratum=["all=off", "k2.5-host=on"])
    kept = journal.Journal.open(tmp_path, plan)
    kept.keep(plan)
    assert scripts.files(kept.kept_plan()) == scripts.files(plan)


def test_a_deployment_is_gone_on_with_until_it_is_down(tmp_path):
    plan = build.plan("tiny-k2.5", "cpu", "single")
    first = journal.Journal.open(tmp_path, plan)
    first.set("starting")
    first.done("prepare")
    again = journal.Journal.open(tmp_path, plan)
    assert (again.run, again.steps) == (first.run, ["prepare"])
    again.set("down")
    other = journal.Journal.open(tmp_path, plan)
    assert other.run != first.run and other.folder.name == "002" and other.steps == []


def test_a_key_that_is_not_there_is_told_before_any_node_is_asked(site_file, tmp_path):
    site = site_file(
        ("{user: root, port: 22}", "{user: root, key_file: /none/id_rsa}"), ("192.0.2.", "10.1.2.")
    )
    plan = build.plan("k2.5", "a3", "pd", site=site)
    with pytest.raises(ParameterError, match=r"ssh\.key_file /none/id_rsa: there is no such file"):
        lifecycle.preview(plan, tmp_path)


def test_which_deployment_is_meant(tmp_path):
    with pytest.raises(ParameterError, match="no deployment was started"):
        journal.find("", tmp_path)
    with pytest.raises(ParameterError, match="absent: no such folder"):
        journal.find(str(tmp_path / "absent"), tmp_path)
    with pytest.raises(ParameterError, match="no deployment was started"):
        journal.find(str(tmp_path), tmp_path)
    plan = build.plan("tiny-k2.5", "cpu", "single")
    for name in ("one", "two"):
        made = journal.Journal.open(tmp_path / name / plan.name, plan)
        made.set("up")
    with pytest.raises(ParameterError, match="2 deployments are not down; name one"):
        journal.find("", tmp_path)
    assert journal.find(str(tmp_path / "two"), tmp_path).folder == made.folder
    made.set("down")
    assert "one" in str(journal.find("", tmp_path).folder)
    (made.folder / "state.json").write_text("{")
    with pytest.raises(ParameterError, match=r"state.json: is damaged .* first line of 'claim'"):
        journal.find(str(made.folder), tmp_path)
    assert "one" in str(journal.find("", tmp_path).folder)  # and hides no other


def test_the_lock_names_its_holder_and_goes_with_it(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from kimi_nb.deploy.journal import alone\n"
        "with alone(Path(sys.argv[1])): print('in', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    other.stdout.readline()
    with (
        pytest.raises(KimiError, match=f"process {other.pid}, .*@"),
        journal.alone(tmp_path, wait=False),
    ):
        pass
    other.kill()
    other.wait()
    with journal.alone(tmp_path, wait=False):
        pass


# Weights ------------------------------------------------------------------------------------


def test_checksums_where_the_hub_gave_them(tmp_path):
    """The cache of huggingface_hub, whose files are links to blobs named by their sums."""
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    checkpoint(folder)
    blobs.mkdir()
    for path in folder.iterdir():
        data = path.read_bytes()
        blob = blobs / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        path.unlink()
        path.symlink_to(blob)
    assert weights.faults(folder) == [] and weights.unequal(folder, every=True) == []
    assert len(weights.published(folder)) == 3
    blob = (folder / "config.json").resolve()
    blob.write_text('{"other": 1}\n')
    assert "config.json: its SHA-256 is" in weights.unequal(folder)[0]


def test_checksums_beside_a_download(tmp_path):
    checkpoint(tmp_path)
    notes = tmp_path / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (notes / "config.json.metadata").write_text(f"commit\n{'0' * 64}\n1.0\n")
    (notes / "README.md.metadata").write_text("commit\netag-of-git\n1.0\n")
    assert set(weights.published(tmp_path)) == {"config.json"}
    assert weights.unequal(tmp_path)[0].startswith("config.json: its SHA-256")


def test_the_weights_as_a_command(tmp_path):
    """The file that a bundle carries, by a Python that has nothing of ours."""
    checkpoint(tmp_path)

    def call(*words):
        return subprocess.run(
            [sys.executable, "-I", "-S", "-", *words, str(tmp_path)],
            text=True,
            input=Path(weights.__file__).read_text(),
            capture_output=True,
            check=False,
        )

    assert "3 files" in call("--checksums").stdout
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    done = call()
    assert done.returncode == 1 and "missing or empty" in done.stdout
    assert call("--config-only").returncode == 0


def test_answers_of_a_status_are_json(tmp_path):
    plan = build.plan("tiny-k2.5", "cpu", "single")
    made = journal.Journal.open(tmp_path / plan.name, plan)
    made.folder.mkdir(parents=True)
    made.keep(plan)
    made.set("down")
    done = subprocess.run(
        [sys.executable, "-m", "kimi_nb", "status", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert [one["state"] for one in json.loads(done.stdout)] == ["down"]


def test_a_start_that_was_none_is_not_measured(tmp_path):
    made = lifecycle.Deployed(
        ok=True,
        plan="p",
        site="s",
        engines=2,
        ready=2,
        url="http://127.0.0.1:1",
        changes=(),
        warnings=(),
        ready_s=None,
        first_answer_s=None,
        memory_mb=0.0,
        moved_tokens=0,
        moved_bytes=0,
        answer="four",
        failed=(),
        folder=tmp_path,
    )
    rows = dict(made.table().rows)
    assert rows["ready after"] == "not measured: every engine ran before this call"
    assert "first answer after" not in rows
    failed = dict(dataclasses.replace(made, ok=False).table().rows)
    assert failed["ready after"] == "never"


@pytest.mark.parametrize(
    "download, line, wanted",
    [
        (True, Line("fail", "weights", "exit code 1"), "--resume"),
        (False, Line("fail", "weights", "there is none"), "--download"),
        (True, Line("fail", "weights", "No space left on device"), "space"),
    ],
)
def test_a_download_that_failed_is_not_answered_with_the_same_words(
    tmp_path, download, line, wanted
):
    plan = build.plan("tiny-k2.5", "cpu", "single")
    target = OnNodes(plan, tmp_path, tmp_path, "r", "me", LocalNodes, download=download)
    found = target._diagnosis("n", "weights", line)
    assert wanted in found.help and ("--download" in found.help) is (wanted == "--download")


def test_where_it_stopped_is_told_by_status(tmp_path):
    plan = build.plan("tiny-k2.5", "cpu", "single")
    kept = journal.Journal.open(tmp_path, plan)
    assert lifecycle._recorded(kept) is None
    found = Diagnosis("weights", "n2", None, "the hub refuses", "403", "Ask for access.")
    facts = {"step": "weights", "failed": [found.as_dict()]}
    evidence.record(kept.folder, "deploy", **facts)
    assert lifecycle._recorded(kept) == found
    rows = dict(lifecycle._first(found, kept).rows)
    assert rows["cause"] == "the hub refuses" and rows["next"] == "Ask for access."
    assert "--resume" in rows["start again"] and "all signs" not in rows
    evidence.record(
        kept.folder, "deploy", step="start", failed=[{"cause": KeyboardInterrupt.__name__}]
    )
    interrupted = lifecycle._recorded(kept)
    assert interrupted is not None and "interrupted at start" in interrupted.cause
    evidence.record(kept.folder, "down", failed=[])
    assert lifecycle._recorded(kept) is None


def test_engines_that_ended_for_one_reason_are_one_row():
    errors = [f"(EngineCore_DP{at} pid=4{at}1) 10:04:{at}1 EngineDeadError" for at in range(3)]
    states = [
        EngineState(f"rank{at}", "n", at, 8000 + at, "ended 1", error)
        for at, error in enumerate(errors)
    ]
    [row] = lifecycle._engines("", states).rows
    assert row == ("n", "rank0 to rank2", "0 to 2", "8000 to 8002", "ended 1", errors[0])


def test_engines_of_a_node_in_one_state_are_one_row():
    states = [EngineState(f"decode0-rank{at}", "a3-2", at, 7100 + at, "ready") for at in range(16)]
    states[3] = dataclasses.replace(states[3], state="starting")
    table = lifecycle._engines("36 engines", states)
    assert [row[1:5] for row in table.rows] == [
        ("decode0-rank0 to decode0-rank2", "0 to 2", "7100 to 7102", "ready"),
        ("decode0-rank3", "3", "7103", "starting"),
        ("decode0-rank4 to decode0-rank15", "4 to 15", "7104 to 7115", "ready"),
    ]
    follower = lifecycle._engines("", [EngineState("mixed0-rank0", "n", 0, None, "ready")])
    assert follower.rows[0][3] == ""


def test_the_states_of_stand_ins_say_so(tmp_path, monkeypatch):
    """One of the engines is enough: the title is of all of them."""
    plan = build.plan("tiny-k2.5", "cpu", "single")
    states = [
        EngineState("mixed0-rank0", "n", 0, 8000, "ready"),
        EngineState("mixed0-rank1", "n", 1, 8001, "ready", mark="REHEARSAL"),
    ]
    site = SimpleNamespace(status=lambda: states, queue=lambda: None)
    monkeypatch.setattr(lifecycle, "target", lambda *_: contextlib.nullcontext(site))
    kept = journal.Journal.open(tmp_path, plan)
    kept.keep(plan)
    kept.set("up")
    _, (shown,) = lifecycle.status(kept)
    assert shown.title.startswith(f"REHEARSAL: {plan.name} on ")
    states.pop()
    _, (shown,) = lifecycle.status(kept)
    assert shown.title.startswith(f"{plan.name} on ")


def test_facts_are_words():
    assert lifecycle._words({"baseline": 7, "benchmark": 8}) == "baseline 7, benchmark 8"
    assert lifecycle._words(["n1", "n2"]) == "n1, n2" and lifecycle._words("n1") == "n1"


@pytest.fixture
def ended(tmp_path, monkeypatch):
    """A deployment that is down, on a site that no longer answers."""
    plan = build.plan("tiny-k2.5", "cpu", "single")
    made = journal.Journal.open(tmp_path / "runs" / "run" / plan.name, plan)
    made.folder.mkdir(parents=True)
    made.keep(plan)
    made.set("down")

    def fail(self):
        raise StepFailed("down", [Diagnosis("unreachable", "n", None, "no answer", "", "")])

    monkeypatch.setattr(OnNodes, "down", fail)
    monkeypatch.chdir(tmp_path)
    return made


def test_what_is_down_stays_down_where_nobody_answers(ended):
    with pytest.raises(StepFailed):
        lifecycle.down(ended)
    assert journal.Journal.read(ended.folder).state == "down"
    ended.set("up")
    with pytest.raises(StepFailed):
        lifecycle.down(ended)
    assert journal.Journal.read(ended.folder).state == "failed"


def test_down_without_a_name_does_nothing_where_nothing_is_up(ended, monkeypatch, capsys):
    monkeypatch.setattr(start, "runs_folder", lambda: ended.folder.parents[3])
    assert main.main(["down"]) == 0
    said = capsys.readouterr().out
    assert "Nothing is up" in said and str(ended.folder) in said


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A deployment whose nodes are folders of this machine, and which holds their claim."""
    monkeypatch.chdir(tmp_path)
    plan = build.plan("tiny-llama", "cpu", "dp")
    made = journal.Journal.open(tmp_path / "runs" / "run" / plan.name, plan)
    made.keep(plan)
    writer.write(scripts.files(plan), made.folder / "bundle")
    work = tmp_path / "work"
    for name in plan.nodes:
        files = made.folder / "bundle" / name
        with (files / "node.env").open("a") as env:
            env.write(f"WORK={work}\nFOLDER={work / name}\nPORTS=\n")
        answer = LocalNodes().change(
            {name: node_call.text(files, ["claim"], run=made.run, holder="me")}, "claim"
        )[name]
        assert not answer.of("fail") and not answer.error
    made.set("up")
    return made, work / "claim"


def test_a_claim_that_cannot_be_given_back_is_named_and_the_second_call_does_it(
    held, tmp_path, monkeypatch, capsys
):
    """As on a disk that became read-only: each node says so, and the exit code is not 0."""
    made, claim = held
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "rm").write_text(
        '#!/bin/sh\ncase "$*" in */claim) echo "rm: $2: Read-only file system" >&2\n'
        'exit 1;; esac\nexec /bin/rm "$@"\n'
    )
    (programs / "rm").chmod(0o755)
    with monkeypatch.context() as env:
        env.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        assert main.main(["down", "--json", str(made.folder)]) == 1
        said = json.loads(capsys.readouterr().out)
        assert main.main(["down", str(made.folder)]) == 1
        assert "given back: rm: " in capsys.readouterr().err
    assert claim.exists() and journal.Journal.read(made.folder).state == "failed"
    assert {one["node"] for one in said["failed"]} == set(made.kept_plan().nodes)
    for one in said["failed"]:
        assert "Read-only file system" in one["cause"] + one["evidence"] and one["help"]
    assert main.main(["down", str(made.folder)]) == 0
    assert "claim: given back" in capsys.readouterr().out
    assert not claim.exists() and journal.Journal.read(made.folder).state == "down"


@pytest.mark.parametrize("text", ["another run\nsomebody\n", ""])
def test_a_claim_that_is_not_ours_is_left_and_told(text, held, capsys):
    made, claim = held
    claim.write_text(text)
    assert main.main(["down", str(made.folder)]) == 1
    said = capsys.readouterr().out
    assert "claim: left alone" in said and "belongs to another run" in said
    assert claim.read_text() == text
