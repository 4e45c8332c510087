"""A plan on a cluster of SLURM: what is looked at, claimed, written and tested before any job."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from answering_slurm import UP, Clock, Site, failure, whats

from kimi_nb.bundle import writer
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import claim
from kimi_nb.deploy.slurm import job_faults, slurm_commands
from kimi_nb.deploy.slurm.cluster import Cluster
from kimi_nb.deploy.slurm.slurm_commands import SlurmError
from kimi_nb.deploy.steps import Change, Outcome, Step
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis

NO_ANSWER = "Unable to contact slurm controller (connect failure)"
SILENT = job_faults.silent(SlurmError(NO_ANSWER))
JOBS = ["create_vllm_env", "install_vllm", "download_kimi", "vllm_kimi"]


@pytest.fixture
def site(tmp_path, monkeypatch):
    Clock(monkeypatch)
    return Site(tmp_path)


def not_writable(folder: Path, why: str, remedy: str = "slurm/not-shared") -> Diagnosis:
    return Diagnosis(
        "not-writable",
        "login node",
        None,
        f"{folder} cannot be written",
        why,
        remedies.of(remedy),
    )


# The whole ------------------------------------------------------------------------------------


def test_the_steps_lead_from_the_login_node_to_a_serving_job(site):
    assert [(one.name, one.title, one.always) for one in site.cluster.steps] == [
        ("reach", "look for SLURM, its partitions and the shared folders", True),
        ("claim", "take the site for this run", True),
        ("push", "put the bundle into the shared folder", False),
        ("test", "ask sbatch whether it would take every job", False),
        ("submit", "submit the jobs, each after the one before", True),
        ("wait", "wait until the serving job runs", True),
    ]
    cluster = site.cluster
    assert cluster.after == (
        Step("benchmark", "submit the benchmark job", cluster.submit_benchmark),
    )
    assert cluster.undone("push") is False and cluster.memory_mb() == 0.0
    assert cluster.open_door() == Outcome() and cluster.close() is None
    assert cluster.log_folder == site.root / "run-1" / "logs" and cluster.bundle == site.bundle
    assert cluster.plan is site.plan and site.slurm.asked == []


def test_a_plan_without_jobs_is_no_plan_for_slurm(site):
    with pytest.raises(ParameterError) as told:
        Cluster(replace(site.plan, jobs=()), site.files, site.root, "run-1", print)
    assert str(told.value) == (
        "k2.5-h200-single-slurm has no jobs; choose a variant made of SLURM jobs (kimi-nb list)."
    )


def test_without_others_the_commands_are_those_of_this_machine(site, monkeypatch):
    monkeypatch.setattr(slurm_commands, "here", lambda: site.slurm)
    made = Cluster(site.plan, site.files, site.root / "run-2", "run-2", site.said.append)
    assert made.look() == ([], f"{UP}; sbatch takes 5 jobs")


def test_the_queue_is_looked_at_every_two_seconds_unless_told_otherwise(site, monkeypatch):
    site.prepared()
    site.step("submit")
    clock = Clock(monkeypatch)
    clock.on = lambda: site.slurm.set(11, "RUNNING", "n1") or site.host_file.write_text("n1")
    made = Cluster(
        site.plan, site.files, site.root / "run-1", "run-1", site.said.append, commands=site.slurm
    )
    made.steps[-1].run()
    assert clock.slept == [2.0]


# Reaching -------------------------------------------------------------------------------------


def test_a_cluster_with_all_that_is_needed_is_reached(site):
    assert site.step("reach") == Outcome(facts={"controller": UP})
    assert site.slurm.asked == ["ping", "partitions"]
    assert not site.project.exists() and not site.work.exists()


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        (("sinfo",), "sinfo is not on this machine"),
        (("sbatch", "scancel"), "sbatch, scancel are not on this machine"),
    ],
)
def test_a_machine_without_commands_of_slurm_is_told(site, gone, says):
    for name in gone:
        (site.root / "bin" / name).unlink()
    assert failure(lambda: site.step("reach"), "reach").failed == (
        Diagnosis(
            "no-slurm",
            "login node",
            None,
            says,
            f"PATH={site.root}/bin",
            remedies.of("slurm/no-commands"),
        ),
    )
    assert site.slurm.asked == []


def test_a_machine_without_a_path_has_no_commands(site, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    del site.slurm.env["PATH"]
    (found,) = failure(lambda: site.step("reach"), "reach").failed
    assert found.evidence == "PATH="


@pytest.mark.parametrize("call", ["ping", "partitions"])
def test_a_controller_that_is_silent_ends_the_look(site, call):
    site.slurm.silent[call] = NO_ANSWER
    assert failure(lambda: site.step("reach"), "reach").failed == (SILENT,)


def test_a_partition_that_is_not_there_is_told_once(site):
    site.slurm.partitions_say = "gpu|up\nlong|up\n"
    known = {"gpu": "up", "long": "up"}
    assert failure(lambda: site.step("reach"), "reach").failed == (
        job_faults.no_partition(site.plan, "common", known),
    )
    site.slurm.partitions_say = ""
    assert failure(lambda: site.step("reach"), "reach").failed == (
        job_faults.no_partition(site.plan, "common", {}),
        job_faults.no_partition(site.plan, "gpu", {}),
    )


def test_the_partition_of_the_benchmark_must_be_there_too(site):
    site.cluster._benchmark = replace(
        site.cluster._benchmark, options=("--partition=bench", "--job-name=benchmark_kimi")
    )
    assert failure(lambda: site.step("reach"), "reach").failed == (
        job_faults.no_partition(site.plan, "bench", {"gpu": "up", "common": "up"}),
    )


def test_a_partition_that_takes_no_jobs_is_a_warning(site):
    site.slurm.partitions_say = "gpu|drain\ncommon|up\n"
    words = "partition gpu is drain: jobs wait there until it is up"
    assert site.step("reach") == Outcome(
        warnings=(Change("SLURM", words),), facts={"controller": UP}
    )


def test_a_file_in_the_place_of_a_folder_is_told(site):
    site.work.write_text("")
    site.project.mkdir()
    told = failure(lambda: site.step("reach"), "reach")
    assert told.failed == (not_writable(site.work, f"{site.work} is no folder"),)


def test_folders_that_cannot_be_written_are_told_with_what_forbids_it(site, monkeypatch):
    asked = []

    def access(path, mode):
        if path != str(site.root / "bin" / Path(path).name):
            asked.append((path, mode))
        return path != site.root

    site.work.mkdir()
    monkeypatch.setattr(os, "access", access)
    assert failure(lambda: site.step("reach"), "reach").failed == (
        not_writable(site.project, f"{site.root}: no permission to write"),
    )
    assert asked == [(site.work, os.W_OK | os.X_OK), (site.root, os.W_OK | os.X_OK)]


def test_a_folder_of_another_user_that_lets_nobody_look_is_told(site, monkeypatch):
    """`exists` of what is below it raises an error on some versions of Python."""
    closed, stat = site.root / "theirs", os.stat

    def closed_stat(path, **how):
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **how)

    closed.mkdir()
    site.cluster._work = closed / "a" / "work"
    monkeypatch.setattr(os, "stat", closed_stat)
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    assert failure(lambda: site.step("reach"), "reach").failed == (
        not_writable(site.cluster._work, f"{closed}: no permission to write"),
    )


def test_all_that_is_wrong_is_told_at_once(site):
    site.slurm.partitions_say = "gpu|up\n"
    site.work.write_text("")
    site.project.write_text("")
    found = failure(lambda: site.step("reach"), "reach").failed
    assert [one.kind for one in found] == ["no-partition", "not-writable", "not-writable"]


def test_a_folder_that_is_both_places_is_told_once(site):
    site.work.write_text("")
    site.cluster._host_file = site.work / "server_host.txt"
    assert len(failure(lambda: site.step("reach"), "reach").failed) == 1


# Looking --------------------------------------------------------------------------------------


def test_a_look_shows_every_job_to_sbatch_and_changes_nothing(site):
    assert site.cluster.look() == ([], f"{UP}; sbatch takes 5 jobs")
    assert site.slurm.asked == [
        "ping", "partitions", *(f"test {name}" for name in JOBS), "test benchmark_kimi",
    ]  # fmt: skip
    assert not site.project.exists() and not site.work.exists()


def test_a_look_tells_each_refusal_with_what_was_asked_for(site):
    site.slurm.refuses = {"vllm_kimi": "Invalid qos", "benchmark_kimi": "Invalid account"}
    found, says = site.cluster.look()
    assert found == [
        job_faults.refused(job, why, site.files[f"jobs/{job.file}"])
        for job, why in [
            (site.job("baseline"), "Invalid qos"),
            (site.job("benchmark"), "Invalid account"),
        ]
    ]
    assert says == f"{UP}; sbatch takes 5 jobs"


@pytest.mark.parametrize("call", ["ping", "test"])
def test_a_look_without_an_answer_says_so(site, call):
    site.slurm.silent[call] = NO_ANSWER
    found, says = site.cluster.look()
    assert list(found) == [SILENT] and says == ""


# Claiming -------------------------------------------------------------------------------------


def test_a_site_is_claimed_once(site):
    path = site.work / "claim"
    assert site.step("claim") == Outcome((Change("login node", f"{path}: the site is this run's"),))
    held = claim.holder(path)
    assert (held.run_id, held.plan) == ("run-1", site.plan.name)
    assert site.step("claim") == Outcome() and claim.holder(path) == held
    (site.work / "claim").unlink()  # the folder is there already
    assert whats(site.step("claim").changes, "login node") == [f"{path}: the site is this run's"]


def test_the_folder_of_a_claim_is_made_with_those_above_it(site):
    site.cluster._work = site.root / "a" / "work"
    path = site.root / "a" / "work" / "claim"
    assert whats(site.step("claim").changes, "login node") == [f"{path}: the site is this run's"]


def test_a_site_of_another_run_is_left_to_it(site):
    site.step("claim")
    held = claim.holder(site.work / "claim")
    site.cluster = site.process("run-2")
    told = failure(lambda: site.step("claim"), "claim")
    assert told.failed == (job_faults.held(site.work / "claim", held),)
    assert claim.holder(site.work / "claim") == held


def test_a_claim_that_cannot_be_written_is_told(site):
    site.work.write_text("")
    told = failure(lambda: site.step("claim"), "claim")
    why = f"[Errno 17] File exists: '{site.work}'"
    assert told.failed == (not_writable(site.work / "claim", why, "slurm/no-log-folder"),)


# The bundle -----------------------------------------------------------------------------------


def test_the_bundle_is_written_and_then_left_alone(site):
    names = ", ".join(sorted(site.files))
    assert whats(site.step("push").changes, "login node") == [f"{site.bundle}: new: {names}"]
    assert writer.read(site.bundle) == site.files
    # Without a bundle whose jobs could be in the queue, and without a change, nobody asks.
    asked = list(site.slurm.asked)
    assert site.step("push") == Outcome() and site.slurm.asked == asked


def test_what_is_done_to_the_files_is_told_together(site):
    site.step("push")
    for name, text in {"README.md": "x", "DAY.md": "y", "notes.md": "z"}.items():
        site.files[name] = text
    del site.files["client/chat.sh"]
    plan = site.files["plan.json"]
    site.files["plan.json"] = plan.replace('"client/chat.sh",', "").replace(
        '"DAY.md",', '"DAY.md", "notes.md",'
    )
    site.cluster = site.process()
    changes = [
        Change("login node", f"{site.bundle}: changed: DAY.md, README.md, plan.json"),
        Change("login node", f"{site.bundle}: new: notes.md"),
        Change("login node", f"{site.bundle}: gone: client/chat.sh"),
    ]
    assert site.cluster.preview()[1:4] == changes
    assert site.step("push") == Outcome(tuple(changes))


def test_a_bundle_is_not_pulled_from_under_jobs(site):
    site.step("push")
    site.slurm.add(8, "install_vllm", "FAILED")
    site.slurm.add(9, "vllm_kimi", "RUNNING", "n1")
    (live,) = (one for one in site.cluster.jobs() if one.id == 9)
    site.files |= {"README.md": "x", "DAY.md": "y"}
    site.cluster = site.process()
    told = failure(lambda: site.step("push"), "push")
    assert told.failed == (job_faults.other_scripts([live], ["DAY.md", "README.md"]),)
    assert writer.read(site.bundle)["README.md"] != "x"
    site.slurm.set(9, "CANCELLED")
    assert whats(site.step("push").changes, "login node") == [
        f"{site.bundle}: changed: DAY.md, README.md"
    ]


def test_jobs_whose_folder_was_removed_do_not_keep_a_bundle_away(site):
    site.slurm.add(9, "vllm_kimi", "RUNNING", "n1")
    assert len(site.step("push").changes) == 1


def test_a_bundle_is_not_written_while_nobody_says_which_jobs_run(site):
    site.slurm.silent["queue"] = NO_ANSWER
    assert failure(lambda: site.step("push"), "push").failed == (SILENT,)
    assert not site.bundle.exists()


def test_a_bundle_that_cannot_be_written_is_told(site):
    site.bundle.mkdir(parents=True)
    (site.bundle / "mine.txt").write_text("")
    (found,) = failure(lambda: site.step("push"), "push").failed
    why = (
        f"{site.bundle}: is there already and is no bundle (no plan.json of ours); name "
        "a new folder, or empty this one."
    )
    assert found == not_writable(site.bundle, why, "slurm/no-bundle")


def test_the_changes_of_the_scripts_are_shown(site):
    assert site.cluster.diff() == ""
    site.step("push")
    assert site.cluster.diff() == ""
    old = site.files["README.md"]
    site.files["README.md"] = f"{old}more\n"
    text = site.process().diff()
    assert text.startswith("--- before/README.md\n+++ after/README.md\n@@")
    assert text.endswith("\n+more")


# Testing --------------------------------------------------------------------------------------


def test_sbatch_is_asked_for_every_job_that_is_to_be_submitted(site):
    site.pushed()
    files = ["1_create_env.sbatch", "2_install.sbatch", "3_download.sbatch", "4_baseline.sbatch"]
    assert site.step("test") == Outcome(facts={"tested": [*files, "7_benchmark.sbatch"]})
    assert site.slurm.changed == []


def test_what_is_there_already_is_not_tested(site):
    site.serves()
    assert site.step("test") == Outcome(facts={"tested": ["7_benchmark.sbatch"]})
    site.cluster.submit_benchmark()
    asked = len(site.slurm.asked)
    assert site.step("test") == Outcome() and site.slurm.asked[asked:] == ["queue"]


def test_all_refused_jobs_are_told_and_nothing_is_submitted(site):
    site.prepared()
    site.slurm.refuses = {"vllm_kimi": "Invalid qos", "benchmark_kimi": "Invalid account"}
    found = failure(lambda: site.step("test"), "test").failed
    assert found == tuple(
        job_faults.refused(job, why, site.files[f"jobs/{job.file}"])
        for job, why in [
            (site.job("baseline"), "Invalid qos"),
            (site.job("benchmark"), "Invalid account"),
        ]
    )
    assert "--partition=gpu" in found[0].evidence and site.slurm.changed == []


@pytest.mark.parametrize("call", ["queue", "test"])
def test_a_silent_slurm_ends_the_test(site, call):
    site.pushed()
    site.slurm.silent[call] = NO_ANSWER
    assert failure(lambda: site.step("test"), "test").failed == (SILENT,)


# The preview ----------------------------------------------------------------------------------


def test_a_preview_tells_every_change_and_makes_none(site):
    names = ", ".join(sorted(site.files))
    assert site.cluster.preview() == [
        Change("login node", f"{site.work}/claim: would be taken for this run"),
        Change("login node", f"{site.bundle}: new: {names}"),
        *(
            Change("SLURM", f"jobs/{at}.sbatch ({name}): would be submitted")
            for at, name in zip(
                ("1_create_env", "2_install", "3_download", "4_baseline"), JOBS, strict=True
            )
        ),
        Change(
            "SLURM",
            "jobs/7_benchmark.sbatch (benchmark_kimi): would be submitted when the service is ready",
        ),
    ]
    assert site.slurm.changed == []
    assert not site.work.exists() and not (site.root / "run-1").exists()


def test_a_preview_of_what_is_there_is_empty(site):
    site.serves()
    site.cluster.submit_benchmark()
    assert site.cluster.preview() == []


def test_a_preview_says_who_has_the_site(site):
    site.serves()
    held = claim.holder(site.work / "claim")
    other = site.process("run-2")
    first, *_ = other.preview()
    assert first == Change(
        "login node", f"{site.work}/claim: {held} has the site; nothing would be done"
    )


def test_a_preview_tells_each_refusal(site):
    site.slurm.refuses = {"install_vllm": "Invalid qos", "vllm_kimi": "Invalid account"}
    assert failure(site.cluster.preview, "test").failed == tuple(
        job_faults.refused(job, why, site.files[f"jobs/{job.file}"])
        for job, why in [
            (site.job("install"), "Invalid qos"),
            (site.job("baseline"), "Invalid account"),
        ]
    )


def test_a_preview_of_a_silent_slurm_says_so(site):
    site.slurm.silent["ping"] = NO_ANSWER
    assert failure(site.cluster.preview, "reach").failed == (SILENT,)
    for call in ("queue", "test"):
        site.slurm.silent = {call: NO_ANSWER}
        with pytest.raises(SlurmError, match=re.escape(NO_ANSWER)):
            site.cluster.preview()


def test_a_preview_records_nothing_of_what_it_sees(site):
    site.pushed()
    site.slurm.add(9, "vllm_kimi", "RUNNING", "n1")
    changes = whats(site.cluster.preview(), "SLURM")
    assert "jobs/4_baseline.sbatch (vllm_kimi): would be submitted" not in changes
    assert site.book.entries == {} and not (site.root / "run-1").exists()
