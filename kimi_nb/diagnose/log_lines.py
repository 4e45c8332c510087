r"""Parse one line of a log: when it was written, by whom, and whether it reports an error.

>>> plain("\x1b[36m(EngineCore_DP3 pid=7)\x1b[0m ERROR 11-22 05:49:28 ...")
'(EngineCore_DP3 pid=7) ERROR 11-22 05:49:28 ...'
>>> stamp("[2026-11-22 05:49:28,123] ...")
'11-22 05:49:28.123'
>>> rank_of("(Worker_DP3_TP2 pid=9) ERROR ...")
3
>>> tells_error("INFO ... error_limit=3")
False
"""

from __future__ import annotations

import calendar
import re

COLOURS = re.compile(r"(?:\x1b|\^\[)\[[0-9;?]*[A-Za-z]|\^M$")  # also as an editor shows them
_MONTHS = {name: f"{at:02}" for at, name in enumerate(calendar.month_abbr) if name}
_CLOCK = r"(?P<time{0}>\d\d:\d\d:\d\d)(?:[.,:](?P<part{0}>\d[\d.]*))?"
# Years are left out, because vLLM's lines have none. The formats: ISO and Python's logging,
# Ascend's plog (2026-11-22-05:49:28.123.456), vLLM, glog (E1122 05:49:28.123456), syslog.
_STAMP = re.compile(
    "|".join(
        (
            r"\b20\d\d[-/](?P<date0>\d\d[-/]\d\d)[-T ]" + _CLOCK.format(0),
            r"(?<![\d-])(?P<date1>\d\d-\d\d) " + _CLOCK.format(1),
            r"(?<![A-Za-z0-9])[DIWEF](?:20\d\d(?=\d{4}))?(?P<date2>\d{3,4}) " + _CLOCK.format(2),
            rf"\b(?P<date3>(?:{'|'.join(_MONTHS)}) [ \d]\d) " + _CLOCK.format(3),
            r"\b20\d\d(?P<date4>\d{4})-" + _CLOCK.format(4),
            r"\[(?P<date5>\d\d/\d\d)/20\d\d-" + _CLOCK.format(5),
        )
    )
)
_LONG = 4000  # characters of a line in which a number may be longer than Python takes
_DIGITS = re.compile(r"(\d{18})\d+")
_REACH = 200  # characters at the start of a line that contain its time
_WHO = re.compile(r"\((?:EngineCore|Worker|ApiServer|APIServer)(?P<parts>(?:_[A-Z]*\d+)*) pid=")
_PART = re.compile(r"_([A-Z]*)(\d+)")
# A level below error, after the name of the process.
_CALM = re.compile(
    r"(?:\([^()]* pid=\d+\) *|REHEARSAL:? *)*(?:DEBUG|INFO|WARNING)\b|"
    r"[^a-z]{0,60}\[(?:DEBUG|INFO|WARNING)\]|\[?[DIW]\d{3,4} \d\d:"
)
_SAID = re.compile(
    r"(?:\([^()]* pid=\d+\) *|REHEARSAL:? *)*(?:DEBUG|INFO)\b|"
    r"[^a-z]{0,60}\[(?:DEBUG|INFO)\]|\[?[DI]\d{3,4} \d\d:"
)
_ERROR = re.compile(
    r"\bERROR\b|^\w*(?:Error|Exception)\b|Traceback|"
    r"(?:^|[ :])[\w.]*(?:Error|Exception): "
)
# vLLM logs the refusal of a request, a client's mistake, at level error.
_REFUSED = re.compile(r"\bErrorInfo\(.*\bcode=4\d\d\b")
EXCEPTION = re.compile(r"\b\w+(?:Error|Exception): ")


def plain(line: str) -> str:
    """Return a line without terminal colours, without its line break, and with shorter numbers.

    Of more than 4300 digits Python makes no number.
    """
    line = line.rstrip("\r\n")
    line = COLOURS.sub("", line) if "\x1b" in line or "^" in line else line
    return _DIGITS.sub(r"\1", line) if len(line) > _LONG else line


def stamp(line: str) -> str:
    """Return the time of a line as "MM-DD HH:MM:SS", with the fraction if there is one.

    The result is "" if the line has no time. Times can be compared as texts.
    """
    match = _STAMP.search(line, 0, _REACH)
    if match is None:
        return ""
    found = {name[:-1]: value for name, value in match.groupdict().items() if value}
    date = found["date"].replace("/", "-")
    if date.isdecimal():  # torch writes the month without a leading zero
        date = f"{date[:-2]:0>2}-{date[-2:]}"
    elif date[:3] in _MONTHS:
        date = f"{_MONTHS[date[:3]]}-{date[4:].replace(' ', '0')}"
    part = found.get("part", "").replace(".", "")
    return f"{date} {found['time']}" + (f".{part}" if part else "")


def parts_of(line: str) -> dict[str, int]:
    """Return the numbers of the process that wrote a line.

    >>> parts_of("(Worker_DP3_TP2 pid=9) ERROR ...")
    {'DP': 3, 'TP': 2}
    """
    out: dict[str, int] = {}
    for who in _WHO.finditer(line, 0, _REACH):
        # Older versions call EngineCore_DP0 EngineCore_0.
        out |= {name or "DP": int(number) for name, number in _PART.findall(who["parts"])}
    return out


def rank_of(line: str) -> int | None:
    """Return the data parallel rank that wrote a line, or None if the line does not name it."""
    return parts_of(line).get("DP")


def told_calmly(line: str) -> bool:
    """Return whether a line has level info or debug, so that it reports no failure."""
    return bool(_SAID.match(line))


def tells_error(line: str) -> bool:
    """Return whether a line reports an error.

    A line of level warning or below does not, whatever words it contains, nor does the refusal of a
    request: `kimi_nb.prove.verify` asks for a model that is not there.
    """
    return bool(_ERROR.search(line)) and not _CALM.match(line) and not _REFUSED.search(line)
