"""Scripts of other people: read as bash reads them, and never executed."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb.check import judge
from kimi_nb.check.reading import assemble, bash, compose, markdown
from kimi_nb.check.reading.files import Text
from kimi_nb.check.rules import registry
from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError


def lint(text: str, name: str = "run.sh", **how):
    return assemble.of_texts([Text(name, "", "bash", text)], **how)


def servers(text: str, **how):
    return lint(text, **how).servers


def rule_ids(text: str, **how) -> set[str]:
    return {one.rule for one in registry.check(lint(text, **how)).findings}


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("vllm-router --port 1999 --worker-urls http://192.0.2.11:8000", [1999]),
        ("nohup vllm-router --port 1999 > log &", [1999]),
        ("pip install vllm-router", []),
        ("uv pip install --python env vllm-router", []),
        ("R=vllm-router\nfound=$(command -v $R)", []),
        ("which vllm-router && echo there", []),
    ],
)
def test_a_router_that_is_only_named_does_not_start(text, ports):
    assert [one.port for one in lint(text, engine="vllm").proxies] == ports


# As bash does ------------------------------------------------------------------------------

_VALUE = st.text(alphabet="ab7 _.:/=,*?~#-é", max_size=8)
_NAME = st.sampled_from(["A", "B", "PORT", "name_1"])


@st.composite
def script(draw) -> str:
    """Assignments, exports, arrays, loops and functions around ``probe`` calls."""
    lines = ["set -f"]  # no file names: the working directory is nobody's business
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from(
                [
                    "set",
                    "export",
                    "array",
                    "call",
                    "loop",
                    "if",
                    "function",
                    "prefix",
                    "heredoc",
                    "sum",
                    "default",
                    "continued",
                ]
            )
        )
        name, value = draw(_NAME), draw(_VALUE).replace("'", "")
        other = draw(_NAME)
        if kind == "set":
            lines.append(f"{name}='{value}'")
        elif kind == "export":
            lines.append(f'export {name}="x{value.replace(chr(34), "")}"')
        elif kind == "array":
            lines += [
                f"LIST=('{value}' b \"c d\" {draw(st.integers(0, 99))})",
                'probe "${LIST[@]}" end',
            ]
        elif kind == "call":
            lines.append(
                f'probe --x ${name} "${{{other}}}" \'${name}\' a"b ${name}"c '
                f"\\$x \"\\${name}\" $'t\\tab'"
            )
        elif kind == "loop":
            lines += [f'for i in 1 2 {draw(st.integers(3, 9))}; do probe p$i "${name}"; done']
        elif kind == "if":
            lines += [f"if [ 1 = 1 ]; then {name}=same; else {name}=same; fi"]
        elif kind == "function":
            lines += ['f() { probe in "$1" "$2"; }', f"f '{value}' two"]
        elif kind == "prefix":
            lines.append(f'{name}=only probe "${other}"')
        elif kind == "heredoc":
            lines += ["cat > /dev/null <<'EOF'", "vllm serve not-run", "EOF"]
        elif kind == "sum":
            lines.append(f"probe $((8000 + {draw(st.integers(0, 50))} * 2))")
        elif kind == "default":
            lines.append(f'probe "${{{name}:-fall back}}" ${{NEVER:-{draw(st.integers(1, 9))}}}')
        else:
            lines += ["probe \\", f"  --a '{value}' \\", f'  --b "${name}"']
    return "\n".join(lines) + "\n"


@settings(max_examples=250, deadline=None)
@given(script())
def test_words_are_those_that_bash_makes(text):
    out = subprocess.run(
        ["bash", "--norc", "-c", 'probe() { printf "%s\\0" "$@"; printf "\\1"; }\n' + text],
        capture_output=True,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        check=False,
    )
    real = [call.split("\0")[:-1] for call in out.stdout.decode().split("\1")[:-1]]
    mine = [command for command in bash.interpret(text, "x").commands if command.argv[0] == "probe"]
    assert len(mine) == len(real)
    for command, words in zip(mine, real, strict=True):
        # A variable that nothing sets is empty to bash, and not known to a reader.
        if all(word.known for word in command.words):
            assert list(command.argv[1:]) == words, text


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("for p in {8000..8002}; do vllm serve m --port $p & done", [8000, 8001, 8002]),
        ("for ((i=0; i<3; i++)); do vllm serve m --port $((9000+i)) & done", [9000, 9001, 9002]),
        ("for i in $(seq 0 1); do\n vllm serve m --port $((7100 + i)) &\ndone", [7100, 7101]),
        ('start() { vllm serve m --port "$1"; }\nstart 8000 &\nstart 8001 &', [8000, 8001]),
        ("P=8000\nQ=${P}1\nvllm serve m --port ${P%0}", [None]),
        ('ARGS=(m --port 8123)\nARGS+=(--seed 1)\nexec vllm serve "${ARGS[@]}"', [8123]),
        ("O='--port 8124 --seed 1'\nvllm serve m $O", [8124]),
        ("bash -c 'vllm serve m --port 8125'", [8125]),
        ("ssh node1 'cd x && vllm serve m --port 8126'", [8126]),
        ("nohup env A=1 numactl -N 0 vllm serve m --port 8127 > log 2>&1 &", [8127]),
        ("srun --nodes=1 vllm serve m --port 8128", [8128]),
        ("python -m vllm.entrypoints.openai.api_server --model m --port 8129", [8129]),
        ("case $1 in a) P=1000;; b) P=2000;; esac\nvllm serve m --port $P", [None]),
        ('f() { shift; vllm serve "$@"; }\nf x m --port 8130', [8130]),
        # Its text goes to another shell before the script ends.
        (
            'f() { vllm serve m --port 8140; }\nsrun bash -c "$(declare -f f); f" &\nwait\nexit 1',
            [8140],
        ),
        ("exit 1\nf() { vllm serve m --port 8141; }\nf", []),
        (
            "docker run --gpus all -p 8131:8131 vllm/vllm-openai:v0.19.1 --model m --port 8131",
            [8131],
        ),
        (
            "docker run -it quay.io/ascend/vllm-ascend:v0.18.0 bash -c 'vllm serve m --port 8132'",
            [8132],
        ),
        ("cat > s.sh <<EOF\nvllm serve m --port 8133\nEOF\nbash s.sh", [8133]),
        ('eval "vllm serve m --port 8134"', [8134]),
    ],
)
def test_engines_are_found_where_they_hide(text, argv):
    assert [one.http_port for one in servers(text)] == argv


def test_what_is_exported_is_what_the_engine_sees():
    (one,) = servers("set -a\nA=1\nset +a\nexport B=2\nC=3\nD=4 vllm serve m")
    assert {"A": "1", "B": "2", "D": "4"}.items() <= one.env.items() and "C" not in one.env


def test_what_is_set_in_a_subshell_stays_there():
    one, two = servers("(export A=1; vllm serve m --port 1) &\nvllm serve m --port 2 &")
    assert one.env["A"] == "1" and "A" not in two.env


def test_lines_are_those_of_the_file():
    (one,) = servers(
        "#!/bin/bash\n\nexport HCCL_BUFFSIZE=1\nvllm serve m \\\n  --port 1 \\\n  --nonsense\n"
    )
    assert one.spot.line == 4 and one.env_at("HCCL_BUFFSIZE").line == 3
    assert [one.at(given.index).line for given in one.given] == [5, 6]


def test_a_launcher_starts_its_template_for_each_rank(tmp_path):
    node = tmp_path / "d0"
    node.mkdir()
    (node / "launch.sh").write_text(
        "python launch_online_dp.py --dp-size 4 --tp-size 2 --dp-size-local 2 --dp-rank-start 2 "
        "--dp-address 10.0.0.1 --dp-rpc-port 1234 --vllm-start-port 7100\n"
    )
    (node / "run_dp_template.sh").write_text(
        "export ASCEND_RT_VISIBLE_DEVICES=$1\nvllm serve m --port $2 --data-parallel-size $3 "
        "--data-parallel-rank $4 --data-parallel-address $5 --data-parallel-rpc-port $6 "
        "--tensor-parallel-size $7\n"
    )
    from kimi_nb.check import reading

    found = reading.read([tmp_path])
    assert [
        (one.rank, one.devices, one.http_port, one.rpc_port, one.tp) for one in found.servers
    ] == [(2, (0, 1), 7100, 1234, 2), (3, (2, 3), 7101, 1234, 2)]


def test_compose_and_kubernetes():
    read = compose.read("""
