"""Whole rehearsals: every recipe, every fault, and nothing left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from pathlib import Path

import psutil
import pytest
from leftovers import left, wait_gone

from kimi_nb.bundle import scripts
from kimi_nb.core import shell
from kimi_nb.core.errors import ParameterError, PlanError, ServiceError, WriteError
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose import doctor, first_failure, signatures
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.rehearse import documented, fault_names, faults, loopback, rehearsal
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import path_folder, programs_by_name
from kimi_nb.rehearse.simulated_site import SimulatedSite, rebound

# Every recipe ---------------------------------------------------------------------------


@pytest.mark.long
def test_every_recipe_is_rehearsed(each_plan, tmp_path):
    found = rehearsal.rehearse(each_plan, tmp_path)
    assert found.ok, found
    assert found.ready == found.engines == len(each_plan.engines)
    assert found.answer.startswith(MARK) and found.peak_memory_mb > 10
    assert 0 < found.ready_s <= found.first_answer_s
    assert json.loads((found.folder / "rehearsal.json").read_text())["mark"] == MARK
    assert not left(tmp_path)
    for log in [
        *found.folder.glob("bundle/*/logs/rank_*.log"),
        *found.folder.glob("logs/*/engines.log"),
    ]:
        for line in log.read_text().splitlines():
            ours = shell.message(line) != line or line.startswith("0 ")
            # The router of a job is the real one, and writes into the output of the job.
            router = each_plan.jobs and ("vllm_router_rs" in line or line.startswith("DEBUG: "))
            assert MARK in line or ours or router, (log.name, line)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*load.names("hardware")} - {"cpu"}))
def test_every_hardware_is_rehearsed(name, plan_on, tmp_path):
    """With a recipe of the test: there may be a hardware before there are recipes for it."""
    found = rehearsal.rehearse(plan_on(name), tmp_path)
    assert found.ok and found.ready == found.engines, found
    assert found.answer.startswith(MARK)
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("hardware", "layout", "variant", "nodes", "pairs"),
    [
        ("a3", "pd", "", 4, ["prefill.dp=1", "decode.dp=1", "decode.nodes=1"]),
        ("h200", "single", "docker", 2, ["nodes=2", "dp=4", "tp=4"]),
        ("a3", "single", "", 2, ["nodes=2", "dp=8"]),
    ],
    ids=["groups of one rank", "containers of two nodes", "two nodes"],
)
def test_shapes_of_no_document_start(hardware, layout, variant, nodes, pairs, nodes_file, tmp_path):
    site = nodes_file(hardware, nodes)
    plan = build.plan("k2.5", hardware, layout, variant=variant, site=site, pairs=pairs)
    found = rehearsal.rehearse(plan, tmp_path)
    assert found.ok, found
    assert found.ready == found.engines == len(plan.engines)


BALANCED = ["nodes=2", "dp=4", "tp=4", "data-parallel-hybrid-lb=true"]


@pytest.mark.parametrize(
    ("model", "layout", "variant", "nodes", "pairs"),
    [
        ("k2.5", "single", "pip", 2, ["nodes=2", "pp=2"]),
        ("k2.5", "single", "pip", 4, ["nodes=4", "dp=2", "tp=16"]),
        pytest.param(
            *("k2.5", "single", "pip", 2, [*BALANCED, "router=vllm-router"]), marks=pytest.mark.long
        ),
        ("wide", "pd", "", 4, []),
    ],
    ids=["stages", "two ranks of two nodes", "nodes that answer apart", "prefill decode"],
)
def test_wide_ranks_start(model, layout, variant, nodes, pairs, nodes_file, wide_model, tmp_path):
    name = wide_model if model == "wide" else model
    site = nodes_file("h200", nodes)
    plan = build.plan(name, "h200", layout, variant=variant, site=site, pairs=pairs)
    found = rehearsal.rehearse(plan, tmp_path)
    assert found.ok, found
    assert found.ready == found.engines == len(plan.engines)


@pytest.mark.parametrize("pairs", [["nodes=2", "dp=2", "rpc-port=13345"], ["nodes=2", "tp=16"]])
def test_a_slurm_job_of_two_nodes_is_rehearsed(pairs, two_dgx, tmp_path):
    """One script on the first node, whose tasks are on both; the jobs before it run once."""
    plan = build.plan("k2.5", "h200", "single", variant="slurm", site=two_dgx, pairs=pairs)
    found = rehearsal.rehearse(plan, tmp_path / "run")
    assert found.ok, found.diagnosis
    assert found.ready == found.engines == 2
    logs = found.folder / "logs"
    for node in ("dgx-01", "dgx-02"):
        assert "Application startup" in (logs / node / "engines.log").read_text() or (
            "headless" in (logs / node / "engines.log").read_text()
        )
    assert not list((logs / "dgx-02").glob("*create_env*"))


def test_the_scripts_are_those_of_the_plan(each_plan, tmp_path):
    """Only addresses, the network interface and the folders differ; and an engine of the site's
    own is not on PATH, where the stand-ins are."""
    block = loopback.claim()
    local = rebound(each_plan, tmp_path / "here", block)
    block.guard.close()
    site, mine = each_plan.request.site, local.request.site
    swaps = [
        (node.address, there.address) for node, there in zip(site.nodes, mine.nodes, strict=True)
    ]
    swaps += [
        (getattr(site.paths, name), getattr(mine.paths, name))
        for name in ("models", "project", "work", "cache")
        if getattr(site.paths, name) != getattr(mine.paths, name)
    ]
    interfaces = "|".join({"lo", site.nic, *(node.nic for node in site.nodes if node.nic)})
    theirs = scripts.files(each_plan)
    for name, text in scripts.files(local).items():
        if not name.endswith((".sh", ".sbatch", ".py")):
            continue
        want, have = theirs[name], text
        if engine := site.paths.engine:
            want = want.replace(engine, f"{site.paths.work}/engine")
        # The longer first: one folder may be in the other.
        for old, _ in sorted(swaps, key=lambda pair: -len(str(pair[0]))):
            want = want.replace(str(old), "@")
        for _, new in sorted(swaps, key=lambda pair: -len(str(pair[1]))):
            have = have.replace(str(new), "@")
        want, have = (
            # The end of a line, or of one that goes on: docker run has each variable as an option.
            re.sub(rf"=({interfaces})(?= \\$|$)", "=@", one, flags=re.MULTILINE)
            for one in (want, have)
        )
        assert have == want, name


# Faults ---------------------------------------------------------------------------------

PD = ("k2.6", "a3", "pd", "throughput")
# What stands for a whole node, and what for the proxy.
OF_NODE = ("node-unreachable", "wrong-image-tag", "host-tuning-refused", "store-master-dies")
OF_ANY_RANK = ("weights-missing", "draft-missing", "wrong-kv-sizes")


def check(found: rehearsal.Rehearsal, name: str, plan, target) -> None:
    """The diagnosis names the fault, and where it was made."""
    assert not found.ok and found.diagnosis is not None, found
    seen = found.diagnosis
    assert seen.kind == name, found
    assert seen.cause and seen.evidence and seen.help
    if name == FaultName.EMPTY_200:
        assert (seen.node, seen.rank) == (plan.router.node, None)
        return
    assert seen.node == target.engine.node, found
    if name in OF_NODE:
        assert seen.rank is None
    elif name in OF_ANY_RANK:
        assert seen.rank in {engine.rank for engine in plan.engines if engine.node == seen.node}
    else:
        engine = target.engine
        assert engine.rank <= seen.rank < engine.rank + engine.ranks, found


def aim(name: str, plan) -> faults.Target:
    suited = faults.suited(name, plan)
    return faults.apply(name, suited, SimulatedSite.of(suited), scripts.files(suited))[2]


# What logs alone tell of a fault: the signatures that its first line may have; of one that is not
# here those of its kind. Of the silent ones no log says anything; asking the service (notebook 06)
# finds them.
DIED = ("worker-failed", "rank-died")
SAID = {
    "rank-dies-at-start": DIED,
    "rank-dies-while-serving": DIED,
    "port-taken": ("port-taken",),
    "wrong-rank": ("rank-range",),
    "missing-rank": ("missing-rank",),
    "device-twice": ("device-in-use",),
    "unequal-settings": ("unequal-settings",),
    "kv-port-blocked": ("kv-timeout",),
    "wrong-kv-sizes": ("kv-sizes",),
    "first-chat-500": ("tensor-shapes",),
    "node-unreachable": ("unreachable",),
    "disk-full": ("disk-full",),
    "weights-missing": ("weights-missing",),
    "draft-missing": ("draft-missing",),
    "out-of-memory-at-load": ("out-of-memory",),
    "out-of-memory-under-load": ("out-of-memory",),
    "wrong-image-tag": ("image-not-found",),
    "host-tuning-refused": ("tuning-refused",),
    "store-master-dies": ("store-master-killed",),
}
SILENT = {
    "no-kv-params",
    "empty-200",
    "engine-hangs",
    "garbled-output",
    "reasoning-leaks",
    "tool-call-leaks",
    "slow-start",
}


def of_kind(kind: str) -> tuple[str, ...]:
    return tuple(entry.id for entry in signatures.of_logs() if entry.kind == kind)


def test_what_is_said_is_of_faults():
    assert {*SAID, *SILENT} <= {*faults.FAULTS} and not {*SAID} & SILENT


# Those of a cluster are in test_rehearsed_pods.py.
OF_NODES = [name for name in faults.FAULTS if name not in fault_names.ON_PODS]


@pytest.mark.parametrize("name", OF_NODES)
def test_a_fault_is_named(name, tmp_path, stored_model, nodes_file):
    model, hardware, layout, scenario = PD
    if name == FaultName.STORE_MASTER_DIES:
        plan = build.plan(stored_model(), "h200", "single", site=nodes_file("h200", 2))
    else:
        chosen = ("eagle3", "host-tuning")
        plan = build.plan(model, hardware, layout, scenario=scenario, chosen=chosen)
    found = rehearsal.rehearse(plan, tmp_path, fault=name)
    check(found, name, plan, aim(name, plan))
    assert not left(tmp_path)
    first = doctor.examine(found.folder, found.folder / "bundle").first
    if name in SILENT:  # at most the end of the rehearsal itself, seen by a group
        assert first is None or first.signature == "group-lost", first
    else:
        assert (first.node, first.rank) == (found.diagnosis.node, found.diagnosis.rank)
        assert first.signature in SAID.get(name, of_kind(name)), first


ELSEWHERE = [
    (name, of)
    for of in (("k2.5", "a2", "dp", ""), ("k2.5", "gb200", "dp", ""))
    for name in (
        "rank-dies-while-serving",
        "wrong-rank",
        "missing-rank",
        "unequal-settings",
        "engine-hangs",
        "slow-start",
        "out-of-memory-under-load",
    )
]


@pytest.mark.long
@pytest.mark.parametrize("name, of", ELSEWHERE, ids=[f"{of[1]}-{name}" for name, of in ELSEWHERE])
def test_a_fault_of_a_group_without_a_proxy(name, of, tmp_path):
    model, hardware, layout, _ = of
    plan = build.plan(model, hardware, layout)
    check(rehearsal.rehearse(plan, tmp_path, fault=name), name, plan, aim(name, plan))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_fault_at_any_engine(seed, tmp_path):
    """The diagnosis is found, not known: at an engine that only chance has chosen."""
    chance = random.Random(seed)
    plan = build.plan("k2.6", "a3", "pd")
    engine = chance.choice(plan.engines).name
    name = chance.choice(
        [
            "rank-dies-at-start",
            "port-taken",
            "garbled-output",
            "disk-full",
            "out-of-memory-at-load",
            "first-chat-500",
        ]
    )
    found = rehearsal.rehearse(plan, tmp_path, fault=f"{name}@{engine}")
    check(found, name, plan, aim(f"{name}@{engine}", plan))


# Engines of each plan that chance chooses for each fault; five take half an hour.
ENGINES = int(os.environ.get("KIMI_NB_TEST_ENGINES", "1"))
# Ranks below launchers and a proxy, engines on two nodes, one engine, one engine on two nodes.
SHAPES = {
    "pd": ("k2.5", "a3", "pd", ("host-tuning",)),
    "dp": ("k2.5", "a2", "dp", ("host-tuning",)),
    "single": ("k2.5", "a3", "single", ()),
    "spread": ("k2.5", "gb200", "dp", ()),
}
# At most the end of the rehearsal itself, as the others of a group see it.
AT_END = ("group-lost", "closed-by-peer")


def shape(name: str):
    model, hardware, layout, chosen = SHAPES[name]
    return build.plan(model, hardware, layout, chosen=chosen)


def anywhere(name: str, plan) -> list[str]:
    """The fault at engines that only chance has chosen, of those that can have it."""
    out = []
    for engine in random.Random(zlib.crc32(name.encode())).sample(plan.engines, len(plan.engines)):
        with contextlib.suppress(ParameterError, PlanError):
            aim(f"{name}@{engine.name}", plan)
            out.append(f"{name}@{engine.name}")
    return out[:ENGINES]


def agree(fault: str, plan, folder) -> None:
    """The rehearsal's diagnosis and the doctor's, of the same logs, name the same."""
    found = rehearsal.rehearse(plan, folder, fault=fault)
    report = doctor.examine(found.folder, found.folder / "bundle")
    wanted, first = found.diagnosis, report.first
    # The ends of ranks that only followed are no causes.
    assert not {one.signature for one in report.also} & {"rank-died", "engine-killed"}, report.also
    if fault.partition("@")[0] in SILENT:
        assert first is None or first.signature in AT_END, first
        return
    if wanted is None:  # at this engine nothing comes of the fault
        assert first is None, first
        return
    assert first is not None, wanted
    assert (first.node, first.rank) == (wanted.node, wanted.rank), (fault, wanted, first)
    # What a request has shown, before the logs were read, has a kind of its own.
    if first.signature != "unknown" and not wanted.evidence.startswith("POST "):
        assert first.kind == wanted.kind, (fault, wanted, first)


@pytest.mark.parametrize("of, engine", [("pd", "decode0-rank5"), ("single", "mixed0-rank0")])
def test_a_rank_that_is_killed_while_it_serves_is_named_by_the_doctor(of, engine, tmp_path):
    """Of 32 ranks of decode all others end too, and their launchers say so; one engine is alone."""
    agree(f"rank-dies-while-serving@{engine}", shape(of), tmp_path)


def test_what_a_request_has_shown_is_of_the_same_kind_to_the_doctor(tmp_path):
    """The engine's log has the error of its core, not the answer to the request."""
    agree("first-chat-500", shape("single"), tmp_path)
    report = doctor.examine(tmp_path)
    assert report.first.kind == "first-chat-500"
    assert report.first.component != "scheduler"  # it only passes on what was raised


