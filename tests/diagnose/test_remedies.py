"""The table of remedies: each is asked for, and what is asked for is there."""

import re

from conftest import ROOT

from kimi_nb.core import data_files
from kimi_nb.deploy import node_looks
from kimi_nb.deploy.slurm import job_faults
from kimi_nb.diagnose import remedies
from kimi_nb.params import load

TOLD = data_files.facts("diagnose/remedies")
SOURCE = "\n".join(
    path.read_text()
    for room in ("deploy", "service", "data/bundle")
    for path in sorted((ROOT / "kimi_nb" / room).rglob("*"))
    if path.suffix in (".py", ".sh", ".j2")
)


def test_what_is_asked_for_is_there():
    asked = re.findall(r'remedies\.of\(\s*"([^"]+)"', SOURCE)
    assert len(asked) > 20 and set(asked) <= set(TOLD)


def test_each_is_asked_for():
    """Those of checks are compared with the checks (tests/prove/test_verify.py)."""
    ours = [one for one in TOLD if one.startswith(("reach/", "node/", "slurm/", "job/", "start/"))]
    states = {f"job/{state}" for state in [*job_faults._ENDS, "PENDING"]}
    unused = [
        one
        for one in ours
        if not re.search(rf"\b{re.escape(one.partition('/')[2])}\b", SOURCE) and one not in states
    ]
    assert len(ours) > 40 and unused == []


def test_each_check_of_a_node_has_one():
    """Those of the hardware files; two are also causes of a step, and stand there once."""
    checks = {name for hw in load.names("hardware") for name in load.hardware(hw).checks}
    told = {one.removeprefix("look/") for one in TOLD if one.startswith("look/")} - {"program"}
    assert told | set(node_looks._CAUSES) == checks and not told & set(node_looks._CAUSES)
    assert set(node_looks._CAUSES.values()) <= set(TOLD)


def test_words_are_filled_in_once():
    assert remedies.of("node/docker", node="{file}").startswith("Install Docker on {file} and")
    assert remedies.first(["node/nothing", "node/port"]) == TOLD["node/port"]
    assert remedies.first(["node/nothing"], node="a3-0") == ""
    left = {word for text in TOLD.values() for word in re.findall(r"\{(\w+)\}", text)}
    assert left <= {"command", "err", "file", "key", "name", "names", "node", "program"}
