"""Put what only repeats, sums up or follows from other events behind them.

Example::

    event_echoes.behind(candidates)  # the same events, echoes with a role that comes later

What a shell, a launcher, a watchdog or Ray says of an end counts only where nobody tells more.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from kimi_nb.diagnose import event_times, gravity, line_grammar
from kimi_nb.diagnose.event_roles import Candidate, Role, words

_SOON = 12  # lines between an error and the end of what a launcher kills for it
_SHELL_KILLED = re.compile(r"\bline \d{1,6}: +\d{1,10} Killed ")  # and the command
_SIGNAL = re.compile(r"Signal \((?P<number>\d{1,2})\) received\.?")
# A signal that a process gets for what it does itself.
_CRASHED = re.compile(
    r"[Ss]egmentation fault|Segfault|SIG(?:SEGV|BUS|ILL|FPE)|[Ss]ignal \(?(?:4|7|8|11)\b"
)
_CAUGHT = re.compile(r"\bCaught signal (?P<number>\d{1,2}) ")
_QUOTES, _QUOTE = 20, 80  # different quotations that are looked for, and characters of each


def behind(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events, each that only echoes another one with the role of a wrapper."""
    found = _watchdogs(_outlived(_unquoted(found)))
    return _late(_lost(_special(_hearsay(_killed(_signals(found))))))