@pytest.mark.long
@pytest.mark.parametrize("of", SHAPES)
@pytest.mark.parametrize("name", OF_NODES)
def test_the_doctor_agrees_with_the_rehearsal_at_any_engine(name, of, tmp_path):
    plan = shape(of)
    if not (made := anywhere(name, plan)):
        pytest.skip("no engine of this plan can have it")
    for at, fault in enumerate(made):
        agree(fault, plan, tmp_path / str(at))


@pytest.mark.parametrize(
    "name",
    ["out-of-memory-under-load", pytest.param("rank-dies-while-serving", marks=pytest.mark.long)],
)
def test_a_prefill_engine_that_fails_when_it_is_asked_for_its_cache(name, tmp_path):
    """An answer that did not come is no answer without kv_transfer_params."""
    plan = build.plan("k2.6", "a3", "pd", scenario="throughput")
    found = rehearsal.rehearse(plan, tmp_path, fault=f"{name}@prefill0-rank1").diagnosis
    assert (found.kind, found.node, found.rank) == (name, "a3-0", 1), found


def test_a_fault_that_cannot_be(tmp_path):
    single = build.plan("k2.5", "a3", "single")
    for name, error, text in (
        ("no-such", ParameterError, "Allowed: rank-dies-at-start"),
        ("empty-200", PlanError, "no proxy"),
        ("missing-rank", PlanError, "needs a group of several engines"),
        ("port-taken@nobody", ParameterError, "engine 'nobody'"),
        ("port-taken@", ParameterError, "Allowed: port-taken alone, and"),
        ("device-twice", PlanError, "needs several engines on one node"),
    ):
        with pytest.raises(error, match=text):
            rehearsal.rehearse(single, tmp_path, fault=name)
    assert not list(tmp_path.rglob("*/logs")), "nothing is made for a mistake"
    assert not left(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "kv-port-blocked@decode0-rank0",
        "no-kv-params@decode0-rank0",
        "empty-200@decode0-rank0",
        "unequal-settings@decode0-rank0",
    ],
)
def test_a_fault_at_an_engine_that_cannot_have_it(name, tmp_path):
    plan = build.plan("k2.6", "a3", "pd", scenario="throughput")
    with pytest.raises(PlanError, match="decode0-rank0.* cannot have it; it needs"):
        rehearsal.rehearse(plan, tmp_path, fault=name)


