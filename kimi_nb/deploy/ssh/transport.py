"""Reach nodes over SSH: the caller's side of `ssh_process`.

Example::

    nodes = SshNodes(hosts, folder, log)
    nodes.unreachable  # {"a3-2": "Could not connect (timed out)"}
    nodes.look({"a3-0": text})  # {"a3-0": Answer([Line(...)])}
    nodes.close()
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kimi_nb.core import prctl
from kimi_nb.core.errors import KimiError
from kimi_nb.deploy.node_answers import Answer, Line
from kimi_nb.service import http_client

_TUNNEL_WAIT = 15.0  # seconds
# Seconds for a node's answer; verbs that download or read all of the weights have no limit.
_ANSWER = 300
_UNLIMITED = ("prepare", "engine", "weights")
# Seconds without a sign of life on the network until a connection counts as ended.
_GONE = 60


class SshNodes:
    """The nodes of a plan, connected once and kept connected.

    ``folder`` holds the bundle's pyinfra files, and ``log`` receives pyinfra's messages. With
    ``jump`` the nodes are behind another host, so that requests to their engines are tunnelled
    through one of the nodes. A node that is silent for more than ``seconds`` although its
    connection is open counts as not answering, as when a login hangs. The connection ends where
    the network is silent for ``gone`` seconds, also during a verb without a limit of time.
    """

    def __init__(
        self,
        hosts: Sequence[tuple[str, dict[str, object]]],
        folder: Path,
        log: Path,
        jump: bool = False,
        seconds: int = _ANSWER,
        gone: int = _GONE,
    ) -> None:
        self._log, self._seconds = log, seconds
        self._tunnel: Tunnel | None = None
        with log.open("ab") as errors:
            # A session of its own, out of reach of Ctrl-C: an order that was sent is completed.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kimi_nb.deploy.ssh.ssh_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            self._connect(hosts, folder, gone, jump)
        except BaseException:
            self.close()
            raise

    def _connect(
        self, hosts: Sequence[tuple[str, dict[str, object]]], folder: Path, gone: int, jump: bool
    ) -> None:
        config = folder / "ssh_config"
        data = {"ssh_config_file": str(config)}
        self.unreachable: dict[str, str] = self._ask(
            do="connect",
            folder=str(folder),
            gone=gone,
            hosts=[(name, {**mine, **data}) for name, mine in hosts],
        )["failed"]
        there = [str(mine["ssh_hostname"]) for name, mine in hosts if name not in self.unreachable]
        if jump and there:
            self._tunnel = Tunnel(there[0], config, self._log)

    def look(self, texts: Mapping[str, str]) -> dict[str, Answer]:
        """Run read-only verbs; ``texts`` are the scripts by name of the node."""
        return _answers(self._ask(do="look", texts=dict(texts), seconds=self._seconds))

    def change(self, texts: Mapping[str, str], verb: str) -> dict[str, Answer]:
        """Run a verb that changes nodes; ``texts`` are the scripts by name of the node."""
        return _answers(
            self._ask(
                do="change",
                texts=dict(texts),
                verb=verb,
                seconds=None if verb in _UNLIMITED else self._seconds,
            )
        )

    def close(self) -> None:
        """Close the connections."""
        if self._tunnel is not None:
            self._tunnel.close()
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended before an order was written
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            raise KimiError(
                f"The process that holds the SSH connections has ended; its messages: {self._log}"
            ) from None


def _answers(found: Mapping[str, Any]) -> dict[str, Answer]:
    return {
        name: Answer(
            tuple(Line(*line) for line in answer.get("lines", ())), answer.get("error", "")
        )
        for name, answer in found["nodes"].items()
    }


class Tunnel:
    """A SOCKS proxy (``ssh -D``) for HTTP requests to nodes behind a jump host."""

    def __init__(self, address: str, config: Path, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        set_own = prctl.prctl()
        argv = ["ssh", "-F", str(config), "-N", "-D", f"127.0.0.1:{port}"]
        argv += ["-o", "BatchMode=yes", "-o", "ExitOnForwardFailure=yes", address]
        none = f"{address}: no way for HTTP through ssh -D"
        with log.open("ab") as errors:
            try:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=lambda: set_own(prctl.PR_SET_PDEATHSIG, signal.SIGTERM),
                )
            except OSError as error:
                raise KimiError(f"{none}: ssh cannot be started: {error.strerror}") from None
        end = time.monotonic() + _TUNNEL_WAIT
        try:
            while not http_client.listens(f"http://127.0.0.1:{port}", 1.0):
                if self._process.poll() is not None or time.monotonic() > end:
                    raise KimiError(f"{none}; what ssh says: {log}")
                time.sleep(0.05)
        except BaseException:
            self.close()
            raise
        http_client.go_through(port)

    def close(self) -> None:
        """Close the tunnel; nodes are then contacted directly."""
        http_client.go_through(None)
        self._process.terminate()
        self._process.wait()
