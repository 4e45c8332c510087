"""Rules on the images and the options of containers for CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kimi_nb.catalog import companions, fill_ins
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view import container_start
from kimi_nb.check.view.deployment import Box, Deployment
from kimi_nb.check.view.engine_view import EngineView, Spot

_TAG = re.compile(
    r"vllm/vllm-openai:v?(?P<version>[0-9]+\.[0-9]+\.[0-9]+)(?:-x86_64|-aarch64)?(?P<cuda>-cu[0-9]+)"
)


# Tags of the publishers themselves; a mirror may name its copies otherwise.
_UNMARKED = re.compile(
    r"(?P<name>(?:docker\.io/)?vllm/vllm-openai(?:-rocm)?|quay\.io/ascend/vllm-ascend):"
    r"(?P<version>[0-9]+\.[0-9]+\.[0-9]+\S*)"
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
        if match := _UNMARKED.fullmatch(image):
            tagged = f"{match['name']}:v{match['version']}"
            yield Problem(
                spot,
                f"there is no {image}: the tags of releases begin with v",
                f"Take {tagged}.",
            )
            continue
        match = _TAG.search(image)
        known = companions.cuda_tags(match["version"]) if match else ()
        if match and known and match["cuda"] not in known:
            tags = " and ".join(f"v{match['version']}{tag}" for tag in known)
            yield Problem(spot, f"there is no {image}: of this version there are {tags}")


# [host[:port]/]path[:tag][@digest], as the reference of an image is written.
_REFERENCE = re.compile(
    r"(?:[\w.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
    r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*(?::[\w][\w.-]{0,127})?(?:@\w+:[0-9a-fA-F]+)?"
)


_OWNER_ALONE = re.compile(r"(quay\.io|ghcr\.io)/[a-z0-9][\w.-]*(?=[:@]|$)")


@rule(
    "containers/image-name",
    ERROR,
    "The name of an image is one that container engines take.",
    "Write [host[:port]/]path[:tag]: the path in small letters, one colon before the tag.",
    "OCI distribution specification; reference grammar of distribution/reference",
)
def image_name(d: Deployment) -> Iterator[Problem]:
    """'invalid reference format', or 'repository name must be lowercase': nothing is pulled."""
    for box in d.boxes:
        if match := _OWNER_ALONE.match(box.image):
            yield Problem(
                box.spot,
                f"{match[0]} is an owner, and no image: {match[1]} has owners with images",
                "Write the image behind its owner.",
            )
            continue
        if fill_ins.holds(box.image) or re.search(
            r"[^\w./:@-]|:$|^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$", box.image
        ):
            continue  # a part of it is left to the reader
        if box.image and not _REFERENCE.fullmatch(box.image):
            yield Problem(box.spot, f"{box.image} is no name of an image")


@rule(
    "containers/mount-source",
    ERROR,
    "The source of a mount is a path from the root, or the name of a volume.",
    "Write $PWD/ before it.",
    "docker run --help: a source without a slash at its beginning is the name of a volume",
)
def mount_source(d: Deployment) -> Iterator[Problem]:
    """'includes invalid characters for a local volume name': the container is not made."""
    for box in d.boxes:
        for mount in (*box.options.get("-v", ()), *box.options.get("--volume", ())):
            source, colon, target = mount.partition(":")
            if colon and target.startswith("/") and re.match(r"[A-Za-z0-9][\w.-]*/", source):
                yield Problem(
                    box.spot, f"{source[:60]} is neither a path from the root nor a volume"
                )


_BUILD = re.compile(
    r"vllm/vllm-openai:v?(?P<version>[0-9]+\.[0-9]+\.[0-9]+)(?:-x86_64|-aarch64)?(?:-cu(?P<cuda>[0-9]{2})[0-9]+)?"
)


@rule(
    "containers/cuda-of-gpu",
    WARNING,
    "The CUDA of the engine's build has all kernels for the GPU.",
    "Take an image or a wheel for that CUDA: from 0.20.0 on they are the plain ones, 0.17.0 to 0.19.1 "
    "have an image with -cu130.",
    "NVIDIA/Model-Optimizer pull request 2042 (B300, GB300: sm_103); release scripts of vLLM",
    needs=("hardware",),
)
def cuda_of_gpu(d: Deployment) -> Iterator[Problem]:
    """'CUDA error: no kernel image is available', in FP4 at the latest."""
    assert d.hardware is not None
    least = d.hardware.least_cuda
    if least is None:
        return
    for spot, what, cuda in (*_images(d), *_wheels(d)):
        if cuda < least:
            yield Problem(
                spot, f"{what} is built for CUDA {cuda}; {d.hardware.name} needs CUDA {least}"
            )


def _images(d: Deployment) -> Iterator[tuple[Spot, str, int]]:
    """Yield the images of CUDA builds, with the major version of their CUDA."""
    for box in d.boxes:
        match = _BUILD.search(box.image)
        if match:
            yield box.spot, box.image, int(match["cuda"] or companions.cuda_of(match["version"]))


def _wheels(d: Deployment) -> Iterator[tuple[Spot, str, int]]:
    """Yield the calls of uv that install torch for a CUDA, with its major version."""
    calls = [(one.spot, one.argv) for one in d.programs]
    if d.plan is not None:
        steps = d.plan.installs.get(d.plan.install, ())
        calls += [(Spot(f"install/{d.plan.install}.sh"), step.argv) for step in steps]
    for spot, argv in calls:
        match = re.search(r" --torch-backend[ =]cu([0-9]{2})[0-9]", " ".join(argv))
        if match and "install" in argv:
            yield spot, f"--torch-backend {match[0].split()[-1].rpartition('=')[2]}", int(match[1])


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
        elif own and "vllm-openai" in box.image and box.argv[:1] in _SHELLS:
            yield Problem(
                box.spot,
                f"{box.image} runs the engine itself: {box.argv[0]} is taken for a word of its own "
                "command",
                f"Add --entrypoint {box.argv[0]} before the image.",
            )


_SHELLS = (("bash",), ("sh",), ("/bin/bash",), ("/bin/sh",))


@rule(
    "containers/words",
    WARNING,
    "A container is started by a program and its words, or by a shell and one script.",
    "Write each word as an item of its own, or [sh, -c] and the whole command as one text.",
    "docker, compose and Kubernetes: no shell reads the words; sh -c takes the first as its script",
)
def container_words(d: Deployment) -> Iterator[Problem]:
    """'exec: "cd": executable file not found', a program whose name has blanks, or vllm without its
    words."""
    for box in d.boxes:
        entry = _entry(box)
        words = box.argv if box.argv[: len(entry)] == entry else (*entry, *box.argv)
        if not words:
            continue
        shell = next((at for at in (0, 1) if words[at : at + 1] in _SHELLS), None)
        if words[0] in _BUILTINS and "&&" in words:
            yield Problem(box.spot, f"{words[0]} is no program, and && no word of one")
        elif shell is not None and words[shell + 1 : shell + 2] == ("-c",):
            script = words[shell + 2 : shell + 4]
            if script in _ALONE:
                yield Problem(
                    box.spot, f"sh -c runs {script[0]} alone: {script[1]} is no part of its script"
                )
        elif re.match(r"(vllm serve|python3? -m vllm\.\S+) \S", words[0]):
            yield Problem(box.spot, f"one word is the whole command: {words[0][:60]}")


_BUILTINS = ("cd", "export", "source", "set", ".")
_ALONE = (("vllm", "serve"), ("python3", "-m"), ("python", "-m"))


def _entry(box: Box) -> tuple[str, ...]:
    return box.options.get("--entrypoint", ())


@rule(
    "containers/no-devices",
    WARNING,
    "A container of an engine is given its devices.",
    "Add --gpus all, --device /dev/kfd --device /dev/dri, or --device /dev/davinci0 and the like.",
    "docker run --gpus; vLLM's documents of docker; vllm-ascend's installation guide",
)
def no_devices(d: Deployment) -> Iterator[Problem]:
    """'Failed to infer device type', or 'No CUDA GPUs are available': the engine ends at once."""
    for box in d.boxes:
        engine = container_start.image_engine(box.image)
        if (
            engine is not None
            and box.runs_engine
            and _by_docker(box)
            and not box.devices
            and not _DEVICES & set(box.options)
            and not re.search("cpu|tpu|xpu|hpu|neuron|spyre", box.image)
            and "cpu" not in box.argv
        ):
            yield Problem(box.spot, f"{box.image} is started without a device")


_DEVICES = {"--gpus", "--device", "--runtime", "--privileged", "--env-file", "--device-cgroup-rule"}
_TYPED = {"-it", "-d", "-i", "-t", "--rm", "-p", "-v", "--name", "-e", "--ipc", "--shm-size"}


def _by_docker(box: Box) -> bool:
    """Return whether a container is started by a command of which all options are known."""
    return bool(_TYPED & set(box.options)) and container_start.UNKNOWN not in box.options


@rule(
    "containers/shared-memory",
    WARNING,
    "A container of an engine on several devices has shared memory.",
    "Add --ipc=host, or --shm-size with some GB.",
    "vLLM's documents of docker: PyTorch uses shared memory between the ranks of tensor parallel",
)
def shared_memory(d: Deployment) -> Iterator[Problem]:
    """Docker gives 64 MB: NCCL ends with 'Error while creating shared memory segment', or the ranks
    die by a bus error."""
    for box in d.boxes:
        if not _by_docker(box) or {"--ipc", "--shm-size", "--privileged"} & set(box.options):
            continue
        if any("/dev/shm" in mount for mount in (*box.mounts, *box.options.get("--tmpfs", ()))):
            continue
        inside = [server for server in d.servers if server.node == box.node and box.runs_engine]
        most = max(((one.tp or 1) * (one.pp or 1) for one in inside), default=1)
        if most > 1 and not box.host_network:
            yield Problem(box.spot, f"{most} ranks share the 64 MB of /dev/shm that docker gives")


@rule(
    "containers/host-ports",
    WARNING,
    "A container on the host's network publishes no port.",
    "Take -p out, or --network host.",
    "docker: published ports are discarded when using host network mode",
)
def host_ports(d: Deployment) -> Iterator[Problem]:
    """Docker drops the option with a warning: a port that is to be another outside stays what it is,
    and everything that listens inside is open on the host."""
    for box in d.boxes:
        if box.host_network and box.published:
            yield Problem(box.spot, f"-p {box.published[0]} does nothing on the host's network")


@rule(
    "containers/pod-variable",
    WARNING,
    "A variable in the arguments of a pod's container is one that the container has.",
    "Add it to env, or spell it as there.",
    "Kubernetes: $(NAME) in command and args; a name that is not defined stays as it is written",
)
def pod_variable(d: Deployment) -> Iterator[Problem]:
    """The program is handed the text $(NAME) itself, or bash runs NAME as a command."""
    for box in d.boxes:
        known = {*box.env, *box.passes}
        pattern = _POD_VARIABLE if box.pod else _MIXED
        names = [name for word in box.argv for name in pattern.findall(word)]
        for name in dict.fromkeys(names):
            if name not in known and not _GIVEN.match(name):
                near = next((one for one in known if one.lower() == name.lower()), "")
                fix = f"Did you mean $({near})?" if near else ""
                yield Problem(box.spot, f"$({name}): the container has no variable {name}", fix)


_POD_VARIABLE = re.compile(r"(?<!\$)\$\(([A-Z][A-Z0-9_]{2,})\)")
# Nothing but a pod's variable is written so: controllers add names in capitals.
_MIXED = re.compile(r"(?<!\$)\$\(((?:[A-Z][a-z]+_)+[A-Z][a-z]+)\)")
# What controllers and the cluster add.
_GIVEN = re.compile(r"LWS_|RBG_|GROUP_|JOB_|KUBERNETES_|\w+_SERVICE_|\w+_(HOST|PORT)$")


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
