"""What is recorded of a deployment, how it is found again, and how outcomes are told."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_nb.cli import main
from kimi_nb.core.errors import KimiError, ParameterError, WriteError
from kimi_nb.deploy import journal, steps
from kimi_nb.deploy.journal import Journal
from kimi_nb.deploy.steps import Change, Outcome, StepFailed
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.plan import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plan():
    return build.plan(
        "k2.5", "a3", "single", pairs=["max-num-seqs=8"], chosen=("reasoning-parser",)
    )


@pytest.fixture
def made(tmp_path, plan):
    return Journal.open(tmp_path, plan)


def put(folder, **more) -> Journal:
    """A deployment in a folder, as its state.json has it."""
    given = {"run": "r", "plan": "p", "site": "s", "by": "me@here", "begun": "2026-11-01T10:00:00"}
    one = Journal(folder, **given | more)
    one.write()
    return one


# The record -----------------------------------------------------------------------------


def test_a_new_deployment_says_who_began_it_when_and_of_what(made, plan, tmp_path):
    assert made.folder == tmp_path / "deployments" / "001"
    assert (made.plan, made.site, made.state) == (plan.name, plan.site, "new")
    assert made.by == journal.holder() and re.fullmatch(r"\S+@\S+", made.by)
    assert re.fullmatch(re.escape(made.begun) + r"-[0-9a-f]{6}", made.run)
    assert Journal.open(tmp_path, plan).run != made.run  # nothing was written yet
    assert (made.steps, made.begun_steps, made.stopped_at, made.more) == ([], [], "", {})


def test_what_has_not_ended_is_gone_on_with_and_what_has_is_not(made, plan, tmp_path):
    made.set("failed", "weights")
    again = Journal.open(tmp_path, plan)
    assert again == made and (again.state, again.stopped_at) == ("failed", "weights")
    made.set("down")
    assert Journal.open(tmp_path, plan).folder.name == "002"
    put(tmp_path / "deployments" / "009", state="down")
    put(tmp_path / "deployments" / "010", state="down")
    assert Journal.open(tmp_path, plan).folder.name == "011"  # by number, not by letters


def test_a_folder_that_somebody_copied_is_no_deployment(made, plan, tmp_path):
    made.set("up")
    put(tmp_path / "deployments" / "002.old", state="up")
    assert Journal.open(tmp_path, plan).folder.name == "001"
    assert journal.beside(made.folder) == [made.folder]


@pytest.mark.parametrize("key", ["run", "plan", "site", "by", "state", "stopped_at"])
def test_a_name_of_thousands_of_characters_is_no_deployment_s(tmp_path, key, capsys):
    put(tmp_path / "run" / "p" / "deployments" / "001", **{key: "<" * 5000})
    assert main.main(["logs", "--no-follow", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "is damaged" in told and key in told and len(told) < 2000


def test_a_terminal_obeys_no_record(tmp_path, capsys):
    put(tmp_path / "run" / "p" / "deployments" / "001", plan="\x1b]0;mine\x07", site="\u202es")
    assert main.main(["logs", "--no-follow", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert "mine" in told and not {"\x1b", "\x07", "\u202e"} & {*told}


def test_the_record_is_replaced_whole(made, monkeypatch):
    made.set("up")
    before = (made.folder / "state.json").read_bytes()
    assert sorted(os.listdir(made.folder)) == ["state.json"]
    values = {
        "run": made.run,
        "plan": made.plan,
        "site": made.site,
        "by": made.by,
        "begun": made.begun,
        "state": "up",
        "steps": [],
        "begun_steps": [],
        "stopped_at": "",
        "more": {},
    }
    assert before.decode() == json.dumps(values, indent=1) + "\n"
    seen = []
    replace = type(made.folder).replace

    def watch(new, to):
        seen.append((new.name, (made.folder / "state.json").read_bytes()))
        return replace(new, to)

    monkeypatch.setattr(type(made.folder), "replace", watch)
    made.set("failed")
    assert seen == [("state.json.new", before)]  # until then the old one stands


def test_steps_are_recorded_once_and_forgotten_with_the_end(made):
    made.begin("start")
    assert Journal.read(made.folder).begun_steps == ["start"]
    made.begin("start")
    made.done("start")
    made.done("start")
    made.done("open")
    kept = Journal.read(made.folder)
    assert (kept.begun_steps, kept.steps) == (["start"], ["start", "open"])
    made.set("failed", "verify")
    assert Journal.read(made.folder).steps == ["start", "open"]
    made.set("down")
    kept = Journal.read(made.folder)
    assert (kept.state, kept.stopped_at, kept.steps, kept.begun_steps) == ("down", "", [], [])


def test_the_plan_is_made_again_from_what_was_kept(made, plan):
    with pytest.raises(ParameterError, match="nothing was started from here: its parameters"):
        made.kept_plan()
    made.keep(plan)
    assert Journal.read(made.folder).kept_plan().as_json() == plan.as_json()
    asked = Journal.read(made.folder).more["asked"]
    assert (asked["pairs"], asked["chosen"]) == (["max-num-seqs=8"], ["reasoning-parser"])
    assert (asked["layout"], asked["scenario"], asked["dropped"]) == ("single", "", [])
    for name in ("hardware", "model", "site"):
        text = (made.folder / f"{name}.yaml").read_text()
        assert re.match(r'\{\n "', text) and text.endswith("}\n")
        table = getattr(plan.request, name)
        assert json.loads(text) == table.model_dump(mode="json", exclude_unset=True)


def test_a_deployment_is_ended_on_the_site_that_it_was_begun_on(tmp_path):
    """Not on the example's, although the user's own file has gone."""
    own = tmp_path / "mine.yaml"
    own.write_text(
        (ROOT / "params" / "sites" / "a3.yaml").read_text().replace("a3-example", "my-cluster")
    )
    plan = build.plan("k2.5", "a3", "single", site=str(own))
    made = Journal.open(tmp_path, plan)
    made.keep(plan)
    own.unlink()
    again = Journal.read(made.folder).kept_plan()
    assert again.site == made.site == "my-cluster"


def test_files_are_utf8_whatever_the_language_of_the_shell(made, plan, monkeypatch):
    coded = []
    for name in ("write_text", "read_text"):
        real = getattr(Path, name)

        def noted(path, *given, real=real, **more):
            coded.append(more.get("encoding"))
            return real(path, *given, **more)

        monkeypatch.setattr(Path, name, noted)
    made.keep(plan)
    Journal.read(made.folder)
    assert len(coded) == 4 and {str(one).lower() for one in coded} == {"utf-8"}


def test_a_scenario_and_errata_are_kept(tmp_path):
    plan = build.plan(
        "k2.5", "a3", "pd", scenario="throughput", dropped=(), erratum=(), engine_version=""
    )
    made = Journal.open(tmp_path, plan)
    made.keep(plan)
    asked = made.more["asked"]
    assert asked["scenario"] == plan.scenario == "throughput"
    assert asked["engine_version"] == plan.request.engine.version
    assert made.kept_plan().as_json() == plan.as_json()


def test_what_was_derived_is_kept_as_it_was_derived(tmp_path):
    """Another day other rules would derive something else."""
    plan = build.plan("k2.6", "a2", "pd", derive=True)
    made = Journal.open(tmp_path, plan)
    made.keep(plan)
    kept = json.loads((made.folder / "model.yaml").read_text())
    assert len(kept["recipes"]) == len(plan.request.model.recipes) + 1
    assert made.kept_plan().as_json() == plan.as_json() and made.kept_plan().derived


def test_the_file_of_a_calibration_is_not_needed_again(tmp_path):
    base = build.plan("k2.5", "a3", "single")
    site = base.request.site.model_copy(update={"calibration": ("gone.yaml",)})
    plan = dataclasses.replace(base, request=dataclasses.replace(base.request, site=site))
    made = Journal.open(tmp_path, plan)
    made.keep(plan)
    assert "calibration" not in json.loads((made.folder / "site.yaml").read_text())
    assert made.kept_plan().as_json() == base.as_json()


# What cannot be read or written ---------------------------------------------------------


def test_a_folder_without_a_deployment(tmp_path):
    with pytest.raises(ParameterError) as told:
        Journal.read(tmp_path)
    assert str(told.value) == f"{tmp_path}: holds no deployment (state.json)."


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 9000, '{"run": 1}', '{"run": "r", "more": {"asked": {}}}'],
)
def test_a_damaged_record_says_where_the_rest_stands(text, made):
    made.set("up")
    (made.folder / "state.json").write_text(text)
    with pytest.raises(ParameterError) as told:
        Journal.read(made.folder)
    said = str(told.value)
    assert said.startswith(f"{made.folder / 'state.json'}: is damaged (")
    assert "evidence.jsonl beside it" in said and "is damaged (None" not in said
    assert said.endswith(
        "by hand, RUN=<that word> ./node.sh stop release in the node's folder there."
    )


def test_a_record_with_a_key_of_another_version_is_damaged(made):
    made.set("up")
    path = made.folder / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"new": 1}))
    with pytest.raises(ParameterError, match=r"is damaged \(.*new"):
        Journal.read(made.folder)


@pytest.mark.parametrize("call", ["write", "keep"])
def test_a_place_that_takes_nothing_is_named(call, plan, tmp_path):
    (tmp_path / "deployments").write_text("a file")
    made = Journal.__new__(Journal)
    made.__dict__.update(vars(put(tmp_path / "x")), folder=tmp_path / "deployments" / "001")
    with pytest.raises(WriteError) as told:
        made.write() if call == "write" else made.keep(plan)
    assert str(told.value) == (
        f"{made.folder}: cannot be written: Not a directory. Choose another run_dir (--run-dir), or "
        "mend its permissions."
    )


# One at a time --------------------------------------------------------------------------


def test_two_processes_do_not_work_on_one_deployment(tmp_path):
    folder = tmp_path / "not" / "there"
    with journal.alone(folder):
        said = (folder / ".lock").read_text()
        assert said.startswith(f"process {os.getpid()}, {journal.holder()}, since 20")
        with pytest.raises(KimiError) as told, journal.alone(folder, wait=False):
            raise AssertionError("two at once")
        assert str(told.value) == (
            f"{folder}: another process is at work on this deployment ({said}). Wait for its end, or "
            "stop it."
        )
    with journal.alone(folder, wait=False):  # and after it, anybody
        assert (folder / ".lock").read_text().count("process") == 1
    assert (folder / ".lock").stat().st_mode & 0o777 == 0o644 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_on_a_full_disk_the_lock_has_no_name(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    (tmp_path / ".lock").write_text("process 7, of another")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with journal.alone(tmp_path):
            assert (tmp_path / ".lock").read_text() == ""
            with pytest.raises(KimiError), journal.alone(tmp_path, wait=False):
                raise AssertionError("two at once")


def test_a_shorter_name_leaves_nothing_of_a_longer_one(tmp_path):
    (tmp_path / ".lock").write_text("x" * 500)
    with journal.alone(tmp_path):
        assert "x" * 10 not in (tmp_path / ".lock").read_text()


def test_a_call_that_waits_goes_on_when_the_other_ends(tmp_path):
    script = (
        "import sys\nfrom pathlib import Path\nfrom kimi_nb.deploy import journal\n"
        "with journal.alone(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(KimiError, match=f"process {other.pid}, "),
            journal.alone(tmp_path, wait=False),
        ):
            raise AssertionError("two at once")
        other.stdin.close()
        with journal.alone(tmp_path):
            assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()}, ")
        assert other.wait(10) == 0


def test_a_lock_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(WriteError, match="file/x: cannot be written: Not a directory"),
        journal.alone(tmp_path / "file" / "x"),
    ):
        raise AssertionError("no lock")


# Which one is meant ---------------------------------------------------------------------


def test_beside_are_all_of_the_plan_the_newest_first(tmp_path):
    base = tmp_path / "p" / "deployments"
    for name in ("002", "1000", "010", "999", "009", "x", "1a"):
        put(base / name)
    put(tmp_path / "q" / "deployments" / "099")
    assert [path.name for path in journal.beside(base / "009")] == [
        "1000", "999", "010", "009", "002",
    ]  # fmt: skip


def test_what_is_up_on_a_site(tmp_path):
    def at(name: str, **more: str) -> Journal:
        return put(tmp_path / name / "p" / "deployments" / "001", **more)

    first = at("a", state="up", begun="2026-11-01T10:00:00")
    last = at("b", state="up", begun="2026-11-02T10:00:00")
    at("c", state="down")
    at("d", state="up", site="another")
    at("e", state="failed")
    (tmp_path / "f/p/deployments/001").mkdir(parents=True)
    (tmp_path / "f/p/deployments/001/state.json").write_text("{")
    assert journal.up_on("s", tmp_path) == [last, first]
    assert journal.up_on("none", tmp_path) == []


def test_the_only_one_that_is_not_down_is_meant_else_the_latest(tmp_path):
    def at(name: str, **more: str) -> Journal:
        return put(tmp_path / name / "p" / "deployments" / "001", **more)

    with pytest.raises(ParameterError) as told:
        journal.find("", tmp_path)
    assert str(told.value) == (
        f"{tmp_path}: no deployment was started from here. kimi-nb up starts one; name the folder of "
        "a run."
    )
    old = at("a", state="down", begun="2026-11-03T10:00:00")
    at("b", state="down", begun="2026-11-01T10:00:00")
    at("e", state="down", begun="2026-11-02T10:00:00")
    assert journal.find("", tmp_path) == old
    up = at("c", state="up", begun="2026-11-02T10:00:00")
    assert journal.find("", tmp_path) == up
    (tmp_path / "a/p/deployments/001/state.json").write_text("{")
    assert journal.find("", tmp_path) == up
    new = at("d", state="new", begun="2026-11-04T10:00:00")
    with pytest.raises(ParameterError) as told:
        journal.find("", tmp_path)
    assert str(told.value) == (
        "2 deployments are not down; name one, as in kimi-nb status FOLDER:\n"
        f"  {up.folder}  p on s, up\n  {new.folder}  p on s, new"
    )


def test_a_folder_of_any_depth_names_a_deployment(tmp_path):
    runs = tmp_path / "runs"
    here = put(runs / "r" / "p" / "deployments" / "001", state="up")
    put(runs / "other" / "p" / "deployments" / "001", state="up")
    for folder in (here.folder, here.folder.parent.parent, runs / "r"):
        assert journal.find(str(folder), runs) == here
    (tmp_path / "empty").mkdir()
    with pytest.raises(ParameterError, match=f"^{tmp_path / 'empty'}: no deployment was started"):
        journal.find(str(tmp_path / "empty"), runs)
    with pytest.raises(ParameterError) as told:
        journal.find(str(tmp_path / "absent"), runs)
    assert str(told.value) == (
        f"{tmp_path / 'absent'}: no such folder. Name the folder of a run, such as {runs / 'NAME'}; "
        f"without one it is looked for in {runs}."
    )


def test_one_that_is_damaged_hides_no_other(tmp_path):
    whole = put(tmp_path / "b" / "p" / "deployments" / "001")
    (put(tmp_path / "a" / "p" / "deployments" / "001").folder / "state.json").write_text("{")
    assert journal.find("", tmp_path) == whole
    with pytest.raises(ParameterError, match=r"^RUN 'a\{b': a path is wanted"):
        journal.find("a{b", tmp_path)


def test_two_that_are_damaged_say_so(tmp_path):
    for name in "ab":
        put(tmp_path / name / "p" / "deployments" / "001")
        (tmp_path / name / "p" / "deployments" / "001" / "state.json").write_text("{")
    with pytest.raises(ParameterError, match="is damaged"):
        journal.find("", tmp_path)


# Outcomes -------------------------------------------------------------------------------


def test_nodes_with_one_change_share_a_line():
    changes = [Change(f"n{at}", "copied") for at in range(8)] + [Change("x", "started")]
    assert steps.together(changes) == ["n0, n1, n2, n3, n4, n5, n6, n7: copied", "x: started"]
    changes.append(Change("n8", "copied"))
    assert steps.together(changes)[0] == "n0, n1, n2, n3, n4, n5, n6, n7 and 1 more: copied"
    changes.append(Change("n9", "copied"))
    assert steps.together(changes)[0] == "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more: copied"
    assert steps.together([]) == []


def wrong(node: str, rank: int | None = None, cause: str = "{} is full", **more: str) -> Diagnosis:
    given = {"evidence": "df on {}: 0", "help": "clean {} up"} | more
    texts = {name: text.format(node) for name, text in given.items()}
    return Diagnosis("disk", node, rank, cause.format(node), texts["evidence"], texts["help"])


def test_what_is_wrong_with_several_nodes_alike_is_one():
    (one,) = steps.alike([wrong("n1"), wrong("n2")])
    assert (one.node, one.cause) == ("n1, n2", "each node is full")
    assert (one.evidence, one.help) == ("df on each node: 0", "clean each node up")
    assert one.kind == "disk"
    (one,) = steps.alike([wrong(f"n{at}") for at in range(11)])
    assert one.node == "n0, n1, n2, n3, n4, n5, n6, n7 and 3 more"
    (one,) = steps.alike([wrong(f"n{at}") for at in range(9)])
    assert one.node.endswith("n6, n7 and 1 more")
    (one,) = steps.alike([wrong(f"n{at}") for at in range(8)])
    assert one.node.endswith("n6, n7")
    assert steps.alike([wrong("n1")]) == [wrong("n1")]


@pytest.mark.parametrize(
    "other",
    [
        wrong("n2", cause="{} is slow"),
        wrong("n2", evidence="another"),
        wrong("n2", help="another"),
        wrong("n2", rank=3),
    ],
)
def test_what_differs_is_told_apart(other):
    assert steps.alike([wrong("n1"), other]) == [wrong("n1"), other]


def test_two_ranks_of_a_node_are_two_failures_and_a_longer_name_is_another_node():
    ranks = [wrong("n1", rank=3), wrong("n1", rank=3)]
    assert steps.alike(ranks) == ranks
    longer = wrong("n1", cause="n1-b and n10 ask {}")
    (one,) = steps.alike([longer, dataclasses.replace(longer, node="n1")])
    assert one.cause == "n1-b and n10 ask each node"


def test_a_step_that_failed_keeps_to_a_screen():
    error = StepFailed("weights", [wrong("n1", rank=1), wrong("n2", rank=2)])
    assert (error.step, len(error.failed), error.outcome) == ("weights", 2, Outcome())
    assert str(error).startswith("weights: ") and str(error).count("weights: ") == 2
    many = [wrong(f"n{at}", rank=at, cause="{} " + "x" * 1000) for at in range(9)]
    told = str(StepFailed("weights", many))
    assert told.endswith("\nand 6 more") and len(told) < 4100
    outcome = Outcome(changes=(Change("n", "x"),))
    assert StepFailed("weights", many, outcome).outcome is outcome


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["a", "b"], "a\nb"),
        (["x" * 5000], "x" * 5000),  # the first in any case
        (["x" * 5000, "b"], "x" * 5000 + "\nand 1 more"),
        (["x" * 3998, "b"], "x" * 3998 + "\nb"),
        (["x" * 3999, "b"], "x" * 3999 + "\nand 1 more"),
        (["a\n" * 39, "b"], "a\n" * 39 + "\nb"),
        (["a\n" * 40, "b"], "a\n" * 40 + "\nand 1 more"),
        (["a"] * 50, "\n".join(["a"] * 41) + "\nand 9 more"),
        ([], ""),
    ],
)
def test_a_screen(texts, shown):
    assert steps._screen(texts) == shown
