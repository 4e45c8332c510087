"""Weights on a node: looked at, downloaded by strict stand-ins of the hubs' programs, edited."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from testbed.hosts import checkpoint
from testbed.hub import HUB

from kimi_nb.bundle import scripts, writer
from kimi_nb.core import paths
from kimi_nb.deploy import node_call
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.plan import build

SHARD = "model-00001-of-00001.safetensors"


class Node:
    """A node of this machine whose plan serves ``model`` of a site in ``root``."""

    def __init__(self, root: Path, model: str = "k2.5", hw: str = "a3", models: str = "", **env):
        self.root = root
        self.names = (model, hw)
        self.env = env
        text = (paths.root() / "params" / "sites" / f"{hw}.yaml").read_text()
        more = f", models: {models}" if models else ""
        site = root / "site.yaml"
        site.write_text(
            re.sub(
                r"paths: \{.*\}", f"paths: {{cache: {root}/cache, work: {root}/work{more}}}", text
            )
        )
        self.plan = build.plan(model, hw, "single", site=str(site), dropped=self._no_tuning())
        writer.write(scripts.files(self.plan), root / "files")
        self.files = root / "files" / self.plan.nodes[0]
        self.bin = root / "bin"
        self.bin.mkdir()
        for name in ("hf", "modelscope"):
            self.program(name, HUB)
        checkpoint(root / "source")
        if model == "k2-thinking":
            self._thinking()
        self.hub()

    def _no_tuning(self):
        return ["host-tuning"] if self.names[0] == "k2.5" and self.names[1] == "a3" else []

    def _thinking(self):
        for name in self.plan.request.weights.files:
            if not (self.root / "source" / name).exists():
                (self.root / "source" / name).write_text("x")
        (self.root / "source" / "config.json").write_text(
            json.dumps(
                {"quantization_config": {"config_groups": {"group_0": {"targets": ["Linear"]}}}}
            )
        )

    def program(self, name: str, text: str):
        path = self.bin / name
        path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def hub(self, **what: str):
        (self.root / "hub.json").write_text(json.dumps({"hub": "", **what}))

    def calls(self):
        file = self.root / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def call(self, *verbs: str, **more):
        """Lines by kind: (thing, text)."""
        text = node_call.text(self.files, verbs, run="r1", **more)
        text = f"export PATH={self.bin}:$PATH LOCK_SECONDS=1\n{text}"
        for name, value in self.env.items():
            text = f"export {name}={value}\n{text}"
        out: dict[str, list[tuple[str, str]]] = {}
        for line in LocalNodes().change({"n": text}, verbs[-1])["n"].lines:
            if line.thing != "verb":
                out.setdefault(line.kind, []).append((line.thing, line.text))
        return out

    def folder(self, name: str) -> Path:
        return self.root / "work" / "models" / name


W4A8, DRAFT = "Eco-Tech/Kimi-K2.5-W4A8", "lightseekorg/kimi-k2.5-eagle3"


def test_what_is_missing_is_named_with_size_folder_and_command(tmp_path):
    node = Node(tmp_path)
    room(node.files, 10**12)
    found = node.call("weights")
    folder = node.folder("Kimi-K2.5-W4A8")
    (first, second) = [text for thing, text in found["fail"] if thing == "weights"]
    assert first.startswith(f"{W4A8}: not on this node, looked for {folder};")
    assert "560 GB" in first
    assert first.endswith(
        f"modelscope download --model {W4A8} --local_dir {folder} --max-workers 8"
    )
    assert f"hf download {DRAFT} --local-dir {node.folder('kimi-k2.5-eagle3')}" in second
    assert not node.calls() and not (tmp_path / "work").exists()


def room(monkeypatch_files: Path, free: int):
    """The node's look at the disk with so many bytes free."""
    check = monkeypatch_files / "check_weights.py"
    check.write_text(check.read_text().replace("shutil.disk_usage(at).free", str(free)))


def test_both_hubs_are_asked_and_the_second_time_none(tmp_path):
    node = Node(tmp_path)
    room(node.files, 10**12)
    dry = node.call("weights", dry=True, download=True)
    assert [thing for thing, _ in dry["change"]] == ["weights", "weights"]
    assert not node.calls()
    found = node.call("weights", download=True)
    assert "fail" not in found and len(found["changed"]) == 2, found
    words = [call[0] for call in node.calls()]
    assert words[0][:3] == ["download", "--model", W4A8] and words[1][:2] == ["download", DRAFT]
    assert node.calls()[1][1]["HF_XET_HIGH_PERFORMANCE"] == "1"
    again = node.call("weights", download=True)
    assert len(again["same"]) == 2 and "changed" not in again and len(node.calls()) == 2
    assert not list(tmp_path.glob("work/models/*/.weights-*.lock"))


