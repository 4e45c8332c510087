"""Rules on the images and the options of containers for CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb.catalog import companions
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view import container_start
from kimi_nb.check.view.deployment import Box, Deployment
from kimi_nb.check.view.engine_view import EngineView, Spot

_TAG = re.compile(
    r"vllm/vllm-openai:v?(?P<version>[0-9]+\.[0-9]+\.[0-9]+)(?:-x86_64|-aarch64)?(?P<cuda>-cu[0-9]+)"
)


@rule(
    "containers/image-tag",
    ERROR,
    "The tag of an image exists.",
    "Take the tag without a suffix, or the one that is named: CUDA 12.9 is the tag without a suffix "
    "up to 0.19.1 and -cu129 from 0.20.0 on, CUDA 13 is -cu130 and then the tag without a suffix.",
    "release scripts of vLLM 0.11.2 to 0.32.0; pull request 39878",
)
def image_tag(d: Deployment) -> Iterator[Problem]:
    """The pull ends with 'manifest unknown': 13.0 became the CUDA of the plain tag, and the suffix
    went over to 12.9."""
    named: list[tuple[Spot, str]] = [(box.spot, box.image) for box in d.boxes]
    named += [
        (program.spot, word)
        for program in d.programs
        if program.argv[:1] == ("docker",) and "pull" in program.argv[1:3]
        for word in program.argv[2:]
    ]
    for spot, image in named:
        match = _TAG.search(image)
        there = companions.cuda_tags(match["version"]) if match else ()
        if match and there and match["cuda"] not in there:
            tags = " and ".join(f"v{match['version']}{tag}" for tag in there)
            yield Problem(spot, f"there is no {image}: of this version there are {tags}")


@rule(
    "containers/entrypoint-twice",
    ERROR,
    "A container whose entry point is the engine is given its arguments alone.",
    "Take vllm serve out of the arguments, or set --entrypoint.",
    "docker/Dockerfile of vLLM: ENTRYPOINT of the image vllm-openai",
)
def entrypoint_twice(d: Deployment) -> Iterator[Problem]:
    """What stands behind the image is added to its entry point: 'unrecognized arguments: serve', and
    nothing starts."""
    for box in d.boxes:
        own = "--entrypoint" not in box.options and container_start.serves_by_itself(box.image)
        if own and box.argv[:2] == ("vllm", "serve"):
            yield Problem(box.spot, f"{box.image} runs the engine itself: vllm serve stands twice")


@rule(
    "containers/rdma",
    WARNING,
    "A container whose engines talk to other nodes has the RDMA device and its limits.",
    "Add --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 --ulimit stack=67108864.",
    "vllm issue 42075: NCCL falls back to TCP, UCX cannot register memory",
)
def rdma(d: Deployment) -> Iterator[Problem]:
    """NCCL takes TCP without a word, at a fraction of the speed; NIXL's UCX ends with 'Cannot
    allocate memory' under the default limit of 8 MB."""
    if d.ascend:
        return
    for box in d.boxes:
        inside = [server for server in d.servers if server.node == box.node and box.runs_engine]
        missing = _missing(box)
        if missing and any(_over_nodes(server) for server in inside):
            yield Problem(box.spot, f"engines on several nodes without {', '.join(missing)}")


def _missing(box: Box) -> list[str]:
    """Return the options for RDMA that a container lacks."""
    free = box.options.get("--privileged", ("",))[0] == "true"
    limits = box.options.get("--ulimit", ())
    out = []
    if not free and not any(
        one.startswith("/dev/infiniband") for one in box.options.get("--device", ())
    ):
        out.append("--device /dev/infiniband")
    if not free and not {"IPC_LOCK", "ALL"} & set(box.options.get("--cap-add", ())):
        out.append("--cap-add IPC_LOCK")
    if not any(one.startswith("memlock=-1") for one in limits):
        out.append("--ulimit memlock=-1")
    return out


def _over_nodes(server: EngineView) -> bool:
    """Return whether an engine exchanges tensors or cache with engines on other nodes."""
    ranks, here = server.number("data-parallel-size"), server.number("data-parallel-size-local")
    return (
        (server.number("nnodes") or 1) > 1
        or bool(ranks and here and here < ranks)
        or server.role in ("prefill", "decode")
    )
