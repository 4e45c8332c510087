"""Recognise what a command line starts: an engine, a proxy, a launcher or a job.

>>> from kimi_nb.check.view import commands
>>> commands.serve_at(["nohup", "vllm", "serve", "m"])
3

The functions are pure: they take words and return values of `kimi_nb.check.view.deployment`.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from kimi_nb.catalog import fill_ins
from kimi_nb.check.view.deployment import Batch, Launcher, Proxy
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.plan.router import DOOR

# What only names the program behind it: it looks for that, or installs it.
_NO_START = {
    "install",
    "uninstall",
    "show",
    "which",
    "type",
    "cp",
    "mv",
    "ln",
    "scp",
    "rsync",
    "chmod",
    "ls",
    "cat",
    "curl",
    "wget",
}
_VLLM = "vllm.entrypoints.cli.main"  # the module behind the program
_PROXY = re.compile(
    r"\w*(load_balance_(dp_)?proxy|toy_proxy|disagg_(\w+_)?proxy|proxy_server).*\.py"
)
# What the example proxies call the lists of engines of a role.
_STEMS = (
    ("prefill", "prefiller"),
    ("decode", "decoder"),
    ("mixed", "dp"),
    ("mixed", "pd"),
    ("encode", "encoder"),
)
_URLS = {
    "prefill": "prefill",
    "prefill-servers-urls": "prefill",
    "decode": "decode",
    "decode-servers-urls": "decode",
    "encode-servers-urls": "encode",
}


def base(word: str) -> str:
    """Return the last component of a path."""
    return word.rpartition("/")[2]


def serve_at(words: Sequence[str]) -> int | None:
    """Return the index at which the arguments of ``vllm serve`` begin, None if nothing serves.

    Whatever stands before it (env, nohup, srun, numactl, ...) is skipped. The same entry points
    called with ``python -m`` are recognised too.
    """
    if words and base(words[0]) in ("echo", "printf"):
        return None
    for i, word in enumerate(words):
        name = base(word)
        following = words[i + 1] if i + 1 < len(words) else ""
        if name == "vllm" and following == "serve":
            if i and words[i - 1].endswith(":"):
                return None  # a line of a log: Starting server with command: vllm serve
            return i + 2
        if (
            word == "-m"
            and following.startswith("vllm.entrypoints.")
            and following.endswith("api_server")
        ):
            return i + 2
        if word == "-m" and following == _VLLM and list(words[i + 2 : i + 3]) == ["serve"]:
            return i + 3
    return None


# Subcommands and programs of vLLM that are known, and start nothing that is judged.
_QUIET = {
    "bench",
    "collect-env",
    "--version",
    "-v",
    "--help",
    "-h",
    "chat",
    "complete",
    "run-batch",
}


def is_strange(words: Sequence[str]) -> bool:
    """Return whether a command calls vLLM in a way that nothing here understands.

    >>> is_strange(["vllm", "launch", "m"]), is_strange(["vllm", "collect-env"]), is_strange(["ls"])
    (True, False, False)
    """
    at = word_at(words, "vllm")
    if at is not None and not _NO_START & {base(word) for word in words[: at - 1]}:
        before = {base(word) for word in words[: at - 1]}
        return (
            not before & {"pip", "pip3", "uv", "cd", "pgrep", "pkill", "echo", "grep"}
            and words[at - 1] == "vllm"
            and (words[at] if at < len(words) else "-h") not in _QUIET
        )
    return any(one == "-m" and two.startswith("vllm.") for one, two in itertools.pairwise(words))


def is_sglang(words: Sequence[str]) -> bool:
    """Return whether a command is one of SGLang: its engine, router or benchmark.

    >>> (
    ...     is_sglang(["python3", "-m", "sglang.launch_server"]),
    ...     is_sglang(["pip", "install", "sglang"]),
    ... )
    (True, False)
    """
    return any(
        (one == "-m" and two.partition(".")[0] in ("sglang", "sglang_router"))
        or (base(one) == "sglang" and two == "serve")
        for one, two in itertools.pairwise(words)
    )


def word_at(words: Sequence[str], name: str, second: str = "") -> int | None:
    """Return the index after a program's name (and subcommand), None if it is not called.

    >>> word_at(["python", "-m", "vllm.entrypoints.cli.main", "bench", "serve"], "vllm", "bench")
    4
    """
    for i, word in enumerate(words):
        if (
            (word.endswith(name) and base(word) == name)
            or (name == "vllm" and word == _VLLM and list(words[i - 1 : i]) == ["-m"])
        ) and (not second or list(words[i + 1 : i + 2]) == [second]):
            return i + (2 if second else 1)
    return None


def module_at(words: Sequence[str], module: str) -> int | None:
    """Return the index after ``-m MODULE``, None if it is not called.

    >>> module_at(["python3", "-m", "dynamo.frontend", "--http-port", "8000"], "dynamo.frontend")
    3
    """
    for i, word in enumerate(words[:-1]):
        if word == "-m" and words[i + 1] == module:
            return i + 2
    return None


def program_at(words: Sequence[str], pattern: re.Pattern[str] | str) -> int | None:
    """Return the index after the name of a script, None if it is not called."""
    for i, word in enumerate(words):
        if re.fullmatch(pattern, base(word)):
            return i + 1
    return None


# Front doors -------------------------------------------------------------------------------


def is_proxy(words: Sequence[str]) -> bool:
    """Return whether these words start a known proxy or router.

    >>> is_proxy(["nohup", "vllm-router", "--port", "1999"]), is_proxy(["which", "vllm-router"])
    (True, False)
    """
    if module_at(words, "dynamo.frontend") is not None:
        return True
    script = program_at(words, _PROXY)
    at = word_at(words, "vllm-router") if script is None else script
    if at is None:
        return False
    before = [base(word) for word in words[: at - 1]]
    return not _NO_START & {*before} and before[-2:] != ["command", "-v"]


def proxy(words: Sequence[str], spot: Spot, node: str = "") -> Proxy:
    """Read the command line of the upstream proxy or of vllm-router, also behind keyed_door.py."""
    door = program_at(words, re.escape(DOOR))
    if door is not None and "--" in words[door:]:
        inner = list(words).index("--", door)
        given = lists(words[door:inner])
        return replace(
            proxy(words[inner + 1 :], spot, node),
            host=given.get("host", ("",))[0],
            port=number(given.get("port", ("",))[0]),
            asks=True,
        )
    front = module_at(words, "dynamo.frontend")
    if front is not None:
        given = lists(words[front:])
        told = given.get("http-port", given.get("port", ("8000",)))[0]
        host = given.get("http-host", ("",))[0]
        return Proxy(spot, "dynamo", node, host, number(told), (), given)
    at = word_at(words, "vllm-router")
    given = lists(words[at if at is not None else program_at(words, _PROXY) or 0 :])
    host, port = given.get("host", ("",))[0], number(given.get("port", ("",))[0])
    if at is not None:
        workers = [
            (role, *_endpoint(url))
            for role in ("prefill", "decode", "worker-urls")
            for url in given.get(role, ())
            if "://" in url
        ]
        workers = [
            ("mixed" if role == "worker-urls" else role, where, its) for role, where, its in workers
        ]
        return Proxy(
            spot,
            "vllm-router",
            node,
            host,
            port if "port" in given else 30000,
            tuple(workers),
            given,
        )
    pairs = [
        (role, *_endpoint(url))
        for option, role in _URLS.items()
        for urls in given.get(option, ())
        for url in urls.split(",")
        if url not in ("", "disable", "none")
    ]
    for role, stem in _STEMS:
        hosts, ports = given.get(f"{stem}-hosts", ()), given.get(f"{stem}-ports", ())
        pairs += [(role, where, number(its)) for where, its in zip(hosts, ports, strict=False)]
    script = next((base(word) for word in words if re.fullmatch(_PROXY, base(word))), "")
    return Proxy(
        spot,
        "upstream" if script.startswith("load_balance_proxy") else "example",
        node,
        host,
        port if "port" in given else 8000,
        tuple(pairs),
        given,
        layerwise="layerwise" in script,
    )


def lists(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each option; an option that is repeated adds to them."""
    out: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, text = word[2:].replace("_", "-").partition("=")
            name = {
                "prefiller-host": "prefiller-hosts",
                "prefiller-port": "prefiller-ports",
                "decoder-host": "decoder-hosts",
                "decoder-port": "decoder-ports",
                "encoder-host": "encoder-hosts",
                "encoder-port": "encoder-ports",
            }.get(name, name)
            current = out.setdefault(name, [])
            if equals:
                current.append(text)
        else:
            current.append(word)
    return {name: tuple(values) for name, values in out.items()}


