"""A program in an image, line by line: Apptainer, Pyxis, what is fetched and what is refused."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.params import load, schema
from kimi_nb.params.schema import JobContainer, Network, Paths
from kimi_nb.plan import build, job_image
from kimi_nb.plan.job_image import JobImage

SIF = JobImage(
    runtime="apptainer",
    file="/p/images/v 1.sif",
    source="quay.io/e/v:1",
    packages="/p/virt_envs/v",
    folders=("/p", "/s c"),
    devices="--nv",
    cache="/c/compiled",
)
SQSH = dataclasses.replace(SIF, runtime="pyxis", file="/p/images/v.sqsh", source="e/v:1")


def test_what_the_first_job_makes():
    assert SIF.python == "/p/virt_envs/v/bin/python"
    assert SIF.needs == ("/p/images/v 1.sif", "/p/virt_envs/v/pyvenv.cfg")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["python", "-m", "x"], ["/p/virt_envs/v/bin/python", "-m", "x"]),
        (["python3", "-m", "x"], ["python3", "-m", "x"]),
        (["pip", "install", "a"], ["/p/virt_envs/v/bin/pip", "install", "a"]),
        (["vllm-router", "--port", 1], ["/p/virt_envs/v/bin/vllm-router", "--port", 1]),
        (
            ["vllm", "bench", "serve"],
            ["/p/virt_envs/v/bin/python", "-m", "vllm.entrypoints.cli.main", "bench", "serve"],
        ),
        (["vllm", "serve", "m"], ["vllm", "serve", "m"]),
        (["hf", "download"], ["hf", "download"]),
        (["python"], ["/p/virt_envs/v/bin/python"]),
    ],
)
def test_how_a_program_is_called_in_the_image(words, named):
    assert SIF.named(words) == named
    assert SIF.named(tuple(words)) == named


OPTIONS = [
    "--container-image=/p/images/v.sqsh",
    "--container-mounts=/p:/p,/s c:/s c",
    *("--no-container-entrypoint", "--no-container-mount-home"),
    *("--container-remap-root", "--container-writable"),
]


def test_the_options_of_pyxis():
    assert SQSH.options() == OPTIONS


@pytest.mark.parametrize(("devices", "shown"), [({}, ""), ({"devices": True}, "--nv ")])
def test_a_program_under_apptainer(devices, shown):
    assert SIF.call(["pip", "install", "--no-deps", "a b"], 4, **devices) == [
        f"apptainer exec {shown}--bind '/p,/s c' \\",
        "    '/p/images/v 1.sif' \\",
        "    /p/virt_envs/v/bin/pip install \\",
        "        --no-deps 'a b'",
    ]
    assert SIF.apptainer(["hf"], devices=bool(devices), head="exec ")[0] == (
        f"exec apptainer exec {shown}--bind '/p,/s c' \\"
    )


@pytest.mark.parametrize(
    ("step", "more"), [({}, ""), ({"step": '--overlap -w "$n"'}, ' --overlap -w "$n"')]
)
def test_a_program_under_pyxis(step, more):
    assert SQSH.call(["pip", "install", "--no-deps", "a b"], "4", devices=True, **step) == [
        f"srun --nodes=1 --ntasks=1 --cpus-per-task=4{more} \\",
        "    --container-image=/p/images/v.sqsh \\",
        "    '--container-mounts=/p:/p,/s c:/s c' \\",
        *(f"    {option} \\" for option in OPTIONS[2:]),
        "    /p/virt_envs/v/bin/pip install \\",
        "        --no-deps 'a b'",
    ]


def exported(lines: list[str]) -> dict[str, str]:
    """What a shell that runs these lines exports."""
    script = "\n".join(["exec 3>&1", *lines, "env -0 >&3"])
    done = subprocess.run(["bash", "-c", script], env={}, capture_output=True, check=True)
    found = dict(one.split("=", 1) for one in done.stdout.decode().split("\0") if one)
    return {name: text for name, text in found.items() if name not in ("PWD", "SHLVL", "_")}


COMPILED = {
    "VLLM_CACHE_ROOT": "/c/compiled/vllm",
    "TRITON_CACHE_DIR": "/c/compiled/triton",
    "FLASHINFER_WORKSPACE_BASE": "/c/compiled/flashinfer",
}


def test_the_variables_of_a_program_in_an_image():
    own = {"PYTHONNOUSERSITE": "1"}
    for image in (SIF, SQSH):
        assert exported(image.exports(devices=True)) == own | COMPILED
    assert exported(SIF.exports(devices=False)) == own
    assert exported(SQSH.exports(devices=False)) == own | {"NVIDIA_VISIBLE_DEVICES": "void"}
    why = [line for line in SQSH.exports(devices=False) if line.startswith("#")]
    assert why == [
        "# Packages in ~/.local would come before those of the image.",
        "# The image asks for GPUs, which a node without a driver would refuse.",
    ]


# The image's file ---------------------------------------------------------------------------------


def run(lines: list[str], folder, **programs: str) -> tuple[int, str, list[str]]:
    """Run lines of a job with stand-ins; return code, what was told, and the programs' words."""
    stand_ins = [
        f'{name}() {{ echo {name} "$@" >> calls; {does}; }}' for name, does in programs.items()
    ]
    tell = 'tell() { echo "$1: $2"; }'
    script = "\n".join(["set -e", tell, *stand_ins, *lines])
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    calls = folder / "calls"
    return (
        done.returncode,
        done.stdout + done.stderr,
        calls.read_text().splitlines() if calls.exists() else [],
    )


