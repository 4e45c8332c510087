"""Somebody's notebook and a newer original: nothing that a person has written is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kimi_nb.notebook.cell_merge import BESIDE, content, merge

IDS = st.sampled_from([*"abcdef", f"a{BESIDE}", f"a{BESIDE}-2", "x" * 64])


def cell(name: str, source: str, kind: str = "code", outputs: tuple[str, ...] = ()) -> dict:
    made: dict[str, Any] = {"id": name, "cell_type": kind, "metadata": {}, "source": source}
    return made | ({"outputs": [*outputs], "execution_count": None} if kind == "code" else {})


def book(*cells: dict) -> dict:
    return {"cells": [*cells], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


CELLS = st.builds(
    cell,
    IDS,
    st.sampled_from(["", "1", "2", "3"]),
    st.sampled_from(["code", "markdown", "raw"]),
    st.sampled_from([(), ("seen",)]),
)
BOOKS = st.lists(CELLS, max_size=7, unique_by=lambda one: one["id"]).map(lambda cells: book(*cells))
# What people and other programs leave: cells without an id, or with that of another.
LOOSE = st.lists(
    st.one_of(CELLS, CELLS.map(lambda one: {key: one[key] for key in one if key != "id"})),
    max_size=7,
).map(lambda cells: book(*cells))


def contents(notebook: dict) -> list[tuple[str, tuple[str, str]]]:
    return [(one["id"], content(one)) for one in notebook["cells"]]


@given(BOOKS, BOOKS)
def test_a_copy_that_nobody_touched_becomes_the_original(old, new):
    assert contents(merge(old, old, new).notebook) == contents(new)


@given(BOOKS, BOOKS)
def test_an_original_that_has_not_changed_changes_nothing(old, mine):
    done = merge(old, mine, old)
    assert done.notebook["cells"] == mine["cells"] and not done.conflicts


@given(BOOKS, BOOKS)
def test_the_same_change_on_both_sides_is_none(old, mine):
    done = merge(old, mine, mine)
    assert contents(done.notebook) == contents(mine) and not done.conflicts


@given(LOOSE, LOOSE, LOOSE)
def test_nothing_of_a_person_is_lost(old, mine, new):
    """But a cell of ours that stood beside, and which the person has left as it was."""
    known = [content(one) for one in old["cells"]]
    done = merge(old, mine, new).notebook["cells"]
    left = [(content(one), one.get("outputs")) for one in done]
    for one in mine["cells"]:
        if content(one) not in known:
            assert (content(one), one.get("outputs")) in left
            left.remove((content(one), one.get("outputs")))


@given(LOOSE, LOOSE, LOOSE)
def test_ids_are_unique_and_short(old, mine, new):
    names = [one["id"] for one in merge(old, mine, new).notebook["cells"]]
    assert len(set(names)) == len(names) and all(0 < len(name) <= 64 for name in names)


@given(BOOKS, BOOKS, BOOKS)
def test_a_second_merge_changes_nothing(old, mine, new):
    once = merge(old, mine, new).notebook
    again = merge(new, once, new)
    assert again.notebook == once and not again.conflicts


@given(BOOKS, BOOKS, BOOKS)
def test_what_is_new_in_the_original_is_there(old, mine, new):
    """But a cell that the person has deleted."""
    done = merge(old, mine, new)
    sources = [content(one)[1] for one in done.notebook["cells"]]
    before = {one["id"]: content(one) for one in old["cells"]}
    own = {one["id"] for one in mine["cells"]}
    for one in new["cells"]:
        name = one["id"]
        if before.get(name) != content(one) and (name in own or name not in before):
            assert any(source.endswith(content(one)[1]) for source in sources)


# Examples -----------------------------------------------------------------------------------


def test_both_have_changed_a_cell():
    done = merge(book(cell("a", "hw = 1")), book(cell("a", "hw = 2")), book(cell("a", "hw = 3")))
    yours, ours = done.notebook["cells"]
    assert yours["source"] == "hw = 2" and done.conflicts == ("a",)
    assert ours["source"].splitlines()[0].startswith("# The cell above is yours.")
    assert ours["source"].endswith("\nhw = 3") and ours["id"] == "a-new"
    assert ours["cell_type"] == "raw", "it would run, and undo what the person has set"


def test_what_stood_beside_is_replaced_unless_somebody_worked_in_it():
    first, second, third = (book(cell("a", text)) for text in ("1", "2", "3"))
    once = merge(first, book(cell("a", "mine")), second).notebook
    assert [one["id"] for one in merge(second, once, third).notebook["cells"]] == ["a", "a-new"]
    once["cells"][1]["source"] += " and mine"
    twice = merge(second, once, third).notebook["cells"]
    assert [one["id"] for one in twice] == ["a", "a-new-2", "a-new"]
    assert twice[2]["source"].endswith("2 and mine")


def test_an_own_cell_stays_below_the_one_that_it_was_put_under():
    old = book(cell("a", "1"), cell("b", "2"))
    mine = book(cell("a", "1"), cell("note", "mine", "markdown"), cell("b", "2"))
    new = book(cell("a", "1"), cell("c", "new"), cell("b", "2"))
    names = [one["id"] for one in merge(old, mine, new).notebook["cells"]]
    assert names == ["a", "note", "c", "b"]


def test_what_the_person_has_deleted_stays_deleted():
    old, new = book(cell("a", "1"), cell("b", "2")), book(cell("a", "1"), cell("b", "3"))
    assert contents(merge(old, book(cell("a", "1")), new).notebook) == contents(
        book(cell("a", "1"))
    )


def test_outputs_stay_while_the_source_does():
    seen = book(cell("a", "1", outputs=("seen",)), cell("b", "2", outputs=("seen",)))
    old, new = book(cell("a", "1"), cell("b", "2")), book(cell("a", "1"), cell("b", "3"))
    outputs = [one["outputs"] for one in merge(old, seen, new).notebook["cells"]]
    assert outputs == [["seen"], []]
