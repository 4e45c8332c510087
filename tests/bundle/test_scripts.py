"""The bundle's scripts: bash and shellcheck read them, stand-ins run them, and what those were
given is what the plan says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kimi_nb.bundle import scripts, writer
from kimi_nb.check import judge
from kimi_nb.core import shell
from kimi_nb.core.errors import ParameterError, WriteError
from kimi_nb.core.shell import LISTS
from kimi_nb.plan import build

ROOT = Path(__file__).resolve().parents[2]
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or "shellcheck"


def put(plan, folder: Path) -> Path:
    writer.write(scripts.files(plan), folder)
    return folder


@pytest.fixture(scope="module")
def accepted():
    """The texts of scripts that were accepted: nodes and plans share many of them."""
    return set()


def test_bash_and_shellcheck_accept_every_script(each_plan, tmp_path, accepted):
    folder = put(each_plan, tmp_path / "bundle")
    texts = {name.read_text(): name for kind in ("*.sh", "*.sbatch") for name in folder.rglob(kind)}
    assert texts
    names = [name for text, name in texts.items() if text not in accepted]
    if not names:
        return
    for name in names:
        subprocess.run(["bash", "-n", str(name)], check=True)
    if not shutil.which(SHELLCHECK):
        pytest.skip("no shellcheck here: apt-get install shellcheck (aarch64 has no wheel of it)")
    done = subprocess.run(
        # SC2317 (version 0.9, which Debian and Ubuntu have) and SC2329: a function that is called by
        # its name in a variable, or whose text srun gets, counts as unreachable.
        [SHELLCHECK, "--shell=bash", "--exclude=SC2317,SC2329", *map(str, names)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    accepted.update(texts)


def test_what_each_node_has():
    plan = build.plan("k2.5", "a3", "pd")
    files = scripts.files(plan)
    for node in plan.nodes:
        mine = {name.partition("/")[2] for name in files if name.startswith(f"{node}/")}
        assert mine >= {
            "host_tuning.sh",
            "docker_run.sh",
            "launch.sh",
            "launch_online_dp.py",
            "run_dp_template.sh",
            "README.md",
        }
    assert "a3-0/proxy.sh" in files and "a3-1/proxy.sh" not in files
    jobs = scripts.files(build.plan("k2.5", "h200", "single", variant="slurm"))
    assert sum(name.startswith("jobs/") for name in jobs) == 7


@pytest.mark.parametrize(
    "where",
    [
        ("k2.5", "a3", "single"),
        ("k2.5", "a2", "dp"),
        ("k2.6", "a3", "single"),
        ("k2-thinking", "a3", "single"),
        ("k2.5", "gb200", "dp"),
    ],
)
def test_serve_scripts_run_what_the_plan_says(where, tmp_path, echo):
    plan = build.plan(*where)
    folder = put(plan, tmp_path / "bundle")
    echo.add("vllm")
    for engine in plan.engines:
        done = echo.run(folder / engine.node / "serve.sh")
        assert done.returncode == 0, done.stderr
    for engine, (argv, env) in zip(plan.engines, echo.calls, strict=True):
        assert tuple(argv) == engine.argv
        for name, value in engine.env.items():
            if name not in LISTS:  # a library that is not on this machine is left out
                assert env[name] == value


@pytest.mark.parametrize(
    "where", [("k2.5", "a3", "pd"), ("k2.6", "a3", "pd"), ("k2.5", "gb200", "pd")]
)
def test_launchers_start_every_engine_of_the_plan(where, tmp_path, echo):
    """launch.sh -> launch_online_dp.py -> run_dp_template.sh -> vllm, for every node."""
    plan = build.plan(*where)
    folder = put(plan, tmp_path / "bundle")
    echo.add("vllm")
    (echo.bin / "python").symlink_to(sys.executable)
    for node in plan.nodes:
        done = echo.run(folder / node / "launch.sh")
        assert done.returncode == 0, done.stderr
        mine = plan.of(node)
        assert len(list((folder / node / "logs").glob("rank_*.log"))) == len(mine)
    got = sorted((argv, env) for argv, env in echo.calls)
    assert len(got) == len(plan.engines)
    by_argv = {tuple(argv): env for argv, env in got}
    for engine in plan.engines:
        env = by_argv[engine.argv]
        for name, value in engine.env.items():
            if name not in LISTS:
                assert env[name] == value


def test_docker_run_opens_a_shell_or_runs_a_command(tmp_path, echo):
    plan = build.plan("k2.5", "a3", "single")
    folder = put(plan, tmp_path / "bundle")
    echo.add("docker")
    echo.run(folder / "a3-0" / "docker_run.sh")
    echo.run(folder / "a3-0" / "docker_run.sh", "bash", "/root/a b/serve.sh")
    (plain, _), (given_, _) = echo.calls
    wanted = [word for word in plan.containers[0].argv if word != "-it"]
    assert plain == wanted
    assert given_ == [*wanted[:-1], "bash", "/root/a b/serve.sh"]


@pytest.mark.parametrize(
    "where, variant",
    [
        (("k2.5", "h200", "single"), "docker"),
        (("k2.5", "gb200", "single"), "nvfp4-docker"),
        (("k2.5", "mi300x", "single"), "docker"),
    ],
)
def test_images_that_serve(where, variant, tmp_path, echo):
    plan = build.plan(*where, variant=variant)
    folder = put(plan, tmp_path / "bundle")
    echo.add("docker")
    assert echo.run(folder / plan.nodes[0] / "docker_run.sh").returncode == 0
    assert tuple(echo.calls[0][0]) == plan.containers[0].argv


def test_host_tuning(tmp_path, echo):
    plan = build.plan("k2.5", "a3", "single")
    folder = put(plan, tmp_path / "bundle")
    echo.add("sysctl", "tee")
    assert echo.run(folder / "a3-0" / "host_tuning.sh").returncode == 0
    calls = [argv for argv, _ in echo.calls if argv[0] == "sysctl"]
    assert calls == [
        ["sysctl", "-w", f"{name}={value}"]
        for name, value in plan.host_tuning
        if name != "governor"
    ]
    assert len(calls) == 3


PIP = [
    ("k2.5", "h200", "single", "pip"),
    ("k2.5", "gb200", "pd", "nvfp4"),
    ("k2.5", "gb200", "dp", "tensor-parallel"),
    ("k2.5", "mi300x", "single", "pip"),
]


@pytest.mark.parametrize("where", PIP, ids=["-".join(where[1:]) for where in PIP])
@pytest.mark.parametrize("named", ["", "/opt/vllm"])
def test_the_scripts_enter_what_pip_installs(where, named, tmp_path, echo):
    """One folder: what install/pip.sh makes is first on PATH where vllm and python are called."""
    site = ROOT / "params" / "sites" / f"{where[1]}.yaml"
    text = site.read_text().replace("work: /root/kimi", f"work: {tmp_path}/work")
    if named:
        text = text.replace("paths: {", f"paths: {{engine: {tmp_path}{named}, ")
    mine = tmp_path / "site.yaml"
    mine.write_text(text)
    plan = build.plan(*where[:3], variant=where[3], site=str(mine))
    folder = put(plan, tmp_path / "bundle")
    engine = tmp_path / (named.lstrip("/") or "work/engine")
    for name in ("vllm", "python", "vllm-router"):
        own = engine / "bin" / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f'#!/bin/bash\necho "$0" >> {tmp_path}/ran\n')
        own.chmod(0o755)
    echo.add("uv")
    assert echo.run(folder / "install" / "pip.sh").returncode == 0
    made = [argv for argv, _ in echo.calls if argv[:2] == ["uv", "venv"]]
    assert [(argv[argv.index("--python") + 1], argv[-1]) for argv in made] == [
        ("3.12", str(engine))
    ]
    for node in plan.nodes:
        script = "launch.sh" if plan.launches else "serve.sh"
        assert echo.run(folder / node / script).returncode == 0
        assert f"ENGINE={engine}\n" in (folder / node / "node.env").read_text()
    if plan.router:
        assert echo.run(folder / plan.router.node / "proxy.sh").returncode == 0
    ran = (tmp_path / "ran").read_text().split()
    assert len(ran) == 1 + len(plan.nodes) + bool(plan.router)
    assert all(Path(name).is_relative_to(engine) for name in ran)


def test_uv_that_is_not_there_is_named(tmp_path):
    folder = put(build.plan("k2.5", "h200", "single", variant="pip"), tmp_path / "bundle")
    done = subprocess.run(
        ["/bin/bash", folder / "install" / "pip.sh"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 127 and "uv is not on PATH" in done.stderr
    assert "astral.sh/uv/install.sh" in done.stderr


def libraries_of_a_rank(tmp_path, echo, version: str, there: str) -> str:
    """LD_LIBRARY_PATH of the first rank of a plan, where its container's is ``there``."""
    plan = build.plan("k2.5", "a3", "pd", engine_version=version)
    text = scripts.files(plan)["a3-0/run_dp_template.sh"]
    script = tmp_path / "run_dp_template.sh"
    script.write_text(text)
    echo.add("vllm")
    done = echo.run(script, *map(str, range(7)), LD_LIBRARY_PATH=there)
    assert done.returncode == 0, done.stderr
    return echo.calls[-1][1]["LD_LIBRARY_PATH"]


