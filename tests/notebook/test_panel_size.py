"""The panel's tab of sizes: what is asked, searched in the background, and loaded into the choices."""

from __future__ import annotations

import pytest

from kimi_nb import i18n
from kimi_nb.check import judge
from kimi_nb.core.errors import BenchError
from kimi_nb.notebook import size_proposal
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import pages, size_request, widgets

ASKED = {
    "input": "4000",
    "output": "500",
    "lengths": "",
    "ttft": "2s",
    "tpot": "50ms",
    "nodes": "",
}
MIX = "1000:200:0.9,60000:800:0.1"
PD = Choice("k2.5", "a3", "pd")


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"input": "many"}, "input", "a whole number of 1 to 100000000 is wanted, found 'many'"),
        ({"input": ""}, "input", "found nothing"),
        ({"output": "0"}, "output", "a whole number of 1"),
        ({"output": "\u0663"}, "output", "a whole number of 1"),
        ({"ttft": "2"}, "ttft", "TTFT: a time above 0 with its unit is wanted, such as 50ms or 2s"),
        ({"tpot": "-5ms"}, "tpot", "TPOT: a time above 0"),
        ({"nodes": "0"}, "nodes", "a whole number of 1 to 4096"),
        ({"nodes": "4097"}, "nodes", "a whole number of 1 to 4096"),
        ({"input": "300000"}, "input", "the context of Kimi-K2.5 is 262144: write 38356 less"),
        ({"lengths": "1000:200"}, "lengths", "lengths of requests: IN:OUT:WEIGHT is wanted"),
        ({"lengths": "1000:200:0"}, "lengths", "found '1000:200:0'"),
        ({"lengths": "0:200:1"}, "lengths", "lengths of requests: IN:OUT:WEIGHT is wanted"),
        ({"lengths": "200000000:2:1"}, "lengths", "1 to 100000000 tokens"),
        ({"lengths": "\u0663:2:1"}, "lengths", "lengths of requests: IN:OUT:WEIGHT is wanted"),
        ({"lengths": "1:1:1," * 2000}, "lengths", "lengths of requests: at most 1000"),
        ({"lengths": "9:9:9,300000:500:1"}, "lengths", "262144: write 38356 less"),
    ],
)
def test_a_mistake_says_what_to_write(change, field, says):
    asked = size_request.read(ASKED | change, PD, 4)
    assert [*asked.mistakes] == [field] and says in asked.mistakes[field]
    assert not asked.ready


def test_more_nodes_than_the_site_has():
    given = Choice("k2.5", "a3", "pd", site="a3")
    asked = size_request.read(ASKED | {"nodes": "99"}, given, 4)
    assert "99 nodes; the site has" in asked.mistakes["nodes"]


def test_what_is_asked():
    asked = size_request.read(ASKED | {"ttft": "", "tpot": " 20 ms "}, PD, 4)
    assert (asked.input_len, asked.output_len, asked.ttft_ms, asked.tpot_ms) == (4000, 500, 0, 20)
    assert asked.nodes == 4 and asked.ready
    assert asked.workload == {"input_len": 4000, "output_len": 500}
    assert size_request.read(ASKED | {"nodes": "2"}, PD, 4).nodes == 2
    without = size_request.read(ASKED, PD, 0)
    assert not without.mistakes and not without.ready, "no plan to take the nodes of"


@pytest.mark.parametrize("other", [{}, {"input": "", "output": "many"}, {"input": "300000"}])
def test_lengths_are_asked_in_place_of_input_and_output(other):
    asked = size_request.read(ASKED | other | {"lengths": f" {MIX} "}, PD, 4)
    assert asked.workload == {"lengths": MIX} and asked.ready and not asked.mistakes
    blank = size_request.read(ASKED | {"lengths": "  "}, PD, 4)
    assert blank.workload == {"input_len": 4000, "output_len": 500}


@pytest.fixture
def panel(run):
    return run.panel(run.choose("pd"))


def _searched(made, panel):
    made.open(pages.SIZE)
    made.sizes.buttons["Search"].click()
    assert panel.sizes.running and made.sizes.buttons["Search"].disabled
    assert "searches sizes of k2.5 on a3, 4 nodes" in made.sizes._status.value
    assert made._tabs.titles[pages.TABS.index("Size")] == "Size …"
    assert panel.sizes.wait(120) and panel.sizes.found.answer is not None, panel.sizes.error
    return panel.sizes.found.answer.candidates


def test_what_is_found_is_shown_and_one_is_loaded(panel):
    made = widgets.Widgets(panel)
    assert made.sizes._loads.layout.display == "none"
    assert "Each candidate is a plan" in made.sizes._result.value
    found = _searched(made, panel)
    count = len(found)
    assert count > 2 and made._tabs.titles[pages.TABS.index("Size")] == f"Size {count}"
    shown = made.sizes._result.value
    assert "estimated" in shown and " to " in shown and "limited by" in shown
    assert "factors: not calibrated" in shown
    options = made.sizes.candidate.control.options
    assert [value for _, value in options] == [*range(count)]
    made.sizes.candidate.control.value = 1
    made._texts["overrides"].control.value = "decode.max-num-seqs=9"
    made.sizes.buttons["Apply"].click()
    wanted = size_proposal.proposed(panel.sizes.found.choice, found[1])
    assert panel.choices == wanted
    assert made._texts["overrides"].control.value == wanted.overrides
    assert made._lists["layout"].control.value == wanted.layout
    assert panel.look.plan is not None and not judge.plan(panel.look.plan).errors
    assert panel.look.plan.name in made._head.value
    assert "the sizes are those of" in made._note.value
    made.open("Topology")
    assert panel.look.plan.name in made._pages["Topology"].value


