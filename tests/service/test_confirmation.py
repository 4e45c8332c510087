"""A site is changed only when it was named."""

import types

import pytest

import kimi_nb
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import lifecycle
from kimi_nb.deploy.steps import Change
from kimi_nb.notebook import serving
from kimi_nb.plan import build
from kimi_nb.service import confirmation


@pytest.fixture
def mine(site_file):
    """A site that has nothing of an example but its form."""
    return site_file(("192.0.2.", "10.1.2."), ("a3-example", "my-cluster"))


def test_a_notebook_and_a_plan_refuse_another_name_in_the_same_words(mine, tmp_path):
    plan = build.plan("k2.5", "a3", "pd", site=mine)
    with pytest.raises(ParameterError) as of_plan:
        lifecycle.check_confirmed(plan, "other")
    with pytest.raises(ParameterError) as of_notebook:
        kimi_nb.start(
            model="k2.5",
            hw="a3",
            site=mine,
            action="deploy",
            confirm="other",
            run_dir=str(tmp_path),
        )
    assert f"{len(plan.nodes)} nodes of site {plan.site}" in str(of_plan.value)
    for found in (of_plan, of_notebook):
        assert str(found.value).startswith("confirm 'other': this changes ")
        assert f"site {plan.site}; confirm it by its name: " in str(found.value)
        assert f"kimi-nb up --confirm {plan.site}." in str(found.value)
    lifecycle.check_confirmed(plan, plan.site)


EXAMPLE = r"192\.0\.2\.11, .* example's addresses(?s:.*)kimi-nb site new --hw"


def test_the_addresses_of_an_example_are_not_contacted(tmp_path, monkeypatch):
    plan = build.plan("k2.5", "a3", "pd")
    monkeypatch.setattr(lifecycle, "_connect", lambda *given: pytest.fail("a node was asked"))
    for call in (
        lambda: lifecycle.up(plan, tmp_path / "run", confirm=plan.site),
        lambda: lifecycle.up(plan, tmp_path / "run", confirm="other"),
        lambda: lifecycle.preview(plan, tmp_path / "run"),
        lambda: kimi_nb.start(
            hw="a3", model="k2.5", action="deploy", run_dir=str(tmp_path / "run")
        ),
    ):
        with pytest.raises(ParameterError, match=EXAMPLE):
            call()
    assert not (tmp_path / "run").exists()


def test_of_a_site_only_the_nodes_in_use_count(site_file, tmp_path):
    """Nodes of the example that were left in the file, behind one's own, are in nobody's way."""
    path = site_file(("192.0.2.11", "10.1.2.11"))
    lifecycle.check_addresses(build.plan("k2.5", "a3", "single", site=path))
    with pytest.raises(ParameterError, match=r"192\.0\.2\.12"):
        lifecycle.check_addresses(build.plan("k2.5", "a3", "pd", site=path))
    kimi_nb.start(hw="a3", model="k2.5", site=path, action="deploy", run_dir=str(tmp_path))


# What follows asks no node, and needs neither sshd nor root -------------------------------------


def test_up_contacts_and_writes_nothing_before_the_site_is_named(mine, tmp_path, monkeypatch):
    plan = build.plan("k2.5", "a3", "pd", site=mine)
    monkeypatch.setattr(lifecycle, "target", lambda *given, **more: pytest.fail("a node was asked"))
    for confirm in ("", "other", plan.site.upper(), plan.site + " "):
        with pytest.raises(ParameterError, match="this changes"):
            lifecycle.up(plan, tmp_path / "run", confirm=confirm)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def gate(mine, tmp_path, monkeypatch):
    """Pass the gate of a notebook, on a site where two things would change; the evidence."""
    plan = build.plan("k2.5", "a3", "pd", site=mine)
    monkeypatch.setattr(
        lifecycle, "preview", lambda *given: ([Change("a", "one"), Change("b", "two")], "")
    )
    noted = []

    def go(action, confirm):
        session = types.SimpleNamespace(
            action=action,
            folder=tmp_path / "runs" / "run",
            record=lambda stage, **facts: noted.append({"stage": stage, **facts}),
        )
        return serving.gate(session, plan, confirm)

    go.plan, go.noted = plan, noted
    return go


def test_the_gate_lets_only_the_name_of_the_site_pass(gate, capsys):
    for confirm in ("", "other", gate.plan.site[:-1]):
        with pytest.raises(ParameterError, match="this changes 4 nodes of site"):
            gate("deploy", confirm)
        assert gate.noted.pop()["confirmed"] is False and not gate.noted
        assert "2 changes on my-cluster" in capsys.readouterr().out
    table = gate("deploy", gate.plan.site)
    assert table.title.startswith("2 changes on my-cluster")
    assert gate.noted == [
        {
            "stage": "gate",
            "plan": gate.plan.name,
            "site": "my-cluster",
            "changes": 2,
            "confirmed": True,
        }
    ]


@pytest.mark.parametrize("action", ["plan", "rehearse"])
def test_what_changes_no_site_needs_no_name(gate, action):
    assert gate(action, "").title == f"Action {action}" and gate.noted == []


def test_the_words_of_a_refusal():
    def said(*given):
        with pytest.raises(ParameterError) as found:
            confirmation.check(*given)
        return str(found.value)

    assert said("my-site", "x") == (
        "confirm 'x': this changes site my-site; confirm it by its name: confirm='my-site', or "
        "kimi-nb up --confirm my-site. The name stands in the site file (name:)."
    )
    assert "this changes 1 node of site a;" in said("a", "x", 1)
    assert "this changes 2 nodes of site a;" in said("a", "x", 2)
    assert "--confirm 'a b'." in said("a b", "x")
    confirmation.check("a", "a", 2)
    confirmation.check("a", "a")


def test_the_addresses_of_an_example_are_named_four_at_most():
    def said(*addresses):
        with pytest.raises(ParameterError) as found:
            confirmation.check_addresses("s", addresses)
        return str(found.value).partition(": these are the example's")[0]

    some = [f"192.0.2.{number}" for number in range(11, 16)]
    assert said(some[0], "10.0.0.1", some[0]) == "site s: 192.0.2.11"
    assert said(*some[:4]) == f"site s: {', '.join(some[:4])}"
    assert said(*some) == f"site s: {', '.join(some[:4])} and more"
    confirmation.check_addresses("s", ["10.0.0.1", "node-1.example.org"])
    with pytest.raises(ParameterError) as found:
        confirmation.check_addresses("s", some)
    assert str(found.value).endswith(
        ": these are the example's addresses, so nothing was contacted. Write a site file for your "
        "own nodes, kimi-nb site new --hw HW --nodes ADDRESS,..., and name its path: --site "
        "./my-cluster.yaml, in a notebook site."
    )
