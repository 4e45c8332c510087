"""Tell the rank of what a process says from what it says of itself elsewhere in its log.

Example::

    ranks = ProcessRanks()
    ranks.take(said)  # for each line: "world_size=16 rank=11" is told once, at the start
    ranks.of(said.process)  # 11, for what the process says later without its rank

Ray's workers and libraries name their process and its host only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from kimi_nb.diagnose import line_grammar, log_lines
from kimi_nb.diagnose.line_grammar import Said

_MOST = 4096  # processes of one log
_LINES = 8  # lines of a process that are looked at for its name
_NAME = 80  # characters of a line behind the number, which may still name the process
# How a process tells its number among all of its group: vLLM, its parallel state, NCCL, LCCL; its
# device: NVSHMEM; and how a launcher tells the number of a process that it names: MPI, torchrun,
# LightLLM, SGLang.
TOLD = (
    r"\bworld_size=(?P<world>\d+),? rank=(?P<rank>\d+)",
    r"\brank (?P<rank>\d+) in world size (?P<world>\d+)",
    r"\brank=(?P<rank>\d{1,9}),? world_size=(?P<world>\d{1,9})\b",
    r"\[Gloo\] Rank (?P<rank>\d+) is connected to (?P<world>\d+) peer ranks",
    r"\brank (?P<rank>\d+) n[rR]anks (?P<world>\d+)",
    r"\brank (?P<rank>\d+)/(?P<world>\d+) running devId:",
    r":\d+:\d+ \[(?P<device>\d+)\] NVSHMEM INFO ",
    r"\bprocess rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>[\w.-]+)",
    r"\blocal_rank: (?P<rank>\d+) \(pid: (?P<pid>\d+)\)",
    r"\b[Rr]ank[ =:]+(?P<rank>\d+),? \(?(?:pid|PID)[ =:]+(?P<pid>\d+)\b",
    r"\bdevice_id[ =:]+(?P<device>\d+),? pid[ =:]+(?P<pid>\d+)\b",
    r"(?:^|[ '\"])--node[-_]rank[ =](?P<node>\d+)\b",  # of the command that started it
    r"^:actor_name:(?P<own>\S+)$",  # at the beginning of a log of Ray
    r"^stream closed EOF for [\w.-]+/(?P<own>[\w.-]+) \(",  # k9s, at the end of a pod's log
    r"\b(?:sglang::scheduler|VLLM::Worker)_(?P<name>[A-Z_]+\d[A-Z_\d]*) \(pid[ =:]+(?P<pid>\d+)\)",
)
# How multiprocessing names a process above its traceback; a program may have given it a name.
TITLED = re.compile(r"Process ([A-Z][\w-]*(?::\d+)?):\s*$")
# How Ray names the actor in which an exception was raised, above its frames.
ACTOR = re.compile(r"ray::\S+ (?:\[\d+m )?\(pid=\d+, ip=[\w.:]+")
_TOLD = tuple(re.compile(one) for one in TOLD if "NVSHMEM" not in one)
_ALONE = re.compile(r"\bworld[_ ]size[= ]1\b")  # who has the number that all such have
# Words one of which each of them has.
_WORDS = ("rank", "Rank", "device_id", "::", ":actor_name:", "stream closed")


class ProcessRanks:
    """The rank that is told of each process of a log; of several groups that of the largest."""

    def __init__(self) -> None:
        # World size and rank, or the device of which nothing else is told, by process.
        self._ranks: dict[str, tuple[int, int | str]] = {}
        self._lone: set[int] = set()  # told by lines that name no process
        self._actors: set[str] = set()  # of which Ray says that the log is
        self._nodes: set[str] = set()  # by the number that a command gives
        self._single = 0  # how often one without a name told that it is alone in its group

    @property
    def alone(self) -> int | str | None:
        """The rank that whoever names no process in a log has told, if all told the same.

        Of an actor of Ray that tells none it is its name, else the number of the node in a command.
        """
        told: tuple[int | str, ...] = tuple(self._lone or self._actors or self._nodes)
        return told[0] if len(told) == 1 else None

    @property
    def single(self) -> int | None:
        """The rank of the only engine of a log, if it has one device and no name."""
        return 0 if self._single == 1 and not self._lone else None

    def take(self, said: Said) -> None:
        """Note the rank that a line tells of the process that wrote it, or of the one it names."""
        if len(self._ranks) >= _MOST:
            return
        if said.speaker == "NVSHMEM" and said.level == "INFO":
            self._note(said.process, 0, str(said.rank))
            return
        if not any(word in said.text for word in _WORDS):
            return
        for pattern in _TOLD:
            found = pattern.search(said.text)
            if found is not None:
                told = found.groupdict()
                if "node" in told:
                    self._nodes.add(f"node-rank={told['node']}")
                    return
                if "own" in told:
                    self._actors.add(told["own"])
                    return
                if pattern in _TOLD[:3] and said.unnamed:
                    if told["world"] != "1":
                        self._lone.add(int(told["rank"]))
                    self._single += pattern is _TOLD[1] and told["world"] == "1"
                other = f"{told.get('host') or ''}||{told['pid']}" if "pid" in told else ""
                rank = int(told["rank"]) if "rank" in told else _named(told)
                # Who is alone in its group tells nothing by a number that all such have.
                numbered = said.process.rpartition("|")[2].isdecimal()
                if told.get("world") != "1" or not numbered:
                    self._note(other or said.process, int(told.get("world", 1)), rank)
                return

    def search(self, process: str, blocks: Iterable[bytes]) -> None:
        """Look in parts of a log for a line that names a process of which only the number is known."""
        number = process.rpartition("|")[2]
        if not number.isdecimal() or self.of(process) is not None or len(self._ranks) >= _MOST:
            return
        for line in itertools.chain.from_iterable(_lines(block, number) for block in blocks):
            said = line_grammar.of(log_lines.plain(line.decode("utf-8", "replace")))
            alone = _ALONE.search(said.text)
            if said.rank is not None and not alone and _same_number(process, said.process):
                self._note(process, 0, said.rank)
                return

    def _note(self, process: str, world: int, rank: int | str) -> None:
        if process and world > self._ranks.get(process, (-1, 0))[0]:
            self._ranks[process] = world, rank

    def of(self, process: str) -> int | str | None:
        """Return the rank of a process (`line_grammar.Said.process`), or None if it told none."""
        if process in self._ranks:
            return self._ranks[process][1]
        ranks = {rank for other, (_, rank) in self._ranks.items() if _same_place(process, other)}
        return ranks.pop() if len(ranks) == 1 else None


def one_process(said: Said, other: Said) -> bool:
    """Return whether two lines may be of one process: not if each names a number of its own."""
    numbers = {one.process.rpartition("|")[2] for one in (said, other) if not one.unnamed}
    # Of a process that names itself, a library may tell another name of its host.
    apart = len(numbers) < 2 and len({said.node, other.node} - {""}) > 1
    return len(numbers) < 2 and not (apart and (said.unnamed or other.unnamed))


def _named(told: Mapping[str, str]) -> str:
    """Return the name by which a process is known that tells no number in its group."""
    return told["name"] if "name" in told else f"device {told['device']}"


def _lines(block: bytes, number: str) -> Iterator[bytes]:
    """Yield the beginnings of the first lines that name a process by its number."""
    words = f"pid={number}".encode()
    at = block.find(words)
    for _ in range(_LINES):
        if at < 0:
            return
        yield block[block.rfind(b"\n", 0, at) + 1 : at + _NAME].partition(b"\n")[0]
        at = block.find(words, at + len(words))


def _same_number(process: str, other: str) -> bool:
    """Return whether two names of processes have one number, and no two hosts or addresses."""
    one, two = process.split("|"), other.split("|")
    apart = any(here and there and here != there for here, there in zip(one, two, strict=False))
    return one[-1] == two[-1] and not apart


def _same_place(process: str, other: str) -> bool:
    """Return whether two names of processes are of one: a library names the host beside."""
    host, _, rest = process.partition("|")
    there, _, again = other.partition("|")
    return bool(rest) and rest == again and not (host and there and host != there)
