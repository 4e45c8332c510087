"""The notebooks: their form, and that they run headless for every model and hardware."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import nbformat
import pytest
from habits import notebook_form

from kimi_nb.core import data_files, evidence, paths
from kimi_nb.core.errors import KimiError, NoRecipeError, WriteError
from kimi_nb.notebook import choice, runbook
from kimi_nb.notebook.subject import Subject
from kimi_nb.params import load, recipes
from kimi_nb.service import prerequisites

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_the_manifest_lists_every_notebook():
    assert [path.stem for path in NOTEBOOKS] == list(data_files.facts("notebook/notebooks"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_form(path):
    """What the form is, and how a fault in it is told: tests/habits/test_habits.py."""
    assert not [str(flaw) for flaw in notebook_form.flaws(path)]


SERVING = [path for path in NOTEBOOKS if re.search(r"run\.serv(e|ice)\(", path.read_text("utf-8"))]
SERVING += [ROOT / "notebooks" / "09_tuning.ipynb"]  # its sweep serves


@pytest.mark.parametrize("path", SERVING, ids=[path.stem for path in SERVING])
def test_what_a_plan_is_made_of_can_be_said_in_each(path):
    """So that one notebook can verify or measure what another one has deployed."""
    sources = ["".join(one["source"]) for one in json.loads(path.read_text())["cells"]]
    parameters = next(one for one in sources if one.startswith("hw: str"))
    chosen = next(one for one in sources if "run.choose(" in one)
    started = next(one for one in sources if "kimi_nb.start(" in one)
    of_the_run = {"model", "hw", "site", "derive"}  # a run is of these; a choice takes them from it
    for name in choice.Choice.__dataclass_fields__.keys() - of_the_run - {"layout"}:
        assert f"\n{name}: str = " in parameters
        assert f"{name}={name}" in chosen
    for name in of_the_run:
        assert re.search(rf"^{name}: {'bool' if name == 'derive' else 'str'} = ", parameters, re.M)
        assert f"{name}={name}" in started


@pytest.mark.parametrize("path", SERVING, ids=[path.stem for path in SERVING])
def test_one_word_ends_what_a_notebook_has_deployed(path):
    """`stop`, where a service is left up for the next notebook; a sweep leaves none."""
    cells = [
        "".join(one["source"])
        for one in json.loads(path.read_text())["cells"]
        if one["cell_type"] == "code"
    ]
    parameters = next(one for one in cells if one.startswith("hw: str"))
    ends = [one for one in cells if ".stop(" in one or ".clean_up(" in one]
    assert len(ends) == 1 and "\nkeep: " not in parameters
    if "service.stop(keep=not stop)" in ends[0]:
        assert "\nstop: bool = False" in parameters
    else:
        assert "found.clean_up()" in ends[0] and "\nstop: " not in parameters


LOOKING = [path for path in NOTEBOOKS if "run.prerequisites(" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("action, stops", [("plan", False), ("rehearse", False), ("deploy", True)])
@pytest.mark.parametrize("path", LOOKING, ids=[path.stem for path in LOOKING])
def test_only_a_deployment_is_stopped_by_a_look_that_fails(path, action, stops):
    look = prerequisites.Look("disk", "space", ("df",), "600 GB", "", "", "ours")
    failed = prerequisites.Looks((prerequisites.Seen(look, "fail", "12 GB"),))
    run = types.SimpleNamespace(action=action, prerequisites=lambda choice, **_: failed)
    sources = ["".join(one["source"]) for one in json.loads(path.read_text())["cells"]]
    cells = [one for one in sources if "looks = " in one or "looks.failed" in one]
    assert cells
    with pytest.raises(AssertionError, match="12 GB") if stops else contextlib.nullcontext():
        for cell in cells:
            exec(cell, {"run": run, "choice": None, "layout": "", "looks": failed})


def papermill(*args: str, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "papermill", "--no-progress-bar", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )


@pytest.mark.parametrize(
    "folder, path", [(".", "notebooks/05_pd.ipynb"), ("notebooks", "05_pd.ipynb")]
)
def test_from_the_root_and_from_the_folder(folder, path, tmp_path):
    done = papermill(
        path,
        str(tmp_path / "out.ipynb"),
        "-p",
        "hw",
        "a3",
        "-p",
        "action",
        "plan",
        "-p",
        "run_dir",
        str(tmp_path / "run"),
        cwd=ROOT / folder,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "k2.5-a3-pd" / "bundle" / "a3-0" / "proxy.sh").is_file()


@pytest.mark.parametrize(
    "given, wanted",
    [
        (["-p", "hww", "a3"], "did you mean 'hw'"),
        (["-p", "hw", "a9"], "Allowed: a2, a3"),
        (["-p", "model", "k2-instruct"], "There is:"),
        (["-p", "action", "deploy!"], "Allowed: plan"),
        (["-p", "model", "2.5"], "-r model"),
        (["-p", "overrides", "max-num-seq=3"], "did you mean 'max-num-seqs'"),
        (["-p", "run_dir", "/proc/none"], "cannot be written"),
        (["-p", "run_dir", "a;b"], "';' is not allowed"),
        (["-p", "features", "3"], "-r NAME"),
        (["-p", "engine_version", "0.20"], "-r engine_version"),
    ],
)
def test_wrong_parameters_stop(given, wanted, tmp_path):
    done = papermill(
        "notebooks/05_pd.ipynb",
        str(tmp_path / "out.ipynb"),
        "-p",
        "run_dir",
        str(tmp_path / "run"),
        *given,
        cwd=ROOT,
    )
    assert done.returncode != 0
    assert wanted in done.stderr
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    errors = [
        output
        for cell in cells
        for output in cell.get("outputs", [])
        if output.output_type == "error"
    ]
    assert len(errors) == 1 and len(errors[0].traceback) < 3, "a stack for a person's mistake"


def _combinations() -> list[tuple[str, str]]:
    """Every model and hardware that we wrote recipes for; of those that others publish one of K2.5
    and of K3 on each hardware, and the other models on one. What is in a plan is tested of each.

    That of k2.5 on a3 is in test_first_run; tiny models stand for others on a CPU.
    """
    every = {
        (name, recipe.hardware)
        for name in load.names("models")
        if not name.startswith("tiny")
        for recipe in load.model(name).recipes
        if not recipe.source.deployment or name in ("k2.5", "k3") or recipe.hardware == "b200"
    }
    every |= {
        (name, chip)
        for name in load.names("models")
        for chip in load.model(name).container_versions
    }
    every |= {("k2.5", "cpu")}
    return sorted(every - {("k2.5", "a3")})


COMBINATIONS = _combinations()


# Those that prove and tune a service take minutes, and the FAQ is the same for all: one model on
# each kind of machine. What of them depends on the plan is tested of every plan without a notebook.
PROVED = {("k2.5", "a2"), ("k2.5", "h200")}


@pytest.mark.long
@pytest.mark.parametrize(
    "model, hardware", COMBINATIONS, ids=[f"{model}-{hardware}" for model, hardware in COMBINATIONS]
)
def test_every_model_and_hardware(model, hardware, tmp_path):
    manifest = data_files.facts("notebook/notebooks")
    proved = (model, hardware) in PROVED
    only = [
        name
        for name in runbook.which(model, hardware)
        if proved or (manifest[name]["layout"] != "any" and name != "10_faq")
    ]
    refused = runbook.left_out(only, Subject.load(model, hardware))
    only = [name for name in only if name not in refused]
    outcome = runbook.run(model, hardware, only=only, run_dir=str(tmp_path / "run"))
    assert outcome.ok, str(outcome)
    names = [result.notebook for result in outcome.results]
    layouts = {recipe.layout for recipe in recipes.of(load.model(model), load.hardware(hardware))}
    assert names == [
        name
        for name, entry in manifest.items()
        if "kind" not in entry
        and entry["layout"] in {"", "any" if proved else "", *layouts}
        and (proved or name != "10_faq")
        and name not in refused
    ]
    stages = [entry["stage"] for entry in evidence.read(outcome.folder)]
    assert stages[0] == "run" and stages[-1] == "end" and stages.count("notebook") == len(names)
    for name in (*names, "report"):
        page = (outcome.folder / f"{name}.html").read_text()
        assert "<script" not in page, "the page would run, or load, something"
        assert 'src="http' not in page and "@import" not in page and "url(http" not in page


@pytest.mark.long
def test_a_layout_with_a_known_fault_is_left_out(tmp_path):
    """K3 with prefill and decode apart answers wrongly on NVIDIA, and nobody has a remedy."""
    outcome = runbook.run("k3", "b300", run_dir=str(tmp_path / "run"))
    by_name = {result.notebook: result for result in outcome.results}
    assert outcome.ok and by_name["04_multi_node_dp"].status == "ok"
    assert by_name["05_pd"].status == "left out" and "silent corruption" in by_name["05_pd"].fault
    assert not (tmp_path / "run" / "05_pd.ipynb").exists()
    # Those for any layout take one without the fault.
    assert by_name["08_performance"].status == "ok"
    assert "left out" in (tmp_path / "run" / "report.html").read_text()
    asked = runbook.run("k3", "b300", only="05", run_dir=str(tmp_path / "asked"))
    assert not asked.ok and "v-k3-pd-corrupt" in asked.results[0].fault


def test_variants_and_scenarios(tmp_path):
    """The parameters of a stage reach its plan."""
    import papermill as pm

    pm.execute_notebook(
        str(ROOT / "notebooks/03_single_node.ipynb"),
        str(tmp_path / "o.ipynb"),
        parameters={
            "hw": "h200",
            "variant": "slurm",
            "scenario": "optimised",
            "without": "cpu-offload",
            "overrides": "max-num-seqs=9",
            "run_dir": str(tmp_path / "run"),
        },
        kernel_name="python3",
        progress_bar=False,
    )
    plan = json.loads(next((tmp_path / "run").glob("*/bundle/plan.json")).read_text())
    argv = plan["engines"][0]["argv"]
    assert argv[argv.index("--max-num-seqs") + 1] == "9" and "--enable-eplb" in argv
    assert "--kv-offloading-size" not in argv


def test_a_failed_notebook_fails_the_run(tmp_path, monkeypatch):
    """A site of other hardware: every notebook that plans stops, and the run says which."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "params", tree / "params")
    shutil.copytree(ROOT / "notebooks", tree / "notebooks")
    broken = tree / "notebooks" / "00_start.ipynb"
    broken.write_text(
        broken.read_text().replace("assert len(features) > 5", "assert len(features) > 500")
    )
    monkeypatch.setattr(paths, "root", lambda: tree)
    outcome = runbook.run("k2.5", "a3", only=["00", "01"], run_dir=str(tmp_path / "run"))
    assert not outcome.ok
    assert [result.status for result in outcome.results] == ["failed", "ok"]
    assert "len(features) > 500" in outcome.results[0].fault
    assert evidence.read(outcome.folder)[-1]["ok"] is False