services:
  kimi:
    image: vllm/vllm-openai:v0.19.1
    command: ["--model", "m", "--port", "${PORT:-8009}"]
    environment: {HF_TOKEN: "${HF_TOKEN}", VLLM_X: 1}
    ports: ["8009:8009"]
---
spec:
  containers:
    - name: a
      image: vllm/vllm-openai:v0.19.1
      args: [vllm, serve, m]
      env: [{name: A, value: "1"}]
""")
    made = read.containers
    assert not read.unread and [one.name for one in made] == ["kimi", "a"]
    assert [word for word, _ in made[0].command][-1] == "8009" and made[1].env == {"A": "1"}
    found = assemble.of_texts(
        [
            Text(
                "c.yml",
                "",
                "yaml",
                "services:\n  a:\n    image: "
                "vllm/vllm-openai:v0.19.1\n    command: --model m --swap-space"
                " 4\n",
            )
        ]
    )
    problem = next(
        one for one in registry.check(found).findings if one.rule == "engine/flag-removed"
    )
    assert (problem.file, problem.line) == ("c.yml", 4)


def test_fences_of_a_document_and_their_lines():
    text = (
        "# Title\n\n```bash\n$ vllm serve m --swap-space 1\nINFO started\n```\n\n"
        '=== "Tab"\n\n    ```bash\n    vllm serve n\n    ```\n\n```python\nprint()\n```\n'
    )
    assert [(fence.text.strip(), fence.line) for fence in markdown.fences(text)] == [
        ("vllm serve m --swap-space 1", 4),
        ("vllm serve n", 11),
    ]


def test_alternatives_of_a_document_do_not_collide():
    text = "".join(
        f"```bash\nvllm serve m --port 8000 --tensor-parallel-size {tp}\n```\n\n"
        for tp in (1, 2, 4)
    )
    found = assemble.of_texts([Text("a.md", "", "markdown", text)])
    assert len(found.servers) == 3 and not registry.check(found).errors


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("docker run quay.io/ascend/vllm-ascend:v0.18.0-a3 bash", "vllm-ascend 0.18.0"),
        ("IMAGE=vllm/vllm-openai:v0.20.2\ndocker run $IMAGE --model m", "vllm 0.20.2"),
        ("pip install vllm==0.19.1\nvllm serve m", "vllm 0.19.1"),
        ("export HCCL_BUFFSIZE=1\nvllm serve m", "vllm-ascend 0.25.1rc1"),
        ("vllm serve m", "vllm 0.33.0"),
    ],
)
def test_the_version_is_guessed_from_an_image(text, expected):
    assert str(lint(text).engine) == expected
    assert lint(text).engine_known is ("==" in text or "docker" in text)
    assert str(lint(text, engine="vllm", version="0.17.0").engine) == "vllm 0.17.0"


# Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\0\1\2" * 100, "binary"),
        (b"\xff\xfe\xfa", "UTF-8"),
        (b"x" * (60 << 20), "larger than"),
        (b"#!/usr/bin/env fish\nvllm serve m", "fish"),
        (b"#!/usr/bin/python3\nprint()", "python"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path, capsys, content, said):
    path = tmp_path / "run.sh"
    path.write_bytes(content)
    assert main(["check", str(path)]) == 2
    out = capsys.readouterr()
    assert said in out.err and "Traceback" not in out.err and len(out.err) < 400
    (tmp_path / "other.sh").write_text("vllm serve m --nonsense-flag\n")
    assert main(["check", str(tmp_path)]) in (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve 'm --port 8000\n",
        "vllm serve m $(rm -rf $HOME\n",
        "((((((\n",
        "\\",
        "`",
        "${",
        "",
        "if then fi else\nvllm serve m",
        "for i in {1..999999999}; do vllm serve m; done",
        "f() { f; }\nf\nvllm serve m",
        "a=$a$a\n" * 60 + "vllm serve $a",
        "x" * 200_000,
        "for i in {0..60}; do for j in {0..60}; do for k in {0..60}; do vllm serve m; done; done; done",
        "(" * 3000 + ")" * 3000,
        "$((1+" * 500 + "1",
        "vllm serve m --x " + "[" * 5000,
        "vllm serve m --compilation-config '" + "[" * 100_000 + "'",
        "eval " * 100 + "vllm serve m",
        "vllm serve m --port " + "9" * 5000,
        "A='" + "b" * 90_000 + "'\nA=$A$A\nA=$A$A\nvllm serve $A",
        ":(){ :|:& };:\nvllm serve m",
    ],
)
def test_every_script_ends_in_a_report(tmp_path, capsys, text):
    path = tmp_path / "run.sh"
    path.write_text(text)
    assert main(["check", str(path), "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["rules"] == len(registry.all_rules())


def test_nothing_is_executed(tmp_path, capsys):
    marker = tmp_path / "ran"
    path = tmp_path / "run.sh"
    path.write_text(
        f"touch {marker}\n$(touch {marker})\n`touch {marker}`\n: > {marker}\n"
        f"trap 'touch {marker}' EXIT\neval \"touch {marker}\"\n"
        f'vllm serve "$(touch {marker})" --additional-config "$(touch {marker})"\n'
    )
    main(["check", str(path)])
    main(["check", "--fix", str(path), "--engine", "vllm", "--engine-version", "0.19.1"])
    assert not marker.exists()


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="vllm serve-\\\n'\"$(){}[]<>|&;#=x1 ", max_size=120))
def test_any_text_ends_in_a_report(text):
    registry.check(lint("vllm serve m " + text))


def test_a_folder_is_one_deployment_and_files_are_nodes(tmp_path):
    for node, rank, port in (("node0", 0, 13389), ("node1", 2, 13390)):
        (tmp_path / f"{node}.sh").write_text(
            f"vllm serve m --data-parallel-size 4 --data-parallel-size-local 2 "
            f"{'--headless --data-parallel-start-rank 2 ' if rank else ''}"
            f"--data-parallel-address 10.0.0.1 --data-parallel-rpc-port {port}\n"
        )
    for paths in ([tmp_path], [tmp_path / "node0.sh", tmp_path / "node1.sh"]):
        found = judge.files(paths)
        assert "topology/meeting-point" in {one.rule for one in found.errors}, found
    alone = judge.files([tmp_path / "node0.sh"])
    assert alone.ok and "topology/ranks" in {one.rule for one in alone.findings}


def test_rules_that_need_model_facts_say_that_they_were_skipped():
    found = registry.check(lint("vllm serve Qwen/Qwen3-8B"))
    assert "model" in found.skipped["engine/draft-method"]
    found = registry.check(lint("vllm serve moonshotai/Kimi-K2.5"))
    assert "--hw" in found.skipped["capacity/memory"]


@pytest.mark.parametrize(
    "text",
    [
        # Correct scripts of other models: at most advice.
        "export VLLM_USE_MODELSCOPE=True\nvllm serve Qwen/Qwen3-8B --max-model-len 32k "
        "--gpu-memory-utilization 0.9 --enable-auto-tool-choice --tool-call-parser hermes\n",
        "vllm serve deepseek-ai/DeepSeek-R1 --data-parallel-size 8 --enable-expert-parallel "
        "--api-server-count 2 --kv_cache_dtype fp8 -O3 --host 127.0.0.1\n",
        "#!/bin/bash\nset -euo pipefail\nMODEL=${MODEL:-meta-llama/Llama-3.1-8B-Instruct}\n"
        'PORT=${1:-8000}\nvllm serve "$MODEL" --port "$PORT" &\nPID=$!\n'
        "until curl -sf localhost:$PORT/health; do sleep 1; done\nkill $PID\n"
        'vllm serve "$MODEL" --port "$PORT" --enforce-eager\n',
        "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface "
        '--env "HF_TOKEN=$HF_TOKEN" -p 127.0.0.1:8000:8000 --ipc=host vllm/vllm-openai:v0.20.2 '
        "--model mistralai/Mistral-7B-v0.1\n",
        "for i in 0 1; do\n  CUDA_VISIBLE_DEVICES=$i VLLM_NIXL_SIDE_CHANNEL_PORT=$((5600 + i * 10)) "
        "vllm serve Qwen/Qwen3-0.6B --port $((8100 + i)) --kv-transfer-config "
        '\'{"kv_connector":"NixlConnector","kv_role":"kv_both"}\' &\ndone\nwait\n',
        'vllm serve gpt-oss --speculative_config \'{"method": "eagle3", "model": "x/y", '
        '"num_speculative_tokens": 3}\' --compilation_config.cudagraph_mode PIECEWISE '
        "--limit-mm-per-prompt '{\"image\": 2}' --override-generation-config '{\"temperature\": 0}'\n",
    ],
)
def test_correct_scripts_of_other_models_have_no_error(text):
    found = registry.check(lint(text))
    assert found.ok, found


def test_several_versions_in_one_folder_are_told():
    text = "docker run vllm/vllm-openai:v{} --model m\n"
    found = assemble.of_texts(
        [Text(f"{v}.sh", "", "bash", text.format(v)) for v in ("0.19.1", "0.20.2")]
    )
    assert "truth/several-versions" in {one.rule for one in registry.check(found).findings}


# --fix --------------------------------------------------------------------------------------

OLD = """#!/bin/bash
# keep me
export HCCL_BUFFSIZE=1024
export VLLM_ASCEND_ENABLE_MLAPO=1
export VLLM_RPC_TIMEOUT=3600000
export VLLM_ASCEND_BALANCE_SCHEDULING=1
vllm serve Eco-Tech/Kimi-K2.5-W4A8 \\
    --quantization ascend \\
    --swap-space 32 \\
    --additional-config '{"recompute_scheduler_enable": true}' \\
    --skip-non-local-expert-weights \\
    --port 8088
