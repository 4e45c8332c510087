"""``kimi-nb size``: search which deployments keep a promise, before a device is spent."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_nb.cli import options
from kimi_nb.core import scratch
from kimi_nb.core.errors import ParameterError, WriteError, short
from kimi_nb.show import plain_json, say

if TYPE_CHECKING:
    from kimi_nb.sizing.factors import Factors
    from kimi_nb.sizing.request_load import Workload
    from kimi_nb.sizing.sizing_answer import Answer


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "size", help="which layout, sizes and limits keep a latency, by a model of time"
    )
    options.target(parser)
    parser.add_argument("--nodes", type=int, help="nodes to use (default: those of --site, else 1)")
    parser.add_argument("--layout", default="", help="only this layout: single, dp or pd")
    parser.add_argument("--input", type=int, metavar="N", help="tokens of a prompt")
    parser.add_argument("--output", type=int, metavar="N", help="tokens of an answer")
    parser.add_argument(
        "--lengths",
        default="",
        metavar="IN:OUT:WEIGHT,..",
        help="a distribution of lengths, in place of them: 1000:200:0.9,60000:800:0.1",
    )
    parser.add_argument(
        "--trace", default="", metavar="FILE", help="requests as JSON lines, in place of lengths"
    )
    parser.add_argument(
        "--rate", type=float, default=None, metavar="R", help="requests a second to carry"
    )
    parser.add_argument(
        "--prefix-hit",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of prompt tokens in the prefix cache, 0 to 1",
    )
    parser.add_argument("--ttft", default="", metavar="TIME", help="mean TTFT, such as 2s")
    parser.add_argument("--tpot", default="", metavar="TIME", help="mean TPOT, such as 50ms")
    parser.add_argument(
        "--results",
        default="",
        metavar="FOLDER",
        help="calibrate by what notebook 08 measured: the folder bench of a run's plan",
    )
    parser.add_argument(
        "--set",
        dest="pairs",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="of --results: what the measured plan was given with --set",
    )
    options.derive(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="write the options of ``plan`` for each point to DIR"
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print what keeps the bounds; return 1 if nothing does."""
    from kimi_nb.sizing import request_load, search
    from kimi_nb.sizing.points import Bounds

    bounds = Bounds(
        request_load.seconds("--ttft", args.ttft), request_load.seconds("--tpot", args.tpot)
    )
    told = search.answer(
        args.model,
        args.hw,
        _nodes(args),
        _load(args),
        bounds,
        layout=args.layout,
        derive=args.derive,
        site=args.site,
        table=_measured(args),
    )
    if args.out is not None:
        _write(told, args.out)
    if args.json:
        print(plain_json(told.as_dict()))
    else:
        print(told)
        for sentence in told.sentences():
            say(sentence)
    if not told.candidates:
        say("kimi-nb: nothing keeps the promise.", file=sys.stderr)
    return 0 if told.candidates else 1


def _measured(args: argparse.Namespace) -> Factors | None:
    """Return the factors that results of this site calibrate; None without results."""
    from kimi_nb.params import load

    if not args.results:
        if args.pairs:
            raise ParameterError("size: --set says nothing without --results FOLDER.")
        return None
    from kimi_nb.prove.tune import site_factors  # start-up: only with results

    return site_factors.of(load.user_path(args.results, "--results"), args.hw, args.pairs)


def _nodes(args: argparse.Namespace) -> int:
    from kimi_nb.params import load

    there = len(load.site(args.site).nodes) if args.site else 0
    if args.nodes is None:
        return there or 1
    if there and args.nodes > there:
        raise ParameterError(f"--nodes {args.nodes}: site {args.site} has {there}.")
    return int(args.nodes)


def _load(args: argparse.Namespace) -> Workload:
    from kimi_nb.sizing import workload_options

    rate = args.rate or 0.0
    if args.rate is not None and not 0 < args.rate < 1e6:
        raise ParameterError(f"--rate: requests a second above 0 are wanted, found {args.rate}.")
    if not 0 <= args.prefix_hit < 1:
        raise ParameterError(
            f"--prefix-hit: a share of 0 to less than 1 is wanted, found {args.prefix_hit}."
        )
    return workload_options.of(
        args.input,
        args.output,
        lengths=args.lengths,
        trace=args.trace,
        rate=rate,
        hit=args.prefix_hit,
    )


def _write(told: Answer, given: str) -> None:
    """Write the answer and, for each candidate and each point of the front, how to plan it."""
    from kimi_nb.params import load

    folder = load.user_path(given, "--out")
    texts = {"answer.json": told.as_dict()}
    for name, points in (("plan", told.candidates), ("front", told.front)):
        for number, one in enumerate(points, 1):
            texts[f"{name}-{number:02}.json"] = one.as_dict()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, value in texts.items():
            text = json.dumps(value, indent=2, ensure_ascii=False)
            new = scratch.beside(folder / name)
            try:
                scratch.write(new, f"{text}\n")
                new.replace(folder / name)
            finally:
                scratch.remove(new)
    except OSError as error:
        raise WriteError(f"--out {folder}: cannot be written: {short(error, 120)}.") from None
