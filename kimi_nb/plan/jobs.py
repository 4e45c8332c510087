"""Write the SLURM jobs of a plan, from an empty project folder to a benchmark.

Each job can be submitted again: it keeps what already exists, and says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import companions
from kimi_nb.core import data_files, shell
from kimi_nb.params import schema
from kimi_nb.plan import network, router, serving_job
from kimi_nb.plan.roles import Request
from kimi_nb.plan.serving_job import SERVER_FILE, Serving
from kimi_nb.plan.spec import EngineSpec, Job

PYTHON = "3.11"
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
    table = data_files.facts("plan/slurm")["jobs"]
    makers = {"create-env": _create_env, "install": _install, "download": _download}
    out = []
    for number, (name, spec) in enumerate(table.items(), start=1):
        env, nodes = _environment(request, name), 1
        if name in ("baseline", "optimised"):
            serving = baseline if name == "baseline" else optimised
            nodes, first = len(serving.engines), serving.engines[0]
            env |= {key: value for key, value in first.env.items() if key not in env}
            argv, body = _serve(request, serving, spec)
        elif name == "tune-moe":
            argv, body = _tune_moe(request, optimised.engines[0])
        elif name == "benchmark":
            argv, body = _benchmark(request, benchmark)
        else:
            argv, body = makers[name](request)
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
            )
        )
    return tuple(out)


def complete(name: str, output: str) -> bool:
    r"""Return whether the output of a job says that its work is done.

    >>> complete("install", "Install complete.\n")
    True
    """
    lines = output.split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last.startswith(LAST_WORDS.get(name, ()))


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


def _environment(request: Request, name: str) -> dict[str, str]:
    places = request.places()
    env = {"VIRTUAL_ENV": places["virtual_env"], "PATH": f"{places['virtual_env']}/bin"}
    if name in ("download", "baseline", "optimised"):
        env["HF_HOME"] = places["cache"]
    return env


def _create_env(request: Request) -> tuple[list[str], list[str]]:
    folder = request.places()["virtual_env"]
    channel = ["-c", "conda-forge", "--override-channels"]
    argv = ["conda", "create", *channel, "--prefix", folder, f"python={PYTHON}", "-y"]
    return argv, [
        f"if [ -x {shell.quote(folder + '/bin/python')} ]; then",
        f"    echo {shell.quote(f'No change: {folder} is there already.')}",
        "    exit 0",
        "fi",
        "# Anaconda's own channels ask for their terms of service, and a job has nobody to accept",
        "# them (CondaToSNonInteractiveError). conda-forge asks for none.",
        *shell.command(argv),
        f"echo {shell.quote(f'Made {folder}.')}",
    ]


def _install(request: Request) -> tuple[list[str], list[str]]:
    places = request.places()
    source, tag = f"{places['project']}/vllm", request.engine.tag
    argv = ["pip", "install", f"vllm=={request.engine.vllm}", *_packages(request)]
    if request.router:
        argv.append(f"{router.VLLM_ROUTER}=={companions.router()}")
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
        *_needs_environment(places["virtual_env"]),
        "# pip must be the environment's own: any other writes into the home folder.",
        'echo "pip: $(command -v pip)"',
        "# vLLM requires neither ray, which the kernel tuner imports, nor datasets and pandas, which",
        "# the benchmark imports. The versions are those with which this vLLM is tested.",
        *shell.command(argv),
        "# The kernel tuner is not in the wheel; it is run from the source of the same version.",
        f"[ -d {shell.quote(source)} ] || {shlex.join(clone)}",
        "python -c 'import vllm; print(vllm.__version__, vllm.__file__)'",
        "echo 'Install complete.'",
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


def _download(request: Request) -> tuple[list[str], list[str]]:
    weights = request.weights
    argv = ["hf", "download", weights.id, "--local-dir", request.located(weights)]
    drafts = [
        draft for draft in request.model.drafts.values() if request.hardware.vendor in draft.vendors
    ]
    lines = [*_needs_environment(request.places()["virtual_env"]), *shell.command(argv)]
    for draft in drafts:
        lines += shell.command(["hf", "download", draft.id, "--local-dir", request.located(draft)])
    return argv, [*lines, "echo 'Download complete.'"]


def _serve(
    request: Request, serving: Serving, spec: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    places, slurm = request.places(), request.site.slurm
    assert slurm is not None  # as in `_options`
    return list(serving.engines[0].argv), [
        *_needs_environment(places["virtual_env"]),
        *_secret(request, "VLLM_API_KEY"),
        *(_secret(request, "OPENAI_API_KEY") if serving.router_port else []),  # the door's
        *serving_job.lines(
            serving, f"{places['project']}/{SERVER_FILE}", spec["job_name"], _cpus(slurm, spec)
        ),
    ]


def _tune_moe(request: Request, engine: EngineSpec) -> tuple[list[str], list[str]]:
    """Return the job that tunes the kernels of ``engine``, for the shape that it will look up.

    Without expert parallelism too, the engine spreads its experts over all ranks of tensor and data
    parallelism, so that the tuner's --tp-size is their product.
    """
    places, arch = request.places(), request.model.architecture
    parallel = "--enable-expert-parallel" in engine.argv
    ranks, nested = engine.tp_size * engine.dp_size, request.model.language_config
    argv = [
        "python",
        f"{places['project']}/vllm/benchmarks/kernels/benchmark_moe.py",
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
        *_needs_environment(places["virtual_env"]),
        f"# The server looks for {shape}: experts of a GPU, and the size of each.",
        f"if compgen -G {shell.quote(table)} > /dev/null; then",
        f"    echo {shell.quote(there)}",
        "    exit 0",
        "fi",
        f"mkdir -p {shell.quote(places['tuning'])}",
        *shell.command(argv),
        f"ls {shell.quote(places['tuning'])}",
        "echo 'Tuning complete.'",
    ]


def _benchmark(request: Request, command: Sequence[str]) -> tuple[list[str], list[str]]:
    places = request.places()
    at = command.index("--base-url") + 1
    url, host_file = command[at], f"{places['project']}/{SERVER_FILE}"
    port = url.rpartition(":")[2]
    words: list[object] = [*command]
    words[at] = shell.Raw('"$SERVER_URL"')
    return list(command), [
        *_needs_environment(places["virtual_env"]),
        f"SERVER_URL={shell.quote(url)}",
        f"if [ -s {shell.quote(host_file)} ]; then",
        f'    SERVER_URL="http://$(cat {shell.quote(host_file)}):{port}"',
        "fi",
        *_secret(request, "OPENAI_API_KEY"),
        "# The dataset goes where there is room.",
        shell.export("HF_HOME", places["cache"]),
        *shell.command(words),
        "echo 'Benchmark complete.'",
    ]


def _secret(request: Request, name: str) -> list[str]:
    """Return the export of the API key under the name that a program looks for.

    The value is never written: sbatch passes the submitter's variables on to the job.
    """
    source = request.site.api_key_env
    return [f'export {name}="${{{source}:?set {source} where you submit}}"'] if source else []


def _needs_environment(folder: str) -> list[str]:
    why = f"{folder} is missing: submit 1_create_env.sbatch first."
    return [
        f"if [ ! -d {shell.quote(folder)} ]; then",
        f"    echo {shell.quote(why)} >&2",
        "    exit 1",
        "fi",
    ]


def script(job: Job, modules: Sequence[str]) -> str:
    """Return the text of a job's file."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in job.options),
        "set -eo pipefail",
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        "module purge || { echo 'module purge failed' >&2; exit 1; }",
        *(
            f"module load {shell.quote(name)} || "
            f"{{ echo {shell.quote(f'module load {name} failed')} >&2; exit 1; }}"
            for name in modules
        ),
    ]
    # Only what every job needs; a serving job adds its own variables in its body.
    lines += [
        shell.export(name, job.env[name]) for name in serving_job.EVERYWHERE if name in job.env
    ]
    return "\n".join([*lines, "", *job.body]) + "\n"
