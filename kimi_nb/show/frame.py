"""Frame the HTML of a value: a box of class ``kimi`` and the style sheet that it needs.

An output of a notebook has to bring its style; a page includes `css` once and drops `style`.
"""

from __future__ import annotations

import functools
import re

from kimi_nb.core import paths
from kimi_nb.i18n import current


@functools.cache
def css() -> str:
    """Return the style sheet of all values, in few characters: each output carries it."""
    text = (paths.DATA / "show" / "values.css").read_text("utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", text).strip()


@functools.cache
def style() -> str:
    """Return the style sheet as an element."""
    return f"<style>{css()}</style>"


def framed(inner: str) -> str:
    """Return HTML in a frame with the style sheet, which frames inside of it do without.

    JupyterLab would set what stands between two dollars, such as ``$A/bin:$PATH``, as a formula.
    """
    language = "" if current() == "en" else f' lang="{current()}"'
    inside = inner.replace(style(), "")
    return f'{style()}<div class="kimi mathjax_ignore"{language}>{inside}</div>'
