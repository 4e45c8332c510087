"""Lines of shell text, run by a shell: what is quoted arrives as it was."""

from __future__ import annotations

import re
import subprocess

import pytest

from kimi_nb.core import shell

HOSTILE = "/a b;$(touch x)'\"`id`*"


def value(line: str, name: str, **env: str) -> str:
    """The value that a variable has after a line."""
    done = subprocess.run(
        ["bash", "-uc", f'{line}\nbuiltin printf %s "${name}"'],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("name", [*shell.LISTS, "HCCL_BUFFSIZE"])
def test_a_value_is_quoted_whatever_the_variable(name):
    assert value(shell.export(name, HOSTILE), name, PATH="/bin").split(":/bin")[0] == HOSTILE


@pytest.mark.parametrize("name", shell.LISTS)
def test_a_list_keeps_what_was_there(name):
    line = shell.export(name, "/new one")
    assert value(f"unset {name}\n{line}", name) == "/new one"
    assert value(f"{name}=/old\n{line}", name) == "/new one:/old"


def test_the_loader_gets_no_empty_element():
    """Which it would take for the current folder."""
    name = "LD_LIBRARY_PATH"
    assert value(f"{name}=/old:\n{shell.export(name, '/new')}", name) == "/new:/old"
    assert value(shell.append(name, HOSTILE), name) == HOSTILE
    for old in ("/old", "/old:"):
        assert value(f"{name}={old}\n{shell.append(name, HOSTILE)}", name) == f"/old:{HOSTILE}"


def test_a_command_arrives_word_by_word():
    argv = ["printf", "%s|", "--flag", HOSTILE, "-1", "a\nb", "", "-x"]
    text = "\n".join(shell.command(argv))
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[:-1] == argv[2:]
    assert shell.command(["a", shell.Raw('"$1"'), "$2"]) == ["a \"$1\" '$2'"]


def test_a_remark_cannot_end():
    assert shell.remark("one\nrm -rf /\r\n two ") == "# one rm -rf / two"
    text = shell.script(["one\nexit 3"], ["echo done", "", ""])
    assert text == "#!/bin/bash\n# one exit 3\nset -euo pipefail\n\necho done\n"


def test_each_option_of_a_command_has_a_line():
    argv = ["vllm", "serve", "m m", "--port", 8088, "-", "-1", "-x", shell.Raw('"$1"'), "--last"]
    assert shell.command(argv) == [
        "vllm serve 'm m' \\",
        "    --port 8088 - -1 \\",
        '    -x "$1" \\',
        "    --last",
    ]
    assert shell.command(["--a", "b", "--c"], indent="  ") == ["--a b \\", "  --c"]
    assert shell.command([]) == []


def test_a_line_of_a_log_is_told_by_bash():
    script = f'rank=3\n{shell.teller("rank $rank")}\ntell WARNING "it\'s 100% \\n so"\n'
    done = subprocess.run(["bash", "-c", script, "/x/job"], capture_output=True, text=True)
    line = done.stdout
    form = r"WARNING \d\d-\d\d \d\d:\d\d:\d\d \[job:3\] rank 3: it's 100% \\n so\n"
    assert re.fullmatch(form, line) and done.stderr == ""
    assert shell.message(line.rstrip()) == "it's 100% \\n so"
    assert shell.message("it is: so") == "it is: so"
    twice = "INFO 11-23 06:04:02 [job:31] a: INFO 11-23 06:04:02 [job:31] b: x"
    assert shell.message(twice) == "INFO 11-23 06:04:02 [job:31] b: x"


def test_a_script_has_its_shell_options():
    assert shell.script((), ["a"], "set -e") == "#!/bin/bash\nset -e\n\na\n"
    assert shell.remark("") == "#" and shell.quote(7) == "7" and shell.quote("") == "''"
    assert shell.export("A", shell.Raw("$B")) == "export A=$B"
