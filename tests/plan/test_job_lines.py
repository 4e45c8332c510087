"""The seven jobs of a SLURM plan: options, variables and each line, with and without an image."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
from plan import made_values

from kimi_nb import catalog
from kimi_nb.params import load, schema
from kimi_nb.params.schema import JobContainer, Network, Paths
from kimi_nb.plan import build, jobs
from kimi_nb.plan.roles import Request
from kimi_nb.plan.serving_job import Serving
from kimi_nb.plan.spec import EngineSpec, Job

ASKED = build.request("k2.5", "h200", "single", variant="slurm", site="h200-slurm")
BENCH = (
    "vllm",
    "bench",
    "serve",
    "--base-url",
    "http://192.0.2.1:8000",
    "--model",
    "/m/k",
    "--seed",
    "1",
)
NAMES = ("create-env", "install", "download", "baseline", "tune-moe", "optimised", "benchmark")


def engine(*argv: str, env=None, **sizes) -> EngineSpec:
    here = {"node": "dgx-01", "address": "198.51.100.21", "env": env or {}}
    words = ("vllm", "serve", "/p/models/kimi-k2.5", *argv)
    return made_values.engine(argv=words, **here | sizes)


PLAIN = Serving([engine()])
BEST = Serving([engine("--enable-expert-parallel", env={"HF_HOME": "/other", "A": "1"})])


def asked(image=None, runtime="apptainer", slurm=None, **site) -> Request:
    """A request on nodes whose project is /p, but for what is said."""
    container = JobContainer(runtime=runtime, image=image) if image else None
    told = ASKED.site.slurm.model_copy(update={"container": container} | (slurm or {}))
    there = {
        "name": "mine",
        "slurm": told,
        "paths": Paths(cache="/p/hf", models="/p/models", project="/p", work="/p/run"),
    }
    return dataclasses.replace(ASKED, site=ASKED.site.model_copy(update=there | site))


def made(of: Request | None = None, baseline=PLAIN, optimised=BEST, bench=BENCH) -> dict[str, Job]:
    found = jobs.jobs(of or asked(), baseline, optimised, bench)
    assert tuple(job.name for job in found) == NAMES
    return {job.name: job for job in found}


def lines(text: str) -> tuple[str, ...]:
    return tuple(text.strip("\n").split("\n"))


# Without an image ---------------------------------------------------------------------------------

NEEDS = """
if [ ! -d /p/virt_envs/vllm-kimi ]; then
    tell ERROR '/p/virt_envs/vllm-kimi is missing: submit 1_create_env.sbatch first.' >&2
    exit 1
fi
"""
CREATE = r"""
if [ -x /p/virt_envs/vllm-kimi/bin/python ]; then
    tell INFO 'No change: /p/virt_envs/vllm-kimi is there already.'
    exit 0
fi
# Anaconda's own channels ask for their terms of service, and a job has nobody to accept
# them (CondaToSNonInteractiveError). conda-forge asks for none.
conda create \
    -c conda-forge \
    --override-channels \
    --prefix /p/virt_envs/vllm-kimi python=3.11 \
    -y
tell INFO 'Made /p/virt_envs/vllm-kimi.'
"""
INSTALL = r"""
# pip must be the environment's own: any other writes into the home folder.
tell INFO "pip: $(command -v pip)"
# vLLM requires neither ray, which the kernel tuner imports, nor datasets and pandas, which
# the benchmark imports. The versions are those with which this vLLM is tested.
pip install vllm==0.19.1 {packages}
# The kernel tuner is not in the wheel; it is run from the source of the same version.
[ -d /p/vllm ] || git clone --depth 1 --branch v0.19.1 https://github.com/vllm-project/vllm /p/vllm
found=$(python -c 'import vllm; print(vllm.__version__, vllm.__file__)')
tell INFO "vLLM: $found"
tell INFO 'Install complete.'
"""
DOWNLOAD = r"""
hf download moonshotai/Kimi-K2.5 \
    --local-dir /p/models/kimi-k2.5
hf download lightseekorg/kimi-k2.5-eagle3-mla \
    --local-dir /p/models/kimi-k2.5-eagle3-mla
hf download nvidia/Kimi-K2.5-Thinking-Eagle3 \
    --local-dir /p/models/kimi-k2.5-thinking-eagle3
tell INFO 'Download complete.'
"""
SERVE = r"""
# The other jobs, and you, find the server by this file.
hostname > /p/server_host.txt
vllm serve /p/models/kimi-k2.5
"""
TUNE = r"""
# The server looks for E=48,N=2048: experts of a GPU, and the size of each.
if compgen -G '/p/configs/moe_tuning/E=48,N=2048,*.json' > /dev/null; then
    tell INFO 'No change: /p/configs/moe_tuning holds kernels for E=48,N=2048; remove them to tune again.'
    exit 0
