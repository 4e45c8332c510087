"""Take the lines of an event after its first: frames, exceptions, and what explains them.

Example::

    event_lines.goes_on(event, said, line)  # whether the line is of the event
"""

from __future__ import annotations

import re

from kimi_nb.diagnose import event_details, gravity, line_grammar, process_ranks
from kimi_nb.diagnose.event import HOLLOW, Event, Raised
from kimi_nb.diagnose.line_grammar import Said
from kimi_nb.diagnose.matching import Line

MOST = 800  # lines of one traceback, its chain included
NEAR = 3  # lines between an announcement and its traceback
_DETAILS = 12  # lines that are kept of an event

TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
FRAME = re.compile(r'\s*File "{1,2}(?P<path>[^"]+)"{1,2}, line \d+(?:, in (?P<name>\S+))?')
# And as notebooks write it, with the cell or the line that it shows.
_CELL = re.compile(
    r"(?:File )?(?P<path>[~/][\w./~+-]*\.pyx?)(?::\d+, in | in )[\w.<>]+\(|"
    r"\[/[\w./~+-]+\]\(https?:|(?:Cell|Input) In ?\[\d+\]|\[?<ipython-input-|-+> ?\d+ |\d+ frames$"
)
_TYPE = (
    r"(?!nccl[A-Z])[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Timeout|Failed|Killed|Iteration|Died"
    r"|Exhausted|Empty|Refused|Shutdown)\w{0,40}"
)
_REST = r"(?:\(\w+\))?(?:: (?P<text>.*)|:? *$)"
# Within a traceback anything that is dotted, or one word, is an exception; elsewhere it may be a logger's.
_RAISED = re.compile(
    rf"(?P<type>{_TYPE}|Exception|[a-z_][\w.]*\.(?:[A-Z]\w*|\w+(?=: ))|(?=\w*[a-z])[A-Z]\w+(?=: )){_REST}"
)
_NAMED = re.compile(rf"(?P<type>{_TYPE}){_REST}")
_IN_LINE = re.compile(
    r"(?<![\w.])(?P<type>[A-Za-z_][\w.]{0,200}(?:Error|Exception))(?:: |\(['\"])(?P<text>.*)"
)
_WORDS_BELOW = re.compile(
    r"(?<![\w.])(?P<type>[A-Za-z_][\w.]{0,200}(?:Error|Exception)):(?P<text> ?)$"
)
# The border of a group of exceptions.
GROUP = re.compile(r"\s*[|+](?:-\+-+ \d+ -+)? ?")
_CODE = re.compile(r"\s{4,}(?:raise|return|assert|except|print|logger?\.\w+)\b ?[\w(]")
# Above the frames of a thread, the innermost of which stands first, when a process aborts.
_STACK = re.compile(r"(?:(?P<mine>Current thread|Stack)|Thread)\b.*\(most recent call first\)")
# One of C++, of which the outer ones name the program by its title.
_NATIVE_FRAME = re.compile(r"frame #\d+: ")
_CAUSED = "direct cause of the following exception"
_HANDLED = "During handling of the above exception"

# How C++ and Rust report an exception: its type on one line, its words on the next.
_THROWN = re.compile(
    r"terminate called after throwing an instance of '(?P<type>[^']+)'|panicked at "
)
_WHAT = re.compile(r" *what\(\): +(?P<text>.+)")
_PANIC = re.compile(r"(?P<text>(?!note: |stack backtrace).+)")
# Words, and no border, nor a mark, nor what torch puts above the code of who called it.
_WORDS = re.compile(r"(?!from user code:)[\w'\"`].* \S")
_SHELL = re.compile(r"\bline \d+: +\d+ [A-Z]")  # how one tells the end of what it ran
# An event of Kubernetes that is none of a good end: one tells nothing of the one before.
_OF_KUBERNETES = re.compile(r" *Warning +[A-Z]\w+ +\d\w* ")
# What torchrun tells of the process that failed first.
_ELASTIC = re.compile(
    r"\s*(?:rank +: (?P<rank>\d+)|(?P<end>exitcode|traceback) +: |time +: |host +: |error_file: |\[\d+\]:$)"
)
# The device of the process, in a record of the engine.
_NPU_DEVICE = re.compile(r"^\[ERROR\] [\d:-]+ \(PID:\d+, Device:(\d+), RankID:")


