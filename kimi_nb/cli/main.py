"""Parse the command line of ``kimi-nb``, dispatch to a command, report its errors."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kimi_nb import __version__
from kimi_nb.core import extras
from kimi_nb.core.errors import KimiError
from kimi_nb.show import visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# The command modules, in the order in which --help lists them.
COMMANDS = (
    "list",
    "plan",
    "check",
    "explain",
    "catalog",
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
    _write_anything()
    try:
        try:
            return _run(words)
        finally:  # also after --help, which ends the program
            sys.stdout.flush()
    except KimiError as error:
        print(f"kimi-nb: {visible(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining at its exit.
        _drop_output()
        return 141
    except OSError as error:
        if _is_writable():
            raise
        _drop_output()
        print(f"kimi-nb: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("kimi-nb: interrupted", file=sys.stderr)
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


def _write_anything() -> None:
    """Escape what a terminal or a pipe cannot show (LC_ALL=C), in place of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


def _is_writable() -> bool:
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return False
    return True


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """An argument parser that accepts no abbreviated options, also in every command.

    An abbreviation can become ambiguous, or mean something else, when an option is added.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Write a message; argparse's own way says nothing where it cannot be written."""
        (file or sys.stderr).write(message)
