"""Small things that strangers, odd machines and other people's variables do to a deployment."""

from __future__ import annotations

import getpass
import os

import pytest

from kimi_nb.core import paths
from kimi_nb.deploy import claim, journal
from kimi_nb.deploy.slurm import slurm_commands


@pytest.mark.parametrize("error", [KeyError("uid not found"), OSError("no username")])
def test_a_user_without_a_name_is_a_number(error, monkeypatch, tmp_path):
    def nobody():
        raise error

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert journal.holder().startswith(f"{os.getuid()}@")
    assert claim.take(tmp_path / "claim", "r", "plan") is None
    assert claim.holder(tmp_path / "claim").who.startswith(f"{os.getuid()}@")
    monkeypatch.syspath_prepend(str(paths.DATA / "bundle"))
    monkeypatch.syspath_prepend(str(paths.PACKAGE / "deploy"))
    import node_steps

    assert node_steps._user() == str(os.getuid())


def test_a_job_gets_no_secret_that_it_does_not_name(tmp_path):
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text('#!/bin/bash\nenv > "$PWD/got"\necho 7\n')
    sbatch.chmod(0o755)
    (tmp_path / "job.sbatch").write_text('export OPENAI_API_KEY="${KIMI_KEY:?set it}"\n')
    secrets = {
        "DB_PASSWORD": "planted-1",
        "AWS_SECRET_ACCESS_KEY": "planted-2",
        "GITHUB_TOKEN": "planted-3",
    }
    wanted = {"KIMI_KEY": "key-1", "HF_TOKEN": "token-1", "LANG": "C"}
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", **secrets, **wanted}
    assert slurm_commands.Slurm(env).submit("job.sbatch", tmp_path, "c") == 7
    got = (tmp_path / "got").read_text()
    assert "planted" not in got
    assert "KIMI_KEY=key-1" in got and "HF_TOKEN=token-1" in got and "LANG=C" in got
