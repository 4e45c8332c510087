"""``kimi-nb doctor``: find the first cause of a failure in the logs."""

from __future__ import annotations

import argparse
import json
import sys

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import visible


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "doctor", help="why it failed: the first cause in the logs of all ranks"
    )
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="logs, folders of logs, .gz too; - is stdin"
    )
    parser.add_argument(
        "--plan",
        default="",
        metavar="PATH",
        help="a bundle, its plan.json or a run's folder: names node and devices",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Examine the logs and print the diagnosis; return 1 if something failed."""
    from kimi_nb.diagnose import doctor

    paths = args.paths
    if not paths:
        if sys.stdin is None or sys.stdin.isatty():
            raise ParameterError(
                "doctor: name logs or folders of logs (kimi-nb doctor PATH...), "
                "or send a log to stdin."
            )
        paths = ["-"]
    found = doctor.examine(paths, args.plan or None)
    print(
        json.dumps(found.as_dict(), indent=2, ensure_ascii=False)
        if args.json
        else visible(str(found))
    )
    return 0 if found.ok else 1
