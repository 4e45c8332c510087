"""Tell what a line adds to an event, and whose it is.

Example::

    event_details.explains_npu(said, event)  # whether CANN prints it below a failed call
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kimi_nb.diagnose import gravity
from kimi_nb.diagnose.event import NPU_HEADS, Event, Raised
from kimi_nb.diagnose.line_grammar import Said
from kimi_nb.diagnose.matching import Line

_FRAMES = 12  # that are kept of an event
# What is raised below only follows: a process that ended, or a group that never was whole.
_DIED = re.compile(r"died unexpectedly|^\[Gloo\] Rank \d+ is NOT connected")
# How a process ended, and how that is said once more right below.
_SUMS = (
    (re.compile(r"scheduler is dead"), re.compile(r"Exit code: ")),
    (
        re.compile(r"^\*\*\* SIG|^Caught signal \d"),
        re.compile(r"Fatal Python error: |!+ Segfault encountered"),
    ),
    (
        re.compile(r"running low on memory|memory pressure"),
        re.compile(r"Memory on the node \(IP: "),
    ),
)
# What Ray tells below the end of an actor of where it was.
_PLACE = re.compile(
    r"\s+(?:pid: (?P<pid>\d+)|ip: \[?(?P<ip>[\w.:]+)|(?:class_name|actor_id|name|namespace): )"
)
# The actor of Ray in which an exception was raised that another process passes on.
_ACTOR = re.compile(
    r"(?:(?:\b|m)ray::\S+ (?:\[\d+m )?|^(?=\(pid=\d+, ip=[\w.:]+,))"
    r"\(pid=(?P<pid>\d+), ip=(?P<ip>[\w.:]+)"
)
# A failed call of the NPU, and what CANN prints below it.
_NPU_CALL = re.compile(
    r"current working operator name is|(?:NPU|HCCL|OPS) function error|HCCL error in|"
    r"[Ii]nner error is reported as above|ACL \w+ \w+ failed|call aclnn\w+ failed|(?:PTA|OPS|DIST) call \w+ api failed"
)
CANN_BLOCK = re.compile(r"\[Error\]: |E[A-Z]\d{4}\b|E[1-9]\d{4}(?:: |\[PID: )|\[PID: \d+\] ")

# What a compiler says of a file.
_COMPILER = re.compile(
    r"\S+\.(?:cuh?|cpp|cc|cxx|c|h|hpp)(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal )?error: "
)

# What is said in the words of one process above a traceback that names none.
_ANNOUNCES = re.compile(r"\bhit an exception:? *$")


def announces(before: Said, said: Said) -> bool:
    """Return whether a line without a process or level goes on with what another one announced."""
    bare = said.unnamed and not said.level and said.node in ("", before.node)
    return bare and bool(_ANNOUNCES.search(before.text))


def ends(event: Event) -> bool:
    """Return whether an event tells how another process ended: what is raised below only follows."""
    return bool(gravity.dies(event.texts)) or bool(_DIED.search(event.said.text))


def of_compiler(event: Event) -> bool:
    """Return whether an event tells what a compiler could not build: who called it says less."""
    return bool(_COMPILER.match(event.said.text))


def sums_up(event: Event, text: str) -> bool:
    """Return whether a line tells only how the process ended whose end an event tells already."""
    return any(before.search(event.said.text) and after.match(text) for before, after in _SUMS)


def framed(event: Event, path: str) -> list[str]:
    """Return the files of an event's innermost frames with one more, the innermost last."""
    if event.stack is None:
        return [*event.frames[-_FRAMES + 1 :], path]
    return [path, *event.frames] if event.stack and len(event.frames) < _FRAMES else event.frames


def take_rank(event: Event, said: Said) -> None:
    """Note who wrote a line of an event, where that is not known, or only by a number of its device.

    The number that torch_npu tells is one in a group of many.
    """
    device = isinstance(event.rank, str) and event.rank.startswith("[")
    vague = device or (event.said.grammar == "torch_npu" and "Worker" in said.speaker)
    # An engine may name the worker of which it tells.
    by_engine = event.said.speaker.startswith("EngineCore") and isinstance(said.rank, str)
    better = said.rank is not None and said.process == event.said.process
    if said.rank is None and event.label:
        return
    if event.rank is None or (better and (vague or by_engine)):
        event.rank, event.label = said.rank, said.label


def place_actor(event: Event, text: str) -> None:
    """Note the actor of Ray in which an event began, where a line tells of it."""
    actor = _ACTOR.search(text)
    if actor is None:
        return
    event.remote = f"|{actor['ip']}|{actor['pid']}"
    if event.rank is None:
        event.rank = event.label = f"ip={actor['ip']}"


def tells_place(event: Event, text: str) -> bool:
    """Note where an actor of Ray was that ended; return whether a line tells of it."""
    place = _PLACE.match(text) if event.raised and "Actor" in event.raised[-1].type else None
    if place is None:
        return False
    ip, pid = event.remote.split("|")[1:] if event.remote else ("", "")
    event.remote = f"|{place['ip'] or ip}|{place['pid'] or pid}"
    if event.rank is None and place["ip"]:
        event.rank = event.label = f"ip={place['ip']}"
    return True


def explains_npu(said: Said, event: Event) -> bool:
    """Return whether a line is of the block that CANN prints below a failed call of the NPU."""
    block = said.grammar == "torch_npu" or CANN_BLOCK.match(said.text)
    below = bool(block) and not event.inside
    return below and bool(NPU_HEADS.search(event.texts) or _NPU_CALL.search(event.texts))


def nameless(node: str) -> str:
    """Return the process of a line of which only the node is known, as `line_grammar` has it."""
    return f"{node}||None" if node else ""


def of_one(said: Said, before: Said) -> bool:
    """Return whether a line is of the process of one before: of a node's without a name it is."""
    return said.process in (before.process, nameless(before.node) or before.process)


def raised(
    found: re.Match[str], line: Line, said: str, link: str = "", frames: Sequence[str] = ()
) -> Raised:
    """Return the exception that a line names; ``found`` has its type and its message."""
    kind, text = found["type"].rpartition(".")[2], (found["text"] or "").strip()
    return Raised(kind, text, line, said, link, tuple(frames))
