"""Jobs in an image, rehearsed: the stand-ins refuse what Apptainer and Pyxis would."""

from __future__ import annotations

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.simulated_site import rebound


def plan_of(site: str, *pairs: str, scenario: str = ""):
    return build.plan(
        "k2.5", "h200", "single", variant="slurm", site=site, pairs=pairs, scenario=scenario
    )


@pytest.mark.parametrize(
    "runtime, image, scenario, pairs",
    [
        ("apptainer", "", "replicas", ()),
        ("pyxis", "", "replicas", ()),
        ("apptainer", "/sw/vllm.sif", "default", ()),
        ("pyxis", "", "default", ("nodes=2", "tp=16")),
    ],
)
def test_a_service_in_an_image(slurm_in_image, tmp_path, runtime, image, scenario, pairs):
    plan = plan_of(slurm_in_image(runtime, image), *pairs, scenario=scenario)
    result = rehearsal.rehearse(plan, tmp_path)
    assert result.ok, result.diagnosis


def changed(runtime: str, old: str, new: str, job: str = ""):
    """Make a rehearsal's scripts with a mistake in them, or in one job."""

    def make(plan, work, block):
        local = rebound(plan, work, block)
        files = scripts.files(local)
        sought = old.format(work=work)
        hits = [
            name
            for name, text in files.items()
            if name.endswith(f"{job}.sbatch") and sought in text
        ]
        assert hits, sought
        project = f"{work}/project"
        for name in hits:
            files[name] = files[name].replace(sought, new.format(project=project))
        return local, files

    return make


@pytest.mark.parametrize(
    "runtime, old, new, says",
    [
        # The image has python3 only.
        ("apptainer", "python3 \\", "python \\", '"python": executable file not found in $PATH'),
        ("apptainer", " --bind {work} ", " --bind {project}/models ", "is not in the container"),
        ("pyxis", "--container-mounts=", "--container-mounts={project}/models:/m,", "another path"),
        ("apptainer", "apptainer pull", "apptainer pull --force", "not part of a rehearsal"),
        ("pyxis", "enroot import -o ", "enroot import --output ", "not part of a rehearsal"),
        ("apptainer", "docker://vllm/vllm-openai:", "docker://vllm/vllm-openai:no", "manifest"),
        ("pyxis", "docker://vllm/vllm-openai:", "docker://vllm/vllm-openai:no", "manifest unknown"),
        ("pyxis", "--container-image=", "--container-image=/nowhere", "No such file or directory"),
        ("pyxis", "--container-writable", "--container-name=x", "not part of a rehearsal"),
    ],
)
def test_what_the_real_programs_refuse(slurm_in_image, tmp_path, runtime, old, new, says):
    plan = plan_of(slurm_in_image(runtime))
    if old.startswith("enroot"):
        old, new = "enroot import \\\n        -o ", "enroot import \\\n        --output "
    result = rehearsal.rehearse(plan, tmp_path, make=changed(runtime, old, new))
    assert not result.ok
    logs = "".join(path.read_text() for path in result.folder.glob("logs/**/*.log"))
    assert says in logs


@pytest.mark.parametrize(
    ("job", "says"), [("baseline", "available GPUs (0)"), ("tune_moe", "KeyError: 'GPU'")]
)
def test_a_program_without_its_gpus_is_refused(slurm_in_image, tmp_path, job, says):
    plan = plan_of(slurm_in_image("apptainer"))
    make = changed("apptainer", "exec --nv", "exec", job)
    result = rehearsal.rehearse(plan, tmp_path, make=make)
    assert not result.ok and says in str(result.diagnosis)


def test_a_docker_container_without_gpus_is_refused_too(tmp_path):
    def make(plan, work, block):
        local = rebound(plan, work, block)
        files = scripts.files(local)
        name = f"{local.nodes[0]}/docker_run.sh"
        assert "--gpus all" in files[name]
        return local, files | {name: files[name].replace("--gpus all", "--init")}

    plan = build.plan("k2.5", "h200", "single", variant="docker")
    result = rehearsal.rehearse(plan, tmp_path, make=make)
    assert not result.ok and "available GPUs (0)" in str(result.diagnosis)


def test_ok_says_what_it_does_not_cover(slurm_in_image, tmp_path):
    result = rehearsal.rehearse(plan_of(slurm_in_image("apptainer")), tmp_path)
    told = dict(result.table().rows)["not tried"]
    assert result.ok and "device memory" in told and told == result.as_dict()["not_tried"]
