"""The files of Binder and of the dev container, as far as they can be read without an image."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from habits import licences

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "binder" / "Dockerfile").read_text()


def test_the_dev_container_names_what_is_there():
    found = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    build = found["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ROOT / "binder/Dockerfile"
    assert f" AS {build['target']}\n" in DOCKERFILE
    assert f"ARG NB_USER={found['remoteUser']}\n" in DOCKERFILE
    assert set(found) <= {
        "name",
        "build",
        "remoteUser",
        "postCreateCommand",
        "forwardPorts",
        "portsAttributes",
        "customizations",
    }


def test_the_image_takes_only_what_is_pinned():
    installs = re.findall(r"pip install (.*)", DOCKERFILE)
    assert len(installs) == 3
    for options in installs:
        assert "--require-hashes -r" in options or "--no-deps --no-build-isolation -e ." in options
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == [
        "docker.io/library/debian:bookworm-slim",
        "tools",
    ]


def test_binder_s_own_packages_fit_those_of_the_notebooks():
    """Binder starts `jupyter notebook`; all that it needs is pinned already."""
    text = (ROOT / "binder" / "requirements.txt").read_text()
    (version,) = re.findall(r"^notebook==(\S+) \\$", text, re.MULTILINE)
    lab = next(str(one.specifier) for one in licences.pins() if one.name == "jupyterlab")
    # notebook 7.N is made for jupyterlab 4.N.
    assert version.split(".")[0] == "7" and lab.startswith(f"==4.{version.split('.')[1]}.")


def test_no_environment_and_no_result_goes_into_an_image():
    left_out = (ROOT / ".dockerignore").read_text().split("\n")
    assert {".venv", ".website", "runs", "workspace", "build"} <= set(left_out)


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck")
def test_the_commands_of_the_image_are_sound():
    joined = DOCKERFILE.replace("\\\n", " ")
    commands = re.findall(r"^RUN (.*)", joined, re.MULTILINE)
    done = subprocess.run(
        ["shellcheck", "--shell=sh", "--exclude=SC2154", "-"],
        input="\n".join(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
