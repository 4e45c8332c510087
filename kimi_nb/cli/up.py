"""``kimi-nb up``: deploy a plan on the user's site."""

from __future__ import annotations

import argparse
import json
import sys
import time

from kimi_nb.cli import options, output, signals
from kimi_nb.show import plain_json, say, visible

_LEFT = (
    "What was started is left as it is: kimi-nb logs shows it, kimi-nb up {resume} goes on, "
    "kimi-nb down cleans up."
)


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "up", help="run the scripts on the site: shows what changes, acts, waits for completions"
    )
    options.target(parser)
    options.choices(parser)
    options.as_documented(parser)
    parser.add_argument(
        "--confirm",
        default="",
        metavar="SITE",
        help="the site's name: without it nothing is changed",
    )
    parser.add_argument("--dry-run", action="store_true", help="look and say what would change")
    parser.add_argument(
        "--resume", action="store_true", help="go on at the step at which the last call failed"
    )
    parser.add_argument(
        "--checksums",
        action="store_true",
        help="read every byte of the weights where checksums are known",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="download the weights that a node lacks; without it they are named, and nothing changes",
    )
    parser.add_argument(
        "--no-host-settings",
        action="store_true",
        help="leave kernel settings, governor and packages of the hosts, which need root, as they are",
    )
    parser.add_argument(
        "--force", action="store_true", help="deploy it in spite of errors that the rules find"
    )
    parser.add_argument(
        "--run-dir", default="", metavar="DIR", help="where results go (default: runs/<model>-<hw>)"
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Show the changes and, if confirmed, deploy; return 1 if a step failed."""
    from kimi_nb.deploy import lifecycle
    from kimi_nb.deploy.steps import StepFailed, together

    begun = time.monotonic()
    signals.end_like_ctrl_c()
    plan = options.plan(args)
    lifecycle.check_addresses(plan)
    if not output.allowed(plan, args.force, "deployed"):
        return 1
    folder = options.run_folder(args, plan)
    if args.confirm and not args.dry_run:  # a wrong name is told before any node is asked
        lifecycle.check_confirmed(plan, args.confirm)
    if args.dry_run or not args.confirm:
        try:
            changes, diff = lifecycle.preview(
                plan,
                folder,
                checksums=args.checksums,
                download=args.download,
                leave_host=args.no_host_settings,
            )
        except StepFailed as error:
            return output.failed(error, args.json)
        if args.json:
            print(
                json.dumps(
                    {"changes": [vars(one) for one in changes], "diff": diff, "failed": []},
                    indent=2,
                )
            )
        else:
            print(visible("\n".join([*([diff] if diff else []), *together(changes)])))
            say(f"{len(changes)} changes" if changes else "no change")
        if args.dry_run:
            return 0
    left = _LEFT.format(resume="--resume --download" if args.download else "--resume")
    try:
        made = lifecycle.up(
            plan,
            folder,
            confirm=args.confirm,
            resume=args.resume,
            checksums=args.checksums,
            download=args.download,
            leave_host=args.no_host_settings,
            say=output.progress(begun),
        ).result
    except KeyboardInterrupt:
        print(f"kimi-nb: {left}", file=sys.stderr)
        raise
    if args.json:
        print(plain_json(made.as_dict(), default=str))
    else:
        print(visible(str(made)))
        if made.ok:
            say(f"It is up: {made.url}. kimi-nb status, logs, down look at it and end it.")
        elif not made.changes and not made.ready:
            say("Nothing was changed there by this call.")
        else:
            print(left)
    return 0 if made.ok else 1
