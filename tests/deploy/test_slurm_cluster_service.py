"""A service of a cluster of SLURM: where it is, its state, what it writes, and its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from answering_slurm import Clock, Site, failure

from kimi_nb import show
from kimi_nb.deploy import claim
from kimi_nb.deploy.slurm import cluster as module
from kimi_nb.deploy.slurm import job_faults
from kimi_nb.deploy.slurm.slurm_commands import SlurmError
from kimi_nb.deploy.steps import Change, EngineState, Outcome
from kimi_nb.diagnose import remedies
from kimi_nb.diagnose.first_failure import Diagnosis
from kimi_nb.service import probe
from kimi_nb.service.http_client import Reply

NO_ANSWER = "Unable to contact slurm controller (connect failure)"
SILENT = job_faults.silent(SlurmError(NO_ANSWER))
TENSOR = ("nodes=2", "tp=16")
DATA = ("nodes=2", "dp=2", "rpc-port=13345")
GOOD = Reply(200, json.dumps({"choices": [{"message": {"content": "I am."}}]}), 0.1)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def site(tmp_path, clock):
    return Site(tmp_path)


@pytest.fixture
def two(tmp_path, clock):
    """A plan whose serving job has two nodes."""
    return Site(tmp_path, pairs=TENSOR)


def put(site: Site, name: str, text: str) -> Path:
    path = site.jobs / name
    path.write_text(text)
    return path


# Where it is ----------------------------------------------------------------------------------


def test_the_plan_serves_on_the_nodes_that_slurm_chose(two):
    cluster = two.cluster
    assert cluster.serving() is two.plan and cluster.url == two.plan.url
    two.serves("n[1-2]")
    serving = cluster.serving()
    assert serving.nodes == ("n1", "n2")
    assert [one.address for one in serving.engines] == ["10.0.0.1", "10.0.0.2"]
    assert cluster.url == serving.url == "http://10.0.0.1:8000"
    assert cluster.serving() is serving and cluster.plan is two.plan
    # Everything else is the site file's.
    assert serving.name == two.plan.name
    assert serving.request.site.paths == two.plan.request.site.paths


def test_one_node_in_the_site_file_stands_for_those_that_slurm_chose(tmp_path, clock):
    node = "  - {name: dgx-01, address: 198.51.100.21, nic: ib7}\n"
    site = Site(tmp_path, nodes=node)
    site.serves()
    (there,) = site.cluster.serving().request.site.nodes
    assert (there.name, there.address, there.nic) == ("n1", "10.0.0.1", "ib7")


def test_a_serving_job_that_was_replaced_serves_where_it_is(site):
    number = site.serves()
    assert site.cluster.url == "http://10.0.0.1:8000"
    site.slurm.set(number, "NODE_FAIL", "n1")
    site.step("submit")
    assert site.cluster.serving() is site.plan
    site.slurm.set(number + 1, "RUNNING", "n2")
    site.host_file.write_text("n2\n")
    assert site.step("wait").facts["address"] == "10.0.0.2"
    assert site.cluster.url == "http://10.0.0.2:8000"


def test_another_process_of_the_run_knows_where_it_is(site):
    site.serves()
    asked = len(site.slurm.asked)
    assert site.process().url == "http://10.0.0.1:8000" and len(site.slurm.asked) == asked


# How it is ------------------------------------------------------------------------------------


def test_the_end_of_the_serving_job_is_that_of_the_engines_of_all_nodes(two, clock):
    number = two.serves("n[1-2]")
    assert two.cluster.ended() == {}
    two.slurm.set(number, "FAILED", "n[1-2]")
    two.slurm.codes[number] = "ExitCode=3:0"
    clock.now += 6.0
    assert two.cluster.ended() == {"n1 engines": 3, "n2 engines": 3}


def test_while_slurm_is_silent_nothing_has_ended(site, clock):
    number = site.serves()
    site.slurm.set(number, "FAILED", "n1")
    site.slurm.silent["queue"] = NO_ANSWER
    clock.now += 6.0
    assert site.cluster.ended() == {}


def test_the_queue_is_told_as_a_table(site):
    site.serves()
    site.slurm.set(11, "RUNNING", "n1", "Why")
    assert site.cluster.queue() == show.Table(
        "Jobs",
        ("job", "number", "state", "reason", "node", "elapsed"),
        (
            ("create_vllm_env", 1, "COMPLETED", "", "", ""),
            ("install_vllm", 2, "COMPLETED", "", "", ""),
            ("download_kimi", 3, "COMPLETED", "", "", ""),
            ("vllm_kimi", 11, "RUNNING", "Why", "n1", "1:02"),
            ("benchmark_kimi", "", "not submitted", "", "", ""),
        ),
    )
    site.slurm.silent["queue"] = NO_ANSWER
    with pytest.raises(SlurmError):
        site.cluster.queue()


class Asked:
    """Engines that are asked for completions, as `status` asks; ``replies`` are theirs by URL."""

    def __init__(self, monkeypatch, key: str = "") -> None:
        self.replies: dict[str, Reply] = {}
        self.asked, self.key = [], key
        monkeypatch.setattr(probe, "chat", self.chat)

    def chat(self, where, model, seconds, *, key, max_tokens):
        assert (seconds, key, max_tokens) == (5.0, self.key, 1) and model.endswith(
            "/models/kimi-k2.5"
        )
        self.asked.append((where.name, where.url, where.index))
        return self.replies.get(where.name, Reply(0, "", 0.1, "refused"))


def states(site: Site) -> list[tuple[str, str, str, str]]:
    return [(one.node, one.state, one.error, one.mark) for one in site.cluster.status()]


def test_an_engine_is_ready_once_it_answers(site, monkeypatch):
    asked = Asked(monkeypatch)
    site.prepared()
    assert states(site) == [("dgx-01", "not started", "", "")]
    site.step("submit")
    assert states(site) == [("dgx-01", "not started", "", "")] and asked.asked == []
    site.slurm.set(11, "RUNNING", "n1")
    site.host_file.write_text("n1\n")
    site.step("wait")
    put(
        site,
        "vllm_kimi.11.err",
        "INFO ok\n  ValueError: first\nOSError: next\n  KeyError: last  \nINFO ok\n",
    )
    assert states(site) == [("n1", "starting", "KeyError: last", "")]
    assert asked.asked == [("mixed0-rank0", "http://10.0.0.1:8000", None)]
    asked.replies["mixed0-rank0"] = replace(GOOD, mark="REHEARSAL")
    assert site.cluster.status() == [
        EngineState("mixed0-rank0", "n1", 0, 8000, "ready", "", "REHEARSAL")
    ]
    site.slurm.set(11, "FAILED", "n1")
    site.slurm.codes[11] = "ExitCode=3:0"
    assert states(site) == [("n1", "ended", "KeyError: last", "")]
    assert len(asked.asked) == 2


def test_the_state_is_that_of_now_and_not_of_a_while_ago(site, monkeypatch):
    Asked(monkeypatch)
    site.serves()
    site.slurm.silent["queue"] = NO_ANSWER
    with pytest.raises(SlurmError):
        site.cluster.status()


def test_a_part_of_a_rank_is_ready_when_its_head_answers(two, monkeypatch):
    asked = Asked(monkeypatch)
    asked.replies["mixed0-rank0"] = replace(GOOD, mark="REHEARSAL")
    two.serves("n[1-2]")
    assert states(two) == [("n1", "ready", "", "REHEARSAL"), ("n2", "ready", "", "REHEARSAL")]
    assert asked.asked == [("mixed0-rank0", "http://10.0.0.1:8000", None)]


def test_each_rank_answers_for_itself(tmp_path, clock, monkeypatch):
    asked, site = Asked(monkeypatch), Site(tmp_path, pairs=DATA)
    asked.replies["mixed0-rank0"] = GOOD
    site.serves("n[1-2]")
    assert states(site) == [("n1", "ready", "", ""), ("n2", "starting", "", "")]
    assert [(name, index) for name, _, index in asked.asked] == [
        ("mixed0-rank0", 0),
        ("mixed0-rank1", 1),
    ]
    assert [(one.engine, one.rank, one.port) for one in site.cluster.status()] == [
        ("mixed0-rank0", 0, 8000),
        ("mixed0-rank1", 1, None),
    ]


def test_each_replica_answers_for_itself(tmp_path, clock, monkeypatch):
    asked, site = Asked(monkeypatch), Site(tmp_path, scenario="replicas")
    asked.replies["mixed1-rank0"] = GOOD
    site.serves("n[1-2]")
    assert states(site) == [("n1", "starting", "", ""), ("n2", "ready", "", "")]


def test_an_engine_of_several_ranks_is_asked_at_its_first(tmp_path, clock, monkeypatch):
    """One that answers for it is enough: each rank has its own in a look at all of them."""
    asked, site = Asked(monkeypatch), Site(tmp_path, pairs=("tp=1", "dp=8"))
    site.serves()
    assert states(site) == [("n1", "starting", "", "")]
    assert asked.asked == [("mixed0-rank0", "http://10.0.0.1:8000", 0)]


def test_the_key_is_that_of_this_shell(tmp_path, clock, monkeypatch):
    site = Site(tmp_path, more="api_key_env: KIMI_KEY\n", env={"KIMI_KEY": "sk-1"})
    asked = Asked(monkeypatch, "sk-1")
    asked.replies["mixed0-rank0"] = GOOD
    site.serves()
    assert states(site) == [("n1", "ready", "", "")]
    del site.slurm.env["KIMI_KEY"]  # another shell, in which nobody has set it
    asked.key = ""
    assert states(site) == [("n1", "ready", "", "")]


# What it writes -------------------------------------------------------------------------------


def test_the_logs_of_the_serving_job_are_kept_by_their_nodes(two, clock):
    number = two.serves("n[1-2]")
    for name in (".out", ".err", ".node0.out", ".node1.err"):
        put(two, f"vllm_kimi.{number}{name}", f"{name}\n")
    logs = two.cluster.logs
    logs.read()
    found = [(log.node, log.file.partition(".")[2], *log.lines) for log in logs.all()]
    assert found == [
        ("n1", f"{number}.out", ".out"),
        ("n1", f"{number}.err", ".err"),
        ("n1", f"{number}.node0.out", ".node0.out"),
        ("n1", f"{number}.node0.err"),
        ("n2", f"{number}.node1.out"),
        ("n2", f"{number}.node1.err", ".node1.err"),
    ]
    kept = two.cluster.log_folder
    assert (kept / "n2" / f"vllm_kimi.{number}.node1.err").read_text() == ".node1.err\n"
    # Once it has ended, SLURM says how.
    two.slurm.set(number, "TIMEOUT", "n[1-2]", "TimeLimit")
    two.slurm.codes[number] = "ExitCode=0:15"
    clock.now += 6.0
    logs.read()
    (last,) = logs.all()[6:]
    state = two.cluster.jobs()[3]
    assert (last.node, last.file) == ("n1", "scontrol show job")
    assert list(last.lines) == [job_faults.word(state, -15)]
    two.slurm.silent["queue"] = NO_ANSWER
    clock.now += 6.0
    logs.read()
    assert len(logs.all()) == 6


def test_before_the_serving_job_there_are_no_logs(site):
    site.pushed()
    site.cluster.logs.read()
    assert site.cluster.logs.all() == []


def test_all_that_the_jobs_write_is_followed(site, clock):
    site.serves()
    site.cluster.submit_benchmark()
    put(site, "download_kimi.3.out", "half\n")
    put(site, "vllm_kimi.11.err", "loads\n")
    put(site, "benchmark_kimi.12.out", "fast\n")
    put(site, "tune_moe.5.out", "of no job of this plan\n")
    assert list(site.cluster.follow(lambda: True)) == [
        ("download_kimi", "half"),
        ("benchmark_kimi", "fast"),
        ("n1 vllm_kimi", "loads"),
    ]


def test_who_follows_sees_what_another_process_submits(site, monkeypatch):
    site.pushed()
    site.slurm.add(11, "create_vllm_env", "RUNNING", "n2")
    follower, stops = site.process(), iter([False, True])
    monkeypatch.setattr("kimi_nb.deploy.slurm.job_logs.time.sleep", lambda seconds: None)

    def stop():
        if last := next(stops):
            site.cluster.jobs()
            put(site, "create_vllm_env.11.out", "made\n")
        return last

    assert list(follower.follow(stop)) == [("create_vllm_env", "made")]


# The end --------------------------------------------------------------------------------------


def cancelled(number: int, name: str) -> Change:
    return Change("SLURM", f"job {number} ({name}): cancelled")


def released(site: Site) -> Change:
    return Change("login node", f"{site.work}/claim: released")


def removed(site: Site) -> Change:
    return Change("login node", f"{site.host_file}: removed")


def test_down_cancels_the_jobs_and_releases_the_site(site):
    site.serves()
    site.cluster.submit_benchmark()
    put(site, "vllm_kimi.11.err", "serves\n")
    put(site, "download_kimi.3.out", "loaded\n")
    put(site, "benchmark_kimi.12.out", "measures\n")
    claimed, logs = [], site.cluster.log_folder

    def on(asked):
        if asked.startswith("cancel "):
            # What they wrote is kept before: what they say on being cancelled is no failure.
            assert (logs / "n1" / "vllm_kimi.11.err").read_text() == "serves\n"
            assert (logs / "download_kimi.3.out").exists()
            assert (logs / "benchmark_kimi.12.out").exists()
            claimed.append((site.work / "claim").exists() and site.host_file.exists())

    site.slurm.on = on
    assert site.cluster.down() == Outcome(
        (
            cancelled(11, "vllm_kimi"),
            cancelled(12, "benchmark_kimi"),
            removed(site),
            released(site),
        )
    )
    assert claimed == [True] and site.slurm.changed[-1] == "cancel 11 12"
    assert not site.host_file.exists() and claim.holder(site.work / "claim") is None


def test_down_of_what_is_down_changes_nothing(site):
    site.serves()
    site.cluster.down()
    put(site, "vllm_kimi.11.err", "cancelled\n")
    asked = len(site.slurm.changed)
    assert site.cluster.down() == Outcome() and len(site.slurm.changed) == asked
    assert not (site.cluster.log_folder / "n1" / "vllm_kimi.11.err").exists()


def test_down_of_what_never_began_changes_nothing(site):
    assert site.cluster.down() == Outcome() and site.slurm.changed == []


def test_down_in_the_middle_of_the_jobs(site):
    site.pushed()
    site.step("submit")
    site.slurm.set(11, "COMPLETED")
    assert site.cluster.down().changes == (
        cancelled(12, "install_vllm"),
        cancelled(13, "download_kimi"),
        cancelled(14, "vllm_kimi"),
        released(site),
    )


def test_down_leaves_the_site_to_another_run(site):
    site.serves()
    held = claim.holder(site.work / "claim")
    other = site.process("run-2")
    assert other.down() == Outcome()
    assert claim.holder(site.work / "claim") == held and site.host_file.exists()
    assert not (site.root / "run-2" / "logs").exists()


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("n1\n", True),
        ("n1.cluster.example\n", True),
        ("n9\n", False),
        ("", False),
        ("n9.n1\n", False),
    ],
)
def test_down_removes_the_host_file_of_its_own_server(site, host, ours):
    """Also if nobody waited until it was written."""
    site.serves()
    site.book.note("baseline", said="x")
    site.host_file.write_text(host)
    assert (removed(site) in site.cluster.down().changes) == ours
    assert site.host_file.exists() != ours


def test_the_names_of_the_server_are_what_it_said_and_what_slurm_says(site):
    site.prepared()
    site.step("submit")
    site.book.note("baseline", said="head.cluster")
    for host, ours in {"head.cluster": True, "head": False, "": False, ".n7": False}.items():
        assert site.cluster._names_our_server(host) == ours
    site.book.note("baseline", node="n7", said="")
    assert site.cluster._names_our_server("n7.cluster")
    site.book.note("baseline", hosts=[["n8", "10.0.0.8"]])
    assert site.cluster._names_our_server("n8") and not site.cluster._names_our_server("10.0.0.8")


def test_down_of_jobs_that_nobody_has_submitted_leaves_the_host_file(site):
    site.pushed()
    site.project.mkdir(exist_ok=True)
    site.host_file.write_text("n1\n")
    assert site.cluster.down().changes == (released(site),) and site.host_file.exists()


def test_down_without_an_answer_says_what_remains(site):
    site.pushed()
    site.step("submit")
    site.slurm.set(11, "COMPLETED")
    site.cluster.jobs()
    site.slurm.silent["queue"] = NO_ANSWER
    told = failure(site.cluster.down, "down")
    known = ["install (12)", "download (13)", "baseline (14)"]
    path = site.work / "claim"
    assert told.failed == (job_faults.left(SlurmError(NO_ANSWER), known, path),)
    assert told.outcome == Outcome() and path.exists()


def test_down_that_loses_slurm_on_the_way_says_what_it_has_done(site, clock):
    site.serves()
    site.slurm.stay.add(11)
    clock.on = lambda: site.slurm.silent.update(queue=NO_ANSWER)
    told = failure(site.cluster.down, "down")
    assert told.failed[0].kind == "slurm-silent"
    assert told.outcome == Outcome((cancelled(11, "vllm_kimi"),))
    assert site.host_file.exists() and (site.work / "claim").exists()


def test_a_job_that_does_not_end_keeps_the_site(site):
    site.serves()
    site.slurm.stay.add(11)
    told = failure(site.cluster.down, "down")
    (row,) = site.slurm.queue()
    assert told.failed == (job_faults.stuck([row], site.work / "claim"),)
    assert told.outcome == Outcome((cancelled(11, "vllm_kimi"),))
    assert site.host_file.exists() and (site.work / "claim").exists()


def test_a_host_file_that_somebody_else_has_removed_is_gone(site, monkeypatch):
    site.serves()
    site.host_file.unlink()
    monkeypatch.setattr(module, "_text", lambda path: "n1\n")  # read just before
    assert site.cluster.down().changes[-1] == released(site)


def not_removed(path: Path) -> Diagnosis:
    return Diagnosis(
        "not-removed",
        "login node",
        None,
        f"{path} cannot be removed",
        f"[Errno 13] Permission denied: '{path}'",
        remedies.of("slurm/not-removed"),
    )


@pytest.mark.parametrize("kept", [{"host"}, {"claim"}, {"host", "claim"}])
def test_down_goes_on_where_a_file_cannot_be_removed(site, monkeypatch, kept):
    site.serves()
    unlink, files = Path.unlink, {"host": site.host_file, "claim": site.work / "claim"}

    def closed(path, **how):
        if path in [files[name] for name in kept]:
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **how)

    monkeypatch.setattr(Path, "unlink", closed)
    told = failure(site.cluster.down, "down")
    assert told.failed == tuple(not_removed(files[name]) for name in files if name in kept)
    done = {"host": removed(site), "claim": released(site)}
    assert told.outcome == Outcome(
        (cancelled(11, "vllm_kimi"), *(done[name] for name in files if name not in kept))
    )
    # Once its folder is mended, what is left goes.
    monkeypatch.setattr(Path, "unlink", unlink)
    assert site.cluster.down() == Outcome(tuple(done[name] for name in files if name in kept))


def test_down_goes_on_where_the_claim_cannot_be_read(site, monkeypatch):
    site.serves()
    path, read = site.work / "claim", Path.read_text

    def stale(it, **how):
        if it == path:
            raise OSError(116, "Stale file handle", str(it))
        return read(it, **how)

    monkeypatch.setattr(Path, "read_text", stale)
    told = failure(site.cluster.down, "down")
    assert told.failed == (
        job_faults.not_removed(path, OSError(116, "Stale file handle", str(path))),
    )
    assert told.outcome == Outcome((cancelled(11, "vllm_kimi"), removed(site)))
