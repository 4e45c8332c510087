"""Stand in for ``vllm bench serve``: a few requests, and no figures.

It refuses what the real one does before and at its first request: a flag of another version, a
package that is missing, a tokenizer or a service that is not there.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from kimi_nb import catalog
from kimi_nb.catalog import arguments
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.host_programs import installed_packages
from kimi_nb.rehearse.host_programs.engine_client import EngineClient, EngineError
from kimi_nb.rehearse.stand_in_call import Call, Refused

_COMMAND = "bench_serve"  # the name of its flags in the catalog
_MOST = 4  # requests that are sent, however many are asked for
_TOKENS = 16  # of each answer


def bench(call: Call) -> int:
    """Run ``vllm bench serve OPTIONS``."""
    engine = catalog.engine(call.site.engine, call.site.engine_version)
    flags = _flags(engine, call)
    packages = installed_packages.importable(call)
    if flags.get("dataset-name") == "hf":
        if packages is not None and "datasets" not in packages:
            raise _raised("ImportError: Please install vllm[bench] for bench support")
        if "dataset-path" not in flags:
            raise _raised(
                "ValueError: Unsupported dataset path: None. Huggingface dataset only supports "
                "dataset_path from those that the help of --dataset-path names"
            )
    model = str(flags.get("model", ""))
    tokenizer = str(flags.get("tokenizer", model))
    here = not tokenizer.startswith("/") or os.path.exists(tokenizer)
    if not here and not call.site.has(tokenizer, call.node):
        raise _raised(f"OSError: {tokenizer} is not a local folder with a tokenizer")
    asked = min(int(flags.get("num-prompts", 1000)), _MOST)
    print(f"{MARK}: {asked} requests in place of {flags.get('num-prompts', 1000)}")
    asyncio.run(_ask(call, flags, model, asked))
    return 0


def _flags(engine: catalog.Engine, call: Call) -> Mapping[str, Any]:
    """Return the flags of the command line.

    Raises:
        Refused: The parser of this version does not take them.
    """
    words = call.words[2:]
    parsed = arguments.parse(engine, words, _COMMAND, positionals=0)
    strange = [
        word
        for one in parsed.given
        if one.fault == arguments.UNKNOWN
        for word in (one.spelt, *([one.text] if one.text else ()))
    ] + [word for _, word in parsed.stray]
    usage = "usage: vllm bench serve [options]\nvllm bench serve: error: "
    if strange:
        raise Refused(f"{usage}unrecognized arguments: {' '.join(strange)}", 2)
    for one in parsed.given:
        choices = (catalog.flag(engine, one.name, _COMMAND) or {}).get("choices")
        if choices and one.text not in choices:
            named = ", ".join(map(repr, choices))
            raise Refused(
                f"{usage}argument --{one.name}: invalid choice: {one.text!r} (choose from {named})",
                2,
            )
    return parsed.flags


async def _ask(call: Call, flags: Mapping[str, Any], model: str, count: int) -> None:
    """Send the test request and then the others.

    Raises:
        Refused: The test request fails.
    """
    host, port = _service(call, flags)
    client = EngineClient(host, port)
    path = str(flags.get("endpoint", "/v1/completions"))
    question = {"messages": [{"role": "user", "content": "hello"}]}
    body = {
        "model": str(flags.get("served-model-name") or model),
        **(question if "chat" in path else {"prompt": "hello"}),
        "max_tokens": _TOKENS,
        "stream": True,
    }
    key = call.env.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    print("Starting initial single prompt test run...")
    for number in range(count + 1):
        try:
            async with client.post(path, json.dumps(body).encode(), headers) as reply:
                async for _ in reply.pieces():
                    pass
        except EngineError as error:
            raise _raised(
                "ValueError: Initial test run failed - Please make sure benchmark arguments are "
                f"correctly specified. Error: {error}"
            ) from None
        if number == 0:
            print("Initial test run completed.")
    print(f"{' Serving Benchmark Result ':=^50}")
    print(f"{'Successful requests:':<40} {count:<10}")
    print(f"{MARK}: stand-ins have no speed, there is nothing to measure")


def _service(call: Call, flags: Mapping[str, Any]) -> tuple[str, int]:
    """Return the address and port of the service that is asked."""
    url = urlsplit(str(flags.get("base-url") or ""))
    host = url.hostname or str(flags.get("host", "127.0.0.1"))
    return call.at(call.site.nodes.get(host, host)), url.port or int(flags.get("port", 8000))


def _raised(text: str) -> Refused:
    return Refused(
        f'Traceback (most recent call last):\n  File "vllm/benchmarks/serve.py", in main\n{text}'
    )