MOONCAKE = "/usr/local/Ascend/ascend-toolkit/latest/python/site-packages/mooncake"


@pytest.mark.parametrize("version", ["0.18.0", "0.22.1rc1"])
@pytest.mark.parametrize("there", ["", "/usr/local/Ascend/driver/lib64:"])
def test_mooncake_finds_its_libraries(version, there, tmp_path, echo):
    """These images put /usr/local/lib on the path in ~/.bashrc only, which no script reads. What
    is there stays before it, and an empty element, which would be the current folder, does not."""
    got = libraries_of_a_rank(tmp_path, echo, version, there)
    assert got.split(":") == [MOONCAKE, *filter(None, there.split(":")), "/usr/local/lib"]


def test_a_mooncake_that_is_a_wheel_needs_no_folder(tmp_path, echo):
    got = libraries_of_a_rank(tmp_path, echo, "0.23.0", "/lib64:")
    assert got.split(":") == [MOONCAKE, "/lib64"]


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_jemalloc_is_that_of_the_machine(machine, tmp_path, echo):
    """An x86_64 host has the library elsewhere; a missing one is said, and stops nothing."""
    script = tmp_path / "serve.sh"
    text = scripts.files(build.plan("k2.5", "a2", "dp"))["a2-0/serve.sh"]
    script.write_text(text.replace("/usr/lib/", f"{tmp_path}/"))
    echo.add("vllm")
    (echo.bin / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
    (echo.bin / "uname").chmod(0o755)
    done = echo.run(script)
    library = tmp_path / f"{machine}-linux-gnu" / "libjemalloc.so.2"
    assert done.returncode == 0 and "LD_PRELOAD" not in echo.calls[-1][1]
    assert f"{library} is not here" in done.stderr
    library.parent.mkdir()
    library.touch()
    done = echo.run(script)
    assert done.returncode == 0
    assert echo.calls[-1][1]["LD_PRELOAD"] == str(library)


def test_proxies(tmp_path, echo):
    echo.add("python", "vllm-router")
    for kind in ("upstream", "vllm-router"):
        plan = build.plan("k2.5", "a3", "pd", pairs=[f"router={kind}"])
        folder = put(plan, tmp_path / kind)
        assert echo.run(folder / "a3-0" / "proxy.sh").returncode == 0
        assert tuple(echo.calls[-1][0]) == plan.router.argv


@pytest.mark.parametrize("kind", ["upstream", "vllm-router"])
def test_a_keyed_service_has_a_door_that_asks(kind, site_file):
    site = site_file(("transport:", "api_key_env: KIMI_KEY\ntransport:"))
    plan = build.plan("k2.5", "a3", "pd", site=site, pairs=[f"router={kind}"])
    argv = plan.router.argv
    assert argv[:7] == ("python", "keyed_door.py", "--host", "192.0.2.11", "--port", "1999", "--")
    assert plan.router.url == "http://192.0.2.11:1999"
    assert (argv[argv.index("--host", 7) + 1], argv[argv.index("--port", 7) + 1]) == (
        "{host}",
        "{port}",
    )
    assert "security/open-door" not in {one.rule for one in judge.plan(plan).findings}
    open_ = replace(plan, router=replace(plan.router, argv=argv[7:]))
    (found,) = [one for one in judge.plan(open_).errors if one.rule == "security/open-door"]
    assert "keyed_door.py" in found.fix


def test_the_proxy_starts_from_any_folder(tmp_path, echo):
    """docker exec begins in the image's working folder; the proxy's program is beside proxy.sh."""
    echo.add("python", then="pwd")
    folder = put(build.plan("k2.5", "a3", "pd"), tmp_path / "bundle")
    (tmp_path / "workspace").mkdir()
    done = subprocess.run(
        ["bash", folder / "a3-0" / "proxy.sh"],
        cwd=tmp_path / "workspace",
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{echo.bin}:/usr/bin:/bin"},
    )
    assert done.stdout.strip() == str(folder / "a3-0")


def test_slurm_jobs_run_their_commands(tmp_path, echo):
    """Each job's script on stand-ins: its main command is the plan's; a second run of the first
    job changes nothing."""
    site = tmp_path / "site.yaml"
    text = (Path(__file__).parents[2] / "params/sites/h200-slurm.yaml").read_text()
    site.write_text(text.replace("/projects/kimi", str(tmp_path / "projects")))
    plan = build.plan("k2.5", "h200", "single", variant="slurm", site=str(site))
    folder = put(plan, tmp_path / "bundle")
    env = tmp_path / "projects" / "virt_envs" / "vllm-kimi"
    echo.add("pip", "hf", "vllm", "git", "python", "module")
    echo.add(
        "conda",
        then=shlex.join(["mkdir", "-p", f"{env}/bin"])
        + "\n"
        + shlex.join(["ln", "-sf", f"{echo.bin}/python", f"{env}/bin/python"]),
    )
    (tmp_path / "projects").mkdir()
    for job in plan.jobs:
        before = len(echo.calls)
        done = echo.run(folder / "jobs" / job.file)
        assert done.returncode == 0, (job.name, done.stderr)
        calls = [argv for argv, _ in echo.calls[before:]]
        wanted = list(job.argv)
        if job.name == "benchmark":  # finds the server by the file that the server wrote
            host = (tmp_path / "projects" / "server_host.txt").read_text().strip()
            wanted[wanted.index("--base-url") + 1] = f"http://{host}:8000"
        assert wanted in calls, (job.name, calls)
    again = echo.run(folder / "jobs" / plan.jobs[0].file)
    assert again.returncode == 0 and "No change" in again.stdout


def test_jobs_stop_where_the_environment_is_missing(tmp_path, echo):
    folder = put(build.plan("k2.5", "h200", "single", variant="slurm"), tmp_path / "bundle")
    echo.add("module", "pip")
    done = echo.run(folder / "jobs" / "2_install.sbatch")
    assert done.returncode == 1 and "submit 1_create_env.sbatch first" in done.stderr


def test_client_scripts(tmp_path, echo):
    plan = build.plan("k2-thinking", "a3", "single")
    folder = put(plan, tmp_path / "bundle")
    echo.add("curl", "vllm", "lm_eval")
    for name in ("chat", "bench", "lm-eval", "bench-sweep"):
        assert echo.run(folder / "client" / f"{name}.sh").returncode == 0
    argvs = [argv for argv, _ in echo.calls]
    body = json.loads(argvs[0][argvs[0].index("-d") + 1])
    assert body["model"] == "moonshotai/Kimi-K2-Thinking"
    sweep = [argv for argv in argvs if "--max-concurrency" in argv]
    assert [argv[argv.index("--max-concurrency") + 1] for argv in sweep] == [
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
    ]
    assert [argv[argv.index("--num-prompts") + 1] for argv in sweep] == [
        "10",
        "20",
        "40",
        "80",
        "160",
        "320",
    ]


def test_a_secret_is_asked_for_by_name(tmp_path, echo, site_file):
    path = site_file(("nic: enp67s0f5", "nic: x0\napi_key_env: KIMI_KEY"))
    folder = put(build.plan("k2.5", "a3", "single", site=path), tmp_path / "bundle")
    echo.add("vllm", "curl")
    done = echo.run(folder / "a3-0" / "serve.sh")
    assert done.returncode != 0 and "set KIMI_KEY" in done.stderr and not echo.calls
    assert echo.run(folder / "a3-0" / "serve.sh", KIMI_KEY="a b;c").returncode == 0
    assert echo.calls[0][1]["VLLM_API_KEY"] == "a b;c"
    done = echo.run(folder / "client" / "chat.sh")
    assert done.returncode != 0 and "set KIMI_KEY" in done.stderr and len(echo.calls) == 1
    assert echo.run(folder / "client" / "chat.sh", KIMI_KEY="open-sesame").returncode == 0
    assert not [word for word in echo.calls[-1][0] if "sesame" in word], "what ps shows"


def test_the_key_reaches_the_service_by_the_real_curl(tmp_path, site_file):
    heard: list[str] = []

    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.extend(self.headers.get_all("Authorization", []))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    path = site_file(("nic: enp67s0f5", "nic: x0\napi_key_env: KIMI_KEY"))
    plan = build.plan("k2.5", "a3", "single", site=path)
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        text = scripts.files(plan)["client/chat.sh"].replace(plan.url, url)
        key = "open se$(same)\\ '\"%s"
        env = {**os.environ, "KIMI_KEY": key, "no_proxy": "*"}
        done = subprocess.run(
            ["bash", "-s"], input=text, env=env, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert heard == [f"Bearer {key}"]


# Quoting -----------------------------------------------------------------------------------

words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)


@given(st.lists(words, min_size=1, max_size=6))
def test_any_word_comes_out_as_it_went_in(argv):
    """Even words that the parameter files would refuse: the second lock."""
    text = "\n".join(shell.command(["printf", "%s\\0", *argv]))
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert done.stdout == b"".join(word.encode() + b"\0" for word in argv)


@given(words)
def test_any_value_of_a_variable_comes_out_as_it_went_in(value):
    text = f'{shell.export("X_VALUE", value)}\nprintf %s "$X_VALUE"'
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert done.stdout == value.encode()


def test_a_comment_cannot_end_early():
    lines = shell.script(["one\ntouch /tmp/x", "two"], ["true"]).splitlines()
    assert lines[1:3] == ["# one touch /tmp/x", "# two"]


@given(st.text(min_size=1, max_size=20))
@example('"')  # JSON needs it; in a script it stands in quotes of its own
def test_a_value_is_refused_or_harmless(value):
    """Through the whole plan: a served name of any text is refused, or is one word of argv."""
    try:
        plan = build.plan(
            "k2-thinking",
            "a3",
            "single",
            pairs=[f"served-model-name={value}", f"env.X_VALUE={value}"],
        )
    except ParameterError:
        return
    except Exception as error:
        raise AssertionError(f"{value!r}: {error!r}") from error
    assert not set(value) & set("$`;&|<>'\\\n*?!#()") or value.startswith(("{", "["))
    assert plan.engines[0].env["X_VALUE"] == value


# On the disk -------------------------------------------------------------------------------

FILES = {"plan.json": '{"files": ["plan.json", "n0/serve.sh"]}', "n0/serve.sh": "#!/bin/bash\n"}
OTHERS = {"plan.json": '{"files": ["plan.json", "n1/serve.sh"]}', "n1/serve.sh": "x"}


def test_write_twice_changes_nothing(tmp_path):
    folder = tmp_path / "b"
    assert writer.write(FILES, folder) == {"plan.json": "new", "n0/serve.sh": "new"}
    stamp = (folder / "n0/serve.sh").stat().st_mtime_ns
    assert writer.write(FILES, folder) == {}
    assert (folder / "n0/serve.sh").stat().st_mtime_ns == stamp
    assert writer.write(OTHERS, folder) == {
        "plan.json": "changed",
        "n1/serve.sh": "new",
        "n0/serve.sh": "gone",
    }
    assert not (folder / "n0").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_what_others_put_there_stays(tmp_path):
    """The launcher writes logs into the bundle; people write notes."""
    folder = tmp_path / "b"
    writer.write(FILES, folder)
    (folder / "n0" / "logs").mkdir()
    (folder / "n0" / "logs" / "rank_0.log").write_text("started")
    (folder / "notes.txt").write_text("mine")
    writer.write(OTHERS, folder)
    assert (folder / "n0" / "logs" / "rank_0.log").read_text() == "started"
    assert (folder / "notes.txt").read_text() == "mine"
    assert not (folder / "n0" / "serve.sh").exists()


def test_a_project_with_a_plan_json_of_its_own_is_no_bundle(tmp_path):
    (tmp_path / "thesis.txt").write_text("years")
    for text in ("{}", "[1]", "not json", '{"files": 3}'):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(WriteError, match="no bundle"):
            writer.write(FILES, tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_link_leads_to_its_target(tmp_path):
    writer.write(FILES, tmp_path / "b")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    writer.write(OTHERS, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "b" / "n1" / "serve.sh").exists()


def test_the_working_directory_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in (Path(), tmp_path.parent):
        with pytest.raises(WriteError, match="working directory"):
            writer.write(FILES, place)


def test_a_mode_that_was_lost_comes_back(tmp_path):
    writer.write(FILES, tmp_path / "b")
    (tmp_path / "b/n0/serve.sh").chmod(0o644)
    writer.write(FILES, tmp_path / "b")
    assert (tmp_path / "b/n0/serve.sh").stat().st_mode & 0o111


def test_two_writers_at_once(tmp_path):
    """Whoever is last wins, whole; nothing of the other is left."""
    code = (
        "import sys; from pathlib import Path; from kimi_nb.bundle import writer\n"
        'for i in range(20): writer.write({\'plan.json\': \'{"files": ["plan.json", "x"],\''
        " + f'\"i\": {i}' + '}', 'x': sys.argv[2]}, Path(sys.argv[1]))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "b"), name]) for name in "ab"
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert writer.read(tmp_path / "b").keys() == {"plan.json", "x"}
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_scripts_are_executable(tmp_path):
    writer.write(FILES, tmp_path / "b")
    assert (tmp_path / "b/n0/serve.sh").stat().st_mode & 0o111
    assert not (tmp_path / "b/plan.json").stat().st_mode & 0o111


def test_another_folder_is_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(WriteError, match="no bundle"):
        writer.write(FILES, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def test_unwritable_places(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "b", Path("/proc/none/b"), tmp_path / "file"):
        with pytest.raises(WriteError, match=r"cannot be written|no bundle"):
            writer.write(FILES, place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_write_that_fails_half_way_leaves_the_old_bundle(tmp_path, monkeypatch):
    folder = tmp_path / "b"
    writer.write(FILES, folder)
    bad = {**OTHERS, "n0/serve.sh": "new", "n0/serve.sh/x": "impossible"}
    with pytest.raises(WriteError):
        writer.write(bad, folder)
    assert writer.read(folder) == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_the_diff_shows_the_lines_that_change():
    one = scripts.files(build.plan("k2.5", "a3", "single"))
    two = scripts.files(build.plan("k2.5", "a3", "single", pairs=["max-num-seqs=8"]))
    text = writer.unified(one, two)
    assert "-    --max-num-seqs 64 \\" in text and "+    --max-num-seqs 8 \\" in text
    assert writer.unified(one, one) == ""


def test_the_client_for_a_picture_is_that_of_a_plan_whose_model_has_eyes(each_plan):
    files = scripts.files(each_plan)
    has_eyes = "vision_parameters" in each_plan.request.model.architecture
    blind = any("--language-model-only" in engine.argv for engine in each_plan.engines)
    if not has_eyes or blind or "tiny" in each_plan.model:
        assert scripts.PICTURE not in files and scripts.PICTURE not in files["README.md"]
        return
    text = files[scripts.PICTURE]
    compile(text, scripts.PICTURE, "exec")
    assert f'SERVICE, MODEL, KEY = "{each_plan.url}/v1", "{each_plan.served_name}", ""' in text
    assert scripts.PICTURE in files["README.md"] and "localhost" not in text


def test_the_client_for_a_picture_names_the_variable_of_the_key(site_file, tmp_path):
    site = site_file(("transport:", "api_key_env: KIMI_KEY\ntransport:"))
    text = scripts.files(build.plan("k2.5", "a3", "single", site=site))[scripts.PICTURE]
    path = tmp_path / "picture.py"
    path.write_text(text)
    (tmp_path / "openai.py").write_text("OpenAI = None\n")
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env={"PATH": "/bin"}, check=False
    )
    assert done.returncode == 1 and done.stderr == "Set KIMI_KEY before you start.\n"


_SRUN = """
for SLURM_NODEID in 0 1; do
    export SLURM_NODEID
    "${@:$#-2}" || exit
done
"""


@pytest.fixture(params=[["nodes=2", "dp=2", "rpc-port=13345"], ["nodes=2", "tp=16"]])
def two_nodes(request, two_dgx, tmp_path, echo):
    """A plan of two nodes under SLURM, and its serving job, whose nodes are dgx-07 and dgx-09."""
    plan = build.plan("k2.5", "h200", "single", variant="slurm", site=two_dgx, pairs=request.param)
    (tmp_path / "projects" / "virt_envs" / "vllm-kimi").mkdir(parents=True)
    echo.add("module", "vllm")
    echo.add("srun", then=_SRUN)
    echo.add("scontrol", then="echo dgx-07; echo dgx-09")
    job = next(job for job in plan.jobs if job.name == "baseline")
    return plan, put(plan, tmp_path / "bundle") / "jobs" / job.file


def test_a_slurm_job_of_two_nodes_starts_the_engines_of_the_plan(two_nodes, echo):
    """One script, one task on each node: what each is given is what the plan says."""
    plan, script = two_nodes
    echo.add("getent", then='[ "$2" = dgx-07 ] && echo "198.51.100.21 STREAM dgx-07"')
    done = echo.run(script, SLURM_JOB_NODELIST="dgx-[07,09]")
    assert done.returncode == 0, done.stderr
    started = [argv for argv, _ in echo.calls if argv[0] == "vllm"]
    for argv, engine in zip(started, plan.engines, strict=True):
        # What a node alone is told comes last; the options are the same.
        assert sorted(" ".join(argv).split(" --")) == sorted(" ".join(engine.argv).split(" --"))


def test_the_readme_says_where_the_server_is(two_nodes):
    readme = (two_nodes[1].parents[1] / "README.md").read_text()
    assert "takes 2 nodes" in readme and "server_host.txt" in readme


@pytest.mark.parametrize("address", ["", "127.0.1.1"])
def test_a_slurm_job_whose_first_node_has_no_address_says_so(address, two_nodes, echo):
    echo.add("getent", then=f"echo {address}" if address else "exit 2")
    done = echo.run(two_nodes[1], SLURM_JOB_NODELIST="dgx-[07,09]")
    assert done.returncode == 1 and "dgx-07 has no address for the other nodes" in done.stderr
    assert not [argv for argv, _ in echo.calls if argv[0] in ("srun", "vllm")]


@pytest.mark.skipif(not shutil.which(SHELLCHECK), reason="no shellcheck here")
def test_shellcheck_accepts_a_slurm_job_of_two_nodes(two_nodes):
    done = subprocess.run(
        [SHELLCHECK, "--shell=bash", "--exclude=SC2317", str(two_nodes[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
