"""Play the scenes of tests/rehearse/contract/upstream_proxy.json in front of a door.

    python tests/testbed/door_scenes.py TAG PYTHON .../load_balance_proxy_server_example.py

records what that program does: run it with a Python that has fastapi, httpx, uvicorn, httptools and
uvloop, outside of any repository. A scene is a list of steps in front of engines of its own; the
program is started anew for each. `play` returns what came, which the recording keeps for each tag.
"""

from __future__ import annotations

import contextlib
import datetime
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from testbed import pd_engines
from testbed.pd_engines import exchange

RECORDING = Path(__file__).parent.parent / "rehearse" / "contract" / "upstream_proxy.json"
KEY = "key-of-the-door"
Door = Callable[[Sequence[str]], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def program(argv: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a door with a key of its own in its environment; what it says goes to door.log."""
    with (folder / "door.log").open("ab") as log:
        env = {**os.environ, "OPENAI_API_KEY": KEY}
        process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, cwd=folder)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def play(scene: dict[str, Any], door: Door) -> list[Any]:
    """Return what came of each step of a scene, in front of a door that is started for it."""
    with contextlib.ExitStack() as held:
        engines = held.enter_context(pd_engines.running(*scene["engines"]))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        words = ["--host", "127.0.0.1", "--port", str(port)]
        for role in ("prefill", "decode"):
            ports = [str(one.port) for name, one in engines.items() if name.startswith(role)]
            words += [f"--{role}er-hosts" if role == "prefill" else "--decoder-hosts"]
            words += ["127.0.0.1"] * len(ports)
            words += [f"--{role}er-ports" if role == "prefill" else "--decoder-ports", *ports]
        held.enter_context(door(words))
        end = time.monotonic() + 60
        while exchange(port, "GET", "/healthcheck")["status"] == 0:
            assert time.monotonic() < end, "the door does not listen"
            time.sleep(0.05)
        return [_step(step, port, engines) for step in scene["steps"]]


def _step(step: dict[str, Any], port: int, engines: dict[str, pd_engines.Engine]) -> Any:
    kind = step["do"]
    heard = next(iter(engines.values())).heard
    heard.clear()
    if kind == "ask":
        body = step.get("body")
        if "long" in step:  # a prompt of so many bytes
            body = {**body, "prompt": "x" * step["long"]}
        came = exchange(port, step["method"], step["path"], body, step.get("headers"))
        if step.get("only") == "form":  # what a framework writes
            came["text"] = "..."
        if step.get("sent") == "engines":
            return {"came": came, "sent": [one["to"] for one in heard]}
        return {"came": came, "sent": list(heard)}
    if kind == "turns":
        for name, turns in step["turns"].items():
            engines[name].turns = list(turns)
    elif kind in ("down", "up"):
        for name in step["names"]:
            getattr(engines[name], kind)()
    elif kind == "together":
        return _together(step, port, engines)
    elif kind == "leave":
        return _leave(step, port, engines)
    elif kind == "idle":
        return _idle(port)
    return None


def _connect(step: dict[str, Any], port: int) -> http.client.HTTPConnection:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=pd_engines.PATIENCE)
    packed = json.dumps(step["body"]).encode()
    link.request("POST", step["path"], packed, {"Content-Type": "application/json"})
    return link


def _until(true: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def _together(step: dict[str, Any], port: int, engines: dict[str, pd_engines.Engine]) -> Any:
    """Requests that arrive one after the other and are all held by ``held``: who got which."""
    heard = next(iter(engines.values())).heard
    holders = [one for name, one in engines.items() if name.startswith(step["held"])]
    for one in holders:
        one.holds = True
    links = []
    for number in range(step["times"]):
        links.append(_connect(step, port))
        wanted = number + 1
        _until(
            lambda wanted=wanted: sum(one.waiting for one in holders) >= wanted,
            step.get("patience", 5.0),
        )
    during = exchange(port, "GET", "/healthcheck")["text"]
    for one in holders:
        one.release()
    statuses = []
    for link in links:
        reply = link.getresponse()
        reply.read()
        statuses.append(reply.status)
        link.close()
    sent = [one["to"] for one in heard]
    return {
        "sent": sent if step["held"] != "prefill" else sorted(sent),  # they are released at once
        "statuses": statuses,
        "healthcheck": json.loads(during),
    }


def _leave(step: dict[str, Any], port: int, engines: dict[str, pd_engines.Engine]) -> Any:
    """A client that hangs up while an engine holds its request, or streams to it."""
    one = engines[step["at"]]
    one.left.clear()
    one.holds = "turn" not in step
    one.turns = [step["turn"]] if "turn" in step else []
    heard = next(iter(engines.values())).heard
    link = _connect(step, port)
    if one.holds:
        _until(lambda: one.waiting > 0)
    else:
        link.getresponse().read1(10)
    link.sock.close() if link.sock else None
    link.close()
    left = _until(one.left.is_set, 2.0)
    one.release()
    time.sleep(0.2)
    after = json.loads(exchange(port, "GET", "/healthcheck")["text"])
    return {"left": left, "sent": [one["to"] for one in heard], "healthcheck": after}


def _idle(port: int) -> Any:
    """How long a connection may be idle, in whole seconds."""
    link = socket.create_connection(("127.0.0.1", port))
    link.settimeout(30)
    link.sendall(b"GET /healthcheck HTTP/1.1\r\nHost: a\r\n\r\n")
    link.recv(65536)
    began = time.monotonic()
    while link.recv(65536):
        pass
    link.close()
    return {"seconds": round(time.monotonic() - began)}


def recorded(scene: dict[str, Any], tag: str) -> list[Any]:
    """Return what came of each step of a scene with a tag of the program."""
    return next(one["steps"] for one in scene["came"] if tag in one["tags"])


def _record(tag: str, python: str, program_file: str) -> None:
    kept = json.loads(RECORDING.read_text(encoding="utf-8"))
    folder = Path(program_file).resolve().parent
    for scene in kept["scenes"]:
        argv = [python, program_file]
        steps = play(scene, lambda words, argv=argv: program([*argv, *words], folder))
        variants = scene.setdefault("came", [])
        for one in variants:
            one["tags"] = [other for other in one["tags"] if other != tag]
        same = next((one for one in variants if one["steps"] == steps), None)
        if same is None:
            variants.append(same := {"tags": [], "steps": steps})
        same["tags"].append(tag)
        scene["came"] = [one for one in variants if one["tags"]]
        print(tag, scene["name"], flush=True)
    kept["tags"][tag] = datetime.datetime.now(datetime.UTC).date().isoformat()
    RECORDING.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _record(*sys.argv[1:])
