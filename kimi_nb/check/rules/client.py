"""Rules on clients and the servers that they call, and on containers and their engines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from kimi_nb import catalog
from kimi_nb.catalog import arguments, fill_ins
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.commands import split_url, word_at
from kimi_nb.check.view.deployment import Client, Deployment
from kimi_nb.check.view.engine_view import LOOPBACK, EngineView
from kimi_nb.core import numbers


def _doors(d: Deployment) -> dict[int, str]:
    """Return the ports at which requests are answered, each with the name of what answers.

    They are those of proxies and engines, and the ports that containers publish.
    """
    out: dict[int, str] = {}
    for proxy in d.proxies:
        if proxy.port is not None:
            out[proxy.port] = proxy.spot.name
    for server in d.servers:
        if server.http_port is not None:
            out.setdefault(server.http_port, server.spot.name)
    for box in d.boxes:
        for text in box.published:
            parts = text.split(":")
            port = numbers.whole(parts[-2]) if len(parts) >= 2 else None
            if port is not None:
                out.setdefault(port, box.spot.name)
    return out


def _hidden(d: Deployment) -> bool:
    """Return whether some port cannot be known, so that no comparison is fair."""
    return (
        any(server.http_port is None and not server.headless for server in d.servers)
        or any(proxy.port is None for proxy in d.proxies)
        # Services of a compose file may answer as well.
        or any("up" in one.argv and "compose" in " ".join(one.argv[:2]) for one in d.programs)
    )


def _hosts(d: Deployment) -> set[str | None]:
    """Return every host at which this deployment may answer."""
    hosts = {None, *LOOPBACK, "0.0.0.0", *(proxy.host for proxy in d.proxies)}
    for server in d.environments():
        hosts |= {
            server.address,
            server.text("data-parallel-address"),
            server.env.get("HCCL_IF_IP"),
        }
    return hosts | {server.address for server in d.servers}


@rule(
    "client/port",
    ERROR,
    "A client asks at a port where something answers.",
    "Give the client the front door's --port (or --base-url).",
    "the servers of the same deployment; clients default to port 8000",
)
def client_port(d: Deployment) -> Iterator[Problem]:
    """'Connection refused', after the hour in which the engines loaded."""
    doors = _doors(d)
    if not doors or _hidden(d):
        return
    # Other programs (another proxy, a tunnel) may listen at what their words name.
    elsewhere = {
        int(number)
        for one in d.programs
        for word in one.argv
        for number in re.findall(r"(?<![\d.])[1-9][0-9]{2,4}(?![\d.])", word)
    }
    hosts = _hosts(d)
    for client in d.clients:
        local = client.host in hosts
        if (
            client.port is None
            or client.port in doors
            or client.port in elsewhere
            or not (local or d.complete or client.kind not in ("curl", *_PYTHON))
        ):
            continue
        shown = ", ".join(map(str, sorted(doors)[:6]))
        default = (
            " (its default)"
            if client.kind == "vllm bench serve"
            and not any(
                word.startswith(("--port", "--base-url", "--base_url")) for word in client.argv
            )
            else ""
        )
        yield Problem(
            client.spot,
            f"{client.kind} asks at port {client.port}{default}; the "
            f"service answers at {shown}{', ...' if len(doors) > 6 else ''}",
            "",
            # What else runs beside a program is not known.
            WARNING if client.kind in _PYTHON else "",
        )


_PYTHON = ("openai", "requests")


@rule(
    "client/host",
    ERROR,
    "A client asks at an address where something listens.",
    "Give the client the address of the front door.",
    "the servers of the same deployment",
)
def client_host(d: Deployment) -> Iterator[Problem]:
    """An engine that is bound to the node's address does not answer at 127.0.0.1."""
    for client in d.clients:
        if client.host is None or client.port is None or client.host in d.services:
            continue
        at = {
            (server.address, server.everywhere)
            for server in d.servers
            if server.http_port == client.port
        }
        at |= {
            (proxy.host, not proxy.host or proxy.host == "0.0.0.0")
            for proxy in d.proxies
            if proxy.port == client.port
        }
        if not at or any(
            everywhere or host == client.host or fill_ins.holds(host) or not host
            for host, everywhere in at
        ):
            continue
        if client.host in LOOPBACK and any(host in LOOPBACK for host, _ in at):
            continue
        yield Problem(
            client.spot,
            f"{client.kind} asks at {client.host}:{client.port}; that port "
            f"listens at {', '.join(sorted({host for host, _ in at})[:4])}",
        )


