"""Stand in for the parts of a shared KV store: mooncake_master, and the store service.

They take the words that the real ones take (Mooncake 0.3.13.post1, as it was run), listen where they
would, and hold no cache. A client of the master stays connected, as a real one sends it heartbeats;
what it says first is who it is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from kimi_nb.core import data_files
from kimi_nb.core.marks import MARK
from kimi_nb.plan import ports
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.stand_in_call import Call, Refused

MASTER, SERVICE = "mooncake_master", "mooncake_store_service.py"
ENGINE = b"engine\n"  # what an engine says to the master first
_PATIENCE = 3.0  # seconds to look for the master; a real client takes a minute and a half
_NUMBERS = {"int32": r"-?\d+", "int64": r"-?\d+", "uint32": r"\d+", "uint64": r"\d+"}
_BOOLS = ("true", "false", "t", "f", "yes", "no", "y", "n", "1", "0")
_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")


def master(call: Call) -> int:
    """Run ``mooncake_master``: listen for clients until a signal."""
    given = options(call.words)
    if "version" in given:
        print(f"mooncake_master version 0.3.13.post1 ({MARK})")
        return 0
    _ratio(given, "eviction_ratio", "Mem eviction ratio")
    _ratio(given, "eviction_high_watermark_ratio", "Mem eviction high watermark ratio")
    rpc = int(given.get("rpc_port", 0)) or int(given.get("port", ports.STORE_MASTER))
    metrics = int(given.get("metrics_port", ports.STORE_METRICS))
    _glog(
        "I", "master.cpp:1522", f"Master service started on port {rpc} ({MARK}: it holds no cache)"
    )
    admin = _listen(call.address, metrics)
    if admin is None:
        _glog(
            "E",
            "master_admin_service.cpp:269",
            f"Failed to start master admin server on 0.0.0.0:{metrics}: Address already in use",
        )
        _glog("E", "master.cpp:1651", "Failed to start master admin server")
        return 1
    _glog("I", "master_admin_service.cpp:310", f"Master admin server started on port {metrics}")
    door = _listen(call.address, rpc)
    if door is None:
        return 1  # the real one says nothing either
    engines = 0

    def said(words: bytes) -> None:
        nonlocal engines
        engines += words.count(ENGINE)
        fault = call.site.fault(FaultName.STORE_MASTER_DIES, call.node)
        if fault and engines >= len(call.site.nodes):
            os.kill(os.getpid(), signal.SIGKILL)

    return _serve(call, [admin, door], said)


def options(words: tuple[str, ...]) -> dict[str, str]:
    """Return the options of a command line as gflags reads them.

    Raises:
        Refused: An option is not known, or has a value of another type.
    """
    table: Mapping[str, Any] = data_files.facts("rehearse/shared_store")["master"]
    kinds = {name: kind for kind, names in table.items() for name in names}
    out: dict[str, str] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-") or word == "--":
            continue  # gflags leaves what is no option to the program, which takes none
        name, equals, value = word.lstrip("-").partition("=")
        kind = kinds.get(name) or ("bool" if kinds.get(name.removeprefix("no")) == "bool" else "")
        if not kind:
            raise Refused(f"ERROR: unknown command line flag '{name}'")
        if kind == "bool":
            value = value if equals else "true"
        elif not equals:
            if not waiting:
                raise Refused(f"ERROR: flag '{name}' is missing its argument")
            value = waiting.pop(0)
        if not _is(kind, value):
            raise Refused(f"ERROR: illegal value '{value}' specified for {kind} flag '{name}'")
        out[name] = value
    return out


def _is(kind: str, value: str) -> bool:
    if kind == "bool":
        return value.lower() in _BOOLS
    if kind == "double":
        return re.fullmatch(r"-?(\d+\.?\d*|\.\d+)([eE]-?\d+)?", value) is not None
    return kind == "string" or re.fullmatch(_NUMBERS[kind], value) is not None


def _ratio(given: Mapping[str, str], name: str, what: str) -> None:
    if not 0.0 <= float(given.get(name, "0.5")) <= 1.0:
        _glog("F", "master.cpp:173", f"{what} must be between 0.0 and 1.0")
        raise Refused("*** Check failure stack trace: ***", 134)


def service(call: Call) -> int:
    """Run ``python -m mooncake.mooncake_store_service``: join the master, and listen."""
    parser = argparse.ArgumentParser(prog=SERVICE, allow_abbrev=False)
    parser.add_argument("--config")
    parser.add_argument("-D", "--define", action="append", default=[])
    parser.add_argument("--port", type=int, default=ports.STORE_SERVICE)
    parser.add_argument("--max-wait-time", type=float, default=60)
    try:
        given = parser.parse_args(call.words)
    except SystemExit as end:
        return int(end.code or 0)
    if not given.config:
        raise _ended(
            "ValueError: Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor "
            "'MOONCAKE_MASTER' is set."
        )
    try:
        config = json.loads((call.folder / given.config).read_text(encoding="utf-8"))
    except OSError as error:
        raise _ended(f"FileNotFoundError: {error}") from None
    except ValueError as error:
        raise _ended(f"json.decoder.JSONDecodeError: {error}") from None
    for name in _REQUIRED:
        if name not in config:
            raise _ended(f"ValueError: Missing required config field: {name}")
    _say("Mooncake configuration loaded")
    link = join(call, str(config["master_server_address"]), b"service\n")
    if link is None:
        raise _ended("RuntimeError: Failed to start store service")
    _say(f"Store service started successfully on {config['local_hostname']}")
    door = _listen(call.address, given.port)
    if door is None:
        raise _ended(
            "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', "
            f"{given.port}): address already in use"
        )
    _say(f"REST API started on port {given.port}")
    _say(f"Mooncake Store Service is running ({MARK}: it holds no memory)")
    return _serve(call, [door], lambda words: None, link)


def join(call: Call, address: str, says: bytes) -> socket.socket | None:
    """Return the connection of a client to the master at host:port; None if it does not answer."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _PATIENCE
    while port.isdecimal():
        try:
            link = socket.create_connection((call.at(host.strip("[]")), int(port)), 1)
        except OSError:
            _glog("E", "master_client.cpp:361", "Client not available")
            if time.monotonic() > end:
                return None
            time.sleep(0.3)
        else:
            link.sendall(says)
            link.settimeout(None)
            return link
    return None


