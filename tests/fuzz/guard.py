"""What must hold of every input: where it writes, how long it takes, what it shows, how it fails."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

from kimi_nb.core.errors import KimiError

SECRET = "planted-4711-Zx9q"  # the value of a secret variable of the environment
LINES, CHARACTERS = 50, 6000  # one screen, of a message about one input
_SECONDS, _EACH = 3.0, 4e-5  # of the processor: for any input, and for each of its bytes
_MEMORY = 1 << 30  # bytes, more than before an input
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.chmod": (0,), "os.chown": (0,), "os.link": (1,), "os.mkdir": (0,), "os.remove": (0,),
    "os.rename": (0, 1), "os.rmdir": (0,), "os.symlink": (1,), "os.truncate": (0,),
    "os.utime": (0,), "shutil.rmtree": (0,),
}  # fmt: skip
_BELOW = {"os.remove": 1, "os.rmdir": 1, "shutil.rmtree": 1}  # where the folder of a name is given
_PROGRAMS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
# Where the interpreter and libraries keep what they have computed.
_CACHES = ("__pycache__", "/dev/null")


class _Guarded:
    """The folder in which an input may write; None where nothing is watched."""

    folder: str | None = None
    thread: int = 0
    found: str = ""
    hooked = False


def _watch(event: str, args: tuple[object, ...]) -> None:
    """See each file that is written, each program and each connection (`sys.addaudithook`)."""
    if _Guarded.folder is None or _Guarded.found:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITES:
            _inside(event, path)
    elif event in _CHANGES:
        below = args[_BELOW[event]] if event in _BELOW and len(args) > _BELOW[event] else None
        for at in _CHANGES[event]:
            _inside(event, args[at], below)
    elif event in _PROGRAMS:
        _Guarded.found = f"{event} {str(args)[:200]}"
    elif event in ("socket.connect", "socket.getaddrinfo"):
        to = args[1] if event == "socket.connect" else args
        host = to[0] if isinstance(to, tuple) else to
        if not str(host).startswith("127."):
            _Guarded.found = f"{event} {to!r:.200}"


def _inside(event: str, path: object, below: object = None) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return  # a descriptor, of a file that was opened before
    text = os.fsdecode(path)
    if isinstance(below, int) and below >= 0:  # the descriptor of a folder
        text = os.path.join(os.readlink(f"/proc/self/fd/{below}"), text)
    place, name = os.path.split(os.path.abspath(text))
    whole = os.path.join(os.path.realpath(place), name)  # what a link names is where it is
    if f"{whole}/".startswith(f"{_Guarded.folder}/") or any(one in text for one in _CACHES):
        return
    _Guarded.found = f"{event} {text!r:.300}, outside of its folder"


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Fail where anything is written outside of a folder, a program started, or a host asked."""
    if not _Guarded.hooked:
        sys.addaudithook(_watch)
        _Guarded.hooked = True
    _Guarded.folder, _Guarded.found = os.path.realpath(path), ""
    try:
        yield
    finally:
        _Guarded.folder = None
    assert not _Guarded.found, _Guarded.found


class _Late(BaseException):
    """Not an Exception: what is watched must not catch it."""


@contextlib.contextmanager
def seconds(size: int) -> Iterator[None]:
    """Fail where an input of so many bytes takes longer than one that is read in linear time.

    It is the time of the processor that counts, so that a busy machine makes no difference.
    """
    assert threading.current_thread() is threading.main_thread()
    limit = _SECONDS + _EACH * size

    def late(number: int, frame: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        yield
    except _Late as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-4:])
        raise AssertionError(f"no end after {limit:.1f} s for {size} bytes:\n{where}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def memory() -> Iterator[None]:
    """Fail, by a MemoryError, where an input takes far more memory than its size."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def plain(text: str) -> None:
    """Fail where a text that is shown holds a secret, or what a terminal would obey."""
    assert SECRET not in text, f"a secret is shown: {_around(text)!r}"
    for character in {*text} - {"\n", "\t"}:
        kind = unicodedata.category(character)
        assert kind not in ("Cc", "Cf", "Cs", "Zl", "Zp"), f"{character!r} is shown as it is"


def kept(folder: Path, given: Mapping[Path, bytes]) -> None:
    """Fail where the product has written a secret into a file.

    ``given`` is what a stranger wrote, by its path. It stands there as it did before, and the
    product may have appended to it; a copy of it is the product's.
    """
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            found = path.read_bytes().removeprefix(given.get(path, b""))
            assert SECRET.encode() not in found, (
                f"a secret is kept in {path.name}: {_around(found.decode('utf-8', 'replace'))!r}"
            )


def _around(text: str) -> str:
    at = text.find(SECRET)
    return text[max(0, at - 80) : at + 80]


def message(text: str) -> None:
    """Fail where what is said of an input is no sentence of one screen."""
    assert text.strip(), "an error without words"
    assert "Traceback" not in text
    assert text.count("\n") < LINES, f"{text.count(chr(10))} lines: {text[:300]}"
    assert len(text) < CHARACTERS, f"{len(text)} characters: {text[:300]}"


@contextlib.contextmanager
def refusals(shown: list[str]) -> Iterator[None]:
    """Let an error of ours pass, and add what it says to ``shown``."""
    try:
        yield
    except KimiError as error:
        message(str(error))
        shown.append(str(error))
