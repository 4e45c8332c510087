"""The single-node pod of a plan, made by ``podman kube play``: a real container of the pod's object.

podman reads the objects of Kubernetes without a cluster. Its container runs the stand-in engine from
the scripts of the ConfigMap, and the object's own probe is run in it. What podman 4 lacks of a
cluster is given by hand: the pod's address, which it does not fill in, and the accelerators, which
here are device nodes instead of a device plugin's.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import images
from testbed.machines import Machine, lacks

from kimi_nb.bundle.kubernetes import kubernetes_files
from kimi_nb.core.marks import MARK
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import cluster_table, kubernetes_pods, loopback
from kimi_nb.rehearse.simulated_site import SimulatedSite

IMAGE = "docker.io/vllm/vllm-openai:here"
CONTAINER = "kimi-mixed-0-engine"
# The group of a pod has no image of its own here, and rights are those of the test.
SETTINGS = f"""\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
infra_image = "{IMAGE}"
infra_command = "/bin/sleep 100000"
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build.plan("k2.5", "h200", "single", site="h200-kubernetes")


@pytest.fixture(scope="module")
def machine(plan) -> Iterator[Machine]:
    """A machine with eight accelerators that has the image, with podman's settings in /run."""
    why = lacks()
    if why:
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="kn-"))  # podman's folders have paths of 50 characters
    site = replace(SimulatedSite.of(plan), nodes={})  # the engine listens at every address
    images.write(folder / "image.tar", {"pod": site})
    with Machine("images", "nvidia", 0) as loads:
        loads.load(folder, folder / "image.tar", IMAGE, "pod", entry='["/bin/sleep","100000"]')
    with Machine("pods", "nvidia", plan.devices_per_node, folder) as made:
        made.done("tee", "/run/containers.conf", given=SETTINGS.encode())
        made.env["CONTAINERS_CONF"] = "/run/containers.conf"
        yield made
    shutil.rmtree(folder)


def objects(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """The ConfigMap and the pod, as their controllers make them."""
    block = loopback.claim()
    block.guard.close()
    _, files = kubernetes_pods.make(plan, folder, block)
    (pod,) = json.loads(files[cluster_table.FILE])["pods"]
    made = yaml.safe_load(kubernetes_files.files(plan)["kubernetes/kustomization.yaml"])
    (entry,) = made["configMapGenerator"]
    data = {path.rpartition("/")[2]: kubernetes_files.files(plan)[f"kubernetes/{path}"]
            for path in entry["files"]}  # fmt: skip
    name = {"name": entry["name"]}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data}, pod]


def on_podman(pod: dict[str, Any], devices: int) -> None:
    """Give the pod what podman lacks: its address, the image that is here, the device nodes."""
    container = pod["spec"]["containers"][0]
    container["image"] = IMAGE
    for variable in container["env"]:
        if variable["name"] == "POD_IP":
            del variable["valueFrom"]
            variable["value"] = "127.0.0.1"
    for at in range(devices):
        path = {"path": f"/dev/nvidia{at}", "type": "CharDevice"}
        pod["spec"]["volumes"].append({"name": f"nvidia{at}", "hostPath": path})
        container["volumeMounts"].append({"name": f"nvidia{at}", "mountPath": path["path"]})


@pytest.fixture(scope="module")
def pod(machine, plan, tmp_path_factory) -> Iterator[dict[str, Any]]:
    """The pod while it runs."""
    made = objects(plan, tmp_path_factory.mktemp("pod"))
    on_podman(made[1], plan.devices_per_node)
    machine.done("tee", "/run/pod.yaml", given=yaml.safe_dump_all(made).encode())
    machine.done("docker", "kube", "play", "/run/pod.yaml")
    yield made[1]
    machine.done("docker", "pod", "rm", "--force", "--time", "0", "kimi-mixed-0")


def test_the_pod_becomes_ready_by_its_own_probe(machine, pod):
    """The readiness probe of the object, run in the container as kubelet would."""
    probe = pod["spec"]["containers"][0]["readinessProbe"]
    end = time.monotonic() + 60
    while True:
        done = machine.docker("exec", CONTAINER, *probe["exec"]["command"])
        if done.returncode == 0 or time.monotonic() > end:
            break
        time.sleep(0.5)
    log = machine.docker("logs", CONTAINER)
    assert done.returncode == 0, (done, log)
    assert MARK in log.stdout


def test_the_container_is_that_of_the_object(machine, pod, plan):
    """Command, variables, memory, devices and mounts."""
    (told,) = json.loads(machine.done("docker", "inspect", CONTAINER))
    container = pod["spec"]["containers"][0]
    entry = told["Config"]["Entrypoint"]  # podman 4 joins its words
    words = [entry] if isinstance(entry, str) else entry
    assert " ".join([*words, *(told["Config"]["Cmd"] or [])]) == " ".join(container["command"])
    env = dict(one.split("=", 1) for one in told["Config"]["Env"])
    assert env["LWS_GROUP_SIZE"] == "1" and env["GROUP"] == "0"
    assert env["LWS_LEADER_ADDRESS"] == "kimi-mixed-0.kimi-mixed.kimi"
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    assert told["HostConfig"]["Memory"] == memory
    seen = machine.done("docker", "exec", CONTAINER, "ls", "/dev", "/opt/kimi-nb/scripts").split()
    assert {f"nvidia{at}" for at in range(plan.devices_per_node)} <= {*seen}
    assert {"serve.sh", "ready.py"} <= {*seen}
    assert {mount["mountPath"] for mount in container["volumeMounts"] if "nvidia" not in mount["name"]
            } <= {mount["Destination"] for mount in told["Mounts"]}  # fmt: skip


def test_the_engine_is_started_as_the_plan_says(machine, pod, plan):
    lines = machine.done("docker", "exec", CONTAINER, "cat", "/proc/1/cmdline").split("\0")
    argv = list(plan.engines[0].argv[1:])
    assert lines[-len(argv) - 1 : -1] == argv