def form_of(before: str) -> re.Pattern[str] | None:
    """Return the form of what stands before a traceback, whatever its numbers are, or None."""
    if "Exception Group" in before or before.strip() == "|":
        return GROUP
    if _NAMED.match(before.rstrip()):  # an exception that quotes a traceback
        return None
    parts = re.split(r"\d+", before)
    return re.compile(r"\d+".join(map(re.escape, parts))) if before.strip() else None


def raises(said: Said) -> re.Match[str] | None:
    """Return the exception that a line names outside of a traceback, or None.

    A record of many lines, as JSON holds them, has its traceback within; the last line tells most.
    """
    for text in reversed(said.text.split("\n")[1:]):
        if (found := _NAMED.match(text)) is not None:
            return found
    return _IN_LINE.search(said.text) or _NAMED.match(said.text) or _WORDS_BELOW.search(said.text)


def goes_on(event: Event, said: Said, line: Line) -> bool:
    """Take a line that belongs to an event; return whether it does."""
    text = said.text.removeprefix(event.indent)
    event.traced += 1
    if event.traced > MOST:
        return False
    if _CAUSED in text or _HANDLED in text:
        event.link = "cause" if _CAUSED in text else "handling"
        return True
    if TRACEBACK.search(text):
        last = event.raised[-1] if event.raised else None
        own = said.process == event.said.process
        wordless = last is not None and not last.text and not event.moved_on and own
        group = last is not None and last.type.endswith("ExceptionGroup")
        group = group or (last is not None and last.text.endswith(":") and not event.moved_on)
        again = event.link or (event.inside and event.stack is None) or wordless or group
        if again and not said.calm:
            event.inside = True
            return True
        return False
    if stack := _STACK.match(text):
        event.stack, event.inside = bool(stack["mine"]), True
        event.frames = [] if event.stack else event.frames
        return True
    frame = FRAME.match(text)
    if frame:
        event.inside, event.framed_at = True, said.level
        where = frame["path"] if frame["name"] is None else f"{frame['path']}:{frame['name']}"
        event.frames = event_details.framed(event, where)
        event.shown = line if event.stack is None else event.shown
        return True
    if event.inside and (cell := _CELL.match(text)):
        event.frames = event_details.framed(event, cell["path"]) if cell["path"] else event.frames
        return True
    if event.inside:
        if not text.strip() or text[0] in " \t\u2502\u256d\u2570|^":
            return True
        # A program that logs what another one says has one level for all of it.
        calm = said.calm and said.level != event.framed_at
        found = _RAISED.match(text) if not calm else None
        if found:
            told = event_details.raised(found, line, text, event.link, event.frames)
            if event.link and event.raised[-1:] and event.raised[-1].type == "CancelledError":
                # What was cancelled because its time ran out is no end of a client.
                event.harmless = "" if told.type == "TimeoutError" else event.harmless
            event.raised.append(told)
            event.lines.append(line)
            event_details.take_rank(event, said)
            event_details.place_actor(event, text)
            event.inside, event.link = False, ""
            if not gravity.of_itself(event.said):
                event.harmless = event.harmless or gravity.why_harmless(said, event.frames)
            return True
        event.inside = not calm and (_flat(event, line) or _wrapped(event, said))
        return event.inside
    framed = bool(_NATIVE_FRAME.match(text))
    if framed:
        event_details.take_rank(event, said)
    return _explains(event, said, line) or framed


def source_code(said: Said) -> bool:
    """Return whether a line is source code of a traceback, which names what it would say."""
    return bool(_CODE.match(said.text))


