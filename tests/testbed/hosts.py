"""Test hosts: network namespaces with a real sshd each, on a bridge of their own.

    with Hosts(tmp_path, 4) as hosts:
        hosts.run(["kimi-nb", "up", ...])        # on the controller's side of the bridge

Every host has its own hostname, network, /srv and /etc (an overlay), at 10.77.0.N; the controller
is at 10.77.255.1. Nothing of the machine itself is changed. Needs root, ip, sshd and unshare.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse.host_programs import path_folder
from kimi_nb.rehearse.simulated_site import FOLDER, NODE, Fault, SimulatedSite

SSHD = "/usr/sbin/sshd"
_WAIT = 60.0


def missing() -> str:
    """Why test hosts cannot be made here; "" where they can."""
    if os.geteuid() != 0:
        return "test hosts need root: network namespaces are made"
    for name in ("ip", "unshare", "nsenter", "ssh-keygen", "ssh"):
        if shutil.which(name) is None:
            return f"test hosts need {name} (apt-get install iproute2 openssh-client)"
    if not Path(SSHD).exists():
        return "test hosts need sshd (apt-get install openssh-server)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


def _do(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout


class Host:
    """One test host. ``env`` is what a login gets."""

    def __init__(self, hosts: Hosts, number: int) -> None:
        self.name, self.number, self._hosts = f"h{number}", number, hosts
        self.address = f"10.77.{number // 250}.{number % 250}"
        self.netns = f"{hosts.prefix}h{number}"
        self.folder = hosts.folder / self.name
        self.root = self.folder / "srv"  # /srv on the host
        self.env: dict[str, str] = {}
        self.sshd: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start sshd in the host's namespaces."""
        for name in ("srv", "etc", "tmp", "home"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self._hosts.folder / "keys" / "host"
        config = self.folder / "sshd_config"
        config.write_text(
            "\n".join(
                [
                    "Port 22",
                    f"HostKey {key}",
                    "PidFile none",
                    "PasswordAuthentication no",
                    f"AuthorizedKeysFile {self._hosts.folder}/keys/authorized_keys",
                    "UsePAM no",
                    "PermitRootLogin prohibit-password",
                    "StrictModes no",
                    "UseDNS no",
                    "Subsystem sftp internal-sftp",
                    "MaxStartups 200:30:400",
                    "MaxSessions 100",
                    *(
                        [
                            "SetEnv "
                            + " ".join(f'"{name}={value}"' for name, value in self.env.items())
                        ]
                        if self.env
                        else []
                    ),
                ]
            )
            + "\n"
        )
        # A home of its own: the shell of a login reads .bashrc there, and what this machine's says
        # (pyenv's waits for a lock) is not the host's. A folder on tmpfs: an overlay cannot lie on
        # another overlay, which containers are.
        script = (
            f"hostname {self.name}; mount --bind {self.root} /srv; "
            f"mount -t tmpfs none {self.folder}/tmp; cd {self.folder}/tmp; mkdir up work; "
            f"mount -t overlay overlay -o lowerdir=/etc,upperdir=up,workdir=work /etc; "
            f"cp -r {self.folder}/etc/. /etc/; "
            f"sed -i 's|^root:.*|root:x:0:0:root:{self.folder}/home:/bin/bash|' /etc/passwd; "
            f"exec {SSHD} -D -e -f {config}"
        )
        with (self.folder / "sshd.log").open("ab") as log:
            self.sshd = subprocess.Popen(
                [
                    "nsenter",
                    f"--net=/run/netns/{self.netns}",
                    "unshare",
                    "--uts",
                    "--mount",
                    "--propagation",
                    "private",
                    "sh",
                    "-c",
                    script,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Stop sshd, and whatever the host still runs."""
        if self.sshd is not None:
            self.sshd.kill()
            self.sshd.wait()
            self.sshd = None
        for _ in range(50):
            left = _do("ip", "netns", "pids", self.netns).split()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def enter(self, *argv: str, env: Mapping[str, str] | None = None) -> list[str]:
        """A command inside the host's namespaces, as words."""
        assert self.sshd is not None
        return [
            "nsenter",
            f"--net=/run/netns/{self.netns}",
            f"--mount=/proc/{self.sshd.pid}/ns/mnt",
            f"--uts=/proc/{self.sshd.pid}/ns/uts",
            "env",
            *(f"{name}={value}" for name, value in (env or self.env).items()),
            *argv,
        ]

    def shell(self, script: str) -> str:
        """What a shell prints on the host."""
        return _do(*self.enter("sh", "-c", script))


class Hosts:
    """See the module."""

    _count = 0

    def __init__(self, folder: Path, number: int) -> None:
        Hosts._count += 1
        self.prefix = f"kn{os.getpid()}x{Hosts._count}"
        self.folder = folder
        self.controller = f"{self.prefix}c"
        self.bridge = f"{self.prefix}b"
        self.hosts = [Host(self, at) for at in range(1, number + 1)]
        self.key = folder / "keys" / "id"
        self.known = folder / "keys" / "known_hosts"

    def __enter__(self) -> Hosts:
        keys = self.folder / "keys"
        keys.mkdir(parents=True, exist_ok=True)
        for name in ("id", "host", "other"):
            if not (keys / name).exists():
                _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name))
        (keys / "authorized_keys").write_bytes((keys / "id.pub").read_bytes())
        public = (keys / "host.pub").read_text().rpartition(" ")[0]
        self.known.write_text("".join(f"{host.address} {public}\n" for host in self.hosts))
        Path("/run/sshd").mkdir(exist_ok=True)
        _do("ip", "netns", "add", self.bridge)
        _do("ip", "-n", self.bridge, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", self.bridge, "link", "set", "br0", "up")
        self._plug(self.controller, "10.77.255.1", "vc")
        for host in self.hosts:
            self._plug(host.netns, host.address, f"v{host.number}")
            host.start()
        self.wait()
        return self

    def _plug(self, netns: str, address: str, name: str) -> None:
        _do("ip", "netns", "add", netns)
        for argv in (
            ["link", "set", "lo", "up"],
            ["link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", self.bridge],
            ["addr", "add", f"{address}/16", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            _do("ip", "-n", netns, *argv)
        _do("ip", "-n", self.bridge, "link", "set", name, "master", "br0", "up")

    def wait(self) -> None:
        """Until every sshd listens."""
        end = time.monotonic() + _WAIT
        for host in self.hosts:
            log = host.folder / "sshd.log"
            while log.read_text().count("Server listening") < 1:
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.01)

    def __exit__(self, *error: object) -> None:
        for host in self.hosts:
            host.stop()
        for pid in _do("ip", "netns", "pids", self.controller).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        for name in [*(host.netns for host in self.hosts), self.controller, self.bridge]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def argv(self, argv: Sequence[str]) -> list[str]:
        """A command on the controller's side of the network, as words."""
        return ["nsenter", f"--net=/run/netns/{self.controller}", *argv]

    def run(self, argv: Sequence[str], **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        return subprocess.run(
            self.argv(argv), capture_output=True, text=True, check=False, timeout=120, **more
        )  # type: ignore[call-overload]

    def site(self, hardware: str, number: int, **more: str) -> str:
        """A site file for the first of these hosts."""
        nodes = "\n".join(
            f"  - {{name: {host.name}, address: {host.address}}}" for host in self.hosts[:number]
        )
        ssh = {
            "user": "root",
            "key_file": str(self.key),
            "known_hosts": str(self.known),
            **{name: value for name, value in more.items() if value},
        }
        listed = ", ".join(f"{name}: {value}" for name, value in ssh.items() if value)
        return (
            f"name: testbed\nhardware: {hardware}\ntransport: ssh\nnic: eth0\nnodes:\n{nodes}\n"
            f"ssh: {{{listed}}}\npaths: {{cache: /srv/cache, work: /srv/kimi, models: /srv/models}}\n"
        )


class StandIns:
    """Stand-ins of a rehearsal on test hosts, in place of what the hosts have not: an engine and
    accelerators. Every host has a folder of its own with the plan's whole simulated site."""

    NAMES = ("vllm", "docker", "npu-smi", "hccn_tool", "python", "python3", "vllm-router")

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._spawners: dict[str, subprocess.Popen[bytes]] = {}

    def prepare(self, host: Host) -> None:
        """Put them on a host's PATH; before its sshd starts."""
        root = host.folder / "rehearsal"
        root.mkdir(parents=True, exist_ok=True)
        path_folder.write(root)
        for path in (root / "bin").iterdir():
            path.unlink()
        (root / "bin").rmdir()
        path_folder.pick(root, root / "bin", self.NAMES, ())  # the host's others are real
        host.env |= {
            "PATH": f"{root / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin",
            FOLDER: str(root),
            NODE: host.name,
        }

    def start(self, plans: Sequence[Plan], hosts: Iterable[Host], *faults: str) -> None:
        """The simulated site of plans of one engine on hosts, with faults there (`Fault` names)."""
        hosts = list(hosts)
        images = tuple({image for plan in plans for image in SimulatedSite.of(plan).images})
        for host in hosts:
            self.stop(host)
            root = host.folder / "rehearsal"
            replace(
                SimulatedSite.of(plans[0]),
                images=images,
                faults=tuple(Fault(name, host.name) for name in faults),
            ).write(root / "world.json")
            (root / "spawner.sock").unlink(missing_ok=True)
            with (root / "spawner.log").open("ab") as log:
                self._spawners[host.name] = subprocess.Popen(
                    host.enter(sys.executable, "-m", "kimi_nb.rehearse.spawner", str(root)),
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
        end = time.monotonic() + _WAIT
        for host in hosts:
            while not (host.folder / "rehearsal" / "spawner.sock").exists():
                assert time.monotonic() < end, (host.folder / "rehearsal/spawner.log").read_text()
                time.sleep(0.02)

    def stop(self, host: Host) -> None:
        """End those of a host, and with them its engines."""
        process = self._spawners.pop(host.name, None)
        if process is not None:
            process.terminate()
            process.wait()


def checkpoint(folder: Path) -> None:
    """A complete checkpoint of one small tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "model-00001-of-00001.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(8)
    )
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"t": "model-00001-of-00001.safetensors"}})
    )
    (folder / "config.json").write_text("{}\n")
