"""The rank of a process that its failure does not name, and one name for each worker."""

from __future__ import annotations

import json
import random

import pytest

from kimi_nb.cli import main
from kimi_nb.diagnose import doctor, prefilter, process_ranks, rank_places
from kimi_nb.diagnose.line_grammar import of
from kimi_nb.plan import build

ENGINE = "(EngineCore_DP0 pid=101) "
HEAD, HERE, THERE = (
    f"{ENGINE}(RayWorkerWrapper pid={pid}) "
    for pid in ("345", "345, ip=192.0.2.2", "345, ip=192.0.2.3")
)
TOLD = (
    "INFO 10-22 14:00:05 [parallel_state.py:1208] world_size=16 rank={rank} local_rank=3 "
    "distributed_init_method=tcp://192.0.2.1:5001 backend=nccl",
    "INFO 10-22 14:00:05 [parallel_state.py:1208] rank {rank} in world size 16 is assigned as DP rank "
    "0, PP rank 1, TP rank 3, EP rank 3",
    "h1:345:351 [3] NCCL INFO ncclCommInitRank comm 0x55 rank {rank} nranks 16 cudaDev 3 - Init START",
)
FAILS = (
    "ERROR 10-22 14:01:11 [worker_base.py:303] Error executing method 'execute_model_ray'.",
    "ERROR 10-22 14:01:11 [worker_base.py:303] Traceback (most recent call last):",
    'ERROR 10-22 14:01:11 [worker_base.py:303]   File "/x/vllm/v1/worker/runner.py", line 12, in run',
    "ERROR 10-22 14:01:11 [worker_base.py:303] ZeroDivisionError: the flux divides by nought",
)


def first(folder, *lines, plan=None):
    path = folder / "serve.log"
    path.write_text("\n".join(lines) + "\n")
    return doctor.examine(path, plan).first


def failing(prefix):
    return [prefix + line for line in FAILS]


@pytest.mark.parametrize("told", TOLD)
def test_a_worker_of_ray_has_the_rank_that_it_told(told, tmp_path):
    lines = [where + told.format(rank=rank) for where, rank in ((HEAD, 2), (HERE, 11), (THERE, 5))]
    found = first(tmp_path, *lines, *failing(HERE))
    assert (found.rank, found.exception) == (11, "ZeroDivisionError")
    assert first(tmp_path, *lines, *failing(HEAD)).rank == 2
    assert first(tmp_path, *lines, *failing(THERE)).rank == 5


def test_a_worker_that_told_nothing_is_known_by_its_host(tmp_path):
    assert first(tmp_path, HEAD + TOLD[0].format(rank=2), *failing(HERE)).rank == "ip=192.0.2.2"


def test_of_several_groups_the_largest_counts(tmp_path):
    told = [HERE + line for line in (TOLD[2].format(rank=11), TOLD[2].format(rank=3))]
    told[1] = told[1].replace("nranks 16", "nranks 8")
    assert first(tmp_path, *told, *failing(HERE)).rank == 11
    assert first(tmp_path, *reversed(told), *failing(HERE)).rank == 11


def test_the_engine_tells_in_which_worker_of_ray_it_was_raised(tmp_path):
    said = "ERROR 10-22 14:01:12 [core.py:844] "
    found = first(
        tmp_path,
        HERE + TOLD[0].format(rank=11),
        f"{ENGINE}{said}EngineCore encountered a fatal error.",
        f"{ENGINE}{said}Traceback (most recent call last):",
        f'{ENGINE}{said}  File "/x/vllm/v1/executor/ray_utils.py", line 150, in result',
        f"{ENGINE}{said}ray.exceptions.RayTaskError(ZeroDivisionError): "
        "ray::RayWorkerWrapper.execute_model_ray() (pid=345, ip=192.0.2.2)",
        f"{ENGINE}{said}ZeroDivisionError: the flux divides by nought",
    )
    assert found.rank == 11


def test_a_library_has_the_rank_that_its_process_told(tmp_path):
    lines = ["h1:345:351 [3] NCCL INFO ncclCommInitRank comm 0x55 rank 11 nranks 16 cudaDev 3"]
    lines += [
        "h1:345:360 [3] misc/socket.cc:47 NCCL WARN socketProgress: Connection failed, aborted"
    ]
    assert first(tmp_path, *lines).rank == 11


