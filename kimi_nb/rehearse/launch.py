"""Start a plan's scripts on this machine: nodes, stand-ins, and the proxy in front.

A `Stage` is what a rehearsal runs on; `service.readiness` watches it and judges what it finds.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from kimi_nb.bundle import node_files, writer
from kimi_nb.core.marks import MARK
from kimi_nb.core.processes import Programs
from kimi_nb.diagnose.log_files import file_of
from kimi_nb.plan import job_image
from kimi_nb.plan.router import UPSTREAM
from kimi_nb.plan.spec import Plan, url_of
from kimi_nb.rehearse import faults
from kimi_nb.rehearse.cluster_table import FILE
from kimi_nb.rehearse.fault_names import FaultName
from kimi_nb.rehearse.host_programs import (
    front_door,
    image_programs,
    path_folder,
    slurm_programs,
)
from kimi_nb.rehearse.host_programs.docker_run import SYSTEM
from kimi_nb.rehearse.loopback import RehearsalError
from kimi_nb.rehearse.simulated_cluster import SimulatedCluster
from kimi_nb.rehearse.simulated_site import FOLDER, NODE, SimulatedSite
from kimi_nb.service import http_client
from kimi_nb.service.readiness import ROUTER, Watch

WORK = "bundle"  # the folder of the scripts, within the folder of a rehearsal
_SPAWNER_WAIT = 30.0  # seconds; it usually takes one
_STEP_WAIT = 60.0  # seconds for a script that must finish


def client_key(plan: Plan) -> str:
    """Return the API key of a rehearsal; "" where the plan has no secrets."""
    return f"{MARK}-key" if plan.secrets else ""


class Stage:
    """The simulated site and the programs of one rehearsal, below a folder of its own."""

    def __init__(
        self,
        plan: Plan,
        files: dict[str, str],
        root: Path,
        fault: str,
        programs: Programs,
        say: Callable[[str], None],
    ) -> None:
        self.plan, self.root, self._programs, self._say = plan, root, programs, say
        self.work = root / WORK
        site = SimulatedSite.of(plan)
        self._occupied: tuple[str, str, int] | None = None
        if fault:
            site, files, target = faults.apply(fault, self.plan, site, files)
            if target.name == FaultName.PORT_TAKEN:
                engine = target.engine
                self._occupied = (engine.node, engine.address, engine.http_port or 0)
        self.site = site
        self._cluster: SimulatedCluster | None = None
        if FILE in files:
            table = json.loads(files[FILE])
            self._cluster = SimulatedCluster(table, site, programs, self._start_pod, root)
        writer.write(files, self.work)
        if plan.store:
            self._as_on_nodes()
        image = job_image.of(plan.request) if plan.jobs else None
        if image and not image.source:  # the site has it already
            file = Path(image.file)
            file.parent.mkdir(parents=True, exist_ok=True)
            image_programs.write(file, plan.image)
        path_folder.write(root)
        site.write(root / "world.json")
        self.key = client_key(plan)

    def _as_on_nodes(self) -> None:
        """Make the nodes' folders seen where they are on real nodes: there engines look for files."""
        there = self.work / self.plan.name
        there.mkdir()
        for node in self.site.nodes:
            (there / node).symlink_to(Path("..", node), target_is_directory=True)

    def open(self) -> None:
        """Wait until the stand-ins can be called.

        Raises:
            RehearsalError: The stand-ins did not start, or PATH would find real programs instead.
        """
        if self._occupied:
            node, address, port = self._occupied
            self._start(
                "occupant",
                node,
                [
                    sys.executable,
                    "-m",
                    "http.server",
                    str(port),
                    "--bind",
                    address,
                    "--directory",
                    str(self.root / "logs"),
                ],
                self.root,
            )
        node = next(iter(self.site.nodes))
        for name in path_folder.NAMES:
            # A script must never call the real programs of this machine.
            found = shutil.which(name, path=self._environment(node)["PATH"])
            if found is None or not Path(found).is_relative_to(self.root):
                raise RehearsalError(
                    f"{name} on the rehearsal's PATH would be {found}, not the "
                    f"stand-in in {self.root}: choose another --run-dir."
                )
        end = time.monotonic() + _SPAWNER_WAIT
        while not (self.root / "spawner.sock").exists():
            if "spawner" in self._programs.ended() or time.monotonic() > end:
                text = (self.root / "logs" / "spawner.log").read_text(errors="replace")
                raise RehearsalError(
                    "The stand-ins of the rehearsal did not start:\n"
                    + "\n".join(text.splitlines()[-8:])
                )
            time.sleep(0.01)

    def prepare(self, watch: Watch) -> None:
        """Reach every node, tune it, and run the jobs that come before the serving job."""
        self._on_every_node(watch, "reach", lambda node: ["ssh", self.site.nodes[node], "hostname"])
        if self.plan.host_tuning:
            self._on_every_node(watch, "host_tuning", _always("bash", "host_tuning.sh"))
        if self._install.is_file():
            self._on_every_node(watch, "install", _always("bash", str(self._install)))
        for file in self._jobs_before():
            self._on_nodes([self._first], watch, file, _always("bash", f"../jobs/{file}"))

    @property
    def _install(self) -> Path:
        """The script that installs what the nodes run; of a document's commands there is none."""
        # This machine's own CPU engine is never made for a rehearsal.
        name = "none" if self.site.vendor == "cpu" else self.plan.install
        return self.work / "install" / f"{name}.sh"

    @property
    def _path(self) -> str:
        """The PATH of a login on a node.

        What a document publishes without an installation is started where an engine is on PATH.
        """
        ready = self.plan.jobs or self._install.is_file()
        first = self.root / ("bin" if ready else "stubs")
        return f"{first}:{SYSTEM}"

    @property
    def _first(self) -> str:
        """The node on which the script of a job runs."""
        return next(iter(self.site.nodes))

    def finish(self, watch: Watch) -> None:
        """Run what needs the service: the probes of pods, the job of the benchmark."""
        if self._cluster:
            failed = self._cluster.ready(self.work, self._probing)
            for name, code in failed.items():
                watch.failed(name, code)
        for job in self.plan.jobs:
            if job.name == "benchmark":
                self._say(f"{self._first}: bash {job.file}")
                self._on_nodes(
                    [self._first], watch, job.file, _always("bash", f"../jobs/{job.file}")
                )

    def _on_every_node(self, watch: Watch, step: str, argv: Callable[[str], list[str]]) -> None:
        self._on_nodes(list(self.site.nodes), watch, step, argv)

    def _on_nodes(
        self, nodes: Sequence[str], watch: Watch, step: str, argv: Callable[[str], list[str]]
    ) -> None:
        """Run a command on nodes, and report failures once all of them have finished."""
        for node in nodes:
            self._start(f"{node} {step}", node, argv(node), self.work / node)
        codes = {node: self._programs.wait(f"{node} {step}", _STEP_WAIT) for node in nodes}
        failed = [node for node, code in codes.items() if code != 0]
        if failed:
            if "spawner" in self._programs.ended():
                raise RehearsalError(
                    "The stand-ins were stopped from outside; their messages: "
                    f"{self.root / 'logs' / 'spawner.log'}"
                )
            watch.find("at start", failed)
            watch.failed(f"{failed[0]} {step}", codes[failed[0]])

    def _jobs_before(self) -> list[str]:
        """Return the script files of the jobs to run before the serving job, in order.

        The kernel tuner is among them, also where what is served does not wait for it.
        """
        return [
            job.file
            for job in self.plan.jobs
            if job.name not in ("baseline", "optimised", "benchmark")
        ]

    @property
    def _serving(self) -> str:
        """The name of the job that serves the plan's own scenario."""
        return "baseline" if self.plan.scenario == "default" else "optimised"

    def start_engines(self) -> None:
        """Start on each node what its README says; a job starts its own tasks on its nodes.

        Pods are started by the cluster.
        """
        if self._cluster:
            self._cluster.begin()
            return
        containers = {box.node: box for box in self.plan.containers}
        for node in [self._first] if self.plan.jobs else self.site.nodes:
            folder = self.work / node
            inner = "launch.sh" if (folder / "launch.sh").exists() else "serve.sh"
            if self.plan.jobs:
                file = next(job.file for job in self.plan.jobs if job.name == self._serving)
                argv = ["bash", f"../jobs/{file}"]
            elif node in containers and containers[node].runs_engine:
                argv = ["bash", "docker_run.sh"]
            elif node in containers:
                argv = ["bash", "docker_run.sh", "bash", str(folder / inner)]
            else:
                argv = ["bash", inner]
            self._say(f"{node}: {shlex.join([Path(word).name for word in argv])}")
            self._start(f"{node} engines", node, argv, folder)

    def _start_pod(self, name: str) -> None:
        """Start the container of a pod, as the kubelet of its node does."""
        self._say(f"{name}: its container starts")
        self._start(f"{name} engines", name, ["bash", "docker_run.sh"], self.work / name)

    @property
    def _probing(self) -> dict[str, str]:
        """The environment of a probe on this machine."""
        key = {"VLLM_API_KEY": self.key} if self.key else {}
        return {"PATH": SYSTEM, "LANG": "C.UTF-8", **key}

    def ended(self) -> dict[str, int]:
        """Return the exit codes of the programs that have ended; a cluster looks at its pods first."""
        if self._cluster:
            self._cluster.look()
        return self._programs.ended()

    def start_store(self, watch: Watch) -> None:
        """Start the parts of a KV store, each where its script is, and wait until they answer."""
        store = self.plan.store
        if store is None:
            return
        begin = [(store.node, node_files.MASTER, store.port)]
        if store.service_port:
            begin += [(node, node_files.SERVICE, store.service_port) for node in self.site.nodes]
        for node, name, port in begin:
            self._say(f"{node}: bash {name}.sh")
            self._start(f"{node} {name}", node, ["bash", f"{name}.sh"], self.work / node)
            end = time.monotonic() + _SPAWNER_WAIT
            while not http_client.listens(url_of(self.site.nodes[node], port), 1.0):
                ended = self._programs.ended().get(f"{node} {name}")
                if ended is not None or time.monotonic() > end:
                    watch.find("at start", [node])
                    watch.failed(f"{node} {name}", ended)
                time.sleep(0.05)

    def open_door(self) -> None:
        """Start the proxy if the plan has one; a job starts its own."""
        router = self.plan.router
        if router is None or self.plan.jobs:
            return
        self._say(f"{router.node}: bash proxy.sh")
        folder = self.work / router.node
        if router.kind == "upstream":
            shutil.copy(front_door.upstream_program(self.root), folder / UPSTREAM)
        argv = ["bash", "proxy.sh"]
        box = next((box for box in self.plan.containers if box.node == router.node), None)
        if box and router.kind == "upstream":
            # As node.sh does: what that proxy imports is in the image.
            passed = [
                word
                for name in sorted({*self.plan.secrets, *self.plan.secrets.values()})
                for word in ("-e", name)
            ]
            name = box.argv[box.argv.index("--name") + 1]
            argv = ["docker", "exec", *passed, name, "bash", str(folder / "proxy.sh")]
        self._start(ROUTER, router.node, argv, folder)

    def _start(self, name: str, node: str, argv: Sequence[str], folder: Path) -> None:
        log = file_of(self.root, name)
        log.parent.mkdir(exist_ok=True)
        self._programs.start(name, argv, folder, self._environment(node), log)

    def _environment(self, node: str) -> dict[str, str]:
        """Return the environment of a login on the node.

        The stand-ins come first on PATH, the home and temporary folders are the node's own, and
        every secret has a dummy value.
        """
        home = self.root / "nodes" / node / "home"
        home.mkdir(parents=True, exist_ok=True)
        return {
            **dict.fromkeys(self.plan.secrets.values(), self.key),
            "PATH": self._path,
            "HOME": str(home),
            "TMPDIR": str(home),
            "USER": "root",
            "LANG": "C.UTF-8",
            "HOSTNAME": node,
            **(slurm_programs.job(self.site.nodes, self.work / "jobs") if self.plan.jobs else {}),
            NODE: node,
            FOLDER: str(self.root),
        }


def _always(*words: str) -> Callable[[str], list[str]]:
    """Return a function that gives the same command for every node."""
    return lambda node: list(words)
