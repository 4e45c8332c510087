"""Pictures: what they say in words and numbers is what they draw; they suit light and dark."""

from __future__ import annotations

import csv
import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest

from kimi_nb.check import judge
from kimi_nb.check.findings import Bar
from kimi_nb.core.errors import WriteError
from kimi_nb.diagnose import first_failure
from kimi_nb.notebook.pictures import (
    device_memory,
    failure_order,
    flag_changes,
    readiness_times,
    score_intervals,
    topology_picture,
)
from kimi_nb.params import load, recipes
from kimi_nb.plan import build, memory, tables
from kimi_nb.service import probe
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: Picture) -> list[str]:
    return [
        "".join(one.itertext()) for one in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
    ]


@pytest.fixture(scope="module")
def plan():
    return build.plan("k2.5", "a3", "pd")


def logs() -> list[first_failure.Log]:
    died = (
        "(EngineCore_DP31 pid=7) ERROR 11-22 06:48:16 [core.py:1136] RuntimeError: Worker "
        "failed with error 'device is lost', please check the stack trace above for the root "
        "cause"
    )
    lost = (
        "(EngineCore_DP0 pid=8) ERROR 11-22 06:48:18 [core.py:1136] RuntimeError: [Gloo] the "
        "connection was closed by peer (rank 30 on a3-3) before the group was complete"
    )
    return [
        first_failure.Log("a3-2", 0, "rank_0.log", [lost]),
        first_failure.Log("a3-3", 31, "rank_31.log", [died]),
    ]


def all_of(plan) -> list[Picture]:
    times = {one.name: 1.0 + at for at, one in enumerate(probe.endpoints(plan))}
    return [
        topology_picture.picture(plan),
        device_memory.picture(judge.plan(plan).memory),
        flag_changes.picture(plan, build.plan("k2.5", "a3", "pd", pairs=["max-num-seqs=9"])),
        readiness_times.picture(plan, times, mark="REHEARSAL"),
        failure_order.picture(plan, first_failure.timeline(logs(), plan, "at start")),
        score_intervals.picture([{"name": "GSM8K", "score": 0.95, "low": 0.93, "high": 0.97}]),
    ]


def test_the_file_the_page_and_the_terminal_hold_the_same(plan, tmp_path):
    names = set()
    for picture in all_of(plan):
        page = picture._repr_html_()
        assert page.startswith('<figure role="img" aria-label="') and picture.svg in page
        assert picture.alt in str(picture) and picture.alt.endswith(".")
        drawn, numbers = picture.save(tmp_path)
        root = ElementTree.fromstring(drawn.read_text())
        assert root.find(f"{SVG}desc").text == picture.alt and root.get("color")
        with numbers.open(newline="") as file:
            assert len(list(csv.DictReader(file))) == len(picture.data)
        assert not list(tmp_path.glob(".*")), "a half-written file is left"
        names.add(picture.name)
    assert len(names) == 6


def test_light_and_dark_nothing_is_loaded_and_twice_the_same(plan):
    for picture, again in zip(all_of(plan), all_of(plan), strict=True):
        assert picture.svg == again.svg
        assert "currentColor" in picture.svg and style.INK not in picture.svg
        assert not re.search(r"(?:href|src)=.(?!#)|@import|url\((?!#)", picture.svg)
        for one in ElementTree.fromstring(picture.svg).iter(f"{SVG}text"):
            # Text on a colour is black (the default) or white, all other has the page's colour.
            fill = re.search(r"fill: ([^;]+)", one.get("style"))
            assert fill is None or fill[1] in ("currentColor", "#ffffff", "#000000"), one.get(
                "style"
            )


def test_text_on_a_colour_is_readable():
    """WCAG asks for a contrast of 4.5."""
    for colour in style.COLOURS:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        light = sum(
            share * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
            for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
        )
        contrast = (light + 0.05) / 0.05 if style.on(colour) == "#000000" else 1.05 / (light + 0.05)
        assert contrast >= 4.5, colour


@pytest.mark.parametrize(
    "hardware, layout",
    sorted(
        {(row["hardware"], row["layout"]) for row in recipes.listing() if row["model"] == "k2.5"}
    ),
)
def test_every_shape_has_its_topology(hardware, layout):
    shape = build.plan("k2.5", hardware, layout)
    picture = topology_picture.picture(shape)
    assert [row["engine"] for row in picture.data] == [one.name for one in shape.engines]
    said = texts(picture)
    for node in shape.nodes[:4]:
        assert any(text.startswith(node) for text in said)
    assert any(shape.url.split("//")[-1] in text for text in said)
    assert ("KV cache" in said) == (layout == "pd")


@pytest.mark.parametrize("name", [name for name in load.names("hardware") if name != "cpu"])
def test_every_hardware_has_its_topology(name, plan_on):
    shape = plan_on(name)
    said = texts(topology_picture.picture(shape))
    for node in shape.nodes:
        assert any(text.startswith(node) for text in said)
    for device in range(shape.request.hardware.devices.count):
        assert said.count(f"dev {device}") == len(shape.nodes)


def test_replicas_stand_behind_their_router(nodes_file):
    routed = build.plan(
        "k2.5",
        "h200",
        "single",
        variant="pip",
        site=nodes_file("h200", 2),
        pairs=["groups=2", "router=vllm-router"],
    )
    picture = topology_picture.picture(routed)
    said = texts(picture)
    assert any("router (vllm-router) on node-0" in text and ":1999" in text for text in said)
    assert {"node-0", "node-1"} <= {word for text in said for word in text.split()}
    assert "KV cache" not in said and "hands them to 2 engines in turn" in picture.alt


