"""Why a request gave no measurement, as a short name.

>>> kind("too-many-requests: 429 slow down"), kind("Too Many Requests")
('too-many-requests', 'too-many-requests')

Our own client writes ``kind: detail``. What vLLM's client writes, an HTTP reason or a traceback, is
recognised by its words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# What each kind means, and what to do next.
KINDS = {
    "unreachable": "nobody takes connections there: is the service up, and is this its address?",
    "not-found": "404: no such path or model; is it the front door, is the served name right?",
    "unauthorised": "401 or 403: the key is missing or wrong; name the variable that holds it in "
    "the site file",
    "too-many-requests": "429: something in front limits the rate; ask for less at once",
    "refused": "a 4xx: the service does not take this request; its words say why",
    "server-error": "a 5xx: the service failed; look at its logs (kimi-nb logs)",
    "cut-off": "the connection broke before the answer was whole: did an engine die (kimi-nb "
    "status)?",
    "error-in-stream": "the answer began with 200 and then told of an error; look at the logs",
    "malformed": "what came is no stream of OpenAI's chat API: is this a vLLM, or a page of a "
    "gateway?",
    "empty": "a stream without a token: a proxy that swallows answers, or a prefill without decode",
    "timeout": "no end in the time allowed: is an engine stuck?",
    "drips": "bytes come slower than any engine writes: what stands between it and this machine?",
    "floods": "more comes than any answer has: what listens there is no engine",
    "redirected": "a 3xx: name the address that it sends to, if that is yours; nobody is followed",
    "other": "see the error's own words",
}
_WORDS = (
    ("unreachable", r"ClientConnector(DNS)?Error|Cannot connect to host|Connection refused"),
    ("timeout", r"TimeoutError|Gateway Time-?out"),
    (
        "cut-off",
        r"ServerDisconnected|ClientPayloadError|Connection reset|ClientOSError|"
        r"not enough data|TransferEncodingError|IncompleteRead",
    ),
    ("malformed", r"JSONDecodeError|KeyError|UnicodeDecodeError|ContentTypeError"),
    ("empty", r"Never received a valid chunk"),
    ("unauthorised", r"^(Unauthorized|Forbidden)"),
    ("not-found", r"^Not Found"),
    ("too-many-requests", r"^Too Many Requests"),
    ("server-error", r"^(Internal Server Error|Bad Gateway|Service Unavailable)"),
    ("refused", r"^(Bad Request|Unprocessable|Request Entity|Payload Too Large)"),
)


def of_status(status: int) -> str:
    """Return the kind of an HTTP status other than 200.

    >>> of_status(403), of_status(502)
    ('unauthorised', 'server-error')
    """
    return {
        401: "unauthorised",
        403: "unauthorised",
        404: "not-found",
        429: "too-many-requests",
    }.get(
        status,
        "server-error" if status >= 500 else "redirected" if 300 <= status < 400 else "refused",
    )


def kind(error: str) -> str:
    """Return the kind of an error text, or "" if the text is empty."""
    if not error:
        return ""
    own = error.partition(":")[0]
    if own in KINDS:
        return own
    return next((name for name, words in _WORDS if re.search(words, error)), "other")


def counts(errors: Iterable[str]) -> dict[str, int]:
    """Count errors by kind, the most frequent first; empty texts are not errors.

    >>> counts(["timeout: no end after 5 s", "", "Bad Gateway", "Bad Gateway"])
    {'server-error': 2, 'timeout': 1}
    """
    return dict(Counter(filter(None, map(kind, errors))).most_common())


def told(found: dict[str, int], example: str = "") -> str:
    """Return the kinds with their meanings, one a line, and the text of one error."""
    lines = [f"  {many} x {name}: {KINDS[name]}" for name, many in found.items()]
    words = " ".join(example.split())
    # A traceback says at its end what happened.
    return "\n".join(
        [*lines, *([f"  seen: {words if len(words) < 300 else words[-300:]}"] if words else [])]
    )
