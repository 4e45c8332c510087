"""Configure Sphinx; `make site` calls it on the folder that `website.source_tree` lays out."""

from pathlib import Path
from typing import Any

import kimi_nb
from website.bilingual_search import BilingualSearch

project = "kimi_nb"
author = "the authors of kimi_nb"
release = version = kimi_nb.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["example-run"]
# The outputs are there: `website.executing` has made them.
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}  # a page loads nothing from elsewhere
myst_heading_anchors = 4  # links to headings are those of GitHub
# The README and the notebooks have no heading of every level; a rule's example may be no valid shell.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
html_search_language = BilingualSearch.lang
smartquotes = False  # an option keeps its two dashes
default_role = "code"  # as in the docstrings
html_theme = "furo"
html_title = "kimi_nb"
html_static_path = [str(Path(__file__).resolve().parent / "static")]
html_css_files = ["pages.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
pygments_style = "default"
pygments_dark_style = "github-dark"
html_theme_options = {"navigation_with_keys": True}
copybutton_exclude = ".linenos, .gp"


def _language(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Say which language a page is in, for readers, voices and search engines."""
    if page == "README.zh-CN" or page.startswith("notebooks/zh/"):
        context["language"] = "zh-CN"


def setup(app: Any) -> None:
    """Connect what is no option."""
    app.connect("html-page-context", _language)
    app.add_search_language(BilingualSearch)
