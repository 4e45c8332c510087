"""What ended a program, where a shell or an operating system tells its end below."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor

SHELL = "./start.sh: line 22:  5188 {} vllm serve /models"
WARMS_UP = (
    "[2026-01-10 13:23:27] Initialization failed. warmup error: Traceback (most recent call last):",
    '  File "/opt/sglang/srt/entrypoints/http_server.py", line 1434, in _execute_server_warmup',
    '    assert res.status_code == 200, f"{res=}, {res.text=}"',
)
CAUSES = (
    "Memory access fault by GPU node-3 (Agent handle: 0x13e8) on address 0x77d4. Reason: Unknown.",
    "free(): invalid pointer",
    "python: /opt/src/alloc.cc:120: void alloc(): Assertion `p != nullptr' failed.",
    "(Worker_TP3 pid=412) ERROR 08-18 10:00:40 [a.py:231] RuntimeError: HIP error: no function",
)
ANSWERS = (
    'res=<Response [500]>, res.text=\'{"message": "call aclnnMoe failed, error code is 561002"}\'',
    'res=<Response [400]>, res.text=\'{"message": "NPU out of memory"}} 400 Bad Request\'',
    "res=<Response [500]>, res.text='[ERROR] 2026-01-10-13:23:26 (PID:412, Device:3, RankID:-1) "
    "ERR01100 OPS call acl api failed'",
)


def first(folder, *lines):
    path = folder / "serve.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return doctor.examine(path).first


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize(
    "end", ["Aborted                 (core dumped)", "Killed                 "]
)
def test_the_cause_is_told_before_the_end_that_a_shell_tells(cause, end, tmp_path):
    assert first(tmp_path, cause, SHELL.format(end)).text == cause


def test_the_end_that_a_shell_tells_is_told_where_nothing_else_is(tmp_path):
    end = SHELL.format("Aborted                 (core dumped)")
    assert first(tmp_path, "INFO 08-18 10:00:00 [a.py:80] up", end).text == end


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_warm_up_that_failed_is_told_before_the_end_of_the_program(answer, tmp_path):
    found = first(tmp_path, *WARMS_UP, f"AssertionError: {answer}", "", "Killed")
    assert found.text == f"AssertionError: {answer}"


def test_the_memory_monitor_of_ray_tells_the_host_on_its_next_line(tmp_path):
    says = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    found = first(
        tmp_path,
        says,
        "Memory on the node (IP: 192.0.2.26, ID: abd4) where the task (name=RayWorker, pid=812) was "
        "running was 478.11GB / 503.34GB, which exceeds the memory usage threshold of 0.95.",
    )
    assert (found.text, found.rank) == (says, "ip=192.0.2.26")


def test_a_bare_signal_is_told_by_the_library_that_catches_it_too(tmp_path):
    caught = (
        "[node7:122  :0:10213] Caught signal 11 (Segmentation fault: address not mapped to object)"
    )
    found = first(tmp_path, "[TensorRT-LLM][INFO] loaded", "Signal (11) received.", caught)
    assert found.text == caught


def test_a_bare_signal_is_told_where_only_another_one_is_caught(tmp_path):
    other = "[node7:122  :0:10213] Caught signal 7 (Bus error: nonexistent physical address)"
    found = first(tmp_path, "[TensorRT-LLM][INFO] loaded", "Signal (11) received.", other)
    assert found.text == "Signal (11) received."


def test_a_file_that_names_its_host_before_its_path_is_of_that_host(tmp_path):
    found = first(
        tmp_path,
        "==> node-2: run-1-ray.log <==",
        "[2026-01-06 10:02:46,604 E 44 44] gcs_rpc_client.h:186: Failed to connect to GCS at "
        "address 192.0.2.132:41000 within 5 seconds.",
    )
    assert found.node == "node-2"