def test_the_evidence_of_a_slow_start_is_the_ranks_own(tmp_path):
    plan = build.plan("k2.6", "a3", "pd", scenario="throughput")
    found = rehearsal.rehearse(plan, tmp_path, fault="slow-start@prefill0-rank1")
    assert found.diagnosis.rank == 1
    assert "rank_1.log" in found.diagnosis.evidence and "Loading" in found.diagnosis.evidence


# As published ---------------------------------------------------------------------------


def test_the_documents_own_prefill_decode_commands_are_refused(tmp_path):
    """Kimi-K2.6: ranks 8 to 15 of 8, and devices 16 to 31 of 16, as the real engine says."""
    published, own = documented.find("k2.6", "a3", "pd")
    found = rehearsal.rehearse(documented.named(own), tmp_path, make=documented.maker(published))
    assert not found.ok and found.engines == 24
    causes = {(one.node, one.rank): one.cause for one in (found.diagnosis, *found.also)}
    for rank in range(8, 16):
        assert f"rank {rank}, which does not exist" in causes["decode1", rank]
    assert "no device 16: devices are [0, 16)" in causes["decode0", 4]
    text = (found.folder / "bundle/decode1/logs/rank_8.log").read_text()
    assert "data_parallel_rank (8) must be in the range [0, 8)" in text


