"""Machines for the tests with containers: namespaces of this one, with a docker of their own.

    with Machine("a3-0", "ascend", 16, folder_of_images) as machine:
        machine.docker("ps", "-aq").stdout

See ``machine.sh``: nothing of the machine below changes, whatever ends the test.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import psutil

from kimi_nb.core import paths
from kimi_nb.service.probe import Endpoint
from testbed.images import SITES

HERE = Path(__file__).resolve().parent
_NEEDED = ("podman", "runc", "conmon", "iptables", "ip", "unshare", "nsenter", "mknod")
_BRIDGE = Path("/usr/lib/cni/bridge")
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")
_ASK = """
import json, sys, time
from kimi_nb.service import probe
end = time.monotonic() + float(sys.argv[3])
out = []
for one in json.loads(sys.argv[1]):
    where = one if isinstance(one, str) else probe.Endpoint(**one)
    while True:
        reply = probe.chat(where, sys.argv[2], 5.0)
        if reply.answered or time.monotonic() > end:
            break
        time.sleep(0.1)
    out.append([reply.status, reply.content + reply.thoughts, reply.error])
print(json.dumps(out))
"""


def lacks() -> str:
    """Why there can be no such machine here; empty where there can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and device nodes"
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if not _BRIDGE.exists():
        missing.append(str(_BRIDGE))
    if missing:
        return (
            f"needs {', '.join(missing)} (apt-get install --no-install-recommends podman "
            "runc containernetworking-plugins iptables iproute2)"
        )
    try:
        Machine("tried", "ascend", 1).close()
    except MachineError as error:
        return f"needs new namespaces, mounts in them and device nodes: {error}"
    return ""


class MachineError(Exception):
    """A machine that could not be made."""