def in_folder(image: JobImage, folder, end: str) -> JobImage:
    return dataclasses.replace(image, file=f"{folder}/images/v{end}")


@pytest.mark.parametrize(
    ("image", "end", "does", "word"),
    [
        (
            SIF,
            ".sif",
            {"apptainer": 'echo "$APPTAINER_CACHEDIR $APPTAINER_TMPDIR" > "$2"'},
            "apptainer pull {part} docker://quay.io/e/v:1",
        ),
        (
            SQSH,
            ".sqsh",
            {"enroot": 'echo "$ENROOT_CACHE_PATH $ENROOT_TEMP_PATH" > "$3"'},
            "enroot import -o {part} docker://e/v:1",
        ),
    ],
)
def test_the_image_is_fetched_once_beside_its_name(tmp_path, image, end, does, word):
    one = in_folder(image, tmp_path, end)
    part, scratch = f"{tmp_path}/images/v.part{end}", f"{tmp_path}/images/tmp"
    for _ in range(2):  # the second time it is there
        code, told, calls = run(one.fetch(), tmp_path, **does)
        assert (code, told) == (0, "")
        assert calls == [word.format(part=part)]
    assert (tmp_path / f"images/v{end}").read_text() == f"{scratch} {scratch}\n"
    assert [path.name for path in (tmp_path / "images").iterdir()] == [f"v{end}"]


def test_what_was_left_of_a_fetch_is_taken_away_first(tmp_path):
    one = in_folder(SIF, tmp_path, ".sif")
    part = tmp_path / "images/v.part.sif"
    part.parent.mkdir()
    part.write_text("half of it")
    code, _, _ = run(one.fetch(), tmp_path, apptainer='[ ! -e "$2" ] && echo whole > "$2"')
    assert code == 0 and (tmp_path / "images/v.sif").read_text() == "whole\n"


def test_a_fetch_says_why_it_needs_a_folder():
    lines = SIF.fetch()
    assert lines[0] == "if [ ! -s '/p/images/v 1.sif' ]; then" and lines[-1] == "fi"
    assert (
        lines[1] == "    # The layers need tens of GB, which /tmp and the home folder may not have."
    )
    assert all(line.startswith("    ") for line in lines[1:-1])
    registry = dataclasses.replace(SQSH, source="quay.io/e/v:1")
    assert any("'docker://quay.io#e/v:1'" in line for line in registry.fetch())


def test_a_file_of_the_site_is_asked_for(tmp_path):
    one = dataclasses.replace(in_folder(SIF, tmp_path, ".sif"), source="")
    code, told, calls = run(one.fetch(), tmp_path)
    assert (code, calls) == (1, [])
    assert told == (
        f"ERROR: {tmp_path}/images/v.sif is missing: the site's slurm.container.image names it.\n"
    )
    (tmp_path / "images").mkdir()
    (tmp_path / "images/v.sif").write_text("image")
    assert run(one.fetch(), tmp_path)[:2] == (0, "")
    assert one.fetch()[1].endswith(">&2") and one.fetch()[2:] == ["    exit 1", "fi"]


# Of a plan ----------------------------------------------------------------------------------------

ASKED = build.request("k2.5", "h200", "single", variant="slurm", site="h200-slurm")


