"""A site is changed only when it was named."""

import pytest

import kimi_nb
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import lifecycle
from kimi_nb.plan import build


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
