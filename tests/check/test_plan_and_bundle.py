"""The check of a plan and the check of its written bundle see the same, in every shape."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROWS

from kimi_nb.bundle import scripts
from kimi_nb.check import judge, reading
from kimi_nb.check.rules import registry
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.core.errors import PlanError
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan

# Rules that can by nature see one of both only, and why.
ONE_SIDED = {
    "truth/errata": "only a plan knows which document it departs from",
    "truth/derived": "only a plan knows that rules have made it, and from what",
    "capacity/concurrency": "only a plan knows the scenario and its number of requests",
    "truth/untested-version": "only a plan knows the version that its recipe was written for",
    "capacity/calibration": "only a plan knows the site file, which names its calibrations",
}
ONE_SIDED_OF_JOBS = {
    "truth/example-address": "the node of a job is SLURM's choice: its scripts name no address",
}
# Of these the severity differs: files cannot tell whether they are all that there is.
MAY_BE_INCOMPLETE = {"topology/ranks"}


def deployments(plan: Plan, folder: Path) -> tuple[Deployment, Deployment]:
    """The plan as the rules see it, and its bundle, written to a folder and read again."""
    for name, text in scripts.files(plan).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return judge.of_plan(plan), reading.read([folder], hardware=load.hardware(plan.hardware))


def told(plan: Plan, deployment: Deployment) -> set[tuple[str, str]]:
    """(rule, severity) of each finding that both sides can have."""
    one_sided = {**ONE_SIDED, **(ONE_SIDED_OF_JOBS if plan.jobs else {})}
    # A document's own shape is not refused for a length that it does not name; files have no document.
    either = {"capacity/cache"} if plan.documented and not plan.request.pairs else set()
    return {
        (one.rule, "" if one.rule in either else one.severity)
        for one in registry.check(deployment).findings
        if one.rule not in one_sided
    }


def places(plan: Plan, deployment: Deployment) -> dict[str, set[str]]:
    """The nodes that each rule finds something on; "" stands for the deployment as a whole."""
    nodes = {engine.name: engine.node for engine in plan.engines}
    nodes |= {f"launcher on {name}": name for name in plan.nodes}
    nodes |= {f"container on {name}": name for name in plan.nodes}
    nodes |= {"router": plan.router.node} if plan.router else {}
    out: dict[str, set[str]] = {}
    for name, rule in registry.all_rules().items():
        if any(not registry._FACTS[fact].holds(deployment) for fact in rule.needs):
            continue
        for problem in rule.find(deployment):
            folder = problem.spot.file.partition("/")[0]
            node = folder if folder in plan.nodes else nodes.get(problem.spot.name, "")
            out.setdefault(name, set()).add(node)
    return out


def same(plan: Plan, folder: Path) -> None:
    mine, theirs = deployments(plan, folder)
    assert (mine.engine, mine.engine_known) == (theirs.engine, theirs.engine_known)
    assert told(plan, mine) == told(plan, theirs)
    if plan.jobs:  # jobs hold the other engine as well, and lie in no folder of a node
        return
    here, there = places(plan, mine), places(plan, theirs)
    for rule in here.keys() & there.keys():
        if rule.startswith("topology/"):
            assert here[rule] == there[rule], rule
        else:  # of engines that are alike, these name the first: of the plan, or of each file
            assert here[rule] <= there[rule], rule


def shapes(hardware: str, layout: str) -> Iterator[list[str]]:
    """Shapes besides the recipe's own: of these some do not fit, which the plan refuses."""
    count = load.hardware(hardware).devices.count
    if layout != "pd":
        yield ["nodes=1", "dp=1", f"tp={count}"]
        yield ["nodes=1", "dp=2", f"tp={count // 2}"]
        yield ["nodes=2", "dp=2", f"tp={count}"]
        yield ["nodes=2", f"dp={2 * count}", "tp=1"]
        yield ["nodes=2", "dp=1", f"tp={2 * count}"]
        yield ["groups=2", "router=vllm-router"]
        return
    alone = ["decode.nodes=1", f"decode.dp={count}", "decode.tp=1"]
    yield ["prefill.nodes=1", "prefill.dp=1"]
    yield ["decode.nodes=1", "decode.dp=1"]
    yield ["prefill.nodes=1", "prefill.dp=1", "decode.nodes=1", "decode.dp=1"]
    yield ["prefill.groups=1", *alone]
    yield ["prefill.groups=2", "decode.groups=2", *alone]
    yield ["prefill.groups=1", "prefill.nodes=2", "prefill.dp=2", f"prefill.tp={count}"]
    yield ["prefill.groups=1", "prefill.nodes=2", "prefill.dp=1", f"prefill.tp={2 * count}"]