class Machine:
    """One machine. ``kind`` is whose accelerators it has: ascend, nvidia or amd; ``images`` a
    folder that `load` has filled on another one."""

    def __init__(self, name: str, kind: str, devices: int, images: Path | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [
                "unshare",
                *_NAMESPACES,
                "--fork",
                "--mount-proc",
                "--kill-child",
                str(HERE / "machine.sh"),
                name,
                kind,
                str(devices),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            _, errors = self._process.communicate()
            raise MachineError(errors.strip())
        self.pid = psutil.Process(self._process.pid).children()[0].pid
        self._cgroups = f"kimi-nb-{self._process.pid}"
        self.env = {
            "PATH": f"{HERE}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "POD": "/run/pod",
            "CGROUPS": f"/{self._cgroups}",
            "IMAGES": str(images or ""),
        }

    def run(
        self, *argv: str, seconds: float = 60, given: bytes | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program there; its output as text."""
        done = subprocess.run(
            self._inside(argv),
            env=self.env,
            capture_output=True,
            input=given,
            timeout=seconds,
            check=False,
            **({} if given is not None else {"stdin": subprocess.DEVNULL}),
        )
        return subprocess.CompletedProcess(
            argv, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def docker(self, *words: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """Run ``docker`` there."""
        return self.run("docker", *words, seconds=seconds)

    def start(self, log: Path, *argv: str) -> subprocess.Popen[bytes]:
        """Start a program there; what it prints goes to ``log``."""
        with log.open("wb") as file:
            return subprocess.Popen(
                self._inside(argv),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def _inside(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *_NAMESPACES, *argv]

    def load(self, folder: Path, image: Path, name: str, site: str, entry: str = "") -> None:
        """Put an image into a folder for other machines, made of an archive whose engine pretends
        one of its sites. A name without a registry is one of docker.io, as docker has it."""
        if "." not in name.partition("/")[0]:
            name = f"docker.io/{name}"
        changes = [
            f"ENV KIMI_NB_SIMULATED_SITE={SITES}/{site}.json",
            "ENV PATH=/usr/local/bin:/usr/bin:/bin",
        ]
        if entry:
            changes.append(f"ENTRYPOINT {entry}")
        self.done(
            "env",
            f"POD={folder}",
            "docker",
            "import",
            *(word for one in changes for word in ("--change", one)),
            str(image),
            name,
        )

    def done(self, *argv: str, given: bytes | None = None) -> str:
        """Run a program there that has to succeed; what it prints."""
        done = self.run(*argv, given=given)
        assert done.returncode == 0, f"{self.name}: {argv}: {done.stderr}"
        return done.stdout

    def copy(self, folder: Path, target: str) -> None:
        """Copy a folder of the test's to it."""
        packed = subprocess.run(
            ["tar", "-C", str(folder), "-c", "."], capture_output=True, check=True
        ).stdout
        self.done("mkdir", "-p", target)
        self.done("tar", "-C", target, "-x", given=packed)

    def address(self, address: str, nic: str) -> None:
        """Give it a network card that nothing is behind."""
        self.done("ip", "link", "add", nic, "type", "bridge")
        self._up(address, nic)

    def _up(self, address: str, nic: str) -> None:
        self.done("ip", "address", "add", f"{address}/24", "dev", nic)
        self.done("ip", "link", "set", nic, "up")

    def connect(self, address: str, other: Machine, address_of_other: str, nic: str) -> None:
        """Connect two machines by a cable, between cards of the same name."""
        subprocess.run(
            [
                "nsenter",
                "--target",
                str(self.pid),
                "--net",
                "ip",
                "link",
                "add",
                nic,
                "type",
                "veth",
                "peer",
                "name",
                nic,
                "netns",
                str(other.pid),
            ],
            check=True,
        )
        self._up(address, nic)
        other._up(address_of_other, nic)

    def ask(
        self, where: Sequence[Endpoint | str], model: str, seconds: float = 30
    ) -> list[tuple[int, str, str]]:
        """A completion of each from its network, waited for so long: status, text, error."""
        asked = [one if isinstance(one, str) else asdict(one) for one in where]
        done = subprocess.run(
            [
                "nsenter",
                "--target",
                str(self.pid),
                "--net",
                sys.executable,
                "-c",
                _ASK,
                json.dumps(asked),
                model,
                str(seconds),
            ],
            cwd=paths.PACKAGE.parent,
            capture_output=True,
            text=True,
            timeout=seconds + 30,
            check=True,
        )
        return [(status, text, error) for status, text, error in json.loads(done.stdout)]

    def clear(self) -> None:
        """Remove all containers."""
        left = self.docker("ps", "-aq").stdout.split()
        if left:
            self.done("docker", "rm", "-f", *left)

    def processes(self) -> dict[int, str]:
        """What runs there besides its first process: command lines by number."""
        mine = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                # A container's namespace is below; the machine's is its parent's.
                if (
                    one.pid != self.pid
                    and one.status() != psutil.STATUS_ZOMBIE
                    and (
                        os.readlink(f"/proc/{one.pid}/ns/pid") == mine
                        or any(above.pid == self.pid for above in one.parents())
                    )
                ):
                    found[one.pid] = " ".join(one.cmdline())
        return found

    def namespace(self, kind: str, pid: int | None = None) -> str:
        """The namespace of a process, of its first one where none is named."""
        return os.readlink(f"/proc/{pid or self.pid}/ns/{kind}")

    def close(self) -> None:
        """End it with everything in it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                stream.close()
        # The kernel's groups are not in a namespace: podman's are taken away by name.
        for top in Path("/sys/fs/cgroup").glob(f"*/{self._cgroups}"):
            _remove(top)
        _remove(Path("/sys/fs/cgroup") / self._cgroups)

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _remove(group: Path) -> None:
    """Remove a group with those below it, once their processes have ended."""
    below = [Path(path) for path, _, _ in os.walk(group, topdown=False)]
    end = time.monotonic() + 3
    while below and time.monotonic() < end:
        for one in list(below):
            with contextlib.suppress(OSError):
                one.rmdir()
            if not one.exists():
                below.remove(one)
        if below:
            time.sleep(0.05)
