"""One deployment in every layout that people use, and the same findings in each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_nb.check.reading import assemble
from kimi_nb.check.reading.files import Text, _kind
from kimi_nb.check.rules import registry
from kimi_nb.params import load


@dataclass(frozen=True)
class Node:
    """A node: its address, its role, and what its launch line says."""

    role: str
    number: int
    address: str
    head: str
    dp: int
    tp: int
    local: int
    first: int
    port: int

    @property
    def launch(self) -> str:
        return (
            f"python launch_online_dp.py --dp-size {self.dp} --tp-size {self.tp} "
            f"--dp-size-local {self.local} --dp-rank-start {self.first} "
            f"--dp-address {self.head} --dp-rpc-port 12321 --vllm-start-port {self.port}"
        )

    @property
    def template(self) -> str:
        role = {"prefill": "kv_producer", "decode": "kv_consumer"}[self.role]
        return (
            "export ASCEND_RT_VISIBLE_DEVICES=$1\n"
            "vllm serve Eco-Tech/Kimi-K2.5-W4A8 --host 0.0.0.0 --port $2 \\\n"
            "  --data-parallel-size $3 --data-parallel-rank $4 --data-parallel-address $5 \\\n"
            "  --data-parallel-rpc-port $6 --tensor-parallel-size $7 --quantization ascend \\\n"
            '  --kv-transfer-config \'{"kv_connector": "MooncakeConnectorV1", '
            f'"kv_role": "{role}", "kv_port": "{36000 + 100 * self.number}"}}\'\n'
        )


def nodes() -> list[Node]:
    return [
        Node("prefill", 0, "10.0.0.11", "10.0.0.11", 2, 8, 2, 0, 7100),
        Node("prefill", 1, "10.0.0.12", "10.0.0.12", 2, 8, 2, 0, 7100),
        Node("decode", 2, "10.0.0.13", "10.0.0.13", 8, 4, 4, 0, 7200),
        Node("decode", 3, "10.0.0.14", "10.0.0.13", 8, 4, 4, 4, 7200),
    ]


def proxy(made: list[Node], shift: int = 0) -> str:
    words = ["python load_balance_proxy_server_example.py --host 0.0.0.0 --port 1999"]
    for role, stem in (("prefill", "prefiller"), ("decode", "decoder")):
        mine = [node for node in made if node.role == role]
        hosts = [node.address for node in mine for _ in range(node.local)]
        ports = [node.port + index for node in mine for index in range(node.local)]
        ports = [*ports[:-1], ports[-1] + shift] if role == "decode" else ports
        words.append(f"--{stem}-hosts {' '.join(hosts)} --{stem}-ports {' '.join(map(str, ports))}")
    return " ".join(words) + "\n"


# The layouts ---------------------------------------------------------------------------------


def folders(made: list[Node], door: str) -> dict[str, str]:
    """A folder a node: run_dp_template.sh and the launch line."""
    files = {"proxy/proxy.sh": door}
    for node in made:
        files[f"node{node.number}/run_dp_template.sh"] = node.template
        files[f"node{node.number}/launch.sh"] = f"{node.launch}\n"
    return files


def flat(made: list[Node], door: str) -> dict[str, str]:
    """One launch script for all nodes, with a template for each beside it."""
    lines = [f"# {node.role} node {node.number}\n{node.launch}\n" for node in made]
    files = {f"{node.role}_node{node.number}.sh": node.template for node in made}
    return {**files, "launch.sh": "\n".join(lines), "proxy.sh": door}


def roles(made: list[Node], door: str) -> dict[str, str]:
    """One template for each role, and a launch script for each node."""
    files = {f"{node.role}_template.sh": node.template for node in made}
    files |= {f"run_{node.role}{node.number}.sh": f"{node.launch}\n" for node in made}
    return {**files, "proxy.sh": door}


def document(made: list[Node], door: str) -> dict[str, str]:
    """A document: headings name the nodes, launch lines follow in one fence with comments."""
    text = "# Serve\n\n"
    for node in made:
        text += f"## {node.role.title()} node {node.number}\n\n```bash\n{node.template}```\n\n"
    lines = "".join(f"# {node.role} node {node.number}\n{node.launch}\n" for node in made)
    return {
        "README.md": f"{text}## Start\n\n```bash\n{lines}```\n\n## Proxy\n\n```bash\n{door}```\n"
    }


def in_turn(made: list[Node], door: str) -> dict[str, str]:
    """A document without any names: what belongs together stands in the same order."""
    fences = [node.template for node in made] + [f"{node.launch}\n" for node in made] + [door]
    return {"README.md": "".join(f"Then:\n\n```bash\n{fence}```\n\n" for fence in fences)}


def lines_alone(made: list[Node], door: str) -> dict[str, str]:
    """Launch lines and no template at all."""
    lines = "".join(f"# {node.role} node {node.number}\n{node.launch}\n" for node in made)
    return {"launch.sh": lines, "proxy.sh": door}


def config_map(made: list[Node], door: str) -> dict[str, str]:
    """Scripts in a ConfigMap, one document a node."""
    parts = []
    for node in made:
        name = f"{node.role} node {node.number}"
        text = f"#!/bin/bash\n# {name}\n{node.launch}\n".replace("\n", "\n    ").rstrip()
        parts.append(f"kind: ConfigMap\ndata:\n  launch.sh: |\n    {text}\n")
    door_text = f"#!/bin/bash\n{door}".replace("\n", "\n    ").rstrip()
    parts.append(f"kind: ConfigMap\ndata:\n  proxy.sh: |\n    {door_text}\n")
    return {"all.yaml": "---\n".join(parts)}


LAYOUTS = [folders, flat, roles, document, in_turn, lines_alone, config_map]


def told(files: dict[str, str]) -> set[str]:
    """The topology rules that find something, errors and warnings."""
    texts = [
        Text(name, str(Path(name).parent).replace(".", ""), _kind(Path(name), text), text)
        for name, text in files.items()
    ]
    made = assemble.of_texts(texts, "vllm-ascend", "0.18.0", load.hardware("a3"))
    return {
        one.rule
        for one in registry.check(made).findings
        if one.rule.startswith("topology/") and one.severity != "note"
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_right_is_right_in_each(layout):
    assert told(layout(nodes(), proxy(nodes()))) == set()


def changed(index: int, **values) -> list[Node]:
    made = nodes()
    made[index] = replace(made[index], **values)
    return made


FAULTS = {
    "a wrong port of the proxy": (nodes(), proxy(nodes(), 7), "topology/proxy"),
    "a missing rank": (changed(3, local=3), proxy(nodes()), "topology/ranks"),
    "a rank past the end": (changed(3, first=5), proxy(nodes()), "topology/rank-range"),
    "a rank twice": (changed(3, first=3), proxy(nodes()), "topology/ranks"),
    "devices that are not there": (changed(0, tp=16), proxy(nodes()), "topology/devices"),
    "another network": (changed(1, head="10.9.0.12"), proxy(nodes()), "topology/network"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fault_is_found_in_each(layout, fault):
    made, door, rule = FAULTS[fault]
    assert rule in told(layout(made, door))


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 3),
    st.sampled_from(["local", "first", "port", "tp"]),
    st.integers(1, 3),
    st.sampled_from([0, 0, 5]),
)
def test_the_findings_are_the_same_in_each(index, key, more, shift):
    made = nodes()
    made[index] = replace(made[index], **{key: getattr(made[index], key) + more})
    door = proxy(nodes(), shift)
    # Without templates nothing is known of connectors; the rest must agree.
    about = {"topology/proxy", "topology/ranks", "topology/rank-range", "topology/devices"}
    found = {layout.__name__: sorted(told(layout(made, door)) & about) for layout in LAYOUTS}
    assert len({tuple(rules) for rules in found.values()}) == 1, found
