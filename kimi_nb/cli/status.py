"""``kimi-nb status``: show the state of every engine of a deployment."""

from __future__ import annotations

import argparse
import json

from kimi_nb.cli import options, signals
from kimi_nb.show import visible


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "status", help="every engine of a deployment: node, rank, port, state, last error"
    )
    options.deployment(parser)
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the states; return 1 if an engine is not ready, or the last `up` did not end well."""
    from kimi_nb.deploy import lifecycle

    signals.end_like_ctrl_c()
    journal = options.journal(args)
    states, tables = lifecycle.status(journal)
    if args.json:
        print(json.dumps([vars(one) for one in states], indent=2))
    else:
        print(visible("\n\n".join(map(str, tables))))
    up = journal.state == "up" and all(one.state == "ready" for one in states)
    return 0 if up else 1
