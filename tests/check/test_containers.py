"""Containers: docker compose, Kubernetes, docker run and jobs, read as their programs do."""

from __future__ import annotations

import time

import pytest

from kimi_nb.check.reading import assemble, compose, inference
from kimi_nb.check.reading.files import Text
from kimi_nb.check.rules import registry
from kimi_nb.check.view import commands, container_start
from kimi_nb.check.view.deployment import Batch
from kimi_nb.check.view.engine_view import Spot

IMAGE = "vllm/vllm-openai:v0.19.1"


def of(text: str, name: str = "compose.yml", kind: str = "yaml"):
    return assemble.of_texts([Text(name, "", kind, text)])


def found(text: str, **how) -> set[str]:
    return {one.rule for one in registry.check(of(text, **how)).findings}


def run(words: str, env=None):
    import shlex

    return container_start.box(shlex.split(words), env or {}, Spot("x"))


# Compose: what is taken over from elsewhere ---------------------------------------------------

MERGED = f"""
x-env: &env
  VLLM_A: "1"
  VLLM_B: "1"
x-common: &common
  image: {IMAGE}
  volumes: [/data/hf:/root/.cache/huggingface]
  environment:
    <<: *env
    VLLM_B: "2"
x-run: &run
  image: none
  command: --model m --port 8001
services:
  one:
    <<: *common
    command: --model m
  two:
    <<: [*common, *run]
    ports: ["127.0.0.1:8001:8001"]
"""


def test_merge_keys():
    one, two = of(MERGED).boxes
    assert one.image == two.image == IMAGE and one.mounts == two.mounts != ()
    assert one.argv == ("--model", "m") and two.argv == ("--model", "m", "--port", "8001")
    assert one.env == {"VLLM_A": "1", "VLLM_B": "2"} and two.published == ("127.0.0.1:8001:8001",)
    assert [server.http_port for server in of(MERGED).servers] == [8000, 8001]
    assert of(MERGED).servers[1].env_at("VLLM_A").line == 3


def test_extends_within_the_file():
    base, one = of(f"""
services:
  base:
    image: {IMAGE}
    command: --model base
    environment: {{A: 1, B: 1}}
    volumes: [/data/hf:/root/.cache]
  one:
    extends: {{service: base}}
    command: --model one
    environment: [B=2]
    volumes: [/data/x:/x]
""").boxes
    assert (base.name, one.name) == ("base", "one") and one.image == IMAGE
    assert one.argv == ("--model", "one") and one.env == {"A": "1", "B": "2"}
    assert one.mounts == ("/data/hf:/root/.cache", "/data/x:/x")


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  a: &a\n    <<: *a\n    image: x\n    command: vllm serve m\n",
        "services:\n  a:\n    extends: b\n    image: x\n    command: y\n  b:\n    extends: a\n",
        "services:\n  a: {extends: a, image: x, command: y}\n",
        "services:\n  a: {extends: {file: other.yml, service: b}, image: x, command: y}\n",
        "services:\n  a: {extends: [1], image: x, command: y, <<: 3, environment: 3, volumes: 1}\n",
        "services:\n  a: {image: x, command: {a: b}, ports: [{target: [1]}], volumes: [{source: {}}],"
        " deploy: [1], gpus: {a: 1}, devices: {a: b}, env_file: {a: b}, profiles: 1}\n",
        "a: &a [*a]\nb: {image: x, command: *a, <<: [*a, *a]}\n",
    ],
)
def test_odd_files_are_harmless(text):
    assert of(text) is not None


def test_bombs_are_harmless():
    lines = ["a0: &a0 {k: &w [" + "word, " * 4000 + "]}"]
    lines += [
        f"a{i}: &a{i} {{k{i}: 1, <<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 2000)
    ]
    lines += ["services:"] + [f"  s{i}: {{image: x, <<: *a1999, command: *w}}" for i in range(4000)]
    read = compose.read("\n".join(lines))
    assert "aliases" in read.unread and len(read.containers) < 4000


