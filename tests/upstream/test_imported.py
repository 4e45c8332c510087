"""Every published deployment against the plan of its recipe: sets of (flag, value), and shapes.

The golden deployments were read by other code than ours. A difference is allowed only where
``data/params/upstream_errata.yaml`` names it, and a deployment has a recipe unless
``data/upstream/left_out.yaml`` says why not.
"""

from __future__ import annotations

import fnmatch
import re
from functools import cache

import pytest
import yaml
from packaging.version import Version
from upstream import published

from kimi_nb import catalog
from kimi_nb.check import judge
from kimi_nb.core import data_files
from kimi_nb.core.errors import KimiError
from kimi_nb.params import load
from kimi_nb.plan import build
from kimi_nb.plan.spec import Plan
from kimi_nb.upstream import as_recipe, plan_differences

PUBLISHED = published.deployments()
IMPORTED = {one: (model, recipe, row) for one, model, recipe, row in published.imported()}
LEFT_OUT = data_files.facts("upstream/left_out")["left_out"]


@cache
def plan_of(deployment: str) -> Plan:
    model, recipe, row = IMPORTED[deployment]
    return build.plan(model, recipe.hardware, recipe.layout, variant=recipe.variant, scenario=row)


def test_every_deployment_has_a_recipe_or_a_reason():
    reasons = {
        one: [entry["why"] for entry in LEFT_OUT if _matches(entry, one)] for one in PUBLISHED
    }
    assert [one for one in PUBLISHED if one not in IMPORTED and not reasons[one]] == []
    assert [one for one in IMPORTED if one not in PUBLISHED] == []
    assert [one for one in IMPORTED if reasons[one]] == []
    used = [entry for entry in LEFT_OUT if any(_matches(entry, one) for one in PUBLISHED)]
    assert used == LEFT_OUT


def _matches(entry: dict, deployment: str) -> bool:
    return any(fnmatch.fnmatchcase(deployment, glob) for glob in entry["deployments"])


def test_the_plans_are_what_is_published():
    unexplained = {}
    for name in IMPORTED:
        found = plan_differences.differences(plan_of(name), PUBLISHED[name])
        if left := [str(one) for one in found if not one.erratum]:
            unexplained[name] = left
    assert unexplained == {}


def test_the_shapes_are_those_published():
    """Nodes, ranks and devices, which a command line alone does not say."""
    for name in IMPORTED:
        plan = plan_of(name)
        for role in PUBLISHED[name].roles:
            if "worker" in role.name:
                continue
            mine = [one for one in plan.engines if one.role == role.name]
            nodes = {one.node for one in mine}
            devices = sum(len(one.devices) for one in mine)
            assert len({one.group for one in mine}) == role.groups, name
            assert len(nodes) == role.groups * role.nodes, name
            assert devices == role.groups * role.dp * role.tp * role.pp, name
            assert (len(mine) == role.groups * role.dp) == (
                role.per_rank or role.dp == role.nodes
            ), name


def test_a_difference_is_noticed():
    name = next(one for one in IMPORTED if one.endswith(":h200:single_node_tp"))
    deployment = PUBLISHED[name]
    role = deployment.roles[0]
    other = plan_differences.Role(**{**vars(role), "argv": (*role.argv, ("--seed", 7))})
    changed = plan_differences.Deployment(**{**vars(deployment), "roles": (other,)})
    assert [str(one) for one in plan_differences.differences(plan_of(name), changed)] == [
        "mixed argv seed: upstream 7, ours nothing"
    ]


def test_no_erratum_is_unused():
    used = set()
    for name in IMPORTED:
        used |= {
            (one.erratum, one.name)
            for one in plan_differences.differences(plan_of(name), PUBLISHED[name])
            if one.erratum
        }
    unused = [
        (entry["id"], change["name"])
        for entry in plan_differences.errata()
        for change in entry["changes"]
        if not any(
            entry["id"] == one and fnmatch.fnmatchcase(name, change["name"]) for one, name in used
        )
    ]
    assert unused == []


def test_errata_and_reasons_are_whole():
    documents = data_files.facts("check/documents")
    assert len({entry["id"] for entry in plan_differences.errata()}) == len(
        plan_differences.errata()
    )
    for entry in plan_differences.errata():
        assert entry["document"] in documents
        for key in ("says", "uses", "why", "evidence"):
            assert entry[key].strip(), f"{entry['id']}: {key}"
    for entry in LEFT_OUT:
        assert entry["why"].strip() and entry["evidence"].strip()


@pytest.mark.parametrize("model", sorted({model for model, _, _ in IMPORTED.values()}))
def test_no_plan_has_an_error(model):
    """Known faults are told of a recipe, whoever publishes it; nothing else may be wrong."""
    errors = {}
    for name, (served, _, _) in IMPORTED.items():
        found = judge.plan(plan_of(name)).errors if served == model else ()
        if wrong := [one for one in found if one.rule != "truth/known-fault"]:
            errors[name] = [f"{one.rule}: {one.message}" for one in wrong]
    assert errors == {}


def test_every_recipe_is_named_once():
    for name in load.names("models"):
        seen = [(r.hardware, r.layout, r.variant) for r in load.model(name).recipes]
        assert len(set(seen)) == len(seen), name


REFUSED = [
    (one, entry["refused_by"])
    for entry in LEFT_OUT
    if "refused_by" in entry
    for one in entry["deployments"]
]


@pytest.mark.parametrize("model", sorted(load.names("models")))
def test_what_is_left_out_is_refused(model, tmp_path):
    """Each deployment that a rule refuses is planned all the same, and refused by that rule."""
    weights = {item.id.lower(): key for key, item in load.model(model).weights.items()}
    mine = [(one, rule) for one, rule in REFUSED if PUBLISHED[one].model.lower() in weights]
    recipes = []
    for at, (one, _) in enumerate(mine):
        published_ = PUBLISHED[one]
        made = as_recipe.recipe(
            published_,
            load.model(model),
            load.hardware(published_.hardware),
            weights[published_.model.lower()],
        )
        source = {"document": "vllm-recipes"}
        front = {"router": "vllm-router"} if made["layout"] == "pd" else {}
        version = _catalogued(published_.version)
        recipes.append(
            {**made, **front, "variant": f"v{at}", "title": one, "source": source}
            | {"engine_version": version, "install": "docker", "bind": "all"}
        )
    path = tmp_path / "mine.yaml"
    for at, (one, rule) in enumerate(mine):
        whole = {"extends": model, "families": None, "recipes": [recipes[at]]}
        path.write_text(yaml.safe_dump(whole))
        assert _refused(str(path), recipes[at], rule), one


def _catalogued(version: str) -> str:
    """The version that a publisher asks for at the least; a late one for an image of no release."""
    asked = version.removeprefix(">=")
    return (
        next((one for one in catalog.versions("vllm") if Version(one) >= Version(asked)), "0.28.0")
        if re.fullmatch(r"[0-9.]+", asked)
        else "0.28.0"
    )


def _refused(model: str, recipe: dict, rule: str) -> bool:
    """Whether a rule refuses a recipe at a version that can read it; "plan" if none plans it."""
    known = list(catalog.versions("vllm"))
    versions = known[known.index(recipe["engine_version"]) :]
    for version in versions[:8]:
        try:
            plan = build.plan(
                model,
                recipe["hardware"],
                recipe["layout"],
                variant=recipe["variant"],
                engine_version=version,
            )
        except KimiError:
            continue
        return rule in {one.rule for one in judge.plan(plan).errors}
    return rule == "plan"
