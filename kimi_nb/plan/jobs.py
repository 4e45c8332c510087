"""Write the SLURM jobs of a plan, from an empty project folder to a benchmark.

Each job can be submitted again: it keeps what already exists, and says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import companions
from kimi_nb.core import data_files, shell
from kimi_nb.params import schema
from kimi_nb.plan import job_image, network, router, serving_job
from kimi_nb.plan.job_image import JobImage
from kimi_nb.plan.roles import Request
from kimi_nb.plan.serving_job import SERVER_FILE, Serving
from kimi_nb.plan.spec import EngineSpec, Job

PYTHON = "3.11"
_TUNER = "benchmarks/kernels/benchmark_moe.py"  # in the source of vLLM
_IMAGE_SOURCE = "/vllm-workspace"  # where an image has it (docker/Dockerfile of 0.11.2 to 0.32.0)
# Exits 1 for an image of another version; it asks pip's records, because vLLM itself is slow to load.
_VERSION = """\
import sys
from importlib.metadata import version

found = version("vllm").partition("+")[0]
print("vllm", found)
sys.exit(found != "{wanted}")
"""
# How the output of a finished job ends: this tells when SLURM no longer knows the job. A serving
# job has no such words.
LAST_WORDS = {
    "create-env": ("Made ", "No change: "),
    "install": ("Install complete.",),
    "download": ("Download complete.",),
    "tune-moe": ("Tuning complete.", "No change: "),
    "benchmark": ("Benchmark complete.",),
}


def jobs(
    request: Request,
    baseline: Serving,
    optimised: Serving,
    benchmark: Sequence[str],
) -> tuple[Job, ...]:
    """Return the seven jobs in the order in which they are submitted.

    ``baseline`` and ``optimised`` are what the two serving jobs serve.
    """
    table = data_files.facts("plan/slurm")
    image = job_image.of(request)
    makers = {"create-env": _create_env, "install": _install, "download": _download}
    out = []
    for number, (name, spec) in enumerate(table["jobs"].items(), start=1):
        if image:
            spec = spec | table["with_image"].get(name, {})
        at = _Place(request, image, spec)
        env, nodes = at.environment(name), 1
        if name in ("baseline", "optimised"):
            serving = baseline if name == "baseline" else optimised
            nodes, first = len(serving.engines), serving.engines[0]
            env |= {key: value for key, value in first.env.items() if key not in env}
            argv, body = _serve(at, serving)
        elif name == "tune-moe":
            argv, body = _tune_moe(at, optimised.engines[0])
        elif name == "benchmark":
            argv, body = _benchmark(at, benchmark)
        else:
            argv, body = makers[name](at)
            body = [*_way_out(request), *body]
        out.append(
            Job(
                name=name,
                file=f"{number}_{name.replace('-', '_')}.sbatch",
                after=spec["after"],
                options=_options(request.site, spec, nodes),
                env=env,
                argv=tuple(argv),
                body=tuple(body),
                products=_products(at, name, argv),
            )
        )
    return tuple(out)


@dataclass(frozen=True)
class _Place:
    """Where a job's programs are: in an environment made by conda, or in an image."""

    request: Request
    image: JobImage | None
    spec: Mapping[str, Any]

    @property
    def devices(self) -> bool:
        """Whether the job holds accelerators."""
        return "gpus" in self.spec

    @property
    def cpus(self) -> Any:
        """How many CPUs the job has on each node."""
        slurm = self.request.site.slurm
        assert slurm is not None  # as in `_options`
        count = _cpus(slurm, self.spec)
        return count if self.spec["tasks"] == 1 else count * self.spec["tasks"]

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of the job of this name."""
        places = self.request.places()
        env = {}
        if self.image is None:
            folder = places["virtual_env"]
            env = {"VIRTUAL_ENV": folder, "PATH": f"{folder}/bin"}
        if name in ("download", "baseline", "optimised"):
            env["HF_HOME"] = places["cache"]
        return env

    def call(self, argv: Sequence[object]) -> list[str]:
        """Return the lines that run a program."""
        if self.image is None:
            return shell.command(argv)
        return self.image.call(argv, self.cpus, self.devices)

    def needs(self) -> list[str]:
        """Return the lines that end a job before what it needs was made."""
        if self.image is None:
            folder = self.request.places()["virtual_env"]
            return _missing(f"[ ! -d {shell.quote(folder)} ]", folder)
        file, environment = self.image.needs
        test = f"[ ! -s {shell.quote(file)} ] || [ ! -e {shell.quote(environment)} ]"
        lines = _missing(test, f"{file} or {environment}")
        return [*lines, *self.image.exports(self.devices)]


def _missing(test: str, what: str) -> list[str]:
    why = f"{what} is missing: submit 1_create_env.sbatch first."
    return [f"if {test}; then", f"    tell ERROR {shell.quote(why)} >&2", "    exit 1", "fi"]


def _products(at: _Place, name: str, argv: Sequence[str]) -> tuple[str, ...]:
    """Return what a job leaves behind that can be seen from the login node."""
    if name == "create-env":
        folder = at.request.places()["virtual_env"]
        return at.image.needs if at.image else (f"{folder}/bin/python",)
    flags = [flag for flag in ("--local-dir", "--save-dir") if flag in argv]
    return tuple(argv[argv.index(flag) + 1] for flag in flags)


def complete(name: str, output: str) -> bool:
    r"""Return whether the output of a job says that its work is done.

    >>> complete("install", "Install complete.\n")
    True
    """
    lines = output.split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return shell.message(last).startswith(LAST_WORDS.get(name, ()))


def _options(site: schema.Site, spec: Mapping[str, Any], nodes: int) -> tuple[str, ...]:
    slurm = site.slurm
    assert slurm is not None  # `build` refuses other sites for a recipe with jobs
    gpu = spec["partition"] == "gpu"
    qos = slurm.qos if gpu else slurm.cpu_qos
    whole = "gpus" in spec  # a job that needs a whole node
    memory = (whole and slurm.memory) or spec["memory"]
    limit = (whole and slurm.time) or spec["time"]
    return (
        f"--partition={slurm.partition if gpu else slurm.cpu_partition}",
        f"--job-name={spec['job_name']}",
        f"--time={limit}",
        f"--account={slurm.account}",
        *([f"--qos={qos}"] if qos else []),
        f"--nodes={nodes}",
        f"--ntasks-per-node={spec['tasks']}",
        *([f"--gpus-per-node={spec['gpus']}"] if "gpus" in spec else []),
        f"--cpus-per-task={_cpus(slurm, spec)}",
        f"--mem={memory}",
        f"-o {spec['job_name']}.%j.out",
        f"-e {spec['job_name']}.%j.err",
    )


def _cpus(slurm: schema.Slurm, spec: Mapping[str, Any]) -> Any:
    """Return the cores of each task; the site's number counts for jobs that hold GPUs."""
    return ("gpus" in spec and slurm.cpus) or spec["cpus"]