def test_ranks_are_of_one_process_and_their_number_is_bounded():
    ranks = process_ranks.ProcessRanks()
    for pid in range(5000):
        ranks.take(of(f"(RayWorkerWrapper pid={pid}, ip=192.0.2.2) world_size=8 rank=3"))
    assert ranks.of("|192.0.2.2|7") == 3 and ranks.of("|192.0.2.3|7") is None
    assert ranks.of("|192.0.2.2|4999") is None and ranks.of("") is None


CRASH = "[h1:345:0:345] Caught signal 11 (Segmentation fault: address not mapped to object)"
NAMED = {
    "mpirun noticed that process rank 11 with PID 345 on node h1 exited on signal 11 (Segmentation "
    "fault).": 11,
    "h1:345:345 [3] NVSHMEM INFO NVSHMEM symmetric heap base = 0x7f00": "[3]",
    "h1:345:351 [3] NCCL INFO comm 0x55 rank 11 nRanks 16 nNodes 2 localRanks 8": 11,
}


@pytest.mark.parametrize("told", NAMED)
def test_what_is_told_of_a_process_is_its_rank(told, tmp_path):
    assert first(tmp_path, CRASH, told).rank == NAMED[told]
    assert first(tmp_path, told, CRASH).rank == NAMED[told]
    assert first(tmp_path, CRASH, told.replace("345", "346")).rank is None


def test_a_rank_says_more_of_a_process_than_its_device(tmp_path):
    lines = list(NAMED)
    assert first(tmp_path, CRASH, *lines).rank == first(tmp_path, CRASH, *lines[::-1]).rank == 11


@pytest.mark.parametrize(
    ("process", "other", "one"),
    [
        ("(Worker_TP1 pid=7) no", "(Worker_TP1 pid=7) no", True),
        ("(Worker_TP1 pid=7) no", "(Worker_TP2 pid=8) no", False),
        ("(Worker_TP1 pid=7) no", "no", True),
        ("h1:7:9 [3] misc/shm.cc:112 NCCL WARN no", "(Worker_TP1 pid=7) no", True),
        ("h1:7:9 [3] misc/shm.cc:112 NCCL WARN no", "(Worker_TP1 pid=8) no", False),
    ],
)
def test_lines_are_of_one_process_unless_each_names_its_own(process, other, one):
    assert process_ranks.one_process(of(process), of(other)) is one
    assert process_ranks.one_process(of(other), of(process)) is one


def test_which_lines_tell_a_rank_at_most():
    def only(*lines):
        return [prefilter.only_ranks(known) for _, known in prefilter.numbers(lines)]

    told = [line.format(rank=2) for line in TOLD]
    assert only(*told) == [True] * len(told)
    assert only(f"{told[2]} - ERROR: no", "ERROR no", CRASH) == [False] * 3
    assert only("bread and butter") == []


def test_lines_that_only_tell_ranks_do_not_use_up_what_is_examined(tmp_path):
    many = [HERE + TOLD[2].format(rank=11)] * 700
    found = first(tmp_path, *many, *failing(HERE), *failing(THERE))
    assert (found.rank, found.line) == (11, 704)


