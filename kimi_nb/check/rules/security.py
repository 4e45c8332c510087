"""Rules on who can reach what: open ports, open folders, unpinned code, secrets in plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from kimi_nb.catalog import fill_ins
from kimi_nb.catalog.arguments import Unread
from kimi_nb.check.findings import ERROR, NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import LOOPBACK, EngineView, Spot

_SECRET_NAME = re.compile(r"(^|_)(TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
# What tokens of well-known services look like; the value itself is never shown.
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{24,}|sk-[A-Za-z0-9_-]{20,}|ghp_[A-Za-z0-9]{30,}|"
    r"glpat-[A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})"
)
# A name, and the token that it is set to: in YAML, in JSON, or before a command.
SET = re.compile(
    r"""\b([A-Za-z]\w{2,60})["']?[ \t]*[:=][ \t]*["']?((?:hf_|sk-|ghp_|glpat-|AKIA)[\w-]{12,200})"""
)


@rule(
    "security/local-media",
    WARNING,
    "Clients may name files of one media folder at most.",
    "Leave --allowed-local-media-path out, or name one folder that holds only media.",
    "vLLM: file:// URLs below the folder are read for any client",
)
def local_media(d: Deployment) -> Iterator[Problem]:
    """With / any client reads any file of the container, keys and weights included."""
    for server, _ in d.profiles():
        folder = server.text("allowed-local-media-path")
        if folder in ("/", "/root", "/home", "/etc", "/var", "~", "/mnt"):
            yield Problem(
                server.of("allowed-local-media-path"),
                f"--allowed-local-media-path {folder}: any client can read any file there",
            )


@rule(
    "security/open-api",
    WARNING,
    "A service that others can reach asks for a key.",
    "Listen at the node's own address behind a firewall, and give VLLM_API_KEY by name.",
    "vLLM: without --host it listens on every interface, without a key it asks nobody",
)
def open_api(d: Deployment) -> Iterator[Problem]:
    """Whoever reaches any interface of the node uses the model and reads its metrics."""
    for server, _ in d.profiles():
        if (
            server.headless
            or server.flags.get("api-key")
            or server.env.get("VLLM_API_KEY")
            or isinstance(server.flags.get("host"), Unread)
        ):
            continue
        if d.plan is not None and d.plan.secrets:
            continue
        # Inside a container with a network of its own the published port decides.
        inside = any(
            one.runs_engine and one.node == server.node and not one.host_network for one in d.boxes
        )
        if server.everywhere and not inside:
            how = f"--host {server.text('host')}" if server.flags.get("host") else "no --host"
            yield Problem(
                server.of("host"),
                f"{how} and no API key: it listens on every interface and asks nobody",
            )


@rule(
    "security/published-port",
    WARNING,
    "A published port is bound to one address.",
    "Write -p ADDRESS:8000:8000 with 127.0.0.1 or the node's own address.",
    "docker: a published port goes past the host's firewall",
)
def published(d: Deployment) -> Iterator[Problem]:
    """Docker opens a published port on every interface, before the rules of the firewall."""
    for one in d.boxes:
        if (
            not one.runs_engine
            or one.env.get("VLLM_API_KEY")
            or any(word.partition("=")[0] == "--api-key" for word in one.argv)
            or "VLLM_API_KEY" in one.passes
        ):
            continue
        for text in one.published:
            parts = text.rsplit(":", 2)
            address = parts[0] if len(parts) == 3 else ""
            if (
                address in ("", "0.0.0.0", "[::]")
                and not fill_ins.holds(text)
                and address not in LOOPBACK
            ):
                yield Problem(
                    one.spot,
                    f"-p {text} publishes the port on every interface, and there is no API key",
                )


@rule(
    "security/open-door",
    ERROR,
    "A front door asks for the key that its engines ask for.",
    "Put a server that checks Authorization before the proxy, and the proxy at 127.0.0.1: a bundle "
    "for a site with api_key_env has keyed_door.py for it.",
    "load_balance_proxy_server_example.py v0.17.0rc1 to v0.23.0; vllm-router 0.1.17, tried",
)
def open_door(d: Deployment) -> Iterator[Problem]:
    """Between prefill and decode the upstream proxy and vllm-router put OPENAI_API_KEY of their own
    environment into every request, whoever calls: with it everybody gets in, without it nobody.
    In front of equal engines vllm-router takes further ones from anybody, who see the keys."""
    keyed = (d.plan is not None and bool(d.plan.secrets)) or any(
        server.flags.get("api-key") or server.env.get("VLLM_API_KEY") for server in d.servers
    )
    for proxy in d.proxies:
        if keyed and not proxy.asks and proxy.host not in LOOPBACK:
            name = _PROXIES.get(proxy.kind, proxy.kind)
            adds = "worker-urls" in proxy.lists
            does = (
                "takes engines from anybody (POST /add_worker), which then get the callers' keys"
                if adds
                else "sends its own for every caller"
            )
            yield Problem(
                proxy.spot,
                f"the engines ask for a key, and {name} {does}",
                "",
                WARNING if adds else "",  # callers without a key are still refused
            )


