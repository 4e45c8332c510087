"""One disaster: the command, what happens to it, and what is looked at afterwards.

It is run as ``python tests/chaos/run.py --scene FILE``, where there is root in namespaces of its
own for mounts, processes and the network: what is left over is what is there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from chaos import commands, wholeness
from chaos.disasters import ROOM_KB, Disaster
from chaos.links import Link
from kimi_nb.core import prctl

GONE_WITHIN = 6.0  # seconds in which everything has ended after its caller
LIMIT = 240.0  # seconds for a command; a link that is gone is given up after 75
CUT = 8.0  # seconds of a link that is cut
# kimi-nb up wants 64 MiB for its scripts on a node.
_TMPFS = "256m"
_PROGRESS = re.compile(r" *[0-9]+\.[0-9] s  ")
# Also the end of one, in a message.
_TRACEBACK = re.compile(r'^Traceback \(most recent call last\)|^ *File ".*", line [0-9]+', re.M)
_LISTEN = "0A"  # as /proc/net/tcp has it
CLOCK = Path(__file__).with_name("clock.c")


@dataclasses.dataclass
class Outcome:
    """What a scene came to.

    Attributes:
        faults: What is wrong, each beginning with the letter of what was looked at: (a) what still
            runs, (b) what is half-written, (c) the second call, (d) what the person is told.
        code: The exit code of the first call; None if it did not end.
        said: The last line that it has printed.
        how: With what the disaster was made, where there is a choice.
        happened: Whether the command was still at work at the moment of the disaster.
        seconds: How long the first call took.
        cpu: Seconds of processors that the whole scene took, its hosts too.
    """

    faults: list[str] = dataclasses.field(default_factory=list)
    code: int | None = None
    said: str = ""
    how: str = ""
    happened: bool = True
    seconds: float = 0.0
    cpu: float = 0.0


class Scene:
    """A folder, in which a command is called with a disaster and then without."""

    def __init__(self, folder: Path, disaster: Disaster | None, usual: float) -> None:
        self.folder, self.disaster, self.usual = folder, disaster, usual
        self.results, self.tmp = folder / "results", folder / "tmp"
        self.outcome = Outcome()
        self._undo = contextlib.ExitStack()
        self._clock = folder / "clock"
        self.command: commands.Command
        self._own: set[int] = set()

    def play(self, name: str) -> Outcome:
        """Do it all, and return what came of it."""
        set_own = prctl.prctl()
        set_own(prctl.PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGINT, signal.SIGHUP):  # what started this may ignore them
            signal.signal(number, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        for path in (self.results, self.tmp):
            path.mkdir(parents=True, exist_ok=True)
        disks = self.disaster is not None and "disk" in self.disaster.kind
        if disks:
            for path in (self.results, self.tmp, self.folder / "h1" / "srv"):
                self._tmpfs(path)
        with commands.made(name, self.folder) as self.command:
            self._own = {one.pid for one in psutil.Process().children(recursive=True)}
            try:
                self._first()
                if self.disaster is not None:
                    self._second()
            finally:
                self._undo.close()
                self._kill_all()
        return self.outcome

    # The first call ---------------------------------------------------------------------

    def _first(self) -> None:
        disaster, out = self.disaster, self.outcome
        env = self._env()
        if disaster is not None and disaster.what.endswith("at once"):
            self._strike(None)
        begun = time.monotonic()
        with contextlib.ExitStack() as files:
            process = self._start(self.command.words, "first", env, files)
            self._strike_in_time(process, begun)
            out.code = self._wait(process, begun)
        out.seconds = time.monotonic() - begun
        said = self._said("first")
        out.said = last_words(said)
        if out.code is None:
            out.faults.append(f"(d) did not end within {LIMIT:.0f} s")
        out.faults += [f"(a) {one}" for one in self._running()]
        self._undo.close()  # the disk has room again, the link is there
        out.faults += [f"(b) {one}" for one in wholeness.halves(self.results)]
        out.faults += [f"(d) {one}" for one in self._told(said)]

    def _told(self, said: str) -> Iterator[str]:
        """What is wrong with what the person was told."""
        code, disaster = self.outcome.code, self.disaster
        by_signal = code is not None and code < 0
        if _TRACEBACK.search(said):
            yield f"a traceback: {said.splitlines()[-1]}"
        elif code == 0 and not self._goes_on(said) and (lacking := self.command.lacks()):
            yield f"exit code 0 without {lacking}"
        elif code == 0 and disaster and (disaster.kind, disaster.what) == ("full output", "stdout"):
            yield "exit code 0 although nobody saw what was printed"
        elif by_signal and not self._killed_it and self._began and self.command.lacks():
            yield f"ended by signal {-code}"
        elif code and not by_signal and not self.outcome.said and "output" not in disaster.kind:
            yield f"exit code {code} without a word"

    @property
    def _began(self) -> bool:
        return any(self.results.iterdir())

    def _goes_on(self, said: str) -> bool:
        """Whether this is a sweep that told a failed setting and went on with the others."""
        return self.command.name == "sweep" and "  failed: " in said

    @property
    def _killed_it(self) -> bool:
        """Whether the program itself was killed in a way in which it can say nothing."""
        disaster = self.disaster
        return disaster is not None and (
            disaster.what == "SIGKILL program"
            # A plain program of Python, as a kernel is, leaves SIGTERM as the system has it.
            or (disaster.what == "SIGTERM program" and disaster.command in ("bench", "sweep"))
        )

    # The second call --------------------------------------------------------------------

    def _second(self) -> None:
        wholeness.forget(self.results)
        calls = [self.command.again, *self.command.after()]
        for number, words in enumerate(calls):
            name = f"second-{number}"
            begun = time.monotonic()
            with contextlib.ExitStack() as files:
                process = self._start(words, name, self._env(clock=False), files, plain=True)
                code = self._wait(process, begun)
            if code != 0:
                last = last_words(self._said(name))
                self.outcome.faults.append(f"(c) {words[1]} afterwards: exit code {code}: {last}")
            if number == 0 and code == 0 and (lacking := self.command.lacks()):
                self.outcome.faults.append(f"(c) afterwards: exit code 0 without {lacking}")
        self.outcome.faults += [f"(a) at the end: {one}" for one in self._running()]
        self.outcome.faults += [f"(a) at the end: {one}" for one in self.command.left()]
        for wrong in (wholeness.halves, wholeness.scratch):
            self.outcome.faults += [f"(b) at the end: {one}" for one in wrong(self.results)]
        left = sorted(path.name for path in self.tmp.iterdir())
        if left and not self._may_leave_tmp:
            self.outcome.faults.append(f"(b) left in the folder for temporary files: {left}")

    @property
    def _may_leave_tmp(self) -> bool:
        """Whether a process was killed that had no chance to remove its temporary files."""
        disaster = self.disaster
        return disaster is not None and disaster.what.startswith(("SIGKILL", "SIGTERM"))

    # Processes --------------------------------------------------------------------------

    def _env(self, clock: bool = True) -> dict[str, str]:
        env = dict(os.environ) | {"TMPDIR": str(self.tmp)}
        if clock and self.disaster is not None and self.disaster.kind == "clock":
            self._jump(0)
            env |= {"LD_PRELOAD": str(self._library()), "CHAOS_CLOCK": str(self._clock)}
        return env

    def _start(
        self,
        words: Sequence[str],
        name: str,
        env: dict[str, str],
        files: contextlib.ExitStack,
        plain: bool = False,
    ) -> subprocess.Popen[bytes]:
        full = self.disaster.what if self.disaster and not plain else ""

        def stream(which: str) -> IO[bytes]:
            path = Path("/dev/full") if full == which else self.folder / f"{name}.{which}"
            return files.enter_context(path.open("wb"))

        return subprocess.Popen(
            self.command.argv(words),
            stdout=stream("stdout"),
            stderr=stream("stderr"),
            stdin=subprocess.DEVNULL,
            env=env,
            cwd=self.folder,
            start_new_session=True,
        )

    def _said(self, name: str) -> str:
        """What a call has printed, its complaints last."""
        paths = [self.folder / f"{name}.{which}" for which in ("stdout", "stderr")]
        texts = [path.read_text(errors="replace") for path in paths if path.exists()]
        return "\n".join(text.rstrip() for text in texts if text.strip())

    def _wait(self, process: subprocess.Popen[bytes], begun: float) -> int | None:
        try:
            return process.wait(max(1.0, begun + LIMIT - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._kill_all()
            process.wait()
            return None

    def _kill_all(self) -> None:
        for one in self._there():
            with contextlib.suppress(psutil.Error):
                one.kill()

    def _there(self) -> list[psutil.Process]:
        """The processes that the calls have started here; those of test hosts are theirs."""
        found = []
        hosts = _networks(self._own) if self.command.name == "up" else set()
        for one in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                if (
                    one.pid not in self._own
                    and one.status() != psutil.STATUS_ZOMBIE
                    and _netns(one.pid) not in hosts
                ):
                    found.append(one)
        return found

    def _running(self) -> list[str]:
        end = time.monotonic() + GONE_WITHIN
        while (there := self._there()) and time.monotonic() < end:
            time.sleep(0.1)
        out = []
        for one in there:
            with contextlib.suppress(psutil.Error):
                out.append(f"still runs: {' '.join(one.cmdline())[:200]}")
                one.kill()
        return out

    # Disasters --------------------------------------------------------------------------

    def _strike_in_time(self, process: subprocess.Popen[bytes], begun: float) -> None:
        disaster = self.disaster
        if disaster is None or disaster.what.endswith("at once") or disaster.kind == "full output":
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, begun + disaster.moment * self.usual - time.monotonic()))
        if process.poll() is None:
            self._strike(process)
        else:
            self.outcome.happened = False

    def _strike(self, process: subprocess.Popen[bytes] | None) -> None:
        disaster = self.disaster
        assert disaster is not None
        if disaster.kind == "kill":
            assert process is not None
            self._kill(process)
        elif disaster.kind == "full disk":
            self._fill(self._disk)
        elif disaster.kind == "read-only disk":
            self._freeze(self._disk)
        elif disaster.kind == "link":
            self._spoil()
        else:
            self._jump(_seconds(disaster.what))

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        assert self.disaster is not None
        name, victim = self.disaster.what.split()
        end = time.monotonic() + self.usual + 5
        while process.poll() is None and time.monotonic() < end:
            found = [process.pid] if victim == "program" else self._victims(process.pid, victim)
            if found:
                chosen = found[int(self.disaster.dice * len(found))]
                with contextlib.suppress(ProcessLookupError, psutil.Error):
                    self.outcome.how = " ".join(psutil.Process(chosen).cmdline())[-80:]
                    os.kill(chosen, signal.Signals[name])
                    return
            time.sleep(0.02)
        self.outcome.happened = False

    def _victims(self, program: int, victim: str) -> list[int]:
        """The children of the program, or the engines, in the order of their start."""
        children, engines = [], []
        for one in sorted(psutil.Process().children(recursive=True), key=lambda one: one.pid):
            with contextlib.suppress(psutil.Error, OSError):
                words, parent = one.cmdline(), one.parent()
                of = parent.cmdline() if parent else []
                if "kimi_nb.rehearse.spawner" in words and "kimi_nb.rehearse.spawner" in of:
                    if listens(one.pid):  # and not the other stand-ins
                        engines.append(one.pid)
                elif one.pid != program and one.pid not in self._own and not _on_host(one, self):
                    children.append(one.pid)
        return engines if victim == "engine" else children

    @property
    def _disk(self) -> Path:
        assert self.disaster is not None
        where = self.disaster.what.split()[0]
        return {
            "results": self.results,
            "tmp": self.tmp,
            "node": self.folder / "h1" / "srv",
        }[where]

    def _tmpfs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_TMPFS}", "chaos", str(path)], check=True
        )

    def _fill(self, disk: Path) -> None:
        """Leave no room on a disk, or some KB where it is full from the beginning."""
        assert self.disaster is not None
        kept = 0
        if self.disaster.what.endswith("at once"):
            kept = 1024 * ROOM_KB[int(self.disaster.dice * len(ROOM_KB))]
        filler = disk / "filler.log"
        self._undo.callback(filler.unlink, missing_ok=True)
        with filler.open("wb", buffering=0) as file:
            room = os.statvfs(disk)
            file.write(bytes(max(0, room.f_bavail * room.f_frsize - kept)))
            with contextlib.suppress(OSError):
                while not kept:
                    file.write(bytes(4096))

    def _freeze(self, disk: Path) -> None:
        """Make a disk read-only for whatever is opened from now on."""
        words = ["mount", "--bind", str(disk), str(disk)]
        inside: list[str] = []
        if disk.name == "srv":
            host = self.command.hosts.hosts[0]  # type: ignore[attr-defined]
            inside, words = host.enter(), ["mount", "--bind", "/srv", "/srv"]
        subprocess.run([*inside, *words], check=True)
        subprocess.run([*inside, "mount", "-o", "remount,bind,ro", words[-1]], check=True)
        self._undo.callback(subprocess.run, [*inside, "umount", "-l", words[-1]], check=True)

    def _jump(self, seconds: int) -> None:
        """Set by how much the clock of the wall is wrong, for those that look at it from now on."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    def _library(self) -> Path:
        path = self.folder / "clock.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(path), str(CLOCK), "-ldl"], check=True
        )
        return path

    def _spoil(self) -> None:
        assert self.disaster is not None
        hosts: Any = self.command.hosts  # type: ignore[attr-defined]
        host = hosts.hosts[int(self.disaster.dice * len(hosts.hosts))]
        link = Link(host, hosts.bridge)
        self._undo.callback(link.mend)
        link.spoil(self.disaster.what)
        self.outcome.how = f"{link.how}, {host.name}"
        if self.disaster.what == "cut for seconds":
            time.sleep(CUT)
            link.mend()


