"""Draw boxes, arrows and texts as SVG by hand, where a picture explains rather than counts.

Example::

    drawing = diagram.Diagram(800)
    drawing.box(10, 10, 120, 40)
    drawing.text(16, 30, "client", bold=True)
    svg = drawing.finish(60)

Lines and texts take the page's colour (``currentColor``), as those of `style` do. Widths of texts
are estimated, so that nothing is measured with a font that the page may not have.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence

from kimi_nb.i18n import translate
from kimi_nb.show import visible

INK = "currentColor"
_SHOWN = 1.15  # how much larger than drawn it is where the page has room
MONO = 0.61  # width of a monospaced character, as a share of the font size
_FONTS = {
    False: "DejaVu Sans, Verdana, Arial, sans-serif",
    True: "DejaVu Sans Mono, Menlo, Consolas, monospace",
}
# Shares of the font size that no usual sans-serif font exceeds; DejaVu Sans is among the widest.
_NARROW, _WIDE = "fijlrtI|.,:;'!/ ()[]-", "mwMWOQGD@%+=<>~_"

# A word, or one Chinese character, with the signs that close it; and the blanks before it.
_CLOSING = "，。；：、）？！"
_PIECE = re.compile(
    rf"(\s*)((?:[\u3000-\u9fff\uff00-\uffef]|[^\s\u3000-\u9fff\uff00-\uffef]+)[{_CLOSING}]*)"
)


def width_of(text: str, size: float, *, mono: bool = False, bold: bool = False) -> float:
    """Return the most that a text takes in width, in the unit of ``size``.

    >>> width_of("7100", 10, mono=True)
    24.4
    """
    if mono:
        return sum(2 * MONO if _full(letter) else MONO for letter in text) * size
    shares = (
        1.0
        if _full(letter) or letter in _WIDE
        else 0.42
        if letter in _NARROW
        else 0.78
        if letter.isupper() or ord(letter) > 127
        else 0.65
        for letter in text
    )
    return sum(shares) * size * (1.12 if bold else 1.0)


def shortened(
    text: str, room: float, size: float, *, mono: bool = False, bold: bool = False
) -> str:
    """Return a text that fits ``room``, its end replaced by an ellipsis if it has to be.

    >>> shortened("node-0.example.org", 80, 10, mono=True)
    'node-0.examp…'
    """
    if width_of(text, size, mono=mono, bold=bold) <= room:
        return text
    while text and width_of(text + "…", size, mono=mono, bold=bold) > room:
        text = text[:-1]
    return text + "…"


def wrapped(text: str, room: float, size: float, *, mono: bool = False) -> list[str]:
    """Return the lines of a text in ``room``; a word that is wider than that is shortened.

    Chinese breaks between any two characters, but not before a closing sign.
    """
    lines: list[str] = []
    for blank, word in _PIECE.findall(text):
        longer = f"{lines[-1]}{' ' * bool(blank)}{word}" if lines else word
        if lines and width_of(longer, size, mono=mono) <= room:
            lines[-1] = longer
        else:
            lines.append(shortened(word, room, size, mono=mono))
    return lines


def _full(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in "WF"


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Diagram:
    """A drawing of a width in pixels; y grows downwards, and `finish` says how high it is."""

    def __init__(self, width: float) -> None:
        self.width = width
        self._parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        edge: str = INK,
        fill: str = "none",
        shade: float = 1.0,
        line: float = 1.0,
        dashed: bool = False,
        round_by: float = 5,
    ) -> None:
        """Draw a rectangle; ``shade`` is how much of its fill covers the page, from 0 to 1."""
        self._parts.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}" rx="{_number(round_by)}" fill="{fill}" '
            f'fill-opacity="{shade:g}" stroke="{edge}" stroke-width="{line:g}"'
            + (' stroke-dasharray="4 3"' if dashed else "")
            + "/>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11,
        anchor: str = "start",
        bold: bool = False,
        italic: bool = False,
        mono: bool = False,
        colour: str = INK,
        room: float | None = None,
    ) -> None:
        """Write one line with its base line at ``y``; what is longer than ``room`` is shortened."""
        said = translate(visible(text, lines=False))
        if room is not None:
            said = shortened(said, room, size, mono=mono, bold=bold)
        look = f"font-family: {_FONTS[mono]}; font-size: {size:g}px; fill: {colour}"
        look += "; font-weight: bold" * bold + "; font-style: italic" * italic
        self._parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" '
            f'style="{look}">{html.escape(said)}</text>'
        )

    def paragraph(
        self,
        x: float,
        y: float,
        text: str,
        room: float,
        *,
        size: float = 11,
        mono: bool = False,
        italic: bool = False,
    ) -> float:
        """Write a text in as many lines as it takes; return the base line of the next one."""
        for line in wrapped(translate(visible(text, lines=False)), room, size, mono=mono):
            self.text(x, y, line, size=size, mono=mono, italic=italic)
            y += size * 1.4
        return y

    def line(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str = INK,
        wide: float = 1.2,
        dashed: bool = False,
        arrow: bool = False,
        shade: float = 1.0,
        behind: bool = False,
    ) -> None:
        """Draw a line through points, with a head at its end if it is an ``arrow``.

        What is ``behind`` lies under all that was drawn before.
        """
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.insert(
            0 if behind else len(self._parts),
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{wide:g}" '
            f'stroke-opacity="{shade:g}"' + (' stroke-dasharray="5 3"' if dashed else "") + "/>",
        )
        if arrow:
            self._head(points[-2], points[-1], colour)

    def _head(self, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        """Draw the head of an arrow at ``end``: no marker, whose id another picture could have."""
        (x0, y0), (x1, y1) = start, end
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5 or 1.0
        along, across = (x1 - x0) / length, (y1 - y0) / length
        corners = [
            (x1, y1),
            (x1 - 8 * along - 4 * across, y1 - 8 * across + 4 * along),
            (x1 - 8 * along + 4 * across, y1 - 8 * across - 4 * along),
        ]
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)
        self._parts.append(f'<polygon points="{path}" fill="{colour}"/>')

    def badge(self, x: float, y: float, text: str, fill: str, ink: str) -> None:
        """Draw a number in a disc."""
        self._parts.append(f'<circle cx="{_number(x)}" cy="{_number(y)}" r="9" fill="{fill}"/>')
        self.text(x, y + 3.8, text, size=10.5, anchor="middle", bold=True, colour=ink)

    def finish(self, height: float) -> str:
        """Return the SVG element, never wider than the page."""
        size = f"{_number(self.width)} {_number(height)}"
        return (
            f'<svg style="max-width:100%;height:auto" xmlns="http://www.w3.org/2000/svg" '
            f'width="{_number(self.width * _SHOWN)}" height="{_number(height * _SHOWN)}" viewBox="0 0 {size}">'
            + "".join(self._parts)
            + "</svg>"
        )