def test_published_commands_that_are_in_order_run(tmp_path):
    published, own = documented.find("k2.5", "a2", "dp")
    found = rehearsal.rehearse(documented.named(own), tmp_path, make=documented.maker(published))
    assert found.ok, found


def test_a_flag_that_the_version_does_not_know_stops_it(tmp_path):
    published, own = documented.find("k2.5", "h200", "single", "slurm")
    found = rehearsal.rehearse(documented.named(own), tmp_path, make=documented.maker(published))
    assert not found.ok
    assert "unrecognized arguments: --swap-space 32" in " ".join(
        one.cause for one in (found.diagnosis, *found.also)
    )


# Nothing is left ------------------------------------------------------------------------


def begin(tmp_path: Path, *more: str) -> subprocess.Popen:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kimi_nb",
            "rehearse",
            "--model",
            "k2.6",
            "--hw",
            "a3",
            "--layout",
            "pd",
            "--run-dir",
            str(tmp_path),
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen, word: str) -> None:
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"{word} never came")


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP],
    ids=lambda number: number.name,
)
@pytest.mark.parametrize("when", ["launch.sh", "proxy.sh"])
def test_nothing_is_left_when_the_caller_ends(number, when, tmp_path):
    caller = begin(tmp_path)
    until(caller, when)
    assert left(tmp_path)
    caller.send_signal(number)
    assert wait_gone(tmp_path) == []
    caller.communicate(timeout=10)
    assert caller.returncode == (-9 if number == signal.SIGKILL else 130)
    # The ports are free again.
    written = next(tmp_path.rglob("world.json"))
    for address in json.loads(written.read_text())["nodes"].values():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, 7100))


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path):
    caller = begin(tmp_path)
    until(caller, "proxy.sh")
    supervisor = (
        next(one for one in left(tmp_path) if "kimi_nb.core.supervisor" in one.cmdline())
        if any("kimi_nb.core.supervisor" in one.cmdline() for one in left(tmp_path))
        else next(
            one
            for one in psutil.Process(caller.pid).children()
            if "kimi_nb.core.supervisor" in one.cmdline()
        )
    )
    supervisor.kill()
    caller.communicate(timeout=30)
    assert caller.returncode != 0
    assert wait_gone(tmp_path) == []


