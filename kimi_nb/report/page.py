"""The report as one HTML page: no script, no request, escaped; light, dark and on paper.

page.html(collect(folder), base=".")     # base: from the page's folder to the run's
"""

from __future__ import annotations

from urllib.parse import quote

import jinja2

from kimi_nb.params import load as params
from kimi_nb.report.collect import Report


def html(report: Report, base: str) -> str:
    """The page; its links to files of the run are relative, through ``base``."""
    there = jinja2.Environment(
        loader=jinja2.FileSystemLoader(params.PACKAGE / "data" / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    there.filters["link"] = lambda path: quote(path if base == "." else f"{base}/{path}")
    return there.get_template("page.html.j2").render(report=report)
