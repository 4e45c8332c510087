"""What the vLLM that runs this says to command lines, one JSON document a line on both sides.

    ENGINE/bin/python -P tests/deploy/parser_verdicts.py < lines > verdicts

First comes {"version": ...}. A line is {"argv": [...], "configures": [...] or null}: the words that
follow `vllm serve`, and those whose configuration is to be made as well. A verdict is {"parsed": ""}
or why not, and with a configuration {"configured": "", "parallel": {...}, ...} or why not. Nothing is
started: no device is touched, no weight is read, no port is opened.
"""

import json
import sys
from dataclasses import fields

from vllm import __version__
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser


class Parser(FlexibleArgumentParser):
    """vLLM's own, but for that a refusal is an exception and not the end."""

    def error(self, message):
        raise ValueError(message)


PARSER = make_arg_parser(Parser(prog="vllm serve"))
PLAIN = (int, str, bool, type(None))


def parsed(argv):
    """As `vllm serve` does before it starts anything."""
    args = PARSER.parse_args(argv)
    if args.model_tag is not None:
        args.model = args.model_tag
    validate_parsed_serve_args(args)
    if not args.headless:
        validate_api_server_args(args)
    return args


def configured(argv):
    """What vLLM makes of its flags: the configuration with which it would start."""
    args = parsed(argv)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER, headless=args.headless
    )
    return {
        "host": args.host,
        "port": args.port,
        "headless": args.headless,
        "parallel": _plain(config.parallel_config),
        "scheduler": _plain(config.scheduler_config),
        "transfer": _plain(config.kv_transfer_config) if config.kv_transfer_config else None,
        "draft_tokens": (
            config.speculative_config.num_speculative_tokens if config.speculative_config else None
        ),
    }


def _plain(config):
    values = {one.name: getattr(config, one.name) for one in fields(config)}
    for name in ("node_rank_within_dp", "nnodes_within_dp", "local_world_size"):
        if hasattr(config, name):
            values[name] = getattr(config, name)
    return {name: value for name, value in values.items() if isinstance(value, (*PLAIN, dict))}


def verdict(line):
    out = {}
    try:
        parsed(line["argv"])
        out["parsed"] = ""
    except Exception as why:
        return {"parsed": f"{type(why).__name__}: {why}"}
    if line["configures"]:
        try:
            out |= {"configured": "", **configured(line["configures"])}
        except Exception as why:
            out["configured"] = f"{type(why).__name__}: {why}"
    return out


def main():
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever else is printed is no verdict
    print(json.dumps({"version": __version__}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line)), default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
