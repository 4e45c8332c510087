"""Tables of a plan where JupyterLab has little room: nothing scrolls, and options stay whole."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from browser import lab as labs
from browser import page_checks
from kimi_nb import i18n
from kimi_nb.check import judge
from kimi_nb.diagnose import faq
from kimi_nb.notebook.choice import Choice
from kimi_nb.plan import tables

if not labs.CHROMIUM:
    pytest.skip("no chromium (apt-get install chromium)", allow_module_level=True)

# What an output has of a window of 1024 and of 1440 px beside the list of files.
NARROW, ROOMY = 572, 988
# An option that takes two lines has a box on each.
_BROKEN = (
    """all => all.filter(one => one.getClientRects().length > 1).map(one => one.textContent)"""
)


@pytest.fixture(scope="module")
def page():
    with labs.chromium() as browser:
        yield browser.new_page(viewport={"width": 1440, "height": 900})


def show(page, shown, width: int) -> None:
    """Show values one below the other in so many pixels, in the size of JupyterLab's tables."""
    parts = "".join(one._repr_html_() for one in shown)
    page.set_content(
        f"<!doctype html><div id='all' style='width:{width}px;font:13px sans-serif'>{parts}</div>"
    )


def of_plans():
    """The tables of notebooks 03 to 05 as they are first run."""
    for hardware, layout in (("a3", "single"), ("a3", "pd"), ("a2", "dp")):
        plan = Choice("k2.5", hardware, layout).plan()
        yield from (tables.topology(plan), tables.settings(plan), judge.plan(plan).table())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_plan_fits_beside_the_list_of_files(page, language):
    with i18n.using(language):
        show(page, of_plans(), NARROW)
    assert page.locator("#all").evaluate_all(page_checks.SCROLLED) == []
    options = page.locator(".option")
    assert options.count() > 20 and options.evaluate_all(_BROKEN) == []


def test_the_faq_fits_a_window_of_1440_px(page):
    show(page, [faq.topic(name) for name in faq.signatures.TOPICS], ROOMY)
    assert page.locator("#all").evaluate_all(page_checks.SCROLLED) == []


def test_names_break_only_where_room_is_short(page):
    plan = Choice("k2.5", "a3", "pd").plan()
    broken = "[...document.querySelectorAll('wbr.tight')].filter(one => getComputedStyle(one).display !== 'none').length"
    show(page, [tables.settings(plan)], ROOMY)
    assert page.evaluate(broken) == 0
    show(page, [tables.settings(plan)], NARROW)
    assert page.evaluate(broken) > 0
