"""The verdict of a run: which failure is told, what a run does not show, and how notebooks ended."""

from __future__ import annotations

from typing import Any

import pytest

from kimi_nb.report import verdicts
from kimi_nb.report.plan_section import Planned
from kimi_nb.report.service_section import Attempt
from kimi_nb.report.stage_section import Figures
from kimi_nb.report.verdicts import FAILED, NOTHING, OK, UNFINISHED, Notebook

REHEARSAL = "REHEARSAL"
RUN, END = {"stage": "run"}, {"stage": "end", "ok": True}
NO_ACCELERATOR = "Nothing here was measured on accelerators."
NO_ENGINE = "No engine was started: files were written and checked."
ON_CPU = (
    "The real engine ran on a CPU, with a tiny model of random weights: its figures are those of no "
    "accelerator and no Kimi."
)
ON_STAND_INS = (
    "REHEARSAL: stand-ins took the place of engines and accelerators. Their seconds and megabytes "
    "say nothing about any hardware."
)


def planned(**more: Any) -> Planned:
    """A plan of which nothing is known but its name."""
    nothing: dict[str, Any] = dict.fromkeys(Planned.__dataclass_fields__, ())
    nothing |= {"counts": {}, "rules": "", "pictures": {}, "attached_mark": ""}
    nothing |= dict.fromkeys(("contract", "accuracy", "performance", "limits", "sweep"))
    return Planned(**nothing | {"name": "p", "hardware": "a3"} | more)


def attempt(status: str = OK, **more: Any) -> Attempt:
    given = {"name": "deployment 001", "kind": "deploy", "when": 0.0, "mark": "", "diagnosis": {}}
    return Attempt(**given | {"text": "36 of 36 engines ready", "facts": ()} | more, status=status)


def notebook(status: str = OK, name: str = "04_deploy", fault: str = "") -> Notebook:
    return Notebook(name, status, "1.0 s", fault, ())


def figures(*rows: tuple[str, ...], **more: Any) -> Figures:
    return Figures("2 pass, 1 fail; kimi;k at http://127.0.0.1:8000", (), rows, **more)


def of(plans=(), ran=(), entries=(RUN, END)) -> verdicts.Verdict:
    return verdicts.of(entries, ran, plans)


# Failures -------------------------------------------------------------------------------

DIAGNOSIS = {"node": "h1", "rank": 3, "cause": "out of memory", "help": "Take a shorter context."}
BROKEN = attempt(FAILED, diagnosis=DIAGNOSIS, text="failed at step ready")
FINDING = {"severity": "error", "where": "node h1", "message": "two of a port", "fix": "Another."}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "h1, rank 3: out of memory"),
        ({"rank": None}, "h1: out of memory"),
        ({"rank": 0}, "h1, rank 0: out of memory"),
        ({"node": None, "cause": None}, "None, rank 3: None"),
    ],
)
def test_a_start_that_failed_names_node_rank_and_cause(changes, text):
    found = of([planned(attempts=(attempt(), attempt(FAILED, diagnosis=DIAGNOSIS | changes)))])
    assert (found.status, found.next) == (FAILED, "Take a shorter context.")
    assert found.text == f"deployment 001 of p: {text}"


def test_what_a_diagnosis_lacks_is_left_out():
    found = of([planned(attempts=(attempt(FAILED, diagnosis={"rank": 2}),))])
    assert (found.text, found.next) == ("deployment 001 of p: , rank 2: ", "")
    bare = of([planned(attempts=(attempt(FAILED, text="failed at step reach"),))])
    assert (bare.text, bare.next) == ("deployment 001 of p: failed at step reach", "")


def test_a_fault_that_was_made_on_purpose_is_said():
    made = attempt(FAILED, diagnosis=DIAGNOSIS, text="0 ready; the fault oom was made on purpose")
    assert of([planned(attempts=(made,))]).text == (
        "deployment 001 of p: h1, rank 3: out of memory; the fault was made on purpose"
    )


def test_only_the_newest_start_counts():
    assert of([planned(attempts=(BROKEN, attempt()))]).status == OK


def test_errors_of_the_check_are_failures_and_warnings_are_none():
    warning = FINDING | {"severity": "warning", "message": "slow"}
    found = of([planned(findings=(warning, FINDING, FINDING | {"message": "another"}))])
    assert (found.status, found.text) == (FAILED, "check of p: node h1: two of a port")
    assert found.next == "Another."
    assert of([planned(findings=(warning,), files=("a",))]).status == OK


CHECKS = (("api/chat", "pass", "", "", ""), ("api/usage", "fail", "x", "y", "A newer engine."))
SCORES = (("001", "lm-eval", "gsm8k", "", "no score"), ("002", "lm-eval", "mmlu", "", "timeout"))


