"""A tool as a child process: its progress as text and as a bar, and nothing left behind.

Usage::

    tool_process.run(argv, folder, env, progress=lm_eval.progress, say=print)

The tool's output goes to ``tool.log`` in its folder. A supervisor process ends the tool when this
process ends, for whatever reason; files written by then remain.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from kimi_nb import show
from kimi_nb.core.processes import Programs

LOG = "tool.log"
_LOOK = 0.5  # seconds between two looks at the tool's output
_LARGEST = 1 << 20  # bytes to read, from the end of a log
# These would interfere with the Python of another environment.
_LEFT_OUT = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

Progress = Callable[[Path, str], tuple[int, int] | None]


@dataclass(frozen=True)
class Ran:
    """How a tool ended: its exit code, the seconds it took and what it printed."""

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
    """Run a tool until it ends.

    Raises:
        KeyboardInterrupt: On Ctrl-C, after the tool was ended.
    """
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
            programs.ended()  # raises if the supervisor was killed
    return Ran(code, time.monotonic() - begun, tail(log))


def tail(log: Path) -> str:
    """Return the end of a log, at most 1 MiB, or "" if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LARGEST))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def scrub(folder: Path, secret: str) -> None:
    """Replace a secret in all files of a folder.

    A service may repeat the key in the message with which it refuses a request.
    """
    for path in folder.rglob("*") if secret else ():
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if secret.encode() in content:
                path.write_bytes(content.replace(secret.encode(), b"***"))


def _tells(before: tuple[int, int], now: tuple[int, int]) -> bool:
    """Tell whether a progress line is due: at the start, then at about every tenth."""
    if before[0] < 0 or not now[1]:
        return True
    return 10 * before[0] // now[1] != 10 * now[0] // now[1]
