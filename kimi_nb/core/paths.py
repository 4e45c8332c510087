"""Locate the project's own files, in a checkout and in an installed wheel.

``PACKAGE`` is the folder of the package, ``root()`` the one that holds ``params/``. Neither depends
on the working directory, because papermill runs a notebook in the caller's.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
DATA = PACKAGE / "data"


def root() -> Path:
    """Return the folder that holds ``params/`` and ``notebooks/``.

    That is the root of the checkout, or the copy that a wheel carries inside the package.
    """
    return PACKAGE / "tree" if (PACKAGE / "tree").is_dir() else PACKAGE.parent
