r"""Take one physical line of a log apart: what wrapped it, who speaks, how grave it is, what is said.

>>> said = of(
...     "ms-decode-6c8f9c4df6-vh88z vllm (Worker_DP3_TP2 pid=9) ERROR 11-22 05:49:28 [a.py:7] no"
... )
>>> said.rank, said.label, said.level, said.source, said.text
('DP3_TP2', 'DP3 TP2', 'ERROR', 'a.py:7', 'no')
>>> of("[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)").rank
'TP4'

The tables of `line_forms` hold the grammar, and `rank_words` how programs name a rank in what they
say. Lines of JSON are read by their keys.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kimi_nb.diagnose import log_lines, rank_words
from kimi_nb.diagnose.line_forms import BEHIND, GLUED, NATIVE, SPEAKERS, WRAPPERS

_REACH = 400  # characters of a line in which its beginning is looked for
_DEEP = 8  # wrappers and speakers around one line
_WITHIN = 2  # lines of programs within each other: that of an engine in that of who logs it
_BEGUN = (
    160  # characters within which an engine's line begins behind what another program puts there
)
_HEADERS = 8  # words that this may have
_BREAKS = " \t|:>])"  # what ends it
_DRAWN = 24  # characters at least of what another program wrote before, without a break

# What Python, C++ and others call a level, and the one of ours that it is.
_LEVELS = {
    **dict.fromkeys(("T", "TRACE", "D", "V", "DEBUG"), "DEBUG"),
    **dict.fromkeys(("I", "INFO", "N", "NOTICE", "EVENT"), "INFO"),
    **dict.fromkeys(("W", "WARN", "WARNING"), "WARNING"),
    **dict.fromkeys(("E", "ERR", "ERROR"), "ERROR"),
    **dict.fromkeys(
        ("F", "FATAL", "CRITICAL", "CRIT", "ALERT", "EMERG", "C", "PANIC", "DPANIC"), "FATAL"
    ),
}
CALM = ("DEBUG", "INFO", "WARNING")  # levels of which no line is a cause
GRAVE = ("ERROR", "FATAL")
# What follows a line: how often Ray has seen it, the border of a terminal's pane, and a return as syslog writes it.
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$|(?<=\S) +\u2502$|#015\"?$")
_JSON_LEVELS = ("level", "severity", "lvl", "levelname", "log.level")
_JSON_NODES = ("pod", "pod_name", "hostname", "host_name", "node")
_JSON_LEVEL = re.compile(rf'"(?:{"|".join(map(re.escape, _JSON_LEVELS))})": ?"\w+"')
_PART = re.compile(r"((?:[A-Z]+_)*[A-Z]+|)(\d+)")


@dataclass(frozen=True, slots=True)
class Said:
    """One line taken apart.

    Attributes:
        rank: Its number in the group, or a name as it is logged ("TP4", "DP0_TP3_EP3"), or None.
        label: All that the line says of its place, also around it: "DP3 TP2".
        process: What tells the lines of one process from those of others.
        speaker: Who speaks: "Worker", "EngineCore", "APIServer", "NCCL", ..., or "".
        node: The host, pod or address, where the line names one.
        level: DEBUG, INFO, WARNING, ERROR, FATAL, or "" where the line has none.
        source: The file and line that wrote it, or "".
        grammar: The row of the table that knows the line, or "".
        text: The message.
        thread: The number of the thread, which is that of the process in its first one, or "".
    """

    rank: int | str | None = None
    label: str = ""
    process: str = ""
    speaker: str = ""
    node: str = ""
    level: str = ""
    source: str = ""
    grammar: str = ""
    text: str = ""
    thread: str = ""

    @property
    def unnamed(self) -> bool:
        """Whether nothing tells its process, but at most its node."""
        return not self.process or self.process.endswith("||None")

    @property
    def calm(self) -> bool:
        """Whether its level is below error, so that it is no cause."""
        return self.level in CALM


@dataclass
class _Found:
    """What was found of a line so far; the innermost counts."""

    parts: dict[str, int] = field(default_factory=dict)
    named: str = ""
    inner: bool = False  # a process that an engine runs, which tells no place of its own
    torch: int | None = None
    torched: bool = False  # whether torch told it of its process
    speaker: str = ""
    pid: str = ""
    ip: str = ""
    node: str = ""
    task: int | None = None
    local: str = ""
    stage: str = ""
    thread: str = ""
    levelless: bool = False  # SGLang's own lines

    def take(self, match: re.Match[str]) -> None:
        found = {name: value for name, value in match.groupdict().items() if value}
        self.levelless |= "time" in found
        parts = found.get("parts", "") + " " + found.get("named", "")
        if "rank=" in parts:
            self.torch = int(parts.rpartition("=")[2])
        elif parts.strip():
            here = {name or "DP": int(number) for name, number in _PART.findall(parts)}
            outer = self.parts.get("DP", 0)
            self.parts, self.inner = {**self.parts, **here}, False
            self.named = parts.strip("_ ")
            # A data parallel rank of one worker is known by its number.
            if "parts" in found and "DP" in here and not here.keys() - {"DP", "EP"}:
                self.named = ""
            elif "DP" not in here and outer:
                self.named = f"DP{outer} {self.named}"
        elif "ip" in found or "Worker" in found.get("who", ""):
            self.inner = True
        for name in ("torch", "npu"):
            # The number in one of several groups stands behind that among all: "[rank18]:[E ...] [Rank 2]".
            if name in found and int(found[name]) >= 0 and not ("source" in found and self.torched):
                self.torch = int(found[name])
        self.torched |= "torch" in found
        if self.torch is None and int(found.get("device", -1)) >= 0:
            self.torch = int(found["device"])
        if "task" in found:
            self.task = int(found["task"])
        if "local" in found:
            self.local = f"[{found['local']}]"
        self.stage = found.get("stage", self.stage)
        self.thread = found.get("thread", self.thread)
        if "who" in found:
            self.speaker = found["who"].rstrip("_")
        if "door" in found:  # the only process of its name in a log
            self.speaker, self.pid = "router", found["door"]
        self.pid = found.get("pid", self.pid)
        self.ip = found.get("ip", self.ip)
        self.node = found.get("node", found.get("host", self.node))

    @property
    def rank(self) -> int | str | None:
        if "DP" in self.parts and not (self.named or self.inner):
            if self.stage:  # each stage has an engine of this name
                return self.stage
            return self.parts["DP"]
        if self.named and not self.inner:
            return self.named
        if self.torch is not None:
            return self.torch
        if self.task is not None:
            return self.task
        if self.ip:
            return f"ip={self.ip}"
        if "/" in self.speaker:  # a worker that carries its number in its name: model_worker/7
            return self.speaker
        return self.local or None


def _label(parts: dict[str, int]) -> str:
    return " ".join(f"{name}{number}" for name, number in parts.items())


@functools.lru_cache(maxsize=4096)
def of(line: str) -> Said:
    """Return what a line says. ``line`` is without colours and line break (`log_lines.plain`)."""
    text = _REPEATED.sub("", _unboxed(line))
    found = _Found()
    text = _peeled(text, found)
    grammar = level = source = ""
    told = _begun(text, NATIVE)
    if told is None and not found.speaker and (inner := _inner(text)) is not text:
        text = _peeled(inner, found)
        told = _begun(text, NATIVE)
    for _ in range(_WITHIN):
        if told is None:
            break
        grammar, match = told
        found.take(match)
        groups = match.groupdict()
        level = _LEVELS.get((groups.get("level") or groups.get("low") or "").upper(), "")
        source = groups.get("source") or ""
        text = _peeled(text[match.end() :], found)
        told = _begun(text, NATIVE[:1])
    if not grammar and text.startswith("{") and (row := _structured(text)) is not None:
        level, source, text, rank_told, node = row
        found.torch = rank_told if found.torch is None else found.torch
        found.node = found.node or node
        grammar = "json"
    if not grammar and found.levelless:
        grammar = "sglang"
    ended = rank_words.ended(text[:_REACH])
    rank = found.rank
    if rank is None:
        rank = rank_words.rank_of(text[:_REACH])
    if rank is None:
        rank = rank_words.name_of(text[:_REACH]) or None
    place = rank_words.group_of(text[:_REACH]) if found.rank is None else None
    if place is None and rank is None:
        place = rank_words.place_of(text[:_REACH])
    if place is not None:
        rank = place.rank
    if ended and (rank is None or found.speaker.startswith("EngineCore")):
        rank = f"DP{rank} {ended}" if rank else ended
    by_engine = found.speaker.startswith("EngineCore")
    named = rank_words.title_of(text) if "::" in text else ""
    named = named or (rank_words.worker_of(text[:_REACH]) if by_engine and level in GRAVE else "")
    if named and not ended and (rank is None or by_engine):
        outer = found.parts.get("DP", 0)
        rank = named = f"DP{outer} {named}" if outer and "DP" not in named else named
    if rank is None and found.pid:
        rank = rank_words.device_of(text[:_REACH])
    if rank is None and (host := rank_words.host_of(text)):
        rank = host if host[0].isalpha() and host.count(":") < 2 else f"ip={host}"
    label = " ".join(
        filter(
            None,
            (
                _label(found.parts),
                "" if found.parts else found.named,
                found.stage if found.rank is None else "",
                ended if ended and (found.parts or ended != rank) else "",
            ),
        )
    )
    who = found.speaker
    process = f"{found.node}|{found.ip}|{found.pid or label or rank}" if found.pid or label else ""
    if not process and (found.rank is not None or found.node):
        process = f"{found.node}||{found.rank}"
    if rank is not None and rank == named:
        label = named.replace("_", " ")
    return Said(
        rank,
        label or (place.name if place is not None else "" if rank is None else str(rank)),
        process,
        who,
        found.node or found.ip,
        level,
        source,
        grammar,
        text,
        found.thread,
    )


def own(line: str) -> str:
    """Return the part of a line that an engine wrote, behind what was drawn without a break.

    >>> own("Loading weights:  50%|##  | 1/2 [00:01<00:01](Worker_TP1 pid=9) ERROR no")
    '(Worker_TP1 pid=9) ERROR no'
    >>> own("vllm-1  | Loading weights:  50%|##  | 1/2 [00:01<00:01](Worker_TP1 pid=9) ERROR no")
    'vllm-1  | (Worker_TP1 pid=9) ERROR no'

    A line that another program has begun, or whose beginning tells an error, is left alone.
    """
    glued = GLUED.search(line, _DRAWN - 1)
    if glued is None or line.startswith("{"):
        return line
    before = line[: glued.end()]
    said = of(before)
    if said.grammar or said.speaker or said.rank is not None or log_lines.tells_error(before):
        return line
    # What names the node stands before it all.
    node = before.removesuffix(said.text) if said.node else ""
    return node + line[glued.end() :]


def _begun(
    text: str, forms: Iterable[tuple[str, re.Pattern[str]]]
) -> tuple[str, re.Match[str]] | None:
    """Return the form in which a program begins a line, or None."""
    head = text[:_REACH]
    return next(
        ((name, match) for name, pattern in forms if (match := pattern.match(head)) is not None),
        None,
    )


def _inner(text: str) -> str:
    """Return what an engine wrote of a line that another program begins in a way of its own.

    What stands before may be times, names and brackets, but no sentence, and no error.
    """
    behind = BEHIND.search(text, 1, _BEGUN)
    if behind is None:
        return text
    before = text[: behind.start()]
    words = before.split()
    prose = sum(word.isalpha() and word.islower() for word in words) > 1
    if before[-1] not in _BREAKS or len(words) > _HEADERS or prose or log_lines.tells_error(before):
        return text
    return text[behind.start() :]


def _structured(text: str) -> tuple[str, str, str, int | None, str] | None:
    """Return (level, source, message, rank, node) of a line of JSON, as Go, Rust and collectors write it."""
    if not _JSON_LEVEL.search(text):
        return None
    try:
        row = json.loads(text)
    except ValueError:
        return None
    level = next((row[key] for key in _JSON_LEVELS if key in row), "")
    said = [row[key] for key in ("message", "msg", "error", "err") if row.get(key)]
    source = next((row[key] for key in ("caller", "file", "target", "logger") if key in row), "")
    if not said:
        fields = row.get("fields")  # tracing, where its fields are not flattened
        said = [fields["message"]] if isinstance(fields, dict) and "message" in fields else []
    node = next((row[key] for key in _JSON_NODES if isinstance(row.get(key), str)), "")
    rank = row.get("rank")
    return (
        _LEVELS.get(str(level).upper(), ""),
        str(source),
        ": ".join(map(str, said)),
        rank if type(rank) is int and rank >= 0 else None,
        node,
    )


def _unboxed(line: str) -> str:
    """Return the line within one of Docker's JSON files."""
    if not line.startswith('{"log":"'):
        return line
    try:
        return str(json.loads(line)["log"]).rstrip("\n")
    except (ValueError, KeyError, TypeError):
        return line


def _peeled(text: str, found: _Found) -> str:
    for _ in range(_DEEP):
        head = text[:_REACH]
        for pattern in (*SPEAKERS, *WRAPPERS):
            match = pattern.match(head)
            if match is not None and match.end():
                if match.groupdict().get("our") is None:
                    found.take(match)
                    text = text[match.end() :]
                    break
                found.take(match)
        else:
            return text
    return text
