"""Notebooks 06 to 08 take the service that is up on the site."""

import pytest

import kimi_nb
from kimi_nb.bundle import scripts
from kimi_nb.deploy.journal import Journal
from kimi_nb.notebook import running
from kimi_nb.params import load
from kimi_nb.plan import build


@pytest.fixture
def site(site_file):
    return site_file(*((f"192.0.2.{n}", f"10.1.2.{n}") for n in (11, 12, 13, 14)))


def deployed(runs, site, state, layout="single", model="k2.5", **asked):
    """A deployment of a plan, as `up` leaves it."""
    plan = build.plan(model, "a3", layout, site=site, **asked)
    journal = Journal.open(runs / "some-run" / plan.name, plan)
    journal.keep(plan)
    journal.set(state)
    return plan, journal


def start(runs, site, action="deploy", **more):
    return kimi_nb.start(
        hw="a3", model="k2.5", site=site, action=action, run_dir=str(runs / "mine"), **more
    )


def test_the_service_that_is_up_is_taken(tmp_path, site):
    plan, journal = deployed(tmp_path, site, "up", chosen=["prefix-caching"], pairs=["port=8100"])
    run = start(tmp_path, site)
    choice = run.choose("largest")
    assert (choice.layout, choice.features, choice.overrides) == (
        "single",
        "prefix-caching",
        "port=8100",
    )
    again = choice.plan()
    assert (again.name, again.engines, again.url) == (plan.name, plan.engines, plan.url)
    assert running.folder(run, again) == journal.folder.parent.parent


def test_the_newest_is_taken(tmp_path, site):
    deployed(tmp_path, site, "up")[1]
    newer = deployed(tmp_path, site, "up", layout="pd")[1]
    newer.begun = "2999" + newer.begun[4:]
    newer.write()
    assert start(tmp_path, site).choose("largest").layout == "pd"


@pytest.mark.parametrize("state", ["down", "failed", "starting"])
def test_what_is_not_up_is_not_taken(state, tmp_path, site):
    deployed(tmp_path, site, state)
    run = start(tmp_path, site)
    choice = run.choose("largest")
    assert choice.layout == "pd"
    assert running.folder(run, choice.plan()) == run.folder / choice.plan().name


def test_another_model_site_action_or_choice_is_not_replaced(tmp_path, site, site_file):
    deployed(tmp_path, site, "up", model="k2.6")
    assert start(tmp_path, site).choose("largest").layout == "pd"
    deployed(tmp_path, site, "up")
    assert load.site(site).name != "other"
    assert start(tmp_path, site, action="plan").choose("largest").layout == "pd"
    assert start(tmp_path, site).choose("pd").layout == "pd"
    assert start(tmp_path, site).choose("largest", scenario="16k-throughput").layout == "pd"


@pytest.mark.parametrize("erratum", [["k2.5-host=off"], ["all=off", "k2.5-host=on"]])
def test_a_service_with_errata_off_is_taken_with_its_own_plan(erratum, tmp_path, site):
    plan, journal = deployed(tmp_path, site, "up", erratum=erratum)
    run = start(tmp_path, site)
    # Named again or not: the layout is that of the service, which is not the largest.
    for asked in ("", ",".join(erratum)):
        choice = run.choose("largest", errata=asked)
        again = choice.plan()
        assert (choice.layout, choice.errata) == ("single", ",".join(erratum))
        assert again.errata_off == plan.errata_off and plan.errata_off
        assert scripts.files(again) == scripts.files(plan)  # `up` refuses other ones
        assert running.folder(run, again) == journal.folder.parent.parent
    assert run.choose("largest", errata="k2.5-moved-variables=off").layout == "pd"


def test_what_is_chosen_as_it_is_up_is_the_service(tmp_path, site):
    deployed(tmp_path, site, "up", chosen=["prefix-caching"], pairs=["port=8100"])
    run = start(tmp_path, site)
    assert run.choose("largest", overrides="port=8100").features == "prefix-caching"
    assert run.choose("largest", overrides="port=8200").layout == "pd"


def test_a_damaged_journal_hides_nothing(tmp_path, site):
    journal = deployed(tmp_path, site, "up")[1]
    other = tmp_path / "broken" / "plan" / "deployments" / "001"
    other.mkdir(parents=True)
    (other / "state.json").write_text("{")
    assert start(tmp_path, site).choose("largest").layout == "single"
    assert journal.folder.exists()