def asked(image: str | None, runtime="apptainer", hardware=None, **site):
    slurm = ASKED.site.slurm.model_copy(
        update={"container": JobContainer(runtime=runtime, image=image)}
    )
    there = {"name": "mine", "slurm": slurm} | site
    return dataclasses.replace(
        ASKED,
        site=ASKED.site.model_copy(update=there),
        hardware=hardware or ASKED.hardware,
    )


@pytest.mark.parametrize(
    ("image", "runtime", "file", "source", "packages"),
    [
        (
            None,
            "apptainer",
            "images/vllm_openai_v0.19.1_cu130.sif",
            "vllm/vllm-openai:v0.19.1-cu130",
            "vllm_openai_v0.19.1_cu130",
        ),
        (
            "quay.io/a/b:v1@sha256:" + "0" * 64,
            "pyxis",
            "images/b_v1.sqsh",
            "quay.io/a/b:v1@sha256:" + "0" * 64,
            "b_v1",
        ),
        ("/sw/vllm-1.0.sif", "apptainer", "/sw/vllm-1.0.sif", "", "vllm_1.0"),
        ("/sw/A--Bc.sqsh", "pyxis", "/sw/A--Bc.sqsh", "", "A_Bc"),
    ],
)
def test_the_image_of_a_plan(image, runtime, file, source, packages):
    made = job_image.of(asked(image, runtime))
    base = "/projects/kimi"
    assert made == JobImage(
        runtime=runtime,
        file=file if file.startswith("/") else f"{base}/{file}",
        source=source,
        packages=f"{base}/virt_envs/{packages}",
        folders=(base,),
        devices="--nv",
        cache=f"{base}/hf_cache/compiled",
    )


def test_the_image_comes_from_the_mirror_of_the_site():
    made = job_image.of(asked(None, network=Network(registry="m.org")))
    assert made.source == "m.org/vllm/vllm-openai:v0.19.1-cu130"
    assert job_image.of(asked("a/b:1", network=Network(registry="m.org"))).source == "a/b:1"


def test_a_container_sees_each_folder_of_the_site():
    apart = Paths(cache="/c", work="/w", models="/m", project="/p")
    assert job_image.of(asked(None, paths=apart)).folders == ("/c", "/m", "/p", "/w")
    few = Paths(cache="/c", work="/w")
    made = job_image.of(asked(None, paths=few))
    assert made.folders == ("/c", "/w") and made.packages.startswith("/w/virt_envs/")


def test_without_a_container_jobs_have_no_image():
    assert job_image.of(ASKED) is None
    ssh = ASKED.site.model_copy(update={"slurm": None})
    assert job_image.of(dataclasses.replace(ASKED, site=ssh)) is None


def test_amd_and_what_no_container_sees():
    amd = load.hardware("mi300x")
    assert job_image.of(asked("a/b:1", hardware=amd)).devices == "--rocm"
    why = (
        "slurm.container of the site mine: there is no way known here to run {} in a job's image. "
        "Take slurm.container out of the site file."
    )
    for hardware, image in ((load.hardware("a3"), "a/b:1"), (_bare(), None)):
        with pytest.raises(PlanError) as caught:
            job_image.of(asked(image, hardware=hardware))
        assert str(caught.value) == why.format(hardware.name)


def _bare() -> schema.Hardware:
    return ASKED.hardware.model_copy(update={"container": None})


@pytest.mark.parametrize(
    ("folders", "outermost"),
    [
        (["/b", "/a"], ("/a", "/b")),
        (["/a/b", "/a", "/a/"], ("/a",)),
        (["/ab", "/a"], ("/a", "/ab")),
        (["/a/../c", "/c/d"], ("/c",)),
    ],
)
def test_only_the_outermost_folders_are_mounted(folders, outermost):
    assert job_image._outermost(folders) == outermost


@pytest.mark.parametrize(
    ("name", "enroot"),
    [
        ("localhost:5000/a/b:1", "localhost:5000#a/b:1"),
        ("quay.io/a:1", "quay.io#a:1"),
        ("a/b:v1.0", "a/b:v1.0"),
        ("a:1.0", "a:1.0"),
    ],
)
def test_the_registry_for_enroot(name, enroot):
    assert job_image._enroot(name) == enroot


def test_a_word_of_the_shell_is_not_quoted():
    assert SIF.call(["hf", shell.Raw('"$x"')], 1)[-1] == '    hf "$x"'
