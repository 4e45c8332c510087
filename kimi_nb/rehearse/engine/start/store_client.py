"""Join a shared KV store as vLLM's MooncakeStoreConnector does, or refuse to start."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

from kimi_nb.plan.store_settings import PATH_VARIABLE
from kimi_nb.rehearse.engine.engine_log import Log, StartError
from kimi_nb.rehearse.engine.start.start_settings import Settings
from kimi_nb.rehearse.host_programs import shared_store
from kimi_nb.rehearse.stand_in_call import Call

_SIZE = r"\s*([\d.]+)\s*(gb|mb|kb|b)?\s*"


async def join(call: Call, mine: Settings, log: Log) -> None:
    """Connect an engine to the master that its file names, and watch whether that stays.

    Raises:
        StartError: In the words of vLLM, or of Mooncake.
    """
    if not mine.shared_store:
        return
    config = _config(call, mine)
    address = str(config.get("master_server_address", ""))
    link = await asyncio.to_thread(shared_store.join, call, address, shared_store.ENGINE)
    if link is None:
        raise StartError("RuntimeError", "Initialize MooncakeDistributedStore failed.", mine.rank)
    log.info(
        "worker.py:1443",
        f"Mooncake mode={config.get('mode', 'embedded')} (global_segment_size="
        f"{config.get('global_segment_size')}, local_buffer_size={config.get('local_buffer_size')})",
    )
    _watch(link)


def _watch(link: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    link.setblocking(False)

    def gone() -> None:
        try:
            if link.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        loop.remove_reader(link.fileno())
        link.close()
        shared_store.lost()

    loop.add_reader(link.fileno(), gone)


def _config(call: Call, mine: Settings) -> dict[str, Any]:
    """Return the settings of the store. Raises StartError for what vLLM refuses."""
    path = call.env.get(PATH_VARIABLE)
    if not path:
        raise StartError(
            "ValueError", f"The environment variable '{PATH_VARIABLE}' is not set.", mine.rank
        )
    try:
        config = json.loads(Path(call.folder, path).read_text(encoding="utf-8"))
    except OSError:
        raise StartError(
            "FileNotFoundError", f"[Errno 2] No such file or directory: '{path}'", mine.rank
        ) from None
    except ValueError as error:
        raise StartError("json.decoder.JSONDecodeError", str(error), mine.rank) from None
    mode, segment = config.get("mode", "embedded"), _size(config, "global_segment_size", mine)
    for wrong, text in (
        (mode not in ("embedded", "standalone-store"), f"unknown Mooncake mode: {mode!r}"),
        (_size(config, "local_buffer_size", mine) <= 0, "local_buffer_size must be > 0"),
        (
            mode == "embedded" and segment == 0,
            "embedded mode requires global_segment_size > 0",
        ),
        (
            mode == "standalone-store" and segment != 0,
            "standalone-store mode requires global_segment_size == 0",
        ),
    ):
        if wrong:
            raise StartError("ValueError", text, mine.rank)
    return dict(config)


def _size(config: dict[str, Any], name: str, mine: Settings) -> float:
    value = config.get(name, 1)
    if isinstance(value, int):
        return value
    match = re.fullmatch(_SIZE, str(value).lower())
    if match is None:
        raise StartError("ValueError", f"Invalid format: '{value}'", mine.rank)
    return float(match[1])
