"""Looking at nodes and weights, editing a checkpoint's config, evidence."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import kimi_nb
from kimi_nb.core import evidence, paths
from kimi_nb.core.errors import ParameterError, WriteError
from kimi_nb.params import load
from kimi_nb.plan import checkpoints, roles
from kimi_nb.service import prerequisites, weights

ROOT = paths.root()
EDIT = paths.DATA / "bundle" / "edit_quantization_target.py"


# Prerequisites -----------------------------------------------------------------------------


def looks(hw="a3", layout="pd", site="a3"):
    model = load.model("k2.5")
    weights_of = model.weights["w4a8" if hw.startswith("a") else "int4"]
    return list(prerequisites.looks(load.hardware(hw), load.site(site), weights_of, layout))


def test_a_laptop_skips_everything_and_says_what_it_would_have_run():
    site = load.site("a3")
    found = prerequisites.Looks(tuple(prerequisites.look(one, site, here=False) for one in looks()))
    assert {one.status for one in found.seen} == {"skipped"} and not found.failed
    assert all("would have run: " in one.found for one in found.seen)
    table = found.table()
    assert "57 skipped" in table.title
    assert [row[0] for row in table.rows if "link" in row[0]] == ["link (16 times)"]


def test_one_node_needs_no_network():
    names = {one.name.partition(" ")[0] for one in looks(layout="single")}
    assert {"devices", "driver", "disk", "weights"} == names
    assert {"link", "tls", "net-health", "hccn-conf", "reach"} <= {
        one.name.partition(" ")[0] for one in looks(layout="pd")
    }


@pytest.mark.parametrize(
    "name, answer, status",
    [
        ("devices", (0, "| 0 910C | OK | 42 W |"), "pass"),
        ("devices", (0, "| 0 910C | Alarm | BROKEN |"), "fail"),
        ("devices", (1, "dcmi model initialized failed"), "fail"),
        ("link 3", (0, "link status: UP"), "pass"),
        ("link 3", (0, "link status: DOWN"), "fail"),
        ("tls 0", (0, "dev_id:0, tls switch[0](0:disable, 1:enable)"), "pass"),
        ("tls 0", (0, "dev_id:0, tls switch[1](0:disable, 1:enable)"), "fail"),
        ("disk", (0, "560 GB are wanted, 500.0 GB are there, 90.0 GB are free in /"), "pass"),
        ("disk", (1, "560 GB are wanted, 400.0 GB are there, 90.0 GB are free in /"), "fail"),
        ("weights", (0, "9 files in /root/kimi/models/Kimi-K2.5-W4A8, 9 bytes"), "pass"),
        ("weights", (3, "not on this node, looked for /root/kimi/models/x"), "fail"),
        ("reach 192.0.2.12", (0, "2 packets transmitted, 2 received, 0% packet loss"), "pass"),
        ("reach 192.0.2.12", (1, "2 transmitted, 0 received, 100% packet loss"), "fail"),
    ],
)
def test_what_passes_and_what_fails(name, answer, status, monkeypatch):
    monkeypatch.setattr(prerequisites.shutil, "which", lambda _: "/there")
    one = next(one for one in looks() if one.name == name)
    asked = []
    seen = prerequisites.look(
        one, load.site("a3"), True, lambda argv: (asked.append(tuple(argv)), answer)[1]
    )
    assert (seen.status, asked) == (status, [one.argv])


def test_a_command_that_hangs_is_ended():
    assert prerequisites.run(["sleep", "60"], seconds=0.3) == (124, "no answer within 0.3 s")
    assert prerequisites.run(["/none/such"])[0] == 126


def test_this_machine_is_a_node_when_it_has_the_address():
    site = load.site("a3")
    assert not prerequisites.is_node(site)
    local = site.nodes[0].model_copy(update={"address": "127.0.0.1"})
    assert prerequisites.is_node(site.model_copy(update={"nodes": (local,)}))


# Weights -----------------------------------------------------------------------------------


def checkpoint(folder: Path, shards: int = 2) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    header = json.dumps({"t": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    names = [f"model-{i}-of-{shards}.safetensors" for i in range(shards)]
    for name in names:
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {f"t{i}": name for i, name in enumerate(names)}})
    )
    return folder


def test_whole_weights_have_no_fault(tmp_path):
    assert weights.faults(checkpoint(tmp_path / "m")) == []


def test_faults_of_weights_are_named(tmp_path):
    folder = checkpoint(tmp_path / "m", shards=4)
    (folder / "model-0-of-4.safetensors").unlink()
    cut = folder / "model-1-of-4.safetensors"
    cut.write_bytes(cut.read_bytes()[:-3])
    (folder / "model-2-of-4.safetensors").write_bytes(b"\xff" * 40)
    (folder / "model-3-of-4.safetensors").write_bytes(b"\x01")
    found = weights.faults(folder, ["tiktoken.model"])
    assert found[0] == "tiktoken.model: missing or empty"
    assert "model-0-of-4" in found[1] and "missing" in found[1]
    assert "model-1-of-4" in found[2] and "are wanted" in found[2]
    assert "model-2-of-4" in found[3] and "damaged" in found[3]
    assert "model-3-of-4" in found[4] and "damaged" in found[4]
    assert weights.faults(tmp_path / "none") == [f"{tmp_path / 'none'}: no such folder"]
    (folder / "model.safetensors.index.json").write_text("[]")
    assert "not readable" in weights.faults(folder)[-1]


# The config edit ---------------------------------------------------------------------------

PUBLISHED = """{
  "model_type": "kimi_k2",
  "quantization_config": {"config_groups": {"group_0": {"targets": ["Linear"], "x": 1}},
                          "note": "\u00fcber"}
}"""


def edit(action: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(EDIT), action, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_edit_is_idempotent_and_reversible(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(PUBLISHED)
    first = edit("apply", tmp_path)
    assert first.returncode == 0 and "Changed" in first.stdout
    changed = json.loads(config.read_text())
    assert changed["quantization_config"]["config_groups"]["group_0"] == {
        "targets": ["MoE"],
        "x": 1,
    }
    again = edit("apply", tmp_path)
    assert again.returncode == 0 and "No change" in again.stdout
    assert edit("show", tmp_path).stdout == "['MoE']\n"
    assert "byte for byte" in edit("revert", tmp_path).stdout
    assert config.read_text() == PUBLISHED
    assert "No change" in edit("revert", tmp_path).stdout
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_the_edit_keeps_what_others_changed_since(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(PUBLISHED)
    edit("apply", tmp_path)
    data = json.loads(config.read_text())
    data["rope_scaling"] = {"factor": 2}
    config.write_text(json.dumps(data))
    assert "other edits" in edit("revert", tmp_path).stdout
    data = json.loads(config.read_text())
    assert data["rope_scaling"] == {"factor": 2}
    assert data["quantization_config"]["config_groups"]["group_0"]["targets"] == ["Linear"]


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("{}", "is it Kimi-K2-Thinking"),
        ("not json", "not JSON"),
        (None, "No such file"),
        (PUBLISHED.replace("Linear", "Conv"), "Nothing was changed"),
    ],
)
def test_the_edit_refuses_other_files(tmp_path, text, wanted):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    done = edit("apply", tmp_path)
    assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr
    if text is not None:
        assert (tmp_path / "config.json").read_text() == text


def test_the_edit_of_a_linked_file_leaves_the_hub_cache_alone(tmp_path):
    """In a hub cache config.json is a link to a blob that other users read."""
    blob = tmp_path / "blob"
    blob.write_text(PUBLISHED)
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").symlink_to(blob)
    assert edit("apply", folder).returncode == 0
    assert blob.read_text() == PUBLISHED


# Evidence ----------------------------------------------------------------------------------


def test_evidence_is_appended_and_survives_a_cut_line(tmp_path):
    evidence.record(tmp_path / "run", "one", figure=1, path=Path("/x"))
    evidence.record(tmp_path / "run", "two")
    with (tmp_path / "run" / evidence.FILE).open("a") as file:
        file.write('{"time": "2026", "stage": "cut')
    entries = evidence.read(tmp_path / "run")
    assert [entry["stage"] for entry in entries] == ["one", "two"]
    assert entries[0]["path"] == "/x"


def test_evidence_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="run_dir"):
        evidence.record(tmp_path / "file" / "run", "one")


# The first call ----------------------------------------------------------------------------


def test_start_can_be_called_again(tmp_path):
    """A cell that is run twice: loading a module must not put itself in the function's place."""
    import kimi_nb
    from kimi_nb.notebook import runbook, start

    assert start and runbook
    for _ in range(2):
        run = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
        assert run.plan(run.choose("pd")).engines
    for name in kimi_nb.__all__:
        assert callable(getattr(kimi_nb, name)) or name == "__version__"


