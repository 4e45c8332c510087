"""Drills: what is kept tells nothing before the answer, and answers are judged rightly."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leftovers import left, wait_gone

from kimi_nb.cli import drill as command
from kimi_nb.cli import main
from kimi_nb.core.errors import ParameterError, PlanError, ServiceError, WriteError
from kimi_nb.drill import answer, exercise, record, verdict
from kimi_nb.plan import build
from kimi_nb.rehearse import fault_names, faults, rehearsal
from kimi_nb.rehearse.fault_names import FaultName

SMALL = ("--model", "k2.6", "--hw", "a3", "--layout", "pd", "--scenario", "throughput")


def small():
    """Four engines on two nodes, which can have every fault."""
    return build.plan(
        "k2.6", "a3", "pd", scenario="throughput", chosen=("eagle3", "host-tuning")
    )  # fmt: skip


def other_family(name: str) -> str:
    return next(one for one in FaultName if answer.family(one) != answer.family(name))


def check(drill: record.Drill, name: str, said: list[str]) -> None:
    """Nothing is told before; then a right answer is right, and a wrong one wrong in all parts."""
    truth = drill.truth
    assert truth.fault == name and not left(drill.folder)
    texts = {path: path.read_text() for path in drill.folder.rglob("*") if path.is_file()}
    names = {str(path.relative_to(drill.folder)) for path in drill.folder.rglob("*")}
    allowed = {"drill.json", "plan.json", "client.log", "logs", "logs/router.log"}
    allowed |= {f"logs/{node}" for node in drill.nodes}
    steps = ("rank_", "engines", "reach", "install", "host_tuning", "store-")
    assert all(one in allowed or Path(one).name.startswith(steps) for one in names), names
    told = [*said, *names, *(text for path, text in texts.items() if path.name != record.FILE)]
    told += [str(drill.logs), texts[drill.folder / record.FILE].replace(f'"asked": "{name}', "")]
    for words in (name, name.replace("-", "_"), faults.FAULTS[FaultName(name)].says, "occupant"):
        assert not [text[:80] for text in told if words in text], words

    rank = truth.ranks[-1] if truth.ranks else "none"
    right = verdict.judge(drill, f"node={truth.node} rank={rank} cause={name}")
    assert right.ok and [part.judged for part in right.parts] == ["right"] * 3
    assert right.help and right.cause and right.reasons and all(right.reasons)
    file, number, text = right.line.split(":", 2)
    line = (drill.folder / file).read_text().splitlines()[int(number or 0) - 1] if number else ""
    assert all(part in line for part in text.strip().removesuffix(" ...").split(" ... ")), (
        right.line
    )
    if truth.in_logs:
        assert file.startswith("logs/")
    node = next(one for one in drill.nodes if one != truth.node)
    wrong = verdict.judge(drill, f"{node} rank 77 cause={other_family(name)}")
    assert [part.judged for part in wrong.parts] == ["wrong"] * 3 and not wrong.ok
    assert name in str(wrong) and truth.node in str(wrong)
    only = verdict.judge(drill, f"cause={name}")
    assert [part.judged for part in only.parts] == ["not said", "not said", "right"]
    assert not verdict.judge(drill).parts


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> record.Drill:
    """A drill to read and to answer."""
    said: list[str] = []
    drill = exercise.start(
        small(), tmp_path_factory.mktemp("d"), fault="disk-full", seed=1, say=said.append
    )
    check(drill, "disk-full", said)
    return drill


# Three faults: one of a rank's log, one of a whole node, one that no log tells ---------------


def test_a_rank_s_own_failure(kept):
    truth = kept.truth
    assert truth.in_logs and len(truth.ranks) == 1 and not truth.whole
    near = verdict.judge(kept, f"{truth.node} rank {truth.ranks[0]}: the weights are missing")
    assert [part.judged for part in near.parts] == ["right", "right", "near"] and not near.ok
    # A rank of that number on another node is another one: each group counts from 0.
    node = next(one for one in kept.nodes if one != truth.node)
    assert verdict.judge(kept, f"{node} rank {truth.ranks[0]}").parts[1].judged == "wrong"


def test_a_node_as_a_whole(tmp_path):
    said: list[str] = []
    drill = exercise.start(small(), tmp_path, fault="weights-missing", seed=1, say=said.append)
    check(drill, "weights-missing", said)
    node = drill.truth.node
    for rank in ("none", *drill.truth.ranks):
        assert verdict.judge(drill, f"node={node} rank={rank} cause=weights-missing").ok


def test_what_no_log_tells(tmp_path):
    said: list[str] = []
    drill = exercise.start(small(), tmp_path, fault="garbled-output", seed=1, say=said.append)
    check(drill, "garbled-output", said)
    found = verdict.judge(drill)
    assert not found.in_logs and found.line.startswith("client.log:") and "!!!!" in found.line
    assert "no log names it" in found.reasons[0] and "asking shows" in str(found)


def test_an_engine_that_is_killed_says_nothing_and_who_started_it_sees_it_end(tmp_path):
    """Without a launcher its log has a line of the script that waits for it, as node.sh writes."""
    plan, said = build.plan("k2.5", "h200", "single"), []
    drill = exercise.start(plan, tmp_path, fault="rank-dies-while-serving", say=said.append)
    found = verdict.judge(drill, "dgx-0 rank 0 was killed")
    assert found.ok and found.in_logs, found
    assert found.line.startswith("logs/dgx-0/engines.log:"), found.line
    assert "engines failed: signal SIGKILL" in found.line
    assert "break off without an error" in str(found.reasons) and "/health" not in str(found)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(
    "name", [name for name in faults.FAULTS if name not in fault_names.ON_PODS]
)
def test_each_fault_at_two_engines(name, seed, tmp_path_factory, stored_model, nodes_file):
    said: list[str] = []
    folder, plan = tmp_path_factory.mktemp("d"), small()
    if name == "store-master-dies":
        plan = build.plan(stored_model(), "h200", "single", site=nodes_file("h200", 2))
    drill = exercise.start(plan, folder, fault=name, seed=seed, say=said.append)
    check(drill, name, said)


# Read -----------------------------------------------------------------------------------------


def test_the_logs_can_be_read(kept):
    truth = kept.truth
    names = [row[0] for row in kept.logs.rows]
    assert names[0] == "client.log" and f"{truth.node}/rank_{truth.ranks[0]}.log" in names
    assert names.index("a3-0/rank_0.log") < names.index("a3-0/rank_1.log")
    found = kept.search("NO SPACE LEFT")
    assert any(row[0].startswith(truth.node) for row in found.rows) and "lines hold" in str(found)
    name, number, text = next(row for row in found.rows if "rank" in row[0])
    assert text[:60] in str(kept.log(name)) and text[:60] in str(kept.log(f"logs/{name}", number))
    assert str(kept.log(name, number)).splitlines()[1].split()[0] == str(number)
    assert (
        names[1] in str(kept.log()) and len(str(kept.log("client.log", most=3)).splitlines()) == 4
    )
    with pytest.raises(ParameterError, match="did you mean 'a3-0/rank_0.log'"):
        kept.log("a3-0/rank_0")
    with pytest.raises(ParameterError, match="a text is wanted"):
        kept.search(" ")


def test_a_drill_is_found_and_read_again(kept, tmp_path):
    base = kept.folder.parent.parent
    assert record.find(base).as_dict() == record.read(kept.folder).as_dict() == kept.as_dict()
    with pytest.raises(ParameterError, match="holds no drill yet"):
        record.find(tmp_path)
    with pytest.raises(ParameterError, match="is no folder of a drill"):
        record.read(tmp_path)
    for text in ("{}", "no JSON", '{"sealed": "x", "plan": "p", "asked": "", "seed": 1}'):
        (tmp_path / record.FILE).write_text(text)
        (tmp_path / "plan.json").write_text((kept.folder / "plan.json").read_text())
        with pytest.raises(ParameterError, match="cannot be read"):
            record.read(tmp_path)


# Chance -----------------------------------------------------------------------------------------


def test_a_seed_repeats_what_chance_has_chosen():
    import random

    plan = small()
    drawn = [[*exercise._draws(plan, "", random.Random(seed))] for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]
    # Of plans with a KV store, and of pods.
    names = {*map(str, FaultName)} - {"store-master-dies", *fault_names.ON_PODS}
    assert {one.partition("@")[0] for one in drawn[0]} == names
    at = [*exercise._draws(plan, "device-twice", random.Random(5))]
    assert sorted(at) == [f"device-twice@{engine.name}" for engine in sorted(
        plan.engines, key=lambda one: one.name)]  # fmt: skip


def test_a_plan_has_the_surprises_that_it_can_have():
    import random

    single = build.plan("k2.5", "a3", "single")
    names = {one.partition("@")[0] for one in exercise._draws(single, "", random.Random(1))}
    assert "port-taken" in names and not {"empty-200", "kv-port-blocked", "missing-rank"} & names


@pytest.mark.parametrize(
    "fault, error, wanted",
    [
        ("port-takn", ParameterError, "did you mean 'port-taken'"),
        ("port-taken@nobody", ParameterError, "engine 'nobody' is not known"),
        ("port-taken@", ParameterError, "no engine after the @"),
        ("empty-200", PlanError, "no proxy"),
    ],
)
def test_a_drill_that_cannot_be_leaves_nothing(fault, error, wanted, tmp_path):
    with pytest.raises(error, match=wanted):
        exercise.start(build.plan("k2.5", "a3", "single"), tmp_path, fault=fault)
    assert not [*tmp_path.iterdir()]


def test_a_drill_of_which_nothing_comes_is_drawn_again_and_then_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(exercise, "_rehearsed", lambda plan, root, asked: None)
    said: list[str] = []
    with pytest.raises(ServiceError, match="nothing came of it.*another --seed"):
        exercise.start(small(), tmp_path, fault="disk-full", say=said.append)
    assert sum("drawn again" in text for text in said) == 4
    assert not [*(tmp_path / "drills").iterdir()]


def test_a_port_that_is_taken_here_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rehearsal.http_client, "listens", lambda url, seconds: True)
    assert main.main(["drill", "--surprise", *SMALL, "--run-dir", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "another program of this machine takes connections there" in told.err
    assert "Traceback" not in told.err and not [*tmp_path.rglob("drills/*")]
    assert not wait_gone(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        exercise.start(small(), tmp_path / "file", fault="disk-full")


# The command ----------------------------------------------------------------------------------


def kimi(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kimi_nb", "drill", *words],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_a_surprise_in_two_steps(tmp_path):
    """Without a terminal nobody is asked: what is said in between gives nothing away."""
    made = kimi("--surprise", *SMALL, "--seed", "23", "--run-dir", str(tmp_path))
    assert made.returncode == 0, made.stderr
    drill = record.find(tmp_path)
    truth = drill.truth
    kind = faults.FAULTS[FaultName(truth.fault)]
    for told in (made.stdout, made.stderr, (drill.folder / record.FILE).read_text()):
        assert truth.fault not in told and kind.says not in told
    assert (
        re.search("what goes wrong +a surprise", made.stdout) and str(drill.folder) in made.stdout
    )
    assert "REHEARSAL" in made.stdout and "which node" not in made.stdout.lower()
    assert not left(tmp_path)

    ranks = f"rank={truth.ranks[0]}" if truth.ranks else "rank=none"
    answered = f"node={truth.node} {ranks} cause={truth.fault}"
    right = kimi("--answer", answered, "--run-dir", str(tmp_path))
    assert (right.returncode, right.stderr) == (0, "") and "3 of 3 right" in right.stdout
    wrong = kimi("--answer", "rank 77", "--of", str(drill.folder), "--json")
    judged = json.loads(wrong.stdout)
    assert wrong.returncode == 1 and judged["fault"] == truth.fault and not judged["ok"]
    shown = kimi("--show", "--run-dir", str(tmp_path))
    assert shown.returncode == 0 and "no answer was given" in shown.stdout


def test_the_questions_of_a_terminal(kept, monkeypatch, capsys):
    said = iter(["9", "node 1", "1", "last", "0", "?", "the tide", "disk is full"])
    monkeypatch.setattr("builtins.input", lambda question: next(said))
    assert command._asked(kept) == "node=1 rank=0 cause=disk is full"
    told = capsys.readouterr().out
    assert f"1 {kept.nodes[0]}" in told and "What a drill may be" in told
    assert "node '9' is not known" in told and "rank 'last': a number is wanted" in told
    assert "cause 'the tide' is not known" in told and "disk-full:" not in told


def test_an_answer_that_ends_early_is_judged_as_far_as_it_went(kept, monkeypatch):
    said = iter([kept.truth.node])

    def ask(question: str) -> str:
        with contextlib.suppress(StopIteration):
            return next(said)
        raise EOFError

    monkeypatch.setattr("builtins.input", ask)
    assert command._asked(kept) == f"node={kept.truth.node}"


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["port-takn"], "did you mean 'port-taken'"),
        (["disk-full", "--surprise"], "are two drills"),
        (["--answer", "x", "--show"], "give one of them"),
        (["--of", "x"], "--of names a drill for --answer or --show"),
        (["disk-full", "--of", "x", "--show"], "no other one is made"),
        (["--show", "--of", "/none"], "/none: is no folder of a drill"),
        (["--model", "k9"], "model 'k9' is not known"),
        (["disk-full", "--answer", "the tide"], "cause 'the tide' is not known"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(words, wanted, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["drill", *words]) == 2
    told = capsys.readouterr().err
    assert wanted in told and "Traceback" not in told and len(told.splitlines()) == 1
    assert not [*tmp_path.iterdir()]


def test_the_list(capsys):
    assert main.main(["drill", "--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(FaultName)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupted_drill_leaves_nothing(number, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "kimi_nb", "drill", "disk-full", *SMALL, "--run-dir", str(tmp_path)],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    end = time.monotonic() + 60
    while not [*tmp_path.rglob("world.json")] and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130 and told.splitlines()[-1] == "kimi-nb: interrupted"
    assert "Traceback" not in told and not wait_gone(tmp_path)
    assert not [*tmp_path.rglob("drills/*")]
