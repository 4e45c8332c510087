"""Change what strangers write: bytes, lines, numbers, and the values of JSON and YAML."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

from fuzz.guard import SECRET

Draw = Callable[[st.SearchStrategy[Any]], Any]
LARGEST = 60_000  # bytes of an input
_DEEP = 3000

# What has broken programs before.
BYTES = (
    b"", b"\0", b"\x1b[2J", b"\x1b]0;t\x07", b"\r", b"\n", b"\r\n", b"\t", b" ", b"\xff", b"\xfe\xff",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", "\u202e".encode(), "\u2028".encode(),
    "\x85".encode(), "\u0661\u00b2".encode(), "\U0001f600".encode(), "日本語".encode(), b"%", b"%s%n",
    b"{}", b"{", b"}", b"[", b"]", b"(", b")", b"'", b'"', b"`", b"$", b"$(", b"${", b"\\", b"\\\n",
    b"|", b"&", b";", b"<", b">", b"<<", b"#", b"!", b"=", b":", b": ", b",", b"-", b"--", b"---\n",
    b"/", b"../", b"/etc/passwd", b"~", b"*", b"?", b"@", b"0", b"-1", b"1e400", b"nan", b"inf",
    b"9" * 30, b"9" * 5000, b"0x10", b"1_0", b"null", b"true", b"~\n", b"\x1f\x8b", b"&a", b"*a",
    b"!!python/object/apply:os.system", b"<script>", b"A" * 400, SECRET.encode(),
)  # fmt: skip
NUMBERS = (
    b"0", b"-1", b"1", b"2", b"00", b"65536", b"2147483648", b"18446744073709551616", b"1e400",
    b"1.5", b"-0.0", b"nan", b"9" * 400, b"9" * 5000, "\u0663".encode(), "\u00b2".encode(), b"",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**63, 2**200, 10**400, 1e308, float("nan"),
    float("inf"), "", " ", "a", "-", "0", "1", "nan", "a\nb", "\x1b[2J", "\u202ea", "\ud800", "é日本",
    "/", "../x", "/etc/passwd", "x" * 5000, "9" * 5000, "{}", "<b>", SECRET, [], {}, [[]], [None],
    [1, "a"], {"": 0}, {"a": None}, [{}], {"a": {"b": [1]}}, ["a"] * 300,
)  # fmt: skip
_NUMBER = re.compile(rb"[0-9]+")


@st.composite
def text(draw: Draw, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """Some input of a corpus with a few changes; ``words`` are those of its grammar."""
    data = draw(st.sampled_from(seeds))
    pieces = st.sampled_from((*words, *words, *BYTES) if words else BYTES)
    for _ in range(draw(st.integers(1, 5))):
        data = _CHANGES[draw(st.integers(0, len(_CHANGES) - 1))](draw, data, pieces, seeds)[
            :LARGEST
        ]
    return data


def _insert(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(pieces) + data[at:]


def _replace(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    at, size = draw(st.integers(0, len(data))), draw(st.integers(0, 20))
    return data[:at] + draw(pieces) + data[at + size :]


def _cut(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    return data[: draw(st.integers(0, len(data)))]


def _byte(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def _number(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    one = found[draw(st.integers(0, len(found) - 1))]
    return data[: one.start()] + draw(st.sampled_from(NUMBERS)) + data[one.end() :]


def _word(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    found = list(re.finditer(rb"[\w.-]+", data))
    if not found:
        return data
    one = found[draw(st.integers(0, len(found) - 1))]
    return data[: one.start()] + draw(pieces) + data[one.end() :]


def _line(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    """Move, drop, repeat or indent a line."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    at, to = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
    how = draw(st.integers(0, 3))
    if how == 0:
        lines.insert(to, lines.pop(at))
    elif how == 1:
        del lines[at]
    elif how == 2:
        lines[at] *= draw(st.sampled_from((2, 50, 1000)))
    else:
        lines[at] = b" " * draw(st.integers(0, 9)) + lines[at].lstrip()
    return b"".join(lines)


def _splice(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    other = draw(st.sampled_from(seeds))
    return data[: draw(st.integers(0, len(data)))] + other[draw(st.integers(0, len(other))) :]


def _repeat(draw: Draw, data: bytes, pieces: Any, seeds: Sequence[bytes]) -> bytes:
    """The same piece again and again: what is not linear shows here."""
    at, size = draw(st.integers(0, len(data))), draw(st.integers(1, 30))
    piece = draw(pieces) if draw(st.booleans()) else data[at : at + size]
    return data[:at] + piece * draw(st.sampled_from((3, 100, _DEEP))) + data[at:]


_CHANGES = (_insert, _replace, _cut, _byte, _number, _word, _line, _splice, _repeat)


@st.composite
def values(
    draw: Draw, seeds: Sequence[bytes], dump: Callable[[Any], bytes], load: Callable[[bytes], Any]
) -> bytes:
    """Some value of a corpus in which a few inner ones are others, dropped or moved."""
    whole = load(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(whole))
        if not places:
            return dump(copy.deepcopy(draw(st.sampled_from(VALUES))))
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.integers(0, 5))
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[draw(st.sampled_from(_KEYS))] = holder.pop(key)
        elif how == 2:
            there, name = places[draw(st.integers(0, len(places) - 1))]
            # By its text, so that no value holds itself.
            holder[key] = json.loads(json.dumps(there[name])) if name in _names(there) else None
        else:
            # A copy: what is changed later must not change what is drawn.
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return dump(whole)[:LARGEST]


_KEYS = ("", " ", "a", "0", "\x1b[2J", "../x", "x" * 300, SECRET, "é", "a b", "-", "a.b")


def _names(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _places(whole: Any) -> Any:
    """Yield (mapping or list, key) of each inner value."""
    waiting = [whole]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            for key in _names(one):
                yield one, key
                waiting.append(one[key])


def json_values(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """JSON whose inner values are changed."""
    return values(seeds, lambda one: json.dumps(one).encode(), json.loads)


def json_lines(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """The same of a file that has a JSON value in each line."""
    return values(
        seeds,
        lambda whole: (
            b"".join(json.dumps(one).encode() + b"\n" for one in whole)
            if isinstance(whole, list)
            else json.dumps(whole).encode()
        ),
        lambda data: [json.loads(line) for line in data.splitlines() if line.strip()],
    )


def yaml_values(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """The same in YAML."""
    return values(
        seeds,
        lambda one: yaml.safe_dump(one, sort_keys=False, allow_unicode=True).encode(
            "utf-8", "surrogatepass"
        ),
        lambda data: yaml.safe_load(data),
    )
