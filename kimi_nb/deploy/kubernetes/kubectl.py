"""Run kubectl against the cluster of a site, and read what it prints.

Example::

    kubectl = Kubectl("a3-cluster", "kimi")
    kubectl.json("get", "pods")["items"]
    kubectl.run("delete", "leaderworkerset/kimi-decode", "--wait=false")

The context is always named: the current one of the person's kubeconfig is never used, nor changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from kimi_nb.core.errors import KimiError

_SECONDS = 60.0  # for one command; the API server itself gets _REQUEST
_REQUEST = "30s"
_LOOK = 100  # milliseconds between two looks at whether it has ended
_MOST = 64 << 20  # bytes of an answer: some 10,000 pods
_PIECE = 1 << 16  # bytes that a pipe holds
_SAID = 600  # characters of an error that are kept
_REASON = re.compile(r"Error from server \((\w+)\)")
# What would change the meaning of what is asked here.
_UNWANTED = ("KUBECTL_EXTERNAL_DIFF", "KUBECTL_KUBERC", "KUBERC")


class KubectlError(KimiError):
    """A command of kubectl failed.

    ``reason`` is the API server's word, such as Forbidden, NotFound or AlreadyExists, or "".
    """

    def __init__(self, text: str, reason: str = "") -> None:
        self.reason = reason
        super().__init__(text)


def program() -> str:
    """Return the path of kubectl: on PATH, or beside this Python. Raises KubectlError."""
    found = shutil.which("kubectl") or str(Path(sys.executable).with_name("kubectl"))
    if not os.access(found, os.X_OK):
        raise KubectlError("kubectl is not on PATH.", "NoProgram")
    return found


class Kubectl:
    """kubectl with a context and a namespace; every method raises KubectlError."""

    def __init__(self, context: str, namespace: str) -> None:
        self.context, self.namespace = context, namespace

    @property
    def words(self) -> list[str]:
        """The beginning of every command, as a person would type it."""
        return ["kubectl", "--context", self.context, "--namespace", self.namespace]

    def typed(self, *words: str) -> str:
        """Return a command to be shown.

        >>> Kubectl("c", "n").typed("get", "pods")
        'kubectl --context c --namespace n get pods'
        """
        return shlex.join([*self.words, *words])

    def argv(self, *words: str) -> list[str]:
        """Return the command of a program that runs on, such as a port-forward."""
        return [program(), *self.words[1:], *words]

    def run(
        self,
        *words: str,
        stdin: str = "",
        seconds: float = _SECONDS,
        codes: Sequence[int] = (0,),
    ) -> str:
        """Return what a command prints; ``codes`` are the exit codes that are no failure."""
        argv = self.argv(f"--request-timeout={_REQUEST}", *words)
        try:
            code, out, error = _run(argv, stdin, seconds)
        except subprocess.TimeoutExpired:
            raise KubectlError(f"kubectl {words[0]}: no answer in {seconds:.0f} s") from None
        if code not in codes:
            raise _failed(words, error, code)
        return out

    def json(self, *words: str, stdin: str = "") -> dict[str, Any]:
        """Return the object that a command prints with ``-o json``; {} where it prints nothing."""
        text = self.run(*words, "-o", "json", stdin=stdin)
        try:
            found = json.loads(text or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise KubectlError(f"kubectl {words[0]} prints no object: {text[:120]!r}")
        return found

    def raw(self, path: str) -> dict[str, Any] | None:
        """Return what the API server has at a path; None where there is nothing."""
        try:
            text = self.run("get", "--raw", path)
        except KubectlError as error:
            if error.reason == "NotFound":
                return None
            raise
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
        raise KubectlError(f"{path}: the API server answers no object: {text[:120]!r}")


def _failed(words: Sequence[str], error: str, code: int) -> KubectlError:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    # client-go repeats itself while it retries; its own log lines begin with a level and a date.
    said = [line for line in lines if not re.match(r"[IWEF]\d{4} ", line)] or lines
    text = "; ".join(dict.fromkeys(said))[:_SAID] or f"exit code {code}, and nothing was said"
    reason = _REASON.search(error)
    return KubectlError(f"kubectl {words[0]}: {text}", reason[1] if reason else "")


def _run(argv: Sequence[str], stdin: str, seconds: float) -> tuple[int, str, str]:
    """Return (exit code, output, errors) of a command; it is ended where it says too much.

    Raises:
        subprocess.TimeoutExpired: It has not ended after so many seconds, and was ended.
    """
    env = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
    except OSError as error:
        raise KubectlError(f"kubectl cannot be started: {error.strerror}") from None
    # Its thread closes it: who does not read it may leave it open in another program.
    given, process.stdin = process.stdin, None
    texts, ended = (bytearray(), bytearray()), threading.Event()

    def read(stream: IO[bytes], text: bytearray) -> None:
        watch = select.poll()
        watch.register(stream, select.POLLIN)
        while len(text) <= _MOST:
            last = ended.is_set()
            if watch.poll(0 if last else _LOOK):
                piece = os.read(stream.fileno(), _PIECE)
                if not piece:
                    return
                text += piece
            elif last:  # a program that kubectl leaves running keeps it open
                return
        process.kill()

    def write(stream: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError), stream:
            stream.write(stdin.encode())

    with process:
        if given is not None:
            _thread(write, given)
        streams = (process.stdout, process.stderr)
        readers = [_thread(read, *item) for item in zip(streams, texts, strict=True)]
        try:
            code = process.wait(seconds)
        except BaseException:
            process.kill()
            raise
        finally:
            ended.set()
            for reader in readers:
                reader.join()
    if any(len(text) > _MOST for text in texts):
        raise KubectlError(f"kubectl prints more than {_MOST >> 20} MiB; it was ended.")
    out, error_text = (text.decode("utf-8", "replace") for text in texts)
    return code, out, error_text


def _thread(work: Callable[..., None], *given: object) -> threading.Thread:
    """Start a thread that this process does not wait for at its end."""
    made = threading.Thread(target=work, args=given, daemon=True)
    made.start()
    return made
