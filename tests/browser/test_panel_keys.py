"""The panel in JupyterLab by the keyboard alone: choose, err, look, rehearse, verify, stop."""

from __future__ import annotations

import re

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from browser import lab as labs  # noqa: E402

if not labs.CHROMIUM:
    pytest.skip("no chromium (apt-get install chromium)", allow_module_level=True)

LOAD, RUN = 60_000, 150_000  # milliseconds on a machine that has other work
sync_api.expect.set_options(timeout=LOAD)
_FOCUSED = """() => { const e = document.activeElement; return e.closest('.kimi-panel')
    ? (e.labels?.[0]?.innerText || e.innerText || e.title || e.tagName) : '' }"""
_NAMELESS = """panel => [...panel.querySelectorAll('select,input,button,progress,[role=tab]')]
    .filter(e => e.checkVisibility() && !(e.labels?.[0]?.innerText || e.innerText || e.title
        || e.getAttribute('aria-label'))).map(e => e.outerHTML)"""


def tab_to(page, label: str, key: str = "Tab") -> None:
    """Press Tab until what has this label is focused."""
    for _ in range(40):
        page.keyboard.press(key)
        if re.match(label, page.evaluate(_FOCUSED)):
            return
    raise AssertionError(f"{label} cannot be reached; at {page.evaluate(_FOCUSED)!r}")


def shoot(page, panel, folder, name: str) -> None:
    panel.scroll_into_view_if_needed()
    page.screenshot(path=labs.artefacts(folder) / f"{name}.png")


@pytest.mark.parametrize(
    "theme, width", [("light", 1440), pytest.param("dark", 1024, marks=pytest.mark.long)]
)
def test_by_the_keyboard(theme, width, tmp_path):
    name = f"keys-{theme}-{width}"
    with (
        labs.running(tmp_path, f"JupyterLab {theme.title()}") as lab,
        sync_api.sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=labs.CHROMIUM, args=labs.ARGUMENTS)
        page = browser.new_page(viewport={"width": width, "height": 1100})
        page.set_default_timeout(LOAD)
        labs.guard(page, lab)
        page.goto(lab.notebook("00_start"))
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        lab.wait_idle("00_start", 60)
        page.click("text=Run >> nth=0")
        page.click("text=Run All Cells >> nth=0")
        panel = page.locator(".kimi-panel")
        sync_api.expect(panel.locator("figure")).to_be_visible(timeout=RUN)
        lab.wait_idle("00_start", 60)
        assert panel.evaluate(_NAMELESS) == [], "a screen reader has nothing to say of these"
        cells = page.locator(".jp-Cell").count()
        shoot(page, panel, tmp_path, f"{name}-start")
        _choose_and_err(page, panel, tmp_path, name)
        _search_sizes(page, panel, tmp_path, name)
        _rehearse_verify_stop(page, panel, tmp_path, name)
        assert page.locator(".jp-Cell").count() == cells, "keys went to the notebook"
        fits = "panel => panel.scrollWidth <= panel.clientWidth + 1"
        assert panel.evaluate(fits), f"the panel is wider than its place at {width} pixels"
        assert lab.asked == [], "requests that would leave this machine"
        browser.close()


