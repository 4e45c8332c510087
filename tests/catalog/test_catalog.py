"""The catalog: its rules, the difference of two versions, the dump of an installed vLLM."""

from __future__ import annotations

import gzip
import json
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kimi_nb import catalog
from kimi_nb.catalog import differences, setting_values
from kimi_nb.catalog.differences import Change, difference
from kimi_nb.core import paths
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.service import installed_engine

FILES = sorted((paths.DATA / "catalog").glob("*.json"))
FLAG = {
    "first",
    "last",
    "takes_value",
    "type",
    "choices",
    "default",
    "aliases",
    "negations",
    "nargs",
    "deprecated",
    "required",
    *setting_values.BOUNDS,
}


def fault(call, *args, **named) -> str:
    """The message of the error that a call ends in."""
    with pytest.raises(KimiError) as caught:
        call(*args, **named)
    return str(caught.value)


# The files -----------------------------------------------------------------------------------


def test_the_files_are_small():
    assert [path.name for path in FILES] == ["vllm-ascend.json", "vllm.json"]
    assert sum(len(gzip.compress(path.read_bytes())) for path in FILES) < 100_000


def runs_of(package):
    """(section, name, runs) of everything in a table."""
    for section, named in catalog.tables(package).items():
        if isinstance(named, list):
            continue
        for name, value in named.items():
            inner = value.items() if isinstance(value, dict) else [(name, value)]
            yield from ((section, key, runs) for key, runs in inner)


@pytest.mark.parametrize("package", differences.PACKAGES)
def test_runs_are_in_order_and_apart(package):
    listed = catalog.versions(package)
    for section, name, runs in runs_of(package):
        assert runs, (section, name)
        ends = [
            listed.index(run[end].removeprefix("v")) for run in runs for end in ("first", "last")
        ]
        assert ends == sorted(ends), (section, name)
        for (_, last), (first, _) in zip(
            pairs := list(zip(ends[::2], ends[1::2], strict=True)), pairs[1:], strict=False
        ):
            assert last < first, (section, name)


def test_flags_keep_the_rules_of_a_parser():
    for section, name, runs in runs_of("vllm"):
        for run in runs if section in differences.COMMANDS else ():
            at = (section, name, run["first"])
            assert name.startswith("--") and set(run) <= FLAG, at
            switch = not run["takes_value"]
            assert not (switch and {"type", "choices", "nargs"} & set(run)), at
            assert switch or "negations" not in run, at
            assert set(run.get("negations", ())) <= set(run.get("aliases", ())), at
            assert name not in run.get("aliases", ()), at
            assert run.get("nargs", "*") in ("*", "+", "?"), at
            if "choices" in run and "default" in run:
                assert str(run["default"]) in map(str, run["choices"]), at


@pytest.mark.parametrize("version", catalog.versions("vllm"))
def test_a_name_means_one_flag(version):
    """No two flags of a command share a name at one version."""
    for where in differences.COMMANDS.values():
        taken = [
            name
            for (kind, place, flag), run in differences.at(catalog.engine("vllm", version)).items()
            if (kind, place) == ("flag", where)
            for name in (f"--{flag}", *run.get("aliases", ()))
        ]
        assert len(taken) == len(set(taken))


# Difference ----------------------------------------------------------------------------------


def test_a_step_of_vllm():
    changes = difference("vllm", "0.17.0", "0.18.0")
    serve = {one.name: one for one in changes if one.where == "serve"}
    assert serve["swap-space"].what == "removed"
    assert "kv-offloading-size" in serve["swap-space"].details
    assert serve["enable-ep-weight-filter"] == Change(
        "flag", "serve", "enable-ep-weight-filter", "added", "switch; default false"
    )
    assert serve["kv-cache-dtype"].details == "choices + float16"
    assert serve["block-size"].details == "no choices any more, before 1, 8, 16, 32, 64, 128, 256"
    assert serve["disable-cascade-attn"].details == "default false -> true"
    assert {one.kind for one in changes} == {"flag", "key", "variable"}
    assert {one.where for one in changes if one.kind == "flag"} <= set(
        differences.COMMANDS.values()
    )
    assert "request-id-prefix" not in {one.name for one in changes}


def test_the_way_back_is_the_opposite():
    there = difference("vllm", "v0.17.0", "v0.18.0")
    back = difference("vllm", "0.18.0", "0.17.0")
    other = {"added": "removed", "removed": "added", "changed": "changed"}
    assert [(one.where, one.name, other[one.what]) for one in there] == [
        (one.where, one.name, one.what) for one in back
    ]


