"""A person reads an executed notebook 05 and its report: long, narrow, light, dark."""

from __future__ import annotations

import re

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from browser import lab as labs  # noqa: E402
from browser.page_checks import CONTRAST, WIDER  # noqa: E402
from kimi_nb.notebook import runbook  # noqa: E402

if not labs.CHROMIUM:
    pytest.skip("no chromium (apt-get install chromium)", allow_module_level=True)

SCREENS = 15  # of 900 px at a width of 1440 px; 64 before scripts and long tables were folded


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run with notebook 05, rehearsed."""
    outcome = runbook.run("k2.5", "a3", only="05", run_dir=str(tmp_path_factory.mktemp("run")))
    assert outcome.ok, outcome
    return outcome.folder


@pytest.fixture(scope="module")
def browser():
    with labs.chromium() as found:
        yield found


@pytest.fixture
def opened(folder, browser):
    """A function that opens a page of the run at a width, in a colour scheme."""
    pages = []

    def open_page(name, width=1440, scheme="light"):
        size = {"width": width, "height": 900}
        pages.append(page := browser.new_page(viewport=size, color_scheme=scheme))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield open_page
    for page in pages:
        page.close()


def test_an_executed_notebook_is_short_and_begins_with_its_contents(opened, folder):
    page = opened("05_pd")
    height = page.evaluate("document.documentElement.scrollHeight")
    assert height <= SCREENS * 900, height
    links = page.locator("nav[aria-label=Contents] a")
    assert "Findings" in links.all_inner_texts() and links.count() >= 15
    for at in range(links.count()):
        target = links.nth(at).get_attribute("href").removeprefix("#")
        assert page.locator(f'[id="{target}"]').count() == 1, target
    assert links.first.bounding_box()["y"] < 900


def test_scripts_are_folded_one_by_one_and_can_be_copied(opened, folder):
    page = opened("05_pd")
    script = page.locator("details", has_text="a3-0/run_dp_template.sh").last
    sync_api.expect(script.locator("pre")).to_be_hidden()
    script.locator("summary").click()
    sync_api.expect(script.locator("pre")).to_be_visible()
    path = folder / "k2.5-a3-pd" / "bundle" / "a3-0" / "run_dp_template.sh"
    assert script.locator("pre").text_content().strip() == path.read_text().strip()
    script.locator("button").click()
    sync_api.expect(script.locator("button")).to_have_text("Copied")


@pytest.mark.parametrize("name", ["05_pd", "report"])
def test_node_sh_is_named_with_its_size(opened, name):
    page = opened(name)
    said = page.locator("main").text_content()
    assert re.search(r"a3-0/node\.sh .*?[\d,]+ bytes, not shown here", said)
    assert "At every moment FOLDER" not in said  # a line of node.sh


def test_a_long_table_shows_the_rest_at_a_click(opened):
    page = opened("05_pd")
    rest = page.locator("tbody.rest").first
    sync_api.expect(rest).to_be_hidden()
    page.locator("details.more summary").first.click()
    sync_api.expect(rest).to_be_visible()


@pytest.mark.parametrize("name", ["05_pd", "report"])
@pytest.mark.parametrize("width", [375, 1024])
def test_nothing_is_wider_than_a_phone_but_in_its_own_frame(opened, name, width):
    page = opened(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(WIDER) == []


@pytest.mark.parametrize("name", ["05_pd", "report"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_can_be_read_and_are_told_apart_without_colour(opened, name, scheme):
    page = opened(name, scheme=scheme)
    # Every mark that there is, also those that this run has no reason to show.
    page.evaluate(
        """() => { for (const word of ['ok', 'failed', 'fail', 'error', 'warning', 'note',
          'skipped', 'left-out', 'unfinished', 'rehearsal', 'same'])
          document.querySelector('.kimi td').innerHTML +=
            ` <span class="mark ${word} probe">${word}</span>`; }"""
    )
    marks = page.locator(".mark, th, .about, nav a")
    pairs = marks.evaluate_all(f"all => all.map(one => [one.textContent, ({CONTRAST})(one)])")
    assert pairs and [pair for pair in pairs if pair[1] < 4.5] == []
    symbol = "element => getComputedStyle(element, '::before').content"
    kinds = ("ok", "failed", "warning", "note", "left-out", "same")
    symbols = [page.locator(f".probe.{kind}").evaluate(symbol) for kind in kinds]
    assert len(set(symbols)) == len(kinds) and "none" not in symbols
    dark = page.locator("body").evaluate("element => getComputedStyle(element).backgroundColor")
    assert (sum(map(int, dark[4:-1].split(","))) < 200) == (scheme == "dark")
