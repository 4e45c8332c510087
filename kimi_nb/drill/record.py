"""A drill on disk: its logs, to be read, and what was made to go wrong, which is not shown before.

    drill = record.find(Path("runs/k2.6-a3/k2.6-a3-pd"))  # the newest one
    drill.logs  # a table of the logs
    verdict.judge(drill, "a3-1 rank 3 out of memory")  # a Verdict

The folder holds ``logs/NODE/*.log`` and ``logs/router.log`` as the rehearsal wrote them, up to the
moment at which it was stopped, ``client.log`` with what those who asked the service were told,
``plan.json``, and ``drill.json``. The last one holds the fault in a packed form: no secret, but
neither a glance nor grep gives it away.
"""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kimi_nb import show
from kimi_nb.core import bounded_files, evidence, numbers
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.core.marks import MARK
from kimi_nb.diagnose import rank_places
from kimi_nb.rehearse import faults

FILE, VERDICT, CLIENT, FOLDER = "drill.json", "verdict.json", "client.log", "drills"
_SHOWN = 60  # lines of a log, and lines that a word is found in
_LONGEST = 240  # characters of a line
_LARGEST = 1 << 20  # bytes of the facts of a drill
_MOST_READ = 64 << 20  # bytes of a log


@dataclass(frozen=True)
class Truth:
    """What was made to go wrong in a drill, and what the rehearsal itself found of it.

    Attributes:
        fault: The name of the fault.
        node: The node at fault.
        ranks: The ranks that are right answers; () where it is the node or front door as a whole.
        whole: Whether no rank at all is a right answer, too.
        cause: The rehearsal's diagnosis, with its evidence and way out.
        in_logs: Whether the doctor finds it in the logs; else only asking the service shows it.
    """

    fault: str
    node: str
    ranks: tuple[int, ...]
    whole: bool
    cause: str
    evidence: str
    help: str
    in_logs: bool


@dataclass(frozen=True, repr=False)
class Drill(show.Shown):
    """One drill; shows where its logs are, and nothing of what they say.

    Attributes:
        asked: The fault that was asked for by name; "" for a surprise.
    """

    folder: Path
    plan: str
    asked: str
    seed: int
    sealed: str
    places: rank_places.Placed

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the plan."""
        return self.places.nodes

    @property
    def truth(self) -> Truth:
        """What was made to go wrong: gives the answer away."""
        packed = zlib.decompressobj()
        text = packed.decompress(base64.b64decode(self.sealed), _LARGEST)
        if packed.unconsumed_tail:
            raise ValueError("what is sealed has no end")
        facts = json.loads(text)
        return Truth(**facts | {"ranks": tuple(facts["ranks"])})

    def as_dict(self) -> dict[str, Any]:
        """Return what may be known before the answer, as plain values."""
        return {
            "mark": MARK,
            "folder": str(self.folder),
            "plan": self.plan,
            "asked": self.asked or "surprise",
            "seed": self.seed,
            "nodes": list(self.nodes),
            "logs": [str(path) for path in self._paths()],
        }

    def table(self) -> show.Table:
        """Return a table of where things are."""
        return show.Table(
            f"{MARK}: a drill on {self.plan}, stand-ins on this machine",
            ("what", "is"),
            (
                ("what goes wrong", self.asked or "a surprise"),
                ("nodes", ", ".join(self.nodes)),
                ("engines", len(self.places.engines)),
                ("files", len(self._paths())),
                ("logs", str(self.folder / "logs")),
                ("what a client saw", str(self.folder / CLIENT)),
                ("seed", self.seed),
            ),
        )

    # Read ---------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        logs = sorted((self.folder / "logs").rglob("*.log"), key=_numbered)
        return [path for path in (self.folder / CLIENT, *logs) if is_inside(path, self.folder)]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder)).removeprefix("logs/")

    @property
    def logs(self) -> show.Table:
        """All logs with their sizes and last lines."""
        rows = []
        for path in self._paths():
            text = _read(path)
            last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
            rows.append((self._name(path), len(text), text.count("\n"), _short(last)))
        title = f"{MARK}: {len(rows)} logs in {self.folder}"
        return show.Table(title, ("log", "bytes", "lines", "ends with"), tuple(rows))

    def log(self, name: str = "", start: int = 0, *, most: int = _SHOWN) -> show.Text:
        """Return ``most`` lines of a log, such as ``a3-1/rank_3.log``: its last, or from ``start`` on.

        "" is the first log of a node. Raises ParameterError for a name that is not in `logs`.
        """
        known = {self._name(path): path for path in self._paths()}
        path = known.get(name.removeprefix("logs/") or [*known][1])
        if path is None:
            raise ParameterError(choice("log", name, known))
        lines = lines_of(path)
        first = start - 1 if start > 0 else max(0, len(lines) - most)
        part = lines[first : first + most]
        told = [f"{at:5} {show.visible(line)}" for at, line in enumerate(part, first + 1)]
        title = f"{path}, lines {first + 1} to {first + len(part)} of {len(lines)}"
        return show.Text(title, "\n".join(told))

    def search(self, words: str) -> show.Table:
        """Return the lines of all logs that hold a text, in any case; the first ones of each."""
        wanted, rows, count = words.casefold(), [], 0
        if not wanted.strip():
            raise ParameterError("search: a text is wanted, such as 'error'.")
        for path in self._paths():
            found = [
                (self._name(path), number, _short(line))
                for number, line in enumerate(lines_of(path), 1)
                if wanted in line.casefold()
            ]
            count += len(found)
            rows += found[:3]
        title = f"{count} lines hold {words!r}; of each log the first three"
        return show.Table(title, ("log", "line", "text"), tuple(rows[:_SHOWN]))


def write(folder: Path, *, plan: str, asked: str, seed: int, truth: Truth) -> Drill:
    """Write a drill's facts into its folder, which has its logs already, and return the drill."""
    sealed = base64.b64encode(zlib.compress(json.dumps(asdict(truth)).encode())).decode()
    facts = {"mark": MARK, "plan": plan, "asked": asked, "seed": seed, "sealed": sealed}
    evidence.write_json(folder / FILE, facts)
    return read(folder)


