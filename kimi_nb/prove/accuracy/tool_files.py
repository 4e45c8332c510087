"""Read what an evaluation tool has written: a damaged file is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

from kimi_nb.core import shapes
from kimi_nb.core.errors import AccuracyError


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise AccuracyError, with the file's name, for what is raised while it is read."""
    try:
        yield
    except (OSError, ValueError, LookupError, RecursionError) as error:
        raise AccuracyError(
            f"{path}: is damaged, or from a version of the tool that writes it in another form "
            f"({type(error).__name__}: {shapes.fault(error)}). Run the evaluation again with resume: the answers "
            "are kept."
        ) from None


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that a float can hold; True and False are none."""
    return type(value) in (int, float) and abs(value) < 1e300  # type: ignore[arg-type]