def _names(d: Deployment) -> tuple[str, ...]:
    front = [server for server in d.servers if server.role != "prefill" and not server.headless]
    return tuple(dict.fromkeys(name for server in front for name in server.names))


@rule(
    "client/model-name",
    ERROR,
    "A client asks for a name that is served.",
    "Ask for the served name (--served-model-name), and give the tokenizer apart.",
    "OpenAI API: an unknown model is a 404",
)
def client_name(d: Deployment) -> Iterator[Problem]:
    """The server answers 404, 'The model ... does not exist.', to every request."""
    names, hosts = _names(d), _hosts(d)
    adapters = {
        str(item).partition("=")[0]
        for server in d.servers
        for item in server.flags.get("lora-modules") or ()
    }
    for client in d.clients:
        if client.names and client.names.endswith(".py"):
            said = f"{client.kind} asks for {client.names}: a file of Python is no served name"
            yield Problem(client.spot, said, "", WARNING)
    yield from _public(d, names)
    if any(names) and any(fill_ins.holds(name) or "$" in name for name in names):
        yield from _other_folder(d, names)
    if not names or any(fill_ins.holds(name) or not name for name in names):
        return
    for client in d.clients:
        if client.host not in hosts or client.names in adapters:
            continue
        if (
            client.names
            and client.names not in names
            and not fill_ins.holds(client.names)
            and client.path.startswith("/v1/")
            and client.path != "/v1/models"
        ):
            near = next((name for name in names if name.lower() == client.names.lower()), "")
            yield Problem(
                client.spot,
                f"{client.kind} asks for {client.names}; served is {', '.join(names[:4])}",
                f"Only the case differs: write {near}." if near else "",
                WARNING if client.kind in _PYTHON else "",
            )


def _public(d: Deployment, names: Sequence[str]) -> Iterator[Problem]:
    """Yield clients of a document's only engine that ask at a public name for something else."""
    if len(names) != 1 or fill_ins.holds(names[0]) or "$" in names[0]:
        return
    files = {server.spot.file for server in d.servers}
    for client in d.clients:
        asked, host = client.names or "", client.host or ""
        if (
            client.spot.file in files
            and re.fullmatch(r"[\w-]+(\.[\w-]+)+\.[a-z]+", host)
            and asked not in ("", names[0])
            and client.path.startswith("/v1/")
            and "/" in asked
            and not fill_ins.holds(asked + host)
        ):
            said = f"{client.kind} asks for {asked}; served is {names[0]}"
            yield Problem(client.spot, said, "", WARNING)


def _other_folder(d: Deployment, names: Sequence[str]) -> Iterator[Problem]:
    """Yield clients that ask for what begins as no name does, though its end is filled in later."""
    begins = [re.split(rf"{fill_ins.MARK[0]}|\$", name)[0] for name in names]
    if not all(begin.startswith("/") and begin.count("/") > 1 for begin in begins):
        return
    for client in d.clients:
        asked = client.names or ""
        if asked and not fill_ins.holds(asked) and not asked.startswith(tuple(begins)):
            said = f"{client.kind} asks for {asked}; what is served begins with {begins[0]}"
            yield Problem(client.spot, said, "", WARNING)


@rule(
    "client/model-case",
    ERROR,
    "A client names the weights as they are spelt.",
    "Spell it as the server does; folders and caches know upper and lower case.",
    "the model that the server loads; huggingface_hub issues 2090, 3838",
)
def client_case(d: Deployment) -> Iterator[Problem]:
    """The tokenizer is looked up by this name. A folder of another case is not found; the Hub
    takes a repository in any case, so it is downloaded a second time, or not found offline."""
    models = {server.model.lower(): server.model for server in d.servers if server.model}
    for client in d.clients:
        asked = client.tokenizer
        if asked and asked.lower() in models and models[asked.lower()] != asked:
            yield Problem(
                client.spot,
                f"{client.kind} names {asked}, the server loads {models[asked.lower()]}",
                "",
                "" if asked.startswith(("/", ".", "~")) else WARNING,
            )


