"""Serve as every stand-in of a rehearsal: import everything once, then fork for each call.

    python -m kimi_nb.rehearse.spawner FOLDER

A stand-in on PATH (`host_programs.path_stub`) sends its arguments, working directory, environment
and three standard file descriptors; the fork runs the program of that name on them. The stand-in
ends with the exit code or signal of the fork, and the fork ends when the stand-in is killed.
"""

from __future__ import annotations

import array
import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from kimi_nb.core import prctl
from kimi_nb.core.marks import MARK
from kimi_nb.rehearse.engine.start import serve
from kimi_nb.rehearse.host_programs import programs_by_name
from kimi_nb.rehearse.simulated_site import SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call, Refused, Replace


def main(folder: Path) -> int:
    """Serve the stand-ins of a rehearsal's folder until a signal, then return 0."""
    os.chdir(folder)  # the path of a Unix socket is limited to 107 bytes
    # The spawner is started first, so that its imports are done when the site is written.
    while not Path("world.json").exists():
        time.sleep(0.005)
    site = SimulatedSite.read(Path("world.json"))
    try:
        listener = _listener()
    except OSError as error:
        print(
            f"{folder}: cannot be written: {error.strerror}. Choose another --run-dir.",
            file=sys.stderr,
        )
        return 1
    serve.warm(site)
    # Never free what is loaded by now, so that the forks share its pages.
    gc.collect()
    gc.freeze()
    gc.disable()
    return _serve(listener, site)


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("spawner.new")
    listener.listen(512)
    os.rename("spawner.new", "spawner.sock")  # the name appears only once the socket listens
    return listener


def _serve(listener: socket.socket, site: SimulatedSite) -> int:
    reader = prctl.wakeup()
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    children: dict[int, socket.socket] = {}
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(reader, selectors.EVENT_READ)
    set_own = prctl.prctl()
    while not ended:
        for key, _ in waiting.select(1):
            if key.fileobj is reader:
                os.read(reader, 4096)
            else:
                _accept(listener, site, children, set_own)
        _collect(children)
    return 0


def _accept(
    listener: socket.socket,
    site: SimulatedSite,
    children: dict[int, socket.socket],
    set_own: Callable[[int, int], int],
) -> None:
    channel, _ = listener.accept()
    channel.settimeout(5)
    try:
        parts, handles = _receive(channel)
    except (OSError, ValueError):
        channel.close()
        return
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            set_own(prctl.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == me:
                listener.close()
                for other in children.values():
                    other.close()
                # The fork sends this itself: it must be the first message on the channel.
                channel.sendall(os.getpid().to_bytes(8, "big"))
                code = _become(parts, handles, channel, site)
        except BaseException:  # the fork must never continue as the spawner
            traceback.print_exc()
        finally:
            _flush()
            os._exit(code)
    for handle in handles:
        os.close(handle)
    children[pid] = channel


def _collect(children: dict[int, socket.socket]) -> None:
    for pid, code in prctl.reaped():
        channel = children.pop(pid, None)
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.sendall(b"ended\0%d" % code)
            channel.close()


def _receive(channel: socket.socket) -> tuple[list[str], list[int]]:
    room = socket.CMSG_SPACE(3 * array.array("i").itemsize)
    data, extra, _, _ = channel.recvmsg(1 << 16, room)
    handles = array.array("i")
    for _, _, packed in extra:
        handles.frombytes(packed[: len(packed) - len(packed) % handles.itemsize])
    length = int.from_bytes(data[:8], "big")
    data = data[8:]
    while len(data) < length:
        got = channel.recv(1 << 16)
        if not got:
            raise ValueError("the stand-in ended while it spoke")
        data += got
    return data.decode("utf-8", "surrogateescape").split("\0"), list(handles)


def _become(
    parts: list[str], handles: list[int], channel: socket.socket, site: SimulatedSite
) -> int:
    """Run the program in this fork, on the file descriptors of its stand-in."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    for place, handle in enumerate(handles):
        os.dup2(handle, place)
        os.close(handle)
    # Line-buffered standard streams of this fork, so that logs grow line by line.
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="surrogateescape")  # noqa: SIM115
    tool, folder, count, *rest = parts
    words, pairs = rest[: int(count)], rest[int(count) :]
    env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    os.environ.clear()
    os.environ.update(env)
    root = Path.cwd()
    os.chdir(folder)
    call = Call(tool, tuple(words), env, Path(folder), root, site, channel)
    try:
        return programs_by_name.run(call)
    except Replace as other:
        text = "\0".join(
            [
                other.folder,
                str(len(other.argv)),
                *other.argv,
                *(f"{name}={value}" for name, value in other.env.items()),
            ]
        )
        _flush()
        packed = text.encode("utf-8", "surrogateescape")
        channel.sendall(b"exec\0" + len(packed).to_bytes(8, "big") + packed)
        return 0
    except Refused as refusal:
        print(f"{MARK}: what the real {call.tool} would say:\n{refusal}", file=sys.stderr)
        return refusal.code


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
