"""The check of the pages as they were built."""

from __future__ import annotations

import pytest

from website import built_links


def pages(folder, body: str) -> list[str]:
    built_links._read.cache_clear()
    (folder / "docs").mkdir()
    (folder / "docs" / "a b.html").write_text("<h1 id='中'>x</h1>")
    (folder / "docs" / "index.html").write_text("<a name='n'></a>")
    (folder / "data.yaml").write_text("")
    (folder / "index.html").write_text(f"<p id='here'>{body}</p>")
    return built_links.faults(folder)


@pytest.mark.parametrize(
    "link",
    [
        "docs/a%20b.html",
        "docs/a%20b.html#%E4%B8%AD",
        "docs/#n",
        "docs/",
        "#here",
        "data.yaml",
        "https://example.org/#x",
        "mailto:a@example.org",
    ],
)
def test_what_leads_somewhere(link, tmp_path):
    assert pages(tmp_path, f"<a href='{link}'>x</a>") == []


@pytest.mark.parametrize(
    "body, fault",
    [
        ("<a href='docs/b.html'>", "docs/b.html: is not there"),
        ("<a href='#there'>", "#there: has no #there"),
        ("<a href='docs/a%20b.html#x'>", "docs/a%20b.html#x: has no #x"),
        ("<a href='../../../etc/passwd'>", "../../../etc/passwd: is not there"),
        ("<a href='javascript:x()'>", "javascript:x(): no link for a page"),
        ("<a href='//example.org'>", "//example.org: no link for a page"),
        ("<img src='x.png'>", "x.png: is not there"),
        ("<script src='https://example.org/x.js'></script>", "loads https://example.org/x.js"),
        ("<img src='//example.org/x.png'>", "loads //example.org/x.png from elsewhere"),
        ("<link rel='stylesheet' href='http://example.org/x.css'>", "loads http://example.org"),
    ],
)
def test_what_leads_nowhere_or_elsewhere(body, fault, tmp_path):
    (found,) = pages(tmp_path, body)
    assert found.startswith("index.html: ") and fault in found


def test_what_is_no_page_is_not_loaded(tmp_path):
    assert pages(tmp_path, "<link rel='canonical' href='https://a.b/'><img src='data:,x'>") == []
