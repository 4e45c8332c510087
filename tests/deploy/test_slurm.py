"""The jobs of a plan under a real Slurm (tests/testbed), on stand-ins for what they run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.core import shell
from kimi_nb.deploy import claim, node_looks
from kimi_nb.deploy.slurm import job_book, job_faults, job_logs, slurm_commands
from kimi_nb.deploy.slurm.cluster import Cluster
from kimi_nb.deploy.steps import StepFailed
from kimi_nb.diagnose import doctor, first_failure
from kimi_nb.plan import build, jobs
from kimi_nb.service import readiness

LIMITS = readiness.Limits(ready=60.0, progress=30.0, answer=5.0, door=20.0)
POLL = 0.2
ROOT = Path(__file__).resolve().parents[2]


class Run:
    """A cluster and what it said."""

    def __init__(self, site, folder, plan, run_id="run-1", files=None, env=None) -> None:
        self.site, self.plan, self.said = site, plan, []
        self.project = Path(plan.request.site.paths.project)
        self.files = scripts.files(plan) if files is None else files
        self.folder = folder / run_id
        commands = type(site.commands)({**site.env, **(env or {})})
        self.cluster = Cluster(
            plan, self.files, self.folder, run_id, self.said.append, commands=commands, poll=POLL
        )

    def step(self, name):
        return next(step for step in self.cluster.steps if step.name == name).run()

    def to(self, last):
        """Every step up to one; what they changed, by step."""
        out = {}
        for step in self.cluster.steps:
            out[step.name] = [change.what for change in step.run().changes]
            if step.name == last:
                return out
        raise AssertionError(last)

    def prepared(self):
        """As if the jobs before the serving one had been done by this run."""
        done = job_book.chain(self.plan)[:-1]
        for job in done:
            for path in map(Path, job.products):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.name == "python":  # of the environment, with what install brings
                    for name in ("python", "vllm", "vllm-router"):
                        path.with_name(name).symlink_to(self.site.root / "stubs" / name)
                else:
                    path.mkdir(exist_ok=True)
        self.folder.mkdir(parents=True)
        (self.folder / "jobs.json").write_text(
            json.dumps(
                {
                    "run": self.folder.name,
                    "jobs": {job.name: {"id": 1, "state": "COMPLETED"} for job in done},
                }
            )
        )
        self.cluster._book.load()
        return self

    def watch(self, key=""):
        return readiness.Watch(
            self.cluster.serving(),
            self.cluster.logs,
            self.cluster.ended,
            LIMITS,
            key,
            self.said.append,
        )

    def ours(self):
        """(name, state) of everything in the queue that carries this run."""
        return sorted(
            (row.name, row.state)
            for row in self.site.commands.queue()
            if row.comment == f"kimi_nb:{self.folder.name}"
            and row.folder == str(self.cluster.bundle / "jobs")
        )

    def wait_in_thread(self):
        """Start `wait`; the thread and a list for the failure that ends it."""
        failed = []

        def wait():
            try:
                self.step("wait")
            except StepFailed as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        return thread, failed

    def until_said(self, text):
        end = time.monotonic() + 60
        while not any(text in line for line in self.said):
            assert time.monotonic() < end, self.said
            time.sleep(0.05)


@pytest.fixture
def start(slurm_site, tmp_path, request):
    """Make runs whose jobs are gone after the test; each test has a project of its own."""
    runs = []

    def make(scenario="default", more="", pairs=(), programs="modules: [anaconda3]", **how):
        name = re.sub(r"[^\w.-]+", "-", request.node.name)[-40:].strip("-")
        plan = slurm_site.plan(name, scenario, more, pairs, programs)
        runs.append(Run(slurm_site, tmp_path, plan, **how))
        return runs[-1]

    yield make
    slurm_site.run("scancel", "--user=root")
    end = time.monotonic() + 60
    while slurm_site.run("squeue", "-h").strip() and time.monotonic() < end:
        time.sleep(0.1)


IN_IMAGE = "container: {runtime: apptainer}"


@pytest.mark.parametrize(
    "scenario, more",
    [("default", {}), ("optimised", {}), ("optimised", {"programs": IN_IMAGE})],
)
def test_the_jobs_from_an_empty_folder_to_a_benchmark(start, scenario, more):
    secret = scenario == "optimised"
    key = "sk-only-in-the-environment" if secret else ""
    run = start(
        scenario,
        "api_key_env: KIMI_KEY\n" if secret else "",
        env={"KIMI_KEY": key} if secret else {},
        **more,
    )
    cluster = run.cluster
    before = [change.what for change in cluster.preview()]
    assert not run.folder.exists() and not cluster.bundle.exists()
    assert sum("would be submitted" in what for what in before) == (5 if not secret else 6)

    changed = run.to("wait")
    names = [
        "make_image" if more else "create_vllm_env",
        "install_vllm",
        "download_kimi",
        *(["tune_moe", "vllm_kimi_opt"] if secret else ["vllm_kimi"]),
    ]
    assert [what.split("(")[1].split(")")[0] for what in changed["submit"]] == names
    assert any(f"{names[-1]} (" in line and "RUNNING" in line for line in run.said)
    node = cluster.serving().nodes[0]
    assert cluster.serving().url == f"http://{run.site.addresses[node]}:8000"
    assert (run.project / "server_host.txt").read_text() == f"{node}\n"

    watch = run.watch(key)
    watch.wait_ready()
    assert watch.first_answer().answered
    watch.look_at_answers()
    watch.load()
    assert [one.state for one in cluster.status()] == ["ready"]
    assert cluster.ended() == {} and cluster.open_door().changes == ()
    assert "REHEARSAL" in "".join(path.read_text() for path in cluster.log_folder.glob(f"{node}/*"))

    assert len(cluster.submit_benchmark().changes) == 1
    output = Path(cluster.wait_benchmark().facts["output"]).read_text()
    assert f"asked http://{node}:8000/v1" in output and "Successful requests: 2" in output

    # Another process of the same run: everything is there.
    queue = run.ours()
    other = Run(
        run.site,
        run.folder.parent,
        run.plan,
        files=run.files,
        env={"KIMI_KEY": key} if secret else {},
    )
    assert not any(other.to("wait").values())
    assert other.cluster.submit_benchmark().changes == ()
    assert run.ours() == queue and len(queue) == len(names) + 1
    assert other.cluster.preview() == []
    assert other.cluster.serving().url == cluster.serving().url
    said = list(other.cluster.follow(lambda: True))
    assert ("download_kimi", "Download complete.") in [
        (name, shell.message(line)) for name, line in said
    ]
    served = f"{node} {names[-1]}"
    assert {name for name, _ in said} == {*names[:-1], served, "benchmark_kimi"}
    assert all(one.state in ("COMPLETED", "RUNNING") for one in other.cluster.jobs())

    down = [change.what for change in other.cluster.down().changes]
    assert any("cancelled" in what for what in down) and any("released" in what for what in down)
    assert cluster.down().changes == ()
    assert not any(state in ("PENDING", "RUNNING") for _, state in run.ours())
    assert not (run.project / "server_host.txt").exists()
    assert [one.state for one in cluster.status()] == ["ended"]
    if secret:
        for path in [*run.folder.rglob("*"), *cluster.bundle.rglob("*")]:
            assert not path.is_file() or key not in path.read_text(), path


DATA_PARALLEL = ("nodes=2", "dp=2", "rpc-port=13345")


def engines_of(run) -> dict[int, int]:
    """{number of the node within the job: process number} of the run's engines, from /proc."""
    out = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            env = dict(one.partition("=")[::2] for one in path.read_text().split("\0"))
            if env.get("SLURM_SUBMIT_DIR", "").startswith(str(run.project)) and (
                b"serve" in path.with_name("cmdline").read_bytes().split(b"\0")
            ):
                out[int(env["SLURM_NODEID"])] = int(path.parent.name)
    return out


