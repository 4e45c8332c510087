"""Write how a SLURM job runs a program in an image: under Apptainer, or as a step of Pyxis.

The first job makes the image one file on the shared file system; from then on every job starts the
programs of the image from that file. What the image lacks, which is what only the tuner, the
benchmark and the router need, goes into a virtual environment beside it, which sees the packages
of the image.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan import containers
from kimi_nb.plan.roles import Request

Runtime = Literal["apptainer", "pyxis"]
_ENDS: dict[Runtime, str] = {"apptainer": ".sif", "pyxis": ".sqsh"}
_DEVICES = {"nvidia": "--nv", "amd": "--rocm"}
# The home folder of an image may not be writable, and one that Apptainer mounts may have a quota.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}


@dataclass(frozen=True)
class JobImage:
    """An image for the jobs.

    Attributes:
        file: The image as one file on the shared file system.
        source: Its name in a registry; "" where the site has the file already.
        packages: The virtual environment for what the image lacks.
        folders: The folders of the site that a container sees, at the same paths.
        devices: The option that shows accelerators to a container of Apptainer.
        cache: The folder for what is compiled at the start.
    """

    runtime: Runtime
    file: str
    source: str
    packages: str
    folders: tuple[str, ...]
    devices: str
    cache: str

    @property
    def python(self) -> str:
        """The interpreter that sees the image's packages and those that were added."""
        return f"{self.packages}/bin/python"

    @property
    def needs(self) -> tuple[str, ...]:
        """What the first job makes: the image, and the file by which an environment is known."""
        return self.file, f"{self.packages}/pyvenv.cfg"

    def named(self, argv: Sequence[object]) -> list[Any]:
        """Return a command with its program as it is called in the image.

        The image's own ``vllm bench`` would not see what was added for it.
        """
        words = list(argv)
        match words:
            case ["python", *rest]:
                return [self.python, *rest]
            case [("pip" | "vllm-router") as name, *rest]:
                return [f"{self.packages}/bin/{name}", *rest]
            case ["vllm", "bench", *rest]:
                return [self.python, "-m", "vllm.entrypoints.cli.main", "bench", *rest]
        return words

    def options(self) -> list[str]:
        """Return the options of srun that put its tasks into the image, under Pyxis."""
        mounts = ",".join(f"{folder}:{folder}" for folder in self.folders)
        return [
            f"--container-image={self.file}",
            f"--container-mounts={mounts}",
            # The entry point is `vllm serve`. Uid 0 has a home folder there, and may write to it.
            "--no-container-entrypoint",
            "--no-container-mount-home",
            "--container-remap-root",
            "--container-writable",
        ]

    def call(
        self, argv: Sequence[object], cpus: int | str, devices: bool = False, step: str = ""
    ) -> list[str]:
        """Return the lines that run a program of the image on one node.

        ``cpus`` is how many the job has there, ``devices`` whether the program computes on
        accelerators, and ``step`` are options of srun that only this program needs.
        """
        if self.runtime == "apptainer":
            return self.apptainer(argv, devices)
        program = shell.command(self.named(argv))
        return [
            f"srun --nodes=1 --ntasks=1 --cpus-per-task={cpus} {step}".rstrip() + " \\",
            *(f"    {shell.quote(option)} \\" for option in self.options()),
            *(f"    {line}" for line in program),
        ]

    def apptainer(self, argv: Sequence[object], devices: bool, head: str = "") -> list[str]:
        """Return the lines that run a program by Apptainer; ``head`` stands before them."""
        shown = f"{self.devices} " if devices else ""
        folders = shell.quote(",".join(self.folders))
        return [
            f"{head}apptainer exec {shown}--bind {folders} \\",
            f"    {shell.quote(self.file)} \\",
            *(f"    {line}" for line in shell.command(self.named(argv))),
        ]

    def exports(self, devices: bool) -> list[str]:
        """Return the exports for programs of the image."""
        lines = [
            "# Packages in ~/.local would come before those of the image.",
            shell.export("PYTHONNOUSERSITE", "1"),
        ]
        if devices:
            compiled = _CACHES.items()
            lines += [shell.export(name, f"{self.cache}/{folder}") for name, folder in compiled]
        elif self.runtime == "pyxis":
            lines += [
                "# The image asks for GPUs, which a node without a driver would refuse.",
                shell.export("NVIDIA_VISIBLE_DEVICES", "void"),
            ]
        return lines

    def fetch(self) -> list[str]:
        """Return the lines that make the image's file, or ask for it."""
        file = shell.quote(self.file)
        if not self.source:
            why = f"{self.file} is missing: the site's slurm.container.image names it."
            return [
                f"if [ ! -s {file} ]; then",
                f"    tell ERROR {shell.quote(why)} >&2",
                "    exit 1",
                "fi",
            ]
        # The name ends as that of an image: Apptainer tells by it what it shall make.
        folder, end = posixpath.dirname(self.file), _ENDS[self.runtime]
        part, scratch = f"{self.file.removesuffix(end)}.part{end}", f"{folder}/tmp"
        if self.runtime == "apptainer":
            places = {"APPTAINER_CACHEDIR": scratch, "APPTAINER_TMPDIR": scratch}
            pull = ["apptainer", "pull", part, f"docker://{self.source}"]
        else:
            places = {"ENROOT_CACHE_PATH": scratch, "ENROOT_TEMP_PATH": scratch}
            pull = ["enroot", "import", "-o", part, f"docker://{_enroot(self.source)}"]
        return [
            f"if [ ! -s {file} ]; then",
            "    # The layers need tens of GB, which /tmp and the home folder may not have.",
            f"    mkdir -p {shell.quote(scratch)}",
            *(f"    {shell.export(*item)}" for item in places.items()),
            f"    rm -f {shell.quote(part)}",
            *(f"    {line}" for line in shell.command(pull)),
            f"    mv {shell.quote(part)} {file}",
            f"    rm -rf {shell.quote(scratch)}",
            "fi",
        ]


