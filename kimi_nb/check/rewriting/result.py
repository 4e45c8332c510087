"""The outcome of a rewrite, and how it is written to the file.

For example::

    print(Rewritten("run.sh", old, new, done, left))  # the diff, what was done, what was not
    result.save(Path("run.sh"), made)  # run.sh.orig keeps the old text
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from kimi_nb.core import scratch
from kimi_nb.core.errors import WriteError


@dataclass(frozen=True)
class Rewritten:
    """A script before and after, and what was done or could not be, one sentence each."""

    name: str
    old: str
    new: str
    done: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The changed lines, as a unified diff."""
        return "\n".join(
            difflib.unified_diff(
                self.old.splitlines(),
                self.new.splitlines(),
                self.name,
                f"{self.name} (rewritten)",
                lineterm="",
            )
        )

    def __str__(self) -> str:
        lines = [self.diff or f"{self.name}: nothing to rewrite"]
        lines += [f"{self.name}: {said}" for said in (*self.done, *self.left)]
        return "\n".join(lines)


def save(place: Path, made: Rewritten) -> None:
    """Write the new text to a file, and keep the old one beside it under an unused name.

    Raises WriteError if that fails; the file is then as before.
    """
    kept = place.with_name(f"{place.name}.orig")
    number = 1
    while kept.exists():
        number += 1
        kept = place.with_name(f"{place.name}.orig{number}")
    target = place.resolve()
    fresh = scratch.beside(target)
    try:
        # A key in the script stays as private as it was, in both files.
        mode = target.stat().st_mode & 0o7777
        for path, text in ((kept, made.old), (fresh, made.new)):
            with scratch.opened(path) as out:
                out.write(text.encode())
            path.chmod(mode)
        fresh.replace(target)
    except OSError as error:
        raise WriteError(
            f"{place}: cannot be written: {error.strerror}. It is as before."
        ) from None
    finally:
        scratch.remove(fresh)