def test_kernels_leave_nothing_where_temporary_files_lie(tmp_path, monkeypatch):
    """Not even where their disk is full: the folder of a notebook is removed as a whole."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    folders = tmp_path / "tmp", tmp_path / "kernels"
    for folder in folders:
        folder.mkdir()
    with runbook._kernels(str(folders[1]), tmp_path / "kernels.log") as options:
        managers = [options["kernel_manager_class"]() for _ in range(2)]
        for manager in managers:
            manager.write_connection_file()
        found = {Path(manager.connection_file) for manager in managers}
        assert len(found) == 2 and {path.parent for path in found} == {folders[1]}
    assert not list(folders[0].iterdir())


def test_a_full_disk_for_temporary_files_is_named(tmp_path, monkeypatch):
    import papermill

    def execute_notebook(source: str, raw: str, **_options: object) -> None:
        Path(raw).touch()  # what is left where writing fails
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(papermill, "execute_notebook", execute_notebook)
    target = tmp_path / "01_prerequisites.ipynb"
    fault = runbook._papermill("01_prerequisites", target, {}, tmp_path / "kernels.log")
    assert "No space left on device" in fault and "TMPDIR" in fault and not target.exists()


def test_one_run_in_a_folder(tmp_path):
    """A second run in the same folder at the same time is refused; afterwards it is not."""
    folder = tmp_path / "run"
    folder.mkdir()
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(WriteError, match="another run"):
        runbook.run("k2.5", "a3", only="00", run_dir=str(folder))
    os.close(lock)
    assert runbook.run("k2.5", "a3", only="00", run_dir=str(folder)).ok


@pytest.mark.parametrize("only, run_dir", [(",", ""), (None, "a;b"), (None, "{x}")])
def test_runs_that_are_not_started(only, run_dir):
    with pytest.raises(KimiError):
        runbook.run("k2.5", "a3", only=only, run_dir=run_dir)


def test_a_file_is_no_run_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError):
        runbook.run("k2.5", "a3", run_dir=str(tmp_path / "file"))


def test_an_interrupted_run_says_so(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runbook, "_execute_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runbook.run("k2.5", "a3", run_dir=str(tmp_path / "run"))
    assert evidence.read(tmp_path / "run")[-1]["interrupted"] is True


def test_only_and_what_applies():
    listed = data_files.facts("notebook/notebooks")
    manifest = {name: entry for name, entry in listed.items() if "kind" not in entry}
    every = [name for name, entry in manifest.items() if entry["layout"] == ""]
    assert {"00_start", "10_faq"} <= {*every}
    assert runbook.which("k2.5", "a3") == [
        name for name, entry in manifest.items() if entry["layout"] != "dp"
    ]
    assert runbook.which("k2.6", "a2") == every
    assert runbook.which("k2.5", "a2", ["04", "00"]) == ["00_start", "04_multi_node_dp"]
    with pytest.raises(NoRecipeError):
        runbook.which("k2-instruct", "a3")


def test_several_at_once_and_a_second_run_in_the_same_second(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "now", lambda: "20260101T000000Z")
    monkeypatch.setattr(runbook, "runs_folder", lambda: tmp_path / "runs")
    first = runbook.run("k2.5", "a3", only=["00", "01"], jobs=2)
    second = runbook.run("k2.5", "a3", only=["00"])
    assert first.ok and second.ok and first.folder != second.folder
    assert [result.notebook for result in first.results] == ["00_start", "01_prerequisites"]


@pytest.mark.parametrize(
    "name, given, wanted",
    [
        ("06_verification", ["only", "nope"], "check 'nope' is not known"),
        ("06_verification", ["max_context", "abc"], "max_context 'abc'"),
        ("07_accuracy", ["tool", "foo"], "tool 'foo' is not known"),
        ("07_accuracy", ["limit", "-3"], "limit -3"),
        ("08_performance", ["repetitions", "0"], "repetitions: a whole number"),
        ("08_performance", ["tool", "foo"], "tool 'foo' is not known"),
    ],
)
def test_what_a_stage_cannot_do_is_told_before_anything_is_started(name, given, wanted, tmp_path):
    done = papermill(
        f"notebooks/{name}.ipynb",
        str(tmp_path / "out.ipynb"),
        "-p",
        "run_dir",
        str(tmp_path / "run"),
        "-p",
        *given,
        cwd=ROOT,
    )
    assert done.returncode != 0 and wanted in done.stderr, done.stderr
    stages = {entry["stage"] for entry in evidence.read(tmp_path / "run")}
    assert "start" in stages and not {"gate", "rehearse", "deploy", "attach", "share"} & stages
