"""One list of dependencies, told three times: pyproject, conda, exact versions."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from habits import licences

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
# An extra can take in others, by the project's own name.
ASKED = [one for one in map(Requirement, LINES) if one.name != "kimi_nb"]
WANTED = {one.name: str(one.specifier) for one in ASKED}


def conda() -> dict[str, tuple[str, str]]:
    """name: (versions, reason) of environment.yml."""
    rows = re.findall(
        r"^ +- ([a-z0-9_-]+)([^\s:]*)(?: +# (.*))?$",
        (ROOT / "environment.yml").read_text(),
        re.MULTILINE,
    )
    return {name: (versions, reason) for name, versions, reason in rows if name != "conda-forge"}


def test_conda_has_the_same_names_and_versions():
    there = {name: versions for name, (versions, _) in conda().items()}
    assert there.pop("python") == PROJECT["requires-python"]
    there.pop("pip")
    assert there == WANTED


def test_every_extra_asks_for_the_same_versions():
    assert {(one.name, str(one.specifier)) for one in ASKED} == set(WANTED.items())


def test_every_dependency_has_a_reason():
    assert all(len(reason) > 10 for name, (_, reason) in conda().items() if name != "python")


def test_constraints_are_exact_and_fit():
    """Each pin is a version with the hashes of its files; no address stands there."""
    text = (ROOT / "constraints.txt").read_text()
    pin = r"[a-z0-9-]+==[A-Za-z0-9.+!]+(?: ; [^\\\n]+)?"
    assert re.fullmatch(rf"(?:{pin}(?: \\\n    --hash=sha256:[0-9a-f]{{64}})+\n)+", text)
    exact = {one.name: str(one.specifier).removeprefix("==") for one in licences.pins()}
    assert len(exact) == text.count("==") - len(re.findall("; .*==", text))
    for name, versions in WANTED.items():
        assert SpecifierSet(versions).contains(exact[name.replace("_", "-")]), name


def test_every_licence_fits():
    for licence, packages in licences.by_licence().items():
        assert licences.names(licence.replace("/", " ")) <= licences.ALLOWED, (licence, packages)


def test_nothing_of_a_machine_or_a_registry_is_committed():
    """No registry's host, no home of a developer, in any file of the project."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    words = ["py" + "pi.org", "python" + "hosted", "registry." + "npmjs", "/wo" + "rk/"]
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_text(errors="replace")
            assert path.stat().st_size < 1 << 20, name
            assert not [word for word in words if word in text], name


def test_ci_runs_the_readme_s_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert "\nmake test " in (ROOT / "README.md").read_text()
