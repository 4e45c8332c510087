"""What one command line is: an engine, a front door, a client, a container, a launcher.

    commands.client(engine, ["curl", "http://192.0.2.11:8088/v1/models"], spot).port   # 8088

Pure: words in, the values of `kimi_nb.deployment` out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kimi_nb import arguments, catalog
from kimi_nb.deployment import Batch, Box, Client, Launcher, Proxy, Spot

_PROXY = re.compile(r"(load_balance_proxy|toy_proxy|disagg_proxy|proxy_server).*\.py")
# Options of docker run that take no value; every other one does.
_SWITCHES = frozenset([
    "-d", "--detach", "-i", "--interactive", "-t", "--tty", "-it", "-ti", "-dit", "-itd", "-id",
    "-di", "-td", "-dt", "--rm", "--privileged", "--init", "--no-healthcheck",
    "--oom-kill-disable", "--read-only", "-P", "--publish-all", "--sig-proxy", "-q", "--quiet",
    "--disable-content-trust", "--replace", "--tls-verify"])
_ACCELERATORS = re.compile(r"/dev/(davinci[0-9]+|kfd|dri|nvidia[0-9]+)$")


def base(word: str) -> str:
    """The last part of a path."""
    return word.rpartition("/")[2]


def serve_at(words: Sequence[str]) -> int | None:
    """Where the arguments of ``vllm serve`` begin among words, whatever stands before it
    (env, nohup, srun, numactl, ...); None where nothing serves."""
    for i, word in enumerate(words):
        name = base(word)
        following = words[i + 1] if i + 1 < len(words) else ""
        if name == "vllm" and following == "serve":
            return i + 2
        if word == "-m" and following.startswith("vllm.entrypoints.") \
                and following.endswith("api_server"):
            return i + 2
        if word == "-m" and following == "vllm.entrypoints.cli.main" \
                and list(words[i + 2:i + 3]) == ["serve"]:
            return i + 3
    return None


def word_at(words: Sequence[str], name: str, second: str = "") -> int | None:
    """The place behind a program's name (and subcommand); None where it is not called."""
    for i, word in enumerate(words):
        if word.endswith(name) and base(word) == name and (
                not second or list(words[i + 1:i + 2]) == [second]):
            return i + (2 if second else 1)
    return None


def program_at(words: Sequence[str], pattern: re.Pattern[str] | str) -> int | None:
    """The place behind a script's name."""
    for i, word in enumerate(words):
        if re.fullmatch(pattern, base(word)):
            return i + 1
    return None


# Front doors -------------------------------------------------------------------------------


def is_proxy(words: Sequence[str]) -> bool:
    """Whether these words start a front door that we know."""
    return program_at(words, _PROXY) is not None or word_at(words, "vllm-router") is not None


def proxy(words: Sequence[str], spot: Spot, node: str = "") -> Proxy:
    """The upstream proxy, or vllm-router."""
    at = word_at(words, "vllm-router")
    lists = _lists(words[at if at is not None else program_at(words, _PROXY) or 0:])
    host, port = lists.get("host", ("",))[0], number(lists.get("port", ("",))[0])
    if at is not None:
        workers = [(role, *_endpoint(url)) for role in ("prefill", "decode", "worker-urls")
                   for url in lists.get(role, ()) if "://" in url]
        workers = [("mixed" if role == "worker-urls" else role, where, its)
                   for role, where, its in workers]
        return Proxy(spot, "vllm-router", node, host, port if "port" in lists else 30000,
                     tuple(workers), lists)
    pairs = []
    for role, stem in (("prefill", "prefiller"), ("decode", "decoder")):
        hosts, ports = lists.get(f"{stem}-hosts", ()), lists.get(f"{stem}-ports", ())
        pairs += [(role, where, number(its))
                  for where, its in zip(hosts, ports, strict=False)]
    return Proxy(spot, "upstream", node, host, port if "port" in lists else 8000, tuple(pairs),
                 lists)


