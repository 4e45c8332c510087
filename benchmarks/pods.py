"""How long the objects of a large plan take, and the rehearsal of 36 engines in 4 pods and in 36.

    python benchmarks/pods.py

The plan has 1,024 nodes and 9,216 engines as pods; the peer is planning it. The first answer of
pods is compared with that of the same plan's scripts in the same run; both are wall seconds, which
say little beside other programs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import judging
import yaml

from kimi_nb.bundle.kubernetes import kubernetes_files
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.rehearse import rehearsal

NODES, PODS = 1024, 36
OBJECTS, MORE = 1.5, 2.0  # s CPU; s after the first answer of scripts
REPEATS = 3


def main(judge: judging.Judge) -> None:
    objects(judge)
    pods(judge)


def objects(judge: judging.Judge) -> None:
    """The files for kubectl and for llm-d."""
    with tempfile.TemporaryDirectory() as name:
        site = load.site("a3-kubernetes").model_dump(mode="json", exclude_unset=True)
        path = Path(name) / "site.yaml"
        path.write_text(yaml.safe_dump(site | {"nodes": NODES}))
        pairs = [f"prefill.groups={NODES // 2}", f"decode.groups={NODES // 4}"]

        def planned() -> Plan:
            return build.plan("k2.5", "a3", "pd", site=str(path), pairs=pairs)

        plan = planned()
        made, peer = judging.repeated(
            REPEATS,
            lambda: judging.cpu(lambda: kubernetes_files.files(plan)),
            lambda: judging.cpu(planned),
        )
    what = f"objects of {len(plan.nodes):,} pods, {len(plan.engines):,} engines"
    judge.figure(what, made, "s CPU", most=OBJECTS, peer=("planning it", peer))


def pods(judge: judging.Judge) -> None:
    """The first answer of pods, and that of the same plan's scripts."""
    with tempfile.TemporaryDirectory() as name:
        site = load.site("h200-kubernetes").model_dump(mode="json", exclude_unset=True)
        path = Path(name) / "site.yaml"
        path.write_text(yaml.safe_dump(site | {"nodes": PODS}))
        pairs = [f"groups={PODS}", "router=vllm-router"]
        plans = [
            build.plan("k2.5", "a3", "pd", site="a3-kubernetes"),
            build.plan("k2.5", "h200", "single", site=str(path), pairs=pairs),
        ]
    for plan in plans:
        first_answers(judge, plan)


def first_answers(judge: judging.Judge, plan: Plan) -> None:
    """Compare pods with scripts on a plan."""

    def first(make: rehearsal.Make | None) -> float:
        with tempfile.TemporaryDirectory() as name:
            found = rehearsal.rehearse(plan, Path(name), make=make)
        assert found.ok and found.first_answer_s, found
        return found.first_answer_s

    here, there = judging.repeated(REPEATS, lambda: first(None), lambda: first(rehearsal.of_nodes))
    later = [mine - other for mine, other in zip(here, there, strict=True)]
    judge.figure(
        f"first answer of {len(plan.engines)} engines in {len(plan.nodes)} pods, after that of scripts",
        later,
        "s",
        most=MORE,
        peer=("scripts", there),
    )


if __name__ == "__main__":
    sys.exit(judging.judged(main))
