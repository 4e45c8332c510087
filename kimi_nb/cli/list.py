"""``kimi-nb list``: list the recipes, the rules or the faults."""

from __future__ import annotations

import argparse
import json
from typing import Any

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
    from kimi_nb.plan import combinations, known_combinations

    there = known_combinations.everything()
    wanted = {key: _known(key, value, there["cells"]) for key, value in wanted.items()}

    def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            row for row in rows if all(row[key] == wanted[key] for key in wanted if wanted[key])
        ]

    rows, cells = chosen(there["recipes"]), chosen(there["cells"])
    if as_json:
        print(json.dumps({"recipes": rows, "cells": cells}, indent=2))
        return
    verdicts = [combinations.Verdict(**cell) for cell in cells]
    if why:
        print(combinations.reasons(verdicts))
        return
    print(combinations.recipes(rows))
    print()
    print(combinations.matrix(verdicts))


def _known(key: str, given: str, cells: list[dict[str, Any]]) -> str:
    """Return the name of a model, a hardware or a layout, in whatever spelling it was given."""
    names = list(dict.fromkeys(cell[key] for cell in cells))
    if not given or given in names:
        return given
    if key != "layout":
        from kimi_nb.params import load  # start-up: only for another spelling

        kind = "models" if key == "model" else key
        names, given = load.names(kind), load.canonical(kind, given)
    if given not in names:
        raise ParameterError(choice(key, given, names))
    return given