def last_words(said: str) -> str:
    """Return the last line that is no progress; "" for none.

    >>> last_words("cause  a full disk\n\n  1.4 s  reach: reach every node")
    'cause  a full disk'
    """
    lines = [line for line in said.splitlines() if line.strip() and not _PROGRESS.match(line)]
    return lines[-1] if lines else ""


def listens(pid: int) -> bool:
    """Return whether a process listens on a port of its own network; psutil knows only this one's.

    Raises OSError where it has ended.
    """
    there = Path(f"/proc/{pid}")
    waiting = set()
    for table in (there / "net" / "tcp", there / "net" / "tcp6"):
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        waiting |= {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTEN}
    return any(os.readlink(one) in waiting for one in (there / "fd").iterdir())


def _netns(pid: int) -> str:
    """Return the network of a process. Raises OSError where it has ended."""
    return os.readlink(f"/proc/{pid}/ns/net")


def _networks(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found.add(_netns(pid))
    return found


def _on_host(one: psutil.Process, scene: Scene) -> bool:
    if scene.command.name != "up":
        return False
    return _netns(one.pid) in _networks(scene._own) - {_netns(os.getpid())}


def _seconds(jump: str) -> int:
    """Return the seconds of a jump.

    >>> _seconds("-40d")
    -3456000
    """
    unit = {"h": 3600, "d": 86400, "y": 365 * 86400}[jump[-1]]
    return int(jump[:-1]) * unit


def _cpu() -> float:
    """Return the seconds that this process and all that it started had of the processors."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # those whose parents ended before them
            pass
    return sum(os.times()[:4])


def main(file: Path) -> int:
    """Play the scene that a file describes, and write its outcome beside it."""
    given = json.loads(file.read_text())
    if os.geteuid() == 0:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        # The networks of the hosts of `up` have names, which are files: here they are this scene's.
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "chaos", "/run/netns"], check=True)
    disaster = Disaster(**given["disaster"]) if given["disaster"] else None
    scene = Scene(file.parent, disaster, given["usual"])
    outcome = scene.play(given["command"])
    outcome.cpu = _cpu()
    if outcome.faults and any(path.is_mount() for path in (scene.results, scene.tmp)):
        sockets = shutil.ignore_patterns("*.sock")  # which cannot be copied
        kept = file.parent / "results-kept"
        shutil.copytree(scene.results, kept, symlinks=True, ignore=sockets)
    file.with_name("outcome.json").write_text(json.dumps(dataclasses.asdict(outcome)))
    return 0