def test_nothing_is_left_when_a_kernel_is_killed(tmp_path):
    """A notebook's kernel is a process like any other; the service it holds ends with it."""
    code = (
        "import kimi_nb\n"
        "run = kimi_nb.start(hw='a3', model='k2.6', action='rehearse', "
        f"run_dir={str(tmp_path)!r})\n"
        "service = run.serve(run.plan(run.choose('pd')))\nprint('UP', flush=True)\nimport time\n"
        "time.sleep(60)\n"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert any(line.startswith("UP") for line in kernel.stdout)
    assert left(tmp_path)
    kernel.kill()
    kernel.wait()
    assert wait_gone(tmp_path) == []


def test_two_at_once_do_not_meet(tmp_path):
    both = [begin(tmp_path / name, "--json") for name in ("one", "two")]
    found = [json.loads(one.communicate(timeout=60)[0]) for one in both]
    assert [one["ok"] for one in found] == [True, True]
    nodes = [
        json.loads(next((tmp_path / name).rglob("world.json")).read_text())["nodes"]["a3-0"]
        for name in ("one", "two")
    ]
    assert nodes[0] != nodes[1]


# The machine, the command line, the walk -------------------------------------------------


def test_a_machine_with_one_loopback_address_is_told_at_once(monkeypatch, tmp_path):
    def bind(self, address):
        raise OSError(99, "Can't assign requested address")

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(loopback.RehearsalError, match=r"only 127\.0\.0\.1.*macOS"):
        rehearsal.rehearse(build.plan("k2.5", "a3", "pd"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_system_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(loopback.RehearsalError, match="needs Linux"):
        rehearsal.rehearse(build.plan("k2.5", "a3", "pd"), tmp_path)


def test_more_than_the_machine_holds_is_refused(monkeypatch, tmp_path):
    few = type("Memory", (), {"available": 500e6})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: few)
    with pytest.raises(loopback.RehearsalError, match="36 engines.*0.5 GB are free"):
        rehearsal.rehearse(build.plan("k2.5", "a3", "pd"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_port_that_another_program_has_is_named_before_anything_starts(tmp_path):
    """An engine at all addresses would answer in place of a stand-in, and be called broken."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        plan = build.plan("k2.5", "h200", "single", pairs=(f"port={port}",))
        with pytest.raises(
            loopback.RehearsalError, match=rf"127\.\d+\.0\.1:{port}: another program.*ss -Hltnp"
        ):
            rehearsal.rehearse(plan, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_json(tmp_path):
    done = begin(tmp_path, "--json", "--fault", "wrong image tag")
    out, said = done.communicate(timeout=60)
    found = json.loads(out)
    assert done.returncode == 1 and "Traceback" not in said
    assert {
        "ok",
        "engines",
        "ready",
        "first_answer_s",
        "peak_memory_mb",
        "answer",
        "diagnosis",
    } <= found.keys()
    assert found["diagnosis"].keys() >= {"node", "rank", "cause", "evidence"}
    assert "wrong image tag" in found["diagnosis"]["cause"]


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["--fault", "nonsense"], "Allowed: rank-dies-at-start"),
        (["--as-documented", "--fault", "slow-start"], "changes nothing of what a document"),
        (["--layout", "single", "--as-documented", "--set", "max-num-seqs=3"], "--set"),
    ],
)
def test_a_mistake_is_one_line(words, wanted, tmp_path):
    done = begin(tmp_path, *words)
    out, said = done.communicate(timeout=60)
    assert done.returncode == 2 and not out
    assert wanted in said and "Traceback" not in said and said.count("\n") == 1
    assert not list(tmp_path.rglob("rehearsals/*"))


def test_the_walk_of_a_notebook(tmp_path, capsys):
    from kimi_nb import start

    run = start(hw="a2", model="k2.5", action="rehearse", run_dir=str(tmp_path))
    plan = run.plan(run.choose("dp"))
    service = run.serve(plan)
    assert service.ready == service.engines == 2 and service.answer.startswith(MARK)
    assert "2 of 2" in str(service) and service.url.startswith("http://127.")
    service.stop()
    service.stop()
    run.close()
    facts = [json.loads(line) for line in (tmp_path / "evidence.jsonl").read_text().splitlines()]
    marked = [fact for fact in facts if fact["stage"] in ("rehearse", "stop")]
    assert marked and all(fact["mark"] == MARK for fact in marked)
    assert not left(tmp_path)


def test_a_walk_that_fails_names_the_cause(tmp_path):
    from kimi_nb import start

    run = start(hw="a2", model="k2.5", action="rehearse", run_dir=str(tmp_path))
    with pytest.raises(ServiceError, match="a2-1, rank 2: wrong rank"):
        run.serve(run.plan(run.choose("dp")), fault="wrong-rank")
    assert not left(tmp_path)


def test_action_plan_starts_nothing(tmp_path):
    from kimi_nb import start

    run = start(hw="a2", model="k2.5", action="plan", run_dir=str(tmp_path))
    plan = run.plan(run.choose("dp"))
    service = run.serve(plan)
    assert (service.engines, service.ready, service.answer, service.url) == (0, 0, "", "")
    assert "nothing" in str(service.stop())
    with pytest.raises(ParameterError, match="action plan starts nothing"):
        run.serve(plan, fault="slow-start")


@pytest.mark.parametrize("router", ["upstream", "vllm-router"])
def test_a_key_goes_through_the_front_door(router, tmp_path, site_file):
    """The proxy hands the engines the key under the name that it reads, and a door before it asks
    the callers for theirs."""
    site = site_file(("transport:", "api_key_env: KIMI_KEY\ntransport:"))
    plan = build.plan(
        "k2.6", "a3", "pd", scenario="throughput", site=site, pairs=[f"router={router}"]
    )
    files = scripts.files(plan)
    assert 'export OPENAI_API_KEY="${KIMI_KEY:?' in files["a3-0/proxy.sh"]
    assert "keyed_door.py" in files["a3-0/proxy.sh"] and "a3-0/keyed_door.py" in files
    found = rehearsal.rehearse(plan, tmp_path / "run")
    assert found.ok, found
    log = (Path(found.folder) / "logs" / "router.log").read_text()
    assert "asks for the key; behind it: " in log


@pytest.mark.parametrize("program", ["stand-in", "vllm-router"])
def test_a_proxy_alone_asks_nobody(program, tmp_path):
    """What the door is for: the real router, and what stands for the upstream proxy, send the
    engines the key of their own environment, whoever calls. (So does the upstream proxy, by its
    source.)"""
    seen: list[str | None] = []

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers.get("Authorization"))
            text = b'{"choices": [], "kv_transfer_params": {"a": 1}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, form: str, *args: object) -> None:
            pass

    here = Path(sys.executable).parent
    if not (here / "vllm-router").exists():
        pytest.skip("no vllm-router here")
    engines = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine) for _ in range(2)]
    for engine in engines:
        threading.Thread(target=engine.serve_forever, daemon=True).start()
    prefill, decode = (str(engine.server_port) for engine in engines)
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.socket()) for _ in range(2)]
        for one in free:
            one.bind(("127.0.0.1", 0))
        port, metrics = (str(one.getsockname()[1]) for one in free)
    listens = ["--host", "127.0.0.1", "--port", port]
    if program == "stand-in":
        run = (
            "import os, sys; from kimi_nb.rehearse.host_programs import upstream_proxy as p; "
            "p.serve(p.options(sys.argv[1:]), 'v0.22.1rc1', os.environ['OPENAI_API_KEY'], print)"
        )
        argv = [sys.executable, "-c", run, *listens]
        argv += ["--prefiller-hosts", "127.0.0.1", "--prefiller-ports", prefill]
        argv += ["--decoder-hosts", "127.0.0.1", "--decoder-ports", decode]
    else:
        argv = [str(here / "vllm-router"), *listens, "--prometheus-port", metrics]
        argv += ["--vllm-pd-disaggregation", "--policy", "round_robin"]
        argv += ["--prefill", f"http://127.0.0.1:{prefill}"]
        argv += ["--decode", f"http://127.0.0.1:{decode}"]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OPENAI_API_KEY": "k-1"}
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}',
            {"Content-Type": "application/json", "Authorization": "Bearer of-a-stranger"},
        )
        until = time.monotonic() + 60
        while not seen and time.monotonic() < until:
            with contextlib.suppress(OSError):
                assert urllib.request.urlopen(asked, timeout=10).status == 200
            time.sleep(0.1)
        assert set(seen) == {"Bearer k-1"}
    finally:
        process.terminate()
        process.wait(timeout=20)
        for engine in engines:
            engine.shutdown()
            engine.server_close()


def test_a_secret_whose_name_is_taken(tmp_path, site_file):
    """A name such as PATH is a person's mistake, and no way past the stand-ins."""
    site = site_file(("transport:", "api_key_env: PATH\ntransport:"))
    found = rehearsal.rehearse(build.plan("k2.5", "a3", "single", site=site), tmp_path / "run")
    assert found.ok or found.diagnosis, found


def test_nodes_whose_names_begin_alike(tmp_path, site_file):
    site = site_file(
        ("name: a3-0", "name: n1"),
        ("name: a3-1", "name: n1.engines"),
        ("name: a3-2", "name: n1.x"),
        ("name: a3-3", "name: n10"),
    )
    plan = build.plan("k2.6", "a3", "pd", scenario="throughput", site=site)
    for name in ("wrong-image-tag", "node-unreachable"):
        found = rehearsal.rehearse(plan, tmp_path, fault=name)
        assert (found.diagnosis.kind, found.diagnosis.node) == (name, "n1.engines"), found


def test_a_run_folder_that_would_let_the_real_programs_in(tmp_path):
    with pytest.raises(ParameterError, match="':' separates"):
        rehearsal.rehearse(build.plan("k2.5", "a3", "single"), tmp_path / "a:b")
    assert not (tmp_path / "a:b").exists()


@pytest.mark.parametrize("folder", ["up/../here", "with space", "x" * 60 + "/" + "y" * 120])
def test_a_run_folder_of_any_form(folder, tmp_path):
    (tmp_path / "up").mkdir()
    found = rehearsal.rehearse(build.plan("k2.5", "a3", "single"), tmp_path / folder)
    assert found.ok, found


def test_a_foreign_server_at_all_addresses_is_named_by_address_and_port(tmp_path):
    """It would answer for an engine."""
    with socket.create_server(("0.0.0.0", 0)) as foreign:
        port = foreign.getsockname()[1]
        plan = build.plan("k2.5", "a3", "single", pairs=[f"port={port}"])
        with pytest.raises(loopback.RehearsalError, match="another program") as refused:
            rehearsal.start(plan, tmp_path / "run")
    told = str(refused.value)
    assert re.search(rf"127\.\d+\.\d+\.\d+:{port}: another program", told), told
    assert f"sport = :{port}" in told


def test_a_foreign_server_where_blocks_are_claimed_is_named(tmp_path, monkeypatch):
    with socket.create_server(("0.0.0.0", 0)) as foreign:
        port = foreign.getsockname()[1]
        monkeypatch.setattr(loopback, "_GUARD", port)
        with pytest.raises(
            loopback.RehearsalError, match=f"another program listens at port {port}"
        ):
            loopback.claim()


def test_a_python_that_this_user_may_not_run_is_named(tmp_path, monkeypatch):
    """As one in a home that another user, without a name perhaps, may not enter."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(loopback.RehearsalError, match="cannot be run by this user") as refused:
        rehearsal.start(build.plan("k2.5", "a3", "single"), tmp_path / "run")
    assert str(python) in str(refused.value)


def test_a_run_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(WriteError, match="cannot be written"):
            rehearsal.rehearse(build.plan("k2.5", "a3", "single"), folder)


def test_nohup_is_respected(tmp_path):
    caller = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kimi_nb",
            "rehearse",
            "--model",
            "k2.5",
            "--hw",
            "a2",
            "--run-dir",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    until(caller, "serve.sh")
    caller.send_signal(signal.SIGHUP)
    caller.communicate(timeout=30)
    assert caller.returncode == 0


def test_a_secret_of_the_caller_stays_with_him(tmp_path, monkeypatch, site_file):
    """Where a key is needed the rehearsal has one of its own; the caller's is never read."""
    monkeypatch.setenv("KIMI_KEY", "sk-the-callers-own")
    site = site_file(("transport:", "api_key_env: KIMI_KEY\ntransport:"))
    plan = build.plan("k2.5", "a3", "single", site=site)
    assert plan.secrets
    found = rehearsal.rehearse(plan, tmp_path / "run")
    assert found.ok, found
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert b"sk-the-callers-own" not in path.read_bytes(), path


# Parts ------------------------------------------------------------------------------------


def test_no_signature_sees_anything_in_a_healthy_log(tmp_path):
    plan = build.plan("k2.5", "a2", "dp")
    found = rehearsal.rehearse(plan, tmp_path)
    logs = [
        first_failure.Log("a2-0", None, path.name, path.read_text().splitlines())
        for path in found.folder.glob("logs/*/*.log")
    ]
    assert sum(len(log.lines) for log in logs) > 20
    assert first_failure.of_logs(logs, plan, "at start") is None


def test_an_unknown_failure_is_shown_not_swallowed():
    plan = build.plan("k2.5", "a2", "dp")
    lines = ["INFO all is well", "(EngineCore_DP3 pid=7) ERROR 11-21 10:00:00 [x.py:1] flux gone"]
    found = first_failure.of_logs(
        [first_failure.Log("a2-1", None, "serve.log", lines)], plan, "at start"
    )
    assert (found.kind, found.node, found.rank) == ("unknown", "a2-1", 3)
    assert "flux gone" in found.evidence


def test_the_first_failure_counts_not_what_follows():
    plan = build.plan("k2.5", "a3", "pd")
    lost = [
        "11-21 10:00:09 ERROR The group has lost rank 31 on a3-3: collective operations",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
    ]
    logs = [first_failure.Log("a3-2", rank, f"rank_{rank}.log", lost) for rank in range(16)]
    logs.append(
        first_failure.Log(
            "a3-2",
            None,
            "a3-2.engines.log",
            ["rank 7 failed: exit code 1; last lines of logs/rank_7.log:"],
        )
    )
    logs.append(
        first_failure.Log(
            "a3-3",
            None,
            "a3-3.engines.log",
            ["rank 31 failed: signal SIGKILL; last lines of rank_31.log:"],
        )
    )
    found = first_failure.of_logs(logs, plan, "under load")
    assert (found.node, found.rank) == ("a3-3", 31) and "SIGKILL" in found.cause


def test_the_names_on_path_are_those_of_the_tools():
    assert set(path_folder.NAMES) == set(programs_by_name.TOOLS)


def test_a_simulated_site_is_read_as_it_was_written(tmp_path):
    site = SimulatedSite.of(build.plan("k2.5", "a3", "pd"))
    site, _, _ = faults.apply("disk-full", build.plan("k2.5", "a3", "pd"), site, {})
    site.write(tmp_path / "world.json")
    assert SimulatedSite.read(tmp_path / "world.json") == dataclasses.replace(
        site, nodes=dict(site.nodes)
    )


def test_stand_ins_that_cannot_begin_say_so_in_one_line(tmp_path):
    SimulatedSite.of(build.plan("k2.5", "a3", "single")).write(tmp_path / "world.json")
    (tmp_path / "spawner.new").mkdir()
    words = [sys.executable, "-m", "kimi_nb.rehearse.spawner", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"{tmp_path}: cannot be written: ") and "--run-dir" in done.stderr