# Where weights are found ----------------------------------------------------------------------

ID = "moonshotai/Kimi-K2.5"
REV = "54383e83fa343a1331754112fb9e3410c55efa2f"


def there(tmp_path, hw: str, model: str, weights_of: str, paths: str, install: str = "docker"):
    """The checkpoint of a site whose folders are below tmp_path."""
    text = (ROOT / "params" / "sites" / f"{hw}.yaml").read_text()
    assert "paths: {" in text
    file = tmp_path / "site.yaml"
    file.write_text(re.sub(r"paths: \{.*\}", f"paths: {{{paths.format(tmp_path)}}}", text))
    site, chip = load.site(str(file)), load.hardware(hw)
    item = load.model(model).weights[weights_of]
    home = checkpoints.hub_home(chip, site, install, {})
    found = checkpoints.checkpoint(site, item, roles.models_folder(site, item), home)
    looks = prerequisites.looks(chip, site, item, "single", install)
    return found, {one.name: prerequisites.look(one, site, True) for one in looks}


@pytest.mark.parametrize(
    "hw, paths, folder, passes",
    [
        # A container sees the site's cache as ~/.cache/huggingface, or as ~/.cache.
        ("h200", "cache: {0}/c", f"c/hub/models--moonshotai--Kimi-K2.5/snapshots/{REV}", True),
        ("h200", "cache: {0}/c", "c", False),  # a folder there is none of the cache's
        (
            "a3",
            "cache: {0}/c",
            f"c/huggingface/hub/models--moonshotai--Kimi-K2.5/snapshots/{REV}",
            True,
        ),
        ("a3", "cache: {0}/c", f"c/hub/models--moonshotai--Kimi-K2.5/snapshots/{REV}", False),
        ("h200", "cache: {0}/c, models: {0}/m", "m/kimi-k2.5", True),
        (
            "h200",
            "cache: {0}/c, models: {0}/m",
            "c/hub/models--moonshotai--Kimi-K2.5/snapshots/1",
            False,
        ),
    ],
)
def test_weights_are_found_where_the_engine_looks(hw, paths, folder, passes, tmp_path):
    checkpoint(tmp_path / folder)
    found, seen = there(tmp_path, hw, "k2.5", "int4", paths)
    assert (weights.find(found.places) == tmp_path / folder) == passes
    assert seen["weights"].status == ("pass" if passes else "fail"), seen["weights"]
    if not passes:
        assert "not on this node, looked for" in seen["weights"].found


