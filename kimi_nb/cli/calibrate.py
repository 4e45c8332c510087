"""``kimi-nb calibrate``: learn from an engine's log what the estimate of memory has wrong."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kimi_nb.cli import options
from kimi_nb.core import scratch
from kimi_nb.core.errors import ParameterError, WriteError

# A log's first part has the report; the rest is of requests.
_LARGEST = 256 << 20


def add(commands: options.Commands) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "calibrate", help="correct the account of memory by an engine's own log"
    )
    parser.add_argument(
        "logs", nargs="+", metavar="LOG", help="the logs of one engine's ranks, of one start"
    )
    options.target(parser)
    options.choices(parser)
    options.as_documented(parser)
    parser.add_argument("--role", default="", help="mixed, prefill or decode (layout pd)")
    parser.add_argument(
        "--out", metavar="FILE", help="write what was learnt, for --calibration FILE"
    )
    options.json_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print each term as estimated and as logged and, with ``--out``, write the layer."""
    from kimi_nb.check import memory_account
    from kimi_nb.params import load
    from kimi_nb.plan.memory import engine_report
    from kimi_nb.show import Table, plain_json, visible

    if args.calibrations:
        raise ParameterError("calibrate: --calibration would hide the estimate; leave it out.")
    paths = [load.user_path(name, "LOG") for name in args.logs]
    log = engine_report.join([engine_report.read(_lines(path), path.name) for path in paths])
    when = max(path.stat().st_mtime for path in paths)
    date = datetime.datetime.fromtimestamp(when, datetime.UTC).date().isoformat()
    learnt = memory_account.learn(options.plan(args), args.role, log, date)
    layer = learnt.layer.model_dump(mode="json")
    if args.out is not None:
        _write(load.user_path(args.out, "--out"), layer)
    if args.json:
        terms = [
            {"term": one.term, "ours_gib": one.ours, "logged_gib": one.logged}
            for one in learnt.terms
        ]
        print(plain_json({"layer": layer, "terms": terms}))
        return 0
    rows = tuple(
        (
            one.term,
            "-" if one.ours is None else f"{one.ours:.2f}",
            "-" if one.logged is None else f"{one.logged:.2f}",
            "-" if one.ours is None or one.logged is None else f"{one.logged - one.ours:+.2f}",
        )
        for one in learnt.terms
    )
    title = f"{log.name}: {log.lines} statements about memory, GiB of one device"
    print(visible(str(Table(title, ("term", "estimated", "logged", "difference"), rows))))
    print(
        f"written to {args.out}: plan with --calibration {args.out}."
        if args.out is not None
        else "--out FILE writes what was learnt, for --calibration FILE."
    )
    return 0


def _write(path: Path, layer: dict[str, Any]) -> None:
    """Write a layer completely or not at all."""
    import yaml  # start-up: only with --out

    new = scratch.beside(path)
    text = "# Made by kimi-nb calibrate. To take it: --calibration with this file.\n"
    try:
        scratch.write(new, text + yaml.safe_dump(layer, sort_keys=False))
        os.replace(new, path)
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {error.strerror}.") from None
    finally:
        scratch.remove(new)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log, at most its first 256 MB; bytes that are no text are replaced."""
    if not path.is_file():
        raise ParameterError(f"{path}: not a file; the log of an engine is wanted.")
    left = _LARGEST
    try:
        with path.open("rb") as file:
            while left > 0 and (line := file.readline(1 << 16)):
                left -= len(line)
                yield line.decode("utf-8", "replace")
    except OSError as error:
        raise ParameterError(f"{path}: cannot be read: {error.strerror}.") from None