fi
mkdir -p /p/configs/moe_tuning
python /p/vllm/benchmarks/kernels/benchmark_moe.py \
    --model /p/models/kimi-k2.5 \
    --model-prefix text_config \
    --tp-size 8 \
    --enable-expert-parallel \
    --dtype int4_w4a16 \
    --trust-remote-code \
    --tune \
    --save-dir /p/configs/moe_tuning
ls /p/configs/moe_tuning
tell INFO 'Tuning complete.'
"""
BENCHMARK = r"""
SERVER_URL=http://192.0.2.1:8000
if [ -s /p/server_host.txt ]; then
    SERVER_URL="http://$(cat /p/server_host.txt):8000"
fi
# The dataset goes where there is room.
export HF_HOME=/p/hf
vllm bench serve \
    --base-url "$SERVER_URL" \
    --model /m/k \
    --seed 1
tell INFO 'Benchmark complete.'
"""
PACKAGES = "ray==2.48.0 datasets==3.3.0 pandas==2.2.3 transformers==5.5.3 huggingface_hub==1.10.2"


def test_what_each_job_does():
    found = made()
    assert found["create-env"].body == lines(CREATE)
    assert found["create-env"].argv == (
        *("conda", "create", "-c", "conda-forge", "--override-channels"),
        *("--prefix", "/p/virt_envs/vllm-kimi", "python=3.11", "-y"),
    )
    assert found["install"].body == lines(NEEDS + INSTALL.format(packages=PACKAGES).lstrip("\n"))
    assert found["install"].argv == ("pip", "install", "vllm==0.19.1", *PACKAGES.split())
    assert found["download"].body == lines(NEEDS + DOWNLOAD.lstrip("\n"))
    assert found["download"].argv == (
        *("hf", "download", "moonshotai/Kimi-K2.5", "--local-dir", "/p/models/kimi-k2.5"),
    )
    assert found["baseline"].body == lines(NEEDS + SERVE.lstrip("\n"))
    assert found["baseline"].argv == ("vllm", "serve", "/p/models/kimi-k2.5")
    assert found["tune-moe"].body == lines(NEEDS + TUNE.lstrip("\n"))
    assert found["tune-moe"].argv[:3] == (
        *("python", "/p/vllm/benchmarks/kernels/benchmark_moe.py", "--model"),
    )
    assert found["optimised"].argv[-1] == "--enable-expert-parallel"
    assert found["optimised"].body[4] == "export A=1"
    assert found["benchmark"].body == lines(NEEDS + BENCHMARK.lstrip("\n"))
    assert found["benchmark"].argv == BENCH


def test_when_each_job_is_submitted_and_what_it_leaves():
    found = made()
    assert [(job.file, job.after) for job in found.values()] == [
        ("1_create_env.sbatch", ""),
        ("2_install.sbatch", "create-env"),
        ("3_download.sbatch", "install"),
        ("4_baseline.sbatch", "download"),
        ("5_tune_moe.sbatch", "download"),
        ("6_optimised.sbatch", "tune-moe"),
        ("7_benchmark.sbatch", ""),
    ]
    assert {name: job.products for name, job in found.items() if job.products} == {
        "create-env": ("/p/virt_envs/vllm-kimi/bin/python",),
        "download": ("/p/models/kimi-k2.5",),
        "tune-moe": ("/p/configs/moe_tuning",),
    }


def test_the_variables_of_each_job():
    found = made()
    own = {"VIRTUAL_ENV": "/p/virt_envs/vllm-kimi", "PATH": "/p/virt_envs/vllm-kimi/bin"}
    home = own | {"HF_HOME": "/p/hf"}
    assert {name: job.env for name, job in found.items()} == {
        "create-env": own,
        "install": own,
        "download": home,
        "baseline": home,
        "tune-moe": own,
        "optimised": home | {"A": "1"},
        "benchmark": own,
    }


CPU = lines("""
--partition=common
--job-name={name}
--time={time}
--account=kimi
--qos=2cpu-single-host
--nodes=1
--ntasks-per-node={tasks}
--cpus-per-task=1
--mem={memory}
-o {name}.%j.out
-e {name}.%j.err
""")
GPU = lines("""
--partition=gpu
--job-name={name}
--time={time}
--account=kimi
--qos=gpu-single-host
--nodes={nodes}
--ntasks-per-node=1
--gpus-per-node=8
--cpus-per-task={cpus}
--mem={memory}
-o {name}.%j.out
-e {name}.%j.err
""")


def filled(form: tuple[str, ...], **words) -> tuple[str, ...]:
    return tuple(line.format(**words) for line in form)


def test_what_sbatch_is_told():
    found = made(baseline=Serving([engine(), engine()]))
    small = {"tasks": 2, "memory": "16G", "time": "00:30:00"}
    assert found["create-env"].options == filled(CPU, name="create_vllm_env", **small)
    large = {"tasks": 4, "memory": "32G"}
    assert found["install"].options == filled(CPU, name="install_vllm", time="01:00:00", **large)
    assert found["download"].options == filled(CPU, name="download_kimi", time="04:00:00", **large)
    whole = {"cpus": 112, "memory": "1800G"}
    day = {"time": "24:00:00"} | whole
    assert found["baseline"].options == filled(GPU, name="vllm_kimi", nodes=2, **day)
    assert found["optimised"].options == filled(GPU, name="vllm_kimi_opt", nodes=1, **day)
    assert found["tune-moe"].options == filled(
        GPU, name="tune_moe", nodes=1, time="02:00:00", **whole
    )
    bench = filled(GPU, name="benchmark_kimi", nodes=1, time="01:00:00", cpus=16, memory="64G")
    assert found["benchmark"].options == tuple(one for one in bench if "gpus" not in one)


def test_the_logs_of_the_tasks_are_named_as_those_of_their_job():
    found = made(baseline=Serving([engine(), engine("--x")]))
    assert "    --output=vllm_kimi.%j.node%n.out \\" in found["baseline"].body
    assert "    --error=vllm_kimi.%j.node%n.err \\" in found["baseline"].body


def test_a_site_can_ask_for_less_of_a_whole_node():
    said = {"memory": "1500G", "cpus": 96, "time": "12:00:00", "qos": None, "cpu_qos": None}
    found = made(asked(slurm=said))
    whole = {"nodes": 1, "cpus": 96, "memory": "1500G", "time": "12:00:00"}
    best = filled(GPU, name="vllm_kimi_opt", **whole)
    assert found["optimised"].options == tuple(one for one in best if "qos" not in one)
    # What holds no accelerators keeps what the guide asks for.
    assert (
        "--mem=64G" in found["benchmark"].options
        and "--cpus-per-task=16" in found["benchmark"].options
    )
    assert "--time=01:00:00" in found["benchmark"].options
    assert "--mem=16G" in found["create-env"].options
    assert not any("qos" in option for job in found.values() for option in job.options)


def test_proxies_and_mirrors_are_those_of_the_jobs_that_download():
    network = Network(https_proxy="http://p:1", pip_index="https://pip.example.org/simple")
    found = made(asked(network=network))
    way = (
        "export https_proxy=http://p:1",
        "export HTTPS_PROXY=http://p:1",
        "export PIP_INDEX_URL=https://pip.example.org/simple",
    )
    for name in NAMES:
        out = [line for line in found[name].body if line in way]
        assert tuple(out) == (way if name in NAMES[:3] else ()), name
    assert found["create-env"].body[:3] == way


def test_a_router_is_installed_where_there_is_one():
    recipe = ASKED.recipe.model_copy(
        update={"router": "vllm-router", "roles": {"mixed": schema.RoleSpec(groups=2)}}
    )
    with_router = dataclasses.replace(asked(), recipe=recipe)
    assert made(with_router)["install"].argv[-1] == "vllm-router==0.1.17"
    assert not any("router" in word for word in made()["install"].argv)


@pytest.mark.parametrize(
    ("version", "packages"),
    [
        ("0.19.1", PACKAGES),
        ("0.18.0", PACKAGES.replace("5.5.3", "4.57.5").replace("1.10.2", "0.36.2")),
    ],
)
def test_the_packages_are_those_of_the_version(version, packages):
    of = dataclasses.replace(asked(), engine=catalog.engine("vllm", version))
    argv = made(of)["install"].argv
    assert argv == ("pip", "install", f"vllm=={version}", *packages.split())


def test_drafts_of_other_hardware_are_not_fetched():
    amd = dataclasses.replace(asked(), hardware=load.hardware("a3"))
    body = made(amd)["download"].body
    fetched = [line.split()[2] for line in body if line.startswith("hf download")]
    assert fetched == [
        "moonshotai/Kimi-K2.5",
        "lightseekorg/kimi-k2.5-eagle3",
        "z-lab/Kimi-K2.5-DFlash",
    ]


def test_the_key_is_named_and_never_written():
    keyed = asked(api_key_env="MINE")
    own = 'export {}="${{MINE:?set MINE where you submit}}"'
    found = made(
        keyed, optimised=dataclasses.replace(BEST, engines=[engine(), engine()], router_port=1999)
    )
    for name, keys in (
        ("baseline", ["VLLM"]),
        ("optimised", ["VLLM", "OPENAI"]),
        ("benchmark", ["OPENAI"]),
    ):
        there = [line for line in found[name].body if "MINE" in line]
        assert there == [own.format(f"{key}_API_KEY") for key in keys], name
    assert not any("API_KEY" in line for job in made().values() for line in job.body)


# The shape that is tuned --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sizes", "ranks", "shape"),
    [
        (("--enable-expert-parallel",), {"tp_size": 4, "dp_size": 2}, "8", "E=48,N=2048"),
        (("--enable-expert-parallel",), {"tp_size": 2, "pcp_size": 2}, "4", "E=96,N=2048"),
        ((), {"tp_size": 8}, "8", "E=384,N=256"),
        ((), {"tp_size": 4, "dp_size": 2, "pp_size": 2}, "8", "E=384,N=256"),
    ],
)
def test_the_tuner_is_told_the_ranks_over_which_experts_spread(words, sizes, ranks, shape):
    job = made(optimised=Serving([engine(*words, **sizes)]))["tune-moe"]
    assert job.argv[job.argv.index("--tp-size") + 1] == ranks
    assert ("--enable-expert-parallel" in job.argv) == bool(words)
    assert f"# The server looks for {shape}: experts of a GPU, and the size of each." in job.body


def test_a_checkpoint_with_sizes_at_its_top_needs_no_prefix():
    model = ASKED.model.model_copy(update={"language_config": None})
    of = dataclasses.replace(asked(), model=model)
    assert "--model-prefix" not in made(of)["tune-moe"].argv


# In an image --------------------------------------------------------------------------------------

IMAGE = "quay.io/a/b:v1"
FILE, VENV = "/p/images/b_v1.sif", "/p/virt_envs/b_v1"


def test_the_first_job_makes_the_image_and_the_environment_beside_it():
    found = made(asked(IMAGE))["create-env"]
    assert found.argv == ("python3", "-m", "venv", "--system-site-packages", "--clear", VENV)
    assert found.body[:4] == lines(f"""