@pytest.mark.parametrize(
    "folder",
    [
        "c/modelscope/hub/models/Eco-Tech/Kimi-K2___5-W4A8",  # before 1.38
        "c/modelscope/models/Eco-Tech--Kimi-K2.5-W4A8/snapshots/master",  # since
        "c/models/Eco-Tech--Kimi-K2.5-W4A8/snapshots/master",  # MODELSCOPE_CACHE
        "c/huggingface/hub/models--Eco-Tech--Kimi-K2.5-W4A8/snapshots/1",
        "w/models/Eco-Tech/Kimi-K2.5-W4A8",
    ],
)
def test_the_caches_of_both_hubs_are_known(folder, tmp_path):
    """The engine reads none of them: they are what a download need not fetch."""
    checkpoint(tmp_path / folder)
    found, _ = there(tmp_path, "a3", "k2.5", "w4a8", "cache: {0}/c, work: {0}/w")
    assert found.places == (f"{tmp_path}/w/models/Kimi-K2.5-W4A8",)
    assert weights.find(found.places) is None
    assert weights.find(found.elsewhere) == tmp_path / folder


def test_of_several_snapshots_the_one_that_main_means(tmp_path):
    base = tmp_path / "hub" / "models--a--b"
    for name in ("aaa", "bbb", "ccc"):
        checkpoint(base / "snapshots" / name)
    places = [f"{base}/snapshots/*"]
    assert weights.find(places).name == "ccc"
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("bbb")
    assert weights.find(places).name == "bbb"
    (base / "refs" / "main").write_text("gone")
    assert weights.find(places).name == "ccc"


