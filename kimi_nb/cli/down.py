"""``kimi-nb down``: stop a deployment and clean up."""

from __future__ import annotations

import argparse
import json

from kimi_nb.cli import options, output, signals
from kimi_nb.show import say, visible


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("down", help="stop a deployment and clean up")
    options.deployment(parser)
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Stop the deployment and print the changes; return 1 if a step failed.

    It is 1 too where another run holds a node.
    """
    from kimi_nb.deploy import lifecycle
    from kimi_nb.deploy.steps import StepFailed, together

    signals.end_like_ctrl_c()
    journal = options.journal(args)
    if not args.run and journal.state == "down" and not args.json:
        say(f"Nothing is up: {journal.plan} on {journal.site}, the last, is down.")
        say(f"kimi-nb down {journal.folder} looks there again.")
        return 0
    try:
        outcome = lifecycle.down(journal)
    except StepFailed as error:
        if not args.json:
            for line in together(error.outcome.changes):
                print(visible(line))
        return output.failed(error, args.json)
    others = any(one.what.startswith("claim: left alone") for one in outcome.warnings)
    if args.json:
        say(
            json.dumps(
                {
                    "changes": [vars(one) for one in outcome.changes],
                    "warnings": [vars(one) for one in outcome.warnings],
                    "failed": [],
                },
                indent=2,
            )
        )
    else:
        for line in together((*outcome.changes, *outcome.warnings)):
            print(visible(line))
        if others and outcome.changes:
            say(
                f"{journal.plan} on {journal.site} is down, but for the nodes that another run holds."
            )
        elif others:
            say(
                f"This run of {journal.plan} holds nothing there. What runs belongs to another run: "
                "kimi-nb down with the folder of that one ends it."
            )
        else:
            say(
                f"{journal.plan} on {journal.site} is down"
                + ("." if outcome.changes else ": no change.")
            )
    return 1 if others else 0
