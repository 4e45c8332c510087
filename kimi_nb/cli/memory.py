"""``kimi-nb memory``: the account of a device's memory, and what it was held against."""

from __future__ import annotations

import argparse

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "memory", help="what takes the memory of a device, term by term, and how sure that is"
    )
    options.target(parser, required=False)
    options.choices(parser)
    options.as_documented(parser)
    parser.add_argument(
        "--evidence",
        action="store_true",
        help="what public logs said, and what this model says of the same engines",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the terms of each kind of engine, or the evidence."""
    from kimi_nb.check import memory_account, memory_evidence

    if args.evidence:
        if args.model or args.hw or options.given_for_plans(args):
            raise ParameterError("memory: --evidence is about no plan; leave the others out.")
        if args.json:
            rows = [row.as_dict() for row in memory_evidence.rows()]
            print(plain_json(rows))
        else:
            print(memory_evidence.table())
        return 0
    if not (args.model and args.hw):
        raise ParameterError("memory: name --model and --hw of a plan, or --evidence.")
    found = memory_account.of(options.plan(args))
    if args.json:
        print(plain_json(found.as_dict()))
    else:
        print(found)
    return 0