def _choose_and_err(page, panel, folder, name: str) -> None:
    """Another hardware; a mistake, red by its field on every tab, and mended."""
    expect = sync_api.expect
    panel.get_by_label("Model").focus()
    tab_to(page, "Hardware")
    page.keyboard.type("b")  # the first of these: b200
    expect(panel.locator(".kimi-name")).to_have_text("k2.5-b200-single-tp")
    tab_to(page, "Overrides")
    page.keyboard.type("max-num-seq=9")
    page.keyboard.press("Enter")
    field = panel.locator(".kimi-field.kimi-wrong", has_text="Overrides")
    expect(field.get_by_role("alert")).to_contain_text("did you mean 'max-num-seqs'")
    assert panel.locator("[aria-invalid=true]").count() == 1
    red = field.locator("input").evaluate("input => getComputedStyle(input).borderTopColor")
    parts = [int(part) for part in re.findall(r"\d+", red)[:3]]
    assert parts[0] > 180 > 2 * parts[1] - 20 and parts[0] > 2 * parts[2], red
    expect(panel.get_by_role("button", name="Rehearse")).to_be_disabled()
    tab_to(page, "Topology")
    for tab in ("Findings", "Memory"):
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(panel.locator(".lm-TabBar-tab.lm-mod-current")).to_contain_text(tab)
        expect(field.get_by_role("alert")).to_be_visible()
    shoot(page, panel, folder, f"{name}-mistake")
    tab_to(page, ".*Overrides", "Shift+Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("max-num-seqs=9")
    page.keyboard.press("Enter")
    expect(field).to_have_count(0)
    expect(panel.locator("[aria-invalid=true]")).to_have_count(0)
    expect(panel.locator(".lm-TabBar-tab", has_text="Changes")).to_be_visible()
    tab_to(page, "mixed tp")
    page.keyboard.press("Control+a")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    expect(panel.get_by_label("Overrides")).to_have_value("max-num-seqs=9; tp=4")
    expect(panel.locator(".kimi-uses:visible")).to_have_text("4 of 8 devices on 1 node")
    shoot(page, panel, folder, f"{name}-sizes")


def _search_sizes(page, panel, folder, name: str) -> None:
    """The tab of sizes: a mistake by its field, a search, and a candidate in the choices."""
    expect = sync_api.expect
    before = panel.get_by_label("Overrides").input_value()
    panel.get_by_role("tab", name="Size").focus()
    page.keyboard.press("Enter")
    tab_to(page, "Mean TPOT")
    page.keyboard.press("Control+a")
    page.keyboard.type("50")
    page.keyboard.press("Enter")
    field = panel.locator(".kimi-field.kimi-wrong", has_text="Mean TPOT")
    expect(field.get_by_role("alert")).to_contain_text("such as 50ms")
    expect(panel.get_by_role("button", name="Search")).to_be_disabled()
    shoot(page, panel, folder, f"{name}-size-mistake")
    page.keyboard.press("Control+a")
    page.keyboard.type("50ms")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("button", name="Search")).to_be_enabled()
    tab_to(page, "Search")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("cell", name="single").first).to_be_visible(timeout=RUN)
    shoot(page, panel, folder, f"{name}-sizes-found")
    tab_to(page, "Candidate")
    tab_to(page, "Apply")
    page.keyboard.press("Enter")
    expect(panel.get_by_label("Overrides")).not_to_have_value(before)
    expect(panel.locator(".kimi-head")).to_contain_text("the sizes are those of")
    panel.get_by_label("Overrides").focus()


def _rehearse_verify_stop(page, panel, folder, name: str) -> None:
    """The service from its first second; Stop works while it is verified."""
    expect = sync_api.expect
    tab_to(page, "Rehearse")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("heading", name="Rehearsal of k2.5-b200-single-tp")).to_be_visible(
        timeout=5000
    )
    expect(panel.locator(".lm-TabBar-tab.lm-mod-current")).to_contain_text("Service")
    shoot(page, panel, folder, f"{name}-starting")
    status = panel.get_by_role("status")
    expect(status).to_contain_text("k2.5-b200-single-tp: REHEARSAL: up, 1 of 1", timeout=RUN)
    shoot(page, panel, folder, f"{name}-up")
    tab_to(page, "Verify", "Tab")
    page.keyboard.press("Enter")
    expect(status).to_contain_text(re.compile(r"verifies: \d+ of \d+ checks|verified: "))
    shoot(page, panel, folder, f"{name}-verifying")
    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    expect(status).to_contain_text("stopped, 1 of 1", timeout=RUN)
    expect(panel.get_by_role("button", name="Rehearse")).to_be_enabled()
    shoot(page, panel, folder, f"{name}-stopped")