def each_shape(row: tuple[str, ...], nodes_file) -> Iterator[Plan]:
    model, hardware, layout, variant, scenario = row
    site = nodes_file(f"{hardware}-slurm" if variant == "slurm" else hardware, 6)
    for number, pairs in enumerate([[], *shapes(hardware, layout)]):
        try:
            yield build.plan(
                model,
                hardware,
                layout,
                variant=variant,
                scenario=scenario,
                site=site,
                pairs=pairs,
            )
        except PlanError:
            assert number, "the recipe's own shape"


def test_every_rule_on_plans_alone_is_in_the_list():
    assert {one.id for one in registry.all_rules().values() if "plan" in one.needs} == set(
        ONE_SIDED
    )


DEFAULT = [row for row in ROWS if row[4] == "default"]


@pytest.mark.long
@pytest.mark.parametrize("row", DEFAULT, ids="-".join)
def test_the_plan_and_its_bundle_have_the_same_findings(row, nodes_file, tmp_path):
    for number, plan in enumerate(each_shape(row, nodes_file)):
        same(plan, tmp_path / str(number))


@pytest.mark.long
@pytest.mark.parametrize("row", [row for row in ROWS if row not in DEFAULT], ids="-".join)
def test_so_has_each_scenario(row, nodes_file, tmp_path):
    for number, plan in enumerate(each_shape(row, nodes_file)):
        same(plan, tmp_path / str(number))


@pytest.mark.parametrize("scenario, pairs", [("replicas", ()), ("optimised", ("nodes=2", "tp=16"))])
@pytest.mark.parametrize("runtime", ["apptainer", "pyxis"])
def test_so_have_jobs_in_an_image(slurm_in_image, tmp_path, runtime, scenario, pairs):
    site = slurm_in_image(runtime)
    plan = build.plan(
        "k2.5", "h200", "single", variant="slurm", scenario=scenario, site=site, pairs=pairs
    )
    same(plan, tmp_path / "bundle")
    mine, theirs = deployments(plan, tmp_path / "again")
    assert {one.kind for one in mine.clients} <= {one.kind for one in theirs.clients}
    # The scripts hold both serving jobs, each with an engine for every node.
    argv = {one.spot.file for one in theirs.servers}
    assert argv == {"jobs/4_baseline.sbatch", "jobs/6_optimised.sbatch"}


# What is wrong with a plan is wrong with its bundle --------------------------------------------

_GROUPS = [
    ("a2", "dp", "docker", ["dp=4", "tp=4"]),
    ("h200", "single", "pip", ["nodes=2", "dp=4", "tp=4"]),
    ("gb200", "single", "docker", ["nodes=2", "dp=2"]),
    ("gb200", "dp", "tensor-parallel", []),
]


def changed(plan: Plan, node: str, flag: str, value: str | None) -> Plan:
    """The plan whose engine on a node says something else, or nothing where value is None."""

    def other(argv: tuple[str, ...]) -> tuple[str, ...]:
        if flag not in argv:
            return argv
        at = argv.index(flag)
        switch = flag == "--headless"
        words = () if value is None else (flag, value)
        return (*argv[:at], *words, *argv[at + (1 if switch else 2) :])

    return replace(
        plan,
        engines=tuple(
            replace(one, argv=other(one.argv)) if one.node == node else one for one in plan.engines
        ),
        containers=tuple(
            replace(one, argv=other(one.argv)) if one.node == node else one
            for one in plan.containers
        ),
    )