def test_bombs_among_kubernetes_objects_are_harmless():
    """Each list holds the one before nine times: 9 to the 30th nodes for who unfolds them."""
    lines = ["apiVersion: v1", "kind: Pod", "a0: &a0 [x, y]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 31)]
    lines += ["spec: {containers: *a30, volumes: *a30, initContainers: [{volumeMounts: *a30}]}"]
    begun = time.process_time()
    found("\n".join(lines))
    assert time.process_time() - begun < 5


# Compose: the long forms ----------------------------------------------------------------------


def test_long_forms():
    text = f"""
services:
  a:
    image: {IMAGE}
    command: [--model, m]
    container_name: kimi
    volumes:
      - {{type: bind, source: /data/hf, target: /root/.cache/huggingface, read_only: true}}
      - type: tmpfs
        target: /tmp
    ports:
      - {{target: 8000, published: "8080", host_ip: 127.0.0.1, protocol: tcp}}
      - target: 8000
        published: 8081
      - 9000
    environment: [A=1, "VLLM_API_KEY", B=x=y]
    env_file: [{{path: one.env}}, two.env]
  b:
    build: .
    command: vllm serve m
    environment: {{VLLM_API_KEY: , C: "${{C:-3}}"}}
    env_file: .env
"""
    a, b = of(text).boxes
    assert a.mounts == ("/data/hf:/root/.cache/huggingface:ro",) and a.name == "kimi"
    assert a.published == ("127.0.0.1:8080:8000", "8081:8000", "9000")
    assert a.env == {"A": "1", "B": "x=y"} and a.passes == ("VLLM_API_KEY",)
    assert a.options["--env-file"] == ("one.env", "two.env")
    assert (b.image, b.env, b.passes, b.runs_engine) == ("", {"C": "3"}, ("VLLM_API_KEY",), True)
    assert b.options["--env-file"] == (".env",) and len(of(text).servers) == 2
    assert "capacity/weights-mount" not in found(text.partition("  b:\n")[0])


def test_build_is_a_container_in_services_only():
    assert not of("jobs:\n  a:\n    build: .\n    command: vllm serve m\n").boxes


@pytest.mark.parametrize(
    ("given", "devices", "seen"),
    [
        (
            "devices: ['/dev/davinci0:/dev/davinci0', /dev/davinci1, /dev/davinci_manager]",
            ("/dev/davinci0", "/dev/davinci1"),
            (0, 1),
        ),
        ("devices: [{source: /dev/davinci3, target: /dev/davinci3}]", ("/dev/davinci3",), (3,)),
        ("devices: [/dev/kfd, /dev/dri]", ("/dev/kfd", "/dev/dri"), None),
        ("gpus: all", ("all",), None),
        ("gpus: [{device_ids: ['2', '3']}]", ("gpu2", "gpu3"), (2, 3)),
        (
            "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, "
            "capabilities: [gpu]}]}}}",
            ("gpu0", "gpu1"),
            (0, 1),
        ),
        (
            "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: all, "
            "capabilities: [gpu]}]}}}",
            ("all",),
            None,
        ),
        (
            "deploy: {resources: {reservations: {devices: [{driver: nvidia, capabilities: [gpu]}]}}}",
            ("all",),
            None,
        ),
        (
            "deploy: {resources: {reservations: {devices: [{driver: x, capabilities: [tpm]}]}}}",
            (),
            None,
        ),
        ("deploy: {resources: {limits: {memory: 8g}}}", (), None),
    ],
)
def test_devices_of_a_service(given, devices, seen):
    made = of(f"services:\n  a:\n    image: {IMAGE}\n    command: --model m\n    {given}\n")
    assert made.boxes[0].devices == devices and made.servers[0].devices == seen


@pytest.mark.parametrize(
    ("given", "argv", "port"),
    [
        ("entrypoint: vllm serve\n    command: m --port 8001", "vllm serve m --port 8001", 8001),
        (
            "entrypoint: [vllm, serve]\n    command: [m, --port, 8001]",
            "vllm serve m --port 8001",
            8001,
        ),
        (
            "entrypoint: ['/bin/bash', '-c']\n    command: ['exec vllm serve m --port 8001']",
            "/bin/bash -c exec vllm serve m --port 8001",
            8001,
        ),
        (
            'entrypoint: /bin/bash -c "vllm serve m --port 8001"',
            "/bin/bash -c vllm serve m --port 8001",
            8001,
        ),
        ("entrypoint: ~\n    command: --port 8001 --model m", "--port 8001 --model m", 8001),
    ],
)
def test_entry_points(given, argv, port):
    made = of(f"services:\n  a:\n    image: {IMAGE}\n    {given}\n    privileged: yes\n")
    assert " ".join(made.boxes[0].argv) == argv and made.boxes[0].runs_engine
    assert made.boxes[0].options["--privileged"] == ("true",)
    assert [one.http_port for one in made.servers] == [port]


def test_a_kubernetes_command_is_the_entry_point():
    (box,) = of(
        f"spec:\n  containers:\n  - name: a\n    image: {IMAGE}\n    args: [--model, m]\n"
        "    command: [/start.sh]\n    securityContext: {privileged: true}\n"
        "    volumeMounts: [{name: hf, mountPath: /root/.cache}]\n    env:\n"
        "    - {name: VLLM_API_KEY, valueFrom: {secretKeyRef: {name: k, key: k}}}\n"
        "    envFrom: [{secretRef: {name: s}}]\n"
    ).boxes
    assert box.argv == ("/start.sh", "--model", "m") and not box.runs_engine
    assert box.mounts == ("hf:/root/.cache",) and box.passes == ("VLLM_API_KEY",)
    given = {"--privileged": ("true",), "--env-file": ("s",), "--entrypoint": ("/start.sh",)}
    assert box.options == given


# Compose: nodes -------------------------------------------------------------------------------

TWO = """
services:
  a:
    image: vllm/vllm-openai:v0.19.1
    command: --model m --port 8000
    {how}
    gpus: [{{device_ids: ['{first}']}}]
  b:
    image: vllm/vllm-openai:v0.19.1
    command: --model m --port {port}
    {how}
    gpus: [{{device_ids: ['1']}}]
"""


@pytest.mark.parametrize(
    ("how", "port", "first", "rule"),
    [
        ("network_mode: host", 8000, 0, "topology/ports"),
        ("network_mode: host", 8001, 1, "topology/device-owner"),
        ("network_mode: host", 8001, 0, ""),
        ("restart: always", 8000, 0, ""),
        ("{network_mode: host, profiles: [x]}", 8000, 1, ""),
    ],
)
def test_services_with_the_hosts_network_are_on_one_node(how, port, first, rule):
    text = TWO.format(how="<<: " + how if how[0] == "{" else how, port=port, first=first)
    topology = {one for one in found(text) if one.startswith("topology/")}
    assert topology == ({rule} if rule else set())
    made = of(text)
    nodes = {server.node for server in made.servers}
    assert nodes == {box.node for box in made.boxes}
    assert nodes == {"compose.yml"} if "host" in how else len(nodes) == 2


def test_devices_are_numbered_as_the_node_does():
    made = of(
        f"services:\n  a:\n    image: {IMAGE}\n    network_mode: host\n"
        "    command: --model m\n    environment: {CUDA_VISIBLE_DEVICES: '1'}\n"
        "    gpus: [{device_ids: ['6', '7']}]\n"
    )
    assert made.servers[0].devices == (7,)


def test_davinci_of_two_services_are_one_node():
    text = "services:\n" + "".join(
        f"  s{i}:\n    image: quay.io/ascend/vllm-ascend:v0.18.0\n    network_mode: host\n"
        f"    command: vllm serve m --port {8000 + i} --tensor-parallel-size 2\n"
        f"    devices: [/dev/davinci{2 * i}, /dev/davinci{2 * i + 1}]\n"
        for i in range(2)
    )
    assert of(text).devices_per_node == 4
    assert not {one for one in found(text) if one.startswith("topology/")}
    assert "topology/devices" in found(text.replace("size 2", "size 4"))


def test_fences_and_pods_of_one_name_are_different_nodes():
    fence = (
        f"```yaml\nservices:\n  a:\n    image: {IMAGE}\n    network_mode: host\n"
        "    command: --model m\n```\n\n"
    )
    assert len({one.node for one in of(fence * 2, name="a.md", kind="markdown").servers}) == 2
    pod = f"spec:\n  containers:\n  - name: vllm\n    image: {IMAGE}\n    args: [--model, m]\n"
    assert len({one.node for one in of(f"{pod}---\n{pod}").servers}) == 2


# Lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ("command: |\n      --model m\n      --port 1\n", [5, 5, 6, 6]),
        ("command: >-\n      --model m\n      --port 1\n", [5, 5, 6, 6]),
        ("command: |\n\n      --model m \\\n\n      --port\n      1\n", [6, 6, 8, 9]),
        ("command: --model m\n      --port 1\n", [4, 4, 5, 5]),
        ('command: "--model m\n      --port 1"\n', [4, 4, 5, 5]),
        (
            "command: >\n      --model m\n      --port ${PORT:-1}\n    restart: always\n",
            [5, 5, 6, 6],
        ),
        ("command:\n    - --model\n    - |-\n      m\n    - --port=1\n", [5, 7, 8]),
        ("command: >\n      --model m\n      --port 'a\n", [5, 5, 6, 6]),
    ],
)
def test_words_of_a_block_have_their_own_lines(given, lines):
    (one,) = compose.read(f"services:\n  a:\n    image: {IMAGE}\n    {given}").containers
    assert [line for _, line in one.command] == lines


