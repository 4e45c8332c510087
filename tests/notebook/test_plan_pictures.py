"""Pictures that explain a plan: what they draw is what the plan says, readable at any size."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import pytest
from browser import lab as labs
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFont
from plan import random_shapes
from testbed import deployments

from kimi_nb.check import judge
from kimi_nb.core.errors import ParameterError
from kimi_nb.notebook import pictures
from kimi_nb.notebook.pictures import (
    diagram,
    dispatch_window,
    draft_acceptance,
    graph_padding,
    node_ports,
    rank_ports,
    request_path,
    roofline_picture,
)
from kimi_nb.plan import build
from kimi_nb.show import style
from kimi_nb.show.picture import Picture

SVG = "{http://www.w3.org/2000/svg}"
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
# Drawn by hand: texts have a place and a size of their own, which can be measured.
BY_HAND = ("request", "ranks", "hccl")
CHARTS = ("graphs", "drafts", "roofline")
HOSTILE = "</text><script>alert(1)</script>\x1b[31m&\"'"


@functools.cache
def drawn(row, name):
    return pictures.draw(made(row), name)


@functools.cache
def made(row):
    model, hardware, layout, variant, scenario = row
    return build.plan(model, hardware, layout, variant=variant, scenario=scenario)


def sample() -> list[tuple]:
    """A deployment of each hardware, and one of each layout and of many drafts."""
    kinds = {}
    for row in deployments.rows():
        kinds.setdefault(row[1], row)
        kinds.setdefault(row[2], row)
        kinds.setdefault(row[0] == "k2.6", row)
    return list(dict.fromkeys(kinds.values()))


@pytest.fixture(scope="module")
def plan():
    return build.plan("k2.5", "a3", "pd")


@pytest.fixture(scope="module")
def single():
    return build.plan("k2.5", "h200", "single")


@functools.cache
def font(mono: bool, bold: bool) -> ImageFont.FreeTypeFont:
    """DejaVu, which matplotlib brings along, with 100 units to the font size."""
    name = f"DejaVuSans{'Mono' * mono}{'-Bold' * bold}.ttf"
    return ImageFont.truetype(str(FONTS / name), 100)


def measured(picture) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Every text with its box, in DejaVu's metrics: among the widest of what a browser may have."""
    out = []
    for one in ElementTree.fromstring(picture.svg).iter(f"{SVG}text"):
        look, text = one.get("style"), "".join(one.itertext())
        size = float(re.search(r"font-size: ([\d.]+)px", look)[1])
        wide = font("Mono" in look, "bold" in look).getlength(text) * size / 100
        x, y = float(one.get("x")), float(one.get("y"))
        x -= {"start": 0.0, "middle": wide / 2, "end": wide}[one.get("text-anchor")]
        out.append((text, (x, y - 0.76 * size, x + wide, y + 0.22 * size)))
    return out


def whole(picture) -> None:
    """What must hold of any picture: XML, words, no number that is none, nothing from elsewhere."""
    ElementTree.fromstring(picture.svg)
    assert picture.alt.endswith(".") and len(picture.alt) > len(picture.title) + 20
    assert not re.search(r"\b(nan|NaN|inf|None)\b", picture.svg)
    json.dumps(picture.as_dict(), allow_nan=False)
    assert "currentColor" in picture.svg and style.INK not in picture.svg
    assert not re.search(r"(?:href|src)=.(?!#)|@import|url\((?!#)", picture.svg)


def boxes(picture) -> list[tuple[float, float, float, float]]:
    out = []
    for one in ElementTree.fromstring(picture.svg).iter(f"{SVG}rect"):
        x, y, wide, high = (float(one.get(name)) for name in ("x", "y", "width", "height"))
        out.append((x, y, x + wide, y + high))
    return out


