"""``kimi-nb plan``: show one deployment, or write its scripts."""

from __future__ import annotations

import argparse

from kimi_nb.cli import options


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("plan", help="one deployment: engines, router, scripts")
    options.target(parser)
    options.choices(parser)
    parser.add_argument("--out", metavar="DIR", help="write the bundle to DIR")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show every setting with its layer, source and meaning",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan and, with ``--out``, write its bundle."""
    from kimi_nb.bundle import scripts, writer
    from kimi_nb.params import load
    from kimi_nb.plan import tables

    plan = options.plan(args)
    files = scripts.files(plan) if args.json or args.out is not None else {}
    if args.out is not None:
        changes = writer.write(files, load.user_path(args.out, "--out"))
    if args.json:
        print(plan.as_json(files))
        return 0
    print(tables.topology(plan))
    print(
        f"\n{plan.title}. {plan.engine} {plan.engine_version}, front door {plan.url}, "
        f"model name {plan.served_name}."
    )
    if args.explain:
        print(f"\n{tables.settings(plan)}\n\n{tables.errata(plan)}")
    for note in plan.notes:
        print(f"note: {note}")
    print(
        f"{len(plan.errata)} differences from the documents"
        + ("." if args.explain else ": --explain shows each, with every setting.")
    )
    if args.out is not None:
        print(
            f"{len(files)} files in {args.out}"
            + (f", {len(changes)} new or changed." if changes else ": no change.")
        )
    else:
        print("--out DIR writes the scripts.")
    print("kimi-nb check, with the same words, asks the rules of it.")
    return 0
