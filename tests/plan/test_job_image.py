"""The jobs of a SLURM site that runs them in an image."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kimi_nb.bundle import scripts
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load
from kimi_nb.plan import build, job_image, jobs
from kimi_nb.plan.spec import Plan

RUNTIMES = ("apptainer", "pyxis")
OWN = re.compile(r"^\s*(exec )?(vllm|pip|hf|python3?|conda|git|vllm-router)\b", re.M)


def plan_of(slurm_in_image, runtime: str, image: str = "", scenario: str = "", **more) -> Plan:
    return build.plan(
        "k2.5",
        "h200",
        "single",
        variant="slurm",
        scenario=scenario,
        site=slurm_in_image(runtime, image, **more),
    )


def text_of(plan: Plan, name: str) -> str:
    return next(jobs.script(job, plan.modules) for job in plan.jobs if job.name == name)


def joined(text: str) -> str:
    """The script with each continued line in one."""
    return re.sub(r"\\\n\s*", "", text)


@pytest.mark.parametrize("scenario", ["default", "optimised", "replicas"])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_program_runs_in_the_image(slurm_in_image, runtime, scenario):
    plan = plan_of(slurm_in_image, runtime, scenario=scenario)
    head = {"apptainer": "apptainer exec", "pyxis": "srun"}[runtime]
    for job in plan.jobs:
        text = joined(jobs.script(job, plan.modules))
        own = [match[0] for match in OWN.finditer(text)]
        # Over nodes, Pyxis puts the whole task into the image, so that `serve` is inside.
        inside = runtime == "pyxis" and "serve() {" in text
        assert own == (["    exec vllm"] if inside else []), job.name
        assert head in text and "VIRTUAL_ENV" not in text and "module load" not in text
        assert "PYTHONNOUSERSITE=1" in text
        for line in text.splitlines():
            if line.lstrip().startswith("srun") and runtime == "pyxis":
                assert "--container-image=" in line and "--container-mounts=" in line
    assert not {"VIRTUAL_ENV", "PATH"} & {name for one in plan.engines for name in one.env}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_only_what_computes_on_accelerators_sees_them(slurm_in_image, runtime):
    plan = plan_of(slurm_in_image, runtime, scenario="optimised")
    seen = {
        job.name: "--nv " in text if runtime == "apptainer" else "VISIBLE_DEVICES=void" not in text
        for job in plan.jobs
        for text in [jobs.script(job, plan.modules)]
    }
    assert [name for name, sees in seen.items() if sees] == ["baseline", "tune-moe", "optimised"]


def test_the_image_is_that_of_the_hardware_or_of_its_mirror(slurm_in_image):
    plan = plan_of(slurm_in_image, "apptainer")
    assert f"docker://{plan.image}\n" in text_of(plan, "create-env")
    mirrored = plan_of(slurm_in_image, "pyxis", network={"registry": "mirror.example.org/hub"})
    # enroot ends the registry with a '#'; ours is docker.io, which has no such part.
    assert "'docker://mirror.example.org#hub/vllm/vllm-openai:v0.19.1" in text_of(
        mirrored, "create-env"
    )


def test_an_image_that_is_a_file_is_not_fetched(slurm_in_image):
    plan = plan_of(slurm_in_image, "apptainer", "/sw/images/vllm.sif")
    first = text_of(plan, "create-env")
    assert "apptainer pull" not in first and "/sw/images/vllm.sif is missing" in first
    assert plan.jobs[0].products[0] == "/sw/images/vllm.sif"


def test_a_site_can_still_load_modules(slurm_in_image):
    plan = plan_of(slurm_in_image, "apptainer", modules=["apptainer/1.3"])
    assert "module load apptainer/1.3" in text_of(plan, "install")


@pytest.mark.parametrize(
    "image",
    ["vllm.sif", "/sw/vllm.img", "Vllm/vllm:1", "a b", "docker://vllm/vllm-openai:v1", "-v"],
)
def test_what_is_no_image_is_named(slurm_in_image, image):
    with pytest.raises(ParameterError, match=r"slurm\.container\.image") as caught:
        load.site(slurm_in_image("apptainer", image))
    assert image == "vllm.sif" or "an image is wanted here" in str(caught.value)


def test_another_runtime_is_refused_with_the_known_ones(slurm_in_image):
    with pytest.raises(ParameterError, match="apptainer"):
        load.site(slurm_in_image("shifter"))


@pytest.mark.parametrize("version, code", [("0.19.1", 0), ("0.19.1+cu129", 0), ("0.18.0", 1)])
def test_an_image_of_another_version_ends_the_installation(slurm_in_image, tmp_path, version, code):
    """The look at pip's records is run by a Python that finds vLLM of this version."""
    text = joined(text_of(plan_of(slurm_in_image, "apptainer"), "install"))
    look = re.search(
        r"-c '(import sys\n.*?)'; then\n    tell ERROR (.*?) >&2\n    exit 1", text, re.S
    )
    record = tmp_path / f"vllm-{version.replace('+', '_')}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    done = subprocess.run(
        [sys.executable, "-c", look[1]],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert f"vllm {version.partition('+')[0]}" in done.stdout
    assert "The image does not hold vLLM 0.19.1" in look[2]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_jobs_are_shell_that_a_linter_accepts(slurm_in_image, runtime, tmp_path):
    plan = plan_of(slurm_in_image, runtime, scenario="replicas")
    for name, text in scripts.files(plan).items():
        if name.endswith(".sbatch"):
            path = tmp_path / Path(name).name
            path.write_text(text)
            subprocess.run(["bash", "-n", path], check=True)


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


@given(st.lists(names, min_size=1))
def test_each_folder_is_mounted_once(folders):
    kept = job_image._outermost(folders)
    for folder in folders:  # each is in one of those, and none of those in another
        assert sum(f"{folder}/".startswith(f"{one}/") for one in kept) == 1


def test_the_site_file_has_the_keys(slurm_in_image):
    site = yaml.safe_load(Path(slurm_in_image("pyxis")).read_text())
    assert load.site(slurm_in_image("pyxis")).slurm.modules == ()
    assert site["slurm"]["container"] == {"runtime": "pyxis"}