@rule(
    "client/tokenizer",
    ERROR,
    "A client loads the tokenizer of a checkpoint, not of a served name.",
    "Give --model (or --tokenizer) the repository or folder, and --served-model-name the name.",
    "vllm bench serve: the tokenizer is loaded from --tokenizer, or else from --model",
)
def client_tokenizer(d: Deployment) -> Iterator[Problem]:
    """A served name is no repository: 'is not a local folder and is not a valid model identifier',
    before the first request."""
    served = {name for server in d.servers for name in server.names if name != server.model}
    for client in d.clients:
        if (
            client.kind == "vllm bench serve"
            and client.tokenizer in served
            and "/" not in str(client.tokenizer)
            and "--skip-tokenizer-init" not in client.argv
        ):
            yield Problem(
                client.spot,
                f"{client.kind} loads the tokenizer of {client.tokenizer}, which is a served name",
            )


@rule(
    "client/bench-flag",
    ERROR,
    "A flag of vllm bench exists at its version.",
    "Take the flag out, or spell it as the version does.",
    "the parsers of vllm bench serve, latency and throughput (kimi_nb/data/catalog/vllm.json)",
)
def bench_flags(d: Deployment) -> Iterator[Problem]:
    """'unrecognized arguments': the benchmark ends before its first request."""
    for spot, words in [
        *((one.spot, one.argv) for one in d.clients if one.kind == "vllm bench serve"),
        *((one.spot, one.argv) for one in d.programs if "bench" in one.argv[:8]),
    ]:
        at = word_at(words, "vllm", "bench")
        kind = words[at] if at is not None and at < len(words) else ""
        if at is None or kind not in ("serve", "latency", "throughput"):
            continue
        command = f"bench_{kind}"
        for given in arguments.parse(d.engine, words[at + 1 :], command, 0).given:
            if not given.fault or fill_ins.holds(given.spelt) or not given.spelt.startswith("--"):
                continue
            table = catalog.tables("vllm")[command]
            runs = table.get(f"--{given.name}", [])
            near = difflib.get_close_matches(f"--{given.name}", table, n=1, cutoff=0.75)
            if given.fault == arguments.AMBIGUOUS:
                said = f"could be {', '.join(given.candidates[:4])}"
            elif given.fault == arguments.STRAY:
                said = f"is a switch and takes no value, found '{given.text}'"
            elif given.fault == arguments.MISSING:
                said = "has no value"
            elif runs:
                said = f"is known from {runs[0]['first']} to {runs[-1]['last']}, this is {d.engine}"
            else:
                said = "is in no listed version"
            yield Problem(
                spot,
                f"vllm bench {kind}: {given.spelt} {said}",
                f"Did you mean {near[0]}?" if near and not runs else "",
                # Without a version it may be an older one's, such as --custom-skip-chat-template.
                "" if d.engine_known or (near and not runs and _slip(given, near[0])) else WARNING,
            )


def _slip(given: arguments.Given, flag: str) -> bool:
    """Return whether an option is a flag with a typing error in it, and no other flag."""
    name = f"--{given.name}"
    return abs(len(name) - len(flag)) < 3


@rule(
    "client/trust",
    WARNING,
    "A client that loads the tokenizer may run its code.",
    "Add --trust-remote-code to the client.",
    "recipes issue 116: 'contains custom code'",
)
def client_trusts(d: Deployment) -> Iterator[Problem]:
    """The tokenizer of Kimi is code of the checkpoint: without consent the client stops before
    its first request."""
    consenting = any(server.flags.get("trust-remote-code") for server in d.servers)
    for client in d.clients:
        if (
            client.trusts is False
            and client.kind == "vllm bench serve"
            and (consenting or (not d.servers and d.model is not None))
            and "--skip-tokenizer-init" not in client.argv
        ):
            yield Problem(
                client.spot, f"{client.kind} without --trust-remote-code, while the server needs it"
            )