_PROXIES = {"upstream": "the upstream proxy"}


@rule(
    "security/floating-code",
    NOTE,
    "Code of a checkpoint is pinned where it may run.",
    "Give --revision and --code-revision a commit of the repository, or a local folder.",
    "Hugging Face: remote code of the main branch runs as you",
)
def floating_code(d: Deployment) -> Iterator[Problem]:
    """--trust-remote-code runs what the repository holds at the moment of the start: whoever can
    push there runs code on your nodes."""
    for server, _ in d.profiles():
        if (
            not server.flags.get("trust-remote-code")
            or server.flags.get("revision")
            or server.flags.get("code-revision")
        ):
            continue
        if re.fullmatch(r"[\w.-]+/[\w.-]+", server.model):
            yield Problem(
                server.of("trust-remote-code"),
                f"--trust-remote-code with the newest revision of {server.model}",
            )


@rule(
    "security/secret",
    WARNING,
    "No secret stands in a command line or a script.",
    "Read it from the environment or a file: export it outside, name it here.",
    "ps and docker inspect show arguments to every user",
)
def secret(d: Deployment) -> Iterator[Problem]:
    """A key in a script is in the repository, in ps and in every log that echoes the command."""
    texts: list[tuple[Spot, Sequence[str], Mapping[str, str], EngineView | None]] = [
        (server.spot, server.argv, server.env, server) for server, _ in d.profiles()
    ]
    texts += [(box.spot, box.argv, box.env, None) for box in d.boxes]
    texts += [(program.spot, program.argv, program.env, None) for program in d.programs]
    texts += [(one.spot, one.argv, {}, None) for one in d.clients]
    for spot, argv, env, server in texts:
        for word in argv:
            if _SECRET_VALUE.search(word):
                yield Problem(spot, "a token stands in the command (its value is not shown)")
        for name, value in env.items():
            at = server.env_at(name) if server else spot
            if _SECRET_VALUE.search(value):
                yield Problem(at, f"{name} holds a token (its value is not shown)")
            elif (
                _SECRET_NAME.search(name)
                and len(value) > 7
                and not fill_ins.holds(value)
                and not _placeholder(value)
            ):
                yield Problem(at, f"{name} is set to a fixed text (not shown)")
        if server is not None and isinstance(server.flags.get("api-key"), list | str):
            given = server.flags["api-key"]
            text = given if isinstance(given, str) else " ".join(map(str, given))
            if not fill_ins.holds(text) and "Unread" not in text and text:
                yield Problem(
                    server.of("api-key"),
                    "--api-key stands in the command (its value is "
                    "not shown): ps shows it to every user",
                )


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a secret, which no script may contain."""
    if _placeholder(value):
        return False
    return bool(_SECRET_VALUE.search(value)) or (
        bool(_SECRET_NAME.search(name)) and len(value) > 7 and not fill_ins.holds(value)
    )


def _placeholder(value: str) -> bool:
    return bool(re.search(r"[<>]|your|xxx|EMPTY|token-abc|changeme", value, re.IGNORECASE))


@rule(
    "security/privileged",
    NOTE,
    "A container has no more rights than it needs.",
    "Hand in the devices with --device (or --gpus) instead.",
    "docker run --privileged",
)
def privileged(d: Deployment) -> Iterator[Problem]:
    """A privileged container can do to the host what root can."""
    for one in d.boxes:
        if one.options.get("--privileged", ("",))[0] == "true":
            yield Problem(one.spot, "--privileged")


@rule(
    "security/floating-image",
    WARNING,
    "An image has a version.",
    "Name a released tag, or a digest.",
    "flags change from version to version",
)
def floating_image(d: Deployment) -> Iterator[Problem]:
    """latest is another program every few weeks: what was checked today is not what starts
    tomorrow."""
    for one in d.boxes:
        name = one.image.rpartition("/")[2]
        tag = name.partition(":")[2] if "@" not in name else "digest"
        if (
            one.image
            and not fill_ins.holds(one.image)
            and (tag in ("", "latest", "nightly", "main") or tag.endswith(("-nightly", "latest")))
        ):
            yield Problem(
                one.spot, f"the image {one.image} floats: its tag is {tag or 'latest, by default'}"
            )