def read(folder: Path) -> Drill:
    """Return the drill in a folder. Raises ParameterError where there is none."""
    try:
        facts: Mapping[str, Any] = json.loads(bounded_files.read(folder / FILE, _LARGEST))
        drill = Drill(
            folder,
            str(facts["plan"]),
            str(facts["asked"]),
            int(facts["seed"]),
            str(facts["sealed"]),
            rank_places.of(folder),
        )
        _check(drill)
    except FileNotFoundError:
        raise ParameterError(
            f"{folder}: is no folder of a drill; kimi-nb drill prints the one that it makes."
        ) from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        ArithmeticError,
        RecursionError,
        zlib.error,
    ) as error:
        raise ParameterError(
            f"{folder / FILE}: cannot be read ({type(error).__name__}); make a new drill."
        ) from None
    return drill


def _check(drill: Drill) -> None:
    """Refuse a drill that somebody else may have made up. Raises ValueError."""
    truth = drill.truth
    texts = (truth.fault, truth.node, truth.cause, truth.evidence, truth.help)
    if not (
        drill.nodes
        and all(isinstance(one, str) for one in texts)
        and all(type(one) is int for one in truth.ranks)
        and isinstance(truth.whole, bool)
        and isinstance(truth.in_logs, bool)
        and truth.fault in faults.FAULTS
        and truth.node in (*drill.nodes, drill.places.door)
    ):
        raise ValueError("what is sealed is of no drill")


def find(base: Path) -> Drill:
    """Return the newest drill below a folder. Raises ParameterError where there is none."""
    found = sorted(base.rglob(f"{FOLDER}/*/{FILE}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ParameterError(
            f"{base}: holds no drill yet. Begin with kimi-nb drill --surprise, or name the folder "
            "of one (--of)."
        )
    return read(found[-1].parent)


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path is a file of a folder, and no link that leads out of it."""
    # os.path, and not Path: a name that no file can have is no error to it.
    return os.path.isfile(path) and path.resolve().is_relative_to(folder.resolve())


def _numbered(path: Path) -> list[tuple[int, str]]:
    """Sort by numbers as numbers: rank_2 before rank_10."""
    parts = re.split(r"(\d+)", str(path))
    return [(-1 if (at := numbers.whole(part)) is None else at, part) for part in parts]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a log, whatever bytes are in it; none where it is not there."""
    return _read(path).splitlines() if path.is_file() else []


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_READ).decode("utf-8", "replace")


def _short(line: str) -> str:
    line = show.visible(line.strip(), lines=False)
    return line if len(line) <= _LONGEST else line[:_LONGEST] + " ..."
