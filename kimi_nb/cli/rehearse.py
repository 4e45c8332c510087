"""``kimi-nb rehearse``: run the scripts of a plan on this machine, with stand-ins."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from kimi_nb.cli import options, output, signals
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json, visible

if TYPE_CHECKING:
    from kimi_nb.plan.spec import Plan
    from kimi_nb.rehearse.rehearsal import Make


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "rehearse", help="run the scripts here, on stand-ins for engines and accelerators"
    )
    options.target(parser)
    options.choices(parser)
    parser.add_argument(
        "--as-documented",
        action="store_true",
        help="rehearse the document's commands as they were published",
    )
    parser.add_argument(
        "--as",
        dest="form",
        choices=("scripts", "kubernetes"),
        help="rehearse the scripts of nodes, or the objects of Kubernetes (default: what the site "
        "deploys)",
    )
    parser.add_argument(
        "--fault",
        default="",
        metavar="NAME[@ENGINE]",
        help="make something go wrong (kimi-nb list --faults)",
    )
    parser.add_argument(
        "--force", action="store_true", help="rehearse it in spite of errors that the rules find"
    )
    parser.add_argument(
        "--run-dir",
        default="",
        metavar="DIR",
        help="where logs and results go (default: runs/<model>-<hw>)",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Rehearse the plan and print the result; return 1 if it failed."""
    from kimi_nb.rehearse import rehearsal

    begun = time.monotonic()
    signals.end_like_ctrl_c()
    plan, make = _documented(args) if args.as_documented else _planned(args)
    if not args.as_documented and not output.allowed(plan, args.force, "rehearsed"):
        return 1
    found = rehearsal.rehearse(
        plan,
        options.run_folder(args, plan),
        fault=args.fault,
        make=make,
        begun=begun,
        say=output.progress(begun),
    )
    if args.json:
        print(plain_json(found.as_dict()))
    else:
        print(visible(str(found)))
    return 0 if found.ok else 1


def _planned(args: argparse.Namespace) -> tuple[Plan, Make | None]:
    """Return the plan, and what makes its scripts: None for what the site deploys.

    Raises:
        ParameterError: Objects of Kubernetes are asked for where the site has no cluster.
    """
    plan = options.plan(args)
    if plan.request.site.kubernetes is None:
        if args.form == "kubernetes":
            raise ParameterError(
                f"rehearse: --as kubernetes: site {plan.site} has transport {plan.transport}; name one "
                "with transport kubernetes (--site a3-kubernetes is an example)."
            )
        return plan, None
    from kimi_nb.rehearse import rehearsal

    return plan, rehearsal.of_nodes if args.form == "scripts" else None


def _documented(args: argparse.Namespace) -> tuple[Plan, Make]:
    """Return the plan of a document and the function that makes its scripts.

    Raises:
        ParameterError: An option would change what the document has published.
    """
    from kimi_nb.rehearse import documented

    wrong = options.given_for_plans(args) + (["--fault"] if args.fault else [])
    if wrong:
        raise ParameterError(
            f"rehearse: {', '.join(wrong)} changes nothing of what a document has published."
        )
    published, own = documented.find(
        args.model, args.hw, args.layout or "", args.variant, args.engine_version
    )
    return documented.named(own), documented.maker(published)