@pytest.mark.parametrize(
    ("given", "text", "next_"),
    [
        (
            {"contract": figures(*CHECKS, bad=(1,))},
            "verification of p: api/usage",
            "A newer engine.",
        ),
        ({"accuracy": figures(*SCORES, bad=(1,))}, "accuracy of p: mmlu", "timeout"),
        ({"accuracy": figures(*SCORES, bad=(1, 0))}, "accuracy of p: gsm8k", "no score"),
        (
            {"contract": figures(*CHECKS, bad=(0, 1), by_door=(0,))},
            "verification of p: api/usage",
            "A newer engine.",
        ),
    ],
)
def test_the_first_figure_that_failed_is_told(given, text, next_):
    found = of([planned(**given)])
    assert (found.status, found.text, found.next) == (FAILED, text, next_)


def test_what_the_front_door_causes_is_a_limit():
    found = of([planned(contract=figures(*CHECKS, bad=(0, 1), by_door=(0, 1)))])
    assert found.status == OK
    assert found.limits == (
        NO_ACCELERATOR,
        "p fails api/chat, api/usage: its front door, vllm-ascend's example proxy, causes it, and no "
        "engine mends it; --set router=vllm-router plans another.",
        NO_ENGINE,
    )


def test_a_notebook_that_failed_is_told_with_its_first_line():
    ran = [notebook(), notebook(FAILED, "06_verify", "KimiError: bad\nTraceback")]
    found = of([], ran)
    assert (found.status, found.next) == (FAILED, "Its page has the rest.")
    assert found.text == "06_verify failed: KimiError: bad"


def test_a_cause_comes_before_the_notebook_in_which_it_showed():
    """With the name of the notebook, and a count of the other failures."""
    ran = [
        notebook(FAILED, "04_deploy", "ServiceError: no"),
        notebook(FAILED, "06_verify", "gone"),
    ]
    found = of([planned(attempts=(BROKEN,), findings=(FINDING,))], ran)
    assert found.text == "04_deploy: deployment 001 of p: h1, rank 3: out of memory (and 2 more)"
    assert found.next == "Take a shorter context."
    failures = verdicts._failures(ran, [planned(attempts=(BROKEN,), findings=(FINDING,))])
    assert failures[1:] == [
        ("check of p: node h1: two of a port", "Another."),
        ("06_verify failed: gone", "Its page has the rest."),
    ]
    one = of([planned(attempts=(BROKEN,), findings=(FINDING,))])
    assert one.text.endswith("out of memory (and 1 more)")


# No failure -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "plans", "wanted"),
    [
        ((), (), (NOTHING, "nothing was run", "kimi-nb run executes the notebooks.")),
        ((RUN, END), (), (NOTHING, "nothing was run", "kimi-nb run executes the notebooks.")),
        (
            (RUN,),
            (),
            (UNFINISHED, "has no end: it still runs, or was killed", "Look for its process."),
        ),
        (
            (RUN, {"stage": "end", "interrupted": True}),
            (),
            (UNFINISHED, "interrupted before its end", "Start it again."),
        ),
        # An end of the earlier of two counts no more.
        (
            (RUN, {"stage": "end", "interrupted": True}, RUN, END),
            (),
            (NOTHING, "nothing was run", "kimi-nb run executes the notebooks."),
        ),
        (
            (RUN, {"stage": "end", "ok": False}),
            (),
            (FAILED, "the run says that it failed, and not where", ""),
        ),
        (
            (RUN, {"stage": "end"}),
            (),
            (FAILED, "the run says that it failed, and not where", ""),
        ),
        (
            (RUN, END),
            (planned(attempts=(attempt(), attempt(UNFINISHED, text="no end after step start"))),),
            (
                UNFINISHED,
                "deployment 001 of p: no end after step start",
                "Wait for its end, or start it again.",
            ),
        ),
        ((), (planned(attempts=(attempt(),)),), (OK, "p: 36 of 36 engines ready", "")),
        ((RUN, END), (planned(files=("serve.sh",)),), (OK, "p: planned and written", "")),
        (
            (RUN, END),
            (planned(attempts=(attempt(),), files=("serve.sh",)), planned(name="q", files=("x",))),
            (OK, "p: 36 of 36 engines ready; q: planned and written", ""),
        ),
        ((RUN, END), (planned(contract=figures()),), (OK, "p: 2 pass, 1 fail", "")),
    ],
)
def test_the_sentence(entries, plans, wanted):
    found = of(plans, entries=entries)
    assert (found.status, found.text, found.next) == wanted


def test_notebooks_are_counted():
    assert of((), [notebook()]).text == "1 notebook"
    ran = [notebook(), notebook(name="b"), notebook("not recorded", "c")]
    assert of([planned(files=("x",))], ran).text == "2 notebooks; p: planned and written"
    assert of((), [notebook("not recorded")]).status == NOTHING