@pytest.mark.parametrize("pairs", [DATA_PARALLEL, ("nodes=2", "tp=16")])
def test_a_plan_of_two_nodes_is_one_job_on_both(start, pairs):
    run = start(pairs=pairs).prepared()
    run.to("wait")
    serving, addresses = run.cluster.serving(), run.site.addresses
    assert serving.nodes == ("n1", "n2")
    assert [engine.address for engine in serving.engines] == list(addresses.values())
    assert serving.url == f"http://{addresses['n1']}:8000"
    assert (run.project / "server_host.txt").read_text() == "n1\n"

    watch = run.watch()
    watch.wait_ready()
    assert watch.first_answer().answered
    watch.load()
    assert sorted(engines_of(run)) == [0, 1]
    assert [(one.node, one.state) for one in run.cluster.status()] == [
        ("n1", "ready"),
        ("n2", "ready"),
    ]
    logs = {log.node: "\n".join(log.lines) for log in run.cluster.logs.all() if ".node" in log.file}
    assert set(logs) == {"n1", "n2"}
    number = run.cluster._book.entries["baseline"]["id"]
    follower = (run.cluster.bundle / "jobs" / f"vllm_kimi.{number}.node1.err").read_text()
    assert "REHEARSAL" in follower

    run.cluster.submit_benchmark()
    output = Path(run.cluster.wait_benchmark().facts["output"]).read_text()
    assert "asked http://n1:8000/v1" in output and "Successful requests: 2" in output

    left = engines_of(run)
    assert run.cluster.down().changes
    for pid in left.values():
        assert not Path(f"/proc/{pid}").exists()
    assert engines_of(run) == {}
    assert not (run.project / "server_host.txt").exists()
    found = doctor.examine(run.cluster.bundle / "jobs", run.cluster.serving())
    assert found.ok, found.first