if [ -s {FILE} ] && [ -e {VENV}/pyvenv.cfg ]; then
    tell INFO 'No change: {FILE} and {VENV} are there already.'
    exit 0
fi
""")
    assert found.body[4:6] == (
        "# Packages in ~/.local would come before those of the image.",
        "export PYTHONNOUSERSITE=1",
    )
    assert found.body[6] == f"if [ ! -s {FILE} ]; then"
    at = found.body.index(
        "# For what the image lacks: this environment sees the packages of the image."
    )
    assert found.body[at + 1 :] == lines(rf"""
apptainer exec --bind /p \
    {FILE} \
    python3 \
        -m venv \
        --system-site-packages \
        --clear {VENV}
tell INFO 'Made {FILE} and {VENV}.'
""")
    assert found.products == (FILE, f"{VENV}/pyvenv.cfg")
    assert found.options[1:3] == ("--job-name=make_image", "--time=02:00:00")
    assert found.options[6:9] == ("--ntasks-per-node=1", "--cpus-per-task=8", "--mem=64G")


IN_IMAGE = f"""
if [ ! -s {FILE} ] || [ ! -e {VENV}/pyvenv.cfg ]; then
    tell ERROR '{FILE} or {VENV}/pyvenv.cfg is missing: submit 1_create_env.sbatch first.' >&2
    exit 1