def test_a_script_in_a_block_has_the_lines_of_the_file():
    (server,) = of(
        f"spec:\n  containers:\n  - image: {IMAGE}\n    command: [bash, -c]\n    args:\n"
        "    - |\n      set -e\n      vllm serve m \\\n        --port 1\n"
    ).servers
    assert server.spot.line == 8 and server.of("port").line == 9


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A:-8000}", "8000"),
        ("${A-8000}", "8000"),
        ("${A:-${B:-8000}}", "8000"),
        ("$A", "$A"),
        ("${A:?say}", "${A:?say}"),
        ("${A?say}", "${A?say}"),
        ("$${A:-1}", "${A:-1}"),
        ("$$A", "$A"),
        ("${A:-}", "${A:-}"),
    ],
)
def test_defaults_of_variables(text, filled):
    (one,) = compose.read(f"services:\n  a:\n    image: x\n    command: ['{text}']\n").containers
    assert one.command[0][0] == filled


# docker run -----------------------------------------------------------------------------------


def test_glued_and_long_options():
    box = run(
        f"docker run -itd -p8000:8000 -p=1:1 -v/data/hf:/root/.cache -eA=V -e B --env=C=1 "
        f"--volume=/a:/b -dp 2:2 --mount type=bind,source=/m,target=/n,readonly "
        f"--mount type=tmpfs,destination=/t --mount src=vol,dst=/w,type=volume "
        f"--env-file a.env --env-file=b.env --privileged=false --name x {IMAGE} --model m"
    )
    assert box.image == IMAGE and box.argv == ("--model", "m") and box.runs_engine
    assert box.published == ("8000:8000", "1:1", "2:2")
    assert box.mounts == ("/data/hf:/root/.cache", "/a:/b", "/m:/n:ro", "vol:/w")
    assert box.env == {"A": "V", "C": "1"} and box.passes == ("B",) and box.name == "x"
    assert box.options["--env-file"] == ("a.env", "b.env")
    assert box.options["--privileged"] == ("false",) and box.options["-d"] == ("true", "true")


