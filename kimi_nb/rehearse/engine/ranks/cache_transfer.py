"""Transfer KV cache: prefill keeps it at its KV ports, and decode fetches it from there.

The cache of a prompt is represented by the digest of the prompt and by a fixed number of bytes for
each block. Decode continues only with what it received, and only if the engine at the other port
has the identity and the sizes that decode's own command line declares.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from kimi_nb.rehearse import loopback
from kimi_nb.rehearse.engine.engine_log import Log, StartError
from kimi_nb.rehearse.engine.start.start_settings import Settings, Transfer

BLOCK = 128  # tokens of a block, as on Ascend
BYTES = 256  # sent for each block of each tensor parallel rank
_MOST = 4096  # prompts to keep; the oldest is dropped first
PATIENCE = 2.0  # seconds for a connection; real connectors wait minutes

At = Callable[[str], str]  # `Call.at` of the node


class TransferError(Exception):
    """A transfer failed; the message is in the connector's words."""


class Store:
    """The prefill side: the caches that were computed, offered at the KV ports."""

    def __init__(self, settings: Settings, log: Log, at: At, blocked: bool) -> None:
        assert settings.transfer is not None
        self._settings, self._log, self._blocked = settings, log, blocked
        self._transfer: Transfer = settings.transfer
        # A side channel on "localhost" can be reached from its own node only.
        self._bind = at(self._transfer.host)
        self._kept: dict[str, Mapping[str, Any]] = {}
        self._servers: list[asyncio.Server] = []

    async def listen(self) -> None:
        """Listen on every port of the connector.

        Raises:
            StartError: A port is taken.
        """
        for port in self._transfer.ports:
            try:
                self._servers.append(await asyncio.start_server(self._serve, self._bind, port))
            except OSError:
                self._log.error(
                    "mooncake_connector.py:1036",
                    "KV Cache sending/receiving thread failed to start.",
                )
                raise StartError(
                    "zmq.error.ZMQError",
                    f"Address already in use (addr='tcp://{loopback.shown(self._bind)}:{port}')",
                    self._rank(port),
                ) from None

    def _rank(self, port: int) -> int:
        step = len(self._transfer.ports) // self._settings.ranks
        return self._settings.rank + (port - self._transfer.ports.start) // max(1, step)

    def keep(self, request: str, digest: str, tokens: int, rank: int) -> dict[str, Any]:
        """Keep the cache of a prompt, and return the kv_transfer_params for fetching it."""
        blocks = -(-tokens // BLOCK)
        self._kept[request] = {"digest": digest, "blocks": blocks}
        if len(self._kept) > _MOST:
            del self._kept[next(iter(self._kept))]
        mine, first = self._settings, self._transfer.ports.start
        step = len(self._transfer.ports) // mine.ranks
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(range(blocks)),
            "remote_engine_id": self._transfer.engine_id,
            "remote_request_id": request,
            "remote_host": self._transfer.host,
            "remote_port": first + (rank - mine.rank) * step,
            "tp_size": mine.tp,
            "ports": step,
        }

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = json.loads(await reader.readline() or b"{}")
            if self._blocked:  # stay silent, as behind a firewall
                await asyncio.sleep(3600)
            kept = self._kept.get(str(asked.get("request")))
            mine = self._settings
            answer = {
                "engine_id": self._transfer.engine_id,
                "dp": mine.dp,
                "tp": mine.tp,
                "declared": self._transfer.declared,
                "found": kept is not None,
            }
            if kept:
                answer |= kept
            writer.write(json.dumps(answer).encode() + b"\n")
            if kept:
                writer.write(bytes(BYTES * int(kept["blocks"])))
            await writer.drain()
        except (OSError, ValueError):
            pass
        finally:
            writer.close()