def lost() -> None:
    """Say what a client of a master says that has gone."""
    _glog("E", "master_client.cpp:370", "RPC call failed: End of file")
    _glog("E", "client_service.cpp:4857", "Failed to ping master")


def _ended(text: str) -> Refused:
    return Refused(f"Traceback (most recent call last):\n{text}")


def _say(text: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{stamp},000 - root - INFO - {text}", file=sys.stderr, flush=True)


def _glog(level: str, source: str, text: str) -> None:
    """Write a line as glog does, for which the reader of logs knows it."""
    stamp = time.strftime("%m%d %H:%M:%S")
    print(f"{level}{stamp}.000000 {os.getpid()} {source}] {text}", file=sys.stderr, flush=True)


def _listen(address: str, port: int) -> socket.socket | None:
    """Return a listener, None where the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(64)
    except OSError:
        listener.close()
        return None
    return listener


def _serve(
    call: Call,
    doors: list[socket.socket],
    said: Callable[[bytes], None],
    master: socket.socket | None = None,
) -> int:
    """Keep every connection until a signal, or until whoever called this stand-in is gone."""
    ended: list[int] = []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, frame: ended.append(caught))
    waiting = selectors.DefaultSelector()
    waiting.register(reader, selectors.EVENT_READ)
    for one in (*doors, call.channel, master):
        if one is not None:
            waiting.register(one, selectors.EVENT_READ)
    while not ended:
        for key, _ in waiting.select():
            if key.fileobj in doors:
                client, _ = key.fileobj.accept()
                waiting.register(client, selectors.EVENT_READ)
            elif isinstance(key.fileobj, socket.socket):
                _heard(call, key.fileobj, waiting, said, master)
    return 0


def _heard(
    call: Call,
    one: socket.socket,
    waiting: selectors.BaseSelector,
    said: Callable[[bytes], None],
    master: socket.socket | None,
) -> None:
    try:
        words = one.recv(4096)
    except OSError:
        words = b""
    if words:
        said(words)
        return
    if one is call.channel:
        os._exit(137)
    if one is master:
        lost()
    waiting.unregister(one)
    one.close()


TOOLS: dict[str, Callable[[Call], int]] = {MASTER: master}
BESIDE: dict[str, Callable[[Call], int]] = {SERVICE: service}