_CHANGES = [
    ("--data-parallel-address", None),
    ("--data-parallel-address", "192.0.2.99"),
    ("--data-parallel-rpc-port", None),
    ("--data-parallel-rpc-port", "29999"),
    ("--data-parallel-size", "3"),
    ("--data-parallel-size-local", "1"),
    ("--data-parallel-start-rank", None),
    ("--data-parallel-start-rank", "7"),
    ("--tensor-parallel-size", "2"),
    ("--headless", None),
    ("--master-addr", "192.0.2.99"),
    ("--master-port", "29999"),
    ("--nnodes", "3"),
    ("--node-rank", "0"),
    ("--max-model-len", "1024"),
]


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1], ids=["head", "follower"])
@pytest.mark.parametrize(("hardware", "layout", "variant", "pairs"), _GROUPS)
def test_a_wrong_command_line_is_wrong_on_both_sides(
    hardware, layout, variant, pairs, which, nodes_file, tmp_path
):
    right = build.plan(
        "k2.5", hardware, layout, variant=variant, site=nodes_file(hardware, 2), pairs=pairs
    )
    node, errors, number = right.nodes[which], 0, itertools.count()
    for flag, value in _CHANGES:
        wrong = changed(right, node, flag, value)
        if wrong == right:
            continue
        mine, theirs = deployments(wrong, tmp_path / str(next(number)))
        here, there = told(wrong, mine), told(wrong, theirs)
        assert {one for one in here if one[0] not in MAY_BE_INCOMPLETE} == {
            one for one in there if one[0] not in MAY_BE_INCOMPLETE
        }, (flag, value)
        assert {rule for rule, _ in here} == {rule for rule, _ in there}, (flag, value)
        spots, found = places(wrong, mine), places(wrong, theirs)
        for rule in spots.keys() & found.keys():
            if rule.startswith("topology/"):
                assert spots[rule] == found[rule], (flag, value, rule)
        errors += any(severity == "error" for _, severity in here)
    assert errors >= 3


@pytest.mark.parametrize(
    ("hardware", "variant"), [("h200", "pip"), ("h200", "docker"), ("a3", "docker")]
)
def test_a_router_that_misses_a_replica_is_wrong_on_both_sides(
    hardware, variant, nodes_file, tmp_path
):
    pairs = ["groups=2", "router=vllm-router"]
    site = nodes_file(hardware, 2)
    right = build.plan("k2.5", hardware, "single", variant=variant, site=site, pairs=pairs)
    last = right.engines[1].url
    for number, url in enumerate(("", "http://192.0.2.99:8000")):
        argv = (url if word == last else word for word in right.router.argv)
        wrong = replace(right, router=replace(right.router, argv=tuple(filter(None, argv))))
        mine, theirs = deployments(wrong, tmp_path / str(number))
        wanted = ("topology/proxy", "error")
        here = wanted in told(wrong, mine)
        assert here == (wanted in told(wrong, theirs))
        # A container's engine listens all over, so that it may well have another address.
        assert here or (url and variant == "docker" and hardware == "h200")


WIDE = [
    ("k2.5", "h200", "single", "pip", 2, ["nodes=2", "pp=2"]),
    ("k2.5", "h200", "single", "pip", 4, ["nodes=4", "dp=2", "tp=16"]),
    ("k2.5", "gb200", "dp", "", 4, ["nodes=4", "dp=1", "tp=4", "pp=4"]),
    ("k2.5", "h200", "single", "pip", 2, ["nodes=2", "dp=4", "tp=4", "data-parallel-hybrid-lb=true", "router=vllm-router"]),
    ("wide", "h200", "pd", "", 4, []),
]  # fmt: skip


@pytest.mark.parametrize(("model", "hardware", "layout", "variant", "count", "pairs"), WIDE)
def test_scripts_of_wide_ranks_are_read_as_they_are_planned(
    nodes_file, wide_model, tmp_path, model, hardware, layout, variant, count, pairs
):
    plan = build.plan(
        wide_model if model == "wide" else model,
        hardware,
        layout,
        variant=variant,
        site=nodes_file(hardware, count),
        pairs=pairs,
    )
    planned, read = deployments(plan, tmp_path)
    by_address = {one.address: one for one in read.servers}
    for engine in plan.engines:
        found = by_address[engine.address]
        assert (found.rank, found.ranks, found.part) == (engine.rank, engine.ranks, engine.part)
        assert (found.pp, found.world) == (engine.pp_size, engine.world)
        assert (found.needs, found.headless) == (len(engine.devices), engine.headless)
    for deployment in (planned, read):
        found = registry.check(deployment).findings
        wrong = [one for one in found if one.severity == "error" and "truth/" not in one.rule]
        assert not wrong, wrong
    assert told(plan, planned) == told(plan, read)