def test_a_shared_store_is_drawn_beside_its_nodes(stored_model, nodes_file):
    shared = build.plan(stored_model("centralised"), "h200", "single", site=nodes_file("h200", 2))
    picture = topology_picture.picture(shared)
    said = texts(picture)
    assert "store: 500 GB, service 8080, master 50051" in said
    assert "store: 500 GB, service 8080" in said and "KV store" in said
    assert "share a KV store (centralised), whose master is on node-0" in picture.alt


def test_a_device_shows_its_rank(plan):
    said = texts(topology_picture.picture(plan))
    assert {f"r{rank}" for rank in range(32)} <= set(said)
    assert said.count("r1") == 17, "eight devices in each prefill group, and one decode device"


def test_many_nodes_are_counted(plan):

    many = build.plan("k2.5", "a3", "pd")
    copies = tuple(
        dataclasses.replace(one, node=f"{one.node}-{at}", name=f"{one.name}-{at}")
        for at in range(9)
        for one in many.engines
        if one.role == "decode"
    )
    wide = dataclasses.replace(many, engines=(*many.engines, *copies))
    picture = topology_picture.picture(wide)
    assert any("and 16 more nodes" in text for text in texts(picture))
    assert len(picture.data) == len(wide.engines) and len(picture.svg) < 200_000


def test_memory_says_what_the_findings_say(plan):
    findings = judge.plan(plan)
    picture = device_memory.picture(findings.memory)
    for bar in findings.memory:
        rows = {row["part"]: row["gib"] for row in picture.data if row["role"] == bar.role}
        assert sum(rows.values()) == pytest.approx(bar.fit.device / 2**30, abs=0.02)
        assert {row["figure"] for row in picture.data} == {"estimated"}
    assert "not known" in device_memory.picture(()).alt


def test_every_part_of_an_account_has_its_colour():
    """Also of hybrid attention, of experts in 4 bits and of drafts."""
    model = load.model("k3")
    shape = memory.Shape(tp=16, seqs=64, draft_layers=5, draft_tokens=7)
    found = memory.fit(shape, model.architecture, "MXFP4", 139.8, 2_300_000_000)
    picture = device_memory.picture((Bar("mixed", "mixed0", found),))
    parts = {row["part"] for row in picture.data}
    assert {"latent projections", "sequence states", "draft", "quantisation scales"} <= parts


def test_difference_of_flags(plan):
    other = build.plan("k2.5", "a3", "pd", pairs=["decode.max-num-seqs=9"])
    assert flag_changes.difference(plan, other) == (
        {
            "role": "decode",
            "name": "--max-num-seqs",
            "kind": "changed",
            "before": "48",
            "after": "9",
        },
    )
    assert flag_changes.picture(plan, plan).data == () and "no difference" in texts(
        flag_changes.picture(plan, plan)
    )
    older = build.plan("k2.5", "a3", "pd", engine_version="0.18.0")
    assert {row["kind"] for row in flag_changes.difference(plan, older)} == {"added", "gone"}


def test_readiness_names_who_is_not_ready(plan):
    picture = readiness_times.picture(plan, {"prefill0-rank0": 1.25})
    assert sum(row["ready_s"] is None for row in picture.data) == 35
    assert "not ready: prefill0-rank1" in picture.alt and "1 of 36" in picture.title
    assert texts(picture).count("not ready") == 35
    assert "REHEARSAL" not in picture.alt
    assert "REHEARSAL" in readiness_times.picture(plan, {}, mark="REHEARSAL").title


def test_faults_tell_first_from_after(plan):
    events = first_failure.timeline(logs(), plan, "at start")
    assert [(one.node, one.rank, one.cascade) for one in events] == [
        ("a3-3", 31, False),
        ("a3-2", 0, True),
    ]
    picture = failure_order.picture(plan, events)
    assert [row["second"] for row in picture.data] == [0, 2]
    assert "first a3-3 rank 31: rank died at start: device is lost" in picture.alt
    assert "no rank failed" in failure_order.picture(plan, ()).alt


def test_accuracy_refuses_an_interval_beside_its_score():
    with pytest.raises(ValueError, match="GPQA"):
        score_intervals.picture([{"name": "GPQA", "score": 0.5, "low": 0.6, "high": 0.7}])


def test_a_folder_that_cannot_be_written(plan, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        topology_picture.picture(plan).save(tmp_path / "file")


def staged(nodes_file, *pairs):
    site = nodes_file("h200", 4)
    return build.plan("k2.5", "h200", "single", variant="pip", site=site, pairs=pairs)


def test_a_device_shows_its_stage(nodes_file):
    """Two ranks of two nodes each: a node is a stage of its rank."""
    plan = staged(nodes_file, "nodes=4", "dp=2", "pp=2")
    picture = topology_picture.picture(plan)
    said = texts(picture)
    for mark in ("r0 s0", "r0 s1", "r1 s0", "r1 s1"):
        assert said.count(mark) == 8
    assert any("2 copies, each over 16 devices, 2 stages" in text for text in said)
    assert "with 2 ranks of 2 pipeline stages" in picture.alt
    assert [row["stages"] for row in picture.data] == ["0", "1", "0", "1"]
    assert "8 x pp 2" in str(tables.topology(plan))


def test_stages_of_one_node_lie_side_by_side(nodes_file):
    (engine,) = staged(nodes_file, "tp=2", "pp=2", "dp=2").engines
    assert engine.stages == (0, 0, 1, 1, 0, 0, 1, 1)
    (wide,) = {one.stages for one in staged(nodes_file, "nodes=2", "tp=16").engines}
    assert wide == (0,) * 8


def test_one_copy_over_nodes_is_one_rank(nodes_file):
    picture = topology_picture.picture(staged(nodes_file, "nodes=2", "tp=16"))
    assert "with 1 rank;" in picture.alt and "stage" not in picture.alt
