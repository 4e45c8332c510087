r"""Take one physical line of a log apart: what wrapped it, who speaks, how grave it is, what is said.

>>> said = of(
...     "ms-decode-6c8f9c4df6-vh88z vllm (Worker_DP3_TP2 pid=9) ERROR 11-22 05:49:28 [a.py:7] no"
... )
>>> said.rank, said.label, said.level, said.source, said.text
('DP3_TP2', 'DP3 TP2', 'ERROR', 'a.py:7', 'no')
>>> of("[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)").rank
'TP4'

Three tables hold the grammar: `_WRAPPERS` are what containers, pods, journald, Ray and launchers put
in front of a line, `_SPEAKERS` what names the process, and `_NATIVE` how each kind of program begins
its lines (vLLM, glog and klog, torch, NCCL, UCX, CANN, Rust, Go). A row more is a program more. Lines
of JSON are read by their keys.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field

_REACH = 400  # characters of a line in which its beginning is looked for
_DEEP = 8  # wrappers and speakers around one line

# What Python, C++ and others call a level, and the one of ours that it is.
_LEVELS = {
    **dict.fromkeys(("T", "TRACE", "D", "V", "DEBUG"), "DEBUG"),
    **dict.fromkeys(("I", "INFO", "N", "NOTICE", "EVENT"), "INFO"),
    **dict.fromkeys(("W", "WARN", "WARNING"), "WARNING"),
    **dict.fromkeys(("E", "ERR", "ERROR"), "ERROR"),
    **dict.fromkeys(("F", "FATAL", "CRITICAL", "C", "PANIC", "DPANIC"), "FATAL"),
}
CALM = ("DEBUG", "INFO", "WARNING")  # levels of which no line is a cause
GRAVE = ("ERROR", "FATAL")
_LEVEL = r"(?P<level>TRACE|DEBUG|INFO|NOTICE|EVENT|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_DAY = r"\d{4}[-/]?\d\d[-/]?\d\d"
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,:]\d[\d.]*)?"

# How the lines of engines begin, before which another program may put what it likes.
_SPOKEN = (
    r"(?=\((?:EngineCore|Worker|VllmWorker|API|Api|RayWorker)[^()]*pid=\d|\[rank\d+\]|"
    rf"\[{_DAY} {_CLOCK} [A-Z]+\d)"
)
# What is put around a line, with what it tells of its origin.
_WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:(?:#033|ESC|\^\[)?\[[0-9;]*m(?!\]) ?)+",  # a colour as syslog writes it, or without its escape
        r"std(?:err|out): ?",
        r"REHEARSAL:? +",
        r"\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ",  # kubectl logs --prefix
        r"(?P<node>[a-z0-9][a-z0-9-]*-[a-z0-9]{5}|[a-z][a-z0-9-]*-\d+) [a-z][a-z0-9-]{2,} "
        r"(?=[\[(A-Z\d])",  # stern: pod and container
        r"rank_(?P<task>\d{1,4}) \| ",  # launch_online_dp.py --echo, in a pod
        r"[\w.-]+ +\| ?",  # docker compose
        r" *\| (?=[\[(]|(?:INFO|WARNING|ERROR) \d\d-)",  # a console that leaves out whose line it is
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d) (?:stdout|stderr) [FP] ",  # CRI
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d) (?=\(|\[|[EWI]\d{{4}} | *File |(?:INFO|ERROR|WARNING) \d\d-|[\w.-]+:\d+:\d+ \[\d)",
        rf"{_DAY}T{_CLOCK}(?:Z|[+-]\d\d:?\d\d)\t|\[{_DAY}T{_CLOCK}Z\] ",  # collectors, CI
        # a program that logs what an engine says, as "TIME - name - INFO - " or "TIME [Info] (name) "
        rf"{_DAY} {_CLOCK} (?:(?:\[\w+\]|\(\w+\)|[\w.]+ -|[|-]) )+{_SPOKEN}",
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<node>[\w.-]+) [\w./@-]+(?:\[\d+\])?: ",  # syslog
        r"[A-Z][a-z]{2} \d\d?, \d{4} @ \d\d:\d\d:\d\d\.\d+ +",  # Kibana
        rf"{_DAY} {_CLOCK} [A-Z]{{3,4}} \| ",  # a table of a console
        r"\[Stage-\d+\] ",
        # the border of a terminal's pane; a box that rich draws around a traceback stays
        r"\u2502 +(?=File \"|\[\d{4}-|[A-Za-z_][\w.]*(?:Error|Exception): )",
        r"\[\d+\] (?=\[rank\d)",  # a pid
        r"(?P<task> {0,3}\d{1,4}): (?=[(\[A-Z/])",  # srun --label
        r"(?:#\d+ )?\d+\.\d\d\d? (?=Traceback| |ninja: |nvlink |[\w.]*(?:Error|Exception)\b)",  # docker build
        # mpirun --tag-output --timestamp-output
        r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
        r"\[\d+,(?P<task>\d+)\]<std(?:err|out)>: ?",
        r"\[(?P<task>\d+)\]<std(?:err|out)>: ?",  # horovod
        r"\[default(?P<task>\d+)\]: ?",  # torchrun --log-dir
    )
)
# Who speaks; the innermost counts. `parts` are the places of a parallel group.
_SPEAKERS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\((?P<who>(?:EngineCore|Worker|Vllm|APIServer|ApiServer)\w*?)(?P<parts>(?:_[A-Z]*\d+)+)? "
        r"?(?:(?P<named>(?:[A-Z]+\d+ ?)+|rank=\d+) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\((?P<who>EngineCore|Worker)(?P<parts>(?:_[A-Z]*\d+)+)\) ",
        r"\((?P<who>raylet|gcs_server)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\((?P<who>[^()\s=]+(?:\([^()]*(?:\([^()]*\))?[^()]*\))?) (?:rank=(?P<torch>\d+) )?"
        r"pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\(pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?\) ?",
        r"\[rank(?P<torch>\d+)\]: ?",
        rf"\[(?P<time>{_DAY} {_CLOCK}) (?P<named>(?:[A-Z]+\d+ ?)+)\] ",  # SGLang
        r"\[ (?P<named>(?:[A-Z]+\d+ ?)+)\] ",
        r"(?P<our>rank (?P<torch>\d+)): ",
        r"node (?P<node>[A-Za-z0-9][\w.-]*): ",  # our jobs
        r"(?P<door>load_balance_proxy\w*\.py|\w*proxy_server\w*\.py|vllm-router|mini_lb): ",
    )
)
# How programs begin their lines, once what is around them is gone.
_NATIVE = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("vllm", rf"{_LEVEL} \d\d-\d\d {_CLOCK} \[?(?P<source>[\w./-]+:\d+)\] ?"),
        ("uvicorn", rf"{_LEVEL}: {{2,}}"),
        (
            "cann",
            rf"\[{_LEVEL}\] ?(?P<who>[A-Z]+)\((?P<pid>\d+),[^)]*\):{_DAY}-{_CLOCK} "
            r"\[(?P<source>[\w.]+:\d+)\](?:\[\d+\])?",
        ),
        (
            "torch_npu",
            rf"\[{_LEVEL}\] {_DAY}-{_CLOCK} \(PID:(?P<pid>\d+), Device:(?P<device>-?\d+), "
            r"RankID:(?P<npu>-?\d+)\) ?",
        ),
        ("torch_npu", rf"\[\d+\] \[{_DAY} {_CLOCK}\] [\w.]+: \[{_LEVEL}\] (?:\[\d+\] )?"),
        (
            "atb",
            rf"\[{_DAY} {_CLOCK}\] \[(?P<level>trace|debug|info|warn|error|critical)\] \[\d+\] "
            r"(?:\[(?P<source>[\w.]+:\d+)\] )?",
        ),
        (
            "nccl",
            rf"(?:\[{_DAY} {_CLOCK}\] )?(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[(?P<local>\d+)\] "
            r"(?:(?P<source>[\w./]+:\d+) )?(?P<who>NCCL|NVSHMEM|RCCL) (?P<level>INFO|WARN|ERROR) ",
        ),
        ("nccl", r"\[(?P<local>\d+)\] (?P<source>[\w./]+:\d+) (?P<who>NCCL) (?P<level>INFO|WARN) "),
        (
            "torch",
            r"\[(?P<level>[DIWEF])(?:\d{3,4} [\d:.]+)? (?P<source>[\w./]+:\d+)\] ?"
            r"(?:\[[^]]*?Rank (?P<torch>\d+)\] ?)?",
        ),
        ("glog", r"(?P<level>[DIWEF])(?:20\d\d)?\d{4} [\d:.]+ +\d+ (?P<source>[\w./-]+:\d+)\] ?"),
        (
            "ucx",
            r"\[(?P<epoch>1\d{9})\.\d+\] \[(?P<host>[\w.-]+):(?P<pid>\d+) *:\d+\] +"
            r"(?P<source>[\w.]+:\d+) +(?P<who>UCX) +(?P<level>DEBUG|INFO|WARN|ERROR|FATAL|DIAG) +",
        ),
        (
            "ucx",
            r"\[(?P<host>[\w.-]+):(?P<pid>\d+):\d+:\d+\] +(?P<source>[\w.]+:\d+) +"
            r"(?:(?P<who>UCX) +)?(?:(?P<level>Fatal|FATAL|ERROR|WARN):? +)?",
        ),
        ("ucx", r"\[(?P<host>[\w.-]+):(?P<pid>\d+):\d+:\d+\] +(?=Caught signal)"),
        (
            "ray",
            rf"\[{_DAY} {_CLOCK} (?P<level>[DIWEC]) \d+ \d+\] "
            r"(?:\((?P<who>\w+)\) )?(?:(?P<source>[\w.]+:\d+): )?",
        ),
        (
            "tensorrt",
            rf"\[\d\d/\d\d/{_DAY[:5]}-{_CLOCK}\] \[(?P<who>TRT-LLM)\] "
            r"(?:\[RANK (?P<torch>\d+)\] )?\[(?P<level>[TVDIWEF])\] ",
        ),
        ("tensorrt", rf"\[(?P<who>TensorRT-LLM)\]\[{_LEVEL}\] "),
        (
            "slurm",
            r"(?P<who>slurmstepd|srun): (?P<level>error|fatal): "
            r"(?=(?:(?P<node>[\w.-]+): task (?P<task>\d+):)?)",
        ),
        ("kernel", r"(?:(?P<who>kernel): ?)?\[ *\d+\.\d+\] "),
        (
            "rust",
            rf"{_DAY}[T ]{_CLOCK}Z? +{_LEVEL} (?:(?P<door>(?:sglang|vllm)_router\w*)|[a-z]\w*)(?:::\w+)+: "
            r"(?:(?P<source>[\w/.-]+\.rs:\d+): )?",
        ),
        ("rust", rf"\[(?P<door>Router) \(Rust\)\] {_DAY} {_CLOCK} - {_LEVEL} - "),
        ("logfmt", rf"time=\S+ level={_LEVEL} (?:source=(?P<source>\S+) )?msg="),
        (
            "python",
            rf"\[?{_DAY}[T ]{_CLOCK}(?:Z|[+-]\d\d:?\d\d)?\]?(?: [|-])? +(?:[\w.-]+ (?:\d+|[|-]) )?"
            rf"\[?{_LEVEL}\b\]? *(?:[|:-]+ )?(?:(?P<source>[\w./]+:\d+)[ \]:-]+)?",
        ),
        ("python", r"\d{8}-[\d:.]+ [\w.]+ (?P<level>INFO|WARNING|ERROR): "),
        ("python", rf"{_LEVEL}:[\w.]+:"),
        ("bare", rf"\[{_LEVEL}\] +"),
        ("bare", rf"(?:\d\d-\d\d \d\d:\d\d:\d\d )?{_LEVEL} (?=[A-Z])"),
        ("timed", r"\d\d-\d\d \d\d:\d\d:\d\d (?=[A-Z])"),
        ("sglang", rf"\[{_DAY} {_CLOCK}\] "),
    )
)
# What follows a line: how often Ray has seen it, and the border of a terminal's pane.
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$|(?<=\S) +\u2502$")
_RANK_IN_TEXT = re.compile(
    r"^\[Rank (\d+)\]|^Rank\[(\d+)\]|\blocal_rank: (\d+)\b|(?<!remote )\brank ?= ?(\d+)(?=$|,)|^rank (\d+)\b|"
    r"\bwas invoked on rank (\d+)|^-- Process (\d+) terminated with|\bnvshmem\S*: \[GPU (\d+)\]|"
    r"^DeepEP [a-z ]+, rank:? (\d+)|"
    r"\blocalUserrank\[(\d+)\]"  # of HCCL, which names the remote one beside
)
# The device of a process that tells no number of its own.
_DEVICE_IN_TEXT = re.compile(r"\bGPU (\d+) has a total capacity\b")
# A worker of an engine that another process reports as ended.
_ENDED = re.compile(r"\b(VllmWorker-\d+) died")
_JSON_LEVEL = re.compile(r'"(?:level|severity|lvl)": ?"\w+"')
_PART = re.compile(r"([A-Z]*)(\d+)")


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
    speaker: str = ""
    pid: str = ""
    ip: str = ""
    node: str = ""
    task: int | None = None
    local: str = ""
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
            if name in found and int(found[name]) >= 0:
                self.torch = int(found[name])
        if self.torch is None and int(found.get("device", -1)) >= 0:
            self.torch = int(found["device"])
        if "task" in found:
            self.task = int(found["task"])
        if "local" in found:
            self.local = f"[{found['local']}]"
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
    for name, pattern in _NATIVE:
        match = pattern.match(text[:_REACH])
        if match is not None:
            found.take(match)
            grammar = name
            groups = match.groupdict()
            level = _LEVELS.get((groups.get("level") or "").upper(), "")
            source = groups.get("source") or ""
            text = _peeled(text[match.end() :], found)
            break
    if not grammar and text.startswith("{") and (told := _structured(text)) is not None:
        level, source, text = told
        grammar = "json"
    if not grammar and found.levelless:
        grammar = "sglang"
    ended = _ENDED.search(text[:_REACH])
    rank = found.rank
    if rank is None and (told_rank := _RANK_IN_TEXT.search(text[:_REACH])):
        rank = int(next(filter(None, told_rank.groups())))
    if ended and (rank is None or found.speaker.startswith("EngineCore")):
        rank = f"DP{rank} {ended[1]}" if rank else ended[1]
    if rank is None and found.pid and (device := _DEVICE_IN_TEXT.search(text)):
        rank = f"[{device[1]}]"
    label = " ".join(
        filter(
            None,
            (
                _label(found.parts),
                "" if found.parts else found.named,
                ended[1] if ended and (found.parts or ended[1] != rank) else "",
            ),
        )
    )
    who = found.speaker
    process = f"{found.node}|{found.ip}|{found.pid or label or rank}" if found.pid or label else ""
    if not process and (found.rank is not None or found.node):
        process = f"{found.node}||{rank}"
    return Said(
        rank,
        label or ("" if rank is None else str(rank)),
        process,
        who,
        found.node or found.ip,
        level,
        source,
        grammar,
        text,
    )


def _structured(text: str) -> tuple[str, str, str] | None:
    """Return (level, source, message) of a line of JSON, as programs in Go and Rust write it."""
    if not _JSON_LEVEL.search(text):
        return None
    try:
        row = json.loads(text)
    except ValueError:
        return None
    level = next((row[key] for key in ("level", "severity", "lvl") if key in row), "")
    said = [row[key] for key in ("message", "msg", "error", "err") if row.get(key)]
    source = next((row[key] for key in ("caller", "file", "target", "logger") if key in row), "")
    if not said:
        fields = row.get("fields")  # tracing, where its fields are not flattened
        said = [fields["message"]] if isinstance(fields, dict) and "message" in fields else []
    return _LEVELS.get(str(level).upper(), ""), str(source), ": ".join(map(str, said))


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
        for pattern in (*_SPEAKERS, *_WRAPPERS):
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