def test_the_order_is_by_place_and_name():
    changes = difference("vllm", "0.11.2", "0.33.0")
    assert [(one.where, one.name) for one in changes] == sorted(
        (one.where, one.name) for one in changes
    )


@pytest.mark.parametrize("package", differences.PACKAGES)
def test_the_same_version_twice(package):
    for version in catalog.versions(package):
        assert difference(package, version, f"v{version}") == []
        assert differences.notes(package, version, version) == []
    assert differences.table([]).title == "No difference"


def test_a_version_between_two_belongs_to_the_earlier():
    assert difference("vllm", "0.18.0", "0.19.0") == []
    assert difference("vllm", "0.19.0", "0.19.1") == difference("vllm", "0.18.0", "0.19.1") != []
    assert differences.notes("vllm", "0.18.0", "0.19.0") == [
        "vllm 0.19.0 is not listed: 0.18.0 speaks for it."
    ]


def test_words_for_a_change():
    found = {(one.where, one.name): one.details for one in difference("vllm", "0.30.0", "0.33.0")}
    assert found["serve", "allowed-origins"] == 'default ["*"] -> []'
    assert "deprecated" in found["serve", "log-config-file"]
    assert found["serve", "enable-eplb"] == "names + --disable-eplb"
    assert found["serve", "watchdog-config"] == "json; default WatchdogConfig()"
    assert found["WatchdogConfig", "timeout"] == ""
    gone = {one.name: one for one in difference("vllm", "0.16.0", "0.33.0") if one.where == "serve"}
    assert gone["disable-log-requests"].details == "now a name of --enable-log-requests"
    back = {one.name: one for one in difference("vllm", "0.33.0", "0.16.0") if one.where == "serve"}
    assert back["disable-log-requests"].details.startswith("was a name of --enable-log-requests")


def test_a_step_of_vllm_ascend():
    found = {
        (one.where, one.name): one for one in difference("vllm-ascend", "v0.22.1rc1", "v0.25.1rc1")
    }
    key = found["additional_config", "enable_balance_scheduling"]
    assert key.details == "moved to scheduler_config.enable_balance_scheduling"
    variable = found["env", "VLLM_ASCEND_BALANCE_SCHEDULING"]
    assert (variable.what, variable.kind) == ("changed", "variable")
    assert variable.details == (
        "moved to additional_config scheduler_config.enable_balance_scheduling"
    )
    assert found["env", "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE"].what == "removed"
    assert found["BatchJobSchedConfig", "enabled"].what == "added"
    notes = differences.notes("vllm-ascend", "v0.22.1rc1", "v0.25.1rc1")
    assert len(notes) == 1 and "from 0.22.1 to 0.25.1" in notes[0]


def test_variables_that_become_keys():
    found = {
        (one.where, one.name): one for one in difference("vllm-ascend", "0.19.1rc1", "0.20.2rc1")
    }
    assert (
        found["env", "VLLM_ASCEND_ENABLE_MLAPO"].details
        == "moved to additional_config enable_mlapo"
    )
    assert (
        found["additional_config", "enable_mlapo"].details == "in place of VLLM_ASCEND_ENABLE_MLAPO"
    )
    assert found["env", "MOONCAKE_MASTER"].what == "added"  # read elsewhere than in envs.py


def test_who_asks_for_what_there_is_not():
    assert "'vllm-gpu'" in fault(difference, "vllm-gpu", "0.17.0", "0.18.0")
    assert catalog.versions("vllm")[-1] in fault(difference, "vllm", "0.17.0", "0.99.0")
    assert "vllm version 'new'" in fault(difference, "vllm", "new", "0.18.0")
    assert "did you mean '0.22.1rc1'" in fault(difference, "vllm-ascend", "0.22.1", "0.18.0")
    with pytest.raises(ParameterError):
        differences.notes("vllm", "0.17.0", "")


def test_the_table():
    changes = difference("vllm", "0.17.0", "0.18.0")
    table = differences.table(changes)
    assert len(table) == len(changes) and "added" in table.title
    text = str(table)
    assert "--swap-space" in text and "bench throughput" in text
    said = {str(one) for one in changes}
    assert "serve: --enable-ep-weight-filter added, switch; default false" in said
    assert "CacheConfig: cpu_offload_gb removed" in said


# Dump ----------------------------------------------------------------------------------------

