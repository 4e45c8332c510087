"""Put values together: in a line, in a box, under a heading, folded.

Each part shows itself and what it holds: as HTML in a notebook, as text elsewhere. A text is a
paragraph and is escaped; a cell of a `show.Table` may be a part of one line.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from kimi_nb.i18n import translate
from kimi_nb.show.frame import framed

# Words of a status that the style sheet has a colour and a symbol for.
MARKED = {
    *("ok", "pass", "passed", "better"),
    *("failed", "fail", "error", "regression", "worse"),
    *("warning", "unfinished", "note", "skipped", "skip", "left out", "not applicable", "same"),
}


def as_html(value: Any) -> str:
    """Return a value as it stands in a line."""
    if hasattr(value, "_repr_html_"):
        return value._repr_html_()
    return html.escape(translate(str(value)))


def _quoted(name: str) -> str:
    return quote(name, errors="replace")


class _Shown:
    def __repr__(self) -> str:
        return str(self)


class _Inline(_Shown):
    """What takes no line of its own."""


def _blocks(values: tuple[Any, ...]) -> str:
    return "\n".join(
        f"<p>{as_html(value)}</p>" if isinstance(value, str | _Inline) else as_html(value)
        for value in values
    )


def _lines(values: tuple[Any, ...]) -> str:
    return "\n".join(str(value) for value in values)


@dataclass(frozen=True, repr=False)
class Mark(_Inline):
    """A word that is set off, such as a status; the style sheet knows it by its own words."""

    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        shown = html.escape(self.text)
        name, told = shown.lower().replace(" ", "-"), html.escape(translate(self.text))
        return f'<span class="mark {name}">{told}</span>' if shown else ""


@dataclass(frozen=True, repr=False)
class Quote(_Inline):
    """What another program said: it is shown as it is in every language."""

    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from kimi_nb.core import known_secrets  # start-up: only when shown

        return html.escape(known_secrets.text(self.text))


@dataclass(frozen=True, repr=False)
class Link(_Inline):
    """A link to a file, relative to the page, or to a part of the page (``anchor``)."""

    text: str
    path: str = ""
    anchor: str = ""

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        target = _quoted(self.path) + ("#" + _quoted(self.anchor)) * bool(self.anchor)
        return f'<a href="{target}">{html.escape(translate(self.text))}</a>'


class Line(_Inline):
    """Values side by side."""

    def __init__(self, *values: Any) -> None:
        self.values = tuple(value for value in values if str(value))

    def __str__(self) -> str:
        return " ".join(str(value) for value in self.values)

    def _repr_html_(self) -> str:
        return " ".join(as_html(value) for value in self.values)


class Parts(_Shown):
    """Values below each other."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __str__(self) -> str:
        return _lines(self.values)

    def _repr_html_(self) -> str:
        return framed(self._inner())

    def _inner(self) -> str:
        return _blocks(self.values)


class Box(Parts):
    """Values in a box; a style sheet knows it by its kind."""

    def __init__(self, kind: str, *values: Any) -> None:
        super().__init__(*values)
        self.kind = kind

    def _repr_html_(self) -> str:
        return f'<div class="box {html.escape(self.kind)}">{self._inner()}</div>'


class Part(Parts):
    """Values under a heading, to which links may lead (``anchor``)."""

    def __init__(self, title: Any, *values: Any, anchor: str = "") -> None:
        super().__init__(*values)
        self.title, self.anchor = title, anchor

    def __str__(self) -> str:
        return f"--- {self.title}\n{super().__str__()}"

    def _repr_html_(self) -> str:
        at = f' id="{_quoted(self.anchor)}"' if self.anchor else ""
        return f"<section{at}><h3>{as_html(self.title)}</h3>\n{self._inner()}</section>"


class Folded(Parts):
    """Values that a page shows at a click; a terminal shows their title only."""

    def __init__(self, title: Any, *values: Any, unfolded: bool = False) -> None:
        super().__init__(*values)
        self.title, self.unfolded = title, unfolded

    def __str__(self) -> str:
        return f"{self.title}\n{super().__str__()}" if self.unfolded else f"[{self.title}]"

    def _repr_html_(self) -> str:
        return (
            f"<details{' open' * self.unfolded}><summary>{as_html(self.title)}</summary>\n"
            f"{self._inner()}</details>"
        )


@dataclass(frozen=True, repr=False)
class Image(_Shown):
    """A picture from a file that may be anybody's: what it draws is shown, what it runs is not."""

    title: str
    alt: str
    url: str  # data:...

    def __str__(self) -> str:
        return self.alt

    def _repr_html_(self) -> str:
        return (
            f"<figure><figcaption>{html.escape(translate(self.title))}</figcaption>"
            f'<img src="{html.escape(self.url)}" alt="{html.escape(translate(self.alt))}" '
            'style="max-width:100%;background:#fff"></figure>'
        )