def apart(picture) -> None:
    """No text over another, none beyond the picture; a box lies beside another one or within it."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture.svg).groups())
    texts = measured(picture)
    for text, (x0, y0, x1, y1) in texts:
        assert x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height + 1, (picture.name, text)
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        overlap = min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1
        assert not overlap, (picture.name, one, other)
    for a, b in itertools.combinations(boxes(picture), 2):
        beside = min(a[2], b[2]) - max(a[0], b[0]) <= 1 or min(a[3], b[3]) - max(a[1], b[1]) <= 1
        inner = (max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))
        assert beside or inner in (a, b), (picture.name, a, b)


@pytest.mark.parametrize("name", BY_HAND)
def test_texts_of_every_plan_stand_apart(each_plan, name):
    picture = pictures.draw(each_plan, name)
    whole(picture)
    apart(picture)


def test_random_shapes_are_drawn(nodes_file):
    found = [random_shapes.planned(shape, nodes_file) for shape in random_shapes.shapes(60)]
    plans = [plan for plan in found if not isinstance(plan, str)]
    assert len(plans) > 30
    for plan, name in itertools.product(plans, BY_HAND):
        picture = pictures.draw(plan, name)
        whole(picture)
        apart(picture)


@pytest.mark.parametrize("row", sample(), ids="-".join)
@pytest.mark.parametrize("name", CHARTS)
def test_charts_of_a_sample_are_whole(row, name):
    whole(drawn(row, name))


def test_each_has_a_name_and_another_is_refused(plan, single, tmp_path):
    for one in (plan, single):
        every = [pictures.draw(one, name) for name in pictures.NAMES]
        assert [picture.name for picture in every] == list(pictures.NAMES)
        for picture in every:
            saved, _ = picture.save(tmp_path)
            root = ElementTree.fromstring(saved.read_text())
            assert root.find(f"{SVG}desc").text == picture.alt and root.get("color")
    with pytest.raises(ParameterError, match="did you mean 'request'"):
        pictures.draw(plan, "requests")


def test_a_derived_plan_says_so():
    plan = build.plan("k2.5", "h20", "pd", derive=True)
    for name in set(pictures.NAMES) - {"memory"}:
        picture = pictures.draw(plan, name)
        assert picture.title.startswith("DERIVED ") and "DERIVED " in picture.alt


def hostile(plan):
    engines = tuple(
        dataclasses.replace(one, node=one.node + HOSTILE, address=HOSTILE) for one in plan.engines
    )
    router = dataclasses.replace(plan.router, node=HOSTILE, kind=HOSTILE)
    return dataclasses.replace(plan, engines=engines, router=router)


@pytest.mark.parametrize("name", BY_HAND[:2])
def test_hostile_names_are_text(plan, name):
    picture = pictures.draw(hostile(plan), name)
    whole(picture)
    apart(picture)
    page = picture._repr_html_()
    assert "<script" not in page and "\x1b" not in picture.svg
    assert "\x1b" not in str(picture)


def test_a_planted_overlap_is_found():
    for x, y in ((14, 12), (90, 40)):
        drawing = diagram.Diagram(100)
        drawing.text(10, 10, "one text")
        drawing.text(x, y, "another")
        with pytest.raises(AssertionError, match="another"):
            apart(Picture("planted", "", drawing.finish(50), "", ()))


# What a browser makes of them: its own fonts, at widths of a desktop, a notebook, a telephone.
_LOOK = """() => {
  const bad = [], figures = [...document.querySelectorAll("figure")];
  for (const figure of figures) {
    const name = figure.dataset.name, frame = figure.querySelector("svg").getBoundingClientRect();
    const texts = [...figure.querySelectorAll("text")].map(
      one => ({said: one.textContent.trim(), box: one.getBoundingClientRect()}));
    const most = 2;
    for (const [at, one] of texts.entries()) {
      const a = one.box;
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.bottom > frame.bottom + 1)
        bad.push([name, "outside", one.said]);
      if (a.height < 6.5 && a.width < 6.5) bad.push([name, "small", one.said]);
      for (const other of texts.slice(at + 1)) {
        const b = other.box;
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > most && high > 0.3 * Math.min(a.height, b.height))
          bad.push([name, one.said, other.said]);
      }
    }
  }
  const page = document.documentElement;
  if (page.scrollWidth > page.clientWidth) bad.push(["page", "scrolls", page.scrollWidth]);
  return [figures.length, bad];
}"""


def test_a_browser_writes_no_text_over_another():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not labs.CHROMIUM:
        pytest.skip("no chromium (apt-get install chromium)")
    every = [drawn(row, name) for row in sample() for name in pictures.NAMES]
    page = "".join(
        one._repr_html_().replace("<figure ", f'<figure data-name="{one.title}" ', 1)
        for one in every
    )
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=labs.CHROMIUM, args=labs.ARGUMENTS)
        for width in (1440, 1024, 400):
            tab = browser.new_page(viewport={"width": width, "height": 900})
            tab.set_content(f"<body>{page}</body>")
            assert tab.evaluate(_LOOK) == [len(every), []], width
        browser.close()


# request ------------------------------------------------------------------------------------


def test_a_request_goes_through_prefill_to_decode(plan):
    steps = request_path.steps(plan)
    assert [(step.start, step.end) for step in steps] == [
        ("client", "router"),
        ("router", "prefill"),
        ("prefill", "prefill"),
        ("prefill", "router"),
        ("router", "decode"),
        ("prefill", "decode"),
        ("decode", "decode"),
        ("decode", "client"),
    ]
    moved = steps[5].where
    assert "MooncakeConnectorV1" in moved and "192.0.2.11:36000 (36000-36007" in moved
    assert plan.url in steps[0].where and "one of 31 more" in steps[4].where
    assert "1 to 4 tokens (3 drafts, eagle3)" in steps[6].where
    picture = request_path.picture(plan)
    assert all(f"{number}) " in picture.alt for number in range(1, 9))
    assert [row["step"] for row in picture.data] == list(range(1, 9))


def test_nixl_shakes_hands_at_its_side_channel():
    plan = build.plan("k2.5", "gb200", "pd", variant="nvfp4")
    (moved,) = [step for step in request_path.steps(plan) if step.kind == "cache"]
    assert "NixlConnector: decode shakes hands at 203.0.113.31:5600, then reads" in moved.where


@pytest.mark.parametrize(
    "model, hardware, layout, variant, lanes, said",
    [
        ("k2.5", "h200", "single", None, ("client", "API", "engine"), "the only rank"),
        ("k2.5", "a2", "dp", None, ("client", "API", "engine"), "192.0.2.21:13389 (rpc)"),
        (
            "k2.5",
            "gb200",
            "dp",
            "tensor-parallel",
            ("client", "API", "engine"),
            "one rank over 2 nodes, which meet at 203.0.113.31:29501 (master)",
        ),
    ],
)
def test_the_simpler_forms(model, hardware, layout, variant, lanes, said):
    plan = build.plan(model, hardware, layout, **({"variant": variant} if variant else {}))
    steps = request_path.steps(plan)
    assert tuple(dict.fromkeys(one for step in steps for one in (step.start, step.end))) == lanes
    assert said in request_path.picture(plan).alt


def test_replicas_and_a_store_have_lanes(stored_model, nodes_file):
    plan = build.plan(stored_model(), "h200", "single", site=nodes_file("h200", 2))
    steps = request_path.steps(plan)
    lanes = {one for step in steps for one in (step.start, step.end)}
    assert lanes == {"client", "router", "API", "engine", "KV store"}
    assert "in turn" in steps[1].where and "50051" in request_path.picture(plan).alt
    for name in BY_HAND:
        apart(pictures.draw(plan, name))


@pytest.mark.parametrize("name", BY_HAND)
def test_ranks_over_nodes_and_long_addresses(wide_model, nodes_file, name):
    wide = build.plan(wide_model, "h200", "pd", variant="wide", site=nodes_file("h200", 4))
    apart(pictures.draw(wide, name))
    engines = tuple(
        dataclasses.replace(
            one, node=f"rack-17-{one.node}.example.org", address="2001:db8::a:b:c:d"
        )
        for one in wide.engines
    )
    apart(pictures.draw(dataclasses.replace(wide, engines=engines), name))


def test_an_address_of_ipv6_stands_in_brackets(plan):
    engines = tuple(dataclasses.replace(one, address="2001:db8::7") for one in plan.engines)
    moved = dataclasses.replace(plan, engines=engines)
    assert "[2001:db8::7]:36000" in request_path.picture(moved).alt
    assert rank_ports.picture(moved).data[0]["api"] == "[2001:db8::7]:7100"


# ranks --------------------------------------------------------------------------------------


def test_every_port_of_the_plan_is_drawn(each_plan):
    for node in each_plan.nodes:
        cells = node_ports.cells(each_plan, node)
        listening = {
            int(number)
            for cell in cells.values()
            if cell.listens
            for part in cell.text.split(", ")
            for number in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)
        }
        for engine in each_plan.of(node):
            held = {engine.http_port, *engine.kv_ports, *engine.side_channel_ports} - {None}
            assert held <= listening
        assert set(cells) <= set(node_ports.PURPOSES)
    said = rank_ports.picture(each_plan).alt
    for kind in {kind for node in each_plan.nodes for kind in node_ports.cells(each_plan, node)}:
        assert f"{kind}: {node_ports.PURPOSES[kind]}" in said


def test_ranks_of_other_nodes_join_the_first(plan):
    assert node_ports.cells(plan, "a3-2")["rpc"] == node_ports.Cell(
        "12321", True, "first of its group"
    )
    assert node_ports.cells(plan, "a3-3")["rpc"] == node_ports.Cell("→ 12321", False, "of a3-2")
    assert "random ports from 20000 to 35999" in rank_ports.picture(plan).alt


@pytest.mark.parametrize("nodes", [1, 4, 5, 64])
def test_from_one_node_to_many(single, nodes):
    (engine,) = single.engines
    copies = tuple(
        dataclasses.replace(engine, node=f"node-{at}", name=f"mixed{at}-rank0", group=at)
        for at in range(nodes)
    )
    wide = dataclasses.replace(single, engines=copies)
    picture = rank_ports.picture(wide)
    apart(picture)
    assert len(picture.data) == nodes and len(picture.svg) < 30_000
    assert ("× " in picture.svg) == (nodes > 4)
    if nodes == 64:
        assert "× 61 more nodes" in picture.svg and "and 61 more nodes" in picture.alt


# graphs -------------------------------------------------------------------------------------


def test_the_sizes_that_vllm_captures():
    """Of public logs: max-num-seqs 8; and 5 drafts, whose list has no 30, 54 nor 78."""
    assert graph_padding.captured(8, 0, 8192) == (1, 2, 4, 8, 16)
    logged = [6, 12, 18, 24, 36, 42, 48, 60, 66, 72]
    sizes = graph_padding.in_steps(graph_padding.captured(256, 5, 8192), 5)
    assert list(sizes[: len(logged)]) == logged
    assert graph_padding.captured(1024, 3, 8192)[-1] == 512
    assert graph_padding.captured(64, 3, 128)[-1] == 128


@given(
    sizes=st.sets(st.integers(1, 600), max_size=40),
    seqs=st.integers(1, 300),
    draft=st.integers(0, 15),
)
def test_padding_never_shortens_a_step(sizes, seqs, draft):
    steps = graph_padding.padded(sorted(sizes), seqs, draft)
    assert [step.tokens for step in steps] == [n * (draft + 1) for n in range(1, seqs + 1)]
    for step in steps:
        smaller = [size for size in sizes if size >= step.tokens]
        assert step.graph == (min(smaller) if smaller else None) and step.padding >= 0
    assert 0 <= graph_padding.waste(steps) < 1


def test_the_named_sizes_are_those_of_the_plan():
    plan = build.plan("k2.5", "a3", "single")
    picture = graph_padding.picture(plan)
    assert {row["graph"] for row in picture.data} == {4, 8, 16, 32, 64, 128, 256}
    assert "7 captured sizes (named by the plan)" in picture.alt and "23.8 %" in picture.alt
    assert "33 sequences with 132 tokens run in the graph of 256" in picture.alt


def test_without_graphs_there_is_no_padding(single):
    eager = build.plan("k2.5", "h200", "single", pairs=["enforce-eager=true"])
    assert "no graph is captured" in graph_padding.picture(eager).alt
    assert "without a graph: 513 to 1024 sequences" in graph_padding.picture(single).alt


# drafts -------------------------------------------------------------------------------------


@given(drafts=st.integers(1, 32), acceptance=st.floats(0, 0.999))
def test_expected_tokens_are_those_of_the_formula(drafts, acceptance):
    found = draft_acceptance.expected_tokens(drafts, acceptance)
    assert found == pytest.approx((1 - acceptance ** (drafts + 1)) / (1 - acceptance))
    assert 1 <= found <= drafts + 1


def test_drafts_are_those_of_the_plan(plan, single):
    assert "3 drafts (eagle3)" in draft_acceptance.picture(plan).alt
    assert "no drafts" in draft_acceptance.picture(single).alt
    parallel = draft_acceptance.picture(build.plan("k2.6", "a3", "single"))
    assert parallel.data[-1]["tokens_per_step"] == 16


# hccl ---------------------------------------------------------------------------------------


def test_the_window_is_that_of_the_rule(plan):
    window = dispatch_window.window(plan)
    assert (window.ranks, window.local, window.tokens) == (32, 12, 192)
    assert (window.need_mb, window.buffer_mb, window.device_mb) == (2131, 2200, 5200)
    picture = dispatch_window.picture(plan)
    assert "69 MB are spare" in picture.alt and "2131 MB" in picture.alt


def test_a_buffer_that_is_too_small_is_told_as_the_rule_tells_it():
    small = build.plan("k2.5", "a3", "pd", pairs=["decode.env.HCCL_BUFFSIZE=1000"])
    assert "1131 MB are missing" in dispatch_window.picture(small).alt
    found = [one for one in judge.plan(small).findings if one.rule == "capacity/hccl-buffer"]
    assert found and "2131 MB" in found[0].message


def test_where_there_is_no_hccl(single):
    assert "have no HCCL" in dispatch_window.picture(single).alt


# roofline -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", sample(), ids="-".join)
def test_points_lie_on_or_below_the_roof(row):
    plan = made(row)
    peaks = plan.request.hardware.peaks
    for point in roofline_picture.points(plan):
        slope = point.intensity * peaks.memory_gb_s.value / 1e3
        assert point.attainable == pytest.approx(min(point.peak, slope))
        assert point.bound == ("bandwidth" if slope <= point.peak else "arithmetic")


def test_every_figure_says_what_kind_it_is(plan, single):
    for one in (plan, single):
        picture = roofline_picture.picture(one)
        assert {row["figure"] for row in picture.data} == {"published", "derived"}
        assert all(row["source"] for row in picture.data)
        assert picture.alt.count("(derived)") == 2
    longer = roofline_picture.points(plan, input_len=8192)
    assert longer[0].intensity > roofline_picture.points(plan)[0].intensity
    with pytest.raises(ParameterError, match="input_len"):
        roofline_picture.picture(plan, input_len=0)
    cpu = roofline_picture.picture(build.plan("k2.5", "cpu", "single"))
    assert "are not published" in cpu.alt


# diagram ------------------------------------------------------------------------------------


@given(
    text=st.text(max_size=60),
    size=st.sampled_from([9.0, 9.5, 11.0]),
    mono=st.booleans(),
    bold=st.booleans(),
)
def test_a_shortened_text_fits_and_is_xml(text, size, mono, bold):
    drawing = diagram.Diagram(200)
    drawing.text(0, 10, text, room=80, size=size, mono=mono, bold=bold)
    root = ElementTree.fromstring(drawing.finish(20))
    said = "".join(root.itertext())
    assert diagram.width_of(said, size, mono=mono, bold=bold) <= 80


@pytest.mark.parametrize("mono, bold", [*itertools.product((False, True), repeat=2)])
def test_the_estimate_is_no_less_than_the_font(mono, bold):
    for text in (
        "192.0.2.11:7100 or one of 31 more, the least loaded",
        "prefill: 2 nodes, 2 groups, 4 ranks of 8 devices",
        "→ 12321, × 28 more…",
        "HCCL_BUFFSIZE MooncakeConnectorV1 WWW mmm",
    ):
        assert diagram.width_of(text, 100, mono=mono, bold=bold) >= 0.99 * font(
            mono, bold
        ).getlength(text)
