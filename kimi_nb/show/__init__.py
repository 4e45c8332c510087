"""Display values in notebooks and terminals: tables, texts, and the style of pictures.

Nothing here knows about models or deployments. Other packages use `show.Table`, `show.Text`,
`show.Files`, `show.Shown` and `show.show`; those that draw use `show.picture` and `show.style`.
"""

from kimi_nb.show.fixed_width import File, Files, Text
from kimi_nb.show.parts import Quote
from kimi_nb.show.values import (
    Both,
    Shown,
    Table,
    in_notebook,
    interactive,
    plain_json,
    say,
    seconds,
    show,
    spans,
    visible,
)

__all__ = [
    "Both",
    "File",
    "Files",
    "Quote",
    "Shown",
    "Table",
    "Text",
    "in_notebook",
    "interactive",
    "plain_json",
    "say",
    "seconds",
    "show",
    "spans",
    "visible",
]