def _create_env(at: _Place) -> tuple[list[str], list[str]]:
    if at.image:
        return _fetch_image(at, at.image)
    folder = at.request.places()["virtual_env"]
    channel = ["-c", "conda-forge", "--override-channels"]
    argv = ["conda", "create", *channel, "--prefix", folder, f"python={PYTHON}", "-y"]
    return argv, [
        f"if [ -x {shell.quote(folder + '/bin/python')} ]; then",
        f"    tell INFO {shell.quote(f'No change: {folder} is there already.')}",
        "    exit 0",
        "fi",
        "# Anaconda's own channels ask for their terms of service, and a job has nobody to accept",
        "# them (CondaToSNonInteractiveError). conda-forge asks for none.",
        *shell.command(argv),
        f"tell INFO {shell.quote(f'Made {folder}.')}",
    ]


def _fetch_image(at: _Place, image: JobImage) -> tuple[list[str], list[str]]:
    file, known = image.needs
    made = f"{file} and {image.packages}"
    argv = ["python3", "-m", "venv", "--system-site-packages", "--clear", image.packages]
    return argv, [
        f"if [ -s {shell.quote(file)} ] && [ -e {shell.quote(known)} ]; then",
        f"    tell INFO {shell.quote(f'No change: {made} are there already.')}",
        "    exit 0",
        "fi",
        *image.exports(at.devices),
        *image.fetch(),
        "# For what the image lacks: this environment sees the packages of the image.",
        *at.call(argv),
        f"tell INFO {shell.quote(f'Made {made}.')}",
    ]


