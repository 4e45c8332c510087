"""The command line, as a separate process: output, exit codes, errors of one screen."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from kimi_nb.cli import main
from kimi_nb.core.errors import ParameterError
from kimi_nb.notebook import start

ROOT = Path(__file__).resolve().parents[2]


def kimi(*args: str, cwd=None, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kimi_nb", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
    )


PLAN = ("plan", "--model", "k2.5", "--hw", "a3", "--layout")


def test_list():
    done = kimi("list", "--json")
    data = json.loads(done.stdout)
    for row in data["recipes"]:
        assert {
            "model",
            "hardware",
            "layout",
            "scenario",
            "variant",
            "documented",
            "source",
        } <= set(row)
    text = kimi("list").stdout
    assert {"documented", "derived", "impossible"} <= set(text.split())
    assert {"documented", "derived", "impossible"} <= {row["word"] for row in data["cells"]}
    why = kimi("list", "--why").stdout
    assert "--layout dp --derive plans" in " ".join(why.split())
    assert kimi("list", "--why", "--rules").returncode == 2


@pytest.mark.parametrize(
    "words",
    [("--layout", "dp"), ("--model", "K2.5", "--hw", "a3"), ("--hw", "A3"), ("--layout", "pd")],
)
def test_list_shows_what_is_asked_for(words):
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    rows = json.loads(kimi("list", *words, "--json").stdout)
    for row in (*rows["recipes"], *rows["cells"]):
        for option, key in (("--model", "model"), ("--hw", "hardware"), ("--layout", "layout")):
            assert row[key] == wanted.get(option, row[key]).lower()
    assert rows["cells"]
    assert rows["recipes"]
    shown = kimi("list", *words)
    assert (shown.returncode, shown.stderr) == (0, "")
    head = next(line for line in reversed(shown.stdout.splitlines()) if "hardware" in line)
    there = {cell["layout"] for cell in rows["cells"]}
    assert set(head.split()) == {"model", "hardware", *there}


def test_a_second_list_reads_what_the_first_one_found_until_a_file_changes(tmp_path):
    for part in ("kimi_nb", "params"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    env = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print('pydantic' in sys.modules, file=sys.stderr))\n"
    )
    first, second = kimi("list", cwd=tmp_path, **env), kimi("list", cwd=tmp_path, **env)
    assert first.stdout == second.stdout
    assert (first.stderr, second.stderr) == ("True\n", "False\n")
    file = tmp_path / "params" / "models" / "k2.5.yaml"
    file.write_text(file.read_text().replace("variant: ", "variant: other-", 1))
    third = kimi("list", cwd=tmp_path, **env)
    assert third.stderr == "True\n"
    assert "other-" not in second.stdout
    assert "other-" in third.stdout


def test_a_command_does_not_look_for_plugins_of_pydantic():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kimi_nb", *PLAN, "pd", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pydantic.types" in done.stderr
    assert "importlib.metadata" not in done.stderr


def test_plan_json_is_one_document_and_nothing_else(tmp_path):
    done = kimi(*PLAN, "pd", "--json", "--out", str(tmp_path / "b"))
    assert done.returncode == 0 and done.stderr == ""
    data = json.loads(done.stdout)
    written = {
        str(path.relative_to(tmp_path / "b"))
        for path in (tmp_path / "b").rglob("*")
        if path.is_file()
    }
    assert set(data["files"]) == written
    assert done.stdout == kimi(*PLAN, "pd", "--json").stdout


def test_plan_options(tmp_path):
    done = kimi(
        *PLAN,
        "single",
        "--scenario",
        "long-context-low-concurrency",
        "--with",
        "tool-parser",
        "--without",
        "jemalloc",
        "--set",
        "max-num-seqs=2",
        "--engine-version",
        "v0.23.0",
        "--json",
    )
    engine = json.loads(done.stdout)["engines"][0]
    argv = engine["argv"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "16"
    assert argv[argv.index("--max-num-seqs") + 1] == "2"
    assert "--tool-call-parser" in argv and "LD_PRELOAD" not in engine["env"]
    text = kimi(*PLAN, "single", "--explain").stdout
    assert "HCCL_BUFFSIZE" in text and "k2.5-balance-scheduling" in text


def test_names_and_lists_as_people_write_them():
    plain = kimi(*PLAN, "pd", "--with", "tool-parser", "--with", "reasoning-parser", "--json")
    words = ("--model", "moonshotai/Kimi-K2.5", "--hw", "A3", "--layout", "pd")
    done = kimi("plan", *words, "--with", "tool-parser, reasoning-parser", "--json")
    assert plain.returncode == 0 and done.stdout == plain.stdout
    found = kimi("check", "--as-documented", *words)
    assert found.returncode == 1 and "k2.5/a3/pd/prefill0" in found.stdout
    wrong = kimi(*PLAN, "pd", "--without", "jemalloc,jemaloc")
    assert wrong.returncode == 2 and "did you mean 'jemalloc'" in wrong.stderr


def test_as_documented_on_purpose(tmp_path):
    """The vendor's own commands can be had, whole or in part, and the plan says so."""
    out = tmp_path / "b"
    done = kimi(*PLAN, "pd", "--as-documented", "--erratum", "k2.5-host=on", "--out", str(out))
    assert done.returncode == 0, done.stderr
    on, off = (
        next(line for line in done.stdout.splitlines() if line.startswith(f"errata {state}"))
        for state in ("on", "off")
    )
    assert "k2.5-host" in on and "k2.5-mounts" in on and "k2.5-kv-port" in off
    assert "As published, on purpose: " in (out / "README.md").read_text()
    plan = json.loads((out / "plan.json").read_text())
    assert plan["name"] == "k2.5-a3-pd-as-documented" and "k2.5-kv-port" in plan["errata_off"]
    assert "k2.5-host" in [one["id"] for one in plan["errata"]]
    usual = json.loads(kimi(*PLAN, "pd", "--json").stdout)
    assert usual["errata_off"] == [] and usual["name"] == "k2.5-a3-pd"


