"""Configure the front door of a plan: the upstream proxy, or vllm-router.

In layout pd it has each request go through prefill and decode. In front of groups that serve alike
it is vllm-router, which hands the requests to them in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kimi_nb.core.errors import ParameterError
from kimi_nb.plan.spec import EngineSpec, Router

UPSTREAM = "load_balance_proxy_server_example.py"
VLLM_ROUTER = "vllm-router"
# How results name the cause of what no engine can keep behind the upstream proxy.
EXAMPLE_PROXY = "example-proxy"

# Measured: tests/rehearse/contract/upstream_proxy.json, recorded of the real program in front of
# scripted engines.
_HIDES = (
    "the front door is vllm-ascend's example proxy: what prefill refuses (an unknown model, bad "
    "JSON, a prompt too long) is a 500 without a reason, what decode refuses or breaks off is a 200 "
    "with no text or half of it, a decode engine that has died goes on getting requests, and there "
    "is no /v1/models and no /health (measured, vllm-ascend v0.18.0 to v0.25.1rc1, in front of "
    f"scripted engines). --set router={VLLM_ROUTER} plans a front door that passes refusals on."
)

DOOR = "keyed_door.py"  # of the bundle; it replaces {host} and {port} in what follows --


class Place(NamedTuple):
    """Where a router runs: its node, the host of its URL, and the address at which it listens."""

    node: str
    host: str
    binds: str


def router(
    kind: str,
    port: int,
    engines: Sequence[EngineSpec],
    keyed: bool = False,
    folder: str = "",
    place: Place | None = None,
) -> Router:
    """Return the router for every engine with an API, in their order; on the first's node.

    In layout pd both kinds send the engines the key of their own environment, whoever calls (the
    upstream proxy by its source from v0.17.0rc1 to v0.23.0, vllm-router 0.1.17 as tried). In front
    of equal groups vllm-router passes the caller's key on, but also takes further workers from
    anybody (POST /add_worker, as tried), who would see the requests and their keys. With a key
    (``keyed``) they therefore stand behind a door that asks for it. ``folder`` is that of `Router`.
    """
    workers = [
        engine
        for role in ("prefill", "decode", "mixed")
        for engine in engines
        if engine.role == role and engine.url
    ]
    at = place or Place(workers[0].node, workers[0].address, workers[0].address)
    listed = tuple((engine.role, engine.url or "", engine.name) for engine in workers)
    listens = ("{host}", "{port}") if keyed else (at.binds, str(port))
    argv = (
        _upstream(*listens, workers)
        if kind == "upstream"
        else vllm_router(*listens, [(role, url) for role, url, _ in listed])
    )
    if keyed:
        argv = door(at.binds, port, argv)
    return Router(kind, at.node, at.host, port, listed, tuple(argv), folder)


def notes(router: Router | None) -> tuple[str, ...]:
    """Return what a front door does to its users, where they would not expect it."""
    return (_HIDES,) if router is not None and router.kind == "upstream" else ()


def door(host: str, port: int, inner: Sequence[str], program: str = DOOR) -> list[str]:
    """Return the command line of the door that asks for the key, in front of a router."""
    return ["python", program, "--host", host, "--port", str(port), "--", *inner]


def check(kind: str | None, port: int | None, layout: str, doors: int) -> None:
    """Refuse a router where it has nothing to do, and its port where there is none.

    ``kind`` and ``port`` are None where nobody asks for them; ``doors`` is how many APIs the groups
    have. Raises ParameterError.
    """
    if layout == "pd":
        return
    if kind is None:
        if port is not None:
            raise ParameterError(
                f"--set router.port={port}: layout {layout} has no router of its own; "
                f"router={VLLM_ROUTER} puts one in front of several groups (groups=2)."
            )
    elif kind != VLLM_ROUTER:
        raise ParameterError(
            f"--set router={kind}: the upstream proxy sends each request to a prefill and then to a "
            f"decode engine, which only layout pd has. In layout {layout} choose "
            f"router={VLLM_ROUTER}."
        )
    elif doors < 2:
        raise ParameterError(
            f"router {VLLM_ROUTER}: layout {layout} has one group here, and the API of one group "
            "needs no router. Plan several (--set groups=2), or leave the router out."
        )


def _upstream(host: str, port: str, workers: Sequence[EngineSpec]) -> list[str]:
    prefill, decode = (
        [engine for engine in workers if engine.role == role] for role in ("prefill", "decode")
    )
    return [
        "python",
        UPSTREAM,
        "--port",
        port,
        "--host",
        host,
        "--prefiller-hosts",
        *(engine.address for engine in prefill),
        "--prefiller-ports",
        *(str(engine.http_port) for engine in prefill),
        "--decoder-hosts",
        *(engine.address for engine in decode),
        "--decoder-ports",
        *(str(engine.http_port) for engine in decode),
    ]


def vllm_router(
    host: str, port: str, workers: Sequence[tuple[str, str]], patience: int = 3600
) -> list[str]:
    """Return the command line of vllm-router for (role, URL) of each engine with an API.

    The policy is round_robin in every layout. cache_aware would ask every engine to render every
    chat before it chooses one (/v1/chat/completions/render, as tried with 0.1.17). ``patience`` is
    how many seconds the engines may take to start.
    """
    alike = [url for role, url in workers if role == "mixed"]
    return [
        VLLM_ROUTER,
        "--host",
        host,
        "--port",
        port,
        *([] if alike else ["--vllm-pd-disaggregation"]),
        "--policy",
        "round_robin",
        *(["--worker-urls", *alike] if alike else []),
        *(word for role, url in workers if role != "mixed" for word in (f"--{role}", url)),
        "--worker-startup-timeout-secs",
        str(patience),
        "--worker-startup-check-interval",
        "5",
    ]
