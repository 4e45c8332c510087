#!/usr/bin/env python3
"""REHEARSAL: give the options of load_balance_proxy_server_example.py to the real vllm-router.

In a rehearsal this file takes the place of the upstream program beside proxy.sh. It refuses what
that program refuses: lists of hosts and ports of different lengths, and unknown options.
"""

import argparse
import os
import sys

# Not by PATH: no image has a router of its own.
_ROUTER = os.path.join(os.environ.get("KIMI_NB_REHEARSAL", ""), "stubs", "vllm-router")


def translate(argv: list[str]) -> list[str]:
    """Return the command line of vllm-router for the options of the upstream program."""
    parser = argparse.ArgumentParser("load_balance_proxy_server_example.py", allow_abbrev=True)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--prefiller-hosts", "--prefiller-host", nargs="+", default=["localhost"])
    parser.add_argument(
        "--prefiller-ports", "--prefiller-port", type=int, nargs="+", default=[8001]
    )
    parser.add_argument("--decoder-hosts", "--decoder-host", nargs="+", default=["localhost"])
    parser.add_argument("--decoder-ports", "--decoder-port", type=int, nargs="+", default=[8002])
    parser.add_argument("--max-retries", type=int, default=3)
    parser.add_argument("--retry-delay", type=float, default=0.001)
    args = parser.parse_args(argv)
    for role, hosts, ports in (
        ("prefiller", args.prefiller_hosts, args.prefiller_ports),
        ("decoder", args.decoder_hosts, args.decoder_ports),
    ):
        if len(hosts) != len(ports):
            parser.error(
                f"Number of {role} hosts must match number of {role} ports: "
                f"{len(hosts)} hosts, {len(ports)} ports"
            )
    words = [
        _ROUTER,
        "--host",
        args.host,
        "--port",
        str(args.port),
        "--vllm-pd-disaggregation",
        "--policy",
        "round_robin",
        "--retry-max-retries",
        str(args.max_retries),
    ]
    for option, hosts, ports in (
        ("--prefill", args.prefiller_hosts, args.prefiller_ports),
        ("--decode", args.decoder_hosts, args.decoder_ports),
    ):
        for host, port in zip(hosts, ports, strict=True):
            words += [option, f"http://{'[' + host + ']' if ':' in host else host}:{port}"]
    return words


if __name__ == "__main__":
    command = translate(sys.argv[1:])
    print("REHEARSAL: " + " ".join(command), flush=True)
    os.execvp(command[0], command)
