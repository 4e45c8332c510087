"""``kimi-nb list``: list the recipes, the rules or the faults."""

from __future__ import annotations

import argparse
import json

from kimi_nb.cli import options
from kimi_nb.core.errors import ParameterError, choice


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("list", help="what there is: model x hardware x layout")
    parser.add_argument("--rules", action="store_true", help="the rules of kimi-nb check")
    parser.add_argument(
        "--faults", action="store_true", help="what kimi-nb rehearse can make go wrong"
    )
    parser.add_argument(
        "--why",
        action="store_true",
        help="why a combination is documented, derived or impossible: source, base, or the sum",
    )
    for name, what in (("model", "a model"), ("hw", "a hardware"), ("layout", "single, dp or pd")):
        parser.add_argument(f"--{name}", default="", help=f"only the recipes of {what}")
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the recipes, the rules or the faults."""
    if args.rules and args.faults:
        raise ParameterError("list: --rules and --faults are two lists; ask for one.")
    if args.why and (args.rules or args.faults):
        raise ParameterError("list: --why is about recipes; ask for it alone.")
    wanted = {"model": args.model, "hardware": args.hw, "layout": args.layout}
    if any(wanted.values()) and (args.rules or args.faults):
        raise ParameterError(
            "list: --model, --hw and --layout choose recipes, not rules or faults."
        )
    if args.faults:
        _faults(args.json)
    elif args.rules:
        _rules(args.json)
    else:
        _recipes(args.json, args.why, wanted)
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


def _recipes(as_json: bool, why: bool, wanted: dict[str, str]) -> None:
    import dataclasses

    from kimi_nb.params import fields, load, recipes
    from kimi_nb.plan import derivation, tables

    for key, kind in (("model", "models"), ("hardware", "hardware")):
        wanted[key] = load.canonical(kind, wanted[key])
        if wanted[key] and wanted[key] not in load.names(kind):
            raise ParameterError(choice(key, wanted[key], load.names(kind)))
    if wanted["layout"] and wanted["layout"] not in fields.LAYOUTS:
        raise ParameterError(choice("layout", wanted["layout"], fields.LAYOUTS))
    cells = derivation.cells(**wanted)
    rows = [
        row
        for row in recipes.listing()
        if all(value in ("", row[key]) for key, value in wanted.items())
    ]
    if as_json:
        print(
            json.dumps({"recipes": rows, "cells": list(map(dataclasses.asdict, cells))}, indent=2)
        )
        return
    if why:
        print(tables.reasons(cells))
        return
    print(tables.recipes(rows))
    print()
    print(tables.matrix(cells))
