"""The commands of ``kimi-nb`` that touch a site: up, status, logs, down."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from kimi_nb.show.values import visible


def add(commands: Any, target: Any, choices: Any) -> None:
    """Add the commands to a parser's; ``target`` and ``choices`` add the words of a plan."""
    up = commands.add_parser(
        "up",
        help="run the scripts on the site: shows what changes, acts, waits for completions",
        allow_abbrev=False,
    )
    target(up)
    choices(up)
    up.add_argument(
        "--confirm",
        default="",
        metavar="SITE",
        help="the site's name: without it nothing is changed",
    )
    up.add_argument("--dry-run", action="store_true", help="look and say what would change")
    up.add_argument(
        "--resume", action="store_true", help="go on at the step at which the last call failed"
    )
    up.add_argument(
        "--checksums",
        action="store_true",
        help="read every byte of the weights where checksums are known",
    )
    up.add_argument(
        "--run-dir", default="", metavar="DIR", help="where results go (default: runs/<model>-<hw>)"
    )
    up.add_argument("--json", action="store_true", help="one JSON document on stdout")
    up.set_defaults(call=_up)
    for name, help_, call in (
        ("status", "every engine of a deployment: node, rank, port, state, last error", _status),
        ("logs", "the logs of all ranks, each line with its rank", _logs),
        ("down", "stop a deployment and clean up", _down),
    ):
        parser = commands.add_parser(name, help=help_, allow_abbrev=False)
        parser.add_argument(
            "run",
            nargs="?",
            default="",
            metavar="RUN",
            help="a run's folder (default: the deployment that is not down)",
        )
        if name == "logs":
            parser.add_argument(
                "--no-follow", action="store_true", help="what there is, and no more"
            )
        else:
            parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
        parser.set_defaults(call=call)


def _up(args: argparse.Namespace) -> int:
    from kimi_nb.cli.main import end_like_ctrl_c
    from kimi_nb.deploy import lifecycle as deploy
    from kimi_nb.deploy.steps import StepFailed, together
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load as params
    from kimi_nb.plan import build

    begun = time.monotonic()
    end_like_ctrl_c()
    plan = build.plan(
        args.model,
        args.hw,
        args.layout,
        scenario=args.scenario,
        variant=args.variant,
        site=args.site,
        chosen=args.chosen,
        dropped=args.dropped,
        pairs=args.pairs,
        engine_version=args.engine_version,
    )
    plan.check()
    folder = (
        params.user_path(args.run_dir, "--run-dir")
        if args.run_dir
        else runs_folder() / f"{plan.model}-{plan.hardware}"
    ).absolute() / plan.name

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:5.1f} s  {visible(text)}", file=sys.stderr, flush=True)

    if args.confirm and not args.dry_run:  # a wrong name is told before any node is asked
        deploy.check_confirmed(plan, args.confirm)
    if args.dry_run or args.confirm != plan.site:
        try:
            changes, diff = deploy.preview(plan, folder, checksums=args.checksums)
        except StepFailed as error:
            return _failed(error, args.json)
        if args.json:
            print(
                json.dumps(
                    {"changes": [vars(one) for one in changes], "diff": diff, "failed": []},
                    indent=2,
                )
            )
        else:
            print(visible("\n".join([*([diff] if diff else []), *together(changes)])))
            print(f"{len(changes)} changes" if changes else "no change")
        if args.dry_run:
            return 0
    made = deploy.up(
        plan, folder, confirm=args.confirm, resume=args.resume, checksums=args.checksums, say=say
    ).result
    if args.json:
        print(json.dumps(made.as_dict(), indent=2, ensure_ascii=False, default=str))
    else:
        print(visible(str(made)))
        if made.ok:
            print(f"It is up: {made.url}. kimi-nb status, logs, down look at it and end it.")
        elif not made.changes and not made.ready:
            print("Nothing was changed there by this call.")
        else:
            print(
                "What was started is left as it is: kimi-nb logs shows it, kimi-nb up --resume "
                "goes on, kimi-nb down cleans up."
            )
    return 0 if made.ok else 1


def _failed(error: Any, as_json: bool) -> int:
    """Say what could not be done, and what was; 1."""
    if as_json:
        print(
            json.dumps(
                {
                    "changes": [vars(one) for one in error.outcome.changes],
                    "step": error.step,
                    "failed": [one.as_dict() for one in error.failed],
                },
                indent=2,
            )
        )
    print(f"kimi-nb: {visible(str(error))}", file=sys.stderr)
    return 1


def _journal(args: argparse.Namespace) -> Any:
    from kimi_nb.deploy import journal
    from kimi_nb.notebook.start import runs_folder

    return journal.find(args.run, runs_folder())


def _status(args: argparse.Namespace) -> int:
    from kimi_nb.cli.main import end_like_ctrl_c
    from kimi_nb.deploy import lifecycle as deploy

    end_like_ctrl_c()
    states, tables = deploy.status(_journal(args))
    if args.json:
        print(json.dumps([vars(one) for one in states], indent=2))
    else:
        print(visible("\n\n".join(map(str, tables))))
    return 0 if all(one.state == "ready" for one in states) else 1


def _logs(args: argparse.Namespace) -> int:
    from kimi_nb.cli.main import end_like_ctrl_c
    from kimi_nb.deploy import lifecycle as deploy

    end_like_ctrl_c()
    journal = _journal(args)
    if journal.state == "down":
        return _copies(journal.folder / "logs")
    with deploy.target(journal.kept_plan(), journal) as site:
        for who, line in site.follow(lambda: args.no_follow):
            print(f"{visible(who)} | {visible(line)}", flush=True)
    return 0


def _copies(folder: Path) -> int:
    """The logs of a deployment that has ended, as they were read: its nodes have others now."""
    for path in sorted(folder.rglob("*.log")):
        node = "" if path.parent == folder else f"{path.parent.name} "
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            print(f"{visible(node + path.stem)} | {visible(line)}")
    return 0


def _down(args: argparse.Namespace) -> int:
    from kimi_nb.cli.main import end_like_ctrl_c
    from kimi_nb.deploy import lifecycle as deploy
    from kimi_nb.deploy.steps import StepFailed, together

    end_like_ctrl_c()
    journal = _journal(args)
    try:
        outcome = deploy.down(journal)
    except StepFailed as error:
        return _failed(error, args.json)
    if args.json:
        print(
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
        print(
            f"{journal.plan} on {journal.site} is down"
            + ("." if outcome.changes else ": no change.")
        )
    return 0
