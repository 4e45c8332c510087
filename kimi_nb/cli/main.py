"""Parse the command line of ``kimi-nb``, dispatch to a command, report its errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from kimi_nb import __version__
from kimi_nb.core import extras
from kimi_nb.core.errors import KimiError
from kimi_nb.show import visible

# The command modules, in the order in which --help lists them.
COMMANDS = (
    "list",
    "plan",
    "check",
    "catalog",
    "site",
    "rehearse",
    "up",
    "status",
    "logs",
    "down",
    "verify",
    "doctor",
    "memory",
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
    try:
        with extras.command(args.command):
            return commands[args.command].run(args)
    except KimiError as error:
        print(f"kimi-nb: {visible(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("kimi-nb: interrupted", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    """An argument parser that accepts no abbreviated options, also in every command.

    An abbreviation can become ambiguous, or mean something else, when an option is added.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)