def test_a_variable_by_name_has_the_callers_value():
    box = run(f"docker run -e A -e B {IMAGE} --model m", {"A": "1", "B": "${X}"})
    assert box.env == {"A": "1"} and box.passes == ("A", "B")


@pytest.mark.parametrize(
    ("given", "devices"),
    [
        ("--gpus all", ("all",)),
        ("--gpus=all", ("all",)),
        ("--gpus 2", ("gpu0", "gpu1")),
        ("--gpus '\"device=0,1\"'", ("gpu0", "gpu1")),
        ("--gpus device=0,1", ("gpu0", "gpu1")),
        ("--gpus '\"device=0,2\",capabilities=utility'", ("gpu0", "gpu2")),
        ("--gpus count=2,capabilities=utility", ("gpu0", "gpu1")),
        ("--gpus device=GPU-3a23", ("GPU-3a23",)),
        ("--gpus '$N'", ("$N",)),
        ("--gpus 9999999999", ("9999999999",)),
        (
            "--device=/dev/davinci0 --device /dev/davinci1:/dev/davinci1 --device /dev/hisi_hdc",
            ("/dev/davinci0", "/dev/davinci1"),
        ),
    ],
)
def test_devices_of_docker_run(given, devices):
    assert run(f"docker run {given} {IMAGE} --model m").devices == devices


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (f"docker run {IMAGE} vllm serve m", True),
        (f"docker run {IMAGE} --model m", True),
        (f"docker run --entrypoint /bin/bash {IMAGE} -c 'vllm serve m'", True),
        (f"docker run {IMAGE}", False),
        (f"docker run --entrypoint bash {IMAGE} -l", False),
        ("docker run quay.io/ascend/vllm-ascend:v0.18.0 bash -c 'cd x; vllm serve m'", True),
        ("docker run quay.io/ascend/vllm-ascend:v0.18.0 bash -c 'echo vllm'", False),
        ("docker --context far run ubuntu vllm serve m", True),
    ],
)
def test_what_runs_the_engine(words, runs):
    assert run(words).runs_engine is runs