def test_without_a_container_the_cache_is_that_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "mine"))
    checkpoint(tmp_path / "mine/hub/models--moonshotai--Kimi-K2.5/snapshots" / REV)
    _, seen = there(tmp_path, "h200", "k2.5", "int4", "cache: {0}/c", install="pip")
    assert seen["weights"].status == "pass"


def test_the_disk_counts_what_is_there(tmp_path, monkeypatch):
    base = tmp_path / "hub" / "models--a--b"
    checkpoint(base / "snapshots" / "1")
    part = base / "blobs" / "x.incomplete"
    part.parent.mkdir()
    part.write_bytes(bytes(3_000_000))
    place = f"{base}/snapshots/*"
    found, _, at = weights.room([place])
    assert 3_000_000 < found < 3_001_000 and at == str(base)
    monkeypatch.setattr(
        weights.shutil, "disk_usage", lambda at: SimpleNamespace(free=10**9 - 10**6)
    )
    assert weights.main(["--room", "1", place]) == 0
    part.unlink()
    assert weights.main(["--room", "1", place]) == 1
    # A folder that is not there yet is on the disk of the nearest one that is.
    assert weights.room([f"{tmp_path}/none/such/*"])[2] == str(tmp_path)


def test_an_edited_config_is_compared_as_it_was_published(tmp_path):
    checkpoint(tmp_path)
    notes = tmp_path / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    config = tmp_path / "config.json"
    (notes / "config.json.metadata").write_text(
        f"commit\n{hashlib.sha256(config.read_bytes()).hexdigest()}\n1.0\n"
    )
    (tmp_path / "config.json.before-quantization-edit").write_bytes(config.read_bytes())
    config.write_text('{"edited": true}\n')
    assert weights.unequal(tmp_path) == []
    (tmp_path / "config.json.before-quantization-edit").write_text("other")
    assert "config.json: its SHA-256" in weights.unequal(tmp_path)[0]


@pytest.mark.parametrize(
    "folder, given",
    [
        ("m", "m"),
        ("hf/hub/models--moonshotai--Kimi-K2.5/snapshots/1", "hf"),
        ("hub/models--moonshotai--Kimi-K2.5/snapshots/1", "hub/models--moonshotai--Kimi-K2.5"),
        ("ms/models/Eco-Tech--Kimi-K2.5-W4A8/snapshots/master", "ms"),
    ],
)
def test_a_notebook_checks_a_folder_or_a_cache(folder, given, tmp_path):
    checkpoint(tmp_path / folder)
    run = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    assert run.check_weights(str(tmp_path / given)) == ()
    (tmp_path / folder / "model-0-of-2.safetensors").unlink()
    assert "model-0-of-2" in run.check_weights(str(tmp_path / given))[0]
    (tmp_path / "empty").mkdir()
    assert "no *.safetensors" in run.check_weights(str(tmp_path / "empty"))[-1]


def test_a_bandwidth_of_nothing_is_refused(tmp_path):
    run = kimi_nb.start(hw="a3", model="k2.5", run_dir=str(tmp_path / "run"))
    assert "minutes at 2.5 Gbit/s" in run.downloads(2.5).headings
    with pytest.raises(ParameterError, match="gbit_s: 0 found"):
        run.downloads(0)
