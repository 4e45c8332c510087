"""``kimi-nb explain``: print the page of a rule."""

from __future__ import annotations

import argparse

from kimi_nb.cli import options
from kimi_nb.show import plain_json, visible


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("explain", help="a rule: what breaks, an example, the source")
    parser.add_argument("rule", metavar="RULE", help="topology/ranks, ... (kimi-nb list --rules)")
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the page of the rule; raise ParameterError if there is no such rule."""
    from kimi_nb.check import rule_pages
    from kimi_nb.check.rules import registry

    rule = registry.find(args.rule)
    if args.json:
        print(plain_json(rule_pages.as_dict(rule)))
    else:
        print(visible(rule_pages.page(rule)), end="")
    return 0
