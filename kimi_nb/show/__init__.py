"""Display values in notebooks and terminals: tables, texts, and the style of pictures.

Nothing here knows about models or deployments. Other packages use `show.Table`, `show.Text`,
`show.Shown` and `show.show`; those that draw use `show.picture` and `show.style`.
"""

from kimi_nb.show.values import (
    Both,
    Shown,
    Table,
    Text,
    in_notebook,
    interactive,
    plain_json,
    seconds,
    show,
    spans,
    visible,
)

__all__ = [
    "Both",
    "Shown",
    "Table",
    "Text",
    "in_notebook",
    "interactive",
    "plain_json",
    "seconds",
    "show",
    "spans",
    "visible",
]
