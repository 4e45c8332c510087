"""Remove secrets from texts: known values wherever they occur, unknown ones by their form.

The functions are pure. Names of variables, hashes, ids, token counts and shell references
(``$KEY``) are kept, so that the result remains useful as evidence. The forms of unknown ones are
those of `secret_forms`.

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
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from kimi_nb.core import secret_forms

MARK = "[redacted]"
SHORTEST = 6  # characters; shorter values would match in ordinary text
_LARGEST_FORM = 4096  # characters; of a longer value only the beginning is searched for
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")


def text(given: str, values: Iterable[str] = ()) -> str:
    """Return a text with secrets redacted; a text without secrets is returned unchanged."""
    raw = given.encode("utf-8", "surrogatepass")
    found = spans(raw, values)
    if not found:
        return given
    out, at = [], 0
    for begin, end in found:
        out += [raw[at:begin], MARK.encode()]
        at = end
    return b"".join([*out, raw[at:]]).decode("utf-8", "surrogatepass")


def value(given: Any, values: Iterable[str] = ()) -> Any:
    """Return plain values with secrets redacted, in keys as well.

    A value under a key that names a secret (``password``, ``api_key``, but not ``api_key_env``) is
    replaced as a whole.
    """
    values = tuple(values)
    if isinstance(given, str):
        return text(given, values)
    if isinstance(given, Mapping):
        if _clean(given, values):
            return {key: _plain(inner) for key, inner in given.items()}
        return {
            text(key, values) if isinstance(key, str) else key: MARK
            if _named(key, inner)
            else value(inner, values)
            for key, inner in given.items()
        }
    if isinstance(given, list | tuple):
        if _clean(given, values):
            return _plain(given)
        return [value(inner, values) for inner in given]
    return given


def _named(key: Any, inner: Any) -> bool:
    """Return whether a key says that its value is secret."""
    return (
        isinstance(key, str)
        and isinstance(inner, str)
        and bool(inner)
        and secret_forms.is_secret_key(key)
        and not _refers(inner)
    )


def _plain(given: Any) -> Any:
    """Return the same values in lists and dictionaries."""
    if isinstance(given, Mapping):
        return {key: _plain(inner) for key, inner in given.items()}
    return [_plain(inner) for inner in given] if isinstance(given, list | tuple) else given


def _clean(given: Any, values: tuple[str, ...]) -> bool:
    """Return whether no secret can be in any text of a value: by one search through all of them."""
    texts: list[str] = []
    if not _gathered(given, texts):
        return False
    return not spans("\n".join(texts).encode("utf-8", "surrogatepass"), values)


def _gathered(given: Any, texts: list[str]) -> bool:
    """Add all texts of a value; return False where a key says that its value is secret."""
    if isinstance(given, str):
        texts.append(given)
    elif isinstance(given, Mapping):
        for key, inner in given.items():
            if _named(key, inner) or not (_gathered(key, texts) and _gathered(inner, texts)):
                return False
    elif isinstance(given, list | tuple):
        return all(_gathered(inner, texts) for inner in given)
    return True


def data(given: bytes, values: Iterable[str] = ()) -> bytes:
    """Return the bytes of a file with secrets redacted, without changing their number.

    Whoever reads or writes the file at an offset can therefore continue.
    """
    out = bytearray(given)
    for begin, end in spans(given, values):
        out[begin:end] = filling(end - begin)
    return bytes(out)


def filling(length: int) -> bytes:
    """Return what stands in the place of a secret of so many bytes."""
    return MARK.encode().ljust(length, b"*") if length >= len(MARK) else b"*" * length


def spans(given: bytes, values: Iterable[str] = ()) -> list[tuple[int, int]]:
    """Return (begin, end) of each secret in UTF-8, in order; none overlaps another."""
    found = list(secret_forms.spans(given))
    for form in _known(tuple(sorted(set(values)))):
        at = given.find(form)
        while at >= 0:
            found.append((at, at + len(form)))
            at = given.find(form, at + len(form))
    out: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if out and begin < out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out


def _refers(given: str) -> bool:
    return given.startswith("$") or given == MARK or bool(_VARIABLE.fullmatch(given))


@functools.lru_cache(maxsize=64)
def _known(values: tuple[str, ...]) -> tuple[bytes, ...]:
    """Return the values in every form in which they may be written.

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
            # The environment's bytes that are no UTF-8 are surrogates in Python.
            quote(one, safe="", errors="surrogateescape"),
            quote(one, errors="surrogateescape"),
            quote_plus(one, errors="surrogateescape"),
            *one.splitlines(),
            *_in_base64(one),
        }
    long = [form for form in forms if len(form) >= SHORTEST]
    # A variable that is no UTF-8 has surrogates, in texts as they are and in files as its bytes.
    return tuple(
        sorted(
            {form.encode("utf-8", "surrogatepass") for form in long}
            | {form.encode("utf-8", "surrogateescape") for form in long}
        )
    )


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
