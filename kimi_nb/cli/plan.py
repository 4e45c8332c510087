"""``kimi-nb plan``: show one deployment, or write its scripts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kimi_nb.cli import options, output
from kimi_nb.core.errors import ParameterError
from kimi_nb.i18n import translate
from kimi_nb.show import say, visible

if TYPE_CHECKING:
    from kimi_nb.plan.spec import Plan


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("plan", help="one deployment: engines, router, scripts")
    options.target(parser)
    options.choices(parser)
    options.as_documented(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write the bundle to DIR, unless a rule finds an error"
    )
    parser.add_argument(
        "--force", action="store_true", help="with --out: write it in spite of errors"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show every setting with its layer, source and meaning",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan and, with ``--out``, write its bundle; return 1 if errors prevent that."""
    from kimi_nb.bundle import scripts, writer
    from kimi_nb.params import load
    from kimi_nb.plan import tables

    if args.force and args.out is None:
        raise ParameterError("plan: --force says nothing without --out DIR.")
    plan = options.plan(args)
    if args.out is not None and not output.allowed(plan, args.force, "written"):
        return 1
    files = scripts.files(plan) if args.json or args.out is not None else {}
    if args.out is not None:
        changes = writer.write(files, load.user_path(args.out, "--out"))
    if args.json:
        from kimi_nb.check import fault_facts, judge  # start-up: only for JSON

        bars = judge.memory_of(judge.of_plan(plan))
        faults = [fault.as_dict() | {"roles": roles} for fault, roles in fault_facts.of_plan(plan)]
        print(plan.as_json(files, memory=[bar.as_dict() for bar in bars], known_faults=faults))
        return 0
    print(tables.topology(plan))
    say(
        f"\n{plan.title}. {plan.engine} {plan.engine_version}, front door {plan.url}, "
        f"model name {plan.served_name}."
    )
    if args.explain:
        if plan.derived:
            print(f"\n{tables.derivation(plan)}")
        print(f"\n{tables.settings(plan)}\n\n{tables.errata(plan)}\n\n{tables.sources(plan)}")
    for note in plan.notes:
        print(f"{translate('note')}: {visible(translate(note))}")
    _known_faults(plan)
    say(
        f"{len(plan.errata)} differences from the documents"
        + ("." if args.explain else ": --explain shows each, with every setting.")
    )
    say(f"errata on: {', '.join(entry['id'] for entry in plan.errata) or 'none'}")
    if plan.errata_off:
        say(f"errata off, as published: {', '.join(plan.errata_off)}")
    if args.out is not None:
        say(
            f"{len(files)} files in {args.out}"
            + (f", {len(changes)} new or changed." if changes else ": no change.")
        )
    else:
        say("--out DIR writes the scripts.")
    say("kimi-nb check, with the same words, asks the rules of it.")
    return 0


def _known_faults(plan: Plan) -> None:
    """Print the known faults that a plan meets; those that are notes are only counted."""
    from kimi_nb.check import fault_facts  # start-up: not for JSON

    told = fault_facts.of_plan(plan)
    for fault, roles in told:
        if fault.severity != "note":
            say(
                f"{translate(fault.severity)}: known fault {fault.id} ({', '.join(roles)}):",
                fault.symptom,
                f"({translate(fault.range)}).",
                f"Way out: {fault.way_out}." if fault.way_out else "",
                fault.source,
            )
    if notes := sum(fault.severity == "note" for fault, _ in told):
        say(f"{notes} known fault{'s' * (notes != 1)} as a note: kimi-nb check tells them.")
