"""More of what people run: images without docker, Dockerfiles, other front ends, charts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry

WRONG = "--max-num-seqs 8 --max-num-batched-tokens 4"  # engine/batched-tokens
ARGS = '"--max-num-seqs", "8", "--max-num-batched-tokens", "4"'


def made(name: str, text: str):
    read = Text(name, "", _kind(Path(name), text), text)
    return assemble.of_texts([read], "vllm", "0.19.1")


STARTS = {
    "apptainer exec": (
        "run.sh",
        f"apptainer exec --nv -B /data:/data vllm.sif vllm serve m {WRONG}\n",
    ),
    "apptainer run": (
        "run.sh",
        f"apptainer run --nv --env A=1,B=2 docker://vllm/vllm-openai:v0.19.1 --model m {WRONG}\n",
    ),
    "singularity": (
        "run.sh",
        f"singularity run --nv docker://vllm/vllm-openai:v0.19.1 m {WRONG}\n",
    ),
    "enroot": ("run.sh", f"enroot start --rw -e A=1 vllm vllm serve m {WRONG}\n"),
    "apptainer bash -c": ("run.sh", f"apptainer exec x.sif bash -c 'A=1 vllm serve m {WRONG}'\n"),
    "pyxis": ("run.sh", f"srun --container-image=vllm/vllm-openai:v0.19.1 vllm serve m {WRONG}\n"),
    "uv run": ("run.sh", f"uv run --with vllm vllm serve m {WRONG}\n"),
    "module": ("run.sh", f"python3 -m vllm.entrypoints.openai.api_server --model m {WRONG}\n"),
    "Dockerfile CMD": (
        "Dockerfile",
        f'FROM vllm/vllm-openai:v0.19.1\nENV A=1\nCMD ["--model", "m", \\\n  {ARGS}]\n',
    ),
    "Dockerfile ENTRYPOINT": (
        "Dockerfile.gpu",
        f'FROM a AS b\nRUN x\nFROM python\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", {ARGS}]\n',
    ),
    "Dockerfile shell form": ("Containerfile", f"FROM python\nCMD vllm serve m {WRONG}\n"),
    "llm-d values": (
        "values.yaml",
        "decode:\n  containers:\n    - name: vllm\n      image: ghcr.io/llm-d/llm-d:v0.3\n"
        f"      modelCommand: vllmServe\n      args: [m, {ARGS}]\n",
    ),
    "another image whose entry point is the engine": (
        "pod.yaml",
        "spec:\n  containers:\n    - name: vllm\n      image: ghcr.io/other/engine:1\n"
        f"      args: [m, --enforce-eager, {ARGS}]\n",
    ),
    "LeaderWorkerSet": (
        "lws.yaml",
        "kind: LeaderWorkerSet\nspec:\n  leaderWorkerTemplate:\n    leaderTemplate:\n      spec:\n"
        "        containers:\n          - name: leader\n            image: vllm/vllm-openai:v0.19.1\n"
        f"            command: [sh, -c]\n            args: ['ray start && vllm serve m {WRONG}']\n",
    ),
    "Helm template": (
        "templates/deployment.yaml",
        "{{- if .Values.enabled }}\nspec:\n  containers:\n    - name: {{ .Values.name }}\n"
        "      image: {{ .Values.image }}\n      command: [vllm, serve]\n"
        f"      args: [m, --port, {{{{ .Values.port }}}}, {ARGS}]\n{{{{- end }}}}\n",
    ),
}


@pytest.mark.parametrize("way", STARTS)
def test_an_engine_is_found_however_it_is_started(way):
    name, text = STARTS[way]
    deployment = made(name, text)
    assert len(deployment.servers) == 1, deployment
    assert deployment.servers[0].model == "m"
    found = registry.check(deployment).findings
    assert "engine/batched-tokens" in {one.rule for one in found}, found


def test_variables_of_an_image_reach_the_engine():
    for way in ("apptainer run", "enroot", "Dockerfile CMD"):
        assert made(*STARTS[way]).servers[0].env["A"] == "1"


def test_a_dockerfile_that_starts_nothing_is_quiet():
    deployment = made("Dockerfile", "FROM vllm/vllm-openai:v0.19.1\nRUN pip install x\n")
    assert not deployment.servers and not deployment.boxes


def test_dynamo():
    deployment = made(
        "run.sh",
        "python3 -m dynamo.frontend --http-port 8001 &\n"
        "CUDA_VISIBLE_DEVICES=0 python3 -m dynamo.vllm --model m --is-prefill-worker -tp 2 &\n"
        "curl http://localhost:8001/v1/models\ncurl http://localhost:8002/v1/models\n",
    )
    found = [(one.rule, one.line) for one in registry.check(deployment).findings]
    assert ("client/port", 4) in found and ("client/port", 3) not in found
    assert ("topology/visible-devices", 2) in found
    assert not [one for one in found if one[0] == "engine/flag-unknown"]


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (
            "python3 disagg_epd_proxy.py --encode-servers-urls http://10.0.0.1:1 "
            "--prefill-servers-urls disable --decode-servers-urls http://10.0.0.2:2,http://10.0.0.3:3",
            [("decode", "10.0.0.2", 2), ("decode", "10.0.0.3", 3), ("encode", "10.0.0.1", 1)],
        ),
        (
            "python dp_load_balance_proxy_server.py --dp-hosts 10.0.0.1 10.0.0.1 --dp-ports 1 2",
            [("mixed", "10.0.0.1", 1), ("mixed", "10.0.0.1", 2)],
        ),
        (
            "python3 disagg_proxy_demo.py --model m --prefill 10.0.0.1:1 --decode 10.0.0.2:2 --port 8000",
            [("decode", "10.0.0.2", 2), ("prefill", "10.0.0.1", 1)],
        ),
        (
            "python toy_proxy_server.py --prefiller-host 10.0.0.1 --prefiller-port 1 "
            "--decoder-host 10.0.0.2 --decoder-port 2",
            [("decode", "10.0.0.2", 2), ("prefill", "10.0.0.1", 1)],
        ),
    ],
)
def test_example_proxies_are_read(words, workers):
    assert sorted(made("proxy.sh", f"{words}\n").proxies[0].workers) == workers