def of(request: Request) -> JobImage | None:
    """Return the image for the jobs of a plan; None where the site runs them without one.

    Raises PlanError where neither the site nor the hardware names an image, or where a container
    does not see the accelerators.
    """
    slurm = request.site.slurm
    spec = slurm.container if slurm else None
    if spec is None:
        return None
    mirror = request.site.network.registry
    told = spec.image or containers.image(request.hardware, request.engine, mirror)
    devices = _DEVICES.get(request.hardware.vendor)
    if not told or devices is None:
        raise PlanError(
            f"slurm.container of the site {request.site.name}: there is no way known here to run "
            f"{request.hardware.name} in a job's image. Take slurm.container out of the site file."
        )
    base, places = request.places()["project"], request.site.paths
    is_file = told.startswith("/")
    stem = re.sub(r"[^A-Za-z0-9.]+", "_", posixpath.basename(told).partition("@")[0])
    name = posixpath.splitext(stem)[0] if is_file else stem
    file = told if is_file else f"{base}/images/{name}{_ENDS[spec.runtime]}"
    folders = [base, places.cache, request.models, places.work]
    return JobImage(
        runtime=spec.runtime,
        file=file,
        source="" if is_file else told,
        packages=f"{base}/virt_envs/{name}",
        folders=_outermost(folder for folder in folders if folder),
        devices=devices,
        cache=f"{places.cache}/compiled",
    )


def _outermost(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folders without those that lie in another one.

    >>> _outermost(["/p/kimi", "/p/kimi/models", "/scratch", "/p/kimi"])
    ('/p/kimi', '/scratch')
    """
    known = sorted({posixpath.normpath(folder) for folder in folders})
    return tuple(
        one
        for one in known
        if not any(one.startswith(f"{other}/") for other in known if other != one)
    )


def _enroot(name: str) -> str:
    """Return the name of an image as enroot takes it: the registry ends with a '#'.

    >>> _enroot("quay.io/ascend/vllm-ascend:v0.18.0"), _enroot("vllm/vllm-openai:v0.19.1")
    ('quay.io#ascend/vllm-ascend:v0.18.0', 'vllm/vllm-openai:v0.19.1')
    """
    host, slash, path = name.partition("/")
    return f"{host}#{path}" if slash and {*".:"} & {*host} else name
