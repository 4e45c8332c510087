"""A tool as a child process: its progress as text and as a bar, and its end with ours.

    runner.run(argv, folder, env, progress=lm_eval.progress, say=print)

What it prints goes to ``tool.log`` in its folder. It belongs to a supervisor, which ends it when
this process ends, however that happens; what it had written stays.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from kimi_nb.core.processes import Programs
from kimi_nb.show import values as show

LOG = "tool.log"
_LOOK = 0.5  # seconds between two looks at what it has written
_LARGEST = 1 << 20  # bytes of a log that are read: its end
# What would change another environment's Python.
_LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

Progress = Callable[[Path, str], tuple[int, int] | None]


@dataclass(frozen=True)
class Ran:
    """How it ended: exit code, seconds, and what it printed."""

    code: int
    seconds: float
    log: str


def run(
    argv: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    *,
    progress: Progress,
    say: Callable[[str], None],
) -> Ran:
    """Run it to its end; KeyboardInterrupt ends it, and goes on."""
    begun, log = time.monotonic(), folder / LOG
    log.unlink(missing_ok=True)
    base = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    shown = (-1, -1)
    quiet = not (sys.stderr.isatty() or show.in_notebook())
    with (
        Programs(folder / "supervisor.log") as programs,
        tqdm(unit="answer", disable=quiet, mininterval=1.0) as bar,
    ):
        programs.start("tool", argv, folder, {**base, **env}, log)
        while (code := programs.wait("tool", _LOOK)) is None:
            found = progress(folder, tail(log))
            if found is None or found == shown:
                continue
            bar.total = found[1] or None
            bar.update(found[0] - bar.n)
            if _tells(shown, found):
                say(f"{time.monotonic() - begun:5.0f} s  {found[0]} of {found[1] or '?'} answers")
            shown = found
            programs.ended()  # raises where the supervisor was stopped from outside
    return Ran(code, time.monotonic() - begun, tail(log))


def tail(log: Path) -> str:
    """The end of what it has printed."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LARGEST))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def scrub(folder: Path, secret: str) -> None:
    """Take a secret out of all that was written: a service may repeat it in its refusal."""
    for path in folder.rglob("*") if secret else ():
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if secret.encode() in content:
                path.write_bytes(content.replace(secret.encode(), b"***"))


def _tells(before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Whether a line is due: at the start, and about every tenth of the way."""
    if before[0] < 0 or not now[1]:
        return True
    return 10 * before[0] // now[1] != 10 * now[0] // now[1]