def test_by_hand(tmp_path):
    node = Node(tmp_path)
    room(node.files, 10**12)
    env = {**os.environ, "PATH": f"{node.bin}:{os.environ['PATH']}", "WORKERS": "3"}
    script = [str(node.files / "weights.sh")]
    dry = subprocess.run(["bash", *script], text=True, capture_output=True, env={**env, "DRY": "1"})
    assert dry.returncode == 0 and dry.stdout.count("change\tweights") == 2
    done = subprocess.run(["bash", *script], text=True, capture_output=True, env=env)
    assert done.returncode == 0 and done.stdout.count("changed\tweights") == 2, done
    assert [call[0][-2:] for call in node.calls()] == [["--max-workers", "3"]] * 2
    text = (node.files / "weights.sh").read_text()
    assert f"modelscope download --model {W4A8}" in text and f"hf download {DRAFT}" in text


@pytest.mark.parametrize(
    "what, thing, words",
    [
        ("unreachable", "hub", "the hub does not answer"),
        ("full", "room", "the disk is full"),
        ("half", "weights", "exit code 130"),
        ("gated", "hub-key", "the hub refuses"),
    ],
)
@pytest.mark.parametrize("id_", [W4A8, DRAFT])
def test_a_download_that_fails_is_named_and_gone_on_with(what, thing, words, id_, tmp_path):
    node = Node(tmp_path)
    room(node.files, 10**12)
    node.hub(**{id_: what})
    found = node.call("weights", download=True)
    assert [one for one, _ in found["fail"]] == [thing], found
    text = found["fail"][0][1]
    assert text.startswith(f"{id_}: {words}") and "It is not whole" in text
    log = tmp_path / "work" / f"weights-{id_.replace('/', '--')}.log"
    assert f"What was said: {log}" in text
    node.hub()
    again = node.call("weights", download=True)
    assert "fail" not in again, again
    assert len(again.get("same", [])) + len(again["changed"]) == 2


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(tmp_path):
    node = Node(tmp_path)
    room(node.files, 3 * 10**9)
    for dry in (True, False):
        found = node.call("weights", dry=dry, download=True)
        things = [thing for thing, _ in found["fail"]]
        assert "room" in things
        assert "560 GB are wanted, 0.0 GB are there, 3.0 GB are free" in found["fail"][0][1]
    assert not node.calls()


@pytest.mark.parametrize(
    "place",
    [
        "cache/modelscope/hub/models/Eco-Tech/Kimi-K2___5-W4A8",
        "cache/modelscope/models/Eco-Tech--Kimi-K2.5-W4A8/snapshots/master",
    ],
)
def test_what_the_hub_left_in_its_cache_is_linked(place, tmp_path):
    node = Node(tmp_path)
    room(node.files, 10 * 10**9)  # enough for the draft only
    checkpoint(tmp_path / place)
    said = node.call("weights")["fail"][0][1]
    assert f"{tmp_path / place}, which the engine does not read, has it:" in said
    found = node.call("weights", download=True)
    assert "fail" not in found, found
    assert [call[0][1] for call in node.calls()] == [DRAFT]
    there = node.folder("Kimi-K2.5-W4A8") / SHARD
    assert there.stat().st_ino == (tmp_path / place / SHARD).stat().st_ino


def test_a_download_is_ended_by_stop(tmp_path):
    """Whoever waited for it was interrupted: without that it would go on for hours."""
    node = Node(tmp_path, STOP_SECONDS=1)
    room(node.files, 10**12)
    node.program(
        "modelscope", "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(300)\n"
    )
    node.call("claim")
    text = node_call.text(node.files, ["weights"], run="r1", download=True)
    left = subprocess.Popen(
        ["bash", "-s"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{node.bin}:{os.environ['PATH']}", "LOCK_SECONDS": "1"},
    )
    assert left.stdin
    left.stdin.write(text)
    left.stdin.close()
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "here").exists():
            assert time.monotonic() < end and left.poll() is None
            time.sleep(0.05)
        assert ("engines", "stopped") in node.call("stop", "release")["changed"]
        assert left.wait(20) == 1 and left.stdout
        said = left.stdout.read()
        assert f"{W4A8}: exit code 143" in said and DRAFT not in said
        assert not list(tmp_path.rglob(".weights-*.lock"))
    finally:
        left.kill()
        left.wait()


