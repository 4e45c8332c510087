"""Say in place of a picture why there is none.

Example::

    nothing.picture("hccl", "k2.5-h200-single: HCCL buffers", "this hardware has no HCCL")
"""

from __future__ import annotations

from kimi_nb.notebook.pictures import diagram
from kimi_nb.show.picture import Picture

_WIDTH = 760


def picture(name: str, title: str, why: str) -> Picture:
    """Return a picture that holds one sentence and no numbers."""
    drawing = diagram.Diagram(_WIDTH)
    end = drawing.paragraph(12, 24, f"Nothing to draw: {why}.", _WIDTH - 24, size=11.5)
    drawing.box(1, 1, _WIDTH - 2, end - 4, dashed=True)
    return Picture(name, title, drawing.finish(end), f"{title}. Nothing to draw: {why}.", ())