def _install(at: _Place) -> tuple[list[str], list[str]]:
    request = at.request
    more = [f"{router.VLLM_ROUTER}=={companions.router()}"] if request.router else []
    if at.image:
        return _install_beside(at, more)
    places = request.places()
    source, tag = f"{places['project']}/vllm", request.engine.tag
    argv = ["pip", "install", f"vllm=={request.engine.vllm}", *_packages(request), *more]
    clone = [
        "git",
        "clone",
        "--depth",
        "1",
        "--branch",
        tag,
        "https://github.com/vllm-project/vllm",
        source,
    ]
    return argv, [
        *at.needs(),
        "# pip must be the environment's own: any other writes into the home folder.",
        'tell INFO "pip: $(command -v pip)"',
        "# vLLM requires neither ray, which the kernel tuner imports, nor datasets and pandas, which",
        "# the benchmark imports. The versions are those with which this vLLM is tested.",
        *shell.command(argv),
        "# The kernel tuner is not in the wheel; it is run from the source of the same version.",
        f"[ -d {shell.quote(source)} ] || {shlex.join(clone)}",
        "found=$(python -c 'import vllm; print(vllm.__version__, vllm.__file__)')",
        'tell INFO "vLLM: $found"',
        "tell INFO 'Install complete.'",
    ]