def test_a_whole_command_behind_the_entry_point_is_read_as_it_stands():
    (server,) = of(f"docker run {IMAGE} vllm serve m --port 8001", "run.sh", "bash").servers
    assert server.model == "m" and server.http_port == 8001


# Jobs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "read"),
    [
        (
            ["--nodes=1 --gpus-per-node=8 --mem=32G"],
            {"nodes": "1", "gpus-per-node": "8", "mem": "32G"},
        ),
        (
            ["-N 1 -n8 --mem 32000", "--exclusive --time=1:00"],
            {"nodes": "1", "ntasks": "8", "mem": "32000", "exclusive": "", "time": "1:00"},
        ),
        (["--job-name='a b' -p x"], {"job-name": "a b", "partition": "x"}),
        (["--comment it's"], {"comment": "it's"}),
        (["-t=1"], {"time": "1"}),
        ([""], {}),
        (["x"], {}),
    ],
)
def test_several_options_in_one_line(options, read):
    assert commands.sbatch(options) == read


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"gres": "gpu:8,tmpdisk:100"}, 8),
        ({"gres": "tmpdisk:100"}, None),
        ({"gres": "gpu"}, 1),
        ({"gres": "gpu:h200:8(S:0-1)"}, 8),
        ({"gres": "gpu:a:4,gpu:b:4"}, 8),
        ({"gpus-per-node": "8"}, 8),
        ({"gpus-per-node": "h100:4"}, 4),
        ({"gres": "gpu:$N"}, None),
    ],
)
def test_devices_of_a_job(options, count):
    assert inference.devices([], [Batch(Spot("x"), options, ())]) == count


@pytest.mark.parametrize(
    ("entry", "inside", "counts"),
    [
        ("--entrypoint python3", "- --where /data", False),
        ('--entrypoint "${words[0]}"', '"${words[@]:1}"', False),
        ("--entrypoint hf", "download moonshotai/Kimi-K2.5", False),
        ("--entrypoint bash", "serve.sh", True),
        ("--entrypoint python3", "-m vllm.entrypoints.openai.api_server --model m", True),
        ("", "--model m", True),
    ],
)
def test_a_container_of_one_tool_is_none_of_the_deployment(entry, inside, counts):
    text = f"docker run --rm {entry} vllm/vllm-openai:v0.19.1 {inside}\n"
    found = assemble.of_texts([Text("run.sh", "", "bash", text)])
    assert len(found.boxes) == counts
