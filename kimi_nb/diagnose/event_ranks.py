"""Give events whose lines name no rank the one that other lines of their process name.

Example::

    event_ranks.label(events.all, events.ranks)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from kimi_nb.diagnose import event_roles, gravity, name_fallbacks, rank_words
from kimi_nb.diagnose.event import Event
from kimi_nb.diagnose.process_ranks import ProcessRanks, one_process

_SHOWN = 20  # last lines of a rank's log that a launcher shows
_WORDED = 20  # characters of what is no common word
_NEXT, _NEAR = 5, 60  # events and lines within which a process fails whose library has failed
_FAR = 400  # lines where only one process is named
_TELLING = 12  # characters of an exception that are no other one's
_FRAMED = 3  # and innermost frames of one without words
_MORE = 10  # events that do not count
# Grammars of libraries, whose name is that of no process, and those that write host:number.
_OF_LIBRARIES = (
    *(
        "cann",
        "ccl",
        "kernel",
        "memfabric",
        "nccl",
        "slurm",
        "tensorrt",
        "turbomind",
        "ucx",
        "xccl",
    ),
)
_BESIDE = ("mpi", "nccl", "ucx")
_ANY = "*"  # whatever the host, no name of one
# How CANN and torch_npu tell the process within what they say.
_PID = re.compile(r"[(\[]PID: ?(\d+)[,\]]")
# The name of a process that is counted along all devices of its group.
_OF_NODE = re.compile(r"(?:DP0[ _])?TP(\d+)(?:[ _]EP\d+)?")
# Code of an engine, and none of the front door.
_ENGINE = re.compile(r"^core\.py:|v1/engine/core|/executor/|/worker/|model_executor/|/compilation/")
# The name of a process to which its program has given none.
_DEFAULT = re.compile(r"(?:Spawn|Fork)?Process-[\d:]+")
# What names a rank without a level.
_NOTICED = re.compile(
    r"\bnoticed that process rank \d+ with PID (?P<pid>\d+) on node (?P<host>[\w.-]+)"
)
_TELLS = re.compile(r"^MPI_ABORT was invoked on rank|\bnoticed that process rank \d+ ")


def label(events: Sequence[Event], ranks: ProcessRanks) -> None:
    """Give events whose lines name no rank the one that is known of their process.

    What a process says of its rank once holds for all that it says. A library writes to the same
    log, a moment before the process that called it fails. What a launcher quotes stands after the
    line in which it tells of the rank's end, and is of that rank.
    """
    for event in events:
        _take_told(event, ranks)
    known = [one for one in events if one.rank is not None and not _by_device(one)]
    # The number that torch_npu tells is one in a group of many.
    named = _Processes(sorted(known, key=lambda one: one.said.grammar == "torch_npu"))
    for event in events:
        if event.rank is None or _by_device(event):
            _take(event, named.of(event))
    by_device = [one for one in events if _by_device(one)]
    for event in by_device:
        _number_device(event)
    seen = _Processes(by_device)
    for event in events:
        if event.rank is None and event.said.process:
            _take(event, seen.of(event))
    for event in events:
        # A title above its traceback, or a stage: of whoever is known by a name alone.
        if event.rank is None and event.label:
            alone = ranks.alone if ranks.alone is not None and _unnamed(event) else None
            device = rank_words.device_of(event.texts) if _DEFAULT.fullmatch(event.label) else None
            event.rank = next((one for one in (alone, device) if one is not None), event.label)
            event.label = device if event.rank == device else event.label
    ended: Event | None = None
    callers: dict[int, Event | None] = {}
    for at, event in enumerate(events):
        if any(one.signature.id == "rank-died" for one in event.matches):
            ended = event
        if event.rank is not None and not _by_nccl(event):
            continue
        if ended is not None and event.first.number - ended.first.number <= _SHOWN:
            _take(event, ended)
        else:
            callers[at] = _caller(event, _after(events, at))
            if (caller := callers[at]) is not None and caller.rank is not None:
                _take(event, caller)
    printed = _Processes((one for one in events if one.rank is not None), _pids)
    for event in events:
        if event.rank is None:
            _take(event, printed.of(event))
        if event.rank is None and ranks.alone is not None and _unnamed(event):
            event.rank, event.label = ranks.alone, str(ranks.alone)
        if event.rank is None and (device := rank_words.device_of(event.texts)):
            event.rank = event.label = device
            _number_device(event)
        _name_speaker(event)
    for event in events:
        if _bare(event) and ranks.single is not None and _of_engine(event):
            event.rank, event.label = ranks.single, str(ranks.single)
    _take_callers(events, callers)
    _take_again(events)
    name_fallbacks.name(events)
    _take_callers(events, callers)  # who may have a name only now


def _take_callers(events: Sequence[Event], callers: Mapping[int, Event | None]) -> None:
    """Give native events the rank of who called the library, where they have none."""
    for at, caller in callers.items():
        if events[at].rank is None and not events[at].remote:
            _take(events[at], caller)


def _take_again(events: Sequence[Event]) -> None:
    """Give events the rank of who reports the same exception with its name, or whom they end."""
    named: dict[tuple[str, ...], Event] = {}
    for event in events:
        if event.rank is not None and (said := _words(event)):
            named.setdefault(said, event)
    for event in events:
        if _bare(event) and (said := _words(event)):
            _take(event, named.get(said))
    alone = len({event.rank for event in events if event.rank is not None}) == 1
    for at, event in enumerate(events):
        if _bare(event):
            _take(event, _caller(event, _after(events, at), _FAR if alone else _NEAR))


def _bare(event: Event) -> bool:
    """Return whether an event, of whom nothing is known, may be of any process."""
    return event.rank is None and _unnamed(event)


def _of_engine(event: Event) -> bool:
    """Return whether an event is of the code that an engine runs on its device."""
    return any(map(_ENGINE.search, (event.said.source, *event.frames)))


def _words(event: Event) -> tuple[str, ...] | None:
    """Return the exception of an event with its words, or else with its frames, or None."""
    root = event.root
    if root is None:
        return None
    if not root.text and len(root.frames) >= _FRAMED:
        return root.type, *root.frames[-_FRAMED:]
    return (root.type, root.text) if len(root.text) >= _TELLING else None


def _name_speaker(event: Event) -> None:
    """Name a process of which no rank is known by what it is called, and a worker by its number."""
    said, pid = event.said, _number(event)
    elsewhere = said.rank is None and event.label in ("", str(event.rank))
    if _numbered(event) and (event.label[:3] in ("", "ip=") or elsewhere):
        event.rank = f"pid={pid}" if event.rank is None else event.rank
        ip = said.process.split("|")[1]
        named = [f"pid={pid}", f"ip={ip}"]
        event.label = f"{said.speaker} {', '.join(named if ip else named[:1])}"
    elif event.rank is None and (other := event.remote.rpartition("|")[2]):
        event.rank = event.label = f"pid={other}"
    elif event.rank is None:
        who = said.node or ("" if said.grammar in _OF_LIBRARIES else said.speaker)
        event.label = f"{who}:{pid}" if who and said.grammar in _BESIDE else who


class _Processes:
    """The first event of each process, found by its number and host in the same time for any log."""

    def __init__(
        self,
        events: Iterable[Event],
        numbers: Callable[[Event], Sequence[str]] = lambda event: (_number(event),),
    ) -> None:
        self._first: dict[tuple[str, str], tuple[int, Event]] = {}  # by number and host
        self._numbers = numbers
        for at, event in enumerate(events):
            for number in numbers(event):
                for key in {(number, _host(event)), (number, _ANY)}:
                    self._first.setdefault(key, (at, event))

    def of(self, event: Event) -> Event | None:
        """Return the first event of the same process; only one of the two may name a host."""
        host = _host(event)
        hosts = (host, "") if host else (_ANY,)
        keys = [(number, one) for number in self._numbers(event) if number for one in hosts]
        found = [self._first[key] for key in keys if key in self._first]
        return min(found, key=lambda one: one[0])[1] if found else None


def _take(event: Event, other: Event | None) -> None:
    """Give an event the rank of another one, if there is one."""
    if other is not None:
        event.rank, event.label = other.rank, other.label


def _take_told(event: Event, ranks: ProcessRanks) -> None:
    """Give an event the rank that its process told elsewhere in the log."""
    told = ranks.of(event.said.process) if nameless(event) else None
    if event.rank is None and event.said.thread:
        told = ranks.of(f"||{event.said.thread}")
    if event.remote:  # of the head's own processes Ray tells no address in their lines
        told = ranks.of(event.remote)
        told = ranks.of(f"||{event.remote.rpartition('|')[2]}") if told is None else told
    if told is not None:
        event.rank = told
        event.label = event.label or str(told)
    elif event.remote and event.said.speaker.startswith("EngineCore"):
        _name_actor(event)


def _name_actor(event: Event) -> None:
    """Name the worker in which an error of an engine was raised, of which Ray tells the number only."""
    _, ip, pid = event.remote.split("|")
    if ip and pid:
        event.rank = f"pid={pid}"
        where = ", ".join((event.rank, f"ip={ip}"))
        event.label = f"{event.said.label} {where}".strip()


def _after(events: Sequence[Event], at: int) -> Sequence[Event]:
    """Return the next events, without those with which a library that has no form of its own goes on."""
    after = events[at + 1 : at + 1 + _NEXT + _MORE]
    return [one for one in after if one.said.grammar or one.raised or one.rank is not None][:_NEXT]


def _caller(event: Event, after: Sequence[Event], near: int = _NEAR) -> Event | None:
    """Return the labelled error of the process that called the library which says this, if it is near."""
    if event.said.grammar == "slurm":
        return None
    later = next((one for one in after if _may_call(one) or _repeats(one, event)), None)
    # Who crashed tells of no other one's end.
    if later is not None and gravity.dies(event.said.text) and event_roles.follows(later):
        return None
    if later is None or later.first.number - event.lines[-1].number > near:
        return None
    # What the engine says of a worker's end is no line of that worker.
    if event.said.grammar == "vllm" and later.remote:
        return None
    # A title is that of whoever tells nothing of itself before.
    if later.rank in _titles(later) and not _unnamed(event):
        return None
    # A launcher tells the number of the process that ended, which may be another one on this host.
    ended = _NOTICED.search(later.said.text)
    if ended and ended["host"] == _host(event) and ended["pid"] != _number(event):
        return None
    # What the engine itself logs, with its process, is of no other one.
    # NCCL names its process too, which is one of the engine's workers.
    actor = event.said.speaker and event.said.grammar not in _OF_LIBRARIES
    strict = (
        actor
        or event.said.grammar == "vllm"
        or (event.said.grammar == "nccl" and "Worker" in later.said.speaker)
    )
    if strict and not one_process(event.said, later.said):
        return None
    return None if _by_nccl(event) and _elsewhere(event.rank, later.rank) else later


def _may_call(event: Event) -> bool:
    """Return whether an event has a rank and is an error that its process tells, no quoted line."""
    if event.said.grammar in ("nccl", "cann", "slurm"):
        return False
    if event.rank is None and not _numbered(event):
        return False
    said = event.said
    return bool(event.raised or said.level or said.grammar == "sglang" or _TELLS.search(said.text))


def _repeats(event: Event, native: Event) -> bool:
    """Return whether an exception has the words that its library has printed before."""
    said = native.said.text.strip()
    return len(said) >= _WORDED and event.root is not None and said in event.root.text


def nameless(event: Event) -> bool:
    """Return whether an event is known by no rank, but at most by its host or its device."""
    return event.rank is None or _by_host(event) or _by_device(event)


def _numbered(event: Event) -> bool:
    """Return whether a worker says an event of which at least the number of its process is known."""
    return "Worker" in event.said.speaker and _number(event).isdecimal()


def _titles(event: Event) -> tuple[str, ...]:
    """Return the name by which alone a process without a form of its own is known, if there is one."""
    return (event.label,) if event.said.rank is None and _unnamed(event) else ()


def _unnamed(event: Event) -> bool:
    """Return whether nothing is told of the process that says an event, nor of another that it names."""
    return event.said.unnamed and not (event.said.speaker or event.remote)


def _by_host(event: Event) -> bool:
    """Return whether an event is known only by the host of its process ("ip=192.0.2.7")."""
    return isinstance(event.rank, str) and event.rank.startswith("ip=")


def _number(event: Event) -> str:
    """Return what tells its process from others, without the host that a library names beside."""
    return "" if event.said.unnamed else event.said.process.rpartition("|")[2]


def _pids(event: Event) -> Sequence[str]:
    """Return the numbers of the processes that are named within what an event says."""
    return [pid for line in event.lines for pid in _PID.findall(line.text)]


def _host(event: Event) -> str:
    return event.said.process.partition("|")[0]


def _by_device(event: Event) -> bool:
    """Return whether an event is known only by the device of its process ("[3]")."""
    return isinstance(event.rank, str) and event.rank.startswith("[")


def _by_nccl(event: Event) -> bool:
    """Return whether NCCL tells the device, which names its process within the host's."""
    return event.said.grammar == "nccl" and _by_device(event)


def _number_device(event: Event) -> None:
    """Name a device by the number in the words of the log; NCCL writes it in brackets."""
    if event.rank == rank_words.device_of(event.texts) and _by_device(event):
        number = int(str(event.rank).strip("[]"))
        event.rank, event.label = number, f"device {number}"


def _elsewhere(device: int | str | None, rank: int | str | None) -> bool:
    """Return whether a rank cannot be on a device, "[7]": ranks are counted along those of a node.

    A process that is shown one device alone calls it 0.
    """
    number = int(re.sub(r"\D", "", str(device)))
    if isinstance(rank, str) and (named := _OF_NODE.fullmatch(rank)):
        rank = int(named[1])
    return isinstance(rank, int) and rank != number and rank - number <= number != 0
