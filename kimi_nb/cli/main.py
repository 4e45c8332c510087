"""Parse the command line of ``kimi-nb``, dispatch to a command, report its errors."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from kimi_nb import __version__
from kimi_nb.cli import redacted_streams
from kimi_nb.core import extras
from kimi_nb.core.errors import KimiError, short
from kimi_nb.i18n import current, translate
from kimi_nb.show import visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite
    from typing_extensions import Buffer

# The command modules, in the order in which --help lists them.
COMMANDS = (
    "list",
    "plan",
    "size",
    "check",
    "explain",
    "catalog",
    "versions",
    "site",
    "rehearse",
    "drill",
    "up",
    "status",
    "logs",
    "down",
    "verify",
    "doctor",
    "memory",
    "published",
    "upstream",
    "bench",
    "calibrate",
    "run",
    "report",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0 for success, 1 for a failed run, 2 for a usage error.
    """
    words = sys.argv[1:] if argv is None else argv
    _lose_progress()
    _write_anything()
    try:
        with redacted_streams.redacted():
            return _reported(words)
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        _drop(sys.stdout)
        return 141
    except redacted_streams.Unwritable as error:
        _drop(error.stream)
        if error.stream is not sys.stderr:
            said = translate(f"the output cannot be written: {error}.")
            print(f"kimi-nb: {said}", file=sys.stderr)
        return 2


def _reported(words: Sequence[str]) -> int:
    """Run a command and print what goes wrong; return the exit code."""
    try:
        try:
            return _run(words)
        finally:  # also after --help, which ends the program
            sys.stdout.flush()
    except KimiError as error:
        print(f"kimi-nb: {visible(translate(str(error)))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"kimi-nb: {translate('interrupted')}", file=sys.stderr)
        return 130


def _run(words: Sequence[str]) -> int:
    # Import the others only for --help and errors: that keeps start-up short.
    names = words[:1] if set(words[:1]) & set(COMMANDS) else COMMANDS
    commands = {name: import_module(f"kimi_nb.cli.{name}") for name in names}
    parser = _Parser(
        prog="kimi-nb", description="Serve Moonshot Kimi with vLLM: plans, scripts and notebooks."
    )
    parser.add_argument("--version", action="version", version=f"kimi-nb {__version__}")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in commands.values():
        command.add(parsers)
    args = parser.parse_args(words)
    with extras.command(args.command):
        return commands[args.command].run(args)


class _Lossy(io.FileIO):
    """A file that drops what cannot be written to it, such as on a full disk."""

    def write(self, data: Buffer) -> int:
        """Write, or drop; return the number of bytes. Raises BrokenPipeError."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(data).nbytes


def _lose_progress() -> None:
    """Let a command go on, and keep its exit code, where nobody can read its progress or error."""
    stream = sys.__stderr__
    if stream is None or sys.stderr is not stream or stream.isatty():
        return
    file = io.BufferedWriter(_Lossy(stream.fileno(), "wb", closefd=False))
    sys.stderr = io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)


def _write_anything() -> None:
    """Escape what a terminal or a pipe cannot show (LC_ALL=C), in place of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def _drop(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere, so that Python does not complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Formatter(argparse.HelpFormatter):
    """A help formatter that breaks lines of Chinese, which have no blanks, by their width."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Add the usage; its word in the current language."""
        word = f"{translate('usage')}: " if prefix is None else prefix
        super().add_usage(usage, actions, groups, word)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return super()._split_lines(text, width) if text.isascii() else _broken(text, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.isascii():
            return super()._fill_text(text, width, indent)
        return "\n".join(indent + line for line in _broken(text, width - len(indent)))


def _broken(text: str, width: int) -> list[str]:
    from wcwidth import wrap  # start-up: only for such a text

    return list(wrap(text, width))


class _Parser(argparse.ArgumentParser):
    """An argument parser that accepts no abbreviated options, also in every command.

    An abbreviation can become ambiguous, or mean something else, when an option is added.
    It speaks the current language.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options}, allow_abbrev=False)

    def format_help(self) -> str:
        """Return the help in the current language; the catalogue is read only then."""
        if current() != "en":
            self.description = self.description and translate(self.description)
            self.epilog = self.epilog and translate(self.epilog)
            for group in self._action_groups:
                group.title = group.title and translate(group.title)
            for action in self._actions:
                listed = getattr(action, "_choices_actions", ())
                for one in (action, *listed):
                    one.help = one.help and translate(one.help)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """End with a message, which repeats the words of the caller: on one screen."""
        self.print_usage(sys.stderr)
        text = short(translate(message), 1000)
        self.exit(2, f"{self.prog}: {translate('error')}: {text}\n")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write a message; argparse's own way says nothing where it cannot be written."""
        (file or sys.stderr).write(message)
