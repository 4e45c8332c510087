"""Small things that strangers, odd machines and other people's variables do to a deployment."""

from __future__ import annotations

import getpass
import gzip
import json
import os
import re
import stat
from pathlib import Path

import pytest

from kimi_nb.bundle import scripts, writer
from kimi_nb.cli import main
from kimi_nb.core import evidence, paths, redacted_files
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import claim, journal, lifecycle, node_call
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.slurm import slurm_commands
from kimi_nb.plan import build


def modes(root):
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")
    }


@pytest.mark.parametrize(("mask", "others"), [(0o077, 0o077), (0o027, 0o027), (0o022, 0o022)])
def test_every_file_is_as_the_umask_says(mask, others, tmp_path):
    before = os.umask(mask)
    try:
        plan = build.plan("tiny-llama", "cpu", "dp")
        writer.write(scripts.files(plan), tmp_path / "bundle")
        writer.write({**scripts.files(plan), "more.txt": "x\n"}, tmp_path / "bundle")
        evidence.record(tmp_path / "run", "one")
        evidence.write_json(tmp_path / "run" / "a.json", {})
        one = journal.Journal.open(tmp_path / "run", plan)
        one.keep(plan)
        with journal.alone(tmp_path / "run"):
            claim.take(tmp_path / "claim", "r", "plan")
        packed = tmp_path / "x.log.gz"
        packed.write_bytes(gzip.compress(b"password=hunter2"))
        assert redacted_files.redact(packed, [])
        text = node_call.text(
            tmp_path / "bundle" / plan.nodes[0], ["claim", "push"], run=f"r{os.getpid()}"
        )
        work = tmp_path / "work"
        text = text.replace("set -- ", f"WORK={work} FOLDER={work}/node PORTS=\nset -- ", 1)
        answer = LocalNodes().change({"n": text}, "push")["n"]
        assert not answer.error and not answer.of("fail"), answer
    finally:
        os.umask(before)
    found = modes(tmp_path)
    assert {"bundle/more.txt", "claim", "work/node/node.sh", "run/evidence.jsonl"} <= set(found)
    assert not {name: oct(mode) for name, mode in found.items() if mode & others}
    assert found["bundle"] & 0o700 == 0o700 and found["work/node/node.sh"] & 0o100


def test_a_claim_that_nobody_may_read_is_somebodys(tmp_path, monkeypatch):
    def denied(*args, **more):
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "claim"
    assert claim.take(path, "r", "plan") is None
    monkeypatch.setattr(Path, "read_text", denied)
    assert "another user" in str(claim.take(path, "r2", "plan"))
    assert not claim.release(path, "r2")


def test_a_claim_of_any_length_is_told_on_a_line(tmp_path):
    (tmp_path / "claim").write_text("run-1\n" + "me&a" * 9000 + "\nnow\nplan\n")
    told = str(claim.take(tmp_path / "claim", "r2", "plan"))
    assert told.startswith("run run-1 of me&a") and told.endswith("... since now (plan)")
    assert len(told) < 300


def prepared(tmp_path, **more):
    """What the verb prepare says of a node whose plan wants another setting."""
    plan = build.plan("tiny-llama", "cpu", "dp")
    writer.write(scripts.files(plan), tmp_path / "bundle")
    folder = tmp_path / "bundle" / plan.nodes[0]
    env = folder / "node.env"
    env.write_text(
        env.read_text()
        + "SYSCTL=(kernel.threads-max=7)\nJEMALLOC=/nonexistent/libjemalloc.so.2\nGOVERNOR=\n"
    )
    text = node_call.text(folder, ["prepare"], run="r", dry=True, **more)
    return [(one.kind, one.thing, one.text) for one in LocalNodes().look({"n": text})["n"].lines]


def test_what_needs_root_is_listed_before(tmp_path):
    told = {thing: text for kind, thing, text in prepared(tmp_path) if kind == "change"}
    assert set(told) == {"kernel.threads-max", "jemalloc"}
    assert all(text.endswith(", as root") for text in told.values())


def test_nothing_else_is_done_as_root():
    script = (paths.DATA / "bundle" / "node.sh").read_text()
    lines = [line for line in script.splitlines() if re.search(r"as_root (?!\()|sudo", line)]
    what = ("sysctl -qw", "tee", "apt-get install -y libjemalloc2", 'if [ "$EUID" = 0 ]')
    assert len(lines) == len(what)
    assert all(sum(word in line for line in lines) == 1 for word in what)


def test_hosts_are_left_alone_where_that_is_asked(tmp_path):
    said = prepared(tmp_path, leave_host=True)
    assert ("same", "host", "left as it is, as asked for") in said
    assert not [one for one in said if one[0] in ("change", "changed")]


def test_the_option_reaches_the_nodes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(lifecycle, "preview", lambda *a, **more: seen.append(more) or ([], ""))
    monkeypatch.setattr(lifecycle, "check_addresses", lambda plan: None)
    words = ["up", "--model", "tiny-llama", "--hw", "cpu", "--layout", "dp", "--dry-run"]
    words += ["--run-dir", str(tmp_path)]
    assert main.main([*words, "--no-host-settings"]) == 0 and main.main(words) == 0
    assert [one["leave_host"] for one in seen] == [True, False]


@pytest.mark.parametrize(
    "banner", ["Welcome!", "x" * 50_000_000, "fact\\tverb\\tnone", "\\0\\377\\n"]
)
def test_a_banner_is_no_answer(banner, tmp_path):
    """What a login shell prints, also 50 MB and without an end of line."""
    plan = build.plan("tiny-llama", "cpu", "dp")
    writer.write(scripts.files(plan), tmp_path / "bundle")
    text = node_call.text(tmp_path / "bundle" / plan.nodes[0], ["look"], run="r")
    (tmp_path / "banner").write_text(banner)
    answer = LocalNodes().look({"n": f"printf '%b' \"$(cat {tmp_path}/banner)\"\n{text}"})["n"]
    assert not answer.error
    verbs = [line.text for line in answer.lines if (line.kind, line.thing) == ("fact", "verb")]
    assert verbs[-1] == "look" and any(line.thing == "free" for line in answer.lines)


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


ASKED = {
    **dict.fromkeys(("layout", "variant", "scenario", "engine_version"), ""),
    **{key: [] for key in ("chosen", "dropped", "pairs", "erratum")},
}


@pytest.mark.parametrize(
    "change",
    [
        {"steps": False},
        {"steps": [None]},
        {"begun_steps": None},
        {"more": "down"},
        {"more": {"asked": "k2.5"}},
        {"more": {"asked": {"variant": "pip"}}},
        {"more": {"asked": ASKED | {"chosen": None}}},
        {"more": {"asked": ASKED | {"of tomorrow": 1}}},
        {"state": 1},
        {"by": {}},
        {"of tomorrow": 1},
    ],
)
def test_a_record_whose_values_are_of_another_kind_is_damaged(change, tmp_path):
    values = {"run": "r", "plan": "p", "site": "s", "by": "me", "begun": "now", **change}
    (tmp_path / "state.json").write_text(json.dumps(values))
    with pytest.raises(ParameterError, match="is damaged"):
        journal.Journal.read(tmp_path)