def _outlived(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with errors behind which their process went on, until something ended it."""
    raised: dict[tuple[str, ...], int] = {}
    for one in found:
        ends = one.event.root is not None or gravity.native(one.event.said.text)
        if one.role is Role.ROOT and ends:
            raised[event_times.process(one)] = one.event.first.number
    mild = [
        one.role is Role.ROOT
        and one.event.outlived
        and one.event.root is None
        and one.event.said.grammar in ("vllm", "glog")
        and not (one.match or one.death)
        for one in found
    ]

    def ended(one: Candidate) -> int:
        *log, _ = mine = event_times.process(one)
        # What a program without a name says may have ended any process of its log.
        return max(raised.get(mine, 0), raised.get((*log, ""), 0))

    # What one process outlived, others that say the same have outlived too.
    said = {
        one.event.said.text
        for one, outlived in zip(found, mild, strict=True)
        if outlived and one.event.first.number < ended(one)
    }
    return [
        replace(one, role=Role.GENERAL) if outlived and one.event.said.text in said else one
        for one, outlived in zip(found, mild, strict=True)
    ]


def _unquoted(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with the reports of a worker's error put last that the worker itself tells."""
    reports = {
        one.match.found["key"][:_QUOTE]: False
        for one in found
        if one.match is not None and one.match.signature.id == "worker-failed"
    }
    for said in [*reports][:_QUOTES]:
        reports[said] = any(
            said in one.event.texts
            for one in found
            if one.match is None or one.match.signature.id != "worker-failed"
        )
    return [
        replace(one, role=Role.WRAPPER)
        if one.match is not None and reports.get(one.match.found.get("key", "")[:_QUOTE], False)
        else one
        for one in found
    ]


def _hearsay(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with what others say of a worker's end put behind what it says itself.

    Ray's words come last where the worker tells that it aborts, and who only waits for one that has
    died tells nothing.
    """
    if any(words("aborted").search(one.event.texts) for one in found):
        found = [
            replace(one, role=Role.WRAPPER) if words("lost").search(one.event.said.text) else one
            for one in found
        ]
    # A worker ended with a word where its library has one.
    if any(_native(one) and one.role in (Role.ROOT, Role.WRAPPER) for one in found):
        found = [replace(one, role=Role.WRAPPER) if died(one) else one for one in found]
    # Who waits for a process that has died waits in vain.
    dead = any(map(died, found))
    return [one for one in found if not (dead and one.role is Role.WAITS)]


def _killed(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with a bare "Killed" put last where another line tells more of that end.

    That is the kernel's, or an error shortly before: a launcher ends by force what has failed. A
    process that crashed tells more than the end of the others, whenever that comes.
    """
    if not any(map(_says_killed, found)):
        return list(found)
    crashed: dict[str, int] = {}
    for one in found:
        if one.death and _CRASHED.search(one.line.text):
            file, number = one.event.first.file, one.event.first.number
            crashed[file] = min(crashed.get(file, number), number)
    kernel = {
        one.event.first.file for one in found if one.death and one.event.said.grammar == "kernel"
    }
    told: dict[str, list[int]] = {}
    for one in filter(_ends_all, found):
        told.setdefault(one.event.first.file, []).append(one.event.lines[-1].number)
    out = []
    for one in found:
        file, number = one.event.first.file, one.event.first.number
        if _says_killed(one) and (
            file in kernel
            or crashed.get(file, number) < number
            or any(0 < number - at <= _SOON for at in told.get(file, ()))
        ):
            one = replace(one, role=Role.WRAPPER)
        out.append(one)
    return out


def _signals(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with the bare name of a signal put last that another line tells right below.

    That is what a library says which catches it too: where, and in which thread.
    """
    caught: dict[str, list[tuple[str, int]]] = {}
    for one in found:
        if told := _CAUGHT.search(one.event.said.text):
            at = told["number"], one.event.first.number
            caught.setdefault(one.event.first.file, []).append(at)
    out = []
    for one in found:
        bare = _SIGNAL.fullmatch(one.event.said.text.strip())
        if bare and any(
            signal == bare["number"] and 0 < at - one.event.first.number <= _SOON
            for signal, at in caught.get(one.event.first.file, ())
        ):
            one = replace(one, role=Role.WRAPPER)
        out.append(one)
    return out


def _ends_all(one: Candidate) -> bool:
    """Return whether an event is of an error by which a launcher ends all that it has started."""
    error = one.role is Role.ROOT and not one.death and one.event.said.level in line_grammar.GRAVE
    return error or bool(words("ends_all").search(one.event.texts))


def _says_killed(one: Candidate) -> bool:
    """Return whether a shell says only that something was killed."""
    said = one.event.said.text.strip()
    return one.death and (said == "Killed" or bool(_SHELL_KILLED.search(said)))


def _watchdogs(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with what watchdogs say put behind what the program says of the same error.

    A watchdog meets the error of a device at whatever call comes next. What stops at its head tells
    nothing.
    """
    telling = [one for one in found if one.role is Role.ROOT and _tells_device(one)]
    out = []
    for one in found:
        told = any(_may_be_one(one.event.rank, other.event.rank) for other in telling)
        if one.role is Role.ROOT and one.match is None:
            if one.event.bare and not words("watchdog").search(one.event.said.text):
                one = replace(one, role=Role.WRAPPER)
            elif told and words("watchdog").search(one.event.texts):
                one = replace(one, role=Role.GENERAL)
        out.append(one)
    return out


def _tells_device(one: Candidate) -> bool:
    """Return whether a program, and no watchdog, says where the error of a device was met."""
    if words("watchdog").search(one.event.texts):
        return False
    said = one.event.root.text if one.event.root is not None else one.event.said.text
    return bool(words("of_device").search(said)) and bool(
        one.event.frames or one.event.root is None
    )


def _may_be_one(rank: int | str | None, other: int | str | None) -> bool:
    """Return whether two names may be of one rank: "TP2" is 2, and "DP1_TP0" may be any."""
    numbers = [re.findall(r"\d+", str(one)) for one in (rank, other) if one is not None]
    return any(len(one) != 1 for one in numbers) or len({one[0] for one in numbers}) < 2


def _native(one: Candidate) -> bool:
    """Return whether a library of collectives or of the device tells an error itself."""
    return one.event.said.grammar in ("cann", "torch_npu", "nccl", "atb") and not died(one)


def _lost(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with the ends of processes that only lost another rank put last."""
    lost = {(one.node, one.rank) for one in found if one.role is Role.CASCADE}
    return [
        replace(one, role=Role.WRAPPER)
        if one.role is Role.EXIT
        and (one.match is None or one.match.signature.id == "rank-died")
        and (one.node, ended(one)) in lost
        else one
        for one in found
    ]


def _late(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events with unknown ones put last that a known consequence explains.

    Those are errors of which nothing is known, and exceptions after the first consequence.
    """
    when = event_times.timed(found)
    followed = [
        (time, died(one))
        for one, time in zip(found, when, strict=True)
        if one.role is Role.CASCADE and one.match is not None
    ]
    out = []
    for one, time in zip(found, when, strict=True):
        # What a library of collectives says of its own error may come after the end of its process.
        known = [at for at, died in followed if not (died and _native(one))]
        late = bool(known) and (one.vague or time > min(known))
        unknown = one.role is Role.ROOT and one.match is None and not one.death
        out.append(replace(one, role=Role.WRAPPER) if unknown and late else one)
    return out


def _special(found: Sequence[Candidate]) -> list[Candidate]:
    """Return the events without general signatures where the same process says more."""
    special = {event_times.process(one) for one in found if one.special and one.role is Role.ROOT}
    explained = {
        event_times.process(one) for one in found if one.match is not None and one.role is Role.ROOT
    }
    out = []
    for one in found:
        general = one.match is not None and one.match.signature.general
        if one.match is None and event_times.process(one) in explained:
            general = one.event.root is None and bool(words("coded").search(one.event.said.text))
        if (
            general
            and one.role is Role.ROOT
            and not one.death
            and event_times.process(one) in special
        ):
            one = replace(one, role=Role.WRAPPER)
        out.append(one)
    return out


def died(one: Candidate) -> bool:
    """Return whether an event tells only that a worker ended without a word."""
    return one.match is not None and one.match.signature.id == "worker-died"


def ended(one: Candidate) -> int | None:
    """Return the rank whose end an event reports, or that of its process."""
    if one.match is not None and one.match.signature.id == "rank-died":
        return int(one.match.found["rank"])
    return one.event.rank if isinstance(one.event.rank, int) else one.rank