@rule(
    "client/path",
    WARNING,
    "A client asks at a path that vllm serve has.",
    "Ask at /v1/completions or /v1/chat/completions.",
    "vLLM: /generate was the demo server's (vllm.entrypoints.api_server)",
)
def served_path(d: Deployment) -> Iterator[Problem]:
    """The server answers 404: /generate belongs to the demo server, which speaks no OpenAI API."""
    demo = any(_DEMO in server.argv for server in d.servers)
    for client in d.clients:
        if client.path.rstrip("/") == "/generate" and d.servers and not demo:
            yield Problem(client.spot, f"{client.kind} asks for /generate, which vllm serve lacks")
        elif "//" in client.path or _BARE.fullmatch(client.path):
            at_engine = any(client.port == one.http_port for one in d.servers)
            if at_engine and "root-path" not in d.servers[0].flags:
                yield Problem(client.spot, f"{client.kind} asks for {client.path}")
            elif not (d.servers or d.proxies) and client.host in LOOPBACK and client.port != 4000:
                # LiteLLM answers at 4000, and has these paths.
                yield Problem(
                    client.spot, f"{client.kind} asks for {client.path}: vLLM has it below /v1"
                )
        elif (client.kind, client.path) in _BODIES:
            wanted, other = _BODIES[client.kind, client.path]
            if any(f'"{other}"' in word and f'"{wanted}"' not in word for word in client.argv):
                yield Problem(client.spot, f"{client.path} takes {wanted}, and is sent {other}")
        elif client.kind == "vllm bench serve" and (base := _base(client)):
            yield Problem(
                client.spot,
                f"--base-url ends in {base}, and {client.path} is added to it",
                "Let --base-url end behind the port.",
            )
        elif client.kind == "lm_eval" and re.fullmatch("/?|/v1/?", client.path):
            yield Problem(
                client.spot,
                f"lm_eval asks at {client.path or '/'}: base_url is the whole path",
                "Let base_url end in /v1/completions or /v1/chat/completions.",
            )


_BODIES = {
    ("curl", "/v1/completions"): ("prompt", "messages"),
    ("curl", "/v1/chat/completions"): ("messages", "prompt"),
}
_BARE = re.compile("/((chat/)?completions|models)/?")


def _base(client: Client) -> str:
    """Return the path of the --base-url of vllm bench, "" if it is not the start of the endpoint."""
    at = [place for place, word in enumerate(client.argv) if word.startswith("--base-url")]
    if not at:
        return ""
    _, equals, text = client.argv[at[-1]].partition("=")
    text = text if equals else "".join(client.argv[at[-1] + 1 : at[-1] + 2])
    path = split_url(text)[2].rstrip("/")
    return path if path and client.path.startswith(f"{path}/") else ""


@rule(
    "client/demo-server",
    WARNING,
    "A service is started by vllm serve.",
    "Write vllm serve MODEL; clients ask at /v1/completions.",
    "vLLM: vllm.entrypoints.api_server was a demonstration, and is gone by 0.32.0",
)
def demo_server(d: Deployment) -> Iterator[Problem]:
    """The demo server has neither the OpenAI API nor its options, and later versions do not have
    it."""
    for server, _ in d.profiles():
        if _DEMO in server.argv:
            yield Problem(server.spot, f"{_DEMO} is the demo server: no OpenAI API")


_DEMO = "vllm.entrypoints.api_server"


@rule(
    "client/proxy-path",
    WARNING,
    "A client asks the front door for what it has.",
    "Ask an engine directly for /v1/models, /health and /metrics; the proxy has /healthcheck.",
    "load_balance_proxy_server_example.py: /v1/completions, /v1/chat/completions, /healthcheck",
)
def proxy_path(d: Deployment) -> Iterator[Problem]:
    """The upstream proxy answers 404 to everything but completions and /healthcheck."""
    doors = {proxy.port for proxy in d.proxies if proxy.kind == "upstream"}
    engines = {server.http_port for server in d.servers}
    for client in d.clients:
        if client.port in doors - engines and client.path in (
            "/v1/models",
            "/health",
            "/metrics",
            "/ping",
            "/version",
        ):
            yield Problem(client.spot, f"{client.kind} asks the upstream proxy for {client.path}")


