"""A small part of the pages, built by Sphinx and looked at in a browser."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPHINX = ROOT / ".website" / "bin" / "python"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'docs'}{os.pathsep}{ROOT}"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "<script>document.title = 'taken'</script><b id='bold'>&amp;"
# In a table that holds more than a phone shows.
WIDE = "<table><tr>" + "<td>wide_without_a_break</td>" * 30 + "</tr></table>"

pytestmark = pytest.mark.long


def notebook(folder: Path) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": f"{HOSTILE}\n"},
        {"output_type": "execute_result", "execution_count": 1, "metadata": {}}
        | {"data": {"text/plain": HOSTILE}},
        {"output_type": "display_data", "metadata": {}, "data": {"text/html": WIDE}},
        {"output_type": "error", "ename": "E", "evalue": HOSTILE, "traceback": [HOSTILE]},
    ]
    code = {"id": "a", "cell_type": "code", "source": "1", "metadata": {}, "outputs": outputs}
    cells = [
        {"id": "t", "cell_type": "markdown", "source": "# 10 FAQ\n\n显存不足", "metadata": {}},
        code | {"execution_count": 1},
    ]
    python = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    made = {"cells": cells, "metadata": python, "nbformat": 4, "nbformat_minor": 5}
    (folder / "10_faq.ipynb").write_text(json.dumps(made))


def matrix() -> str:
    """What the README says of models and hardware."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return readme.partition("<!-- generated: matrix -->")[2].partition("<!-- end -->")[0].strip()


def sphinx(work: Path, source: Path) -> subprocess.CompletedProcess:
    options = ["-q", "-W", "--keep-going", "-c", str(ROOT / "docs/website")]
    return subprocess.run(
        [str(SPHINX), "-m", "sphinx", *options, str(source), str(work / "html")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The home page, one notebook, the FAQ and the references; not the documents."""
    if not SPHINX.exists():
        pytest.skip("no .website: make site installs it")
    work = tmp_path_factory.mktemp("pages")
    source = work / "source"
    (work / "executed").mkdir()
    notebook(work / "executed")
    lay_out = (
        "import sys; from pathlib import Path; from website import source_tree as s;"
        "s.lay_out(*map(Path, sys.argv[1:]))"
    )
    subprocess.run(
        [str(SPHINX), "-c", lay_out, str(source), str(work / "executed"), "/nowhere"],
        env=ENVIRONMENT,
        check=True,
    )
    for name in (
        *("docs", "reference"),
        *("README.zh-CN.md", "CHANGELOG.md", "SECURITY.md"),
    ):
        path = source / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (source / "CONTRIBUTING.md").write_text("# Contributing\n")
    pages = {path.stem for path in (source / "faq").glob("*.md")} - {"index"}
    for path in (source / "faq").glob("*.md"):
        path.write_text(
            "\n".join(line for line in path.read_text().split("\n") if "../" not in line)
        )
    tree = "\n".join(["notebooks/10_faq", "faq/index", "CONTRIBUTING"])
    (source / "index.md").write_text(f"# Home\n\n{matrix()}\n\n```{{toctree}}\n{tree}\n```\n")
    done = sphinx(work, source)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert {path.stem for path in (work / "html/faq").glob("*.html")} == pages | {"index"}
    return work / "html"


def test_a_fault_of_a_page_stops_the_build(built, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text("# Home\n\n[x](nowhere.md)\n")
    done = sphinx(tmp_path, tmp_path / "source")
    assert done.returncode == 1 and "nowhere.md" in done.stderr


@pytest.mark.skipif(not CHROMIUM, reason="no chromium")
def test_pages_in_a_browser(built):
    """Hostile text stays text, nothing is loaded from elsewhere, a phone is wide enough."""
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 375, "height": 800}, color_scheme="dark")
        page.on("request", lambda request: asked.append(request.url))
        page.goto((built / "notebooks/10_faq.html").as_uri())
        assert page.title() == "10 FAQ - kimi_nb" and page.locator("#bold").count() == 0
        assert page.get_by_text("document.title = 'taken'").count() >= 3
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) == 375
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
        for name in ("index", "faq/memory", "faq/start"):
            page.goto((built / f"{name}.html").as_uri())
            assert page.evaluate(wide) == 375, name
        # The search takes words of both languages.
        for words in ("shm", "显存不足"):
            page.goto(f"{(built / 'search.html').as_uri()}?q={words}")
            page.wait_for_selector("ul.search li a[href*='faq/memory']", timeout=20_000)
        browser.close()
    assert asked and all(url.startswith(("file:", "data:")) for url in asked)


@pytest.mark.skipif(not CHROMIUM, reason="no chromium")
def test_the_matrix_of_the_readme_can_be_read(built):
    """It fits beside the navigation; on a phone it scrolls, and each row keeps its name."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width in (1440, 1024, 390):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto((built / "index.html").as_uri())
            frame = page.locator("article .table-wrapper").first
            room, wide = frame.evaluate("one => [one.clientWidth, one.scrollWidth]")
            assert (wide <= room) == (width > 800), (width, room, wide)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            frame.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
            for cell in ("td:first-child", "td:last-child"):
                box = page.locator(f"article tbody tr:first-child {cell}").first.bounding_box()
                assert box["x"] >= 0 and box["x"] + box["width"] <= width, (width, cell, box)
        browser.close()
