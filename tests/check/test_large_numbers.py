"""Numbers of any length in scripts, manifests and compose files: judged, or left out, never an error."""

from __future__ import annotations

import pytest

from kimi_nb.cli import main
from kimi_nb.core import numbers

SCRIPT = """export HCCL_BUFFSIZE=N VLLM_DP_RANK=N VLLM_NIXL_SIDE_CHANNEL_PORT=N OMP_NUM_THREADS=N
export VLLM_CPU_KVCACHE_SPACE=N ASCEND_BUFFER_POOL=N:N ASCEND_RT_VISIBLE_DEVICES=N
f() { shift N; echo $N ${N} "${@:N}" {1..N}; }
f 1
vllm serve Eco-Tech/Kimi-K2.5-W4A8 --port N --tensor-parallel-size N --data-parallel-size N \\
  --max-model-len N --max-num-seqs N --data-parallel-rank N --swap-space N --kv-cache-memory-bytes Ng \\
  --kv-transfer-config '{"kv_port": N, "kv_role": "kv_producer"}' --nnodes N --node-rank N \\
  --additional-config '{"eplb_config": {"num_redundant_experts": N}}' --kv-offloading-size N
vllm serve moonshotai/Kimi-K2.5 --tensor-parallel-size 8 --kv-cache-memory-bytes NG --block-size N \\
  --speculative-config '{"method": "eagle3", "num_speculative_tokens": N}'
vllm bench serve --num-prompts N --max-concurrency N --port N
docker run --shm-size Ng --gpus N -p N:N -e A=N vllm/vllm-openai:vN vllm serve m
python benchmark_moe.py --tp-size N --model moonshotai/Kimi-K2.5
curl http://a:N/v1/models
"""
POD = """apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  replicas: N
  template:
    spec:
      terminationGracePeriodSeconds: N
      containers:
      - name: e
        image: vllm/vllm-openai:v0.11.0
        command: [vllm, serve, m, --tensor-parallel-size, "N", --port, "N", --nnodes, "N"]
        ports: [{containerPort: N}]
        resources: {limits: {nvidia.com/gpu: "N", memory: NGi}, requests: {nvidia.com/gpu: N}}
        livenessProbe: {httpGet: {port: N, path: /}, periodSeconds: N, failureThreshold: N}
"""
COMPOSE = """services:
  a:
    image: vllm/vllm-openai
    command: --model m --port N
    ports: ["N:N", "N:8000"]
    shm_size: Ng
    deploy: {resources: {reservations: {devices: [{count: N, capabilities: [gpu]}]}}}
"""


@pytest.mark.parametrize("digits", [1, 19, 400, 5000])
@pytest.mark.parametrize(
    ("name", "text"), [("a.sh", SCRIPT), ("pod.yaml", POD), ("compose.yaml", COMPOSE)]
)
@pytest.mark.parametrize("hardware", [(), ("--hw", "a3")])
def test_a_number_of_any_length_is_judged_or_left_out(
    name, text, digits, hardware, tmp_path, capsys
):
    path = tmp_path / name
    path.write_text(text.replace("N", "9" * digits))
    assert main.main(["check", str(path), *hardware]) in (0, 1)
    assert "rules asked of" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", " 8", "-8", "+8", "8.0", "0x8", "٣", "²", "1_0", "9" * 19])
def test_what_is_no_whole_number(text):
    assert numbers.whole(text) is None


def test_whole_numbers():
    assert numbers.whole("0") == 0 and numbers.whole("007") == 7
    assert numbers.whole("9" * 18) == 10**18 - 1
