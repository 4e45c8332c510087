"""A picture that shows itself in a notebook, prints as words and numbers, and is saved as both."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb.core.errors import WriteError
from kimi_nb.show.values import Table, visible

# Readable on white and on black, for a file that is opened alone and has no page's colour.
_ALONE = "#767676"
_SHOWN = 40  # rows of data that are printed; the file has all of them


@dataclass(frozen=True)
class Picture:
    """An SVG whose text and lines take the colour of the page around it (``currentColor``).

    ``name`` is that of its files, ``alt`` says in words what is to be seen, ``data`` are the rows
    that were drawn; ``png`` is the same as PNG where one is kept.
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
        """Title, words and numbers as plain values."""
        return {
            "name": self.name,
            "title": self.title,
            "alt": self.alt,
            "data": [dict(row) for row in self.data],
        }

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write NAME.svg and NAME.csv, and NAME.png if there is one. Raises WriteError where the
        folder cannot be written."""
        files = {"svg": self._file().encode(), "csv": self._csv().encode()}
        if self.png:
            files["png"] = self.png
        paths = tuple(folder / f"{self.name}.{kind}" for kind in files)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, data in zip(paths, files.values(), strict=True):
                fresh = path.with_name(f".{path.name}.new")
                fresh.write_bytes(data)
                fresh.replace(path)
        except OSError as error:
            raise WriteError(
                f"{error.filename or folder}: cannot be written: {error.strerror}. "
                "Choose another run_dir or mend its permissions."
            ) from None
        return paths

    def _file(self) -> str:
        """The SVG as a document of its own, with its words for those who cannot see it."""
        said = f"<title>{html.escape(self.title)}</title><desc>{html.escape(self.alt)}</desc>"
        head, rest = self.svg.split(">", 1)
        return f'<?xml version="1.0" encoding="utf-8"?>\n{head} color="{_ALONE}">{said}{rest}\n'

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, list(self.table.headings), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.data)
        return out.getvalue()

    def __str__(self) -> str:
        return f"{visible(self.alt)}\n{visible(str(self.table))}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        alt = html.escape(self.alt, quote=True)
        return (
            f'<figure role="img" aria-label="{alt}" class="kimi-picture" '
            'style="margin:.5em 0;max-width:100%">'
            f'<figcaption style="font-weight:bold">{html.escape(self.title)}</figcaption>'
            f"{self.svg}</figure>"
        )
