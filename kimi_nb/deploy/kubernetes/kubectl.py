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
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from kimi_nb.core.errors import KimiError

_SECONDS = 60.0  # for one command; the API server itself gets _REQUEST
_REQUEST = "30s"
_MOST = 64 << 20  # bytes of an answer: some 10,000 pods
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
        code, out, error = _run(argv, stdin, seconds)
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
    """Return (exit code, output, errors) of a command; it is ended where it says too much."""
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
    with process:
        texts: dict[str, bytes] = {}

        def read(name: str, stream: IO[bytes]) -> None:
            texts[name] = stream.read(_MOST + 1)
            if len(texts[name]) > _MOST:
                process.kill()

        assert process.stdout is not None and process.stderr is not None
        readers = [
            threading.Thread(target=read, args=item, daemon=True)
            for item in (("out", process.stdout), ("error", process.stderr))
        ]
        for reader in readers:
            reader.start()
        try:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(stdin.encode())
            code = process.wait(seconds)
        except BaseException as error:
            process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                raise KubectlError(
                    f"kubectl {argv[6] if len(argv) > 6 else ''}: no answer in {seconds:.0f} s"
                ) from None
            raise
        for reader in readers:
            reader.join(5.0)
    if any(len(text) > _MOST for text in texts.values()):
        raise KubectlError(f"kubectl prints more than {_MOST >> 20} MiB; it was ended.")
    out, error_text = (texts.get(name, b"").decode("utf-8", "replace") for name in ("out", "error"))
    return code, out, error_text
