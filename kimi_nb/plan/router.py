"""Configure the front door of a prefill-decode plan: the upstream proxy, or vllm-router."""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.plan.spec import EngineSpec, Router

UPSTREAM = "load_balance_proxy_server_example.py"


DOOR = "keyed_door.py"  # of the bundle; it replaces {host} and {port} in what follows --


def router(kind: str, port: int, engines: Sequence[EngineSpec], keyed: bool = False) -> Router:
    """Return the router on the first prefill node, for every engine with an API, in their order.

    Both send the engines the key of their own environment, whoever calls (the upstream proxy by its
    source from v0.17.0rc1 to v0.23.0, vllm-router 0.1.17 as tried). With a key (``keyed``) they
    therefore stand behind a door that asks for it.
    """
    prefill, decode = (
        [engine for engine in engines if engine.role == role and engine.url]
        for role in ("prefill", "decode")
    )
    host = prefill[0].address
    listens = ("{host}", "{port}") if keyed else (host, str(port))
    argv = (_upstream if kind == "upstream" else _vllm_router)(*listens, prefill, decode)
    if keyed:
        argv = ["python", DOOR, "--host", host, "--port", str(port), "--", *argv]
    workers = tuple((engine.role, engine.url or "", engine.name) for engine in prefill + decode)
    return Router(kind, prefill[0].node, host, port, workers, tuple(argv))


def _upstream(
    host: str, port: str, prefill: list[EngineSpec], decode: list[EngineSpec]
) -> list[str]:
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


def _vllm_router(
    host: str, port: str, prefill: list[EngineSpec], decode: list[EngineSpec]
) -> list[str]:
    return [
        "vllm-router",
        "--host",
        host,
        "--port",
        port,
        "--vllm-pd-disaggregation",
        "--policy",
        "round_robin",
        *(word for engine in prefill for word in ("--prefill", engine.url or "")),
        *(word for engine in decode for word in ("--decode", engine.url or "")),
        "--worker-startup-timeout-secs",
        "3600",
        "--worker-startup-check-interval",
        "5",
    ]