def _endpoint(url: str) -> tuple[str, int | None]:
    host, port, _ = split_url(url)
    return host or "", port


def split_url(url: str) -> tuple[str | None, int | None, str]:
    """Split a URL into host, port and path.

    The host or the port is None if a shell variable or a placeholder hides it.
    """
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        host, path = parts.hostname, parts.path
    except ValueError:
        return None, None, ""
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is None and not re.search(
        r"[$<{:\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}]", parts.netloc
    ):
        port = {"http": 80, "https": 443}.get(parts.scheme)
    if host is None or fill_ins.holds(
        url.split("://", 1)[1].split("/")[0].rpartition(":")[0] or host
    ):
        host = None
    return host, port, path


def number(text: object) -> int | None:
    """Return the whole number that a word spells, None for anything else."""
    word = str(text)
    return int(word) if word.isdecimal() and len(word) < 10 else None


# Launcher and jobs -------------------------------------------------------------------------

LAUNCHER = re.compile(r"launch_(online_)?dp.*\.py")


def launcher(words: Sequence[str], spot: Spot, node: str = "") -> Launcher:
    """Read a call of launch_online_dp.py; what it leaves out has the script's own default."""
    given = lists(words[program_at(words, LAUNCHER) or 0 :])

    def whole(name: str, default: int | None = None) -> int | None:
        return number(given[name][0]) if given.get(name) else default

    dp = whole("dp-size")
    return Launcher(
        spot,
        node,
        dp,
        whole("tp-size", 1),
        whole("dp-size-local", dp),
        whole("dp-rank-start", 0),
        given.get("dp-address", ("",))[0],
        whole("dp-rpc-port", 12345),
        whole("vllm-start-port", 9000),
    )


