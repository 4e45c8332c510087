"""What GitHub reads: the workflows, the forms of issues, the updates of pins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import kimi_nb
from kimi_nb.core import extras

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
ON = True  # YAML reads the key `on` as true


def read(name: str) -> Any:
    return yaml.safe_load((GITHUB / name).read_text())


def steps(job: dict[str, Any]) -> list[str]:
    return [step.get("run") or step["uses"] for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_few_rights_and_an_end(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 90
    assert "secrets." not in path.read_text()


def test_ci_runs_what_everybody_can_run():
    workflow = read("workflows/ci.yml")
    assert set(workflow[ON]) == {"push", "pull_request"}
    whole, pythons = workflow["jobs"].values()
    assert steps(whole)[-1].split()[-1] == ".ci/run"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert steps(pythons)[-1] == "make test"


def test_ci_has_every_python_and_both_architectures_once():
    whole, pythons = read("workflows/ci.yml")["jobs"].values()
    matrix = pythons["strategy"]["matrix"]
    first = {"machine": whole["runs-on"], "python": whole["steps"][1]["with"]["python-version"]}
    assert matrix["exclude"] == [first]
    assert matrix["machine"] == ["ubuntu-24.04", "ubuntu-24.04-arm"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert oldest == f">={matrix['python'][0]}"
    assert "CPython 3.11 to " + matrix["python"][-1] in (ROOT / "docs/platforms.md").read_text()


def test_a_release_is_published_by_its_tag_alone():
    workflow = read("workflows/release.yml")
    assert workflow[ON] == {"push": {"tags": ["v*"]}}
    build, publish, page = workflow["jobs"].values()
    assert publish["needs"] == "build" and page["needs"] == "publish"
    assert publish["permissions"] == {"contents": "read", "id-token": "write"}
    assert page["permissions"] == {"contents": "write"} and "permissions" not in build


@pytest.mark.parametrize(
    "tag, changelog, wanted",
    [
        ("v{}", "## [{}] - 2026-12-01\n", ""),
        ("v9.9.9", "## [{}] - 2026-12-01\n", "The tag is v9.9.9, and kimi_nb.__version__ is {}."),
        ("v{}", "## [Unreleased]\n", "CHANGELOG.md has no section [{}] with a date."),
    ],
)
def test_a_tag_is_the_version(tag, changelog, wanted, tmp_path):
    """The step of the workflow itself, run here."""
    step = read("workflows/release.yml")["jobs"]["build"]["steps"][2]
    (tmp_path / "CHANGELOG.md").write_text(changelog.format(kimi_nb.__version__))
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "GITHUB_REF_NAME": tag.format(kimi_nb.__version__),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == bool(wanted)
    assert done.stderr.strip() == wanted.format(kimi_nb.__version__)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_github_takes(path):
    form = yaml.safe_load(path.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    labels = [field["attributes"]["label"] for field in fields]
    assert len(set(names)) == len(names) and len(set(labels)) == len(labels)
    assert "kimi-nb --version" in labels
    for field in fields:
        assert field["type"] in ("input", "textarea")
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert set(field["attributes"]) <= {"label", "description", "placeholder", "render"}
        assert field["type"] == "textarea" or "render" not in field["attributes"]


def test_there_is_a_form_for_each_kind_of_report():
    assert [path.stem for path in FORMS] == ["bug", "hardware_report", "wrong_recipe"]


def test_the_action_installs_the_versions_that_are_tested():
    """What the package alone needs, and what builds it; the rest of constraints.txt it does not."""
    pins = re.compile(r"^([a-z][\w.-]*)==(\S+)(.*?)(?=^[a-z]|\Z)", re.MULTILINE | re.DOTALL)
    mine, tested = (
        {
            name: (version, set(re.findall("sha256:[0-9a-f]{64}", rest)))
            for name, version, rest in found
        }
        for found in (
            pins.findall((ROOT / name).read_text())
            for name in (".github/tools/check.txt", "constraints.txt")
        )
    )
    assert {*extras.BASE} <= set(mine)
    for name, pin in mine.items():
        assert pin[1] and pin == tested[name], name


def test_actions_are_pinned_by_commit():
    """A tag can be moved by whoever has the action's repository."""
    for path in (*WORKFLOWS, ROOT / "action.yml"):
        for used in re.findall(r"uses: *(.*)", path.read_text()):
            assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}  # v[\d.]+", used), used