def test_choices_that_the_search_does_not_have_are_left_out(panel):
    made = widgets.Widgets(panel)
    found = _searched(made, panel)
    made._lists["layout"].control.value = "single"
    made._lists["scenario"].control.value = "throughput"
    made.sizes.buttons["Apply"].click()
    assert panel.choices == size_proposal.proposed(panel.sizes.found.choice, found[0])
    assert "left out, as the search knew nothing of it: scenario" in made._note.value


def test_a_mistake_is_red_by_its_field_and_told_on_every_tab(panel):
    made = widgets.Widgets(panel)
    made.open(pages.SIZE)
    tpot = made.sizes.fields["tpot"]
    tpot.control.value = "50"
    assert "kimi-wrong" in tpot.box._dom_classes and "such as 50ms" in tpot.mistake.value
    assert made.sizes.buttons["Search"].disabled
    assert made._tabs.titles[pages.TABS.index("Size")] == "Size \N{BALLOT X}"
    assert "such as 50ms" not in made._note.value, "it stands by its field, in the open tab"
    for tab in ("Topology", "Service"):
        made.open(tab)
        assert "Size: TPOT: a time" in made._note.value and 'role="alert"' in made._note.value
    made.open(pages.SIZE)
    tpot.control.value = "50ms"
    assert "kimi-wrong" not in tpot.box._dom_classes and tpot.mistake.value.count("alert") == 0
    made.open("Topology")
    assert 'role="alert"' not in made._note.value and not made.sizes.buttons["Search"].disabled


def test_a_distribution_is_searched_in_place_of_input_and_output(panel):
    made = widgets.Widgets(panel)
    fields = made.sizes.fields
    fields["lengths"].control.value = MIX
    assert fields["input"].control.disabled and fields["output"].control.disabled
    _searched(made, panel)
    assert panel.sizes.found.answer.load.longest == 60800
    fields["lengths"].control.value = ""
    assert not fields["input"].control.disabled and not fields["output"].control.disabled


def test_a_mistake_in_lengths_is_red_by_their_field_alone(panel):
    made = widgets.Widgets(panel)
    made.open(pages.SIZE)
    made.sizes.fields["lengths"].control.value = "1000:200"
    field = made.sizes.fields["lengths"]
    assert "kimi-wrong" in field.box._dom_classes and "IN:OUT:WEIGHT" in field.mistake.value
    assert [*made.sizes.mistakes] == ["lengths"] and made.sizes.buttons["Search"].disabled
    made.open("Topology")
    assert "Size: lengths of requests: IN:OUT:WEIGHT" in made._note.value


def test_a_model_with_a_shorter_context_makes_it_a_mistake(panel):
    made = widgets.Widgets(panel)
    made.sizes.fields["input"].control.value = "200000"
    assert not made.sizes.mistakes
    made._lists["model"].control.value = "k2-instruct"
    made._lists["hw"].control.value = "h200"
    assert "the context of" in made.sizes.mistakes["input"]


def test_without_a_plan_the_nodes_are_asked_for(panel):
    made = widgets.Widgets(panel)
    made._texts["overrides"].control.value = "nonsense"
    assert made.sizes.buttons["Search"].disabled and "write how many" in made.sizes._status.value
    made.sizes.fields["nodes"].control.value = "2"
    assert not made.sizes.buttons["Search"].disabled


def test_hardware_without_figures_says_which(panel):
    made = widgets.Widgets(panel)
    made._lists["hw"].control.value = "mi350x"
    made.sizes.buttons["Search"].click()
    assert panel.sizes.wait(60)
    assert "memory_gb_s" in made.sizes._result.value and 'role="alert"' in made.sizes._result.value
    assert made.sizes._loads.layout.display == "none"


def test_what_goes_wrong_in_the_search_is_told_and_escaped(panel, monkeypatch):
    def broken(*_, **__):
        raise BenchError("<script>alert(1)</script>")

    monkeypatch.setattr(size_proposal, "propose", broken)
    made = widgets.Widgets(panel)
    made.sizes.buttons["Search"].click()
    assert panel.sizes.wait(60) and panel.sizes.found is None
    assert "alert(1)" in made.sizes._status.value and "<script" not in made.sizes._status.value
    assert not made.sizes.buttons["Search"].disabled


def test_the_tab_speaks_chinese(panel):
    made = widgets.Widgets(panel)
    with i18n.using("en"):
        made._language.value = "zh"
        at = pages.TABS.index("Size")
        assert made._tabs.titles[at] == "规模"
        assert made.sizes.buttons["Search"].description == "搜索"
        assert made.sizes.fields["input"].control.description == "输入 token 数"
        assert made.sizes.fields["lengths"].control.description == "长度分布"
        made.sizes.fields["lengths"].control.value = "1000:200"
        assert "请求的长度：需要 IN:OUT:WEIGHT" in made.sizes.fields["lengths"].mistake.value
        made.sizes.fields["lengths"].control.value = ""
        assert "每个候选" in made.sizes._result.value
        made.sizes.fields["tpot"].control.value = "50"
        assert "需要" in made.sizes.fields["tpot"].mistake.value
        made._language.value = "en"
        assert made._tabs.titles[at] == "Size \N{BALLOT X}"