async def fetch(params: Mapping[str, Any], mine: Settings, at: At) -> tuple[str, int]:
    """Fetch the cache of a prompt and return its digest and its size in bytes.

    ``params`` are the kv_transfer_params that name the prefill engine, ``at`` is `Call.at`. Each of our tensor parallel
    ranks has a connection of its own.

    Raises:
        TransferError: A port does not answer, or the engine there is not the declared one or does
            not have the declared sizes.
    """
    host, port, tp_size = (params.get(name) for name in ("remote_host", "remote_port", "tp_size"))
    wide = 1 if tp_size is None else tp_size
    here = params.get("ports", wide)  # of those that the rank has on its first node
    if not (isinstance(host, str) and _is_number(port, 65535) and _is_number(here, 4096)):
        raise TransferError(
            f"kv_transfer_params name no engine: remote_host {host!r}, "
            f"remote_port {port!r}, tp_size {wide!r}"
        )
    mooncake = mine.transfer is not None and "ooncake" in mine.transfer.connector
    results = await asyncio.gather(
        *(
            _fetch_one(
                params,
                mine,
                at(host),
                port + (part % here if mooncake else 0),
                mooncake,
            )
            for part in range(mine.tp)
        )
    )
    return results[0][0], sum(size for _, size in results)


def _is_number(value: Any, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


async def _fetch_one(
    params: Mapping[str, Any], mine: Settings, host: str, port: int, mooncake: bool
) -> tuple[str, int]:
    where = f"{loopback.shown(host)}:{port}"
    if loopback.is_own(host):
        where += " of the node itself"
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), PATIENCE)
    except (TimeoutError, OSError):
        raise TransferError(
            f"Mooncake transfer failed, ret: -1. Failed to connect to target {where}, status: "
            "103905"
            if mooncake
            else f"NIXL_ERR_BACKEND: no connection to {where}"
        ) from None
    try:
        writer.write(json.dumps({"request": params.get("remote_request_id")}).encode() + b"\n")
        line = await asyncio.wait_for(reader.readline(), PATIENCE)
        answer = json.loads(line or b"{}")
        _check(params, mine, answer, where)
        size = BYTES * int(answer["blocks"])
        await asyncio.wait_for(reader.readexactly(size), PATIENCE)
    except TimeoutError:
        raise TransferError(
            f"Mooncake transfer failed, ret: -1. Connect timeout to {where}, status: 103902"
            if mooncake
            else f"NIXL_ERR_BACKEND on postXferReq: {where} is silent"
        ) from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise TransferError(f"KV transfer from {where} broke off: {error}") from None
    finally:
        writer.close()
    return str(answer["digest"]), size


def _check(
    params: Mapping[str, Any], mine: Settings, answer: Mapping[str, Any], where: str
) -> None:
    if answer.get("engine_id") != params.get("remote_engine_id"):
        raise TransferError(
            f"Remote engine id mismatch at {where}: expected "
            f"{params.get('remote_engine_id')!r}, got {answer.get('engine_id')!r}"
        )
    sizes = (answer.get("dp"), answer.get("tp"))
    declared = mine.transfer.declared if mine.transfer else {}
    if "prefill" in declared and declared["prefill"] != sizes:
        dp, tp = declared["prefill"]
        raise TransferError(
            f"KV sizes differ: kv_connector_extra_config here declares prefill dp {dp} tp {tp}, "
            f"engine {answer.get('engine_id')} at {where} runs dp {sizes[0]} tp {sizes[1]}"
        )
    theirs = answer.get("declared", {}).get("decode")
    if theirs and tuple(theirs) != (mine.dp, mine.tp):
        raise TransferError(
            f"KV sizes differ: kv_connector_extra_config of engine {answer.get('engine_id')} at "
            f"{where} declares decode dp {theirs[0]} tp {theirs[1]}, here run dp {mine.dp} tp "
            f"{mine.tp}"
        )
    if not answer.get("found"):
        raise TransferError(
            f"{where} holds no cache for request {params.get('remote_request_id')!r}"
        )
