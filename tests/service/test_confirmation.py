"""A site is changed only when it was named."""

import pytest

import kimi_nb
from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import lifecycle
from kimi_nb.plan import build


def test_a_notebook_and_a_plan_refuse_another_name_in_the_same_words(tmp_path):
    plan = build.plan("k2.5", "a3", "pd")
    with pytest.raises(ParameterError) as of_plan:
        lifecycle.check_confirmed(plan, "other")
    with pytest.raises(ParameterError) as of_notebook:
        kimi_nb.start(
            model="k2.5", hw="a3", action="deploy", confirm="other", run_dir=str(tmp_path)
        )
    assert f"{len(plan.nodes)} nodes of site {plan.site}" in str(of_plan.value)
    for found in (of_plan, of_notebook):
        assert str(found.value).startswith("confirm 'other': this changes ")
        assert f"site {plan.site}; confirm it by its name: " in str(found.value)
        assert f"kimi-nb up --confirm {plan.site}." in str(found.value)
    lifecycle.check_confirmed(plan, plan.site)