fi
# Packages in ~/.local would come before those of the image.
export PYTHONNOUSERSITE=1
"""


def test_the_second_job_adds_what_the_image_lacks_and_looks_at_its_version():
    found = made(asked(IMAGE))["install"]
    assert found.argv == ("pip", "install", "ray==2.48.0", "datasets==3.3.0", "pandas==2.2.3")
    head = lines(
        IN_IMAGE
        + rf"""
# What the kernel tuner and the benchmark import and the image lacks; the rest stays as it is.
apptainer exec --bind /p \
    {FILE} \
    {VENV}/bin/pip install ray==2.48.0 datasets==3.3.0 pandas==2.2.3
if ! apptainer exec --bind /p \
    {FILE} \
    {VENV}/bin/python \
        -c 'import sys
from importlib.metadata import version

found = version("vllm").partition("+")[0]
print("vllm", found)
sys.exit(found != "0.19.1")
'; then
    tell ERROR 'The image does not hold vLLM 0.19.1, for which the plan is; the lines above say what it holds. Name another image in the site file.' >&2
    exit 1
fi
tell INFO 'Install complete.'
""".lstrip("\n")
    )
    assert tuple("\n".join(found.body).split("\n")) == head


def test_programs_of_other_jobs_run_in_the_image():
    found = made(asked(IMAGE))
    assert found["download"].env == {"HF_HOME": "/p/hf"} and found["install"].env == {}
    text = "\n".join(found["download"].body)
    assert text.count("apptainer exec --bind /p \\") == 3 and "conda" not in text
    assert text.startswith(IN_IMAGE.strip("\n"))
    tuned = found["tune-moe"]
    assert tuned.argv[1] == "/vllm-workspace/benchmarks/kernels/benchmark_moe.py"
    assert "apptainer exec --nv --bind /p \\" in tuned.body
    assert "export TRITON_CACHE_DIR=/p/hf/compiled/triton" in tuned.body
    assert "apptainer exec --nv --bind /p \\" in found["baseline"].body
    assert "apptainer exec --bind /p \\" in found["benchmark"].body
    assert '        --base-url "$SERVER_URL" \\' in found["benchmark"].body


@pytest.mark.parametrize(
    ("slurm", "cpus"),
    [
        (
            {},
            {
                "create-env": 8,
                "install": 4,
                "download": 4,
                "baseline": 112,
                "tune-moe": 112,
                "benchmark": 16,
            },
        ),
        (
            {"cpus": 96},
            {"create-env": 8, "install": 4, "baseline": 96, "tune-moe": 96, "benchmark": 16},
        ),
    ],
)
def test_a_step_of_pyxis_has_the_cores_of_its_job(slurm, cpus):
    found = made(asked(IMAGE, "pyxis", slurm))
    for name, count in cpus.items():
        head = next(line for line in found[name].body if line.startswith("srun "))
        assert head == f"srun --nodes=1 --ntasks=1 --cpus-per-task={count} \\", name


# Output and text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "output", "done"),
    [
        ("install", "Install complete.\n", True),
        ("install", "INFO 11-23 06:04:02 [job_7:31] node dgx-07: Install complete.\n\n \n", True),
        ("install", "Install complete.\nKilled\n", False),
        ("install", "", False),
        ("create-env", "Made /p/env.", True),
        ("create-env", "No change: /p/env is there already.", True),
        ("download", "Download complete.", True),
        ("tune-moe", "Tuning complete.", True),
        ("tune-moe", "No change: /p", True),
        ("benchmark", "Benchmark complete.", True),
        ("benchmark", "No change: /p", False),
        ("baseline", "Install complete.", False),
    ],
)
def test_the_output_of_a_job_says_that_it_is_done(name, output, done):
    assert jobs.complete(name, output) is done


def test_the_file_of_a_job():
    env = {"HF_HOME": "/h h", "A": "1", "PATH": "/b", "VIRTUAL_ENV": "/v"}
    job = Job("x", "1_x.sbatch", "", ("--nodes=1", "-o x.out"), env, (), ("a", "b"))
    tell = next(line for line in jobs.script(job, []).split("\n") if line.startswith("tell() {"))
    assert '"node ${SLURMD_NODENAME:-$HOSTNAME}"' in tell
    assert jobs.script(job, ["conda/24", "a b"]).split("\n") == [
        "#!/bin/bash",
        "#SBATCH --nodes=1",
        "#SBATCH -o x.out",
        "set -eo pipefail",
        tell,
        'cd "${SLURM_SUBMIT_DIR:-.}"',
        "module purge || { tell ERROR 'module purge failed' >&2; exit 1; }",
        "module load conda/24 || { tell ERROR 'module load conda/24 failed' >&2; exit 1; }",
        "module load 'a b' || { tell ERROR 'module load a b failed' >&2; exit 1; }",
        "export VIRTUAL_ENV=/v",
        "export PATH=/b${PATH:+:$PATH}",
        "export HF_HOME='/h h'",
        "",
        "a",
        "b",
        "",
    ]


@pytest.mark.parametrize(
    ("there", "code", "says"),
    [(False, 1, "is missing: submit 1_create_env.sbatch first."), (True, 0, "")],
)
def test_a_job_before_its_time_says_what_to_submit_first(tmp_path, there, code, says):
    paths = Paths(cache="/c", project=str(tmp_path))
    body = [line for line in made(asked(paths=paths))["download"].body if not line.startswith("hf")]
    if there:
        (tmp_path / "virt_envs/vllm-kimi").mkdir(parents=True)
    script = "\n".join(['tell() { echo "$2"; }', *body[:4]])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        code,
        f"{tmp_path}/virt_envs/vllm-kimi {says}\n" if says else "",
    )
