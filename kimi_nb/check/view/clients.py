"""Recognise what talks to a service: curl, ``vllm bench serve``, lm_eval, requests of Python.

>>> from kimi_nb import catalog
>>> from kimi_nb.check.view import clients
>>> from kimi_nb.check.view.engine_view import Spot
>>> words = ["curl", "http://192.0.2.11:8088/v1/models"]
>>> clients.client(catalog.engine("vllm", "0.19.1"), words, Spot("run.sh:3")).port
8088
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import arguments, fill_ins
from kimi_nb.check.view.commands import lists, split_url, word_at
from kimi_nb.check.view.deployment import Client
from kimi_nb.check.view.engine_view import Spot


def client(engine: catalog.Engine, words: Sequence[str], spot: Spot) -> Client | None:
    """Read a curl, ``vllm bench serve`` or lm_eval command; return None for anything else."""
    for name, second, make in (
        ("curl", "", _curl),
        ("vllm", "bench", _bench),
        ("lm_eval", "", _lm_eval),
        ("lm-eval", "", _lm_eval),
        ("benchmark_serving.py", "", _old_bench),
    ):
        at = word_at(words, name, second)
        if at is not None:
            return make(engine, words, at, spot)
    return None


def python(library: str, url: str, model: str, spot: Spot) -> Client:
    """Build the client of a request that Python sends; ``model`` is "" if it names none."""
    host, port, path = split_url(url)
    return Client(spot, library, host, port, path, _known(model), None, None, (library, url))


_CURL_VALUES = frozenset(
    [
        "-H",
        "--header",
        "-X",
        "--request",
        "-d",
        "--data",
        "--data-raw",
        "--data-binary",
        "--json",
        "-o",
        "--output",
        "-m",
        "--max-time",
        "--connect-timeout",
        "-u",
        "--user",
        "-A",
        "--user-agent",
        "-e",
        "--referer",
        "-b",
        "--cookie",
        "-c",
        "-F",
        "--form",
        "-T",
        "--retry",
        "--retry-delay",
        "-w",
        "--write-out",
        "-x",
        "--proxy",
        "--cacert",
        "-K",
        "--max-filesize",
    ]
)


def _curl(engine: catalog.Engine, words: Sequence[str], at: int, spot: Spot) -> Client | None:
    url, body = "", None
    rest = list(words[at:])
    while rest:
        word = rest.pop(0)
        name, equals, text = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in _CURL_VALUES:
            value = text if equals else (rest.pop(0) if rest else "")
            if name in ("-d", "--data", "--data-raw", "--data-binary", "--json"):
                body = value
        elif name == "--url":
            url = text if equals else (rest.pop(0) if rest else "")
        elif not word.startswith("-") and not url:
            url = word
    host, port, path = split_url(url) if url else (None, None, "")
    if not re.search(
        r"/(v1/|health|ping|metrics|version|tokenize|generate|(chat/)?completions/$|models/$)",
        path + "/",
    ):
        return None  # not a request to an engine
    names = None
    if body is not None:
        try:
            sent = json.loads(body)
            names = sent.get("model") if isinstance(sent, dict) else None
        except ValueError:
            names = None
    return Client(spot, "curl", host, port, path, _known(names), None, None, tuple(words))


def _bench(engine: catalog.Engine, words: Sequence[str], at: int, spot: Spot) -> Client | None:
    if list(words[at : at + 1]) != ["serve"]:
        return None
    flags = arguments.parse(engine, words[at + 1 :], "bench_serve", 0).flags
    base = flags.get("base-url")
    if isinstance(base, str):
        host, port, _ = split_url(base)
    elif isinstance(base, arguments.Unread):
        host, port = None, None
    else:
        host = _known(flags.get("host", "127.0.0.1"))
        port = flags.get("port", 8000)
    path = flags.get("endpoint", "/v1/completions")
    model = _known(flags.get("model"))
    return Client(
        spot,
        "vllm bench serve",
        host,
        port if isinstance(port, int) else None,
        str(path),
        _known(flags.get("served-model-name")) or model,
        _known(flags.get("tokenizer")) or model,
        flags.get("trust-remote-code") is True,
        tuple(words),
    )


def _old_bench(engine: catalog.Engine, words: Sequence[str], at: int, spot: Spot) -> Client | None:
    """Read the script from which vllm bench serve was made; it takes the same options."""
    made = _bench(engine, ["serve", *words[at:]], 0, spot)
    return made and replace(made, argv=tuple(words))


def _lm_eval(engine: catalog.Engine, words: Sequence[str], at: int, spot: Spot) -> Client | None:
    args = dict(
        pair.partition("=")[::2]
        for pair in lists(words[at:]).get("model-args", ("",))[0].split(",")
    )
    if "base_url" not in args:
        return None
    host, port, path = split_url(args["base_url"])
    model = _known(args.get("model"))
    return Client(
        spot,
        "lm_eval",
        host,
        port,
        path,
        model,
        _known(args.get("tokenizer")) or model,
        args.get("trust_remote_code", "").lower() == "true",
        tuple(words),
    )


def _known(value: Any) -> str | None:
    """Return a text that holds no shell variable, None for anything else."""
    return value if isinstance(value, str) and value and not fill_ins.holds(value) else None
