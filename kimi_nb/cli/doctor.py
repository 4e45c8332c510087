"""``kimi-nb doctor``: why it failed, from the logs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from kimi_nb.core.errors import ParameterError
from kimi_nb.show.values import visible


def add(commands: Any) -> None:
    """Add the command to the others."""
    doctor = commands.add_parser(
        "doctor", allow_abbrev=False, help="why it failed: the first cause in the logs of all ranks"
    )
    doctor.add_argument(
        "paths", nargs="*", metavar="PATH", help="logs, folders of logs, .gz too; - is stdin"
    )
    doctor.add_argument(
        "--plan",
        default="",
        metavar="PATH",
        help="a bundle, its plan.json or a run's folder: names node and devices",
    )
    doctor.add_argument("--json", action="store_true", help="one JSON document on stdout")
    doctor.set_defaults(call=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from kimi_nb.diagnose import doctor

    paths = args.paths
    if not paths:
        if sys.stdin is None or sys.stdin.isatty():
            raise ParameterError(
                "doctor: name logs or folders of logs (kimi-nb doctor PATH...), "
                "or send a log to stdin."
            )
        paths = ["-"]
    found = doctor.examine(paths, args.plan or None)
    print(
        json.dumps(found.as_dict(), indent=2, ensure_ascii=False)
        if args.json
        else visible(str(found))
    )
    return 0 if found.ok else 1
