"""Show a picture in a notebook, print it as words and numbers, and save it in both forms."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.core import scratch
from kimi_nb.core.errors import WriteError
from kimi_nb.i18n import translate
from kimi_nb.show import Table, visible

# Readable on white and on black: a file opened on its own has no page to take a colour from.
_ALONE = "#767676"
_SMALLEST = 0.7  # of the size as drawn: text of 11 pixels is then still 8 pixels high
_SHOWN = 40  # rows that are printed; the CSV file has all of them


@dataclass(frozen=True)
class Picture:
    """An SVG whose text and lines take the colour of the surrounding page (``currentColor``).

    Attributes:
        name: The base name of its files.
        alt: A description of the picture in words.
        data: The rows that were drawn.
        png: The same picture as PNG, or empty.
    """

    name: str
    title: str
    svg: str
    alt: str
    data: tuple[Mapping[str, Any], ...]
    png: bytes = b""

    @property
    def table(self) -> Table:
        """The numbers that were drawn."""
        headings = tuple(dict.fromkeys(key for row in self.data for key in row))
        more = f" ({_SHOWN} of {len(self.data)} rows)" if len(self.data) > _SHOWN else ""
        return Table(
            f"{self.title}{more}",
            headings,
            tuple(tuple(row.get(key) for key in headings) for row in self.data[:_SHOWN]),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return title, description and numbers as plain values."""
        return {
            "name": self.name,
            "title": self.title,
            "alt": self.alt,
            "data": [dict(row) for row in self.data],
        }

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write NAME.svg, NAME.csv and, if there is a PNG, NAME.png; return their paths.

        Raises WriteError if the folder cannot be written.
        """
        files = {"svg": self._file().encode(), "csv": self._csv().encode()}
        if self.png:
            files["png"] = self.png
        paths = tuple(folder / f"{self.name}.{kind}" for kind in files)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, data in zip(paths, files.values(), strict=True):
                fresh = path.with_name(f".{path.name}.new")
                with scratch.opened(fresh, 0o666) as file:
                    file.write(data)
                fresh.replace(path)
        except OSError as error:
            raise WriteError(
                f"{error.filename or folder}: cannot be written: {error.strerror}. "
                "Choose another run_dir or mend its permissions."
            ) from None
        return paths

    def _file(self) -> str:
        """Return the SVG as a standalone document with a title and a description."""
        said = (
            f"<title>{html.escape(translate(self.title))}</title>"
            f"<desc>{html.escape(translate(self.alt))}</desc>"
        )
        head, rest = self.svg.split(">", 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{head} color="{_ALONE}">{said}{rest}\n'

    def _least_width(self) -> int:
        """Return the width in pixels below which its texts would be too small: the page scrolls."""
        found = re.search(r'<svg[^>]*?\swidth="([\d.]+)(pt)?', self.svg)
        return round(float(found[1]) * (4 / 3 if found[2] else 1) * _SMALLEST) if found else 0

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.table.headings), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.data)
        return out.getvalue()

    def __str__(self) -> str:
        return f"{visible(translate(self.alt))}\n{visible(str(self.table))}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        alt = html.escape(translate(self.alt), quote=True)
        return (
            f'<figure role="img" aria-label="{alt}" class="kimi-picture" '
            'style="margin:.5em 0;max-width:100%;overflow-x:auto">'
            f'<figcaption style="font-weight:bold">{html.escape(translate(self.title))}</figcaption>'
            f'<div style="min-width:{self._least_width()}px">{self.svg}</div></figure>'
        )
