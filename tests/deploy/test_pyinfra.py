"""The bundle's pyinfra files as a person runs them, however much they are asked to print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kimi_nb.bundle import scripts, writer
from kimi_nb.core import paths
from kimi_nb.plan import build

KEY = "planted-secret-4711"
PYINFRA = Path(sys.executable).with_name("pyinfra")


@pytest.mark.parametrize("more", [[], ["-v"], ["-vv"], ["-vvv"], ["--debug"]])
@pytest.mark.parametrize("dry", [["--dry"], ["-y"]])
def test_no_verbosity_prints_a_secret(tmp_path, more, dry):
    site = tmp_path / "site.yaml"
    text = (paths.root() / "params" / "sites" / "h200.yaml").read_text()
    site.write_text(text + "api_key_env: KIMI_KEY\n")
    plan = build.plan("k2.5", "h200", "single", variant="pip", site=str(site))
    writer.write(scripts.files(plan), tmp_path / "bundle")
    # On this machine instead of over SSH, with the bundle's own file of steps.
    (tmp_path / "bundle" / plan.nodes[0]).rename(tmp_path / "bundle" / "@local")
    env = tmp_path / "bundle" / "@local" / "node.env"
    env.write_text(env.read_text() + f"WORK={tmp_path}/work\n")
    deploy = tmp_path / "bundle" / "deploy"
    (deploy / "here.py").write_text("hosts = [('@local', {'secrets': ['KIMI_KEY']})]\n")
    (deploy / "one.py").write_text("import node_steps\nnode_steps.step('claim')\n")
    done = subprocess.run(
        [PYINFRA, *more, *dry, "here.py", "one.py"],
        cwd=deploy,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KIMI_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert KEY not in done.stdout + done.stderr
    assert (tmp_path / "work" / "claim").exists() is (dry == ["-y"]), done.stdout + done.stderr


@pytest.mark.parametrize("text", ["true", "true\n"])
def test_a_script_is_hidden_and_whole(text, monkeypatch):
    monkeypatch.syspath_prepend(str(paths.DATA / "bundle"))
    monkeypatch.syspath_prepend(str(paths.PACKAGE / "deploy"))
    import node_steps

    for script in (once := node_steps.Script(text), node_steps.Script(once)):
        assert f"{script}" == str(script) == repr(script) == "(a script)"
        assert script.encode() == b"true\n"
