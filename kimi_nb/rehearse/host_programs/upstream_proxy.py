"""Start what stands for the example proxy of vllm-ascend, load_balance_proxy_server_example.py."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import uvicorn

from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import empty_door
from kimi_nb.rehearse.host_programs.front_door import behind_door
from kimi_nb.rehearse.host_programs.upstream_door import Door
from kimi_nb.rehearse.stand_in_call import Call, Refused

_ENGINES = ("prefiller_hosts", "decoder_hosts")


def upstream_proxy(call: Call) -> int:
    """Serve as the proxy of the site's version, for ``python load_balance_proxy... OPTIONS``."""
    given = local(options(call.words), call)
    if call.site.fault(FaultName.EMPTY_200, call.node):
        return empty_door.serve(given.host, given.port, call.say)
    call.say(
        f"in place of vllm-ascend {call.site.engine_version}'s example proxy, as it was recorded; "
        "router=vllm-router is the other front door"
    )

    def say(text: str) -> None:
        call.say(f"{time.strftime('%m-%d %H:%M:%S')} {text}")

    serve(given, call.site.engine_version, call.env.get("OPENAI_API_KEY"), say)
    return 0


def options(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line.

    Raises:
        Refused: The real program would not take them.
    """

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise Refused(f"{self.format_usage()}{self.prog}: error: {message}", 2)

    parser = Parser("load_balance_proxy_server_example.py")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--host", default="localhost")
    for role, port in (("prefiller", 8001), ("decoder", 8002)):
        parser.add_argument(f"--{role}-hosts", nargs="+", default=["localhost"])
        parser.add_argument(f"--{role}-ports", type=int, nargs="+", default=[port])
    parser.add_argument("--max-retries", type=int, default=3)
    parser.add_argument("--retry-delay", type=float, default=0.001)
    parser.add_argument("--max-waiting-retries", type=int, default=3)
    parser.add_argument("--waiting-retry-interval", type=float, default=10)
    given = parser.parse_args(list(words))
    for role in ("prefiller", "decoder"):
        if len(getattr(given, f"{role}_hosts")) != len(getattr(given, f"{role}_ports")):
            raise Refused(f"ValueError: Number of {role} hosts must match number of {role} ports")
    return given


def local(given: argparse.Namespace, call: Call) -> argparse.Namespace:
    """Return the options with addresses of this machine; "localhost" is the proxy's own node.

    The door that asks for the key is no stand-in: it looks for the proxy where it said.
    """
    hosts = {name: [*map(call.at, getattr(given, name))] for name in _ENGINES}
    host = given.host if behind_door(call) else call.at(given.host)
    return argparse.Namespace(**{**vars(given), "host": host, **hosts})


def serve(
    given: argparse.Namespace, version: str, key: str | None, say: Callable[[str], None]
) -> None:
    """Serve until a signal."""
    door = Door(given, version, key, say)
    say(
        f"Initialized {len(door.prefill.clients)} prefill clients and "
        f"{len(door.decode.clients)} decode clients."
    )
    uvicorn.run(
        door,
        host=given.host,
        port=given.port,
        lifespan="off",
        log_config=None,
        access_log=False,
        loop="asyncio",
        http="httptools",
        ws="none",
    )