"""


def test_fix_rewrites_what_the_catalog_knows(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(OLD)
    path.chmod(0o755)
    how = ["--engine", "vllm-ascend", "--engine-version", "0.22.1rc1"]
    assert main(["check", "--fix", "--dry-run", str(path), *how]) == 0
    assert path.read_text() == OLD and "-export VLLM_RPC_TIMEOUT" in capsys.readouterr().out
    assert main(["check", "--fix", str(path), *how]) == 0
    out = capsys.readouterr().out
    assert out.index("+++") < out.index("rules asked")
    new = path.read_text()
    assert (tmp_path / "run.sh.orig").read_text() == OLD and path.stat().st_mode & 0o777 == 0o755
    assert "# keep me" in new and "HCCL_BUFFSIZE=1024" in new and "swap-space" not in new
    assert "VLLM_" not in new and "--enable-ep-weight-filter" in new
    assert json.loads(new.partition("--additional-config '")[2].partition("'")[0]) == {
        "recompute_scheduler_enable": True,
        "enable_mlapo": True,
        "enable_balance_scheduling": True,
    }
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert main(["check", "--fix", str(path), *how]) == 0  # the second time nothing is left
    assert "nothing to rewrite" in capsys.readouterr().out and path.read_text() == new
    assert not (tmp_path / "run.sh.orig2").exists()


def test_fix_moves_keys_and_makes_a_config_where_there_is_none(tmp_path):
    from kimi_nb import catalog
    from kimi_nb.check import rewriting

    made = rewriting.text(
        "export VLLM_ASCEND_ENABLE_MLAPO=0\nvllm serve m --port 1\n",
        catalog.engine("vllm-ascend", "0.25.1rc1"),
    )
    assert made.new == (
        "vllm serve m --port 1 \\\n    --additional-config '{\"enable_mlapo\": false}'\n"
    )
    old = "vllm serve m --additional-config '{\"recompute_scheduler_enable\": true}'"
    made = rewriting.text(old, catalog.engine("vllm-ascend", "0.25.1rc1"))
    assert '{"scheduler_config": {"recompute_scheduler_enable": true}}' in made.new


def test_fix_needs_a_version_and_a_script(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text("vllm serve m --swap-space 4\n")
    assert main(["check", "--fix", str(path)]) == 2
    assert "--engine-version" in capsys.readouterr().err
    (tmp_path / "a.md").write_text("```bash\nvllm serve m\n```\n")
    assert main(["check", "--fix", str(tmp_path / "a.md"), "--engine-version", "0.19.1"]) == 2
    assert main(["check", "--fix", str(tmp_path), "--engine-version", "0.19.1"]) == 2
    assert path.read_text() == "vllm serve m --swap-space 4\n"


# The command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["check"], "name FILES"),
        (["check", "nowhere.sh"], "no such file"),
        (["check", "x.sh", "--model", "k2.5"], "--model"),
        (["check", "--as-documented", "--set", "a=b"], "--set"),
        (["check", "--model", "k2.5", "--hw", "a3", "--engine", "vllm"], "--engine"),
        (
            ["check", "--model", "k2.5", "--hw", "a3", "--layout", "single", "--dry-run"],
            "--dry-run",
        ),
    ],
)
def test_mistakes_in_what_is_asked(capsys, argv, said):
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_engine_and_version_must_exist(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text("vllm serve m\n")
    assert main(["check", str(path), "--engine", "sglang"]) == 2
    assert "vllm-ascend" in capsys.readouterr().err
    assert main(["check", str(path), "--engine-version", "9.9.9"]) == 2


@pytest.mark.parametrize(
    "name, text, line",
    [
        ("serve.sh", "set -e\npython3 -m sglang.launch_server --model-path m --tp 8\n", 2),
        ("serve.sh", "exec sglang serve --model-path m --tp 8\n", 1),
        (
            "serve.sh",
            "python -m sglang_router.launch_router --worker-urls http://10.0.0.1:8000\n",
            1,
        ),
        ("serve.md", "# X\n```bash\npython3 -m sglang.launch_server --tp 8\n```\n", 3),
        (
            "pod.yaml",
            "services:\n  one:\n    image: lmsysorg/sglang:v0.5.5\n"
            "    command: python3 -m sglang.launch_server --model-path m --tp 8\n",
            3,
        ),
        (
            "run.sh",
            "docker run --gpus all lmsysorg/sglang:v0.5.5 python3 -m sglang.launch_server --tp 8\n",
            1,
        ),
    ],
)
def test_sglang_is_named_as_not_judged(name, text, line, tmp_path, capsys):
    (tmp_path / name).write_text(text)
    main(["check", str(tmp_path / name)])
    said = capsys.readouterr().out
    assert f"{name}:{line}: not read: SGLang is not judged" in said
    assert "0 errors" in said and "1 not understood" in said


def test_what_only_names_sglang_is_not_told(tmp_path, capsys):
    (tmp_path / "run.sh").write_text("pip install sglang\nvllm serve m --port 8000\n")
    main(["check", str(tmp_path / "run.sh")])
    assert "SGLang" not in capsys.readouterr().out


def test_json_of_a_file_names_file_and_line(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text("vllm serve m \\\n  --tensor-parallel-sise 8\n")
    assert main(["check", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    one = next(one for one in found["findings"] if one["rule"] == "engine/flag-unknown")
    assert one["line"] == 2 and one["file"] == str(path) and one["severity"] == "error"
    assert "--tensor-parallel-size" in one["fix"] and one["source"] and one["where"]


def test_json_of_a_plan(capsys):
    assert main(["check", "--model", "k2.5", "--hw", "a3", "--layout", "single", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["memory"][0]["figures"] == "estimated"
    assert (
        main(
            [
                "check",
                "--model",
                "k2.5",
                "--hw",
                "a3",
                "--layout",
                "single",
                "--set",
                "max-num-batched-tokens=8",
            ]
        )
        == 1
    )
    assert "engine/batched-tokens" in capsys.readouterr().out


# What a hostile user tried ------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'for h in a b; do ssh $h "vllm serve m --port 8000 &"; done\n',
        "for g in 0 1; do docker run --network kimi --gpus device=$g vllm/vllm-openai:v0.20.2 "
        "--model m; done\n",
        "vllm serve m --enable-lora --lora-modules sql=/l &\n"
        'curl http://localhost:8000/v1/completions -d \'{"model": "sql"}\'\n',
        'vllm serve m &\ncurl https://api.example.com/v1/chat/completions -d \'{"model": "gpt"}\'\n',
        "vllm serve --config f.yaml &\ncurl http://localhost:8001/v1/models\n",
    ],
)
def test_correct_shapes_that_look_odd_have_no_error(text):
    found = registry.check(lint(text))
    assert found.ok, found


@pytest.mark.parametrize(
    "text",
    [
        "A=(a b c d e f g)\n" + 'A+=("${A[@]}")\n' * 40 + "vllm serve m\n",
        "X='" + "a " * 40_000 + "'\n" + "echo $X\n" * 60 + "vllm serve m\n",
        "X='" + "# " * 40_000 + "'\n" + 'eval "$X"\n' * 40,
        'echo "q" <ip>\n' * 12_000,
        "#SBATCH a" + " " * 100_000 + "b\n",
        "echo a{" + "," * 60_000,
        "vllm serve m --host " + "1." * 60_000,
        "<a>" * 60_000,
        "‹" * 60_000,
        "".join(f"export V{i}={i}\nmake {i}\n" for i in range(2000)),
        "".join(f"V{i}={i}\nif x; then y; fi\n" for i in range(1500)),
        "vllm serve m " + " ".join(f"--foo{i} 1" for i in range(3000)),
        "".join(f"export V{i}={i}\nvllm serve m{i} --port {i}\n" for i in range(600)),
    ],
)
def test_no_script_takes_for_ever(text):
    """Each of these took minutes, or all memory, when something in its way was quadratic."""
    assert registry.check(lint(text)).rules == len(registry.all_rules())


def test_a_terminal_is_shown_and_not_told(tmp_path, capsys):
    path = tmp_path / "run\x1b]0;x\x07.sh"
    path.write_text("vllm serve m --port $'\\e]0;gone\\a' --dtype $'\\x9b31m\u202e'\n")
    main(["check", str(path)])
    out = capsys.readouterr()
    assert not set(out.out + out.err) & set("\x1b\x07\x9b\u202e")
    main(["check", str(tmp_path / "no\x1b[31m")])
    assert "\x1b" not in capsys.readouterr().err


def test_what_starts_nothing_says_so(tmp_path, capsys):
    (tmp_path / "a.sh").write_text("echo hello\n")
    assert main(["check", str(tmp_path)]) == 0
    assert "Nothing here starts an engine" in capsys.readouterr().out
    assert main(["check", ""]) == 2


BROKEN = "services:\n  a:\n    image: vllm/vllm-openai\n   command: [--model, m\n"


def test_yaml_that_cannot_be_parsed_is_an_error(tmp_path, capsys):
    (tmp_path / "compose.yaml").write_text(BROKEN)
    assert main(["check", str(tmp_path / "compose.yaml")]) == 1
    out = capsys.readouterr().out
    assert "compose.yaml:4: error: not YAML: " in out and "[shell/yaml]" in out
    assert "Nothing that was read starts an engine." in out
    assert "Nothing here starts" not in out
    assert main(["check", "--json", str(tmp_path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"] and [one["line"] for one in told["unread"]] == [4]


def test_a_fence_and_a_template_need_not_be_yaml(tmp_path):
    (tmp_path / "a.md").write_text(f"# A\n\n```yaml\n{BROKEN}```\n")
    (tmp_path / "pod.yaml").write_text("spec:\n  {{- toYaml .Values.spec | nindent 2 }}\n")
    (tmp_path / "job.yaml").write_text("spec:\n  args: [{{ .Values.args }}\n")
    found = judge.files([tmp_path])
    assert found.ok and {
        (one.rule, one.severity, one.file, one.line) for one in found.findings
    } == {("shell/yaml", "warning", "a.md", 7), ("shell/yaml", "warning", "job.yaml", 3)}


def test_the_collector_runs_again_after_a_check(tmp_path):
    """It pauses while scripts are read, also where they cannot be."""
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m\n")
    for paths in ([script], [tmp_path / "nothing"]):
        with contextlib.suppress(ParameterError):
            judge.files(paths)
        assert gc.isenabled()


def test_code_of_restructured_text_is_read_where_it_stands(tmp_path):
    page = tmp_path / "serve.rst"
    page.write_text(
        "Serve\n=====\n\n1. Start it:\n\n   .. code-block:: bash\n      :linenos:\n\n"
        "      vllm serve org/model \\\n        --max-model-le 4096\n\n"
        "   Or, of another node::\n\n     vllm serve org/model --port 8001\n\n"
        "Prose::\n\n    curl is only named here\n\n"
        ".. code-block:: bash\n\n   vllm serve lost\nno blank line above\n",
        encoding="utf-8",
    )
    found = assemble.read([page])
    assert [(one.spot.line, one.model) for one in found.servers] == [
        (9, "org/model"),
        (14, "org/model"),
    ]
    assert found.servers[0].given[-1].spelt == "--max-model-le"


def test_a_line_end_in_a_word_parts_nothing():
    text = "docker run -v /usr/bin/tool:\\\n/usr/bin/tool image vllm serve m --port\\\n 1\n"
    found = assemble.of_texts([Text("run.sh", "", "bash", text)])
    assert found.boxes[0].mounts == ("/usr/bin/tool:/usr/bin/tool",)
    assert found.boxes[0].image == "image"
    assert found.servers[0].http_port == 1