@pytest.mark.parametrize(
    "given, wanted",
    [
        ("k2.5-kvport=off", "did you mean 'k2.5-kv-port'"),
        ("k2.5-kv-port", "ID=on or ID=off"),
        ("k2.5-kv-port=no", "ID=on or ID=off"),
        ("k2.5-mounts=off", "cannot be off"),
        ("k2.5-local-media=off", "is not known"),  # of another layout
    ],
)
def test_an_erratum_that_is_none(given, wanted):
    done = kimi(*PLAN, "pd", "--erratum", given)
    assert done.returncode == 2 and wanted in done.stderr and done.stdout == ""


def test_out_twice(tmp_path):
    where = str(tmp_path / "b")
    assert "new or changed" in kimi(*PLAN, "pd", "--out", where).stdout
    assert "no change" in kimi(*PLAN, "pd", "--out", where).stdout


TOO_LITTLE = (*PLAN, "pd", "--set", "gpu-memory-utilization=0.3")  # for the weights


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_plan_with_errors_is_not_written(tmp_path, more):
    folder = tmp_path / "b"
    done = kimi(*TOO_LITTLE, "--out", str(folder), *more)
    assert done.returncode == 1 and done.stdout == ""
    assert "k2.5-a3-pd: 2 errors" in done.stderr and "[capacity/" in done.stderr
    assert "not written" in done.stderr and "--force" in done.stderr
    assert not folder.exists()


def test_a_plan_with_errors_is_written_by_force(tmp_path):
    done = kimi(*TOO_LITTLE, "--out", str(tmp_path / "b"), "--force")
    assert done.returncode == 0 and "files in" in done.stdout
    assert "warning" in done.stderr and "k2.5-a3-pd: 2 errors" in done.stderr
    assert (tmp_path / "b" / "plan.json").exists()


