"""The references that are made from the project, and the notebooks of the pages."""

from __future__ import annotations

import json

import kimi_nb
from kimi_nb.cli.main import COMMANDS
from kimi_nb.diagnose import signatures
from kimi_nb.params import errata, schema
from website import fault_pages, markup, notebook_pages, reference_pages, source_tree


def test_every_key_of_the_schema_is_there():
    pages = reference_pages.parameters()
    assert set(pages) == {"reference/parameters"} | {
        f"reference/{name}-file" for name in reference_pages.FILES
    }
    for kind in (schema.Site, schema.Network, schema.Paths, schema.Slurm):
        for key, field in kind.model_fields.items():
            assert f"| `{key}` |" in pages["reference/site-file"]
            assert markup.prose(field.description or "") in pages["reference/site-file"]
    assert "None where it is not known" in pages["reference/hardware-file"]  # of Attributes


def test_every_command_and_option_is_there():
    page = reference_pages.commands()
    for name in COMMANDS:
        assert f"\n## kimi-nb {name}\n" in page
    assert "`--erratum ID=on\\|off,..`" in page and "### kimi-nb site new" in page
    assert "%(" not in page


def test_the_face_of_the_package_is_there():
    page = reference_pages.api()
    for name in set(kimi_nb.__all__) - {"__version__"}:
        assert f"kimi_nb.{name}" in page
    assert page.index("import kimi_nb\nrun = ") < page.index("## start")


def test_every_signature_and_erratum_is_there():
    pages = fault_pages.faq()
    for one in signatures.entries():
        page = pages[f"faq/{one.topic}"]
        assert f"(faq-{one.id})=" in page
        assert all(line in page for example in one.examples for line in example.splitlines())
    for entry in errata.entries():
        assert entry["id"].replace("-", "\\-") in fault_pages.errata_page()


# Notebooks ------------------------------------------------------------------------------------


def code(name: str, **more: object) -> dict:
    given = {"id": name, "cell_type": "code", "source": ["1\n", "2"], "metadata": {}}
    return given | {"outputs": [], "execution_count": None} | more


def markdown(source: str) -> dict:
    return {"id": "m", "cell_type": "markdown", "source": source, "metadata": {"x": 1}}


def book(*cells: dict) -> dict:
    return {"cells": [*cells], "metadata": {"papermill": {"p": "/m"}}, "nbformat": 4}


def test_a_page_has_nothing_of_the_machine():
    given = code("a", metadata={"tags": ["injected-parameters"]}, source="run_dir = '/home/me/run'")
    streams = [
        {"output_type": "stream", "name": "stdout", "text": ["in /home/me/run/x\n", "/home/me/y"]},
        {"output_type": "error", "ename": "E", "evalue": "", "traceback": ["/home/me/y"]},
    ]
    page = notebook_pages.page(
        book(given, code("b", outputs=streams)), {"/home/me/run": "runs/a", "/home/me/": ""}
    )
    (cell,) = page["cells"]
    assert cell["outputs"][0]["text"] == "in runs/a/x\ny"
    assert cell["outputs"][1]["traceback"] == ["y"] and cell["source"] == "1\n2"
    assert "/home" not in json.dumps(page) and "/m" not in json.dumps(page)


def test_a_page_has_no_widget_and_no_script():
    data = {"application/vnd.jupyter.widget-view+json": {}, "application/javascript": "x"}
    shown = {"output_type": "display_data", "data": data | {"text/plain": "y"}, "metadata": {}}
    (cell,) = notebook_pages.page(book(code("a", outputs=[shown])), {})["cells"]
    assert cell["outputs"][0]["data"] == {"text/plain": "y"}


def test_links_of_notebooks_are_those_of_pages():
    (cell,) = notebook_pages.page(
        book(markdown("[a](#Plan-it) [b](05_pd.ipynb#Why,-and-how) [c](https://a.b/#C)")), {}
    )["cells"]
    assert cell["source"] == "[a](#plan-it) [b](05_pd.ipynb#why-and-how) [c](https://a.b/#C)"


def test_a_translated_notebook_has_the_outputs_of_the_executed_one():
    seen = {"output_type": "stream", "name": "stdout", "text": "seen"}
    written = book(markdown("你好"), code("a"), code("own"))
    done = notebook_pages.grafted(written, book(code("a", outputs=[seen], execution_count=3)))
    assert done["cells"][0]["source"] == "你好"
    assert done["cells"][1]["outputs"] == [seen] and done["cells"][2]["outputs"] == []
    assert done["metadata"] == book()["metadata"]  # with the language of its code, for its colours


def test_links_to_the_readme_lead_home():
    text = "[a](../README.md#start) [b](README.md) [c](rules/README.md)\n```\n](README.md)\n```\nz"
    assert source_tree.home_links(text) == (
        "[a](../index.md#start) [b](index.md) [c](rules/README.md)\n```\n](README.md)\n```\nz"
    )


def test_a_path_of_this_machine_is_replaced_where_html_lets_it_break():
    here = '/home/<wbr><span class="whole">a-b</span>/<wbr>run/<wbr>k2.5-a3/<wbr>logs and /home/a-b/run'
    shown = {"output_type": "display_data", "data": {"text/html": here}, "metadata": {}}
    (cell,) = notebook_pages.page(book(code("a", outputs=[shown])), {"/home/a-b/run": "mine"})[
        "cells"
    ]
    found = cell["outputs"][0]["data"]["text/html"]
    assert found == "mine/<wbr>k2.5-a3/<wbr>logs and mine"


def test_pages_of_a_language_have_the_outputs_of_that_language(tmp_path):
    """Both are executed; an English table on a Chinese page is a foreign word."""
    for folder, said in (("executed", "English"), ("executed/zh", "中文")):
        seen = {"output_type": "stream", "name": "stdout", "text": said}
        done = source_tree.ROOT / "notebooks" / folder.removeprefix("executed").strip("/")
        written = json.loads((done / "10_faq.ipynb").read_text("utf-8"))
        for cell in written["cells"]:
            if cell["cell_type"] == "code":
                cell |= {"outputs": [seen], "execution_count": 1}
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "10_faq.ipynb").write_text(json.dumps(written))
    source = tmp_path / "source"
    names = source_tree._notebooks(source, tmp_path / "executed", {})
    assert names == ["notebooks/10_faq", "notebooks/zh/10_faq"]
    assert "中文" not in (source / "notebooks/10_faq.ipynb").read_text()
    assert '"English"' not in (source / "notebooks/zh/10_faq.ipynb").read_text()
