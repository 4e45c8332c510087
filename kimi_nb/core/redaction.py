"""Remove secrets from texts: known values wherever they occur, unknown ones by their form.

The functions are pure. Names of variables, hashes, ids, token counts and shell references
(``$KEY``) are kept, so that the result remains useful as evidence.

>>> text("Authorization: Bearer abc123def456")
'Authorization: Bearer [redacted]'
>>> value({"api_key": "hunter2", "n": 1})
{'api_key': '[redacted]', 'n': 1}
>>> data(b"token is 0123456789abc", ["0123456789abc"])  # as long as before
b'token is [redacted]***'
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

MARK = "[redacted]"
SHORTEST = 6  # characters; shorter values would match in ordinary text
_LARGEST_FORM = 4096  # characters; of a longer value only the beginning is searched for

# What a coloured traceback may put between a name and its value.
_GAP = r"(?:\x1b\[[\d;]*m|[ \t])*"
_QUOTE = r"(?:\\*[\"']|&quot;|&#39;)?"
# "pwd" followed by a path (PWD=/home/me) is a folder, not a password.
_NAME = (
    r"(?:pass(?:word|wd|phrase)|pwd(?![\s\"']*[=:][\s\"']*[/~.])|secret|credentials?|"
    r"(?:api|access|secret|auth|private|account|encryption)[_-]?key|"
    r"(?:api|access|auth|refresh|session|secret|bearer|id|hf|hub|hugging_?face|github|gitlab|"
    r"modelscope|user)[_-]?token)"
)
# Every such name contains one of these words; searching for them is faster than the pattern.
_STEMS = (
    "passw",
    "passphrase",
    "pwd",
    "secret",
    "credential",
    *(
        f"{kind}{sign}{thing}"
        for sign in ("_", "-", "")
        for kind, thing in (
            *(
                (one, "key")
                for one in ("api", "access", "auth", "private", "account", "encryption")
            ),
            *(
                (one, "token")
                for one in (
                    "api",
                    "access",
                    "auth",
                    "refresh",
                    "session",
                    "bearer",
                    "id",
                    "hf",
                    "hub",
                    "face",
                    "github",
                    "gitlab",
                    "modelscope",
                    "user",
                )
            ),
        )
    ),
)
_VALUE = r"[^\s\"'<>&,;\\\x1b\[\](){}$*][^\s\"'<>&,;\\\x1b]{3,}"
# Placeholders for "no value", and names of variables (MY_KEY).
_NOTHING = (
    r"(?!(?:None|null|true|false|True|False|empty|EMPTY|str|string)\b|"
    r"(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?![\w+/=.-]))"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")

# (lower-case words, one of which must be in the text; the pattern; its replacement)
_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = tuple(
    (words, re.compile(pattern, re.ASCII), into)
    for words, pattern, into in (
        (
            ("private key",),
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----(?:[\s\S]{0,20000}?-----END [A-Z0-9 ]*PRIVATE "
            r"KEY-----|(?:(?:\s|\\+[nr])+[A-Za-z0-9+/=]{16,})*)",
            MARK,
        ),
        (("eyj",), r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*", MARK),
        (("sk-",), r"(?<![\w-])sk-(?=[\w-]*\d)[A-Za-z0-9_-]{16,}", MARK),
        (("hf_",), r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{20,}", MARK),
        (
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
            r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{20,}",
            MARK,
        ),
        (("github_pat_",), r"\bgithub_pat_\w{20,}", MARK),
        (("glpat-",), r"\bglpat-[\w-]{16,}", MARK),
        (("xox",), r"\bxox[abeprs]-[\w-]{10,}", MARK),
        (("akia", "asia"), r"(?<![A-Za-z0-9])A(?:KI|SI)A[0-9A-Z]{16}(?![A-Za-z0-9])", MARK),
        (("aiza",), r"\bAIza[\w-]{35}", MARK),
        (("nvapi-",), r"\bnvapi-[\w-]{20,}", MARK),
        (
            ("ms-",),
            r"(?<![\w-])ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            MARK,
        ),
        (
            ("bearer", "basic"),
            r"(?i)\b(bearer|basic)(\s+)(?=[\w.~+/=-]*\d|[\w.~+/=-]{20})[\w.~+/=-]{8,}",
            rf"\1\2{MARK}",
        ),
        (("://",), r"(://[^\s/:@\"'<>]*):(?!\$|\[redacted\])[^\s/\"'<>]+@", rf"\1:{MARK}@"),
        (
            _STEMS,
            rf"(?i)(?<![A-Za-z0-9])({_NAME}{_QUOTE}{_GAP}(?:=|:)(?!//){_GAP}"
            rf"{_QUOTE}{_GAP}){_NOTHING}{_VALUE}",
            rf"\1{MARK}",
        ),
        # Prose mentions --api-key too: after a space only a word with a digit or a long one counts.
        (
            _STEMS,
            rf"(--(?:[a-z0-9]+-){{0,3}}{_NAME}(?:\\?[\"'],)? {_QUOTE})"
            rf"(?!-)(?=[^\s]*\d|[^\s]{{20}}){_VALUE}",
            rf"\1{MARK}",
        ),
    )
)
_KEY = re.compile(rf"(?i)(?:^|[A-Za-z0-9]+[_-])*{_NAME}")


def text(given: str, values: Iterable[str] = ()) -> str:
    """Return a text with secrets redacted; a text without secrets is returned unchanged."""
    known = _known(tuple(sorted(set(values))))
    if known is not None:
        given = known.sub(MARK, given)
    for pattern, into in _in(given):
        given = pattern.sub(into, given)
    return given


def _in(given: str) -> Iterable[tuple[re.Pattern[str], str]]:
    low = given.lower()
    return [
        (pattern, into) for words, pattern, into in _SHAPES if any(word in low for word in words)
    ]


def value(given: Any, values: Iterable[str] = ()) -> Any:
    """Return plain values with secrets redacted, in keys as well.

    A value under a key that names a secret (``password``, ``api_key``, but not ``api_key_env``) is
    replaced as a whole.
    """
    values = tuple(values)
    if isinstance(given, str):
        return text(given, values)
    if isinstance(given, Mapping):
        return {
            text(key, values) if isinstance(key, str) else key: MARK
            if isinstance(key, str)
            and isinstance(inner, str)
            and inner
            and _KEY.fullmatch(key)
            and not _refers(inner)
            else value(inner, values)
            for key, inner in given.items()
        }
    if isinstance(given, list | tuple):
        return [value(inner, values) for inner in given]
    return given


def data(given: bytes, values: Iterable[str] = ()) -> bytes:
    """Return the bytes of a file with secrets redacted, without changing their number.

    Whoever reads or writes the file at an offset can therefore continue. Data compressed with gzip
    is decompressed, redacted and compressed again, which may change its length.
    """
    if given[:2] == b"\x1f\x8b":
        try:
            inner = gzip.decompress(given)
        except (OSError, EOFError, zlib.error):
            return given
        clean = data(inner, values)
        return given if clean == inner else gzip.compress(clean, mtime=0)
    # One character per byte: every pattern is ASCII, and values are searched for as bytes.
    out = given.decode("latin-1")
    known = _known(
        tuple(
            sorted(
                {one.encode("utf-8", "surrogateescape").decode("latin-1") for one in values}
                | set(values)
            )
        )
    )
    if known is not None:
        out = known.sub(_filled(MARK), out)
    for pattern, into in _in(out):
        out = pattern.sub(_filled(into), out)
    return out.encode("latin-1")


def _filled(into: str) -> Callable[[re.Match[str]], str]:
    """Return a replacement function whose result is as long as the match."""

    def fill(match: re.Match[str]) -> str:
        before, _, after = match.expand(into).rpartition(MARK)
        room = len(match[0]) - len(before) - len(after)
        return before + (MARK.ljust(room, "*") if room >= len(MARK) else "*" * room) + after

    return fill


def _refers(given: str) -> bool:
    return given.startswith("$") or given == MARK or bool(_VARIABLE.fullmatch(given))


@functools.lru_cache(maxsize=64)
def _known(values: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return a pattern that matches the values in every form in which they may be written.

    The forms are the value itself, its escapes for JSON, Python, HTML and URLs, and base64.
    """
    forms: set[str] = set()
    for one in values:
        if len(one) < SHORTEST:
            continue
        one = one[:_LARGEST_FORM]
        forms |= {
            one,
            json.dumps(one)[1:-1],
            json.dumps(one, ensure_ascii=False)[1:-1],
            json.dumps(json.dumps(one))[3:-3],
            repr(one)[1:-1],
            html.escape(one),
            html.escape(one, quote=False),
            quote(one, safe=""),
            quote(one),
            quote_plus(one),
            *one.splitlines(),
            *_in_base64(one),
        }
    forms = {form for form in forms if len(form) >= SHORTEST}
    if not forms:
        return None
    # Longest first, because an escaped form may begin with a plain one.
    return re.compile("|".join(map(re.escape, sorted(forms, key=lambda form: (-len(form), form)))))


def _in_base64(one: str) -> Iterable[str]:
    """Yield the base64 characters that represent a value inside encoded data.

    There is one result for each of the three possible byte offsets. The characters at both ends are
    left out, because they depend on the neighbouring bytes.
    """
    raw = one.encode("utf-8", "surrogateescape")
    for offset in range(3):
        first = (offset * 8 + 5) // 6 if offset else 0
        last = (offset + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(offset) + raw).decode()[first:last]