def test_a_plan_with_errors_is_rehearsed_by_force_only(tmp_path):
    words = ("rehearse", *PLAN[1:], "single", "--set", "gpu-memory-utilization=0.3")
    done = kimi(*words, "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 1 and done.stdout == ""
    assert "[capacity/" in done.stderr and "not rehearsed" in done.stderr
    assert not (tmp_path / "run").exists()
    done = kimi(*words, "--run-dir", str(tmp_path / "run"), "--force")
    assert "it is rehearsed all the same" in done.stderr and "engines ready" in done.stdout


def test_a_plan_with_errors_is_not_deployed(tmp_path):
    site = tmp_path / "mine.yaml"
    made = kimi("site", "new", "--hw", "a3", "--nodes", "127.0.0.9", "--out", str(site))
    assert made.returncode == 0, made.stderr
    again = kimi("site", "new", "--hw", "a3", "--nodes", "127.0.0.9", "--out", str(site))
    assert again.returncode == 2 and "is there already" in again.stderr
    words = ("up", *PLAN[1:], "single", "--set", "gpu-memory-utilization=0.3", "--site", str(site))
    done = kimi(*words, "--run-dir", str(tmp_path / "run"), "--dry-run")
    assert done.returncode == 1 and "not deployed" in done.stderr and "--force" in done.stderr
    assert not (tmp_path / "run").exists()


def test_force_needs_a_folder():
    done = kimi(*PLAN, "pd", "--force")
    assert done.returncode == 2 and "--out" in done.stderr


@pytest.mark.parametrize(
    "args, wanted",
    [
        ((*PLAN, "triple"), "triple"),
        ((*PLAN, "dp"), "There is:"),
        (("plan", "--model", "k2.5", "--hw", "a3"), "say which one"),
        (("plan", "--model", "k9", "--hw", "a3"), "k2-thinking"),
        ((*PLAN, "pd", "--site", "/none.yaml"), "no such file"),
        ((*PLAN, "pd", "--set", "decode.tp=5"), "attention heads"),
        ((*PLAN, "pd", "--out", "/proc/none/b"), "cannot be written"),
        (("run", "--model", "k2.5", "--hw", "a3", "--only", "99"), "'99'"),
        (("run", "--model", "k2.5", "--hw", "a3", "--only", "04"), "layout dp"),
        (("run", "--model", "k2-instruct", "--hw", "a3"), "There is:"),
        (("run", "--model", "k2.5", "--hw", "a3", "--jobs", "0"), "--jobs"),
        (("run", "--model", "k2.5", "--hw", "a3", "--run-dir", "/proc/none"), "cannot be written"),
        (("run", "--model", "k2.5", "--hw", "a3", "--site", "/none.yaml"), "no such file"),
        (
            ("run", "--model", "k2.5", "--hw", "a3", "--site", "params/sites/h200.yaml"),
            "has hardware h200",
        ),
        (
            ("up", "--model", "k2.5", "--hw", "a3", "--layout", "pd", "--confirm", "a3-example"),
            "the example's addresses",
        ),
        (
            ("up", "--model", "k2.5", "--hw", "a3", "--layout", "pd", "--dry-run", "--json"),
            "the example's addresses",
        ),
    ],
)
def test_mistakes(args, wanted):
    done = kimi(*args)
    assert done.returncode == 2
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert len(done.stderr.splitlines()) <= 25


def test_explain_prints_the_page_of_a_rule():
    found = kimi("explain", "topology/ranks")
    assert found.returncode == 0
    assert found.stdout == (ROOT / "docs/rules/topology/ranks.md").read_text()
    known = json.loads(kimi("explain", "topology/ranks", "--json").stdout)
    assert known["rule"] == "topology/ranks" and known["fails"]["files"]
    wrong = kimi("explain", "topology/rank")
    assert wrong.returncode == 2 and "did you mean topology/ranks" in wrong.stderr


# A run takes seconds, and each signal ends it in the same way.
ENDINGS = [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]


@pytest.mark.parametrize("number", ENDINGS)
def test_a_run_that_is_ended_says_so(tmp_path, number):
    """Evidence is closed and the exit code says that it was not finished."""
    folder = tmp_path / "run"
    # The first page stands: the second notebook is on its way.
    ended(folder, number, lambda: (folder / "00_start.html").exists())


@pytest.mark.parametrize("number", ENDINGS)
def test_a_run_that_is_ended_while_a_kernel_starts(tmp_path, number):
    """asyncio tells of what a dead kernel's client was waiting for; a person did not ask."""
    kernel = tmp_path / "kernel.pid"
    (tmp_path / "ipykernel_launcher.py").write_text(
        "import os, time\n"
        "from ipykernel import kernelapp\n"
        f"if os.path.exists({str(kernel)!r}):\n"
        "    kernelapp.launch_new_instance()\n"
        f"open({str(kernel) + '.new'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(kernel) + '.new'!r}, {str(kernel)!r})\n"
        "time.sleep(300)\n"
    )
    ended(tmp_path / "run", number, kernel.exists, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert not Path("/proc", kernel.read_text()).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "module",
    [
        "argparse",
        "kimi_nb.core.extras",
        "kimi_nb.cli.main",
        "kimi_nb.cli.plan",
        "packaging",
        "pydantic",
    ],
)
@pytest.mark.parametrize("start", ["-m", "script"])
def test_a_start_that_is_ended_is_no_traceback(tmp_path, start, module, number):
    """The signal comes when a module is looked for; the first second of a command is imports."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["kimi-nb"]
    name, _, function = script.partition(":")
    words = {
        "-m": ["-m", "kimi_nb"],
        # What pip writes into bin/.
        "script": ["-c", f"import sys; from {name} import {function}; sys.exit({function}())"],
    }
    done = subprocess.run(
        [sys.executable, *words[start], "plan", "--model", "k2.5", "--hw", "a3"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) in ((-number, ""), (130, "kimi-nb: interrupted\n"))


def ended(folder, number, begun, **env):
    """End a run by a signal as soon as it has begun, and assert what it says and leaves."""
    words = ["run", "--model", "k2.5", "--hw", "a3", "--run-dir", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-m", "kimi_nb", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    ) as process:
        deadline = time.monotonic() + 60
        while not begun() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # or the end of this block waits for what hangs
    assert process.returncode == 130 and "interrupted" in errors
    assert "Traceback" not in errors, errors
    last = json.loads((folder / "evidence.jsonl").read_text().splitlines()[-1])
    assert (last["stage"], last["ok"], last["interrupted"]) == ("end", False, True)


def test_runs_go_to_the_working_directory(tmp_path):
    """Also from an editable install, as the checkout on PYTHONPATH is one."""
    checkout, here = tmp_path / "checkout", tmp_path / "here"
    here.mkdir()
    for name in ("kimi_nb", "notebooks", "params"):
        shutil.copytree(
            ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "runs")
        )
    shutil.copy(ROOT / "pyproject.toml", checkout)
    before = sorted(checkout.rglob("*"))
    env = {"PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": str(tmp_path / "pyc")}
    ran = kimi("run", "--model", "k2.5", "--hw", "a3", "--only", "00", cwd=here, **env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    pages = list(here.glob("runs/*-k2.5-a3/report.html"))
    assert len(pages) == 1 and str(pages[0]) in ran.stdout
    assert str(pages[0]) in kimi("report", cwd=here, **env).stdout
    assert sorted(checkout.rglob("*")) == before


def test_the_checkout_s_notebooks_leave_runs_at_its_root(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT / "notebooks")
    assert start.runs_folder() == ROOT / "runs"
    for folder in (tmp_path / "notebooks", tmp_path / "gone"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert start.runs_folder() == folder / "runs"
    (tmp_path / "gone").rmdir()
    with pytest.raises(ParameterError, match="has been removed"):
        start.runs_folder()


def test_a_reader_that_has_seen_enough():
    done = subprocess.run(
        f"{sys.executable} -m kimi_nb list | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "Deployments" and done.stderr == ""


def test_every_command_is_a_module_of_one_shape():
    """What is neither a command nor shared by commands is a command that main has forgotten."""
    there = {path.stem for path in Path(main.__file__).parent.glob("*.py")}
    shared = {"__init__", "main", "options", "output", "redacted_streams", "signals"}
    assert there - shared == set(main.COMMANDS)
    commands = argparse.ArgumentParser().add_subparsers()
    for name in main.COMMANDS:
        module = import_module(f"kimi_nb.cli.{name}")
        module.add(commands)
        assert callable(module.run)
    assert list(commands.choices) == list(main.COMMANDS)


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("up", "--zz")])
def test_help_loads_no_room_that_works(words):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import contextlib, sys; from kimi_nb.cli import main\n"
            "with contextlib.suppress(SystemExit): main.main(sys.argv[1:])\n"
            "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('kimi_nb.')}; "
            "sys.exit(str(rooms) if rooms - {'cli', 'core', 'i18n', 'show'} else 0)",
            *words,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_start_is_light(tmp_path):
    """What a plan does not need is not imported for it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, kimi_nb, kimi_nb.cli.main as c; "
            "c.main(['plan','--model','k2.5','--hw','a3','--layout','pd','--out',sys.argv[1]]); "
            "heavy = {'pandas', 'matplotlib', 'papermill', 'nbconvert', 'IPython', 'requests'}; "
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)",
            str(tmp_path / "b"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    subprocess.run(["rm", "-rf", str(tmp_path / "b")], check=True)
    assert done.returncode == 0, done.stderr


# Where it is written to -----------------------------------------------------------------


def command(*words: str, **more: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "kimi_nb", *words],
        text=True,
        stderr=subprocess.PIPE,
        check=False,
        **more,
    )