# A vllm of the shape that the script reads. It refuses what a real one would trip over: an
# accelerator that is looked for, a plugin, a variable of the person, an argv that is not its own.
FAKE = {
    "__init__.py": """
        import os, sys
        print("noise on stdout")
        assert os.environ["VLLM_PLUGINS"] == "" == os.environ["CUDA_VISIBLE_DEVICES"]
        assert os.environ["ASCEND_RT_VISIBLE_DEVICES"] == ""
        assert "VLLM_USE_MODELSCOPE" not in os.environ and os.environ["HF_HUB_OFFLINE"] == "1"
        assert sys.argv[1:] == [] and "kimi_nb" not in sys.modules
        __version__ = "0.20.2+cpu"
    """,
    "platforms/__init__.py": """
        _current_platform = None
        def __getattr__(name):
            if name == "current_platform":
                assert _current_platform is not None, "looked for an accelerator"
                return _current_platform
            raise AttributeError(name)
    """,
    "platforms/cpu.py": """
        class CpuPlatform:
            @classmethod
            def import_kernels(cls):
                raise AttributeError("this torch has no such thing")
    """,
    "envs.py": """
        environment_variables = {"VLLM_PORT": lambda: None, "VLLM_HOST_IP": lambda: ""}
    """,
    "config/__init__.py": """
        from vllm.config.compilation import CompilationConfig, CompilationMode
        from vllm.config.parallel import EPLBConfig
    """,
    "config/parallel.py": """
        from pathlib import Path
        from typing import Annotated, Literal
        from pydantic import ConfigDict, Field, SkipValidation, field_validator
        from pydantic.dataclasses import dataclass
        from vllm.config.compilation import CompilationMode
        @dataclass(config=ConfigDict(extra="forbid"))
        class EPLBConfig:
            seed: int = Field(default=0, ge=0)
            share: float = Field(default=0.9, gt=0, le=1)
            policy: Literal["default"] = "default"
            role: Literal["a", "b"] | None = None
            sizes: list[int] | None = None
            mode: CompilationMode = CompilationMode.NONE
            least: Annotated[int, Field(ge=1)] = 1
            late: int = None
            own: SkipValidation[int] = 1
            odd: int = 1
            folder: Path | None = None
            made: int = Field(default=0, init=False)
            @field_validator("mode", mode="before")
            def named(cls, value): return value
            @field_validator("odd", mode="before")
            def odd_only(cls, value): return value
            @field_validator("late", mode="wrap")
            def skip_none(cls, value, handler): return value
    """,
    "config/compilation.py": """
        import dataclasses, enum
        class CompilationMode(enum.IntEnum):
            NONE = 0
            VLLM_COMPILE = 3
        class Inner(enum.Enum):
            A = "a"
        @dataclasses.dataclass
        class CompilationConfig:
            mode: int = 0
            _private: int = 0
            def method(self): ...
    """,
    "utils/argparse_utils.py": """
        import argparse
        class FlexibleArgumentParser(argparse.ArgumentParser):
            _deprecated = set()
            def add_argument(self, *args, deprecated=False, hidden=(), **named):
                action = super().add_argument(*args, **named)
                if deprecated:
                    self._deprecated.add(action)
                for name in hidden:
                    self._option_string_actions[name] = action
                return action
    """,
    "arg_utils.py": """
        import argparse, json
        from vllm.config import CompilationConfig, CompilationMode
        def parse_type(return_type):
            def _parse_type(text):
                return return_type(text)
            return _parse_type
        def optional_type(return_type):
            def _optional_type(text):
                return None if text == "None" else parse_type(return_type)(text)
            return _optional_type
        def dataclass_type(cls):
            def parse_dataclass(text, cls=cls):
                return cls(**json.loads(text))
            return parse_dataclass
        def human_readable_int(text):
            return int(text)
        def add_engine_args(parser):
            add = parser.add_argument
            add("--seed", type=int, default=0)
            add("--swap", type=float, deprecated=True)
            add("--dtype", type=str, choices=["auto", "half"], default="auto")
            add("--subset", choices={"b", "a"})
            add("--max-len", "-m", type=optional_type(human_readable_int))
            add("--overrides", type=parse_type(json.loads), default={})
            add("--maybe", type=optional_type(json.loads))
            add("--maybe-overrides", type=optional_type(parse_type(json.loads)))
            add("--compilation-config", "-cc", type=dataclass_type(CompilationConfig),
                default=CompilationConfig())
            add("--maybe-config", type=optional_type(dataclass_type(CompilationConfig)))
            add("--mode", type=str, default=CompilationMode.VLLM_COMPILE)
            add("--pair", type=int, nargs=2, default=(1, 2))
            add("--many", type=str, nargs="+")
            add("--enable-x", "-x", action=argparse.BooleanOptionalAction, default=False,
                hidden=["--disable-x"])
            add("--old", action="store_true", help="DEPRECATED: use --new")
            return parser
    """,
    "entrypoints/cli/serve.py": """
        from vllm.arg_utils import add_engine_args
        from vllm.platforms import current_platform
        from vllm.utils.argparse_utils import FlexibleArgumentParser
        current_platform.import_kernels()
        class ServeSubcommand:
            def subparser_init(self, subparsers):
                parser = subparsers.add_parser("serve")
                parser.add_argument("model_tag", nargs="?")
                parser.add_argument("--grpc", action="store_true", default=False)
                return add_engine_args(parser)
        def cmd_init():
            return [ServeSubcommand()]
    """,
    "benchmarks/serve.py": """
        import uuid
        def add_cli_args(parser):
            parser.add_argument("--model", required=True)
            parser.add_argument("--request-id-prefix", default=f"bench-{uuid.uuid4().hex[:8]}-")
    """,
    "benchmarks/latency.py": "from vllm.arg_utils import add_engine_args as add_cli_args",
    "benchmarks/throughput.py": "from vllm.arg_utils import add_engine_args as add_cli_args",
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a stand-in for vllm where the interpreter of the tests finds it."""

    def write(**changed: str) -> str:
        for name, text in {**FAKE, **changed}.items():
            path = tmp_path / "vllm" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(textwrap.dedent(text))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("VLLM_USE_MODELSCOPE", "1")
        monkeypatch.setenv("VLLM_PLUGINS", "ascend")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        return sys.executable

    return write


def test_dump(fake):
    """What a version takes, each field with its kinds, choices and limits where those are known."""
    dumped = installed_engine.dump(fake())
    assert list(dumped) == ["version", *differences.COMMANDS, "configs", "env"]
    assert dumped["version"] == "0.20.2"
    run = {"first": "0.20.2", "last": "0.20.2"}

    def accepts(**row):
        return [{**run, "accepts": row}]

    assert dumped["env"] == {"VLLM_HOST_IP": [run], "VLLM_PORT": [run]}
    assert dumped["configs"] == {
        "CompilationConfig": {"_private": [run], "mode": [run]},
        "EPLBConfig": {
            "*": [run],
            "seed": accepts(kinds=["int"], ge=0),
            "share": accepts(kinds=["float"], gt=0, le=1),
            "policy": accepts(choices=["default"]),
            "role": accepts(choices=["a", "b"], kinds=["null"]),
            "sizes": accepts(kinds=["list", "null"], items={"kinds": ["int"]}),
            "mode": accepts(choices=["NONE", "VLLM_COMPILE", 0, 3], caseless=True),
            "least": accepts(kinds=["int"], ge=1),
            "late": accepts(kinds=["int", "null"]),
            "folder": accepts(kinds=["str", "null"]),
            "made": accepts(kinds=[]),
            "own": [run],
            "odd": [run],
        },
        "enum:CompilationMode": {"NONE": [run], "VLLM_COMPILE": [run]},
    }
    value, switch = {**run, "takes_value": True}, {**run, "takes_value": False}
    engine = {
        "--help": {**switch, "aliases": ["-h"]},
        "--seed": {**value, "type": "int", "default": 0, "ge": 0},
        "--swap": {**value, "type": "float", "deprecated": True},
        "--dtype": {**value, "type": "str", "choices": ["auto", "half"], "default": "auto"},
        "--subset": {**value, "choices": ["a", "b"]},
        "--max-len": {
            **value,
            "aliases": ["-m"],
            "type": "optional_type.<locals>._optional_type(human_readable_int)",
        },
        "--overrides": {**value, "type": "json", "default": {}},
        "--maybe": {**value, "type": "optional_type.<locals>._optional_type(loads)"},
        "--maybe-overrides": {**value, "type": "json"},
        "--compilation-config": {
            **value,
            "aliases": ["-cc"],
            "type": "json",
            "default": {"__class__": "CompilationConfig"},
        },
        "--maybe-config": {**value, "type": "json"},
        "--mode": {**value, "type": "str", "default": 3},
        "--pair": {**value, "type": "int", "default": [1, 2]},
        "--many": {**value, "type": "str", "nargs": "+"},
        "--enable-x": {
            **switch,
            "default": False,
            "aliases": ["--no-enable-x", "-x", "--disable-x"],
            "negations": ["--no-enable-x", "--disable-x"],
        },
        "--old": {**switch, "default": False, "deprecated": True},
    }
    found = {name: runs[0] for name, runs in dumped["bench_latency"].items()}
    assert found == engine
    assert dumped["bench_throughput"] == dumped["bench_latency"]
    assert {name: runs[0] for name, runs in dumped["serve"].items()} == {
        **engine,
        "--grpc": {**switch, "default": False},
    }
    assert dumped["bench_serve"]["--model"] == [{**value, "required": True}]


def shipped(version: str) -> dict:
    """The row of the catalog, as if it had been dumped."""

    def only(runs):
        index = catalog.versions("vllm").index
        return [
            {**run, "first": version, "last": version}
            for run in runs
            if index(run["first"]) <= index(version) <= index(run["last"])
        ]

    table = catalog.tables("vllm")
    out = {"version": version, "configs": {}}
    for section in (*differences.COMMANDS, "env"):
        out[section] = {name: only(runs) for name, runs in table[section].items() if only(runs)}
    for name, fields in table["configs"].items():
        out["configs"][name] = {key: only(runs) for key, runs in fields.items() if only(runs)}
    return out


@pytest.mark.parametrize(
    "damage",
    [
        {"version": -1},
        {"serve": []},
        {"serve": {"port": 8000}},
        {"configs": {"ModelConfig": []}},
        {"configs": {"ModelConfig": {"dtype": "str"}}},
        {"env": [1]},
        {"env": None},
    ],
)
def test_what_does_not_tell_a_catalog(damage, monkeypatch):
    told = {
        "version": "0.20.2",
        **{key: {} for key in (*differences.COMMANDS, "configs")},
        "env": [],
    }
    outputs = iter([json.dumps(told), json.dumps(told | damage), "7"])
    monkeypatch.setattr(installed_engine, "_run", lambda argv: (0, next(outputs), ""))
    assert installed_engine.dump()["version"] == "0.20.2"
    for _ in range(2):
        with pytest.raises(ParameterError, match="did not tell what its vLLM knows"):
            installed_engine.dump()


def test_compare():
    dumped = shipped("0.19.1")
    assert installed_engine.compare(dumped) == []
    dumped["bench_serve"]["--request-id-prefix"][0]["default"] = "bench-01234567-"
    assert installed_engine.compare(dumped) == []
    dumped["serve"]["--mine"] = [{"takes_value": False, "first": "0.19.1", "last": "0.19.1"}]
    del dumped["env"]["VLLM_PORT"]
    dumped["serve"]["--port"][0]["default"] = 9000
    assert installed_engine.compare(dumped) == [
        "env: VLLM_PORT is in the catalog and not installed",
        "serve: --mine is installed and not in the catalog",
        "serve: --port: default 8000 in the catalog, 9000 installed",
    ]


def test_compare_with_the_row_that_speaks_for_it(fake):
    dumped = shipped("0.19.1")
    assert (
        installed_engine.compare(json.loads(json.dumps(dumped).replace("0.19.1", "0.19.2"))) == []
    )
    assert (
        installed_engine.compare(json.loads(json.dumps(dumped).replace("0.19.1", "0.20.1.dev3")))
        == []
    )
    assert "serve: --model is in the catalog and not installed" in installed_engine.compare(
        installed_engine.dump(fake())
    )
    assert "'dev'" in fault(installed_engine.compare, {"version": "dev"})


@pytest.mark.parametrize("folder", ["", "vllm"])
def test_no_vllm(folder, tmp_path, monkeypatch):
    """Nor is a mere folder of that name one."""
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    text = fault(installed_engine.dump, sys.executable)
    assert sys.executable in text and "not installed" in text and "--python PATH" in text


def test_no_interpreter(tmp_path):
    assert "--python '/none/python'" in fault(installed_engine.dump, "/none/python")
    assert "exit code 0" in fault(installed_engine.dump, "/bin/true")
    script = tmp_path / "python"
    script.write_text("no program")
    script.chmod(0o755)
    assert str(script) in fault(installed_engine.dump, str(script))
    assert "--python" in fault(installed_engine.dump, "")


def test_a_vllm_that_does_not_load(fake):
    python = fake(**{"envs.py": "raise ImportError('libcudart.so.13: not found')"})
    text = fault(installed_engine.dump, python)
    assert "libcudart.so.13: not found" in text and python in text and "--python PATH" in text
    assert len(text.splitlines()) < 6


def test_a_vllm_that_hangs_is_ended(fake, tmp_path, monkeypatch):
    note = tmp_path / "pid"
    python = fake(
        **{
            "envs.py": f"""
        import pathlib, subprocess, time
        child = subprocess.Popen(["sleep", "60"])
        pathlib.Path({str(note)!r}).write_text(str(child.pid))
        time.sleep(60)
    """
        }
    )
    monkeypatch.setattr(installed_engine, "SECONDS", 3)
    assert "after 3 s" in fault(installed_engine.dump, python)
    state = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(50):
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail("what vLLM started still runs")
