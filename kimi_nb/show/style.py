"""Define the style of all pictures, and turn matplotlib figures into SVG for any page.

Example::

    with style.figure(8, 3) as canvas:
        canvas.axes.barh(...)
        svg = canvas.finish("memory")

Text stays text, uses the page's font and colour, and needs no external file. The colours are Okabe
and Ito's, which people with colour vision deficiency can tell apart (Color Universal Design, 2008).
Whatever a colour expresses is also written or has a marker of its own.
"""

from __future__ import annotations

import html
import io
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kimi_nb.i18n import translate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#f0e442"
ORANGE, VERMILLION, PURPLE, GREY = "#e69f00", "#d55e00", "#cc79a7", "#999999"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW, GREY)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
SPACE = "\N{NO-BREAK SPACE}"  # unlike a plain space, SVG keeps it at the start of a text
# Placeholder that nobody would choose as a colour; it is replaced by the page's own.
INK = "#010203"
_RC: Any = {
    "svg.fonttype": "none",
    "svg.image_inline": True,
    "font.size": 10,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.monospace": ["DejaVu Sans Mono"],
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "hatch.color": INK,
    "hatch.linewidth": 0.5,
    "path.snap": True,
}
_TEXT = re.compile(r"(<text\b[^>]*>)([^<]+)")
# matplotlib's settings are global, and a panel draws in another thread than the notebook.
_alone = threading.RLock()


@contextmanager
def figure(width: float, height: float, **axes: Any) -> Iterator[Canvas]:
    """Provide a canvas of ``width`` by ``height`` inches with one pair of axes.

    ``axes`` are passed to matplotlib's add_subplot.
    """
    import matplotlib  # start-up: only when drawn
    from matplotlib.figure import Figure

    with _alone, matplotlib.rc_context(_RC):
        drawn = Figure(figsize=(width, height))
        yield Canvas(drawn, drawn.add_subplot(**axes))


class Canvas:
    """A figure and its axes."""

    def __init__(self, drawn: Figure, axes: Axes) -> None:
        self.figure, self.axes = drawn, axes

    def plain(self, width: float, height: float) -> Axes:
        """Return the axes, invisible and filling the figure.

        They span ``width`` by ``height`` units; y grows downwards.
        """
        self.axes.set_position((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height, 0)
        return self.axes

    def finish(self, name: str) -> str:
        """Return the figure as an SVG element; the same figure gives the same bytes.

        Call it inside the ``with``. ``name`` keeps the internal ids apart from those of other
        pictures.
        """
        import matplotlib  # start-up: only when drawn

        out = io.StringIO()
        with matplotlib.rc_context({"svg.hashsalt": name}):
            self.figure.savefig(
                out,
                format="svg",
                bbox_inches="tight",
                pad_inches=0.05,
                metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
            )
        text = out.getvalue()
        text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
        text = text[text.index("<svg") :].strip().replace(INK, "currentColor")
        text = _TEXT.sub(lambda found: found[1] + _told(found[2]), text)
        # As wide as drawn, but never wider than the page.
        return re.sub(r"<svg ", '<svg style="max-width:100%;height:auto" ', text, count=1)

    def png(self, title: str) -> bytes:
        """Return the figure as PNG with a title above, for viewers that do not accept SVG.

        The background is white, so that it can be read on a dark page as well. Call it inside the
        ``with``, after `finish`.
        """
        out = io.BytesIO()
        self.figure.suptitle(title, fontsize=10.5, wrap=True)
        self.figure.savefig(
            out, format="png", dpi=110, facecolor="white", metadata={"Software": None}
        )
        return out.getvalue()


def _told(text: str) -> str:
    """Return the text of an element of an SVG in the current language."""
    return html.escape(translate(html.unescape(text)), quote=False)


def on(colour: str) -> str:
    """Return black or white, whichever is easier to read on a colour (WCAG relative luminance).

    >>> on(YELLOW), on(BLUE)
    ('#000000', '#ffffff')
    """
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    bright = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if bright > 0.179 else "#ffffff"


def cycle(at: int) -> str:
    """Return the colour of the n-th item of a series; the eight colours repeat."""
    return COLOURS[at % len(COLOURS)]


def mark(at: int) -> str:
    """Return the marker of the n-th item; marker and colour together are distinct for 64 items."""
    return MARKS[(at + at // len(COLOURS)) % len(MARKS)]
