"""Options of engines in YAML whose kind nobody knows: lists and mappings of their names."""

from __future__ import annotations

import pytest
import yaml

from kimi_nb.check import judge
from kimi_nb.check.reading import option_tables

LIST = """\
test_name: nightly
server_cmd_template:
  - --tensor-parallel-size
  - "8"
  - --max-num-seqs
  - "16"
  - --max-num-batched-tokens
  - "32"
  - --{name}
  - "4096"
"""
MAPPING = """\
roles:
  decode:
    tensor_parallel_size: 8
    max-num-seqs: 16
    max_model_len: 4096
    {name}: 1
"""


def found(text):
    return list(option_tables.find(list(yaml.compose_all(text))))


def rules(text, tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text(text)
    return {(one.rule, one.where.rpartition(":")[2]) for one in judge.files([path]).findings}


def test_a_list_is_judged_as_a_command_is(tmp_path):
    said = rules(LIST.format(name="max-num-batched-tokens"), tmp_path)
    assert "engine/flag-twice" in {rule for rule, _ in said}
    said = rules(LIST.format(name="max-modell-len"), tmp_path)
    assert "engine/flag-unknown" in {rule for rule, _ in said}


def test_a_misspelt_name_of_a_mapping_is_found(tmp_path):
    assert ("engine/flag-unknown", "6") in rules(MAPPING.format(name="enforce_eagr"), tmp_path)
    assert not rules(MAPPING.format(name="enforce_eager"), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "a: [--tensor-parallel-size, '8']\n",  # too few to be sure
        "a: [--max-num-seqs, '8', --max-model-len, '9', --pull-policy, always]\n",  # a chart's own
        "env: {tensor-parallel-size: 8, max-num-seqs: 8, max-model-len: 8, max-num-sequ: 1}\n",
        "rope: {max-model-len: 8, hidden_size: 7168, tensor_parallel_size: 1, max-num-seqs: 2}\n",
        "- {image: vllm, args: [--max-num-seqs, '1', --max-model-len, '2', --max-num-seqz, '3']}\n",
        "a: &a {b: *a}\n",
    ],
)
def test_what_may_be_another_program_s_is_left_alone(text):
    assert found(text) == []


def test_names_of_another_program_beside_an_engine_s_are_none():
    """Dynamo's options begin as no option of vLLM does, and are near to some."""
    assert found(MAPPING.format(name="dyn-tool-call-parser")) == []


def test_a_switch_turned_off_and_a_key_of_json_are_options():
    text = LIST.format(name="no-enable-prefix-caching") + "  - --compilation-config.mode\n"
    assert len(found(text)) == 1
