"""Fill-ins: a value that is left to the reader is at most a warning, and the rest is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry

WAYS = ["<node_ip>", "$UNSET", "${UNSET}", "xxx", "{{ value }}", "...", "{ value }", "141.xx.xx.1"]
FORMS = {
    "run.sh": "{}",
    "README.md": "# Serve\n\n```bash\n{}```\n",
    "pod.yaml": None,
}


def findings(name: str, text: str, version: str = "0.19.1"):
    made = assemble.of_texts([Text(name, "", _kind(Path(name), text), text)], "vllm", version)
    return registry.check(made).findings


def told(found):
    return sorted({(one.rule, one.severity) for one in found if one.severity in (ERROR, WARNING)})


def written(name: str, words: str) -> str:
    if name.endswith(".yaml"):
        args = "\n".join(f"        - '{word}'" for word in words.split("|")[2:])
        return (
            "kind: Pod\nspec:\n  containers:\n    - name: a\n      image: vllm/vllm-openai:v0.19.1\n"
            f"      args:\n{args}\n"
        )
    command = words.replace("|", " ")
    return (
        FORMS[name].format(f"{command}\n")
        if "{{" not in command
        else FORMS[name].replace("{}", f"{command}\n")
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("flag", ["--host", "--port", "--tensor-parallel-size", "--quantization"])
def test_a_fill_in_is_one_warning_at_most(name, way, flag):
    found = findings(name, written(name, f"vllm|serve|org/model|{flag}|{way}|--max-num-seqs|8"))
    assert not [one for one in found if one.severity == ERROR], found
    about = [one for one in found if one.rule in ("shell/placeholder", "shell/unset")]
    assert len(about) <= 1, about


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FORMS)
def test_what_does_not_need_it_is_still_judged(name, way):
    words = f"vllm|serve|org/model|--host|{way}|--max-num-seqs|8|--max-num-batched-tokens|4"
    assert ("engine/batched-tokens", ERROR) in told(findings(name, written(name, words)))


@pytest.mark.parametrize("way", ["<hosts>", "$HOST_A", "{{ host }}"])
@pytest.mark.parametrize("name", ["run.sh", "README.md"])
def test_lists_are_counted_over_fill_ins(name, way):
    proxy = (
        "python|load_balance_proxy_server_example.py|--host|0.0.0.0|--port|1999|--prefiller-hosts|"
        f"{way}|{way}|--prefiller-ports|8100|--decoder-hosts|{way}|--decoder-ports|8200"
    )
    found = findings(name, written(name, proxy))
    assert [one.message for one in found if one.rule == "topology/proxy-lists"] == [
        "2 --prefiller-hosts and 1 --prefiller-ports"
    ]


def test_a_variable_of_several_words_is_not_counted():
    proxy = (
        "python|load_balance_proxy_server_example.py|--prefiller-hosts|$HOSTS|--prefiller-ports|1|2"
    )
    assert "topology/proxy-lists" not in {
        one.rule for one in findings("run.sh", written("run.sh", proxy))
    }


def test_json_with_a_fill_in_is_read_around_it():
    words = (
        "vllm|serve|org/model|--compilation-config|"
        '\'{"cudagraph_mode": <mode>, "cudagraph_captures": [1]}\''
    )
    found = findings("README.md", written("README.md", words))
    assert [one.message for one in found if one.rule == "json/key"]


@pytest.mark.parametrize(
    "line",
    [
        "[2025-12-30] INFO conftest.py:107: Starting server with command: vllm serve m --port {a b: 1}",
        "INFO 12-05 You can set `--chat-template-content-format` to override\n`--port 8`",
    ],
)
def test_a_log_is_no_command(line):
    assert not told(findings("README.md", f"```bash\n{line}\n```\n"))


def test_what_is_left_out_of_json_is_a_fill_in():
    assert not [
        one
        for one in findings("README.md", "```bash\nvllm serve m --kv-transfer-config {...}\n```\n")
        if one.severity == ERROR
    ]


def test_a_default_is_the_value():
    text = "vllm serve org/model --port ${PORT:-99999}\n"
    assert "topology/port-range" in {one.rule for one in findings("run.sh", text)}


def group(address_a: str, address_b: str, second: int = 2) -> str:
    lines = [
        f"vllm serve org/model --data-parallel-size 4 --data-parallel-size-local 2 {extra} "
        f"--data-parallel-address {address} --data-parallel-rpc-port 13389"
        for address, extra in (
            (address_a, ""),
            (address_b, f"--data-parallel-start-rank {second} --headless"),
        )
    ]
    return "".join(f"Node:\n\n```bash\n{line}\n```\n\n" for line in lines)


def test_one_name_is_one_value():
    found = findings("README.md", group("<node0_ip>", "<node0_ip>", 3))
    assert any(one.rule in ("topology/ranks", "topology/rank-range") for one in found), found
    assert not [
        one
        for one in findings("README.md", group("<node0_ip>", "<node0_ip>"))
        if one.rule.startswith("topology/")
    ]


def test_two_names_may_be_two_values():
    found = findings("README.md", group("<node0_ip>", "<node1_ip>"))
    assert not [one for one in found if one.severity == ERROR]


def test_masking_leaves_code_alone():
    for text in (
        "sort < a > b",
        "diff <(a) <(b)",
        "cat <<EOF\n<b>\nEOF"[:9],
        "echo ${A}{b,c} {1..3} ${x%%{a}}",
        "f() { echo; }",
        "awk '{ print $1 }'",
    ):
        assert fill_ins.masked(text) == text


# How much was understood -----------------------------------------------------------------------


def summary(text: str) -> str:
    made = assemble.of_texts([Text("run.sh", "", "bash", text)], "vllm", "0.19.1")
    return registry.check(made).verdict


def test_the_summary_says_how_much_was_understood():
    said = summary(
        "vllm serve org/model --port $PORT --host <node_ip> --max-num-seqs 8\n"
        "curl http://localhost:8000/v1/models\nvllm launch render org/model\nls\n"
    )
    assert "Read: 2 commands, 1 not understood, 2 fill-ins." in said


def test_no_error_is_no_silence():
    assert "Read: 0 commands, 1 not understood, 0 fill-ins." in summary("vllm launch render m\n")


def test_a_plan_has_no_such_line():
    from kimi_nb.check import judge
    from kimi_nb.plan import build

    assert "Read:" not in judge.plan(build.plan("k2.5", "a3", "single")).verdict