def test_of_two_nodes_with_one_file_system_one_downloads(tmp_path):
    node = Node(tmp_path)
    room(node.files, 10**12)
    node.hub(**{W4A8: "slow"})
    text = node_call.text(node.files, ["weights"], run="r1", download=True)
    text = f"export PATH={node.bin}:$PATH LOCK_SECONDS=20\n{text}"
    both = []
    for _ in range(2):
        both.append(
            subprocess.Popen(
                node_call.READER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        both[-1].stdin.write(text)
        both[-1].stdin.close()
        time.sleep(0.3)
    said = [one.stdout.read() for one in both]
    assert [one.wait() for one in both] == [0, 0]
    assert sorted(call[0][2] for call in node.calls() if call[0][1] == "--model") == [W4A8]
    assert f"same\tweights\t{W4A8}" in said[1] and f"changed\tweights\t{W4A8}" in said[0]


def test_a_lock_that_nobody_touches_is_taken(tmp_path):
    node = Node(tmp_path)
    room(node.files, 10**12)
    lock = node.folder("Kimi-K2.5-W4A8") / ".weights-Eco-Tech--Kimi-K2.5-W4A8.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert "fail" not in node.call("weights", download=True)


def test_by_id_it_goes_into_the_cache_that_the_engine_sees(tmp_path):
    node = Node(tmp_path, "k2.5", "h200")
    room(node.files, 10**12)
    said = node.call("weights")["fail"][0][1]
    assert "594 GB" in said and said.endswith("hf download moonshotai/Kimi-K2.5 --max-workers 8")
    found = node.call("weights", download=True)
    assert "fail" not in found, found
    assert node.calls()[0][1]["HF_HOME"] == f"{tmp_path}/cache"
    assert (tmp_path / "cache/hub/models--moonshotai--Kimi-K2.5/snapshots/abc" / SHARD).exists()


def test_offline_no_hub_is_asked(tmp_path):
    node = Node(tmp_path, "k2.5", "h200", HF_HUB_OFFLINE="1")
    room(node.files, 10**12)
    found = node.call("weights", download=True)
    assert [thing for thing, _ in found["fail"]] == ["offline"] and not node.calls()


def test_a_mirror_that_the_site_names_is_asked(tmp_path):
    node = Node(tmp_path, "k2.5", "h200")
    env = node.files / "node.env"
    assert f"HF_HOME={tmp_path}/cache" in env.read_text()
    node.env["HF_ENDPOINT"] = "https://mirror.example"
    room(node.files, 10**12)
    node.call("weights", download=True)
    assert node.calls()[0][1]["HF_ENDPOINT"] == "https://mirror.example"


def test_the_image_serves_where_the_node_has_no_hub_program(tmp_path):
    """A docker that runs what it is given here, with what it is given as variables."""
    node = Node(tmp_path)
    room(node.files, 10**12)
    inside = tmp_path / "inside"
    inside.mkdir()
    for name in ("hf", "modelscope"):
        (node.bin / name).rename(inside / name)
    (tmp_path / "hub.json").unlink()
    (tmp_path / "hub.json").write_text('{"hub": ""}')
    node.program(
        "docker",
        f"""
        import os, sys
        words, env = sys.argv[2:], dict(os.environ)
        assert sys.argv[1] == "run"
        while words[0].startswith("-"):
            word = words.pop(0)
            if word in ("--rm", "--net=host", "-i"):
                continue
            value = words.pop(0)
            if word == "-e" and "=" in value:
                env.update([value.split("=", 1)])
            elif word == "--entrypoint":
                program = value
            else:
                assert word in ("-e", "-v"), word
        assert words.pop(0).startswith("quay.io/ascend/vllm-ascend:")
        env["PATH"] = "{inside}:" + env["PATH"]
        os.execvpe(program, [program, *words], env)
        """,
    )
    found = node.call("weights", download=True)
    assert "fail" not in found and len(node.calls()) == 2, found


# The edit of K2-Thinking --------------------------------------------------------------------


def _targets(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    return config["quantization_config"]["config_groups"]["group_0"]["targets"]


@pytest.mark.parametrize("download", [True, False])
def test_the_edit_is_made_once_and_can_be_undone(tmp_path, download):
    node = Node(tmp_path, "k2-thinking")
    room(node.files, 10**12)
    folder = tmp_path / "cache/huggingface/hub/models--moonshotai--Kimi-K2-Thinking/snapshots/abc"
    if not download:  # they are there already, as links to blobs
        blobs = folder.parent.parent / "blobs"
        shutil.copytree(tmp_path / "source", blobs)
        folder.mkdir(parents=True)
        for path in blobs.iterdir():
            (folder / path.name).symlink_to(path)
        dry = node.call("weights", dry=True)
        assert [thing for thing, _ in dry["change"]] == ["config"] and _targets(folder) == [
            "Linear"
        ]
    found = node.call("weights", download=download)
    assert ("config" in [thing for thing, _ in found["changed"]]) and "fail" not in found, found
    assert _targets(folder) == ["MoE"]
    before = (folder / "config.json.before-quantization-edit").read_text()
    assert before == (tmp_path / "source/config.json").read_text()
    again = node.call("weights", dry=True)
    assert "change" not in again and ("config" in [thing for thing, _ in again["same"]])
    script = node.files / "edit_quantization_target.py"
    subprocess.run([sys.executable, str(script), "revert", str(folder)], check=True)
    assert (folder / "config.json").read_text() == before


def test_another_config_is_refused(tmp_path):
    node = Node(tmp_path, "k2-thinking")
    room(node.files, 10**12)
    (tmp_path / "source/config.json").write_text('{"quantization_config": {}}')
    found = node.call("weights", download=True)
    assert [thing for thing, _ in found["fail"]] == ["config"]
    assert "is it Kimi-K2-Thinking?" in found["fail"][0][1]


def test_a_script_of_the_bundle_edits_too(tmp_path):
    node = Node(tmp_path, "k2-thinking", models=f"{tmp_path}/m")
    room(node.files, 10**12)
    env = {**os.environ, "PATH": f"{node.bin}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", str(node.files / "weights.sh")],
        text=True,
        capture_output=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done
    assert _targets(tmp_path / "m/Kimi-K2-Thinking") == ["MoE"]
