"""kimi-nb check --fix: what is rewritten, what stays, and that a script means the same after."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_nb import catalog
from kimi_nb.catalog.language import plain
from kimi_nb.check import rewriting
from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text
from kimi_nb.check.rules import registry

ENGINE = catalog.engine("vllm-ascend", "0.22.1rc1")
MLAPO, FLASH = "VLLM_ASCEND_ENABLE_MLAPO", "VLLM_ASCEND_ENABLE_FLASHCOMM1"
DEAD = "VLLM_RPC_TIMEOUT"
REWRITTEN = {"variables/ignored", "variables/moved", "variables/never-read", "engine/flag-removed"}


def fix(script: str, version: str = "0.22.1rc1") -> rewriting.Rewritten:
    """Rewrite, and what holds for every script: bash reads it, and the second time nothing is
    rewritten and the same is left."""
    engine = catalog.engine("vllm-ascend", version)
    made = rewriting.text(script, engine)
    if reads(script):
        assert reads(made.new), made.new
    again = rewriting.text(made.new, engine)
    assert (again.new, again.done, again.left) == (made.new, (), made.left)
    assert "\\\n\n" in script or "\\\n\n" not in made.new
    assert re.search(r"\n[ \t]*\\\n", script) or not re.search(r"\n[ \t]*\\\n", made.new)
    return made


def reads(script: str) -> bool:
    return (
        subprocess.run(
            ["bash", "-n"], input=script.encode(), capture_output=True, check=False
        ).returncode
        == 0
    )


def servers(script: str):
    return assemble.of_texts(
        [Text("run.sh", "", "bash", script)], "vllm-ascend", "0.22.1rc1"
    ).servers


def configs(script: str) -> list[dict]:
    return [dict(server.table("additional-config")) for server in servers(script)]


def found(script: str) -> set[str]:
    deployment = assemble.of_texts([Text("run.sh", "", "bash", script)], "vllm-ascend", "0.22.1rc1")
    return {one.rule for one in registry.check(deployment).findings} & REWRITTEN


def stays(script: str, *said: str) -> None:
    made = fix(script)
    assert made.new == script and made.left
    for word in said:
        assert any(word in one for one in made.left), made.left
    assert all(re.match(r"line \d+: ", one) for one in made.left)


# What is rewritten ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Variables: the key goes to every engine after the export.
        (
            f"export {MLAPO}=1\nvllm serve a &\nvllm serve b\n",
            "vllm serve a \\\n    --additional-config '{\"enable_mlapo\": true}' &\n"
            "vllm serve b \\\n    --additional-config '{\"enable_mlapo\": true}'\n",
        ),
        (
            f"vllm serve a &\nexport {MLAPO}=0\nvllm serve b",
            "vllm serve a &\nvllm serve b \\\n    --additional-config '{\"enable_mlapo\": false}'",
        ),
        (
            f"{MLAPO}=1 vllm serve a &\nvllm serve b\n",
            "vllm serve a \\\n    --additional-config '{\"enable_mlapo\": true}' &\nvllm serve b\n",
        ),
        (
            f"{MLAPO}=1 vllm serve a &\n{MLAPO}=0 vllm serve b\n",
            "vllm serve a \\\n    --additional-config '{\"enable_mlapo\": true}' &\n"
            "vllm serve b \\\n    --additional-config '{\"enable_mlapo\": false}'\n",
        ),
        (
            f"declare -x {MLAPO}=1\nvllm serve a --additional-config '{{\"x\":1}}' --port 1\n",
            'vllm serve a --additional-config \'{"x":1, "enable_mlapo": true}\' --port 1\n',
        ),
        (
            f"export {MLAPO}=1\nvllm serve a --additional-config '{{\"enable_mlapo\": false}}'\n",
            "vllm serve a --additional-config '{\"enable_mlapo\": false}'\n",
        ),
        (
            f"if x; then\n  export {MLAPO}=1\n  vllm serve a\nelse\n  vllm serve b\nfi\n",
            "if x; then\n  vllm serve a \\\n    --additional-config '{\"enable_mlapo\": true}'\n"
            "else\n  vllm serve b\nfi\n",
        ),
        (
            f"cd x && export {MLAPO}=1 && vllm serve a\n",
            "cd x && : && vllm serve a \\\n    --additional-config '{\"enable_mlapo\": true}'\n",
        ),
        (
            f"case $1 in\n  p)\n    export {MLAPO}=1\n    vllm serve a ;;\n  *) vllm serve b ;;\nesac\n",
            "case $1 in\n  p)\n    vllm serve a \\\n"
            "    --additional-config '{\"enable_mlapo\": true}' ;;\n  *) vllm serve b ;;\nesac\n",
        ),
        (
            f'export {MLAPO}=1\nserve() {{\n  vllm serve a "$1"\n}}\nserve x\n',
            'serve() {\n  vllm serve a "$1" \\\n    --additional-config \'{"enable_mlapo": true}\'\n}\n'
            "serve x\n",
        ),
        # The configuration in its other places.
        (
            f"export {MLAPO}=1\nvllm serve m --additional-config='{{\"a\": 1}}' --port 1\n",
            'vllm serve m --additional-config=\'{"a": 1, "enable_mlapo": true}\' --port 1\n',
        ),
        (
            f"export {MLAPO}=1\nvllm serve m --additional_config '{{}}'\n",
            "vllm serve m --additional_config '{\"enable_mlapo\": true}'\n",
        ),
        (
            f"export {MLAPO}=1\nARGS=(\n  --additional-config '{{\"a\": 1}}'  # here\n  --swap-space 4\n"
            '  --port 1\n)\nvllm serve m "${ARGS[@]}"\n',
            'ARGS=(\n  --additional-config \'{"a": 1, "enable_mlapo": true}\'  # here\n'
            '  --port 1\n)\nvllm serve m "${ARGS[@]}"\n',
        ),
        (
            f'export {MLAPO}=1\nCMD=(vllm serve m --port 1)\nCMD+=(--swap-space 4)\n"${{CMD[@]}}" &\n',
            "CMD=(vllm serve m --port 1 --additional-config '{\"enable_mlapo\": true}')\nCMD+=()\n"
            '"${CMD[@]}" &\n',
        ),
        # Statements that go, and what must stand in their place.
        (f"if x; then\n  export {DEAD}=1\nfi\n", "if x; then\n  :\nfi\n"),
        (
            f"if x; then export {DEAD}=1; else\n  # why\n  export {DEAD}=2\nfi\n",
            "if x; then :; else\n  # why\n  :\nfi\n",
        ),
        (
            f"if x; then\n  y\nelif z; then\n  export {DEAD}=1\n  export VLLM_USE_V1=1\nfi\n",
            "if x; then\n  y\nelif z; then\n  :\nfi\n",
        ),
        (
            f"for i in 1 2; do\n  export {DEAD}=1\ndone\nwhile x; do export {DEAD}=1; done\n",
            "for i in 1 2; do\n  :\ndone\nwhile x; do :; done\n",
        ),
        (
            f"f() {{\n  export {DEAD}=1\n}}\ng() {{ export {DEAD}=1; }}\n(export {DEAD}=1)\n",
            "f() {\n  :\n}\ng() { :; }\n(:)\n",
        ),
        (
            f"case $1 in\n  a) export {DEAD}=1 ;;\n  b)\n    export {DEAD}=1\n    x\n    ;;\nesac\n",
            "case $1 in\n  a) : ;;\n  b)\n    x\n    ;;\nesac\n",
        ),
        (f"x && export {DEAD}=1\nexport {DEAD}=1 || y\n! export {DEAD}=2 > /dev/null; z\n", None),
        (f"export {DEAD}=1; export VLLM_USE_V1=1\nx\n", "x\n"),
        (f"x; export {DEAD}=1; y\nx; export {DEAD}=1\nexport {DEAD}=1; y\n", "x; y\nx\ny\n"),
        (f"  export {DEAD}=1  # an hour\nx\n", "  # an hour\nx\n"),
        (f"A=1 {DEAD}=1 B=2 vllm serve m\n", "A=1 B=2 vllm serve m\n"),
        (f"  {DEAD}=1 \\\n  vllm serve m \\\n    --port 1\n", "  vllm serve m \\\n    --port 1\n"),
        (f"A=1 \\\n  {DEAD}=1 \\\n  vllm serve m\n", "A=1 \\\n  vllm serve m\n"),
        (f"export {DEAD}=${{{DEAD}:-1}}\nx", "x"),
        # Flags.
        ("vllm serve --disable-log-requests m\n", "vllm serve --no-enable-log-requests m\n"),
        ("vllm serve m --swap_space=4 --port 1\n", "vllm serve m --port 1\n"),
        (
            "vllm serve m \\\n  --swap-space 4 \\\n  --guided-decoding-disable-fallback \\\n  --port 1\n",
            "vllm serve m \\\n  --port 1\n",
        ),
        (
            'vllm serve m \\\n  --port 1 \\\n  --swap-space "$GB"\nx\n',
            "vllm serve m \\\n  --port 1\nx\n",
        ),
        (
            "vllm serve m \\\n  --swap-space 4 --port 1 \\\n  --tp 2 --swap-space 4 &\n",
            "vllm serve m \\\n  --port 1 \\\n  --tp 2 &\n",
        ),
        (
            "A=(--swap-space 4 --port 1)\nB=(\n  # one\n  --swap-space 4  # two\n  --port 1\n)\n"
            'vllm serve m "${A[@]}" "${B[@]}"\n',
            'A=(--port 1)\nB=(\n  # one\n  # two\n  --port 1\n)\nvllm serve m "${A[@]}" "${B[@]}"\n',
        ),
        (
            f"export {MLAPO}=1\nvllm serve m --host <node ip> --swap-space 4 --port <port>\n",
            "vllm serve m --host <node ip> --port <port> \\\n"
            "    --additional-config '{\"enable_mlapo\": true}'\n",
        ),
        (
            "vllm serve m --disable-mm-preprocessor-cache --num-redundant-experts=4\n",
            "vllm serve m --mm-processor-cache-gb 0 --eplb-config.num_redundant_experts 4\n",
        ),
        (
            "docker run -v /a:/b image vllm serve m --swap-space 4 --port 1\n",
            "docker run -v /a:/b image vllm serve m --port 1\n",
        ),
    ],
)
def test_rewritten(old, new):
    made = fix(old)
    if new is not None:
        assert made.new == new
        assert not made.left and made.done
    assert made.left or not found(made.new)
    # Line ends are nobody's business: the same with CR LF.
    windows = rewriting.text(old.replace("\n", "\r\n"), ENGINE)
    assert windows.new == made.new.replace("\n", "\r\n")


def test_old_keys_move_under_their_table():
    old = "vllm serve m --additional-config='{\"recompute_scheduler_enable\": true}'\n"
    new = fix(old, "0.25.1rc1").new
    assert new == (
        'vllm serve m --additional-config=\'{"scheduler_config": '
        '{"recompute_scheduler_enable": true}}\'\n'
    )
    inside = "bash -c 'vllm serve m --additional-config {\"recompute_scheduler_enable\":1}'\n"
    assert "scheduler_config" in str(fix(inside, "0.25.1rc1").left)
    odd = 'vllm serve m --additional-config \'{"recompute_scheduler_enable": 1, "{}": 2}\'\n'
    assert fix(odd.replace("{}", "scheduler_config"), "0.25.1rc1").new.count("recompute") == 1


def test_a_flag_that_came_back_stays():
    script = "vllm serve m --disable-log-requests\n"
    assert rewriting.text(script, catalog.engine("vllm", "0.33.0")).new == script


# What stays, and is said ----------------------------------------------------------------------

SERVE = "vllm serve m --port 1\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        # The configuration is no plain JSON: the setting is not lost.
        (
            f'export {FLASH}=1\nCONF=\'{{"a": 1}}\'\nvllm serve m --additional-config "$CONF"\n',
            'add {"enable_flashcomm1": true}',
        ),
        (
            f'export {FLASH}=1\nvllm serve m --additional-config "{{\\"enable_flashcomm1\\": true}}"\n',
            "single quotes",
        ),
        (f"export {FLASH}=1\nvllm serve m --additional-config '[1]'\n", "single quotes"),
        (
            f"export {FLASH}=1\nvllm serve m --additional-config '{{}}' --additional-config '{{}}'\n",
            "more than one",
        ),
        (f"export {FLASH}=1\nvllm serve m --additional-config.enable_mlapo true\n", "not plain"),
        (f"export {FLASH}=1\nvllm serve m --additional-config\n", "not plain"),
        (f'export {FLASH}=1\nC="--additional-config {{}}"\nvllm serve m $C\n', "not plain"),
        (f"export {FLASH}=1\nvllm serve m > log --additional-config '{{}}'\n", "not plain"),
        (f'export {FLASH}=1\nvllm serve m "$@"\n', "not known"),
        (f"export {FLASH}=1\nvllm serve m --config x.yaml\n", "--config"),
        (
            f"export {FLASH}=1\nA=(--port 1)\nif x; then A=(--additional-config '{{}}'); fi\n"
            'vllm serve m "${A[@]}"\n',
            "branches",
        ),
        # Several values, branches, commands.
        (f"export {MLAPO}=1\nvllm serve a &\nexport {MLAPO}=0\nvllm serve b\n", "several values"),
        (
            f"if x; then\n  export {MLAPO}=0\nelse\n  export {MLAPO}=1\nfi\n{SERVE}",
            "several values",
        ),
        (f"if x; then\n  export {MLAPO}=1\nfi\n{SERVE}", "depends"),
        (f"x && export {MLAPO}=1\n{SERVE}", "depends"),
        (f"for i in 1 2; do\n  vllm serve m\n  export {MLAPO}=1\ndone\n", "depends"),
        (f"f() {{\n  export {MLAPO}=1\n}}\nf\n{SERVE}", "depends"),
        (f"f() {{\n  {SERVE}}}\nexport {MLAPO}=1\nf\n", "depends"),
        (f"(export {MLAPO}=1; x)\n{SERVE}", "no vllm serve"),
        (f"{MLAPO}=1 x\n{SERVE}", "no vllm serve"),
        (f"export {MLAPO}=1\ndocker run -it image vllm serve m\n", "no vllm serve"),
        (f"export {MLAPO}=1\nx\n", "no vllm serve"),
        (
            f"A=('--additional-config' '{{}}')\nexport {MLAPO}=1\nvllm serve a \"${{A[@]}}\"\n"
            f'vllm serve b "${{A[@]}}"\n'.replace(
                "'--additional-config'", "--additional-config"
            ).replace(
                f'export {MLAPO}=1\nvllm serve a "${{A[@]}}"\n',
                f'vllm serve a "${{A[@]}}" &\nexport {MLAPO}=1\n',
            ),
            "share",
        ),
        # Not exported, not plain.
        (f"{MLAPO}=1\n{SERVE}", "not exported"),
        (f"export {MLAPO}=$ON\n{SERVE}", "not plain"),
        (f"export {MLAPO}=\n{SERVE}", "not plain"),
        (f"export {MLAPO}=1 {FLASH}=1\n{SERVE}", "one line"),
        (f"{MLAPO}=1 {FLASH}=1\n{SERVE}", "one line"),
        (f"export {DEAD}=1 B=1\n{SERVE}", "one line"),
        (f"export {DEAD}=$(mkdir x)\n{SERVE}", "runs a command"),
        # Used elsewhere.
        (f"export {MLAPO}=1\necho ${MLAPO}\n{SERVE}", "used elsewhere"),
        (f"export {DEAD}=1\nx --timeout ${{{DEAD}:-2}}\n{SERVE}", "used elsewhere"),
        (f"export {MLAPO}=1\n{SERVE}unset {MLAPO}\n", "used elsewhere"),
        (f"export {DEAD}=1\nexport -p > env.sh\n", "handed on"),
        (f"export {MLAPO}=1\nprintenv > x.env\n{SERVE}", "handed on"),
        (f"export {MLAPO}=1\ndocker run -e {MLAPO} image\n{SERVE}", "used elsewhere"),
        (f"export {MLAPO}=1\ncat > x.env <<E\n{MLAPO}=${MLAPO}\nE\n{SERVE}", "used elsewhere"),
        # Other engines that see the export.
        (f"export {MLAPO}=1\nbash -c 'vllm serve a' &\n{SERVE}", "another vllm serve"),
        (f"export {MLAPO}=1\n./other.sh\n{SERVE}", "started here"),
        (f"export {MLAPO}=1\npython launch_online_dp.py\n{SERVE}", "started here"),
        # Where nothing is rewritten.
        ('bash -c "vllm serve m --swap-space 4"\n', "--swap-space"),
        (
            f"cat > run.sh <<'E'\nexport {MLAPO}=1\nvllm serve m --disable-log-requests\nE\n",
            "--no-enable-log-requests",
        ),
        ('EXTRA="--swap-space 4"\nvllm serve m $EXTRA\n', "--swap-space"),
        (f"docker run -e {MLAPO}=1 image vllm serve m\n", "enable_mlapo"),
        (f"docker run --env={DEAD}=1 image vllm serve m\n", "does nothing"),
        (f"env {DEAD}=1 vllm serve m\n", "does nothing"),
        (f"echo {DEAD}=1 > my.env\n", "does nothing"),
        (f"A=1 B=2\nexport {DEAD}=1\n", DEAD),
    ],
)
def test_stays_and_is_said(script, said):
    stays(script, said)


def test_lines_are_those_of_the_new_script():
    made = fix(f"export {DEAD}=1\nexport {MLAPO}=1\nvllm serve m\n\nbash -c 'x --swap-space 4'\n")
    assert made.new.split("\n")[3].startswith("bash -c")
    assert made.left == (
        "line 4: --swap-space may go: it is not rewritten here, change it if vLLM gets it",
    )


def test_what_is_said_to_people_is_no_engine():
    script = (
        f"# vllm serve with {MLAPO}=1\nexport {MLAPO}=1\npkill -f 'vllm serve'\n"
        f"echo 'starting vllm serve --swap-space'\n{SERVE}"
    )
    made = fix(script)
    assert (
        not made.left and "export" not in made.new and configs(made.new) == [{"enable_mlapo": True}]
    )


def test_what_would_break_the_script_is_not_done():
    """To bash a placeholder is a redirect, whose file is the next word."""
    made = fix("vllm serve m --host <node ip> --swap-space 4\n")
    assert made.new == made.old and "bash" in made.left[0]


def test_mixed_line_ends_stay():
    script = f"export {DEAD}=1\r\nx\n"
    made = rewriting.text(script, ENGINE)
    assert made.new == script and "CR LF" in made.left[0]
    assert not rewriting.text("x\r\ny\n", ENGINE).left


# Whatever the script --------------------------------------------------------------------------

_ASSIGN = [
    f"export {MLAPO}=1",
    f"export {MLAPO}=0",
    f"export {FLASH}=1",
    f"export {DEAD}=5",
    "export VLLM_USE_V1=1  # note",
    f"export {DEAD}=1; export A=1",
    f"{MLAPO}=1",
    f"x && export {MLAPO}=1",
    f"echo ${FLASH}",
    "# a comment",
    "",
]
_SERVES = [
    "vllm serve m",
    "vllm serve m \\\n  --swap-space 4 \\\n  --port 1 &",
    "vllm serve m \\\n  --port 1 \\\n  --swap-space 4",
    "vllm serve m --disable-log-requests --additional-config '{\"a\": [1]}'",
    "vllm serve m --additional-config='{\"enable_mlapo\": false}'",
    'vllm serve m --additional-config "{}"',
    f"{FLASH}=1 \\\n  vllm serve m",
    "A=(\n  --swap-space 4\n  --additional-config '{}'\n)\nvllm serve m \"${A[@]}\"",
    "vllm serve m > log 2>&1 &",
    "vllm serve m --port 1 | tee log",
    "./other.sh",
]
_LINE = st.sampled_from(_ASSIGN + _SERVES)


@st.composite
def _script(draw, depth: int = 2) -> str:
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        kind = (
            draw(st.sampled_from(["line", "line", "line", "if", "for", "f", "case", "group"]))
            if depth
            else "line"
        )
        if kind == "line":
            lines.append(draw(_LINE))
            continue
        inner = draw(_script(depth - 1))
        if not re.sub(r"#.*", "", inner).strip():
            inner += "\nx"
        if kind == "if":
            lines.append(f"if x; then\n{inner}\nelse\n{draw(_LINE)}\ny\nfi")
        elif kind == "for":
            lines.append(f"for i in 1 2; do\n{inner}\ndone")
        elif kind == "f":
            lines.append(f"f() {{\n{inner}\n}}\nf")
        elif kind == "case":
            lines.append(f"case $1 in\n  a)\n{inner}\n;;\n  *) y ;;\nesac")
        else:
            lines.append(f"{{\n{inner}\n}}")
    return "\n".join(lines)


def meant(script: str) -> list[dict]:
    """What each engine is told, by key or by variable."""
    out = []
    for server in servers(script):
        table = dict(server.table("additional-config"))
        for name in (MLAPO, FLASH):
            if name in server.env and not isinstance(server.flags.get("additional-config"), str):
                table.setdefault(str(catalog.moved(ENGINE, name)), plain(server.env[name]))
        out.append(table)
    return out


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(_script())
def test_a_script_means_the_same_after(script):
    made = fix(script)
    assert meant(made.new) == meant(script)
    if not made.left:
        assert not found(made.new)
    kept = [line for line in script.split("\n") if "#" in line]
    assert (
        [line for line in made.new.split("\n") if "#" in line]
        == [line.replace("export VLLM_USE_V1=1  ", "") for line in kept]
        or any("VLLM_USE_V1=1 " in one for one in made.left)
        or ":  # note" in made.new
    )


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="ab\"'\\ \n(){}[]$;&|<>=#-" + "\r", max_size=60))
def test_any_text_is_taken(noise):
    script = f"{noise}\nexport {MLAPO}=1\n{noise}\nvllm serve m --swap-space 4 {noise}\n"
    made = rewriting.text(script, ENGINE)
    assert json.dumps(made.left) and (not reads(script) or reads(made.new))


def test_a_variable_that_counts_becomes_a_number():
    made = rewriting.text(
        "export VLLM_ASCEND_ENABLE_NZ=1\nvllm serve m\n", catalog.engine("vllm-ascend", "0.22.1rc1")
    )
    assert '"weight_nz_mode": 1' in made.new


def test_what_stands_in_for_a_flag_that_is_taken_out_is_named():
    made = fix("vllm serve m --swap-space 4 --guided-decoding-disable-fallback\n", "0.20.2rc1")
    assert any("--swap-space" in one and "--kv-offloading-size" in one for one in made.done), (
        made.done
    )
    assert "--guided-decoding-disable-fallback is taken out: no later version has it" in made.done