def _wrapped(event: Event, said: Said) -> bool:
    """Return whether a line is the rest of one that was too long for a terminal."""
    bare = not event.said.unnamed and said.unnamed and not said.level
    return bare and not gravity.reports_error(said)


def _flat(event: Event, line: Line) -> bool:
    """Return whether a line may be source code without its indent, as of a log that was copied."""
    frame = event.shown
    return (
        frame is not None
        and line.number - frame.number <= NEAR
        and line_grammar.of(frame.text).text.startswith("File ")
    )


def _explains(event: Event, said: Said, line: Line) -> bool:
    """Take what a process prints after an exception, or below an error of many lines."""
    text = said.text
    told = _ELASTIC.match(text) if event.said.text.startswith("Root Cause") else None
    if told is not None:
        if told["rank"] and event.rank is None:
            event.rank, event.label = int(told["rank"]), told["rank"]
        if told["end"]:
            event.lines.append(line)
        return True
    if line.number - event.lines[-1].number > NEAR or len(event.lines) >= _DETAILS:
        return False
    if event_details.of_one(said, event.said) and event_details.tells_place(event, text):
        event.lines.append(line)
        return True
    if event_details.explains_npu(said, event):
        if event.rank is None and process_ranks.one_process(said, event.said):
            event.rank, event.label = said.rank, said.label
        event.lines.append(line)
        return True
    # A record of many lines, each of which the engine gives the same beginning.
    record = said.grammar == "vllm" and said.source == event.said.source
    if said.calm or (said.level and said.unnamed and not record):
        return False
    # What Ray passes on says itself, below, what it is.
    if not event.raised or HOLLOW.search(event.raised[-1].type):
        found = _NAMED.match(text) if not event_details.ends(event) else None
        if found and (
            event_details.of_one(said, event.said) or event_details.announces(event.said, said)
        ):
            event.raised.append(event_details.raised(found, line, text))
            event.lines.append(line)
            event_details.take_rank(event, said)
            event.harmless = event.harmless or gravity.why_harmless(said, event.frames)
            return True
    if said.process and not event_details.of_one(said, event.said):
        return False
    if event.raised and HOLLOW.search(event.raised[-1].type):
        event_details.place_actor(event, text)
    if _OF_KUBERNETES.match(text):
        return False
    if _SHELL.search(text) and (
        event.raised or event.said.grammar == "sglang" or gravity.native(event.said.text)
    ):
        return False
    if said.grammar == "sglang" and not event_details.sums_up(event, text):
        event.moved_on = True
        return False
    native = gravity.native(text) and not event_details.sums_up(event, text)
    if (said.level and not record) or native or _NAMED.match(text):
        return False
    _says_native(event, said, line)
    _says_below(event, said, line, record)
    event_details.take_rank(event, said)
    if event.rank is None and (device := _NPU_DEVICE.search(text)):
        event.rank, event.label = int(device[1]), device[1]
    event.lines.append(line)
    return True


def _says_below(event: Event, said: Said, line: Line, record: bool) -> None:
    """Take the first words that an exception, which ends with a colon, has below."""
    last = event.raised[-1] if event.raised else None
    if last is None or last.text or not last.said.rstrip().endswith(":"):
        return
    text = said.text.strip()
    own = record or event_details.of_one(said, event.said)
    if own and _WORDS.match(text):
        last.text, last.line, last.said = text, line, f"{last.said.rstrip()} {text}"


def _says_native(event: Event, said: Said, line: Line) -> None:
    """Take what programs in C++ and Rust say of an exception on its second line."""
    thrown = _THROWN.search(event.said.text)
    if thrown is None or event.raised:
        return
    what = (_WHAT if thrown["type"] else _PANIC).match(said.text)
    if what:
        kind = (thrown["type"] or "panic").rpartition("::")[2]
        event.raised.append(Raised(kind, what["text"], line, said.text))
