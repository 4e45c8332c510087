"""Packages that are missing, or slow, in this process; and where the project's own files are."""

from __future__ import annotations

import json
import sys
import types

import pytest

from kimi_nb.core import extras, lean_imports, paths
from kimi_nb.core.errors import KimiError


@pytest.fixture
def missing(monkeypatch):
    """Let some modules not be found."""
    hidden: set[str] = set()
    find = extras.importlib.util.find_spec
    monkeypatch.setattr(
        extras.importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    return hidden


def lack(call, *words: str) -> str:
    with pytest.raises(KimiError) as told, call(*words):
        pytest.fail("it is run")
    return str(told.value)


def test_what_a_package_is_imported_as():
    names = ["pysocks", "pyyaml", "prometheus-client", "vllm-router", "numpy"]
    assert [*map(extras.module, names)] == [
        "socks", "yaml", "prometheus_client", "vllm_router", "numpy",
    ]  # fmt: skip


def test_a_command_says_what_it_lacks_before_it_runs(missing):
    missing |= {"uvicorn", "socks"}
    assert lack(extras.command, "rehearse") == (
        "rehearse needs pysocks, uvicorn: pip install 'kimi_nb[rehearse]'"
    )
    assert lack(extras.command, "up") == "up needs pysocks: pip install 'kimi_nb[deploy]'"
    # Of several extras the first; what several have is told once, and five of many.
    missing |= set(map(extras.module, extras.EXTRAS["notebook"])) - {"papermill"}
    told = lack(extras.command, "run")
    first = "ipykernel, ipython, ipywidgets, jupyter-client, nbconvert"
    assert told == f"run needs {first} and 3 more: pip install 'kimi_nb[notebook]'"
    missing.clear()
    missing |= {"ipykernel", "IPython", "ipywidgets", "jupyter_client", "nbconvert"}
    assert lack(extras.command, "run") == f"run needs {first}: pip install 'kimi_nb[notebook]'"
    missing.add("nbformat")
    told = lack(extras.command, "run")
    assert told == f"run needs {first} and 1 more: pip install 'kimi_nb[notebook]'"


def test_a_command_of_the_base_needs_no_extra(missing):
    missing |= {"uvicorn", "socks", "psutil"}
    ran = []
    with extras.command("plan"):
        ran.append("plan")
    assert ran == ["plan"]
    wanted = r"^plan needs pyyaml: pip install kimi_nb$"
    with pytest.raises(KimiError, match=wanted), extras.command("plan"):
        raise ModuleNotFoundError(name="yaml")


@pytest.mark.parametrize(
    ("name", "extra", "told"),
    [
        ("pandas.core", "", "x needs pandas: pip install 'kimi_nb[prove]'"),
        ("pandas", "notebook", "x needs pandas: pip install 'kimi_nb[notebook]'"),
        ("socks", "", "x needs pysocks: pip install 'kimi_nb[rehearse]'"),
        ("yaml.scanner", "prove", "x needs pyyaml: pip install kimi_nb"),
    ],
)
def test_a_module_that_is_missing_is_told_as_its_package(name, extra, told):
    with pytest.raises(KimiError) as seen, extras.imports("x", extra):
        raise ModuleNotFoundError(name=name)
    assert str(seen.value) == told


@pytest.mark.parametrize("name", ["none_of_ours", None, ""])
def test_a_module_of_no_package_of_ours_is_not_told_otherwise(name):
    error = ModuleNotFoundError("why", name=name)
    with pytest.raises(ModuleNotFoundError) as seen, extras.imports("x"):
        raise error
    assert seen.value is error


def test_slow_modules_are_hidden_while_others_are_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "rfc3987_syntax", raising=False)
    seen = []

    def found(name):
        seen.append((name, sys.modules.get("rfc3987_syntax", "not hidden")))
        return types.ModuleType(name)

    monkeypatch.setattr(lean_imports.importlib, "import_module", found)
    assert [one.__name__ for one in lean_imports.quickly("a", "b")] == ["a", "b"]
    assert seen == [("a", None), ("b", None)] and "rfc3987_syntax" not in sys.modules
    there = types.ModuleType("rfc3987_syntax")
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", there)
    assert [one.__name__ for one in lean_imports.quickly("c")] == ["c"]
    assert seen[2:] == [("c", there)] and sys.modules["rfc3987_syntax"] is there
    assert lean_imports.quickly() == ()


def test_an_import_that_fails_hides_nothing_any_more(monkeypatch):
    monkeypatch.delitem(sys.modules, "rfc3987_syntax", raising=False)
    with pytest.raises(ModuleNotFoundError):
        lean_imports.quickly("json", "none_of_ours")
    assert "rfc3987_syntax" not in sys.modules and lean_imports.quickly("json") == (json,)


def test_pydantic_finds_no_plugins_unless_it_has_looked(monkeypatch):
    monkeypatch.delitem(sys.modules, "pydantic.plugin._loader", raising=False)
    lean_imports.without_plugins()
    none = sys.modules["pydantic.plugin._loader"]
    assert none.__name__ == "pydantic.plugin._loader" and none.get_plugins() == ()
    lean_imports.without_plugins()
    assert sys.modules["pydantic.plugin._loader"] is none


def test_the_files_of_a_checkout_and_of_a_wheel(tmp_path, monkeypatch):
    assert (paths.root() / "params" / "models").is_dir() and paths.DATA.is_dir()
    monkeypatch.setattr(paths, "PACKAGE", tmp_path / "kimi_nb")
    assert paths.root() == tmp_path
    (tmp_path / "kimi_nb").mkdir()
    (tmp_path / "kimi_nb" / "tree").write_text("")
    assert paths.root() == tmp_path
    (tmp_path / "kimi_nb" / "tree").unlink()
    (tmp_path / "kimi_nb" / "tree").mkdir()
    assert paths.root() == tmp_path / "kimi_nb" / "tree"