@rule(
    "client/endpoint",
    ERROR,
    "A chat client asks at the chat path.",
    "Use --endpoint /v1/chat/completions with --backend openai-chat.",
    "vllm bench serve: backend and endpoint belong together",
)
def chat_endpoint(d: Deployment) -> Iterator[Problem]:
    """The client refuses the pair, or every request is a 422."""
    for client in d.clients:
        if client.kind != "vllm bench serve":
            continue
        backend = _option(client, "--backend")
        if backend == "openai-chat" and not client.path.endswith("/chat/completions"):
            yield Problem(client.spot, f"--backend openai-chat asks at {client.path}")
        elif backend in ("vllm", "openai") and client.path.endswith("/chat/completions"):
            yield Problem(client.spot, f"--backend {backend} asks at {client.path}")


def _option(client: Client, name: str) -> str:
    for index, word in enumerate(client.argv):
        if word == name:
            return client.argv[index + 1] if index + 1 < len(client.argv) else ""
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return ""


@rule(
    "client/lm-eval",
    WARNING,
    "An accuracy run says its few-shot and chat settings.",
    "Add --num_fewshot, --apply_chat_template and --fewshot_as_multiturn, with "
    "local-chat-completions.",
    "the reference settings of published scores",
)
def lm_eval_settings(d: Deployment) -> Iterator[Problem]:
    """The score of other settings cannot be compared with the published one."""
    for client in d.clients:
        if client.kind != "lm_eval":
            continue
        missing = [
            name
            for name, short in (("--num_fewshot", "-f"), ("--apply_chat_template", ""))
            if not any(word.startswith(name) or (short and word == short) for word in client.argv)
        ]
        if missing:
            yield Problem(client.spot, f"lm_eval without {' and '.join(missing)}")


# Containers ----------------------------------------------------------------------------------


@rule(
    "client/published-port",
    ERROR,
    "A published port leads to the port of the engine.",
    "Write -p HOST:CONTAINER with the engine's --port on the right.",
    "docker run -p",
)
def published_leads(d: Deployment) -> Iterator[Problem]:
    """Requests reach the host and end inside the container at a closed port."""
    by_node: dict[str, list[EngineView]] = {}
    for server in d.servers:
        by_node.setdefault(server.node, []).append(server)
    for box in d.boxes:
        inside = by_node.get(box.node, []) if box.runs_engine and not box.host_network else []
        for text in box.published:
            port = numbers.whole(text.rpartition(":")[2].partition("/")[0])
            for server in inside:
                if (
                    port is not None
                    and server.http_port is not None
                    and port != server.http_port
                    and len(box.published) == 1
                ):
                    yield Problem(
                        box.spot, f"-p {text}: the engine inside listens at {server.http_port}"
                    )


@rule(
    "client/hccn-conf",
    WARNING,
    "A container of several nodes sees the NPU network.",
    "Add -v /etc/hccn.conf:/etc/hccn.conf (upstream also runs --privileged=true).",
    "vllm-ascend issue 2970",
    needs=("ascend",),
)
def hccn_conf(d: Deployment) -> Iterator[Problem]:
    """Without /etc/hccn.conf the NPUs' addresses are not known inside: Mooncake and HCCL over
    nodes end with 'status: 103900'."""
    for box in d.boxes:
        if box.devices and not any(
            mount.partition(":")[2].startswith("/etc/hccn.conf")
            or mount.startswith("/etc/hccn.conf")
            for mount in box.mounts
        ):
            yield Problem(
                box.spot,
                "/etc/hccn.conf is not mounted: needed as soon as a second node takes part",
            )


@rule(
    "client/cache-mount",
    NOTE,
    "The mounted cache is where the libraries look.",
    "Mount it at /root/.cache, or set HF_HOME and MODELSCOPE_CACHE inside.",
    "hub libraries look below ~/.cache",
)
def cache_mount(d: Deployment) -> Iterator[Problem]:
    """A cache mounted elsewhere is not found: the weights are downloaded again."""
    for box in d.boxes:
        for mount in box.mounts:
            source, _, target = mount.partition(":")
            target = target.partition(":")[0]
            if (
                ".cache" in source
                and ".cache" not in target
                and target.endswith("cache")
                and "HF_HOME" not in box.env
                and "HF_HUB_CACHE" not in box.env
            ):
                yield Problem(box.spot, f"the cache {source} is mounted at {target}")