def test_a_follower_that_dies_ends_the_job(start):
    run = start(pairs=DATA_PARALLEL).prepared()
    run.to("wait")
    watch = run.watch()
    watch.wait_ready()
    os.kill(engines_of(run)[1], signal.SIGKILL)
    end = time.monotonic() + 60
    while not run.cluster.ended():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert set(run.cluster.ended()) == {"n1 engines", "n2 engines"}
    with pytest.raises(readiness.Found):
        watch.load()
    assert engines_of(run) == {}


def routers_of(run) -> list[int]:
    """Process numbers of the run's routers, and of the doors in front of them, from /proc.

    By their folder: the router writes its title over its words and its variables.
    """
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            title = path.read_bytes().rstrip(b"\0 ")
            if path.with_name("cwd").readlink().is_relative_to(run.project) and (
                title == b"vllm::router" or b"keyed_door.py" in title
            ):
                out.append(int(path.parent.name))
    return out


def wait_for(what) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def prompts(engine) -> float:
    """How many prompt tokens an engine says that it has computed."""
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=20) as reply:
        text = reply.read().decode()
    return sum(map(float, re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", text, re.M)))


@pytest.mark.parametrize("key", ["", "sk-only-in-the-environment"], ids=["open", "keyed"])
def test_replicas_are_one_job_behind_the_real_router(start, key):
    more = "api_key_env: KIMI_KEY\n" if key else ""
    run = start("replicas", more=more, env={"KIMI_KEY": key} if key else None).prepared()
    run.to("wait")
    serving, addresses = run.cluster.serving(), run.site.addresses
    assert serving.nodes == ("n1", "n2")
    assert serving.url == f"http://{addresses['n1']}:1999"
    assert (run.project / "server_host.txt").read_text() == "n1\n"
    assert (run.cluster.bundle / "jobs" / "keyed_door.py").exists() == bool(key)

    watch = run.watch(key)
    watch.wait_ready()
    before = [prompts(engine) for engine in serving.engines]
    assert watch.first_answer().answered
    watch.load()
    after = [prompts(engine) for engine in serving.engines]
    assert all(now > then for now, then in zip(after, before, strict=True)), (before, after)
    assert sorted(engines_of(run)) == [0, 1] and routers_of(run)
    assert [one.state for one in run.cluster.status()] == ["ready", "ready"]
    if key:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{serving.url}/list_workers", timeout=20)

    run.cluster.submit_benchmark()
    output = Path(run.cluster.wait_benchmark().facts["output"]).read_text()
    assert "asked http://n1:1999/v1" in output and "Successful requests: 2" in output

    left = [*engines_of(run).values(), *routers_of(run)]
    assert run.cluster.down().changes
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    assert engines_of(run) == {} and routers_of(run) == []


@pytest.mark.parametrize(
    ("who", "number"),
    [("replica", signal.SIGKILL), ("replica", signal.SIGTERM), ("router", signal.SIGKILL)],
)
def test_the_first_that_ends_ends_the_job_of_replicas(start, who, number):
    """Also a replica that ends without an error, as an engine does that is asked to."""
    run = start("replicas").prepared()
    run.to("wait")
    watch = run.watch()
    watch.wait_ready()
    assert watch.first_answer().answered
    os.kill(engines_of(run)[1] if who == "replica" else routers_of(run)[0], number)
    wait_for(run.cluster.ended)
    codes = run.cluster.ended()
    assert set(codes) == {"n1 engines", "n2 engines"} and all(codes.values()), codes
    wait_for(lambda: engines_of(run) == {} and routers_of(run) == [])
    run.cluster.logs.read()
    said = [line for log in run.cluster.logs.all() for line in log.lines]
    assert any(f"a {who} has ended" in line or f"the {who} has ended" in line for line in said)
    with pytest.raises(readiness.Found):
        watch.load()


def test_up_status_logs_and_down_as_commands(slurm_site, start, tmp_path):
    """The whole chain by kimi-nb, with the benchmark behind it."""
    run = start()
    site = tmp_path / "site.yaml"
    site.write_text(run.plan.request.site.model_dump_json())
    kimi = [sys.executable, "-m", "kimi_nb"]

    def call(*words):
        done = subprocess.run(
            [*kimi, *words],
            env={**slurm_site.env, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    target = [
        "--model",
        "k2.5",
        "--hw",
        "h200",
        "--layout",
        "single",
        "--variant",
        "slurm",
        "--site",
        str(site),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    right = site.read_text()
    site.write_text(right.replace('"partition":"gpu"', '"partition":"nope"'))
    code, out, said = call("up", *target, "--dry-run")
    assert code == 1 and "partition nope does not exist" in said, out + said
    site.write_text(right)
    code, out, said = call("up", *target, "--dry-run")
    assert code == 0 and "1_create_env.sbatch" in out, said
    code, out, said = call("up", *target, "--confirm", "testbed", "--json")
    made = json.loads(out)
    assert code == 0 and made["ok"] and made["answer"].startswith("REHEARSAL"), said
    assert set(made["facts"]["jobs"]) >= {
        "create-env",
        "install",
        "download",
        "baseline",
        "benchmark",
    }
    code, out, said = call("status", str(tmp_path / "run"))
    assert code == 0 and "1 of 1 engines ready" in out and "benchmark" in out, out + said
    assert made["facts"]["benchmark_output"].endswith(
        f"benchmark_kimi.{made['facts']['jobs']['benchmark']}.out"
    )
    code, live, said = call("logs", "--no-follow", str(tmp_path / "run"))
    assert re.search(
        r"download_kimi \| INFO [\d-]+ [\d:]+ \[\S+\] node \S+: Download complete\.", live
    )
    [node] = {one["node"] for one in json.loads(call("status", "--json", str(tmp_path / "run"))[1])}
    assert f"{node} vllm_kimi | " in live
    code, out, said = call("up", *target, "--confirm", "testbed", "--download", "--json")
    assert code == 0 and json.loads(out)["changes"] == [], said
    assert "--download: no effect under SLURM" in said
    code, out, said = call("down", str(tmp_path / "run"))
    assert code == 0 and "is down" in out, said
    assert call("down", str(tmp_path / "run"))[1].endswith("no change.\n")

    # The logs were kept, under the same names.
    code, kept, said = call("logs", "--no-follow", str(tmp_path / "run"))
    assert {line for line in live.splitlines() if "Download complete" in line} <= {
        *kept.splitlines()
    }
    assert f"{node} vllm_kimi | " in kept and "benchmark_kimi | " in kept
    code, out, said = call("doctor", str(tmp_path / "run"))
    assert code == 0, out + said

    # A second deployment keeps the environment and the weights.
    code, out, said = call("up", *target, "--dry-run")
    assert "4_baseline.sbatch" in out and "1_create_env.sbatch" not in out, out + said
    code, out, said = call("up", *target, "--confirm", "testbed", "--json")
    again = json.loads(out)["facts"]["jobs"]
    before = made["facts"]["jobs"]
    assert again["install"] == before["install"] and again["download"] == before["download"]
    assert again["baseline"] > before["benchmark"] < again["benchmark"]
    assert call("down", str(tmp_path / "run"))[0] == 0


def test_a_secret_that_is_not_set_stops_before_anything_is_submitted(start):
    run = start(more="api_key_env: KIMI_KEY\n")
    with pytest.raises(StepFailed, match="KIMI_KEY is not set here"):
        run.to("submit")
    assert run.ours() == []


@pytest.mark.parametrize(
    ("old", "new", "words", "key"),
    [
        ("--partition=gpu", "--partition=nope", "invalid partition", "slurm.partition"),
        ("--gpus-per-node=8", "--gpus-per-node=9", "node configuration", "slurm.cpus"),
        ("--mem=1800G", "--mem=9000G", "node configuration", "slurm.memory"),
    ],
)
def test_a_refused_job_is_named_with_the_words_of_sbatch(start, old, new, words, key):
    plan = start().plan
    files = {
        name: text.replace(old, new) if name.endswith("4_baseline.sbatch") else text
        for name, text in scripts.files(plan).items()
    }
    run = start(files=files)
    with pytest.raises(StepFailed) as error:
        run.to("test")
    assert len(error.value.failed) == 1
    for text in ("jobs/4_baseline.sbatch (vllm_kimi) is refused", words, new, key):
        assert text in str(error.value)
    with pytest.raises(StepFailed, match="4_baseline"):
        run.cluster.preview()
    assert run.ours() == []


def test_a_partition_that_is_not_there_is_found_before_anything_is_written(start, slurm_site):
    path = slurm_site.root / "other.yaml"
    text = (slurm_site.root / f"{start().project.name}.yaml").read_text()
    path.write_text(text.replace("cpu_partition: common", "cpu_partition: cpus"))
    run = Run(
        slurm_site,
        path.parent / "runs",
        build.plan("k2.5", "h200", "single", variant="slurm", site=str(path)),
    )
    with pytest.raises(
        StepFailed,
        match=r"partition cpus does not exist(?s:.*)gpu, common"
        r"(?s:.*)slurm.cpu_partition",
    ):
        run.to("reach")


def test_a_look_at_the_cluster_changes_nothing_and_says_what_cannot_be_looked_at(
    start, slurm_site, monkeypatch
):
    run = start()
    monkeypatch.setattr(slurm_commands, "here", lambda: slurm_site.commands)

    def files() -> list[Path]:
        # What slurmctld keeps of itself, it writes when it likes.
        state = slurm_site.root / "slurm"
        return sorted(one for one in slurm_site.root.rglob("*") if state not in one.parents)

    before = files()
    found = node_looks.of_cluster(run.plan)
    assert not found.failed and found.rows[0].check == "SLURM"
    assert "sbatch takes 5 jobs" in found.rows[0].found
    assert found.rows[-1].status == "skipped" and "before one runs" in str(found)
    other = {
        name: text.replace("--mem=1800G", "--mem=9000G")
        for name, text in scripts.files(run.plan).items()
    }
    monkeypatch.setattr(scripts, "files", lambda plan: other)
    refused = node_looks.of_cluster(run.plan)
    assert refused.failed and "slurm.memory" in refused.rows[0].help
    monkeypatch.setattr(
        slurm_commands, "here", lambda: slurm_commands.Slurm({"PATH": "/nonexistent"})
    )
    (gone,) = (one for one in node_looks.of_cluster(run.plan).rows if one.status == "fail")
    assert "login node" in gone.help and "sbatch" in gone.found
    assert run.ours() == [] and files() == before


def test_a_machine_without_slurm_says_where_to_run(start):
    run = start(env={"PATH": "/nonexistent"})
    with pytest.raises(StepFailed, match=r"sbatch, .* are not on this machine(?s:.*)login node"):
        run.to("reach")


def test_a_pending_job_is_said_with_its_reason_and_one_cancelled_while_it_serves(start):
    run = start().prepared()
    other = run.site.occupy("--nodes=2", "--gpus-per-node=8")
    run.to("submit")
    thread, failed = run.wait_in_thread()
    run.until_said("vllm_kimi (")
    run.until_said("PENDING (Resources)")
    run.site.run("scancel", str(other))
    thread.join(30)
    assert not thread.is_alive() and not failed
    watch = run.watch()
    watch.wait_ready()
    number = run.cluster._book.entries["baseline"]["id"]
    run.site.run("scancel", str(number))
    end = time.monotonic() + 60
    while not run.cluster.ended():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list(run.cluster.ended().values()) == [-15]
    with pytest.raises(readiness.Found) as found:
        watch.load()
    assert found.value.found.kind == "job-cancelled"
    assert "cancelled from outside" in found.value.found.cause


def test_a_node_that_fails_while_it_serves_is_told_apart(start):
    run = start().prepared()
    run.to("wait")
    watch = run.watch()
    watch.wait_ready()
    node = run.cluster.serving().nodes[0]
    try:
        run.site.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        end = time.monotonic() + 60
        while not run.cluster.ended():
            assert time.monotonic() < end
            time.sleep(0.05)
        with pytest.raises(readiness.Found) as found:
            watch.load()
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # it may be back by itself
            run.site.run("scontrol", "update", f"nodename={node}", "state=resume")
    assert (found.value.found.kind, found.value.found.node) == ("job-node-failure", node)


def test_a_job_cancelled_while_it_is_waited_for_and_submitted_again(start):
    run = start().prepared()
    run.site.occupy("--nodes=2", "--gpus-per-node=8")
    run.to("submit")
    first = run.cluster._book.entries["baseline"]["id"]
    thread, failed = run.wait_in_thread()
    run.until_said("PENDING")
    run.site.run("scancel", str(first))
    thread.join(20)
    assert f"job {first} (vllm_kimi, jobs/4_baseline.sbatch) was cancelled from outside" in str(
        failed[0]
    )
    assert "CANCELLED" in str(failed[0])
    assert len(run.step("submit").changes) == 1
    assert run.cluster._book.entries["baseline"]["id"] > first
    assert run.cluster.down().changes and run.cluster.down().changes == ()


def test_a_job_that_fails_is_shown_with_its_last_words(start):
    plan = start().plan
    files = dict(scripts.files(plan))
    files["jobs/1_create_env.sbatch"] = files["jobs/1_create_env.sbatch"].replace(
        "set -eo pipefail", "echo 'no space for the environment' >&2; exit 3"
    )
    run = start(files=files)
    with pytest.raises(StepFailed) as error:
        run.to("wait")
    (found,) = error.value.failed
    assert found.kind == "job-failed" and "create_vllm_env, jobs/1_create_env.sbatch" in found.cause
    for text in ("FAILED", "NonZeroExitCode", "exit code 3", "no space for the environment"):
        assert text in found.evidence
    assert len(run.step("submit").changes) == 4  # what failed, and what waited for it


def test_jobs_that_wait_for_one_that_was_cancelled_are_submitted_anew(start):
    run = start()
    other = run.site.occupy("--nodes=2", "--partition=common", "--exclusive")
    first = run.to("submit") and run.cluster._queue.ids()
    run.site.run("scancel", str(first["create-env"]))
    # SLURM cancels those behind it within seconds; nobody waits for that.
    assert len(run.step("submit").changes) == 4
    assert not set(first.values()) & set(run.cluster._queue.ids().values())
    run.site.run("scancel", str(other))
    run.step("wait")


def test_a_job_that_can_never_run_is_not_waited_for(start):
    files = {
        name: text.replace("--time=24:00:00", "--time=9-0")
        for name, text in scripts.files(start().plan).items()
    }
    run = start(files=files).prepared()
    with pytest.raises(StepFailed, match=r"will never run: PartitionTimeLimit(?s:.*)slurm.time"):
        run.to("wait")
    assert run.cluster.down().changes


def test_the_host_file_goes_also_when_nobody_waited_for_it(start):
    run = start().prepared()
    run.to("submit")
    end = time.monotonic() + 60
    while not (run.project / "server_host.txt").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert any("server_host.txt" in change.what for change in run.cluster.down().changes)
    assert not (run.project / "server_host.txt").exists()


_CONTROLLER = """
import os, sys, time
from pathlib import Path
from kimi_nb.bundle import scripts
from kimi_nb.plan import build
from kimi_nb.deploy.slurm.cluster import Cluster
from kimi_nb.deploy.slurm.slurm_commands import Slurm

class Slow(Slurm):
    count = 0

    def submit(self, *args, **how):
        number = super().submit(*args, **how)
        self.count += 1
        if self.count == 2:
            print(number, flush=True)
            time.sleep(60)  # it is submitted and not written down: here we are killed
        return number

plan = build.plan("k2.5", "h200", "single", variant="slurm", site=sys.argv[1])
cluster = Cluster(plan, scripts.files(plan), Path(sys.argv[2]), "run-1", lambda text: None,
                  commands=Slow(os.environ))
for step in cluster.steps:
    step.run()
"""


def test_a_controller_killed_between_two_submissions_submits_nothing_twice(start):
    run = start()
    # The first job waits, so that nothing is done meanwhile.
    run.site.occupy("--nodes=2", "--partition=common", "--exclusive")
    site_file = run.site.root / f"{run.project.name}.yaml"
    process = subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER, str(site_file), str(run.folder)],
        env={**run.site.env, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    second = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    table = json.loads((run.folder / "jobs.json").read_text())["jobs"]
    assert list(table) == ["create-env"]
    changes = run.to("submit")
    assert [what.split("(")[1].split(")")[0] for what in changes["submit"]] == [
        "download_kimi",
        "vllm_kimi",
    ]
    assert run.cluster._book.entries["install"]["id"] == second
    assert [name for name, _ in run.ours()] == [
        "create_vllm_env",
        "download_kimi",
        "install_vllm",
        "vllm_kimi",
    ]
    assert run.step("submit").changes == ()


def test_two_runs_on_one_site(start):
    first = start()
    assert first.to("claim")["claim"]
    assert first.to("claim")["claim"] == []
    second = start(run_id="run-2")
    with pytest.raises(StepFailed, match=r"taken by run run-1 of .* since 20(?s:.*)kimi-nb down"):
        second.to("claim")
    assert [change.what for change in second.cluster.preview() if "run-1" in change.what]
    assert second.cluster.down().changes == ()  # which is not the other's end
    assert claim.holder(Path(first.plan.request.site.paths.work, "claim")).run_id == "run-1"
    assert len(first.cluster.down().changes) == 1
    assert second.to("claim")["claim"]


def test_down_without_an_answer_of_slurm_says_what_remains(start, tmp_path):
    run = start().prepared()
    run.site.occupy("--nodes=2", "--gpus-per-node=8")
    run.to("submit")
    conf = tmp_path / "slurm.conf"
    text = Path(run.site.env["SLURM_CONF"]).read_text()
    conf.write_text(text.replace("SlurmctldPort=16817", "SlurmctldPort=16999\nMessageTimeout=2"))
    silent = Run(run.site, tmp_path, run.plan, env={"SLURM_CONF": str(conf)})
    with pytest.raises(StepFailed) as error:
        silent.cluster.down()
    number = run.cluster._book.entries["baseline"]["id"]
    assert "does not answer" in str(error.value) and f"baseline ({number})" in str(error.value)
    assert str(Path(run.plan.request.site.paths.work, "claim")) in str(error.value)
    assert silent.cluster.ended() == {}
    with pytest.raises(StepFailed, match=r"reach: SLURM: SLURM does not answer"):
        silent.to("reach")
    assert run.cluster.down().changes


def test_a_changed_bundle_does_not_go_under_jobs_that_run(start):
    run = start().prepared()
    run.site.occupy("--nodes=2", "--gpus-per-node=8")
    run.to("submit")
    other = start(files=run.files | {"README.md": "another\n"})
    with pytest.raises(StepFailed, match=r"with other scripts(?s:.*)README.md(?s:.*)kimi-nb down"):
        other.to("push")
    run.cluster.down()
    assert len(other.to("push")["push"]) == 1


# What SLURM prints, as recorded ---------------------------------------------------------------


def test_a_queue_is_read():
    text = (
        "12|RUNNING|None|dgx-[01-02]|1-02:03:04|/p/jobs|vllm_kimi|kimi_nb:run-1\n"
        "13|PENDING|ReqNodeNotAvail, UnavailableNodes:dgx-03||0:00|/p/jobs|tune_moe|(null)\n"
        "14|PENDING|Resources||0:00|/p|x y|a | b=c\n"
        "15_[1-8]|PENDING|Priority||0:00|/p|array|(null)\n\n"
    )
    first, second, third = slurm_commands.rows(text)
    assert first == slurm_commands.Row(
        12, "vllm_kimi", "RUNNING", "", "dgx-[01-02]", "1-02:03:04", "/p/jobs", "kimi_nb:run-1"
    )
    assert second.reason == "ReqNodeNotAvail, UnavailableNodes:dgx-03" and second.comment == ""
    assert (third.name, third.comment) == ("x y", "a | b=c")


def test_a_record_is_read():
    found = slurm_commands.record(
        "JobId=6 JobName=x y UserId=root(0) GroupId=root(0) Priority=4294901754 QOS=(null) "
        "JobState=FAILED Reason=NonZeroExitCode Dependency=afterok:3(failed) ExitCode=3:0 "
        "ReqB:S:C:T=0:0:*:* CPUs/Task=1 TRES=cpu=1,mem=1000M Comment=kimi_nb:run-1 Power= \n"
    )
    assert found["JobName"] == "x y" and found["ExitCode"] == "3:0" and found["Power"] == ""
    assert found["TRES"] == "cpu=1,mem=1000M" and found["Comment"] == "kimi_nb:run-1"
    node = slurm_commands.record(
        "NodeName=n1 Arch=x86_64 Gres=gpu:8 NodeAddr=10.0.0.7 NodeHostName=n1 "
        "OS=Linux 6.1 #1 SMP @0  RealMemory=2000000 State=MIXED"
    )
    assert (node["NodeAddr"], node["OS"]) == ("10.0.0.7", "Linux 6.1 #1 SMP @0")


@pytest.mark.parametrize(
    ("text", "state", "code"),
    [
        ("0:0", "COMPLETED", 0),
        ("3:0", "FAILED", 3),
        ("0:9", "FAILED", -9),
        ("0:15", "CANCELLED", -15),
        ("0:0", "CANCELLED", -15),
        ("0:0", "TIMEOUT", -15),
        ("0:125", "OUT_OF_MEMORY", -125),
        ("0:0", "NODE_FAIL", -9),
        ("", "GONE", 1),
    ],
)
def test_exit_codes(text, state, code):
    assert slurm_commands.exit_code(text, state) == code


def test_numbers_partitions_and_words():
    assert slurm_commands.submitted("12\n") == 12 and slurm_commands.submitted("13;cluster\n") == 13
    with pytest.raises(slurm_commands.SlurmError, match="Submitted"):
        slurm_commands.submitted("Submitted batch job\n")
    assert slurm_commands.partitions("gpu|up\ncommon|drain\n") == {"gpu": "up", "common": "drain"}
    assert slurm_commands.words(
        "sbatch: error: invalid partition specified: nope\n"
        "allocation failure: Invalid partition name specified\n"
    ) == ("invalid partition specified: nope; allocation failure: Invalid partition name specified")
    assert slurm_commands.words("slurm_load_jobs error: Invalid job id specified") == (
        "Invalid job id specified"
    )


@pytest.mark.parametrize(
    ("refusal", "gpu", "key"),
    [
        (
            "allocation failure: Invalid account or account/partition combination specified",
            True,
            "slurm.account",
        ),
        ("allocation failure: Invalid qos specification", False, "slurm.cpu_qos"),
        ("allocation failure: Invalid qos specification", True, "slurm.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", True, "slurm.time"),
        ("Memory specification can not be satisfied", True, "slurm.memory"),
        ("Batch job submission failed: Job violates something", True, "administrators"),
    ],
)
def test_a_refusal_says_what_to_change(refusal, gpu, key):
    assert key in slurm_commands.advice(refusal, gpu)


def test_the_variables_of_a_shell_inside_another_job_do_not_count():
    env = slurm_commands.Slurm(
        {
            "SLURM_JOB_ID": "1",
            "SLURM_MEM_PER_NODE": "1",
            "SBATCH_PARTITION": "x",
            "SQUEUE_STATES": "all",
            "SLURM_CONF": "/etc/s",
            "HOME": "/h",
        }
    ).env
    assert env == {"SLURM_CONF": "/etc/s", "HOME": "/h"}


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("TIMEOUT", "time limit of 24:00:00"),
        ("OUT_OF_MEMORY", "1800G of host memory"),
        ("NODE_FAIL", "its node n7 failed"),
        ("PREEMPTED", "higher priority"),
        ("CANCELLED", "cancelled from outside"),
        ("FAILED", "failed"),
        ("GONE", "unknown to SLURM"),
        ("BOOT_FAIL", "did not start"),
    ],
)
def test_the_ends_of_a_job_are_told_apart(state, says):
    plan = build.plan("k2.5", "h200", "single", variant="slurm")
    job = job_book.chain(plan)[-1]
    one = job_book.JobState(job.name, job.file, 9, state, "Why", "n7", "1:00", "vllm_kimi")
    found = job_faults.failed(job, one, -15, "vllm_kimi.9.err: last words")
    assert says in found.cause and "last words" in found.evidence
    assert found.kind == f"job-{state.lower().replace('_', '-')}"
    seen = first_failure.of_logs(
        [first_failure.Log("n7", None, "scontrol", [job_faults.word(one, -15)])],
        plan,
        "while serving",
    )
    assert (seen is None) == (state in ("FAILED", "GONE"))


def test_of_many_that_claim_a_site_at_once_one_has_it(tmp_path):
    path, runs = tmp_path / "claim", [f"run-{at}" for at in range(16)]
    with ThreadPoolExecutor(len(runs)) as pool:
        held = list(pool.map(lambda run: claim.take(path, run, "plan"), runs))
    (first,) = [run for run, holder in zip(runs, held, strict=True) if holder is None]
    assert {holder.run_id for holder in held if holder} == {first}
    assert not claim.release(path, "another") and claim.release(path, first)
    assert not claim.release(path, first) and list(tmp_path.iterdir()) == []


def test_every_job_says_when_its_work_is_done():
    plan = build.plan("k2.5", "h200", "single", variant="slurm")
    for job in plan.jobs:
        if job.name in ("baseline", "optimised"):
            assert not jobs.complete(job.name, "Install complete.\n")
        else:
            last = job.body[-1].partition("tell INFO ")[2].strip("'")
            told = f"INFO 11-23 06:04:02 [job_7:31] node dgx-07: {last}"
            assert jobs.complete(job.name, f"before\n{told}\n\n") and last


def test_sizes_of_the_site_file_take_the_place_of_the_guides(tmp_path):
    text = (ROOT / "params" / "sites" / "h200-slurm.yaml").read_text()
    path = tmp_path / "sizes.yaml"
    path.write_text(
        text.replace("slurm:\n", 'slurm:\n  memory: 1500G\n  cpus: 96\n  time: "12:00:00"\n', 1)
    )
    plan = build.plan("k2.5", "h200", "single", variant="slurm", site=str(path))
    options = {job.name: job.options for job in plan.jobs}
    assert {"--mem=1500G", "--cpus-per-task=96", "--time=12:00:00"} <= set(options["baseline"])
    assert {"--mem=16G", "--cpus-per-task=1", "--time=00:30:00"} <= set(options["create-env"])
    assert {"--mem=64G", "--cpus-per-task=16"} <= set(options["benchmark"])


def test_the_copies_of_a_job_that_was_replaced_are_set_aside(tmp_path):
    logs = job_logs.JobLogs(tmp_path / "logs", dict, str)
    for number in (13, 15):
        for suffix in (".out", ".err"):
            (tmp_path / f"vllm_kimi.{number}{suffix}").write_text(f"{number}\n")
        logs.keep({tmp_path / f"vllm_kimi.{number}{end}": "n1" for end in (".out", ".err")})
    assert sorted(path.name for path in (tmp_path / "logs/n1").iterdir()) == [
        "vllm_kimi.13-err.before",
        "vllm_kimi.13-out.before",
        "vllm_kimi.15.err",
        "vllm_kimi.15.out",
    ]


def test_a_job_on_several_nodes_ends_with_the_error_of_a_node(start):
    run = start(pairs=("nodes=2", "tp=16"))
    queue, job = run.cluster._queue, run.cluster._serving_job
    queue.book.entries[job.name] = {"id": 9}
    paths = queue.files_of(job)
    paths[0].parent.mkdir(parents=True)
    paths[1].write_text("srun: error: n2: task 1: Exited with exit code 1\n")
    assert queue._said(job, 9).startswith(f"{paths[1].name}: srun: error")
    paths[4].write_text("RuntimeError: no such interface\nthe end\n")
    assert queue._said(job, 9) == f"{paths[4].name}: RuntimeError: no such interface"
