"""Whose the lines below a command of a shell, or below a heading, are."""

from __future__ import annotations

import pytest

from kimi_nb.diagnose import doctor, log_reader, log_sections, log_summary, prefilter
from kimi_nb.diagnose.log_sources import Source

BROKEN = (
    "INFO 11-22 05:49:08 [api_server.py:1044] vLLM API server version 0.22.1",
    "Traceback (most recent call last):",
    '  File "/opt/vllm/config.py", line 2168, in __init__',
    "RuntimeError: Failed to infer device type",
)
WELL = ("INFO 11-22 05:49:08 [api_server.py:1044] vLLM API server version 0.22.1",)
SOURCE = Source("serve.log", None, "serve", None)
# A command, and whose lines it prints.
COMMANDS = {
    "$ kubectl logs vllm-decode-0 -n llm": "vllm-decode-0",
    "$ kubectl -n llm logs -c vllm --tail=90 vllm-decode-0 | less": "vllm-decode-0",
    "$ kubectl logs --tail 90 -p pod/vllm-decode-0": "vllm-decode-0",
    "kubectl logs deploy/vllm-decode -c vllm": "vllm-decode",
    "# oc logs -f vllm-decode-0": "vllm-decode-0",
    "+ kubectl logs vllm-decode-0": "vllm-decode-0",
    "$ kubectl exec -it vllm-decode-0 -- bash -c 'vllm serve'": "vllm-decode-0",
    "$ kubectl -n ray describe pod vllm-head | tail -12": "vllm-head",
    "$ kubectl describe pod/vllm-head": "vllm-head",
    "$ docker logs --tail 60 sgl-moe 2>&1": "sgl-moe",
    "$ sudo docker compose -f pd.yml logs prefill": "prefill",
    "$ ssh root@gpu-07 cat serve.log": "gpu-07",
    "$ ssh -p 22 gpu-07 'tail -f /var/log/serve.log'": "gpu-07",
    "$ tail -n 50 logs/node-2.log": "node-2",
    "root@gpu-07:~/DeepEP/tests# python3 test_low_latency.py": "gpu-07",
    "(vllm) user@gpu-07:~$ vllm serve moonshotai/Kimi-K2.5": "gpu-07",
    "[root@gpu-07 logs]# vllm serve moonshotai/Kimi-K2.5": "gpu-07",
    "==> /var/log/node-2.log <==": "node-2",
    "=== node-2 ===": "node-2",
    "##### logs/worker-2.log #####": "worker-2",
    "----- host: gpu-07 -----": "gpu-07",
    "gpu-07 | FAILED | rc=1 >>": "gpu-07",
}
# Commands that name nobody.
OTHERS = (
    "$ kubectl get pods",
    "$ kubectl logs -l app=vllm",
    "$ kubectl describe node gpu-07",
    "$ vllm serve moonshotai/Kimi-K2.5",
    "$ dmesg | tail -4",
    "$ kubectl logs",
    "$ docker logs",
)
NONE = (
    "INFO 11-22 05:49:28 [a.py:7] root@gpu-07: logs",
    "# CUDA blocks: 5377, # CPU blocks: 2048",
    "user@example.com asked for 3 logs",
    "docker: Error response from daemon: no such image",
    "$",
    "=== FAILURES ===",
    "==== backtrace (tid:  12550) ====",
    "--------------------",
    "gpu-07 | INFO 11-22 05:49:28 [a.py:7] up",
)


def first(folder, *lines):
    path = folder / "serve.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    return doctor.examine(path).first


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_tells_whose_lines_follow(command, tmp_path):
    found = first(tmp_path, "$ kubectl logs other-0", *WELL, command, *BROKEN)
    assert found.text == BROKEN[-1] and found.node == COMMANDS[command]


@pytest.mark.parametrize("command", OTHERS)
def test_lines_below_another_command_are_of_the_file(command, tmp_path):
    found = first(tmp_path, "$ kubectl logs other-0", *WELL, command, *BROKEN)
    assert found.text == BROKEN[-1] and found.node == "serve"


@pytest.mark.parametrize("line", NONE)
def test_a_line_of_a_log_is_no_command(line):
    assert log_sections.whose(line) is None


@pytest.mark.parametrize("line", [*COMMANDS, *OTHERS])
def test_commands_are_chosen_and_are_no_sign_of_failure(line, tmp_path):
    chosen = [known for _, known in prefilter.numbers([line])]
    assert len(chosen) == 1 and prefilter.only_ranks(chosen[0])
    assert first(tmp_path, line, *WELL) is None


def test_a_pod_that_its_lines_name_counts_more(tmp_path):
    named = [f"[pod/vllm-1/vllm] {line}" for line in BROKEN]
    assert first(tmp_path, "$ kubectl logs --prefix vllm-0", *named).node == "vllm-1"


def test_in_a_log_of_which_not_all_lines_are_examined_no_command_counts():
    sight = log_summary.Sight()
    lines = [f"$ kubectl logs vllm-{at}\n".encode() for at in range(2)]
    for brief, node in ((False, "vllm-0"), (True, "serve")):
        sight.brief = brief
        sight.take(log_reader._line(sight, SOURCE, 1, lines[brief], ""), ())
        assert log_reader._line(sight, SOURCE, 2, b"up\n", "").node == node


def test_a_command_of_any_length_is_read():
    assert log_sections.whose("$ kubectl logs " + "9" * 10**6) == "9" * 385
    assert log_sections.whose("$ " + "a " * 10**5) == ""