def _install_beside(at: _Place, more: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the job that adds to an image what it lacks, and looks at what it holds."""
    lacks = data_files.facts("plan/slurm")["with_image"]["packages"]
    wanted = [word for word in _packages(at.request) if word.partition("==")[0] in lacks]
    argv = ["pip", "install", *wanted, *more]
    wanted_vllm = at.request.engine.vllm
    look = at.call(["python", "-c", _VERSION.format(wanted=wanted_vllm)])
    why = f"The image does not hold vLLM {wanted_vllm}, for which the plan is; the lines above say "
    why += "what it holds. Name another image in the site file."
    return argv, [
        *at.needs(),
        "# What the kernel tuner and the benchmark import and the image lacks; the rest stays as it is.",
        *at.call(argv),
        f"if ! {look[0]}",
        *look[1:-1],
        f"{look[-1]}; then",
        f"    tell ERROR {shell.quote(why)} >&2",
        "    exit 1",
        "fi",
        "tell INFO 'Install complete.'",
    ]


def _packages(request: Request) -> list[str]:
    """Return the packages that go with this version of vLLM, each with its exact version."""
    row = next(
        row
        for row in data_files.facts("plan/slurm")["packages"]
        if catalog.satisfies(request.engine, row["vllm"])
    )
    return [f"{name}=={version}" for name, version in row.items() if name != "vllm"]


def _way_out(request: Request) -> list[str]:
    """Return the exports of the site's proxies and mirrors."""
    return [shell.export(*item) for item in network.variables(request.site.network).items()]


def _download(at: _Place) -> tuple[list[str], list[str]]:
    request, weights = at.request, at.request.weights
    argv = ["hf", "download", weights.id, "--local-dir", request.located(weights)]
    drafts = [
        draft for draft in request.model.drafts.values() if request.hardware.vendor in draft.vendors
    ]
    lines = [*at.needs(), *at.call(argv)]
    for draft in drafts:
        lines += at.call(["hf", "download", draft.id, "--local-dir", request.located(draft)])
    return argv, [*lines, "tell INFO 'Download complete.'"]


def _serve(at: _Place, serving: Serving) -> tuple[list[str], list[str]]:
    request, host = at.request, f"{at.request.places()['project']}/{SERVER_FILE}"
    return list(serving.engines[0].argv), [
        *at.needs(),
        *_secret(request, "VLLM_API_KEY"),
        *(_secret(request, "OPENAI_API_KEY") if serving.router_port else []),  # the door's
        *serving_job.lines(serving, host, at.spec["job_name"], at.cpus, at.image),
    ]


def _tune_moe(at: _Place, engine: EngineSpec) -> tuple[list[str], list[str]]:
    """Return the job that tunes the kernels of ``engine``, for the shape that it will look up.

    Without expert parallelism too, the engine spreads its experts over all ranks of tensor and data
    parallelism, so that the tuner's --tp-size is their product.
    """
    request, places = at.request, at.request.places()
    arch = request.model.architecture
    parallel = "--enable-expert-parallel" in engine.argv
    ranks, nested = engine.tp_size * engine.pcp_size * engine.dp_size, request.model.language_config
    argv = [
        "python",
        f"{_IMAGE_SOURCE if at.image else places['project'] + '/vllm'}/{_TUNER}",
        "--model",
        request.located(request.weights),
        *(["--model-prefix", nested] if nested else []),
        "--tp-size",
        str(ranks),
        *(["--enable-expert-parallel"] if parallel else []),
        "--dtype",
        "int4_w4a16",
        "--trust-remote-code",
        "--tune",
        "--save-dir",
        places["tuning"],
    ]
    experts, size = arch["experts"], arch["moe_intermediate_size"]
    shape = f"E={experts // ranks},N={size}" if parallel else f"E={experts},N={size // ranks}"
    table = f"{places['tuning']}/{shape},*.json"
    there = f"No change: {places['tuning']} holds kernels for {shape}; remove them to tune again."
    return argv, [
        *at.needs(),
        f"# The server looks for {shape}: experts of a GPU, and the size of each.",
        f"if compgen -G {shell.quote(table)} > /dev/null; then",
        f"    tell INFO {shell.quote(there)}",
        "    exit 0",
        "fi",
        f"mkdir -p {shell.quote(places['tuning'])}",
        *at.call(argv),
        f"ls {shell.quote(places['tuning'])}",
        "tell INFO 'Tuning complete.'",
    ]


def _benchmark(at: _Place, command: Sequence[str]) -> tuple[list[str], list[str]]:
    request, places = at.request, at.request.places()
    told = command.index("--base-url") + 1
    url, host_file = command[told], f"{places['project']}/{SERVER_FILE}"
    port = url.rpartition(":")[2]
    words: list[object] = [*command]
    words[told] = shell.Raw('"$SERVER_URL"')
    return list(command), [
        *at.needs(),
        f"SERVER_URL={shell.quote(url)}",
        f"if [ -s {shell.quote(host_file)} ]; then",
        f'    SERVER_URL="http://$(cat {shell.quote(host_file)}):{port}"',
        "fi",
        *_secret(request, "OPENAI_API_KEY"),
        "# The dataset goes where there is room.",
        shell.export("HF_HOME", places["cache"]),
        *at.call(words),
        "tell INFO 'Benchmark complete.'",
    ]


def _secret(request: Request, name: str) -> list[str]:
    """Return the export of the API key under the name that a program looks for.

    The value is never written: sbatch passes the submitter's variables on to the job.
    """
    source = request.site.api_key_env
    return [f'export {name}="${{{source}:?set {source} where you submit}}"'] if source else []


def script(job: Job, modules: Sequence[str]) -> str:
    """Return the text of a job's file."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in job.options),
        "set -eo pipefail",
        shell.teller(serving_job.SPEAKER),
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        "module purge || { tell ERROR 'module purge failed' >&2; exit 1; }",
        *(
            f"module load {shell.quote(name)} || "
            f"{{ tell ERROR {shell.quote(f'module load {name} failed')} >&2; exit 1; }}"
            for name in modules
        ),
    ]
    # Only what every job needs; a serving job adds its own variables in its body.
    lines += [
        shell.export(name, job.env[name]) for name in serving_job.EVERYWHERE if name in job.env
    ]
    return "\n".join([*lines, "", *job.body]) + "\n"
