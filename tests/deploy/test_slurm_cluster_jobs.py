"""The jobs of a plan on a cluster of SLURM: which are submitted, waited for, and measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from answering_slurm import Clock, Site, failure, whats

from kimi_nb.deploy.slurm import job_faults
from kimi_nb.deploy.slurm.job_book import JobState
from kimi_nb.deploy.slurm.slurm_commands import SlurmError
from kimi_nb.deploy.steps import Change, Outcome
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis

NO_ANSWER = "Unable to contact slurm controller (connect failure)"
SILENT = job_faults.silent(SlurmError(NO_ANSWER))
FILES = {
    "create_vllm_env": "1_create_env",
    "install_vllm": "2_install",
    "download_kimi": "3_download",
    "vllm_kimi": "4_baseline",
}
KEYED = "api_key_env: KIMI_KEY\n"
WAITS = "--kill-on-invalid-dep=yes"


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def site(tmp_path, clock):
    return Site(tmp_path)


def submitted(number: int, name: str) -> Change:
    return Change("SLURM", f"job {number} ({name}): submitted from jobs/{FILES[name]}.sbatch")


def products(site: Site, *names: str) -> None:
    """Make what jobs leave behind."""
    for name in names:
        for path in map(Path, site.job(name).products):
            path.mkdir(parents=True)


# Submitting -----------------------------------------------------------------------------------


def test_the_jobs_are_submitted_each_after_the_one_before(site):
    site.pushed()
    asked = len(site.slurm.asked)
    assert site.step("submit") == Outcome(
        tuple(submitted(11 + at, name) for at, name in enumerate(FILES)),
        facts={"jobs": {"create-env": 11, "install": 12, "download": 13, "baseline": 14}},
    )
    assert site.slurm.asked[asked:] == [
        "queue",
        "submit create_vllm_env",
        f"submit install_vllm --dependency=afterok:11 {WAITS}",
        f"submit download_kimi --dependency=afterok:12 {WAITS}",
        f"submit vllm_kimi --dependency=afterok:13 {WAITS}",
    ]
    assert site.step("submit") == Outcome(facts={"jobs": site.cluster._queue.ids()})


def test_the_scenario_decides_which_job_serves(tmp_path, clock):
    site = Site(tmp_path, scenario="optimised").prepared()
    assert site.step("submit").changes == (
        Change("SLURM", "job 11 (vllm_kimi_opt): submitted from jobs/6_optimised.sbatch"),
    )
    assert site.slurm.changed == ["submit vllm_kimi_opt"]


def test_a_job_is_recorded_before_the_next_is_submitted(site):
    site.pushed()
    seen = {}

    def on(asked):
        if asked.startswith("submit "):
            path = site.root / "run-1" / "jobs.json"
            jobs = json.loads(path.read_text())["jobs"] if path.exists() else {}
            seen[asked.split()[1]] = [one["id"] for one in jobs.values()]

    site.slurm.on = on
    site.step("submit")
    assert list(seen.values()) == [[], [11], [11, 12], [11, 12, 13]]


def test_a_refusal_in_the_middle_tells_what_was_submitted(site):
    site.pushed()
    site.slurm.refuses["download_kimi"] = "Invalid qos"
    told = failure(lambda: site.step("submit"), "submit")
    text = site.files["jobs/3_download.sbatch"]
    assert told.failed == (job_faults.refused(site.job("download"), "Invalid qos", text),)
    made = (submitted(11, "create_vllm_env"), submitted(12, "install_vllm"))
    assert told.outcome == Outcome(made, facts={"jobs": {"create-env": 11, "install": 12}})
    # The next attempt goes on there.
    site.slurm.refuses.clear()
    assert whats(site.step("submit").changes, "SLURM") == [
        submitted(13, "download_kimi").what,
        submitted(14, "vllm_kimi").what,
    ]
    assert site.slurm.changed[-2] == f"submit download_kimi --dependency=afterok:12 {WAITS}"


def test_a_silence_in_the_middle_tells_what_was_submitted(site):
    site.pushed()
    site.step("submit")
    site.slurm.set(11, "CANCELLED")
    site.slurm.silent["cancel"] = NO_ANSWER
    told = failure(lambda: site.step("submit"), "submit")
    assert told.failed == (SILENT,)
    made = (submitted(15, "create_vllm_env"),)
    assert told.outcome == Outcome(made, facts={"jobs": site.cluster._queue.ids()})


def test_what_another_run_of_the_plan_has_done_is_kept(site):
    site.prepared()
    site.root.joinpath("run-1").rename(site.root / "old")
    record = site.root / "old" / "jobs.json"
    record.write_text(record.read_text().replace("run-1", "run-0"))
    site.cluster = site.process(earlier=[site.root / "old"])
    assert whats(site.step("submit").changes, "SLURM") == [submitted(11, "vllm_kimi").what]
    # Not the benchmark, which measures a service of its own run.
    kept = json.loads(record.read_text())
    kept["jobs"]["benchmark"] = kept["jobs"]["download"]
    kept["jobs"]["baseline"] = kept["jobs"]["download"]
    record.write_text(json.dumps(kept))
    site.cluster = site.process("run-3", earlier=[site.root / "old"])
    assert set(site.book.entries) == {"create-env", "install", "download"}


def test_a_job_that_works_for_another_run_is_none_of_ours(site):
    site.pushed()
    site.slurm.add(9, "vllm_kimi", "RUNNING", "n1", comment="kimi_nb:run-2")
    assert len(site.step("submit").changes) == 4


def test_work_whose_product_has_disappeared_is_done_again_with_all_that_follows(site):
    site.prepared()
    (weights,) = site.job("download").products
    Path(weights).rmdir()
    assert site.slurm.changed == []
    site.step("submit")
    assert site.slurm.changed == [
        "submit download_kimi",
        f"submit vllm_kimi --dependency=afterok:11 {WAITS}",
    ]
    Path(weights).mkdir()
    (environment,) = site.job("create-env").products
    Path(environment).rmdir()
    # Those that wait for a job that counts no more would wait in vain; a done one is done again.
    asked = len(site.slurm.changed)
    site.step("submit")
    assert site.slurm.changed[asked:] == [
        "submit create_vllm_env",
        f"submit install_vllm --dependency=afterok:13 {WAITS}",
        "cancel 11",
        f"submit download_kimi --dependency=afterok:14 {WAITS}",
        "cancel 12",
        f"submit vllm_kimi --dependency=afterok:15 {WAITS}",
    ]


def test_every_product_of_a_job_must_be_there(site):
    site.prepared()
    there, gone = str(site.root), str(site.root / "gone")
    chain = list(site.cluster._chain)
    chain[1] = replace(chain[1], products=(there, gone))
    site.cluster._chain = tuple(chain)
    site.step("submit")
    assert [one.split()[1] for one in site.slurm.changed] == list(FILES)[1:]


def test_work_done_by_another_script_is_done_again(site):
    site.prepared()
    site.book.note("install", digest="0" * 16)
    site.step("submit")
    assert [one.split()[1] for one in site.slurm.changed] == list(FILES)[1:]


def test_work_that_failed_is_done_again(site):
    site.prepared()
    site.slurm.add(2, "install_vllm", "FAILED")
    site.step("submit")
    assert [one.split()[1] for one in site.slurm.changed] == list(FILES)[1:]
    assert site.slurm.changed[0] == "submit install_vllm"


def test_work_that_is_done_behind_work_that_goes_on_is_done_again(site):
    """It was done on what the work before it replaces now."""
    site.prepared()
    site.slurm.add(1, "create_vllm_env", "RUNNING", "n2")
    site.step("submit")
    assert site.slurm.changed == [
        f"submit install_vllm --dependency=afterok:1 {WAITS}",
        f"submit download_kimi --dependency=afterok:11 {WAITS}",
        f"submit vllm_kimi --dependency=afterok:12 {WAITS}",
    ]


def test_a_job_that_runs_is_kept_whatever_became_of_those_before(site):
    site.pushed()
    site.step("submit")
    site.slurm.set(11, "FAILED")
    for number in (12, 13, 14):
        site.slurm.set(number, "RUNNING", "n1")
    asked = len(site.slurm.changed)
    site.step("submit")
    assert site.slurm.changed[asked:] == ["submit create_vllm_env"]


def test_a_job_that_waits_for_one_that_runs_is_replaced_with_those_before(site):
    site.pushed()
    site.step("submit")
    site.slurm.set(11, "FAILED")
    site.slurm.set(12, "RUNNING", "n1")
    asked = len(site.slurm.changed)
    site.step("submit")
    assert site.slurm.changed[asked:] == [
        "submit create_vllm_env",
        "cancel 13",
        f"submit download_kimi --dependency=afterok:12 {WAITS}",
        "cancel 14",
        f"submit vllm_kimi --dependency=afterok:16 {WAITS}",
    ]


def test_jobs_that_wait_for_one_that_is_gone_are_replaced(site):
    site.pushed()
    site.step("submit")
    site.slurm.set(11, "CANCELLED")
    asked = len(site.slurm.changed)
    site.step("submit")
    assert site.slurm.changed[asked:] == [
        "submit create_vllm_env",
        "cancel 12",
        f"submit install_vllm --dependency=afterok:15 {WAITS}",
        "cancel 13",
        f"submit download_kimi --dependency=afterok:16 {WAITS}",
        "cancel 14",
        f"submit vllm_kimi --dependency=afterok:17 {WAITS}",
    ]


def test_a_serving_job_that_has_ended_is_started_again_by_itself(site):
    number = site.serves()
    site.slurm.set(number, "COMPLETED", "n1")
    assert site.step("submit").changes == (submitted(12, "vllm_kimi"),)
    assert site.slurm.changed == ["submit vllm_kimi", "submit vllm_kimi"]
    assert not site.host_file.exists()  # it named the server of the job that has ended


def test_the_host_file_stays_while_the_serving_job_is_kept(site):
    site.serves()
    site.step("submit")
    assert site.host_file.read_text() == "n1\n"
    # Also where another job is submitted, of which it says nothing.
    site.host_file.unlink()
    assert site.step("submit").changes == ()


def test_another_job_than_the_serving_one_leaves_the_host_file(site):
    site.serves()
    site.slurm.add(2, "install_vllm", "FAILED")
    assert len(site.step("submit").changes) == 2 and site.host_file.exists()


def test_jobs_with_other_scripts_are_not_mixed_with_new_ones(site):
    site.pushed()
    site.step("submit")
    site.book.note("install", digest="0" * 16)
    site.book.note("baseline", digest="0" * 16)
    states = {one.name: one for one in site.cluster.jobs()}
    told = failure(lambda: site.step("submit"), "submit")
    assert told.failed == (job_faults.other_scripts([states["install"], states["baseline"]], []),)
    # One that has ended is in nobody's way.
    for number in (12, 14):
        site.slurm.set(number, "FAILED")
    assert len(site.step("submit").changes) == 3


def test_nothing_is_submitted_while_nobody_says_what_is_there(site):
    site.pushed()
    site.slurm.silent["queue"] = NO_ANSWER
    assert failure(lambda: site.step("submit"), "submit").failed == (SILENT,)
    assert site.slurm.changed == []


# Secrets --------------------------------------------------------------------------------------


def unset(names: str) -> Diagnosis:
    return Diagnosis(
        "secret-unset",
        "login node",
        None,
        f"{names} is not set here",
        f"the site file's api_key_env is {names}; sbatch hands the jobs the variables of who submits",
        remedies.of("slurm/secret-unset", names=names),
    )


@pytest.mark.parametrize("env", [{}, {"KIMI_KEY": ""}])
def test_without_the_key_nothing_is_submitted(tmp_path, clock, env):
    site = Site(tmp_path, more=KEYED, env=env).pushed()
    asked = len(site.slurm.asked)
    assert failure(lambda: site.step("submit"), "submit").failed == (unset("KIMI_KEY"),)
    assert len(site.slurm.asked) == asked


def test_each_variable_that_is_missing_is_named_once(tmp_path, clock):
    site = Site(tmp_path, env={"C": "x"})
    secrets = {"VLLM_API_KEY": "A", "OPENAI_API_KEY": "A", "OTHER": "B", "KNOWN": "C"}
    site.cluster.plan = replace(site.plan, secrets=secrets)
    assert failure(lambda: site.step("submit"), "submit").failed == (unset("A, B"),)


def test_with_the_key_jobs_are_submitted(tmp_path, clock):
    site = Site(tmp_path, more=KEYED, env={"KIMI_KEY": "sk-1"}).pushed()
    assert len(site.step("submit").changes) == 4


def test_a_benchmark_without_the_key_fails_as_a_benchmark(tmp_path, clock):
    site = Site(tmp_path, more=KEYED, env={"KIMI_KEY": "sk-1"})
    site.serves()
    del site.slurm.env["KIMI_KEY"]
    assert failure(site.cluster.submit_benchmark, "benchmark").failed == (unset("KIMI_KEY"),)
    assert site.slurm.changed == ["submit vllm_kimi"]


# Waiting --------------------------------------------------------------------------------------


def test_the_serving_job_is_waited_for(site, clock):
    site.prepared()
    site.step("submit")

    def on():
        site.slurm.set(11, "RUNNING", "n[1-2]")
        site.host_file.write_text("n1\n")

    clock.on = on
    assert site.step("wait") == Outcome(
        facts={
            "jobs": {"create-env": 1, "install": 2, "download": 3, "baseline": 11},
            "host": "n1",
            "address": "10.0.0.1",
            "hosts": ["n1", "n2"],
            "server_host": "n1",
        }
    )
    assert site.said[-1] == "vllm_kimi (11) runs on n1 (10.0.0.1), n2 (10.0.0.2)"
    assert clock.slept == [5.0] and site.book.entries["baseline"]["said"] == "n1"


def test_all_jobs_before_the_serving_one_are_followed(site, clock):
    site.pushed()
    site.step("submit")
    site.slurm.set(12, "FAILED", reason="NonZeroExitCode")
    site.slurm.codes[12] = "ExitCode=3:0"
    (site.jobs / "install_vllm.12.err").write_text("no such index\n")
    told = failure(lambda: site.step("wait"), "wait")
    state = JobState(
        "install", "2_install.sbatch", 12, "FAILED", "NonZeroExitCode", "", "1:02", "install_vllm"
    )
    last = "install_vllm.12.err: no such index"
    assert told.failed == (job_faults.failed(site.job("install"), state, 3, last),)
    # What the jobs have said is kept.
    assert (site.cluster.log_folder / "install_vllm.12.err").read_text() == "no such index\n"


def test_a_job_that_writes_no_host_file_is_a_warning(site, clock):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    outcome = site.step("wait")
    words = f"{site.host_file} was not written: the benchmark would ask {site.plan.url}"
    assert outcome.warnings == (Change("n1", words),) and outcome.facts["server_host"] == ""
    assert "said" not in site.book.entries["baseline"]
    assert clock.slept == [1.0] * 61  # a minute, however seldom the queue is looked at


def test_a_host_file_that_is_written_late_counts(site, clock):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    site.host_file.parent.mkdir(exist_ok=True)
    site.host_file.write_text("\n")  # created, and not yet written
    clock.on = lambda: len(clock.slept) == 60 and site.host_file.write_text(" n1.cluster \n")
    outcome = site.step("wait")
    assert outcome.warnings == () and outcome.facts["server_host"] == "n1.cluster"
    assert len(clock.slept) == 60


def test_a_host_file_is_read_as_utf8_whatever_is_in_it(site, monkeypatch):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    site.host_file.parent.mkdir(exist_ok=True)
    site.host_file.write_bytes(b"n1\xff\n")
    coded, read = [], Path.read_text

    def noted(path, **more):
        if path == site.host_file:
            coded.append(str(more.get("encoding")).lower())
        return read(path, **more)

    monkeypatch.setattr(Path, "read_text", noted)
    assert site.step("wait").facts["server_host"] == "n1\ufffd"
    assert coded == ["utf-8"]


def test_a_short_poll_is_the_pause_between_two_looks_at_the_host_file(site, clock):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    site.cluster = site.process(poll=0.2)
    clock.on = lambda: site.host_file.write_text("n1")
    site.step("wait")
    assert clock.slept == [0.2]


def test_a_job_that_ends_before_it_writes_its_host_is_not_waited_for(site, clock):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    clock.on = lambda: len(clock.slept) == 8 and site.slurm.set(11, "FAILED", "n1")
    assert site.step("wait").facts["server_host"] == ""
    assert len(clock.slept) == 12  # the queue is looked at every 5 seconds, and not more often


def test_a_host_file_is_waited_for_while_slurm_is_silent(site, clock):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    clock.on = lambda: {
        1: lambda: site.slurm.silent.update(queue=NO_ANSWER),
        20: lambda: site.host_file.write_text("n1\n"),
    }.get(len(clock.slept), lambda: None)()
    outcome = site.step("wait")
    assert outcome.warnings == () and outcome.facts["server_host"] == "n1"
    assert len(clock.slept) == 20


@pytest.mark.parametrize("call", ["hosts", "address"])
def test_nodes_that_nobody_names_end_the_wait(site, call):
    site.prepared()
    site.step("submit")
    site.slurm.set(11, "RUNNING", "n1")
    site.slurm.silent[call] = NO_ANSWER
    assert failure(lambda: site.step("wait"), "wait").failed == (SILENT,)


# Measuring ------------------------------------------------------------------------------------


def benchmark_file(site: Site, number: int) -> str:
    return f"{site.jobs}/benchmark_kimi.{number}.out"


def test_the_benchmark_is_submitted_behind_the_start_of_the_service(site):
    site.serves()
    assert site.cluster.submit_benchmark() == Outcome(
        (Change("SLURM", "job 12 (benchmark_kimi): submitted from jobs/7_benchmark.sbatch"),),
        facts={
            "jobs": {"create-env": 1, "install": 2, "download": 3, "baseline": 11, "benchmark": 12},
            "benchmark_output": benchmark_file(site, 12),
        },
    )
    assert site.slurm.changed[-1] == f"submit benchmark_kimi --dependency=after:11 {WAITS}"
    assert site.book.entries["benchmark"]["of"] == 11


def test_a_service_is_measured_once(site):
    site.serves()
    site.cluster.submit_benchmark()
    for state in ("PENDING", "RUNNING", "COMPLETED"):
        site.slurm.set(12, state)
        outcome = site.cluster.submit_benchmark()
        assert outcome.changes == ()
        assert outcome.facts["benchmark_output"] == benchmark_file(site, 12)
        assert outcome.facts["jobs"]["benchmark"] == 12


def test_a_benchmark_that_failed_is_repeated(site):
    site.serves()
    site.cluster.submit_benchmark()
    site.slurm.set(12, "FAILED")
    assert len(site.cluster.submit_benchmark().changes) == 1
    assert site.book.entries["benchmark"]["id"] == 13


def test_a_benchmark_of_an_earlier_service_is_repeated(site):
    site.serves()
    site.cluster.submit_benchmark()
    site.slurm.set(12, "COMPLETED")
    site.slurm.set(11, "FAILED")
    site.step("submit")
    site.slurm.set(13, "RUNNING", "n1")
    assert len(site.cluster.submit_benchmark().changes) == 1
    assert site.slurm.changed[-1] == f"submit benchmark_kimi --dependency=after:13 {WAITS}"
    assert site.book.entries["benchmark"]["of"] == 13


def test_a_benchmark_of_another_script_is_repeated(site):
    site.serves()
    site.cluster.submit_benchmark()
    site.slurm.set(12, "COMPLETED")
    site.book.note("benchmark", digest="0" * 16)
    assert len(site.cluster.submit_benchmark().changes) == 1


def test_a_benchmark_of_which_nobody_says_what_it_measured_counts(site):
    """Whoever submitted it was killed before it was recorded."""
    site.serves()
    site.slurm.add(12, "benchmark_kimi", "COMPLETED")
    assert site.cluster.submit_benchmark().changes == ()


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED", "FAILED"])
def test_nothing_is_measured_without_a_running_service(site, state):
    number = site.serves()
    site.slurm.set(number, state, reason="Why")
    (seen,) = (one for one in site.cluster.jobs() if one.id == number)
    told = failure(site.cluster.submit_benchmark, "benchmark")
    assert told.failed == (job_faults.not_serving(site.job("baseline"), seen),)
    assert len(site.slurm.changed) == 1


def test_nothing_is_measured_while_slurm_is_silent_or_refuses(site):
    site.serves()
    site.slurm.silent["queue"] = NO_ANSWER
    assert failure(site.cluster.submit_benchmark, "benchmark").failed == (SILENT,)
    site.slurm.silent = {"submit": NO_ANSWER}
    assert failure(site.cluster.submit_benchmark, "benchmark").failed == (SILENT,)
    site.slurm.silent.clear()
    site.slurm.refuses["benchmark_kimi"] = "Invalid qos"
    told = failure(site.cluster.submit_benchmark, "benchmark")
    text = site.files["jobs/7_benchmark.sbatch"]
    assert told.failed == (job_faults.refused(site.job("benchmark"), "Invalid qos", text),)


def test_the_benchmark_is_waited_for(site, clock):
    site.serves()
    site.cluster.submit_benchmark()
    site.slurm.set(12, "RUNNING", "n2")
    clock.on = lambda: site.slurm.set(12, "COMPLETED", "n2")
    assert site.cluster.wait_benchmark() == Outcome(
        facts={"jobs": site.cluster._queue.ids(), "output": benchmark_file(site, 12)}
    )
    assert site.said[-2:] == [
        "benchmark_kimi (12): RUNNING on n2",
        "benchmark_kimi (12): COMPLETED",
    ]


def test_a_benchmark_that_fails_is_told(site):
    site.serves()
    site.cluster.submit_benchmark()
    site.slurm.set(12, "TIMEOUT", reason="TimeLimit")
    site.slurm.codes[12] = "ExitCode=0:15"
    state = JobState(
        "benchmark", "7_benchmark.sbatch", 12, "TIMEOUT", "TimeLimit", "", "1:02", "benchmark_kimi"
    )
    told = failure(site.cluster.wait_benchmark, "benchmark")
    last = "benchmark_kimi.12.err: nothing was said"
    assert told.failed == (job_faults.failed(site.job("benchmark"), state, -15, last),)
