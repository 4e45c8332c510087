"""Rules on requests as they are written: headers, addresses, and the imports of Python."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, of_reading, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import Spot

_HEADERS = ("Authorization", "Content-Type", "Accept", "User-Agent", "Cache-Control", "Connection")
_MEDIA = ("application/json", "text/event-stream", "multipart/form-data", "text/plain")


@rule(
    "client/header",
    WARNING,
    "A header of a request is NAME: VALUE, as the server compares it.",
    "Write -H 'Authorization: Bearer KEY' and -H 'Content-Type: application/json'.",
    "RFC 9110, 11.6.2 and 8.3; vLLM compares the text behind Bearer with --api-key",
)
def header(d: Deployment) -> Iterator[Problem]:
    """401 although the key is right, or 415: the header is one that nobody reads."""
    for spot, argv in d.commands():
        if "curl" not in argv[:3]:
            continue
        for before, word in itertools.pairwise(argv):
            if before in ("-H", "--header") and (said := _wrong(word) or _bare(word)):
                yield Problem(spot, f"the header {word[:60]!r} is not read: {said}")


def _bare(word: str) -> str:
    """Return what is wrong with a key that stands alone."""
    name, _, value = word.partition(":")
    alone = name.strip().lower() == "authorization" and re.fullmatch(r"[\w.-]+", value.strip())
    return "Bearer stands before the key" if alone else ""


@rule(
    "client/path-spelling",
    WARNING,
    "The path of a request is spelt as the server spells it.",
    "Write it as it stands in the list of routes that vllm serve prints.",
    "OpenAI API; vLLM: routes of the API server",
)
def path_spelling(d: Deployment) -> Iterator[Problem]:
    """The server answers 404: Not Found."""
    for client in d.clients:
        parts = client.path.strip("/").split("/")
        if not {*parts} & _PATH or fill_ins.holds(client.path):
            continue
        for before, part in itertools.pairwise(("", *parts)):
            near = difflib.get_close_matches(part, sorted(_PATH), n=1, cutoff=0.85)
            # What stands behind models is a name.
            if near and part not in _PATH and before != "models" and len(part) > 4:
                yield Problem(
                    client.spot, f"{client.kind} asks for {client.path[:80]}: {part} is {near[0]}"
                )


_PATH = frozenset(
    ("openai", "v1", "v2", "models", "chat", "completions", "embeddings", "responses", "messages",
     "rerank", "score", "classify", "pooling", "tokenize", "detokenize", "audio", "transcriptions",
     "translations", "health", "metrics", "version"),
)  # fmt: skip


def _wrong(word: str) -> str:
    """Return what is wrong with a header, "" if nothing is."""
    name, colon, value = word.partition(":")
    name, value = name.strip(), value.strip()
    if not colon:
        near = difflib.get_close_matches(word.split(" ")[0], _HEADERS, n=1, cutoff=0.85)
        return "no colon stands behind its name" if near and " " in word else ""
    if name == "Authentication" and re.match("[\"']?Bearer", value):
        return "the key is read from Authorization"
    near = difflib.get_close_matches(name.title(), _HEADERS, n=1, cutoff=0.85)
    if near and name.lower() not in map(str.lower, _HEADERS):
        return f"did you mean {near[0]}?"
    if name.lower() == "authorization" and value[:1] in "\"'" and value[1:2].isalpha():
        return "the quotes are a part of its value"
    media = value.partition(";")[0].strip()
    close = difflib.get_close_matches(media, _MEDIA, n=1, cutoff=0.85)
    if (
        name.lower() == "content-type"
        and close
        and media not in _MEDIA
        and not fill_ins.holds(media)
    ):
        return f"did you mean {close[0]}?"
    return ""


@rule(
    "client/scheme",
    WARNING,
    "A client speaks TLS where the engine does, and nowhere else.",
    "Write http://, or give the engine --ssl-certfile and --ssl-keyfile.",
    "vllm serve: without --ssl-certfile it listens in plain HTTP",
)
def scheme(d: Deployment) -> Iterator[Problem]:
    """'wrong version number', or 'SSL routines': the engine answers in plain text."""
    asked = [
        (one, word)
        for one in d.clients
        if one.host in ("localhost", "127.0.0.1", "0.0.0.0")
        for word in one.argv
        if word.startswith("https://")
    ]
    if not asked:
        return
    secret = {one.http_port for one in d.servers if any("ssl" in flag for flag in one.flags)}
    plain = {one.http_port for one in d.servers} - secret - {None}
    for one, word in asked:
        if one.port in plain:
            yield Problem(one.spot, f"{word[:60]}: the engine at {one.port} has no --ssl-certfile")


_LM_EVAL = (
    "pretrained", "tokenizer", "max_gen_toks", "batch_size", "max_batch_size", "max_length",
    "add_bos_token", "lora_local_path", "prefix_token_id", "enable_thinking", "device", "peft",
    "think_end_token", "chat_template_args", "truncation_side", "data_parallel_size", "delta",
)  # fmt: skip


@rule(
    "client/lm-eval-args",
    WARNING,
    "lm_eval gives vLLM arguments that it takes.",
    "Spell the argument as the engine does, with underscores.",
    "lm_eval 0.4: --model_args of --model vllm are those of vLLM's engine",
)
def lm_eval_args(d: Deployment) -> Iterator[Problem]:
    """'unexpected keyword argument', or the setting is left aside."""
    known = {name[2:].replace("-", "_") for name in catalog.tables("vllm")["serve"]} | {*_LM_EVAL}
    for spot, argv in d.commands():
        if not {"lm_eval", "lm-eval"} & {*argv[:4]}:
            continue
        given = dict(itertools.pairwise(argv))
        if given.get("--model") != "vllm":
            continue
        for pair in (given.get("--model_args") or given.get("--model-args") or "").split(","):
            name, equals, _ = pair.strip().partition("=")
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
            if equals and near and name not in known and not fill_ins.holds(name):
                yield Problem(
                    spot, f"{name} is no argument of the engine", f"Did you mean {near[0]}?"
                )


_MOVED = {
    "benchmark_serving.py": "serve",
    "benchmark_throughput.py": "throughput",
    "benchmark_latency.py": "latency",
}


@rule(
    "client/bench-script",
    WARNING,
    "A benchmark is started by vllm bench.",
    "Write the command of vllm bench; the options are the same.",
    "benchmarks/benchmark_serving.py of vLLM 0.11.2 and later: it prints this, and ends",
)
def bench_script(d: Deployment) -> Iterator[Problem]:
    """'This script has been moved to the vLLM CLI', and exit code 1."""
    stated = d.engine_stated
    if re.match(r"\d", stated) and catalog.earlier(stated, "0.11.0"):
        return
    entered = [
        (one.spot, one.argv[1]) for one in d.programs if one.argv[:1] == ("cd",) and one.argv[1:]
    ]
    for spot, argv in d.commands():
        for word in argv[:4]:
            folder, _, name = word.rpartition("/")
            if name in _MOVED and folder in ("", "."):
                folder = _entered(spot, entered)
            # Others keep scripts of these names, in folders of their own.
            if name in _MOVED and re.search(r"(^|/)benchmarks$", folder):
                known = d.engine_known or stated
                severity = "" if known else NOTE  # an older source still has it
                yield Problem(spot, f"{name} has moved: vllm bench {_MOVED[name]}", "", severity)


def _entered(spot: Spot, entered: Sequence[tuple[Spot, str]]) -> str:
    """Return the folder that the lines above a command enter last, "" if they enter none."""
    above = [(at.line, to) for at, to in entered if at.file == spot.file and at.line < spot.line]
    return max(above)[1].rstrip("/") if above else ""


rule(
    "client/address",
    WARNING,
    "The braces of an address belong to something that opens in it.",
    "Take the brace out.",
    "RFC 3986: no address holds a brace",
    needs=("scripts",),
)(
    of_reading(
        "client/address",
        "Whoever copies the address asks a port or a host of another name.",
        __name__,
    )
)


rule(
    "client/import",
    WARNING,
    "What a block of Python calls is imported in it, or in one above.",
    "Write from openai import OpenAI.",
    "Python: 'import openai' binds openai alone",
    needs=("scripts",),
)(
    of_reading(
        "client/import",
        "NameError: the example ends before its first request.",
        __name__,
    )
)
