"""``kimi-nb run``: execute the notebooks without a browser."""

from __future__ import annotations

import argparse
import os
import sys

from kimi_nb.cli import options, signals
from kimi_nb.i18n import translate


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("run", help="execute the notebooks that apply")
    options.target(parser)
    options.derive(parser)
    parser.add_argument("--only", metavar="03,05", help="these notebooks only")
    parser.add_argument(
        "--language", default="", metavar="en|zh", help="the notebooks and the report of a language"
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="N notebooks at a time")
    parser.add_argument(
        "--run-dir",
        default="",
        metavar="DIR",
        help="where results go (default: runs/<utc>-<model>-<hw>)",
    )


def run(args: argparse.Namespace) -> int:
    """Execute the notebooks and print the outcome; return 1 if one failed."""
    from kimi_nb.notebook import runbook, start

    start.use_language(args.language)
    signals.end_like_ctrl_c()
    try:
        outcome = runbook.run(
            args.model,
            args.hw,
            only=args.only,
            jobs=args.jobs,
            site=args.site,
            run_dir=args.run_dir,
            derive=args.derive,
        )
    except KeyboardInterrupt:
        print(f"kimi-nb: {translate('interrupted')}", file=sys.stderr, flush=True)
        # All is written. The interpreter's own end would collect what the kernels have left, and
        # may wait for ever for a socket among it.
        os._exit(130)
    print(outcome)
    return 0 if outcome.ok else 1
