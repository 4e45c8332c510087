"""Each fault of a first hour on real nodes, put back into a bundle, is refused by the rehearsal."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kimi_nb.bundle import scripts
from kimi_nb.plan import build
from kimi_nb.rehearse import rehearsal
from kimi_nb.rehearse.simulated_site import rebound

Edit = Callable[[str], str]


@dataclass(frozen=True)
class Fault:
    """A fault: the plan, the scripts that have it again, and what the engine or node says of it.

    ``pattern`` chooses the files, and ``edit`` changes each of them. ``says`` is looked for in the
    diagnosis.
    """

    name: str
    hardware: str
    layout: str
    pattern: str
    edit: Edit
    says: str
    variant: str = ""
    pairs: tuple[str, ...] = ()
    nodes: int = 0
    scenario: str = ""
    more: dict = field(default_factory=dict)


def without(*lines: str) -> Edit:
    """Take out the lines in which one of these stands."""

    def edit(text: str) -> str:
        kept = [line for line in text.split("\n") if not any(one in line for one in lines)]
        return "\n".join(kept)

    return edit


def put(old: str, new: str) -> Edit:
    return lambda text: re.sub(old, new, text)


ONE_GROUP = ("nodes=2", "dp=16", "tp=1")
FAULTS = [
    Fault(
        "the follower is told no address of its group",
        "h200",
        "single",
        r"node-1/serve\.sh",
        without("--data-parallel-address"),
        "missing rank: rank 8",
        variant="pip",
        pairs=ONE_GROUP,
        nodes=2,
    ),
    Fault(
        "the leader is told no address of its group",
        "h200",
        "single",
        r"node-0/serve\.sh",
        without("--data-parallel-address"),
        "missing rank: rank 8(.|\n)*127.0.0.1:[0-9]+, which is",
        variant="pip",
        pairs=ONE_GROUP,
        nodes=2,
    ),
    Fault(
        "a node of a pipeline has all of its stages",
        "h200",
        "single",
        r"node-1/serve\.sh",
        put("--pipeline-parallel-size 2", "--pipeline-parallel-size 1"),
        "pipeline-parallel-size",
        variant="pip",
        pairs=("nodes=2", "pp=2"),
        nodes=2,
    ),
    Fault(
        "a node that is to answer for its own ranks is headless",
        "h200",
        "single",
        r"node-1/serve\.sh",
        put("--data-parallel-hybrid-lb", "--headless"),
        "must not use --headless in external or hybrid",
        variant="pip",
        pairs=("nodes=2", "dp=4", "tp=4", "data-parallel-hybrid-lb=true"),
        nodes=2,
    ),
    Fault(
        "gloo is told no interface",
        "h200",
        "single",
        r".*/serve\.sh",
        without("GLOO_SOCKET_IFNAME"),
        "gloo's processes look for each other at 127.0.(0|1).1(.|\n)*connectFullMesh",
        variant="pip",
        pairs=ONE_GROUP,
        nodes=2,
    ),
    Fault(
        "the side channel of NIXL is that of the node itself",
        "gb200",
        "pd",
        r".*/run_dp_template\.sh",
        without("VLLM_NIXL_SIDE_CHANNEL_HOST"),
        "no connection to 127.0.0.1:[0-9]+ of the node itself",
        variant="nvfp4",
    ),
    Fault(
        "a container of several nodes publishes one port",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put("--net=host", "-p 8000:8000"),
        "at an address that this host or container does not have",
        variant="docker",
        pairs=ONE_GROUP,
        nodes=2,
    ),
    Fault(
        "a job of two nodes starts one engine",
        "h200",
        "single",
        r"jobs/4.*",
        put(r"srun --nodes=2", "srun --nodes=1"),
        "of the job has no engine",
        variant="slurm",
        pairs=("nodes=2", "tp=16"),
        nodes=2,
    ),
    Fault(
        "the weights' folder is not in the container",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put(r"-v /data/models:/data/models", "--init"),
        "weights missing: /data/models",
        variant="docker",
        more={"models": "/data/models"},
    ),
    Fault(
        "weights of ModelScope are asked at Hugging Face",
        "a3",
        "single",
        r".*/serve\.sh",
        put(r"serve \S+", "serve Eco-Tech/Kimi-K2.5-W4A8"),
        "weights missing: Eco-Tech/Kimi-K2.5-W4A8",
    ),
    Fault(
        "the switch of hubs moves the draft as well",
        "h200",
        "single",
        r".*/serve\.sh",
        put(
            r"exec vllm serve \S+",
            "export VLLM_USE_MODELSCOPE=True\nexec vllm serve moonshotai/Kimi-K2.5 "
            '--speculative-config \'{"method":"eagle3","model":"lightseekorg/kimi-k2.5-eagle3-mla",'
            '"num_speculative_tokens":3}\'',
        ),
        "draft missing: lightseekorg/kimi-k2.5-eagle3-mla",
        variant="pip",
    ),
    Fault(
        "a group of one rank is given a rank",
        "h200",
        "single",
        r".*/serve\.sh",
        put(
            r"--tensor-parallel-size",
            "--data-parallel-size 1 --data-parallel-rank 0 \\\\\\n    --tensor-parallel-size",
        ),
        "data_parallel_external_lb can only be set",
        variant="pip",
    ),
    Fault(
        "Mooncake does not find its library",
        "a3",
        "pd",
        r".*/run_dp_template\.sh",
        without("LD_LIBRARY_PATH"),
        "Mooncake's library is not found",
    ),
    Fault(
        "the environment of the engine is not entered",
        "h200",
        "single",
        r".*/serve\.sh",
        without("export PATH="),
        "vllm is not on PATH",
        variant="pip",
    ),
    Fault(
        "the ranks' environment is not entered",
        "gb200",
        "pd",
        r".*/launch\.sh",
        without("export PATH="),
        "python is not on PATH",
        variant="nvfp4",
    ),
    Fault(
        "nixl is not installed",
        "gb200",
        "pd",
        r"install/.*\.sh",
        put(r"nixl==\S+ nixl-cu12==\S+ nixl-cu13==\S+", "requests"),
        "NIXL is not",
        variant="nvfp4",
    ),
    Fault(
        "the router is not installed",
        "gb200",
        "pd",
        r"install/.*\.sh",
        put(r"vllm-router==\S+", "requests"),
        "vllm-router is not on PATH",
        variant="nvfp4",
    ),
    Fault(
        "the proxy is named from the caller's folder",
        "a3",
        "pd",
        r".*/proxy\.sh",
        without('cd "$(dirname'),
        "load_balance_proxy_server_example.py is not in the folder",
    ),
    Fault(
        "the kernel tuner's ray is not installed",
        "h200",
        "single",
        r"jobs/2.*",
        put(r"ray==\S+ ", ""),
        "5_tune_moe(.|\n)*No module named 'ray'",
        variant="slurm",
    ),
    Fault(
        "the benchmark's datasets are not installed",
        "h200",
        "single",
        r"jobs/2.*",
        put(r"datasets==\S+ ", ""),
        r"7_benchmark(.|\n)*Please install vllm\[bench\]",
        variant="slurm",
    ),
    Fault(
        "the kernel tuner reads the outer configuration",
        "h200",
        "single",
        r"jobs/5.*",
        without("--model-prefix"),
        "tuned kernels are not used(.|\n)*E=48,N=2048",
        variant="slurm",
        scenario="optimised",
    ),
    Fault(
        "the kernel tuner takes another size of tensor parallelism",
        "h200",
        "single",
        r"jobs/5.*",
        put("--tp-size 8", "--tp-size 4"),
        "tuned kernels are not used(.|\n)*E=48,N=2048",
        variant="slurm",
        scenario="optimised",
    ),
    Fault(
        "the benchmark asks at the wrong port",
        "h200",
        "single",
        r"jobs/7.*",
        put(":8000", ":8009"),
        "7_benchmark(.|\n)*Initial test run failed",
        variant="slurm",
    ),
    Fault(
        "conda asks for terms of service",
        "h200",
        "single",
        r"jobs/1.*",
        without("--override-channels", "-c conda-forge"),
        "terms of service",
        variant="slurm",
    ),
    Fault(
        "the image's entry point serves a script",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put(r"(vllm/vllm-openai:\S+)[^$]*", r"\1 bash serve.sh"),
        "unrecognized arguments",
        variant="docker",
    ),
    Fault(
        "a container without its GPUs",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put("--gpus all", "--init"),
        r"available GPUs \(0\)",
        variant="docker",
    ),
    Fault(
        "sixteen engines of a container share 1 GB of /dev/shm",
        "a3",
        "pd",
        r".*/docker_run\.sh",
        put("--shm-size=512g", "--shm-size=1g"),
        "RPC call to sample_tokens timed out.*1.0 GiB of /dev/shm for [0-9]+ engines",
    ),
    Fault(
        "a container has docker's own 64 MB of /dev/shm",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put("--ipc=host", "--init"),
        "/dev/shm is full",
        variant="docker",
    ),
    Fault(
        "torch is of the driver's CUDA, and vLLM of another",
        "h200",
        "single",
        r"install/pip\.sh",
        put(r"--torch-backend \S+", "--torch-backend auto"),
        r"libcudart\.so\.12",
        variant="pip",
    ),
    Fault(
        "the ROCm wheel is for another Python",
        "mi300x",
        "single",
        r"install/pip\.sh",
        put("--python 3.12", "--python 3.11"),
        "the engine finds no accelerator",
        variant="pip",
    ),
    Fault(
        "a container has no RDMA device",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put("--device /dev/infiniband", "--init"),
        "NCCL takes plain TCP between the nodes",
        variant="docker",
        pairs=ONE_GROUP,
        nodes=2,
    ),
    Fault(
        "a container may not lock memory for RDMA",
        "h200",
        "single",
        r".*/docker_run\.sh",
        put("--cap-add IPC_LOCK|--ulimit memlock=-1", "--init"),
        "unhandled system error(.|\n)*Cannot allocate memory",
        variant="docker",
        pairs=ONE_GROUP,
        nodes=2,
    ),
    Fault(
        "HCCL's buffer is that of a smaller step",
        "a3",
        "pd",
        r".*/run_dp_template\.sh",
        put(r"HCCL_BUFFSIZE=\d+", "HCCL_BUFFSIZE=1100"),
        "HCCL_BUFFSIZE is too small 2131 ?MB",
    ),
    Fault(
        "a draft that proposes more than fits a step",
        "a3",
        "pd",
        r".*/run_dp_template\.sh",
        put(r"--max-num-batched-tokens \d+", "--max-num-batched-tokens 8"),
        "batched_tokens|scheduled",
    ),
    Fault(
        "chunked prefill is off, and a step is shorter than the context",
        "h200",
        "single",
        r".*/serve\.sh",
        put(
            "--tensor-parallel-size",
            "--no-enable-chunked-prefill --max-num-batched-tokens 2048 \\\\\\n    --tensor-parallel-size",
        ),
        "max_num_batched_tokens",
        variant="pip",
    ),
]


def site_of(fault: Fault, nodes_file, tmp_path) -> str | None:
    name = f"{fault.hardware}-slurm" if fault.variant == "slurm" else fault.hardware
    if not fault.nodes and not fault.more:
        return None
    path = tmp_path / "site.yaml"
    with open(nodes_file(name, max(fault.nodes, 1)), encoding="utf-8") as file:
        text = file.read()
    models = fault.more.get("models")
    if models:
        text = re.sub(r"\n  models: .*", "", text).replace(
            "paths:\n", f"paths:\n  models: {models}\n"
        )
    path.write_text(text)
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.name)
def test_a_fault_put_back_is_refused(fault, nodes_file, tmp_path):
    def make(plan, work, block):
        local = rebound(plan, work, block)
        files = scripts.files(local)
        hits = [name for name in files if re.fullmatch(fault.pattern, name)]
        assert hits, sorted(files)
        changed = {name: fault.edit(files[name]) for name in hits}
        assert any(changed[name] != files[name] for name in hits), files[hits[0]]
        return local, files | changed

    plan = build.plan(
        "k2.5",
        fault.hardware,
        fault.layout,
        variant=fault.variant,
        scenario=fault.scenario,
        pairs=fault.pairs,
        site=site_of(fault, nodes_file, tmp_path),
    )
    result = rehearsal.rehearse(plan, tmp_path / "run", make=make)
    assert not result.ok and result.diagnosis
    assert re.search(fault.says, str(result.diagnosis)), str(result.diagnosis)
