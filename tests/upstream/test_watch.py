"""What became of our recipes in a checkout: the same, changed, new, gone, or left out on purpose."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import small_checkouts
import yaml
from upstream import published as golden

from kimi_nb.cli import main
from kimi_nb.cli import upstream as command
from kimi_nb.core.errors import WriteError
from kimi_nb.plan import build
from kimi_nb.upstream import Found, group_shapes, published, watch
from kimi_nb.upstream.checkout import RECIPES, Checkout

HERE = golden.deployments()
PAGE = "recipes:Kimi-K2.7-Code:h200:"


def read(deployment: str) -> published.Deployment:
    """A golden deployment as the readers give it."""
    one = HERE[deployment]
    roles = tuple(
        published.Role(
            role.name, role.nodes, role.argv, dict(role.env), published.layout(role.argv)
        )
        for role in one.roles
    )
    return published.Deployment(
        id=one.id,
        source=published.Source(RECIPES, "c0ffee", "models/x.yaml", 7),
        model=one.model,
        hardware=one.hardware,
        strategy=deployment.rpartition(":")[2],
        variant="",
        engine="vllm",
        version=one.version,
        image="",
        status="verified" if one.verified else "unverified",
        nodes=max(role.nodes for role in one.roles),
        roles=roles,
        instances=one.roles[0].groups if "kv_store" in deployment else 1,
    )


def found(tmp_path, *deployments: published.Deployment) -> Found:
    checkout = Checkout(root=tmp_path, repo=RECIPES, commit="c0ffee")
    return Found((checkout,), deployments, "k2.7-code")


def test_what_is_published_as_it_was_is_the_same(tmp_path):
    mine = [one for one in HERE if one.startswith(PAGE)]
    assert len(mine) == 10
    seen = watch.compare(found(tmp_path, *map(read, mine)))
    states = {one.deployment: one.state for one in seen.entries}
    assert {states[one] for one in mine} == {watch.SAME}
    assert {state for one, state in states.items() if one not in mine} == {watch.GONE}
    assert any(note.startswith("10 same") for note in seen.notes())


def test_a_changed_flag_is_told_and_proposed_as_a_model_file(tmp_path):
    one = read(f"{PAGE}single_node_tp")
    role = replace(one.roles[0], argv=(*one.roles[0].argv, ("--max-num-seqs", 48)))
    seen = watch.compare(found(tmp_path, replace(one, roles=(role,))))
    (entry,) = [one for one in seen.entries if one.state == watch.CHANGED]
    assert entry.said == ("mixed argv max-num-seqs: upstream 48, ours nothing",)
    (name, text), *others = seen.patches().items()
    assert (name, others) == ("k2.7-code.yaml", []) and "c0ffee" in text and entry.url in text
    path = tmp_path / "patch.yaml"
    path.write_text(text)
    plan = build.plan(str(path), "h200", "single", variant="tp")
    argv = plan.engines[0].argv
    assert argv[argv.index("--max-num-seqs") + 1] == "48"
    assert len(yaml.safe_load(text)["recipes"]) == 1


@pytest.mark.parametrize("end", ["\n", "\r", "\x85", "\u2028", "\x07"])
def test_no_value_of_a_publisher_ends_the_comment_that_tells_it(tmp_path, end):
    one = read(f"{PAGE}single_node_tp")
    odd = f"x{end}extends: mine{end}recipes: []{end}"
    role = replace(one.roles[0], argv=(*one.roles[0].argv, ("--swap-space", odd)))
    new = replace(one, id=f"{PAGE}other{end}extends: mine{end}#")
    seen = watch.compare(found(tmp_path, replace(one, roles=(role,)), new))
    made = yaml.safe_load(seen.patches()["k2.7-code.yaml"])
    assert set(made) == {"extends", "families", "recipes"} and made["extends"] == "k2.7-code"
    assert [len(each["roles"]) for each in made["recipes"]] == [1, 1]


def test_what_is_new_is_proposed_and_what_is_left_out_says_why(tmp_path):
    new = replace(read(f"{PAGE}single_node_tp"), id=f"{PAGE}single_node_other")
    why = replace(read(f"{PAGE}single_node_tp"), id="recipes-old:Kimi-K2.5:128")
    seen = watch.compare(found(tmp_path, new, why))
    states = {one.deployment: (one.state, one.said) for one in seen.entries}
    assert states[new.id] == (watch.NEW, ("no recipe of ours stands for it",))
    assert states[why.id][0] == watch.LEFT_OUT and "older state" in states[why.id][1][0]
    assert "upstream-0" in seen.patches()["k2.7-code.yaml"]


def test_a_command_of_a_document_that_stands_at_another_line_is_the_same(tmp_path):
    page = "va-docs:Kimi-K2.5:"
    mine = [one for one in HERE if one.startswith(page)]
    moved = [replace(read(one), id=f"{page}{int(one.removeprefix(page)) + 6}") for one in mine]
    seen = watch.compare(replace(found(tmp_path, *moved), model="k2.5"))
    states = {one.deployment: one.state for one in seen.entries if one.deployment.startswith(page)}
    known = [f"{page}{line + 6}" for line in (163, 295, 504)]
    assert [states[one] for one in known] == [watch.SAME] * 3
    assert watch.GONE not in states.values()


def test_a_command_that_moved_and_changed_is_not_a_new_one(tmp_path):
    one = read("va-docs:Kimi-K2.5:163")
    role = replace(one.roles[0], argv=(*one.roles[0].argv, ("--seed", 48)))
    moved = replace(one, id="va-docs:Kimi-K2.5:170", roles=(role, *one.roles[1:]))
    seen = watch.compare(replace(found(tmp_path, moved), model="k2.5"))
    (entry,) = [each for each in seen.entries if each.deployment == moved.id]
    assert entry.state == watch.CHANGED and "seed" in entry.said[0]


@pytest.mark.parametrize(
    "deployment, role, devices, shape",
    [
        (f"{PAGE}multi_node_dep", 0, 8, (1, 2, 16, 1, 1)),
        (f"{PAGE}multi_node_tp_pp", 0, 8, (1, 2, 1, 8, 2)),
        ("recipes:Kimi-K3:b200:pd_cluster", 1, 8, (1, 2, 16, 1, 1)),
        ("recipes:Kimi-K2.5:h200:kv_store_centralized_mooncake", 0, 8, (2, 1, 1, 8, 1)),
    ],
)
def test_shapes_are_counted(deployment, role, devices, shape):
    """Groups, nodes of a group, dp, tp and pp, as other code has counted them."""
    counted = group_shapes.counted(read(deployment), devices).roles[role]
    assert (counted.groups, counted.nodes, counted.dp, counted.tp, counted.pp) == shape
    other = HERE[deployment].roles[role]
    assert shape == (other.groups, other.nodes, other.dp, other.tp, other.pp)


def test_the_command_says_what_differs_and_writes_nothing_twice(tmp_path, capsys):
    checkout = small_checkouts.recipes(tmp_path / "recipes")
    assert main.main(["upstream", str(checkout), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert {one["state"] for one in answer["entries"]} == {"gone"}
    assert main.main(["upstream", str(checkout), "--list"]) == 0
    assert main.main(["upstream", str(checkout), "--list", "--out", "x"]) == 2
    assert "--list compares nothing" in capsys.readouterr().err
    assert main.main(["upstream", str(checkout), "--out", str(tmp_path)]) == 2
    assert "Name a new folder" in capsys.readouterr().err


def test_a_folder_of_patches_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    files = {"k2.5.yaml": "extends: k2.5\n", "k3.yaml": "extends: k3\n"}
    wrote = Path.write_text

    def full(path, text, **options):
        if path.name == "k3.yaml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return wrote(path, text, **options)

    with monkeypatch.context() as disk, pytest.raises(WriteError, match="No space left"):
        disk.setattr(Path, "write_text", full)
        command._write(tmp_path / "new" / "patches", files)
    assert not any((tmp_path / "new").iterdir())
    command._write(tmp_path / "new" / "patches", files)
    assert {one.name for one in (tmp_path / "new" / "patches").iterdir()} == {*files}
    with pytest.raises(WriteError, match="File exists"):
        command._write(tmp_path / "new" / "patches", files)
