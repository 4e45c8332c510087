"""Take secrets out of everything that a command prints.

Logs, answers of nodes and services, and messages about them may hold a key. A command prints them
as they are::

    with redacted_streams.redacted():
        print("... the value ...")  # "... [redacted] ..."
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO


@contextlib.contextmanager
def redacted() -> Iterator[None]:
    """Redact what is written to sys.stdout and sys.stderr."""
    out, errors = Redacted(sys.stdout), Redacted(sys.stderr)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            yield
        finally:
            errors.flush()
            out.flush()


class Unwritable(OSError):
    """A stream takes nothing, as on a full disk; the message is the system's."""

    def __init__(self, stream: TextIO, why: str) -> None:
        super().__init__(why)
        self.stream = stream


class Redacted:
    """A stream of text that passes on whole lines, so that a secret in pieces is seen."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._line = stream, ""
        # A handler of a signal may print too.
        self._one = threading.RLock()

    def write(self, text: str) -> int:
        """Take a text and pass on what ends with a line break."""
        with self._one:
            if not self._line and text[:1] in ("{", "["):
                self._pass(text)  # perhaps a document, to be seen whole
                return len(text)
            lines, end, self._line = (self._line + text).rpartition("\n")
            if end:
                self._pass(lines + end)
            return len(text)

    def flush(self) -> None:
        """Pass on the beginning of a line too, such as a question."""
        with self._one:
            rest, self._line = self._line, ""
            self._pass(rest)
            with self._named():
                self._stream.flush()

    def _pass(self, text: str) -> None:
        with self._named():
            self._stream.write(_shown(text))

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Tell a stream that takes nothing apart from any other error. Raises Unwritable."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unwritable(self._stream, str(error.strerror)) from None

    def __getattr__(self, name: str) -> Any:  # fileno, isatty, encoding and the like
        return getattr(self._stream, name)


def _shown(text: str) -> str:
    """Return a text with secrets redacted; JSON remains JSON."""
    if not text.strip():
        return text
    from kimi_nb.core import known_secrets  # start-up: --version needs none of its patterns

    shown = known_secrets.text(text)
    if shown == text or text[:1] not in ("{", "[") or _parsed(shown) is not None:
        return shown
    facts = _parsed(text)  # a number, or a form that ends beyond a quotation mark
    return shown if facts is None else json.dumps(known_secrets.value(facts), indent=2)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
