"""Forms in which public scripts, documents and YAML files hold the command of an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry

FORMS = {
    "the collapsed part of a page": (
        "README.md",
        'vLLM\n??? info "Script"\n    ```bash\n    vllm serve org/model --port 8123\n    ```\n',
    ),
    "a login shell with two dashes": (
        "pod.yaml",
        "kind: Pod\nspec:\n  containers:\n    - name: a\n      image: registry.example/engine:1\n"
        '      command: ["/bin/bash", "-lc", "--"]\n'
        '      args: ["ulimit -n 65536; $START; vllm serve org/model --port 8123"]\n',
    ),
    "an array that grows": (
        "run.sh",
        'CMD=(vllm serve "$1" --port 8123)\n'
        'if [[ -n "$SEED" ]]; then CMD+=(--seed "$SEED"); fi\n'
        'if [[ -n "$QUANT" ]]; then CMD+=(--quantization "$QUANT"); fi\n"${CMD[@]}"\n',
    ),
    "a text that grows": (
        "run.sh",
        'CMD="vllm serve org/model \\\n  --port 8123"\n'
        'if [ -n "$FLAG" ]; then\n  CMD="$CMD $FLAG"\nfi\nexec $CMD\n',
    ),
    "a text that grows, and eval": (
        "run.sh",
        'BASE="CUDA_VISIBLE_DEVICES=0 vllm serve org/model --port 8123"\n'
        'if [ -n "$ARGS" ]; then FULL="$BASE $ARGS"; else FULL="$BASE"; fi\neval "$FULL &"\n',
    ),
    "commands of a service": (
        "service.dstack.yml",
        "type: service\ncommands:\n  - pip install vllm\n"
        "  - vllm serve $MODEL_ID\n      --port 8123\n      --max-model-len 4096\nport: 8123\n",
    ),
    "a step of a workflow": (
        "ci.yaml",
        "jobs:\n  test:\n    steps:\n      - name: serve\n        run: |\n"
        "          vllm serve org/model --port 8123 \\\n            --max-model-len 4096 &\n",
    ),
    "the entry point of a job": (
        "job.yaml",
        "kind: RayJob\nspec:\n  entrypoint: vllm serve org/model --port 8123\n",
    ),
    "a service in a document": (
        "README.md",
        "```yaml\ntype: service\ncommands:\n  - |\n    vllm serve org/model \\\n"
        "      --port 8123\nport: 8123\n```\n",
    ),
    "lines that a program joins": (
        "tests.yaml",
        "server:\n  start_command: |\n    vllm serve org/model\n    --port 8123\n    --block-size 128\n",
    ),
    "variables of Kubernetes in JSON": (
        "values.yaml",
        "decode:\n  customCommand: |\n    vllm serve org/model --port 8123 \\\n"
        '    --kv-transfer-config \'{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", '
        '"kv_connector_extra_config": {"cpu_bytes_to_use": $(BYTES)}}\'\n',
    ),
    "an eval over lines with variables": (
        "run.sh",
        'eval "exec vllm serve /models \\\n  --port 8123 \\\n  ${LOG_ARGS} \\\n  ${MORE} \\\n'
        '  $@ \\\n  --enforce-eager"\n',
    ),
}


def read(name: str, text: str):
    return assemble.of_texts([Text(name, "", _kind(Path(name), text), text)], "vllm", "0.19.1")


@pytest.mark.parametrize("form", FORMS)
def test_the_engine_is_found(form):
    made = read(*FORMS[form])
    assert [one.http_port for one in made.servers] == [8123], form
    assert not [one for one in registry.check(made).findings if one.severity == "error"]


@pytest.mark.parametrize("form", FORMS)
def test_its_faults_are_told_in_its_line(form):
    name, text = FORMS[form]
    wrong = text.replace("--port 8123", "--port 8123 --tensor_paralel_size 2")
    line = next(n for n, one in enumerate(wrong.split("\n"), 1) if "paralel" in one)
    told = [one for one in registry.check(read(name, wrong)).findings if "paralel" in one.message]
    assert [one.rule for one in told] == ["engine/flag-unknown"]
    assert abs(told[0].line - line) <= (9 if "grows" in form else 2), (told[0].line, line)


def test_what_names_an_engine_and_is_not_read_is_counted():
    made = read("ci.yaml", 'steps:\n  - wrap: ["x", "sh -x \'vllm serve org/model\'"]\n')
    assert not made.servers and made.read["not understood"] == 1


def test_prose_and_comments_are_not_counted():
    made = read(
        "README.md", "Start `vllm serve`.\n\n```bash\n# vllm serve m\npkill -f 'vllm serve'\n```\n"
    )
    assert made.read["not understood"] == 0


def test_a_blank_between_two_variables_stays():
    text = 'A=org/model; B="--port 8123"\nCMD="vllm serve $A $B"\n$CMD\n'
    assert [one.http_port for one in read("run.sh", text).servers] == [8123]