@pytest.mark.parametrize(
    "words", [("list",), ("plan", "--model", "k2.5", "--hw", "h200", "--json"), ("plan", "--help")]
)
def test_a_full_disk_behind_the_output_is_one_sentence(words):
    with open("/dev/full", "w") as full:
        done = command(*words, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "kimi-nb: the output cannot be written: No space left on device.\n"


def test_progress_and_errors_that_cannot_be_written_stop_no_command(tmp_path):
    run = tmp_path / "runs" / "k2.5-a3" / "x" / "rehearsals" / "001" / "logs" / "n1"
    run.mkdir(parents=True)
    (run / "rank_0.log").write_text("RuntimeError: NPU out of memory. Tried to allocate\n")
    for words, code in ((("doctor",), 1), (("plan", "--model", "nobody", "--hw", "a3"), 2)):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "kimi_nb", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=full,
                text=True,
                check=False,
                cwd=tmp_path,
            )
        assert done.returncode == code
        assert ("n1, rank 0" in done.stdout) == (words == ("doctor",)), done.stdout


@pytest.mark.parametrize("words", [("explain", "none"), ("verify", "http://[::1"), ("--zz",)])
def test_a_full_disk_behind_the_messages_is_the_exit_code(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kimi_nb", *words],
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("words", [("list",), ("doctor",)])
def test_what_the_terminal_cannot_show_is_escaped(words, tmp_path):
    (tmp_path / "é.log").write_text("é 中 RuntimeError: NPU out of memory. Tried to allocate\n")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    more = [str(tmp_path / "é.log")] if words == ("doctor",) else []
    done = command(*words, *more, env=env, stdout=subprocess.PIPE)
    assert done.returncode in (0, 1) and done.stderr == "" and done.stdout
    assert "\\xe9.log" in done.stdout or words == ("list",)


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "{folder}/rank_0.log", "--json"),
        ("check", "{folder}/serve.sh", "--json"),
        ("check", "{folder}/serve.sh", "--format", "sarif"),
        ("check", "{folder}/serve.sh", "--format", "github"),
    ],
)
def test_what_a_terminal_obeys_is_escaped_in_json_too(words, tmp_path, capsys):
    """U+009B begins a command of a terminal, as Escape and [ do; JSON itself leaves it as it is."""
    odd = "a\x9b2J\u202eb\x7fc\u2028\U000e0041"
    (tmp_path / "rank_0.log").write_text(f"RuntimeError: NPU out of memory. {odd}\n")
    (tmp_path / "serve.sh").write_text(f"vllm serve m --{odd} --port '{odd}'\n")
    assert main.main([word.format(folder=tmp_path) for word in words]) in (0, 1)
    shown = capsys.readouterr().out
    assert not {one for one in shown if not one.isprintable()} - {"\n"}
    if words[0] == "doctor":
        assert "\\u009b2J\\u202eb\\u007fc" in shown, "and nothing is lost"


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "~nobody-of-this-name/x"),
        ("plan", "--model", "k2.5", "--hw", "h200", "--site", "~nobody-of-this-name/x"),
        ("verify", "http://[::1"),
        ("verify", "http://" + "a" * 3000),
        ("verify", "http://-x:1", "--model", "m", "--only", "api/chat"),
    ],
)
def test_odd_words_are_one_sentence_and_no_traceback(words):
    done = command(*words, stdout=subprocess.PIPE)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr + done.stdout
    assert done.stderr.count("kimi-nb: ") == 1 or done.returncode == 1
    assert len(done.stderr) < 500