def _lists(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Options with all their values; one given again adds to it."""
    out: dict[str, list[str]] = {}
    current: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, text = word[2:].replace("_", "-").partition("=")
            name = {"prefiller-host": "prefiller-hosts", "prefiller-port": "prefiller-ports",
                    "decoder-host": "decoder-hosts", "decoder-port": "decoder-ports"}.get(
                        name, name)
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
    """(host, port, path) of a URL; None where a shell variable or a placeholder hides it."""
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
    if port is None and not re.search(r"[$<{:]", parts.netloc):
        port = {"http": 80, "https": 443}.get(parts.scheme)
    if host is None or re.search(r"[$<>{}]", url.split("://", 1)[1].split("/")[0].rpartition(":")[0]
                                 or host):
        host = None
    return host, port, path


def number(text: object) -> int | None:
    """A whole number in a word."""
    word = str(text)
    return int(word) if word.isdecimal() and len(word) < 10 else None


# Clients -----------------------------------------------------------------------------------


def client(engine: catalog.Engine, words: Sequence[str], spot: Spot) -> Client | None:
    """A curl, ``vllm bench serve`` or lm_eval; None for any other command."""
    for name, second, make in (("curl", "", _curl), ("vllm", "bench", _bench),
                               ("lm_eval", "", _lm_eval), ("lm-eval", "", _lm_eval)):
        at = word_at(words, name, second)
        if at is not None:
            return make(engine, words, at, spot)
    return None


_CURL_VALUES = frozenset([
    "-H", "--header", "-X", "--request", "-d", "--data", "--data-raw", "--data-binary",
    "--json", "-o", "--output", "-m", "--max-time", "--connect-timeout", "-u", "--user", "-A",
    "--user-agent", "-e", "--referer", "-b", "--cookie", "-c", "-F", "--form", "-T", "--retry",
    "--retry-delay", "-w", "--write-out", "-x", "--proxy", "--cacert", "-K", "--max-filesize"])


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
    if not re.search(r"/(v1/|health|ping|metrics|version|tokenize|generate)", path + "/"):
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
    if list(words[at:at + 1]) != ["serve"]:
        return None
    flags = arguments.parse(engine, words[at + 1:], "bench_serve", 0).flags
    base = flags.get("base-url")
    if isinstance(base, str):
        host, port, _ = split_url(base)
    elif isinstance(base, arguments.Unread):
        host, port = None, None
    else:
        host = _known(flags.get("host", "127.0.0.1"))
        port = flags.get("port", 8000)
    backend = flags.get("backend", "openai")
    path = flags.get("endpoint", "/v1/completions")
    model = _known(flags.get("model"))
    return Client(spot, "vllm bench serve" if backend else "", host,
                  port if isinstance(port, int) else None, str(path),
                  _known(flags.get("served-model-name")) or model,
                  _known(flags.get("tokenizer")) or model,
                  flags.get("trust-remote-code") is True, tuple(words))


def _lm_eval(engine: catalog.Engine, words: Sequence[str], at: int, spot: Spot) -> Client | None:
    args = dict(pair.partition("=")[::2] for pair in _lists(words[at:]).get(
        "model-args", ("",))[0].split(","))
    if "base_url" not in args:
        return None
    host, port, path = split_url(args["base_url"])
    model = _known(args.get("model"))
    return Client(spot, "lm_eval", host, port, path, model,
                  _known(args.get("tokenizer")) or model,
                  args.get("trust_remote_code", "").lower() == "true", tuple(words))


def _known(value: Any) -> str | None:
    """A text without shell variables in it."""
    return value if isinstance(value, str) and value and "$" not in value else None


# Containers --------------------------------------------------------------------------------


def container_at(words: Sequence[str]) -> int | None:
    """The place behind ``docker run`` (podman, nerdctl), None for another command."""
    for name in ("docker", "podman", "nerdctl"):
        at = word_at(words, name)
        if at is not None:
            rest = list(words[at:at + 2])
            if rest[:1] == ["run"]:
                return at + 1
            if rest == ["container", "run"]:
                return at + 2
    return None


def box(words: Sequence[str], env: Mapping[str, str], spot: Spot, node: str = "",
        at: int | None = None) -> Box:
    """A ``docker run``: its options, the image, what runs inside."""
    at = (container_at(words) or 0) if at is None else at
    options: dict[str, list[str]] = {}
    while at < len(words) and (words[at].startswith("-") or words[at].endswith("[@]}")):
        if words[at].endswith("[@]}"):  # an array of options that cannot be known
            at += 1
            continue
        name, equals, text = words[at].partition("=")
        at += 1
        if not equals and name in _SWITCHES:
            text = "true"
        elif not equals:
            text = words[at] if at < len(words) else ""
            at += 1
        options.setdefault(name, []).append(text)
    image = words[at] if at < len(words) else ""
    if image.strip("${}") in env and image.startswith("$"):
        image = env[image.strip("${}")]
    inside = tuple(words[at + 1:])

    def all_of(*names: str) -> tuple[str, ...]:
        return tuple(value for name in names for value in options.get(name, ()))

    inner = {name: value for pair in all_of("-e", "--env")
             for name, equals, value in [pair.partition("=")] if equals}
    devices = tuple(value.partition(":")[0] for value in all_of("--device")
                    if _ACCELERATORS.search(value.partition(":")[0]))
    entry = all_of("--entrypoint")
    runs = serve_at([*entry, *inside]) is not None or (
        not entry and serves_by_itself(image) and bool(inside))
    return Box(spot, node, image, (all_of("--name") or ("",))[-1], inside,
               all_of("-v", "--volume", "--mount"), devices + all_of("--gpus"),
               all_of("-p", "--publish"), inner,
               {name: tuple(values) for name, values in options.items()}, runs)


def serves_by_itself(image: str) -> bool:
    """Whether an image's entry point is the engine: its arguments are those of vllm serve."""
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return name.startswith("vllm-openai") or name == "vllm-tpu"


def image_engine(image: str) -> tuple[str, str] | None:
    """(package, version) that an image's tag tells; the version is "" for a floating tag, None
    for the image of another program."""
    name, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    package = {"vllm-ascend": "vllm-ascend"}.get(name)
    if package is None and (name.startswith("vllm-openai") or name in ("vllm", "vllm-dev")):
        package = "vllm"
    if package is None:
        return None
    match = re.match(r"v?([0-9]+\.[0-9]+\.[0-9]+(?:\.?(?:rc|post)[0-9]+)?)", tag)
    return package, match[1] if match else ""


# Launcher and jobs -------------------------------------------------------------------------

LAUNCHER = re.compile(r"launch_(online_)?dp.*\.py")


def launcher(words: Sequence[str], spot: Spot, node: str = "") -> Launcher:
    """A call of launch_online_dp.py; what it leaves out has the script's own default."""
    lists = _lists(words[program_at(words, LAUNCHER) or 0:])

    def whole(name: str, default: int | None = None) -> int | None:
        return number(lists[name][0]) if lists.get(name) else default

    dp = whole("dp-size")
    return Launcher(spot, node, dp, whole("tp-size", 1),
                    whole("dp-size-local", dp), whole("dp-rank-start", 0),
                    lists.get("dp-address", ("",))[0], whole("dp-rpc-port", 12345),
                    whole("vllm-start-port", 9000))


_LONG = {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-p": "partition", "-A": "account",
         "-J": "job-name", "-t": "time", "-o": "output", "-e": "error", "-G": "gpus",
         "-w": "nodelist", "-q": "qos"}


def sbatch(options: Sequence[str]) -> dict[str, str]:
    """The options of a job by their long names."""
    out: dict[str, str] = {}
    for option in options:
        if option.startswith("--"):
            name, equals, value = option[2:].partition("=")
            if not equals:
                name, _, value = option[2:].partition(" ")
            out[name.strip()] = value.strip()
        else:
            out[_LONG.get(option[:2], option[:2])] = option[2:].lstrip(" =").strip()
    return out


def batch(options: Sequence[str], programs: Sequence[str], spot: Spot,
          lines: Mapping[str, int] | None = None) -> Batch:
    """A SLURM job from its options and the programs that it runs."""
    return Batch(spot, sbatch(options), tuple(dict.fromkeys(programs)), lines or {})
