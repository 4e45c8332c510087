"""Configure the front door of a prefill-decode plan: the upstream proxy, or vllm-router."""

from __future__ import annotations

from collections.abc import Sequence

from kimi_nb.plan.spec import EngineSpec, Router

UPSTREAM = "load_balance_proxy_server_example.py"


def router(kind: str, port: int, engines: Sequence[EngineSpec]) -> Router:
    """Return the router on the first prefill node, for every engine with an API, in their order."""
    prefill, decode = (
        [engine for engine in engines if engine.role == role and engine.url]
        for role in ("prefill", "decode")
    )
    host = prefill[0].address
    argv = (_upstream if kind == "upstream" else _vllm_router)(host, port, prefill, decode)
    workers = tuple((engine.role, engine.url or "", engine.name) for engine in prefill + decode)
    return Router(kind, prefill[0].node, host, port, workers, tuple(argv))


def _upstream(
    host: str, port: int, prefill: list[EngineSpec], decode: list[EngineSpec]
) -> list[str]:
    return [
        "python",
        UPSTREAM,
        "--port",
        str(port),
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
    host: str, port: int, prefill: list[EngineSpec], decode: list[EngineSpec]
) -> list[str]:
    return [
        "vllm-router",
        "--host",
        host,
        "--port",
        str(port),
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