def test_what_a_workflow_installs_has_its_hashes():
    for path in WORKFLOWS:
        lines = path.read_text().splitlines()
        for line in (line for line in lines if "pip install" in line):
            assert "--require-hashes -r " in line or "--no-deps dist/" in line, line


def test_every_list_that_is_installed_has_its_hashes():
    others = ("Makefile", "binder/Dockerfile", ".ci/run", "action.yml")
    for path in (*WORKFLOWS, *(ROOT / name for name in others)):
        for line in re.findall(r".*pip install.* -r .*", path.read_text()):
            assert "--require-hashes -r " in line, f"{path.name}: {line.strip()}"
    text = (ROOT / "tests/deploy/clients.txt").read_text()
    pins = re.findall(r"^[a-z].*", text, re.MULTILINE)
    assert pins and all(re.fullmatch(r"\S+==\S+ .*\\", one) for one in pins), pins
    assert "://" not in text and text.count("--hash=sha256:") >= len(pins)


def test_known_faults_of_dependencies_are_looked_for_and_a_release_says_what_it_holds():
    texts = {path.stem: path.read_text() for path in WORKFLOWS}
    assert "pip-audit --require-hashes --disable-pip -r constraints.txt" in texts["audit"]
    assert "schedule:" in texts["audit"]
    made = texts["release"].index("cyclonedx-py environment")
    assert made < texts["release"].index("files/sbom/*")


def test_lists_with_hashes_are_installed_as_they_stand():
    """Asked to resolve, pip before 23.3 looks for the newest release of what an extra names, and
    refuses it for its hash: an installation would fail on the day of somebody's release."""
    seen = 0
    for path in (
        *WORKFLOWS,
        *(ROOT / one for one in ("Makefile", "binder/Dockerfile", "action.yml")),
    ):
        for line in re.findall(r".*pip install.*--require-hashes.*", path.read_text()):
            assert "--no-deps" in line, f"{path.name}: {line.strip()}"
            seen += 1
    assert seen >= 10
    for path in (GITHUB / "tools").glob("*.txt"):
        text = path.read_text()
        assert text.count("==") and "://" not in text
        assert len(re.findall(r"^[a-z]\S*==.* \\\n    --hash=sha256:", text, re.MULTILINE)) == len(
            re.findall(r"^[a-z]", text, re.MULTILINE)
        )


def test_updates_are_asked_for_actions_and_pins():
    found = read("dependabot.yml")
    assert found["version"] == 2
    assert [one["package-ecosystem"] for one in found["updates"]] == ["github-actions", "pip"]


# What other repositories use ---------------------------------------------------------------------


def checked(words: str, folder: Path, **env: str) -> subprocess.CompletedProcess:
    """A command line of ours, in a folder of somebody else."""
    script = "vllm serve m --nope\n"
    (folder / "run.sh").write_text(script)
    (folder / "two words.yaml").write_text("a: 1\n")
    return subprocess.run(
        ["bash", "-e", "-c", words],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_hook_checks_what_it_is_given(tmp_path):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["language"]) == ("kimi-nb-check", "python")
    assert hook["require_serial"] is True
    assert set(hook["types_or"]) == {"shell", "yaml", "markdown", "dockerfile"}
    done = checked(f"{hook['entry']} --engine-version 0.19.1 run.sh 'two words.yaml'", tmp_path)
    assert done.returncode == 1 and "run.sh:1: error" in done.stdout, done.stderr


def test_the_action_annotates_what_it_is_given(tmp_path):
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    setup, install, check = action["runs"]["steps"]
    assert setup["uses"].startswith("actions/setup-python@")
    *_, last = install["run"].splitlines()
    assert last.endswith('--no-deps --no-build-isolation "$GITHUB_ACTION_PATH"')
    assert "inputs." not in check["run"]  # an input is no part of a script
    done = checked(check["run"], tmp_path, FILES=".", OPTIONS="--engine-version 0.19.1")
    assert done.returncode == 1, done.stderr
    assert "::error file=run.sh,line=1,title=engine/flag-unknown::" in done.stdout
    assert check["env"] == {
        "FILES": "${{ inputs.files }}",
        "OPTIONS": "${{ inputs.options }}",
    }


def test_the_page_shows_both():
    page = (ROOT / "docs/check.md").read_text()
    assert "id: kimi-nb-check" in page and ".pre-commit-hooks.yaml" in page
    assert "action.yml" in page and "uses: OWNER/kimi_nb@" in page