_LONG = {
    "-N": "nodes",
    "-n": "ntasks",
    "-c": "cpus-per-task",
    "-p": "partition",
    "-A": "account",
    "-J": "job-name",
    "-t": "time",
    "-o": "output",
    "-e": "error",
    "-G": "gpus",
    "-w": "nodelist",
    "-q": "qos",
}


def sbatch(options: Sequence[str]) -> dict[str, str]:
    """Return the options of a job by their long names; one line may hold several."""
    out: dict[str, str] = {}
    for option in options:
        try:
            words = shlex.split(option)
        except ValueError:  # a quote that nothing closes
            words = option.split()
        name = ""  # of the option that still waits for its value
        for word in words:
            if word.startswith("--"):
                name, equals, value = word[2:].partition("=")
                out[name] = value
                name = "" if equals else name
            elif word.startswith("-") and word[1:2].isalpha():
                name, value = _LONG.get(word[:2], word[:2]), word[2:].removeprefix("=")
                out[name] = value
                name = "" if value else name
            elif name:
                out[name], name = word, ""
    return out


def batch(
    options: Sequence[str],
    programs: Sequence[str],
    spot: Spot,
    lines: Mapping[str, int] | None = None,
) -> Batch:
    """Build a SLURM job from its options and the programs that it runs."""
    return Batch(spot, sbatch(options), tuple(dict.fromkeys(programs)), lines or {})
