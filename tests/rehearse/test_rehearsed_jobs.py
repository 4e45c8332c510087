"""The programs of jobs beside the engine, rehearsed: the kernel tuner and ``vllm bench serve``."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import pytest

from kimi_nb.core import data_files
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.rehearse import checkpoint_facts, rehearsal
from kimi_nb.rehearse.host_programs import bench_serve, installed_packages, job_programs, moe_tuner
from kimi_nb.rehearse.simulated_site import NODE, SimulatedSite
from kimi_nb.rehearse.stand_in_call import Call, Refused

TUNE = "--tp-size 8 --enable-expert-parallel --dtype int4_w4a16 --trust-remote-code --tune"


@pytest.fixture
def site():
    return SimulatedSite.of(build.plan("k2.5", "h200", "single", variant="slurm"))


@pytest.fixture
def here(tmp_path, site):
    """Call a program in an environment with some packages."""

    def call(words: str, *packages: str, root: Path = tmp_path) -> Call:
        folder = root / "env"
        env = {NODE: next(iter(site.nodes)), "VIRTUAL_ENV": str(folder)}
        made = Call("x", tuple(words.split()), env, root, root, site)
        folder.mkdir(exist_ok=True)
        for package in packages:
            installed_packages.add(made, folder, package)
        return made

    return call


def checkpoint(here, name: str = "moonshotai/Kimi-K2.5") -> str:
    call = here(f"download {name} --local-dir weights")
    job_programs.write_checkpoint(call, call.root / "weights", name)
    return str(call.root / "weights")


def refused(program, call: Call) -> str:
    with pytest.raises(Refused) as caught:
        program(call)
    return str(caught.value)


def test_published_sizes_are_those_of_the_plan():
    """Written twice, because the tuner and the plan must not share a mistake."""
    least = {"hidden_size", "moe_intermediate_size", "experts", "experts_per_token"}
    for name in load.names("models"):
        model = load.model(name)
        for weights in model.weights.values():
            if weights.hub == "none":
                continue
            config, found = checkpoint_facts.config(weights.id), checkpoint_facts.sizes(weights.id)
            assert (model.language_config is not None) == ("text_config" in config), weights.id
            assert least <= set(found)
            assert found == {key: model.architecture[key] for key in found}, weights.id
        for draft in model.drafts.values():
            assert checkpoint_facts.config(draft.id) is None, draft.id
    assert checkpoint_facts.sizes("somebody/else") is None


def test_the_tuner_imports_ray(here):
    folder = checkpoint(here)
    call = here(f"--model {folder} --model-prefix text_config {TUNE} --save-dir t", "vllm==0.19.1")
    assert refused(moe_tuner.benchmark_moe, call).endswith(
        "ModuleNotFoundError: No module named 'ray'"
    )


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (f"--model-prefix text_config {TUNE}", "E=48,N=2048"),
        (
            f"--model-prefix text_config {TUNE.replace('--enable-expert-parallel', '')}",
            "E=384,N=256",
        ),
        # The architecture around the language model is none that the tuner knows.
        (TUNE, "E=48,N=18432"),
    ],
)
def test_the_tuner_writes_the_file_of_its_shape(here, words, file, capsys):
    folder = checkpoint(here)
    call = here(f"--model {folder} {words} --save-dir t", "vllm==0.19.1", "ray==2.48.0")
    assert moe_tuner.benchmark_moe(call) == 0
    (made,) = (call.root / "t").iterdir()
    assert made.name == f"{file},device_name=NVIDIA_H200,dtype=int4_w4a16.json"
    assert "REHEARSAL" in made.read_text() and made.name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "packages", "says"),
    [
        # transformers 4 has no other name for the number of experts (known from 5 on).
        (TUNE, ["transformers==4.57.5"], "has no attribute 'num_local_experts'"),
        (f"--model-prefix nothing {TUNE}", [], "has no attribute 'nothing'"),
        (f"--model-prefix text_config {TUNE} --tp-size 7", [], "384 is not divisible by tp 7"),
        (f"--model-prefix text_config {TUNE} --shape 8", [], "unrecognized arguments: --shape 8"),
    ],
)
def test_the_tuner_refuses(here, words, packages, says):
    folder = checkpoint(here)
    call = here(f"--model {folder} {words} --save-dir t", "vllm==0.19.1", "ray==2.48.0", *packages)
    assert says in refused(moe_tuner.benchmark_moe, call)
    assert not (call.root / "t").exists() or not list((call.root / "t").iterdir())


def test_the_tuner_without_weights(here):
    call = here(f"--model /nowhere/k2.5 {TUNE} --save-dir t", "vllm==0.19.1", "ray==2.48.0")
    assert "/nowhere/k2.5" in refused(moe_tuner.benchmark_moe, call)


BENCH = "bench serve --backend openai-chat --endpoint /v1/chat/completions --num-prompts 1000"


@pytest.fixture
def service():
    """A server that counts what it is asked, with the keys."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers.get("Authorization"), body["model"]))
            text = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n'
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args):
            pass

    asked: list[tuple] = []
    with http.server.ThreadingHTTPServer(("127.0.0.8", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.8:{server.server_port}", asked
        server.shutdown()


def test_the_benchmark_asks_the_service(here, service, capsys):
    url, asked = service
    folder = checkpoint(here)
    words = f"{BENCH} --base-url {url} --model {folder} --dataset-name hf --dataset-path a/b"
    call = here(words, "vllm==0.19.1", "datasets==3.3.0")
    assert bench_serve.bench(call) == 0
    out = capsys.readouterr().out
    assert "Initial test run completed." in out and "REHEARSAL" in out
    assert f"Successful requests:                     {len(asked) - 1}" in out
    assert {path for path, _, _ in asked} == {"/v1/chat/completions"}


@pytest.mark.parametrize(
    ("words", "packages", "says"),
    [
        ("--dataset-name hf --dataset-path a/b", [], "ImportError: Please install vllm[bench]"),
        ("--dataset-name hf", ["datasets==3.3.0"], "Unsupported dataset path: None"),
        ("--dataset-name random --requests 8", [], "unrecognized arguments: --requests 8"),
        ("--dataset-name nothing", [], "invalid choice: 'nothing'"),
        ("--dataset-name random --base-url http://127.0.0.8:9", [], "Initial test run failed"),
        ("--dataset-name random --model /nowhere", [], "/nowhere"),
    ],
)
def test_the_benchmark_refuses(here, service, words, packages, says):
    folder = checkpoint(here)
    call = here(
        f"{BENCH} --base-url {service[0]} --model {folder} {words}", "vllm==0.19.1", *packages
    )
    assert says in refused(bench_serve.bench, call)


def test_every_job_beside_the_serving_ones_runs(tmp_path):
    plan = build.plan("k2.5", "h200", "single", variant="slurm", scenario="optimised")
    result = rehearsal.rehearse(plan, tmp_path)
    assert result.ok, result.diagnosis
    ran = {path.stem.partition(" ")[2] or path.stem for path in result.folder.glob("logs/**/*.log")}
    for job in plan.jobs:
        if job.name != "baseline":
            assert any(job.file in name for name in ran) or job.name == "optimised", (job.file, ran)
    text = "".join(path.read_text() for path in result.folder.glob("logs/**/*.log"))
    assert "Using configuration from" in text and "Serving Benchmark Result" in text


def test_each_silent_loss_has_its_remedy():
    losses = data_files.facts("rehearse/silent_losses")
    told = {one for one in data_files.facts("diagnose/remedies") if one.startswith("loss/")}
    assert told == {f"loss/{name}" for name in losses}
