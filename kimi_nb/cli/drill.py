"""``kimi-nb drill``: practise failures. One is rehearsed, you name it, the doctor says what it was."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from kimi_nb.cli import options, output, signals
from kimi_nb.core.errors import ParameterError
from kimi_nb.show import plain_json, say, visible

if TYPE_CHECKING:
    from kimi_nb.drill.record import Drill
    from kimi_nb.plan.spec import Plan

_QUESTIONS = (
    ("node", "Which node was it (its number or name; empty: not sure)? "),
    ("rank", "Which rank (its number; none: the node as a whole; empty: not sure)? "),
    ("cause", "What was it (number, name or your own words; ? lists what there is)? "),
)


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "drill", help="practise failures: read the logs of one, name it, hear the doctor"
    )
    parser.add_argument(
        "fault",
        nargs="?",
        default="",
        metavar="FAULT[@ENGINE]",
        help="what goes wrong (--list); without an engine chance chooses it",
    )
    parser.add_argument(
        "--surprise", action="store_true", help="chance chooses what goes wrong, too (the default)"
    )
    parser.add_argument("--list", action="store_true", help="what a drill may be, with numbers")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="repeat what chance has chosen in another drill"
    )
    parser.add_argument(
        "--answer",
        default="",
        metavar="TEXT",
        help="answer without being asked: 'a3-1 rank 3 out of memory'; alone: of the newest drill",
    )
    parser.add_argument(
        "--show", action="store_true", help="only hear the doctor; alone: of the newest drill"
    )
    parser.add_argument(
        "--of", default="", metavar="DIR", help="with --answer or --show: the folder of a drill"
    )
    options.target(parser, required=False)
    options.choices(parser)
    parser.set_defaults(as_documented=False)  # `options.plan` asks
    parser.add_argument(
        "--force", action="store_true", help="drill on it in spite of errors that the rules find"
    )
    parser.add_argument(
        "--run-dir",
        default="",
        metavar="DIR",
        help="where the drills go (default: runs/<model>-<hw>)",
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Make a drill, or judge one; return 1 for an answer that is not right."""
    from kimi_nb.drill import answer, exercise

    _check(args)
    if args.list:
        table = answer.causes()
        named = {name: says for _, name, says in table.rows}
        print(json.dumps(named, indent=2) if args.json else table)
        return 0
    if not _makes_one(args):
        return _judge(_kept(args), args.answer, args.json)
    begun = time.monotonic()
    signals.end_like_ctrl_c()
    plan = _plan(args)
    if not output.allowed(plan, args.force, "rehearsed"):
        return 1
    if args.answer:  # what cannot be understood is told before anything is started
        nodes = list(dict.fromkeys(engine.node for engine in plan.engines))
        answer.parse(args.answer, nodes, {one.name: (one.node, one.rank) for one in plan.engines})
    drill = exercise.start(
        plan,
        options.run_folder(args, plan),
        fault=args.fault,
        seed=args.seed,
        say=output.progress(begun),
    )
    if args.answer or args.show:
        return _judge(drill, args.answer, args.json)
    if args.json:
        print(plain_json(drill.as_dict()))
        return 0
    print(visible(str(drill)))
    say(f"\nRead the logs. To answer later: kimi-nb drill --answer '...' --of {drill.folder}")
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return 0
    return _judge(drill, _asked(drill), False)


def _check(args: argparse.Namespace) -> None:
    """Refuse words that do not fit together. Raises ParameterError."""
    if args.fault and args.surprise:
        raise ParameterError(f"drill: {args.fault} and --surprise are two drills; ask for one.")
    if args.answer and args.show:
        raise ParameterError("drill: --answer is judged, --show needs none; give one of them.")
    if args.of and not (args.answer or args.show):
        raise ParameterError("drill: --of names a drill for --answer or --show; give one of them.")
    if args.of and (args.fault or args.surprise):
        raise ParameterError("drill: --of names a drill that was made; no other one is made then.")


def _makes_one(args: argparse.Namespace) -> bool:
    return bool(args.fault or args.surprise or not (args.answer or args.show))


def _plan(args: argparse.Namespace) -> Plan:
    """Return the plan that is chosen; where nothing is, one that can have every fault."""
    from kimi_nb.drill import exercise

    chosen = (args.model, args.hw, args.layout, args.variant, args.engine_version)
    if not any(chosen) and not options.given_for_plans(args):
        return exercise.default_plan()
    args.model, args.hw = args.model or exercise.MODEL, args.hw or exercise.HARDWARE
    return options.plan(args)


def _kept(args: argparse.Namespace) -> Drill:
    """Return the drill that is meant: ``--of``, or the newest one."""
    from kimi_nb.drill import record
    from kimi_nb.notebook.start import runs_folder
    from kimi_nb.params import load

    if args.of:
        return record.read(load.user_path(args.of, "--of"))
    return record.find(load.user_path(args.run_dir, "--run-dir") if args.run_dir else runs_folder())


def _judge(drill: Drill, said: str, as_json: bool) -> int:
    from kimi_nb.drill import verdict

    found = verdict.judge(drill, said)
    if as_json:
        facts = {"folder": str(drill.folder), **found.as_dict()}
        print(plain_json(facts))
    else:
        print(visible(str(found)))
    return 0 if found.ok or not said else 1


def _asked(drill: Drill) -> str:
    """Ask for node, rank and cause in the terminal; return them as one answer, "" for none."""
    print("\n" + "  ".join(f"{at} {node}" for at, node in enumerate(drill.nodes, 1)))
    said: list[str] = []
    for key, question in _QUESTIONS:
        try:
            words = _understood(drill, key, question)
        except EOFError:
            print()
            break
        if words:
            said.append(f"{key}={words}")
    return " ".join(said)


def _understood(drill: Drill, key: str, question: str) -> str:
    """Ask until the words can be understood, and return them."""
    from kimi_nb.drill import answer

    while True:
        words = input(question).strip()
        if key == "cause" and words == "?":
            print(answer.causes())
            continue
        try:
            if words:
                answer.parse(f"{key}={words}", drill.nodes)
        except ParameterError as error:
            print(visible(str(error)))
            continue
        return words
