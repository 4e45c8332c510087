"""The widgets of the panel without a browser: what a person would set and press."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kimi_nb import i18n
from kimi_nb.core import evidence
from kimi_nb.notebook.choice import Choice
from kimi_nb.notebook.panel import (
    choice_labels,
    mistakes,
    pages,
    panel_style,
    role_sizes,
    widgets,
    work,
)
from kimi_nb.notebook.pictures import topology_picture
from kimi_nb.show import style

ROOT = Path(__file__).resolve().parents[2]
PD = Choice("k2.5", "a3", "pd")


# What stands by which field --------------------------------------------------------------


@pytest.mark.parametrize(
    "change, field, says",
    [
        ({"overrides": "max-num-seq=3"}, "overrides", "did you mean 'max-num-seqs'"),
        ({"overrides": "max-num-seqs"}, "overrides", "key=value is wanted"),
        ({"overrides": "decode.dp=15"}, "decode.dp", "dp must be a multiple of 2"),
        ({"overrides": "max-num-seqs=8; decode.tp=3"}, "decode.tp", "allowed: 1, 2, 4, 8"),
        ({"overrides": "prefill.dp=0"}, "prefill.dp", "a whole number of 1 or more"),
        ({"site": "/nowhere.yaml"}, "site", "name one that exists"),
        ({"engine_version": "0.1"}, "engine_version", "did you mean"),
        ({"features": "flash"}, "features", "Allowed: "),
        ({"layout": "dp"}, "", "There is:"),
    ],
)
def test_a_mistake_belongs_to_a_field_and_says_what_to_write(change, field, says):
    given = Choice(**{"model": "k2.5", "hw": "a3", "layout": "pd"} | change)
    (found,) = mistakes.find(given)
    assert found.field == field and says in found.message
    assert not found.message.startswith("--set")


def test_every_mistake_is_told_by_its_own_field():
    given = Choice(
        "k2.5", "a3", "pd", overrides="decode.nodes=3; max-num-seq=9; prefill.tp=3; decode.pp=1"
    )
    found = mistakes.find(given)
    assert [one.field for one in found] == ["overrides", "prefill.tp", "decode.nodes"]
    assert found[2].fields == ("decode.nodes", "decode.pp"), "both are of the arithmetic"
    assert mistakes.find(PD) == ()


# Sizes -----------------------------------------------------------------------------------


def test_sizes_are_those_of_the_plan_and_set_overrides():
    assert role_sizes.sizes(PD)["prefill"] == {"groups": 2, "nodes": 1, "dp": 2, "tp": 8, "pp": 1}
    pairs = role_sizes.overridden(PD, "decode", "dp", 16)
    assert pairs == "decode.dp=16"
    given = Choice("k2.5", "a3", "pd", overrides=f"max-num-seqs=9; {pairs}")
    assert role_sizes.sizes(given)["decode"]["dp"] == 16
    assert role_sizes.overridden(given, "decode", "dp", 64) == "max-num-seqs=9; decode.dp=64"
    assert role_sizes.overridden(given, "decode", "dp", 32) == "max-num-seqs=9", "the recipe's"
    single = Choice("k2.5", "a3", "single", overrides="mixed.data-parallel-size=2; nonsense")
    assert role_sizes.sizes(single)["mixed"]["dp"] == 2
    assert role_sizes.overridden(single, "mixed", "dp", 1) == "nonsense; dp=1"
    plan = given.plan()
    assert role_sizes.uses(plan, "decode") == "16 of 32 devices on 2 nodes"


def test_a_scenario_has_sizes_of_its_own():
    for name, label in (("pd", ""), ("single", "throughput")):
        given = Choice("k2.5", "a3", name, scenario=label)
        plan = given.plan()
        for role, sizes in role_sizes.sizes(given).items():
            engine = plan.first(role)
            assert (sizes["dp"], sizes["tp"]) == (engine.dp_size, engine.tp_size)


# Names -----------------------------------------------------------------------------------


def test_choices_are_named_by_what_they_are():
    labels = choice_labels.labels(PD)
    assert labels["engine_version"][0] == ("v0.22.1rc1: of the recipe", "")
    assert labels["variant"][0][0].startswith("docker: ") and labels["variant"][0][1] == ""
    assert ("a3: Atlas 800 A3 (16 NPUs of 64 GB)", "a3") in labels["hw"]
    said = [label for options in labels.values() for label, _ in options]
    assert "default" not in " ".join(said) and all(said)
    # What is chosen by the default's own name is shown as the default.
    assert choice_labels.shown("docker", labels["variant"]) == ""
    assert choice_labels.shown("ci", labels["variant"]) == "ci"


def test_colours_do_not_depend_on_jupyterlab():
    """Notebook 7 has its variables, VS Code others, a saved page none."""
    for found in re.finditer(r"var\((--(?:jp|vscode)-[\w-]+)([,)])", panel_style.sheet()):
        assert found[2] == ",", f"{found[1]} has no fallback"
    rules = re.sub(r"@container[^{]*\{|/\*.*?\*/", "", panel_style.sheet())
    for selector in re.findall(r"([^{}]+)\{", rules.partition(">")[2]):
        assert all(one.strip().startswith(".kimi-panel") for one in selector.split(",")), selector


def test_the_colour_of_a_device_is_that_of_its_role():
    """With two tones in turn, so that ranks side by side can be told apart."""
    pd = topology_picture.picture(PD.plan()).svg
    single = topology_picture.picture(Choice("k2.5", "a3", "single").plan()).svg
    for svg, drawn in (
        (pd, {style.BLUE, style.SKY, style.ORANGE, style.YELLOW}),
        (single, {style.BLUE, style.SKY}),
    ):
        fills = set(re.findall(r"fill=\"(#[0-9a-f]{6})", svg)) & {*style.COLOURS}
        assert fills - {style.VERMILLION} == drawn  # that is the arrow of the cache


# Widgets ---------------------------------------------------------------------------------


def test_a_mistake_is_red_by_its_field_whatever_tab_is_open(run):
    panel = run.panel(run.choose("pd"))
    made = widgets.Widgets(panel)
    overrides = made._texts["overrides"]
    for tab in ("Topology", "Parameters", "Service"):
        made._tabs.selected_index = pages.TABS.index(tab)
        overrides.control.value = "max-num-seq=9; decode.tp=3"
        assert "kimi-wrong" in overrides.box._dom_classes
        assert "did you mean" in overrides.mistake.value and "role=" in overrides.mistake.value
        assert overrides.control.description.endswith(" Overrides") and "2 mistakes" in (
            made._head.value
        )
        tp = made._roles["decode"].fields["tp"]
        assert tp.control.value == 3 and "kimi-wrong" in tp.box._dom_classes
        assert "kimi-wrong" not in made._roles["decode"].fields["dp"].box._dom_classes
        overrides.control.value = ""
        assert "kimi-wrong" not in overrides.box._dom_classes and (
            "role=" not in overrides.mistake.value
        )
        assert "kimi-wrong" not in tp.box._dom_classes and tp.control.value == 1
        assert overrides.control.description == "Overrides"


def test_a_choice_of_language_redraws_the_panel_at_once(run):
    panel = run.panel(run.choose("pd"))
    with i18n.using("en"):
        made = widgets.Widgets(panel)
        english = made._head.value
        made._language.value = "zh"
        assert i18n.current() == "zh"
        assert made._lists["model"].control.description == "模型"
        assert made._buttons["Rehearse"].description == "预演"
        assert made._tabs.titles[0] == "拓扑" and made._tabs.titles[1].startswith("检查结果 0/")
        assert "36 个引擎，4 个节点" in made._head.value
        assert ("pd：预填充与解码分离", "pd") in made._lists["layout"].control.options
        assert "没有运行" in made._service["progress"].value
        made._texts["overrides"].control.value = "max-num-seq=9"
        assert "1 处错误" in made._head.value and "没有计划" not in made._head.value
        assert made._texts["overrides"].control.description.endswith("覆盖值")
        made._texts["overrides"].control.value = ""
        made._language.value = "en"
        assert made._head.value == english and made._tabs.titles[0] == "Topology"
        assert made._lists["model"].control.description == "Model"
        assert panel.choices.layout == "pd"


def test_a_size_that_is_typed_becomes_an_override(run):
    panel = run.panel(run.choose("pd"))
    made = widgets.Widgets(panel)
    made._roles["decode"].fields["dp"].control.value = 16
    assert panel.choices.overrides == "decode.dp=16"
    assert made._texts["overrides"].control.value == "decode.dp=16"
    assert len(panel.look.plan.engines) == 20
    assert "16 of 32 devices" in made._roles["decode"]._uses.value
    made._roles["decode"].fields["dp"].control.value = 0
    assert "a whole number of 1 or more" in made._roles["decode"]._mistake.value
    made._roles["decode"].fields["dp"].control.value = 32
    assert panel.choices.overrides == "" and panel.look.plan is not None
    made._lists["layout"].control.value = "single"
    assert made._roles["decode"].box.layout.display == "none"
    assert made._roles["mixed"].box.layout.display is None


def test_tabs_have_counts(run):
    panel = run.panel(run.choose("pd"))
    made = widgets.Widgets(panel)
    found = panel.look.findings
    files = sum(len(part) for part in panel.look.parts.values())
    assert made._tabs.titles[1] == f"Findings 0/{len(found.findings)}"
    assert made._tabs.titles[3] == f"Scripts {files}" and made._tabs.titles[4] == "Changes 0"
    made._texts["overrides"].control.value = "decode.max-num-seqs=9"
    assert made._tabs.titles[4] == "Changes 1"
    made._texts["overrides"].control.value = "nonsense"
    assert made._tabs.titles == pages.TABS


def test_each_file_has_a_button_of_its_own(run):
    look = run.panel(run.choose("pd")).look
    for folder, text in pages.scripts(look).items():
        assert text.count("<button") == len(look.parts[folder]) == text.count("<pre")
        for name in look.parts[folder]:
            assert f'aria-label="Copy {name}"' in text


def test_what_a_file_or_a_log_says_is_text(run):
    hostile = "</pre><script>alert(1)</script>\x1b[31m"
    assert "<script" not in panel_style.copyable(hostile, hostile)
    doing = run.panel(run.choose("single")).work
    doing.plan, doing.state, doing.line, doing.error = PD.plan(), work.FAILED, hostile, hostile
    doing.checks.line = doing.checks.error = hostile
    for said in (
        pages.status(doing, None),
        pages.progress(doing, None),
        pages.checking(doing),
    ):
        assert "alert(1)" in said and "<script" not in said and "</pre>" not in said


def test_the_service_is_there_from_the_first_second(run):
    panel = run.panel(run.choose("single"))
    made = widgets.Widgets(panel)
    assert "Nothing runs" in made._service["progress"].value
    assert made._status.value.endswith("nothing runs</span>")
    made._buttons["Rehearse"].click()
    assert pages.TABS[made._tabs.selected_index] == "Service"
    name = panel.look.plan.name
    assert f"Rehearsal of {name}: starting" in made._service["progress"].value
    assert "<progress" in made._service["progress"].value and name in made._status.value
    # The status is about what runs, not about what is chosen meanwhile.
    made._lists["layout"].control.value = "pd"
    assert f"{name}: " in made._status.value
    assert "The choices above are k2.5-a3-pd, which does not run" in made._status.value
    assert panel.work.wait(60) and panel.work.state == work.UP
    assert made._tabs.titles[-1] == "Service 1/1"
    assert "1 of 1" in made._service["result"].value
    made._buttons["Verify"].click()
    assert made._buttons["Verify"].disabled and not made._buttons["Stop"].disabled
    assert panel.work.checks.wait(60)
    assert "Verification" in made._service["checks"].value and "pass" in made._status.value
    made._buttons["Stop"].click()
    panel.work.stop()
    assert made._tabs.titles[-1] == "Service stopped"
    assert made._buttons["Stop"].disabled and not made._buttons["Rehearse"].disabled


def test_widgets_follow_the_choices(run):
    panel = run.panel(run.choose("pd"))
    made = widgets.Widgets(panel)
    assert 'aria-label="Four A3 nodes' in made._pages["Topology"].value
    made._tabs.selected_index = pages.TABS.index("Scripts")
    assert made._nodes.titles[:4] == panel.look.plan.nodes
    made._tabs.selected_index = 0
    made._lists["hw"].control.value = "h100"
    assert panel.choices.hw == "h100" and "k2.5-h100-dp" in made._pages["Topology"].value
    assert "layout is dp" in made._note.value
    made._tabs.selected_index = pages.TABS.index("Parameters")
    assert "hw: str = &quot;h100&quot;" in made._pages["Parameters"].value
    made._tabs.selected_index = 0
    made._texts["overrides"].control.value = "<b>=3"
    assert "&lt;b&gt;" in made._pages["Topology"].value
    assert made._buttons["Rehearse"].disabled
    made._texts["overrides"].control.value = ""
    assert not made._buttons["Rehearse"].disabled


def test_a_known_fault_stands_beside_the_choices(run):
    """Whichever tab is open; nothing can be deployed then, and all can be rehearsed."""
    panel = run.panel(run.choose("pd"))
    made = widgets.Widgets(panel)
    made._lists["hw"].control.value = "h100"
    assert 'role="alert"' not in made._note.value
    made._lists["variant"].control.value = "tp-pp"
    (fault,) = panel.look.findings.errors
    assert fault.rule == "truth/known-fault" and "v-k25-pp" in fault.message
    assert 'role="alert"' in made._note.value and "known fault v-k25-pp" in made._note.value
    assert made._buttons["Deploy"].disabled and not made._buttons["Rehearse"].disabled
    made._lists["variant"].control.value = ""
    assert 'role="alert"' not in made._note.value


def test_variants_are_listed_by_name_and_title(run):
    """Below model, hardware and layout: a layout may have fifteen."""
    panel = run.panel(run.choose("pd"))
    made = widgets.Widgets(panel)
    assert [*made._lists][:5] == ["model", "hw", "layout", "derive", "variant"]
    made._lists["model"].control.value = "k3"
    made._lists["hw"].control.value = "gb300"
    made._lists["layout"].control.value = "dp"
    options = made._lists["variant"].control.options
    assert len(options) > 10
    assert options[0][0].startswith("dep: Data parallel") and options[0][1] == ""
    assert ("tp: One engine over nodes, tensor parallel", "tp") in options
    assert all(label.startswith(f"{name}: ") for label, name in options[1:])
    made._lists["variant"].control.value = "tp"
    assert panel.choices.variant == "tp" and panel.look.plan is not None


@pytest.fixture
def mine(tmp_path):
    """A site of this machine without an engine: to deploy on it fails at the first look."""
    text = (ROOT / "params/sites/cpu.yaml").read_text()
    for old, new in (
        ("name: local\n", "name: mine\n"),
        ("{root}/runs/.local", str(tmp_path)),
        ("{root}/.engine", str(tmp_path / "none")),
        ("{root}", str(ROOT)),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine.yaml").write_text(text)
    return str(tmp_path / "mine.yaml")


def test_deploy_and_its_stop_want_the_sites_name(run, mine):
    panel = run.panel(run.choose("single")).choose(hw="cpu", site=mine)
    made = widgets.Widgets(panel)
    for typed in ("", "local", "a3-example"):
        made._confirm.control.value = typed
        made._buttons["Deploy"].click()
        assert "confirm it by its name" in made._confirm.mistake.value
        assert panel.work.state == work.IDLE and made._confirm.control.value == ""
    made._confirm.control.value = " mine "
    made._buttons["Deploy"].click()
    assert panel.work.wait(60) and panel.work.state == work.FAILED, panel.work.said
    assert "engine" in panel.work.said and panel.work.result.site == "mine"
    assert not made._buttons["Stop"].disabled and made._buttons["Verify"].disabled
    made._buttons["Stop"].click()
    assert "confirm it by its name" in made._confirm.mistake.value and panel.work.stoppable
    made._confirm.control.value = "mine"
    made._buttons["Stop"].click()
    panel.work.stop("mine")
    assert not panel.work.stoppable and made._buttons["Stop"].disabled
    line = next(one for one in evidence.read(run.folder) if one["stage"] == "panel")
    assert (line["did"], line["ok"]) == ("deploy", False)
