"""Environments of their own: what is refused, run, recorded, and said when it fails.

Programs are stood in for by one that records what it was asked; real environments are made by
`make engine` and `make load-clients`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kimi_nb.core import environments
from kimi_nb.core.errors import InstallError, ParameterError

REFUSALS = {
    "python": "{title}: Python {pythons}, and this is {python}",
    "machine": "{title}: no build for {machine}",
    "disk": "{title}: {needed} GB are needed, {free} GB are free",
}
BARE = {
    "title": "The tool",
    "make": "make tool",
    "stamp": "made.json",
    "wanted": {"tool": "1.2"},
    "requires": ["tool==1.2", "other"],
    "imports": ["tool.all", "other"],
    "programs": ["tool"],
    "pythons": [(3, 11), (3, 13)],
    "needs_gb": 1.5,
    "refusals": REFUSALS,
}


def spec(**more) -> environments.Specification:
    """A specification that any machine fulfils."""
    return environments.Specification(
        **{**BARE, "pythons": [(3, 0), (3, 99)], "needs_gb": 0.0, **more}
    )


def record(folder, said, name="made.json") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))


def complete(folder) -> None:
    record(folder, {"wanted": {"tool": "1.2"}, "versions": {"tool": "1.2.0", "other": "9"}})
    (folder / "bin").mkdir()
    for name in ("python", "tool"):
        (folder / "bin" / name).touch()


# What is there --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", "{}", None])
def test_without_a_record_it_was_not_completed(tmp_path, text):
    if text is not None:
        record(tmp_path / "e", text)
    assert environments.missing(tmp_path / "e", spec()) == "the installation was not completed"
    assert environments.versions(tmp_path / "e", spec()) == ""


def test_what_was_made_for_other_versions_is_told(tmp_path):
    complete(tmp_path / "e")
    assert environments.missing(tmp_path / "e", spec()) == ""
    other = spec(wanted={"tool": "1.3"})
    assert environments.missing(tmp_path / "e", other) == "other versions are installed"
    record(tmp_path / "e", {"tool": "1.2"})  # as tools were recorded once
    assert environments.missing(tmp_path / "e", spec()) == ""
    assert environments.missing(tmp_path / "e", other) == "other versions are installed"


@pytest.mark.parametrize("name", ["python", "tool"])
def test_a_program_that_is_missing_is_named(tmp_path, name):
    complete(tmp_path / "e")
    (tmp_path / "e" / "bin" / name).unlink()
    assert environments.missing(tmp_path / "e", spec()) == f"bin/{name} is missing"


def test_versions_are_those_found_and_those_that_are_fixed(tmp_path):
    complete(tmp_path / "e")
    found = environments.versions(tmp_path / "e", spec(versions={"other": "10", "third": "3"}))
    assert found == "tool 1.2.0, other 10, third 3"


@pytest.mark.parametrize(
    ("version", "machine", "free", "said"),
    [
        ((3, 10), "x86_64", 9, "The tool: Python 3.11 to 3.13, and this is 3.10"),
        ((3, 14), "x86_64", 9, "The tool: Python 3.11 to 3.13, and this is 3.14"),
        ((3, 11), "riscv64", 9, "The tool: no build for riscv64"),
        ((3, 13), "x86_64", 1.44, "The tool: 1.5 GB are needed, 1.4 GB are free"),
        ((3, 11), "x86_64", 1.5, ""),
        ((3, 13), "aarch64", 1.6, ""),
    ],
)
def test_a_machine_that_does_not_suffice_is_refused(version, machine, free, said):
    of = environments.Specification(**BARE, machines=["x86_64", "aarch64"])
    if not said:
        environments.refuse(of, version, machine, free)
        return
    with pytest.raises(InstallError) as error:
        environments.refuse(of, version, machine, free)
    assert str(error.value) == said


def test_each_machine_will_do_where_none_is_named():
    environments.refuse(environments.Specification(**BARE), (3, 12), "riscv64", 2)


# What went wrong ------------------------------------------------------------------------------

NETWORK = "no network, or the package index cannot be reached; set pip's and uv's index and proxy"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ssl: CERTIFICATE_VERIFY_FAILED", "the package index's certificate is not trusted here"),
        ("invalid peer certificate: UnknownIssuer", "the package index's certificate is not"),
        ("[Errno 28] No space left on device", "the disk is full; 1.5 GB are needed"),
        ("Disk quota exceeded", "the disk is full; 1.5 GB are needed"),
        ("Failed to establish a new connection", NETWORK),
        ("Temporary failure in name resolution", NETWORK),
        ("connection reset by peer", NETWORK),
        ("tcp connect error", NETWORK),
        (
            "ERROR: Requires-Python >=3.12",
            f"there is no build for Python {platform.python_version()}; 3.11 to 3.13 are supported",
        ),
        ("x.whl is not a supported wheel on this platform", "there is no build for Python"),
        ("[Errno 13] Permission denied: 'x'", "a file or folder cannot be written"),
        ("\na\n\n b \nc\n d\n", "b c d"),
        ("", "it says nothing"),
        (" \n ", "it says nothing"),
    ],
)
def test_a_cause_is_read_from_what_a_tool_prints(text, said):
    assert environments.reason(text, environments.Specification(**BARE)).startswith(said)


def test_a_cause_without_a_specification_has_no_figures():
    assert environments.reason("no space left on device") == "the disk is full"
    wanted = f"there is no build for Python {platform.python_version()}"
    assert environments.reason("requires-python") == wanted
    assert environments.reason("x" * 999) == "x" * 300


def test_a_build_of_torch_is_told_by_the_name_of_its_wheel():
    names = ["torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl", "torchvision-2.14.0+cpu-x.whl"]
    assert environments.has_build(names, "2.13.0+cpu")
    assert not environments.has_build(names, "2.13.0")
    assert not environments.has_build(names, "2.14.0+cpu")
    assert not environments.has_build([], "2.13.0+cpu")


# The folder -----------------------------------------------------------------------------------


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with (
        pytest.raises(ParameterError) as error,
        environments.locked(tmp_path, ".ours", "is somebody's"),
    ):
        pass
    assert str(error.value) == f"{tmp_path} is somebody's"
    with (
        pytest.raises(ParameterError, match=r"thesis\.txt is somebody's"),
        environments.locked(tmp_path / "thesis.txt", ".ours", "is somebody's"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_is_held_by_one_at_a_time(tmp_path):
    folder = tmp_path / "a" / "b"
    (tmp_path / "empty").mkdir()
    with environments.locked(tmp_path / "empty", ".ours", "x"):
        pass
    with environments.locked(folder, ".ours", "x"):
        assert (folder / ".ours").is_file()
        with (
            pytest.raises(InstallError) as error,
            environments.locked(folder, ".ours", "x"),
        ):
            pass
        said = f"{folder}: another installation is at work; wait for it."
        assert str(error.value) == said and error.value.__cause__ is None
    with environments.locked(folder, ".ours", "x"):  # ours, and held by nobody
        pass


@pytest.mark.parametrize("argv", [[], ["a", "b"], ["--help"]])
def test_the_command_takes_one_folder(argv, capsys):
    assert environments.command(argv, "kimi_nb.x", "x", "make x", lambda folder: 0) == 2
    assert capsys.readouterr().err == "usage: python -m kimi_nb.x FOLDER\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InstallError("no room"), 2, "x: no room\n"),
        (OSError("No space left on device"), 2, "x: the disk is full (No space left on device)\n"),
        (KeyboardInterrupt(), 130, "x: interrupted; the next make x makes it again\n"),
    ],
)
def test_what_ends_the_command_is_told_in_a_line(error, code, said, capsys):
    def work(folder):
        raise error

    assert environments.command(["f"], "kimi_nb.x", "x", "make x", work) == code
    assert capsys.readouterr().err == said


def test_the_folder_of_the_command_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    seen = []

    def work(folder):
        seen.append(folder)
        return 7

    for word in ("here", "~/there"):
        assert environments.command([word], "m", "x", "make x", work) == 7
    assert seen == [tmp_path / "here", tmp_path / "home" / "there"]


# Making one -----------------------------------------------------------------------------------


class Programs:
    """Stand in for the programs that an installation runs; ``fails`` is a word of one that does."""

    def __init__(self) -> None:
        self.ran, self.fails, self.wheels, self.overrides, self.env = [], "", [], [], []
        self.says = "two\n"
        self.prints = 'noise\nkimi-nb is noise\nkimi-nb {"tool": "1.2.0"}\nmore\n'

    def run(self, argv, *, env, **how):
        assert how == {"stdin": -3, "capture_output": True, "text": True, "check": False}
        self.env.append(env)
        self.ran.append([_name(word) if "kimi-nb-env" in word else word for word in argv])
        if "venv" in argv:
            (Path(argv[-1]) / "bin").mkdir()
            for name in ("python", "tool"):
                (Path(argv[-1]) / "bin" / name).touch()
        if "--dest" in argv:
            for name in self.wheels:
                (Path(argv[argv.index("--dest") + 1]) / name).touch()
        if "--override" in argv:
            self.overrides.append(Path(argv[argv.index("--override") + 1]).read_text())
        if self.fails in argv:
            return subprocess.CompletedProcess(argv, 3, "one\n", self.says)
        return subprocess.CompletedProcess(argv, 0, self.prints, "")


def _name(path: str) -> str:
    return path.rpartition("/")[2]


@pytest.fixture
def programs(monkeypatch):
    made = Programs()
    monkeypatch.setattr(environments.subprocess, "run", made.run)
    return made


def test_an_environment_is_made_imported_and_recorded(tmp_path, programs, capsys):
    folder = tmp_path / "e"
    of = spec(shows=["tool"], versions={"fixed": "7"})
    assert environments.install(folder, of) == f"{folder}: tool 1.2.0, fixed 7"
    python, uv = f"{folder}/bin/python", f"{folder}/bin/uv"
    assert programs.ran == [
        [sys.executable, "-m", "venv", str(folder)],
        [python, "-m", "pip", "install", "--quiet", "uv>=0.8"],
        [
            *[uv, "pip", "install", "--quiet", "--python", python],
            *["--override", "overrides.txt", "tool==1.2", "other"],
        ],
        [python, "-c", environments._proof(of)],
    ]
    assert programs.overrides == [""]
    known = json.loads((folder / "made.json").read_text())
    assert known == {"wanted": {"tool": "1.2"}, "versions": {"tool": "1.2.0", "fixed": "7"}}
    assert capsys.readouterr().out.splitlines() == [
        f"an environment in {folder}",
        "The tool and what it needs",
        "importing it, which takes a minute the first time",
    ]
    assert environments.install(folder, of) == f"{folder}: no change: tool 1.2.0, fixed 7"
    assert len(programs.ran) == 4 and capsys.readouterr().out == ""


def test_all_that_an_environment_may_have(tmp_path, programs, capsys):
    folder = tmp_path / "e"
    of = spec(leaves_out=["a", "b"], without_dependencies=["c==1", "d"], compiles=True)
    library = f"{folder}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    mended = []
    environments.install(folder, of, mend=lambda path: mended.append(str(path)) or "it is mended")
    assert mended == [library]
    install, bare = programs.ran[2:4]
    assert install[-4:] == ["overrides.txt", "--compile-bytecode", "tool==1.2", "other"]
    assert bare[1:] == ["-m", "pip", "install", "--quiet", "--no-deps", "c==1", "d"]
    assert programs.overrides == ['a ; python_version < "3"\nb ; python_version < "3"\n']
    said = capsys.readouterr().out.splitlines()
    assert said[2:4] == ["c==1, d, without dependencies", "it is mended"]
    environments.install(tmp_path / "f", of, mend=lambda path: "")
    assert "" not in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("wheels", "fails", "words"),
    [
        (["torch-2.13.0%2Bcpu-cp311-x.whl"], "", ["--find-links", "wheels", "torch==2.13.0+cpu"]),
        (["torch-2.13.0-cp311-x.whl"], "", ["--torch-backend", "cpu", "torch==2.13.0+cpu"]),
        (
            ["torch-2.13.0%2Bcpu-cp311-x.whl"],
            "download",
            ["--torch-backend", "cpu", "torch==2.13.0+cpu"],
        ),
    ],
)
def test_torch_is_that_of_the_persons_own_index_or_of_pytorch(
    tmp_path, programs, capsys, wheels, fails, words
):
    programs.wheels, programs.fails = wheels, fails
    environments.install(tmp_path / "e", spec(torch="2.13.0+cpu"))
    download, install = programs.ran[2:4]
    assert download[1:] == [
        *["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"],
        *["--dest", "wheels", "torch==2.13.0+cpu"],
    ]
    assert install[install.index("overrides.txt") + 1 :] == [*words, "tool==1.2", "other"]
    own = "torch 2.13.0+cpu: pip found it with your own configuration"
    other = "torch 2.13.0+cpu: pip does not find it, it is taken from PyTorch's CPU builds"
    assert capsys.readouterr().out.splitlines()[1] == (own if words[0] == "--find-links" else other)


@pytest.mark.parametrize(
    ("fails", "what"),
    [
        ("venv", "making the environment"),
        ("uv>=0.8", "installing uv"),
        ("other", "installing The tool"),
        ("--no-deps", "installing c"),
        ("-c", "importing The tool"),
    ],
)
def test_a_step_that_fails_is_named(tmp_path, programs, fails, what):
    programs.fails = fails
    with pytest.raises(InstallError) as error:
        environments.install(tmp_path / "e", spec(without_dependencies=["c"]))
    said = f"{what} failed: one two. What there is is made again by the next make tool."
    assert str(error.value) == said and not (tmp_path / "e" / "made.json").exists()


def test_a_step_that_fails_has_the_figures_of_what_is_installed(tmp_path, programs):
    programs.fails, programs.says = "venv", "No space left on device"
    with pytest.raises(InstallError, match="the disk is full; 0 GB are needed"):
        environments.install(tmp_path / "e", spec())


def test_this_machine_is_compared(tmp_path, programs):
    version, machine = sys.version_info[:2], platform.machine()
    of = spec(pythons=[version, version], machines=[machine])
    assert "tool 1.2.0" in environments.install(tmp_path / "new" / "e", of)


def test_programs_have_none_of_the_variables_of_another_environment(
    tmp_path, programs, monkeypatch
):
    foreign = ["PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"]
    for name in (
        *foreign,
        "DO_NOT_TRACK",
        "MINE",
        "PIP_INDEX_URL",
        "PIP_DISABLE_PIP_VERSION_CHECK",
    ):
        monkeypatch.setenv(name, "before")
    environments.install(tmp_path / "e", spec(variables={"MINE": "theirs"}))
    for env in programs.env:
        assert not set(foreign) & set(env)
        kept = [env[it] for it in ("DO_NOT_TRACK", "MINE", "PIP_INDEX_URL", "PATH")]
        assert kept == ["1", "theirs", "before", os.environ["PATH"]]
        assert env["PIP_DISABLE_PIP_VERSION_CHECK"] == "1"


def test_the_proof_imports_all_and_prints_versions(tmp_path):
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").write_text("__version__ = '5'\n")
    (tmp_path / "tool" / "all.py").write_text("print('all')\n")
    (tmp_path / "other.py").write_text("print('other')\n")
    argv = [sys.executable, "-c", environments._proof(spec(shows=["tool"]))]
    here = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, env=here, capture_output=True, text=True, check=True)
    assert done.stdout == 'all\nother\nkimi-nb {"tool": "5"}\n'


def test_what_was_there_is_removed_except_the_mark(tmp_path, programs, capsys):
    folder, outside = tmp_path / "e", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (folder / "bin").mkdir(parents=True)
    (folder / ".ours").touch()
    (folder / "old").touch()
    (folder / "link").symlink_to(outside)
    environments.install(folder, spec(), keep=".ours")
    assert {path.name for path in folder.iterdir()} == {".ours", "bin", "made.json"}
    assert (outside / "kept").exists()
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"{folder}: the installation was not completed; it is made again"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".ours").touch()
    environments.install(tmp_path / "new", spec(), keep=".ours")
    assert "made again" not in capsys.readouterr().out


def test_a_machine_that_does_not_suffice_is_refused_before_anything_is_run(tmp_path, programs):
    free = shutil.disk_usage(tmp_path).free / 1e9
    for wrong in ({"pythons": [(3, 0), (3, 1)]}, {"needs_gb": free + 50}, {"machines": ["none"]}):
        with pytest.raises(InstallError, match="The tool"):
            environments.install(tmp_path / "e", spec(**wrong))
    assert programs.ran == []


def test_what_the_system_refuses_is_a_reason(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environments, "_make", full)
    with pytest.raises(InstallError) as error:
        environments.install(tmp_path / "e", spec())
    said = "the disk is full; 0 GB are needed ([Errno 28] No space left on device)"
    assert str(error.value) == said
