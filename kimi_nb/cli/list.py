"""``kimi-nb list``: list the recipes, the rules or the faults."""

from __future__ import annotations

import argparse
import json

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("list", help="what there is: model x hardware x layout")
    parser.add_argument("--rules", action="store_true", help="the rules of kimi-nb check")
    parser.add_argument(
        "--faults", action="store_true", help="what kimi-nb rehearse can make go wrong"
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the recipes, the rules or the faults."""
    if args.rules and args.faults:
        raise ParameterError("list: --rules and --faults are two lists; ask for one.")
    if args.faults:
        _faults(args.json)
    elif args.rules:
        _rules(args.json)
    else:
        _recipes(args.json)
    return 0


def _faults(as_json: bool) -> None:
    from kimi_nb.rehearse import faults

    if as_json:
        print(json.dumps({name: kind.says for name, kind in faults.FAULTS.items()}, indent=2))
    else:
        print(faults.table())


def _rules(as_json: bool) -> None:
    from kimi_nb.check.rules import registry

    known = list(registry.all_rules().values())
    if as_json:
        print(json.dumps([registry.as_dict(one) for one in known], indent=2))
    else:
        print(registry.table(known))


def _recipes(as_json: bool) -> None:
    from kimi_nb.params import recipes
    from kimi_nb.plan import tables

    rows, missing = recipes.listing(), recipes.missing()
    if as_json:
        print(json.dumps({"recipes": rows, "missing": missing}, indent=2))
        return
    print(tables.recipes(rows))
    print()
    print(tables.matrix(rows, missing, recipes.container_only()))