@pytest.mark.parametrize("name", ["DP0_TP3_EP3", "DP1_TP0_EP8", "TP3", "PP1_TP2", "DP0_TP3"])
def test_a_worker_is_named_as_it_is_logged(name, tmp_path, capsys):
    data = name[2] if name.startswith("DP") else "0"
    lines = [
        *failing(f"(Worker_{name} pid=400) "),
        f"(EngineCore_DP{data} pid=101) ERROR 10-22 14:01:12 [core.py:844] EngineCore encountered a "
        "fatal error.",
    ]
    found = first(tmp_path, *lines)
    assert (found.rank, found.label) == (name, name.replace("_", " "))
    assert f"rank {name}:" in str(found)
    assert main.main(["doctor", "--json", str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["first"]["rank"] == name
    assert main.main(["doctor", str(tmp_path)]) == 1
    assert f"rank {name}" in capsys.readouterr().out


def test_a_known_failure_names_its_worker_too(tmp_path):
    said = (
        "ERROR 10-22 14:01:12 [a.py:8] RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"
    )
    path = tmp_path / "serve.log"
    path.write_text(f"(Worker_DP0_TP3_EP3 pid=4) {said}\n(Worker_DP1_TP0_EP8 pid=5) {said}\n")
    report = doctor.examine(path)
    assert (report.first.signature, report.first.rank) == ("out-of-memory", "DP0_TP3_EP3")
    assert [one.rank for one in report.also] == ["DP1_TP0_EP8"]


@pytest.mark.parametrize("name", ["TP3", "DP0_TP3_EP3", "DP1_TP0_EP8"])
def test_an_error_without_a_known_cause_names_its_worker_too(name, tmp_path):
    path = tmp_path / "serve.log"
    path.write_text("\n".join(failing(f"(Worker_{name} pid=400) ")) + "\n")
    report = doctor.examine(path)
    assert report.first.rank == name and [one.rank for one in report.unknown] == [name]
    assert f"{report.unknown[0].node}, rank {name}" in str(report.table().rows)


def test_an_error_without_a_known_cause_is_of_the_host_that_ray_names(tmp_path):
    path = tmp_path / "serve.log"
    path.write_text("\n".join(failing("(RayWorkerWrapper pid=7, ip=192.0.2.3) ")) + "\n")
    report = doctor.examine(path)
    assert [one.rank for one in report.unknown] == [report.first.rank] == ["ip=192.0.2.3"]


def test_with_a_plan_and_in_the_log_of_a_rank_its_number_counts(tmp_path):
    plan = build.plan("k2.6", "a3", "pd")
    found = first(tmp_path, *failing("(Worker_DP0_TP3_EP3 pid=400) "), plan=rank_places.of(plan))
    assert found.rank == 0
    assert doctor.examine(tmp_path, rank_places.of(plan)).unknown[0].rank == 0
    (tmp_path / "rank_0.log").write_text("\n".join(failing("(Worker_DP0_TP3_EP3 pid=400) ")) + "\n")
    (tmp_path / "serve.log").unlink()
    assert doctor.examine(tmp_path).first.rank == 0


@pytest.mark.parametrize(
    ("device", "rank", "named"), [(7, 0, "[7]"), (7, 7, 7), (3, 11, 11), (3, 5, "[3]"), (0, 5, 5)]
)
def test_a_device_is_of_a_rank_that_can_be_on_it(device, rank, named, tmp_path):
    found = first(
        tmp_path,
        f"h1:345:360 [{device}] transport/nvls.cc:157 NCCL WARN Cuda failure 1 'invalid argument'",
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/opt/vllm/pynccl_wrapper.py", line 223, in NCCL_CHECK',
        f"[rank{rank}]: FluxError: no flux",
    )
    assert (found.rank, found.line) == (named, 1)


FRAMES = [
    line
    for at in range(6)
    for line in (
        f'  File "/x/vllm/v1/worker/part_{at}.py", line {at}, in run',
        "    return call(*args)",
    )
]
STORM = [
    "WorkerProc hit an exception.",
    "Traceback (most recent call last):",
    *FRAMES,
    "FluxError: no",
]
FORMS = {
    "(VllmWorker rank={rank} pid=4{rank:02}) ": "{rank}",
    "(Worker_TP{rank} pid=4{rank:02}) ": "TP{rank}",
    "(Worker_DP1_TP{rank}_EP{rank} pid=4{rank:02}) ": "DP1_TP{rank}_EP{rank}",
    "(EngineCore_DP0 pid=9) (RayWorkerWrapper pid=4{rank:02}, ip=192.0.2.{rank}) ": "{rank}",
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("form", FORMS)
def test_of_workers_that_speak_at_once_the_first_counts(form, seed, tmp_path):
    chance = random.Random(seed)
    ranks = chance.sample(range(16), 8)
    told = [
        form.format(rank=rank) + TOLD[1].format(rank=rank) for rank in range(16) if "Ray" in form
    ]
    left = [
        [f"{form.format(rank=rank)}ERROR 10-22 14:01:11 [m.py:9] {line}" for line in STORM]
        for rank in ranks
    ]
    mixed = [left[0].pop(0)]
    while any(left):
        mixed.append(chance.choice([one for one in left if one]).pop(0))
    found = first(tmp_path, *told, *mixed)
    assert (str(found.rank), found.exception) == (FORMS[form].format(rank=ranks[0]), "FluxError")
