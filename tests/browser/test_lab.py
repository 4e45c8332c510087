"""A person before JupyterLab: opens notebooks, runs all, chooses, rehearses, reads the answer."""

from __future__ import annotations

import re

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from browser import lab as labs  # noqa: E402

if not labs.CHROMIUM:
    pytest.skip("no chromium (apt-get install chromium)", allow_module_level=True)

LOAD, RUN = 60_000, 150_000  # milliseconds on a machine that has other work
sync_api.expect.set_options(timeout=LOAD)


@pytest.fixture
def theme():
    return "light"


@pytest.fixture
def lab(theme, tmp_path):
    with labs.running(tmp_path, f"JupyterLab {theme.title()}") as server:
        yield server


@pytest.fixture
def page(lab):
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=labs.CHROMIUM, args=labs.ARGUMENTS)
        page = browser.new_page(viewport={"width": 1440, "height": 1100})
        page.set_default_timeout(LOAD)
        labs.guard(page, lab)
        yield page
        browser.close()


def shoot(page, folder, name: str) -> None:
    """Keep a picture of the panel and what is around it."""
    page.locator(".kimi-panel").first.scroll_into_view_if_needed()
    page.screenshot(path=labs.artefacts(folder) / f"{name}.png")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_the_first_notebook_in_light_and_dark(page, lab, theme, tmp_path):
    labs.run_all(page, lab, "00_start", RUN / 1000)
    assert labs.errors(page) == []
    figure = page.locator(".kimi-panel figure[aria-label]").first
    sync_api.expect(figure).to_be_visible()
    shoot(page, tmp_path, f"00-{theme}")
    page.locator(".kimi-panel .lm-TabBar-tab", has_text="Memory").click()
    sync_api.expect(page.locator(".kimi-panel figure[aria-label^='Memory']")).to_be_visible()
    shoot(page, tmp_path, f"00-memory-{theme}")
    # The text of a picture has the colour of the page: light on dark, dark on light.
    fill = page.locator(".kimi-panel figure[aria-label^='Memory'] svg text").first.evaluate(
        "text => getComputedStyle(text).fill"
    )
    bright = sum(map(float, re.findall(r"[\d.]+", fill)[:3])) / 3
    assert bright > 170 if theme == "dark" else bright < 85, fill
    assert lab.asked == [], "requests that would leave this machine"


def test_choose_and_rehearse(page, lab, tmp_path):
    labs.run_all(page, lab, "05_pd", RUN / 1000)
    assert labs.errors(page) == []
    panel = page.locator(".kimi-panel")
    figure = panel.locator("figure[aria-label*='36 engines']").first
    sync_api.expect(figure).to_be_visible()
    shoot(page, tmp_path, "05")

    # Choosing redraws at once, and a layout that is not there follows.
    hardware = panel.get_by_label("Hardware")
    hardware.select_option("h100: HGX H100 (8 GPUs of 80 GB)")
    sync_api.expect(panel.locator("figure[aria-label*='on h100-0']").first).to_be_visible()
    sync_api.expect(panel).to_contain_text("pd is not there for k2.5 on h100")
    shoot(page, tmp_path, "05-h100")
    hardware.select_option("a3: Atlas 800 A3 (16 NPUs of 64 GB)")
    panel.get_by_label("Layout").select_option("pd: prefill and decode apart")
    sync_api.expect(figure).to_be_visible()

    # Scripts by node, and a button that copies each file.
    panel.locator(".lm-TabBar-tab", has_text="Scripts").click()
    panel.locator(".lm-TabBar-tab", has_text="a3-2").click()
    script = panel.locator(".kimi-copy:visible", has_text="launch_online_dp.py").first
    sync_api.expect(script).to_contain_text("launch_online_dp.py")
    button, frame = script.locator("button").bounding_box(), panel.bounding_box()
    assert button["x"] + button["width"] <= frame["x"] + frame["width"], "is beside the panel"
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=lab.url)
    script.locator("button").click()
    sync_api.expect(script.locator("button")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == script.locator("pre").inner_text() and "launch_online_dp.py" in copied
    shoot(page, tmp_path, "05-scripts")

    # Rehearse: every engine, and the answer.
    rehearse = panel.locator("button", has_text="Rehearse")
    rehearse.click()
    sync_api.expect(rehearse).to_be_disabled()
    sync_api.expect(panel).to_contain_text(re.compile(r"\d+ of 36 engines ready, [\d.]+ s"))
    shoot(page, tmp_path, "05-starting")
    sync_api.expect(panel).to_contain_text(
        re.compile(r"k2.5-a3-pd: REHEARSAL: up, 36 of 36 engines ready after .* s"), timeout=RUN
    )
    sync_api.expect(panel.locator("figure[aria-label*='36 of 36 ranks ready']")).to_be_visible()
    shoot(page, tmp_path, "05-ready")
    panel.locator(".lm-TabBar-tab", has_text="Topology").click()
    sync_api.expect(figure).to_be_visible()
    page.set_viewport_size({"width": 1440, "height": 1500})  # room for all of the panel
    panel.screenshot(path=labs.artefacts(tmp_path) / "rehearsal.png")  # that of the README
    page.set_viewport_size({"width": 1440, "height": 1100})
    panel.locator("button", has_text="Verify").click()
    # The front door of this layout hides what engines refuse; each failure names it.
    sync_api.expect(panel).to_contain_text(
        re.compile(r": \d+ pass, 4 fail, \d+ not applicable"), timeout=RUN
    )
    panel.locator("button", has_text="Stop").click()
    sync_api.expect(rehearse).to_be_enabled()
    assert lab.asked == [], "requests that would leave this machine"
