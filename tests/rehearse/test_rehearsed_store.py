"""A KV store that several engines share, rehearsed: its parts, what they take, who needs them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.host_programs import shared_store
from kimi_nb.rehearse.simulated_site import rebound
from kimi_nb.rehearse.stand_in_call import Refused


def left(folder: Path) -> list[str]:
    """Programs that still name the folder."""
    out = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and path.parent.name != str(os.getpid()):
            out.append(words.decode(errors="replace"))
    return out


@pytest.mark.parametrize(
    "mode", ["centralised", pytest.param("distributed", marks=pytest.mark.long)]
)
def test_two_engines_share_a_store(mode, stored_model, nodes_file, tmp_path):
    plan = build.plan(stored_model(mode), "h200", "single", site=nodes_file("h200", 2))
    found = rehearsal.rehearse(plan, tmp_path)
    assert found.ok and found.ready == 2, found
    logs = Path(found.folder) / "logs"
    master = (logs / "node-0" / "store-master.log").read_text()
    assert "Master service started on port 50051" in master
    assert not (logs / "node-1" / "store-master.log").exists()
    for node in ("node-0", "node-1"):
        said = (logs / node / "engines.log").read_text()
        assert f"Mooncake mode={plan.store.config['mode']}" in said
        assert (logs / node / "store-service.log").exists() == (mode == "centralised")
    assert not left(tmp_path)


def made(change):
    """A maker of a bundle in which something was changed: name -> text."""

    def make(plan, work, block):
        local = rebound(plan, work, block)
        return local, change(dict(scripts.files(local)))

    return make


def without_master(files):
    name = "node-1/mooncake.json"
    config = json.loads(files[name])
    config["master_server_address"] = config["master_server_address"].replace("50051", "50052")
    return files | {name: json.dumps(config)}


def with_segment(files):
    name = "node-1/mooncake.json"
    return files | {name: json.dumps(json.loads(files[name]) | {"global_segment_size": 0})}


def mistyped(files):
    name = "node-0/store-master.sh"
    return files | {name: files[name].replace("-rpc_port", "-rpc_prot")}


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "node", "words"),
    [
        (without_master, "node-1", "does not reach the master"),
        (with_segment, "node-1", "embedded mode requires global_segment_size > 0"),
        (mistyped, "node-0", "unknown command line flag 'rpc_prot'"),
    ],
)
def test_a_store_that_is_set_wrong_ends_the_start(
    change, node, words, stored_model, nodes_file, tmp_path
):
    plan = build.plan(stored_model(), "h200", "single", site=nodes_file("h200", 2))
    found = rehearsal.rehearse(plan, tmp_path, make=made(change))
    assert not found.ok and found.diagnosis.node == node, found
    assert words in f"{found.diagnosis.cause} {found.diagnosis.evidence}", found
    assert not left(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-rpc_prot=1",), "ERROR: unknown command line flag 'rpc_prot'"),
        (("-rpc_port=abc",), "illegal value 'abc' specified for int32 flag 'rpc_port'"),
        (("-rpc_port",), "flag 'rpc_port' is missing its argument"),
        (("-enable_ha=maybe",), "illegal value 'maybe' specified for bool flag 'enable_ha'"),
        (("--eviction_ratio=x",), "illegal value 'x' specified for double flag"),
    ],
)
def test_the_master_refuses_what_the_real_one_refuses(words, says):
    """The first two as recorded of mooncake_master 0.3.13.post1."""
    with pytest.raises(Refused, match=says):
        shared_store.options(words)


def test_the_master_takes_what_the_plan_gives_it(stored_model, nodes_file):
    plan = build.plan(stored_model(), "h200", "single", site=nodes_file("h200", 2))
    given = shared_store.options(plan.store.master[1:])
    assert given["rpc_port"] == "50051" and given["logtostderr"] == "true"
    assert shared_store.options(("--rpc_port", "7", "-nologtostderr"))["rpc_port"] == "7"