# What it does not show ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plans", "mark", "limits"),
    [
        ([], "", (NO_ACCELERATOR, NO_ENGINE)),
        ([planned()], "", (NO_ACCELERATOR, NO_ENGINE)),
        ([planned(attempts=(attempt(),))], "", ()),
        ([planned(attempts=(attempt(), BROKEN))], "", ()),
        ([planned(attempts=(BROKEN,))], "", (NO_ACCELERATOR,)),
        ([planned(attempts=(attempt(),), hardware="cpu")], "", (ON_CPU, NO_ACCELERATOR)),
        (
            [planned(attempts=(attempt(kind="rehearse", mark=REHEARSAL),))],
            REHEARSAL,
            (ON_STAND_INS, NO_ACCELERATOR),
        ),
        # Stand-ins that were deployed are no accelerators, and no real engine on a CPU.
        (
            [planned(attempts=(attempt(mark=REHEARSAL),))],
            REHEARSAL,
            (ON_STAND_INS, NO_ACCELERATOR),
        ),
        (
            [planned(attempts=(attempt(mark=REHEARSAL),), hardware="cpu")],
            REHEARSAL,
            (ON_STAND_INS, NO_ACCELERATOR),
        ),
        ([planned(attached=("http://127.0.0.1:1",))], "", ()),
        ([planned(attached=("http://127.0.0.1:1",), hardware="cpu")], "", (NO_ACCELERATOR,)),
        (
            [planned(attached=("http://127.0.0.1:1",), attached_mark=REHEARSAL)],
            REHEARSAL,
            (ON_STAND_INS, NO_ACCELERATOR),
        ),
        # A stand-in that is told by the replies of the load alone.
        (
            [planned(attached=("http://127.0.0.1:1",), performance=figures(mark=REHEARSAL))],
            REHEARSAL,
            (ON_STAND_INS, NO_ACCELERATOR),
        ),
        (
            [
                planned(
                    attached=("http://127.0.0.1:1",),
                    performance=figures(mark=REHEARSAL),
                    contract=figures(),
                )
            ],
            REHEARSAL,
            (ON_STAND_INS,),
        ),
        # One plan on accelerators is enough, and one without an engine does not hide the other.
        (
            [planned(), planned(attempts=(attempt(),)), planned(attempts=(attempt(),))],
            "",
            (),
        ),
    ],
)
def test_limits(plans, mark, limits):
    found = of(plans)
    assert (found.mark, found.limits) == (mark, limits)


# Notebooks ------------------------------------------------------------------------------


def test_how_each_notebook_ended(tmp_path):
    """Those of the run in its order, then those that were recorded, then those that lie there."""
    for name in ("00_start.html", "00_start.ipynb", "by_hand.ipynb", "report.ipynb"):
        (tmp_path / name).write_text("x")
    (tmp_path / "11_report.ipynb").write_text("x")
    (tmp_path / "04_deploy.html").mkdir()
    entries = [
        {"stage": "notebook", "notebook": "00_start", "status": "failed", "seconds": 99},
        {"stage": "run", "notebooks": ["00_start", "04_deploy"]},
        {"stage": "run", "notebooks": ["never"]},
        {"stage": "notebook", "notebook": "extra", "status": "failed", "fault": "KimiError: no"},
        {"stage": "notebook", "notebook": "00_start", "status": "ok", "seconds": 1.25},
        {"stage": "other", "notebook": "no_notebook"},
    ]
    assert verdicts.notebooks(tmp_path, entries) == (
        Notebook("00_start", "ok", "1.2 s", "", ("00_start.html", "00_start.ipynb")),
        Notebook("04_deploy", "not finished", "", "", ()),
        Notebook("extra", "failed", "", "KimiError: no", ()),
        Notebook("by_hand", "not recorded", "", "", ("by_hand.ipynb",)),
    )


@pytest.mark.parametrize("listed", [None, "00_start", {"00_start": 1}, 7])
def test_a_list_of_notebooks_that_is_none(listed, tmp_path):
    assert verdicts.notebooks(tmp_path, [{"stage": "run", "notebooks": listed}]) == ()
    assert verdicts.notebooks(tmp_path, [{"stage": "run", "notebooks": [4]}])[0].name == "4"


def test_an_entry_that_lacks_its_fields(tmp_path):
    (found,) = verdicts.notebooks(tmp_path, [{"stage": "notebook", "notebook": "a"}])
    assert found == Notebook("a", "", "", "", ())
    (found,) = verdicts.notebooks(tmp_path, [{"stage": "notebook", "seconds": "x"}])
    assert found == Notebook("None", "", "", "", ())
