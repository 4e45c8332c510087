"""Values and the panel in pages that are not JupyterLab's, such as VS Code's: their own colours."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from kimi_nb import show
from kimi_nb.notebook.panel import panel_style
from kimi_nb.show import frame
from kimi_nb.show.picture import Picture

SVG = '<svg width="10pt" viewBox="0 0 1 1"></svg>'
SHOWN = SimpleNamespace(
    values=frame.style(),
    table=show.Table("T", ("what", "status"), (("a", "failed"),))._repr_html_(),
    text=show.Text("T", "one\ntwo")._repr_html_(),
    picture=Picture("p", "T", SVG, "a picture", ())._repr_html_(),
    panel=panel_style.sheet(),
    script=panel_style.copyable("run.sh", "echo"),
    mistake=panel_style.alert("no") + panel_style.validity(True),
    progress=panel_style.bar("ready", 1, 2),
)


@pytest.mark.parametrize("name", vars(SHOWN))
def test_a_colour_of_jupyterlab_has_a_fallback(name):
    used = re.findall(r"var\((--(?:jp|vscode)-[\w-]+)\s*([,)])", vars(SHOWN)[name])
    assert [variable for variable, after in used if after != ","] == []


@pytest.mark.parametrize("name", vars(SHOWN))
def test_nothing_asks_for_a_script_of_jupyterlab(name):
    assert not re.search(r"<script|require\(|requirejs|jupyterapp|Jupyter\.", vars(SHOWN)[name])
